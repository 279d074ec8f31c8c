"""FeatureFetcher: reads the features of a minibatch's nodes and edges.

A feature that is missing, too short, or of an unknown type is refused when the chain is built. For this the stage asks
the sampler upstream, which knows the graph, the edge types that it draws from, and whether the blocks have edge ids. A
node feature with more rows than the graph has nodes is allowed, but logged: it often belongs to another graph.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, dtype_name, shown
from datapipes.base.log import logger
from datapipes.base.types import type_in
from datapipes.chain.asynchronous import hides_own
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device.gather import limited_to
from datapipes.device.missing_ids import wait_for_all
from datapipes.features.feature import Feature
from datapipes.features.feature_store import (
    FeatureKey,
    FeatureRequest,
    FeatureStore,
    Keys,
    Names,
    by_name,
    check_keys,
    feature_text,
    naming,
    other_form,
    store_keys,
)
from datapipes.features.padding_rows import ids_to_read, with_padding
from datapipes.features.tensor_feature import TensorFeature
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch, SparseRows
from datapipes.minibatch.message import in_order_of_types
from datapipes.sampling import Sampler

__all__ = ["FeatureFetcher"]


@register_stage("fetch_feature")
class FeatureFetcher(MiniBatchTransformer):
    """Fill `node_features` (rows of `input_nodes`) and `edge_features` (rows of each block's `edge_ids`).

    Behind a copy to a GPU, the ids lie on the GPU. Only page-locked features and features in that GPU's own memory can
    be read with such ids (see Feature.reads_on).

    Args:
        feature_store: the store of the features; one call of its `read_many` reads all features of a minibatch. If the
            store or one of the features has `reads_async`, the call is `read_many_async`, and the store's `concurrency`
            is the number of minibatches read at once.
        node_feature_keys, edge_feature_keys: names of the features to read; None reads none. In a heterogeneous graph
            {type: names}; for an edge type (src, rel, dst) the text "src:rel:dst" is accepted too. The minibatch
            has these features under (type, name). Features that an earlier stage fetched under other names stay. If
            nothing was sampled, node features are read for 1-D seeds. The log says once, at level WARNING, if a node
            feature has more rows than the sampled graph has nodes.
    Raises:
        KeyError: The store has no such feature.
        ValueError: A feature has fewer rows than the sampled graph has nodes or edge ids. Or edge features are asked
            for, but the sampler upstream returns no edge ids. Or the graph has no such type, or the sampler does not
            draw from that type. Or the names are by type and the graph has no types, or they are a list and the graph
            has types.
    """

    _does = "gather"
    draws = False

    def __init__(
        self,
        source: Stage,
        feature_store: FeatureStore,
        node_feature_keys: Keys | None = None,
        edge_feature_keys: Keys | None = None,
    ) -> None:
        super().__init__(source)
        if not isinstance(feature_store, FeatureStore):
            raise TypeError(
                f"fetch_feature: feature_store must be a FeatureStore, got {type(feature_store).__name__}. Wrap the "
                "features: dp.FeatureStore({('node', None, 'feat'): dp.TensorFeature(tensor)})."
            )
        self.feature_store = feature_store
        self.node_feature_keys = check_keys("node", node_feature_keys)
        self.edge_feature_keys = check_keys("edge", edge_feature_keys)
        self._of_nodes = store_keys("node", self.node_feature_keys)
        self._of_edges = store_keys("edge", self.edge_feature_keys)
        self._gpu: tuple[torch.device, int] | None = None
        fills = {"node_features": self._of_nodes, "edge_features": self._of_edges}
        self._fills = tuple(field for field, keys in fills.items() if keys)
        samplers = StageGraph(self).find(Sampler)
        if samplers:
            self._check_types("node", self.node_feature_keys, samplers[-1])
            self._check_types("edge", self.edge_feature_keys, samplers[-1])
        self._check_store()
        self.asynchronous, self.concurrency = self._reads_async(), feature_store.concurrency
        if samplers:
            self._check_rows(samplers[-1])

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        requests = self.requests_of(minibatch)
        if not requests:
            return minibatch.replace()
        with _named():
            rows = self._read_many(requests)
        return self._filled(minibatch, requests, rows)

    def _made_of(self, *minibatches: Any) -> Any:
        """Return the result of `transform`. If a DataLoader's plan has limited the GPU threads of this stage, the limit
        holds during the call.
        """
        if self._gpu is None:
            return self.transform(*minibatches)
        with limited_to(self._gpu[1]):
            return self.transform(*minibatches)

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        requests = self.requests_of(minibatch)
        if not requests:
            return minibatch.replace()
        with _named():
            rows = await self.feature_store.read_many_async(requests)
        return self._filled(minibatch, requests, rows)

    @property
    def feature_keys(self) -> list[FeatureKey]:
        """The keys, in the store, of the features that this stage reads; those of nodes first."""
        return [*self._of_nodes.values(), *self._of_edges.values()]

    @property
    def reads_from(self) -> dict[str, Feature]:
        return {feature_text(*key): self.feature_store[key] for key in self.feature_keys}

    def bytes_for(self, minibatch: MiniBatch) -> int:
        """Return the bytes that are read for a minibatch."""
        return sum(self.feature_store[tuple(key)].bytes_for(ids) for *key, ids in self.requests_of(minibatch))

    def reads_on(self, device: torch.device) -> dict[FeatureKey, str | None]:
        """Return {key of a feature: how it is read with ids on `device`, a CUDA device}; see Feature.reads_on."""
        return {key: self.feature_store[key].reads_on(device) for key in self.feature_keys}

    def _reads_by_uva(self, device: torch.device) -> bool:
        """Return whether some feature, with at least one value, is read from host memory by the GPU `device`."""
        read = [self.feature_store[key] for key, how in self.reads_on(device).items() if how == "uva"]
        return any(math.prod((feature.count, *feature.shape)) > 0 for feature in read)

    def _behind_copy_to(self, device: torch.device, max_uva_threads: int) -> FeatureFetcher:
        """Return a copy of this stage for a DataLoader's plan in which minibatches are on `device` when they reach it.

        This stage does not change. No later pass of the plan may rebuild the copy, since a rebuilt stage forgets
        `device` and `max_uva_threads`.
        """
        stage = copy.copy(self)
        stage._gpu = device, max_uva_threads
        return stage

    def _finish_reads(self) -> None:
        """Wait until it is known whether all ids of earlier reads on GPUs have rows; see Feature._finish_reads."""

        def finish(key: FeatureKey) -> None:
            with _named(), naming(*key):
                self.feature_store[key]._finish_reads()

        wait_for_all(functools.partial(finish, key) for key in self.feature_keys)

    def _read_many(self, requests: list[FeatureRequest]) -> Any:
        return self.feature_store.read_many(requests)

    def _reads_async(self) -> bool:
        """Return whether the stage is asynchronous: minibatches are read by `transform_async`, several at once."""
        store = self.feature_store
        says_so = check_bool("fetch_feature", "reads_async", store.reads_async)
        if not says_so and not any(store[key].reads_async for key in self.feature_keys):
            return False
        if says_so and type(store).read_many_async is FeatureStore.read_many_async:
            raise TypeError(
                f"fetch_feature: {type(store).__name__} says reads_async=True, but has no read_many_async of its own. "
                "Define it, or leave reads_async at False."
            )
        return not hides_own(self, FeatureFetcher, "transform")

    def requests_of(self, minibatch: MiniBatch) -> list[FeatureRequest]:
        """Return the requests (domain, type, name, ids) for the features of a minibatch, those for nodes first. They
        have no ids of padding.
        """
        requests = self._requests_of(minibatch)
        if minibatch.bucket is None:
            return requests
        return [(*request[:3], ids_to_read(self.feature_store, request)) for request in requests]

    def _requests_of(self, minibatch: MiniBatch) -> list[FeatureRequest]:
        requests: list[FeatureRequest] = []
        if self._of_nodes:
            nodes = self._nodes_of(minibatch)
            requests += [("node", type_, name, nodes[type_]) for _, type_, name in self._of_nodes.values()]
        if self._of_edges:
            requests += self._of_each_hop(minibatch)
        return requests

    def _filled(self, minibatch: MiniBatch, requests: list[FeatureRequest], all_rows: Any) -> MiniBatch:
        """Check `all_rows`, the store's answers to `requests`; return the minibatch with these rows."""
        rows = checked_rows(requests, all_rows)
        if minibatch.bucket is not None:
            rows = with_padding(self.feature_store, self._requests_of(minibatch), rows)
        read = iter(rows)
        changes: dict[str, Any] = {}
        if self._of_nodes:
            of_nodes = {key: next(read) for key in self._of_nodes}
            before = minibatch.node_features
            changes["node_features"] = _merged(before, of_nodes) if before else of_nodes
        if self._of_edges:
            of_edges = [{key: next(read) for key in self._of_edges} for _ in minibatch.blocks or ()]
            if minibatch.edge_features:
                of_edges = [_merged(*hop) for hop in zip(minibatch.edge_features, of_edges, strict=True)]
            changes["edge_features"] = of_edges
        return minibatch.replace(**changes)

    def _nodes_of(self, minibatch: MiniBatch) -> Mapping[Any, Tensor]:
        """Return {node type: nodes whose features are read}; the type is None without types."""
        nodes = minibatch.input_nodes
        if nodes is None:
            nodes = minibatch.seeds
            of_each = [*nodes.values()] if isinstance(nodes, dict) else [nodes]
            if not all(isinstance(ids, Tensor) and ids.ndim == 1 for ids in of_each):
                shapes = [list(ids.shape) for ids in of_each if isinstance(ids, Tensor)]
                seeds = f"seeds of shape {shapes[0]}" if shapes else "no seeds"
                raise ValueError(
                    f"fetch_feature: node features need input_nodes, or 1-D seeds where nothing was sampled; found "
                    f"{seeds}. Put a sampler before this stage."
                )
        return self._by_type("node", self.node_feature_keys, nodes)

    def _of_each_hop(self, minibatch: MiniBatch) -> list[FeatureRequest]:
        """Return the requests (domain, type, name, ids) for edge features, hop by hop."""
        if minibatch.blocks is None:
            raise ValueError(
                "fetch_feature: edge features need blocks, found none in the minibatch. Put a sampler before this "
                "stage."
            )
        requests: list[FeatureRequest] = []
        has_types = isinstance(self.edge_feature_keys, dict)
        for hop in minibatch.blocks:
            by_type = self._by_type("edge", self.edge_feature_keys, hop) if has_types or type(hop) is dict else None
            for _, type_, name in self._of_edges.values():
                edge_ids = hop.edge_ids if by_type is None else by_type[type_].edge_ids
                if edge_ids is None:
                    raise ValueError(
                        "fetch_feature: edge features need edge ids, found a block without. Sample with "
                        "return_edge_ids=True."
                    )
                requests.append(("edge", type_, name, edge_ids))
        return requests

    def _by_type(self, domain: str, keys: Names, value: Any) -> Mapping[Any, Any]:
        """Return `value`, a field of a minibatch, as {type: field of this type}; without types {None: value}.

        Args:
            domain: "node" or "edge".
            keys: the names of features that this stage reads.
        Raises:
            TypeError, ValueError: `keys` are by type and the minibatch has no types, or the other way round; or the
                minibatch lacks a type.
        """
        has_types = isinstance(value, dict)
        if has_types is not isinstance(keys, dict):
            raise other_form(domain, keys, "the minibatch", sorted(value, key=shown) if has_types else None)
        if not has_types:
            return {None: value}
        for type_ in keys:
            if type_ not in value:
                type_in("fetch_feature", domain, type_, value)  # raises
        return value  # type: ignore[no-any-return]

    def _check_store(self) -> None:
        for domain, type_, name in self.feature_keys:
            if (domain, type_, name) not in self.feature_store:
                has: Any = self.feature_store.names(domain, type_)
                if type_ is not None and not has:
                    has = f"features of the types {self.feature_store.types(domain)}"
                raise KeyError(
                    f"fetch_feature: no {feature_text(domain, type_, name)}; the store has {has}. Add it to the store, "
                    f"or drop it from {domain}_feature_keys."
                )

    def _check_types(self, domain: str, keys: Names, sampler: Sampler) -> None:
        """Check that the graph of `sampler`, the nearest sampler upstream, has the types in `keys`. For edges, check
        that the sampler draws from these types.
        """
        graph = sampler.graph
        types: Any = graph.node_types if domain == "node" else graph.edge_types
        drawn_from: Any = types if domain == "node" else sampler.edge_types
        if keys and isinstance(keys, dict) is not graph.is_heterogeneous:
            raise other_form(domain, keys, "the sampled graph", types if graph.is_heterogeneous else None)
        for type_ in keys if isinstance(keys, dict) else ():
            if type_in("fetch_feature", domain, type_, types) not in drawn_from:
                raise ValueError(
                    f"fetch_feature: edge features of {type_!r} are asked for, but the sampler upstream draws from "
                    f"{sorted(sampler.edge_types)} only. Give the type a fanout, or drop it from edge_feature_keys."
                )

    def _check_rows(self, sampler: Sampler) -> None:
        """Check that the features have enough rows for the graph of `sampler`, the nearest sampler upstream, and that
        it returns edge ids if edge features are read.
        """
        graph = sampler.graph
        for domain, type_, name in self.feature_keys:
            rows, is_node = self.feature_store[domain, type_, name].count, domain == "node"
            needed = graph.num_nodes_of(type_) if is_node else graph.max_edge_id_of(type_) + 1
            if rows < needed:
                has = f"{needed} nodes" if is_node else f"edge ids up to {needed - 1}"
                raise ValueError(
                    f"fetch_feature: {feature_text(domain, type_, name)} has {rows} rows, but the sampled graph has "
                    f"{has}; one row for each is needed. Fill up the feature, or sample the graph it belongs to."
                )
            if is_node and rows > needed:
                _warn_once(graph, type_, name, rows)
        if self._of_edges and not sampler.return_edge_ids:
            raise ValueError(
                f"fetch_feature: edge features {shown(self.edge_feature_keys)} need edge ids, but the sampler upstream "
                "was built with return_edge_ids=False. Build it with return_edge_ids=True; the edges of sample_ppr and "
                "sample_pinsage have scores and no features."
            )

    def describe(self) -> dict[str, Any]:
        names = {"node_feature_keys": self.node_feature_keys, "edge_feature_keys": self.edge_feature_keys}
        shown: dict[str, Any] = {argument: keys for argument, keys in names.items() if keys}
        features = {key: self.feature_store[key] for key in self.feature_keys}
        if stored := {
            key: dtype_name(feature.stored_as)
            for key, feature in features.items()
            if isinstance(feature, TensorFeature) and feature.stored_as is not None
        }:
            shown["stored_as"] = by_name(stored)
        if self._gpu is not None:
            device, max_uva_threads = self._gpu
            shown["reads"] = by_name(self.reads_on(device))
            if self._reads_by_uva(device):
                shown["max_uva_threads"] = max_uva_threads
        return {**shown, "concurrency": self.concurrency} if self.asynchronous else shown


def _merged(old: Mapping[Any, Tensor], new: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """Return the features of both dicts. Where both have a key, take the value of `new`. With types, the order is that
    of the types.
    """
    features = {**old, **new}
    return in_order_of_types(features) if isinstance(next(iter(new)), tuple) else features


@contextmanager
def _named() -> Iterator[None]:
    """Context manager: put this stage's name in front of an IndexError, which means that an id has no row."""
    try:
        yield
    except IndexError as error:
        raise IndexError(f"fetch_feature: {error}") from error


def checked_rows(requests: list[FeatureRequest], all_rows: Any) -> list[Any]:
    """Return a store's answers as a list. Raise unless there is one for each request: a tensor or SparseRows with one
    row for each id.
    """
    if len(all_rows) != len(requests):
        raise ValueError(
            f"fetch_feature: read_many gave {len(all_rows)} tensors for {len(requests)} requests; one for each is "
            "needed. Correct the store's read_many()."
        )
    for (domain, type_, name, ids), rows in zip(requests, all_rows, strict=True):
        is_rows = isinstance(rows, (Tensor, SparseRows))
        if not is_rows or rows.shape[:1] != ids.shape:
            raise ValueError(
                f"fetch_feature: {feature_text(domain, type_, name)} gave "
                f"{list(rows.shape) if is_rows else type(rows).__name__} for {ids.shape[0]} ids; a tensor with one row "
                "for each is needed. Correct its read()."
            )
    return list(all_rows)


def _warn_once(graph: Graph, type_: Any, name: str, rows: int) -> None:
    """Log that a feature has more rows than a graph has nodes, but only once, though chains are rebuilt often."""
    about = ("feature", type_, name, rows)
    if about in graph._warned_of:
        return
    graph._warned_of = graph._warned_of | {about}
    logger.warning(
        "fetch_feature: %s has %d rows, but the sampled graph has %d nodes; one row for each is expected, the others "
        "are never read. Check that the feature belongs to this graph.",
        *(feature_text("node", type_, name), rows, graph.num_nodes_of(type_)),
    )
