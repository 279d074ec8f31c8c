"""AgeAdder: from times of nodes and edges, how much earlier each is than the seed for which it was sampled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_name, shown
from datapipes.base.types import ends_of
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.features.feature_store import Keys, check_keys, feature_text, store_keys
from datapipes.minibatch import MiniBatch

__all__ = ["AgeAdder"]


@register_stage("add_ages")
class AgeAdder(MiniBatchTransformer):
    """Add the feature NAME_age for each time NAME: the time of the seed minus this time, float32, in units of `per`.

    The difference is taken in int64, since float32 does not hold times of today to the minute. It needs
    temporal_sample_neighbor, whose seeds have times, and fetch_feature before it, which reads the times. A feature
    NAME_missing (bool) that was fetched, too, tells which times are missing; their ages are 0.

    Args:
        node_feature_keys, edge_feature_keys: names of fetched features with times, int64 [n]; with types {type: names},
            as for fetch_feature.
        per: how many units of time are 1 in the result; 86400 gives days if times are seconds.
    Raises:
        TypeError, ValueError: While running, a minibatch has no times of seeds, or a time was not fetched or is not
            int64 [n].
    """

    draws = False

    def __init__(
        self,
        source: Stage,
        node_feature_keys: Keys | None = None,
        edge_feature_keys: Keys | None = None,
        *,
        per: int = 1,
    ) -> None:
        super().__init__(source)
        self.per = check_int(self.name, "per", per, 1)
        self._of_nodes, self._of_edges = (
            store_keys(domain, check_keys(domain, keys))
            for domain, keys in (("node", node_feature_keys), ("edge", edge_feature_keys))
        )
        if not self._of_nodes and not self._of_edges:
            raise ValueError(f"{self.name}: found no features; at least one is needed. Name features that hold times.")

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        seed_times = self._seed_times(minibatch)
        nodes = dict(minibatch.node_features or {})
        for key, (_, kind, name) in self._of_nodes.items():
            if kind not in seed_times:
                raise ValueError(
                    f"{self.name}: no node type {shown(kind)}; sampled are {shown([*seed_times])}. Name one of these."
                )
            nodes.update(self._age(nodes, key, "node", kind, name, seed_times[kind]))
        changes: dict[str, Any] = {"node_features": nodes}
        if self._of_edges:
            hops = []
            fetched = minibatch.edge_features or [{} for _ in minibatch.blocks or ()]
            for block, before in zip(minibatch.blocks or (), fetched, strict=True):
                rows = dict(before)
                for key, (_, kind, name) in self._of_edges.items():
                    of_type = block if kind is None else block.get(kind)
                    if of_type is None:
                        raise ValueError(
                            f"{self.name}: no edges {shown(kind)}; sampled are {shown([*block])}. Name these."
                        )
                    if key in rows or not any(key in of_hop for of_hop in fetched):
                        destinations = seed_times[ends_of(kind)[1]][of_type.edge_index[1]]
                        rows.update(self._age(rows, key, "edge", kind, name, destinations))
                hops.append(rows)
            changes["edge_features"] = hops
        return minibatch.replace(**changes)

    def _age(
        self, rows: Mapping[Any, Any], key: Any, domain: str, kind: Any, name: str, seed_times: Tensor
    ) -> dict[Any, Tensor]:
        times = rows.get(key)
        if not isinstance(times, Tensor) or times.dtype != torch.int64 or times.ndim != 1:
            found = f"is {_form(times)}, must be int64 [n]. Name a feature that holds times."
            if times is None:
                found = f"was not fetched; fetched are {shown([*rows])}. Fetch it before this stage."
            raise ValueError(f"{self.name}: the {feature_text(domain, kind, name)} {found}")
        age = (seed_times - times).to(torch.float32) / self.per
        missing = rows.get(_named(key, f"{name}_missing"))
        if isinstance(missing, Tensor):
            age = age.masked_fill(missing, 0)
        return {_named(key, f"{name}_age"): age}

    def _seed_times(self, minibatch: MiniBatch) -> dict[Any, Tensor]:
        """Return {node type: the time of the seed for which each input node was sampled}, int64 [num_nodes].

        Trees say it. Otherwise seeds of different times share no nodes, so times go along the edges from the seeds on.
        """
        stamps, local, nodes = minibatch.timestamps, minibatch.compacted_seeds, minibatch.input_nodes
        if stamps is None or local is None or nodes is None:
            lacking = "timestamps" if stamps is None else "sampled nodes"
            raise ValueError(
                f"{self.name}: minibatch {minibatch.index} has no {lacking}. Give the items a field timestamps, and "
                f"put {self.name} behind temporal_sample_neighbor."
            )
        stamps_by_type, local_by_type = (
            value if isinstance(value, dict) else {None: value} for value in (stamps, local)
        )
        nodes_by_type = nodes if isinstance(nodes, dict) else {None: nodes}
        if minibatch.batch is not None:
            rows = minibatch.batch if isinstance(minibatch.batch, dict) else {None: minibatch.batch}
            every = torch.cat([stamps_by_type[kind] for kind in stamps_by_type])
            return {kind: every.to(places.device)[places] for kind, places in rows.items()}
        times = {
            kind: torch.zeros(len(ids), dtype=torch.int64, device=ids.device) for kind, ids in nodes_by_type.items()
        }
        has_time = {kind: torch.zeros_like(rows, dtype=torch.bool) for kind, rows in times.items()}
        for kind, seeds in local_by_type.items():
            src, dst = ends_of(kind) if isinstance(kind, tuple) else (kind, kind)
            columns = seeds.unsqueeze(1) if seeds.ndim == 1 else seeds
            for place, ids in enumerate(columns.long().unbind(1)):
                end = src if place == 0 and seeds.ndim == 2 else dst
                times[end][ids] = stamps_by_type[kind].to(ids.device)
                has_time[end][ids] = True
        before, total = -1, sum(map(len, times.values()))
        while before < (count := sum(int(known.sum()) for known in has_time.values())) < total:  # once, if not induced
            before = count
            for hop in reversed(minibatch.blocks or ()):
                for kind, block in hop.items() if isinstance(hop, dict) else ((None, hop),):
                    src, dst = ends_of(kind)
                    known = has_time[dst][block.edge_index[1]]
                    sources, destinations = block.edge_index[:, known]
                    times[src][sources] = times[dst][destinations]
                    has_time[src][sources] = True
        return times

    def describe(self) -> dict[str, Any]:
        return {"of": shown([*self._of_nodes, *self._of_edges]), "per": self.per}


def _named(key: Any, name: str) -> Any:
    """Return the key in a minibatch of the feature `name` of the same type as that of `key`."""
    return (key[0], name) if isinstance(key, tuple) else name


def _form(values: Any) -> str:
    return f"{dtype_name(values.dtype)} {[*values.shape]}" if isinstance(values, Tensor) else type(values).__name__
