"""SeedEdgeExcluder: takes the seed edges out of the neighborhoods sampled for them; docs/semantics.md, section 4.8.

A model that sees the edge that it is to predict learns nothing else. The stage compares original ids over the whole
minibatch, so it works behind every sampler, even if the two ends of a link are in different trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INDEX_DTYPES, check_bool, check_choice, check_pairs, dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.types import by_edge_type, of_type, values_of
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.reverses import (
    checked_mapping,
    mapping_without_types,
    refuse_mapping,
    reverses_of,
    with_reverses,
)
from datapipes.minibatch import Block, MiniBatch
from datapipes.minibatch.block import excluded_pairs
from datapipes.sampling.sampler import (
    Sampler,
    all_known,
    fetched_before,
    items_at_start,
    names_of,
    nearest_before,
    negative_end_before,
    refuse_padding,
    refuse_padding_before,
)
from datapipes.sampling.seed_ids import check_seeds

__all__ = ["SeedEdgeExcluder", "add_reverse_edges", "exclude_seed_edges"]

EDGE_IDS = "edge_ids"  # in minibatch.extra: the ids of the seeds
_NAME = "exclude_seed_edges"


@register_stage("exclude_seed_edges")
class SeedEdgeExcluder(MiniBatchTransformer):
    """Take the edges that are seeds out of the blocks; the nodes stay. Put this stage behind a sampler.

    Edges are compared by their original ids, in all hops, trees and times of a minibatch alike.

    Args:
        include_reverse_edges: take out the reverse of each seed too.
        reverse_etypes_mapping: on a graph with types, {edge type: type of its reverses}, as tuples or "src:rel:dst";
            needed with include_reverse_edges for each type of seeds between two node types. A type from a node type to
            itself holds its own reverses, unless the mapping names another type. None means that a type has no
            reverses.
        only_positive: take out only positives: pairs whose `labels` are True, or above 0; without labels all pairs are
            positives. In rows [n, k] of source, destination and negatives, the first two are the positive. False takes
            out all pairs, negatives too.
        by: "pair" takes out every edge from the source to the destination of a seed, parallel edges too. "edge_id"
            takes out the edge itself, by the ids in `minibatch.extra["edge_ids"]`; the blocks need ids too
            (return_edge_ids). Ids that were repeated for negatives change nothing. The ids of reverses are not known,
            so "edge_id" cannot be combined with include_reverse_edges.
    Raises:
        TypeError, ValueError: An argument is not allowed, nothing is sampled before, or edge features were fetched
            before; while running, the seeds are no pairs, or have no edge ids.
    """

    def __init__(
        self,
        source: Stage,
        include_reverse_edges: bool = False,
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        *,
        only_positive: bool = False,
        by: str = "pair",
    ) -> None:
        super().__init__(source)
        refuse_padding_before(self.name, source)
        sampler = nearest_before(source, Sampler)
        self.exclusion = _Exclusion(
            self.name,
            include_reverse_edges,
            reverse_etypes_mapping,
            only_positive,
            by,
            negative_end_before(self.name, source),
            None if sampler is None else sampler.graph.edge_types,
        )
        self.include_reverse_edges, self.only_positive, self.by = include_reverse_edges, only_positive, by
        self.reverse_etypes_mapping = self.exclusion.mapping
        if sampler is None and all_known(source):
            raise _not_sampled(self.name)
        if sampler is not None and by == "edge_id" and not sampler.return_edge_ids:
            raise _no_edge_ids(self.name, f"{sampler!r} without return_edge_ids")
        if getattr(sampler, "subgraph_type", "") == "bidirectional" and not include_reverse_edges:
            pairs = "" if by == "pair" else " and by='pair', since the ids of reverses are not known"
            raise ValueError(
                f"{self.name}: the sampler before it has subgraph_type='bidirectional', which adds the reverse of each "
                f"seed that it finds; these reverses must be taken out too. Set include_reverse_edges=True{pairs}."
            )
        fetched = fetched_before(source).get("edge_features")
        if fetched is not None:
            raise _features_left_behind(self.name, f"{fetched!r} before it")
        for key, items in items_at_start(source).items():
            if items.seeds_shape == ():
                raise _no_pairs(self.name, key, [len(items)])
            if by == "edge_id" and EDGE_IDS not in items.names:
                raise _no_seed_ids(self.name, key, f"the items {shown([*items.names])}")
            if include_reverse_edges:
                reverses_of(self.name, [key], self.reverse_etypes_mapping)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        return self.exclusion.applied(minibatch)

    def fingerprint(self) -> Fingerprint:
        mapping = {
            join_key(edge_type): None if back is None else join_key(back)
            for edge_type, back in (self.reverse_etypes_mapping or {}).items()
        }
        return {
            "include_reverse_edges": self.include_reverse_edges,
            "reverse_etypes_mapping": mapping,
            "only_positive": self.only_positive,
            "by": self.by,
        }

    def describe(self) -> dict[str, Any]:
        options = {
            "include_reverse_edges": self.include_reverse_edges or None,
            "reverse_etypes_mapping": self.reverse_etypes_mapping,
            "only_positive": self.only_positive or None,
            "by": self.by,
        }
        return {name: value for name, value in options.items() if value is not None}


def exclude_seed_edges(
    minibatch: MiniBatch,
    include_reverse_edges: bool = False,
    reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    *,
    only_positive: bool = False,
    by: str = "pair",
    negative_end: str = "dst",
) -> MiniBatch:
    """Return a sampled minibatch without the edges that are its seeds; for your own stage or loop.

    Args:
        include_reverse_edges, reverse_etypes_mapping, only_positive, by: as for SeedEdgeExcluder.
        negative_end: for seeds [n, k], the end to which columns 2 and up belong, "dst" or "src".
    Raises:
        TypeError, ValueError: The errors of SeedEdgeExcluder.
    """
    if not isinstance(minibatch, MiniBatch):
        raise TypeError(
            f"{_NAME}: must be given a MiniBatch, got {type(minibatch).__name__}. The stage over a chain is "
            "chain.exclude_seed_edges()."
        )
    end = check_choice(_NAME, "negative_end", negative_end, ("dst", "src"))
    options = (include_reverse_edges, reverse_etypes_mapping, only_positive, by, end)
    return _Exclusion(_NAME, *options, None).applied(minibatch)


def add_reverse_edges(edges: Any, reverse_etypes_mapping: Mapping[Any, Any] | None = None) -> Any:
    """Return pairs followed by their reverses.

    Args:
        edges: ids [n, 2], source and destination of each; with types {edge type: pairs}.
        reverse_etypes_mapping: with types, {edge type: type of its reverses, or None}; see SeedEdgeExcluder. If the
            type of the reverses has pairs in `edges`, the reverses are appended to these.
    Raises:
        TypeError, ValueError: The edges are no pairs, or the type of some reverses is not known.
    """
    where = "add_reverse_edges"
    typed = by_edge_type(where, edges) if isinstance(edges, Mapping) else {None: edges}
    for pairs in typed.values():
        check_pairs(where, "edges", pairs)
    if None in typed and reverse_etypes_mapping is not None:
        raise mapping_without_types(where)
    both = with_reverses(where, typed, checked_mapping(where, reverse_etypes_mapping, None))
    return both if isinstance(edges, Mapping) else both[None]


class _Exclusion:
    """Takes the seed edges out of minibatches; checks the arguments of SeedEdgeExcluder.

    Args:
        edge_types: the graph's edge types, (None,) without types; None if no graph is known.
    """

    def __init__(
        self, where: str, reverse: Any, mapping: Any, only_positive: Any, by: Any, negative_end: str, edge_types: Any
    ) -> None:
        check_bool(where, "include_reverse_edges", reverse)
        check_bool(where, "only_positive", only_positive)
        check_choice(where, "by", by, ("pair", "edge_id"))
        if reverse and by == "edge_id":
            raise ValueError(
                f"{where}: include_reverse_edges is given with by='edge_id', but the ids of reverses are not known; "
                "allowed are reverses with by='pair'. Leave out one of the two."
            )
        if not reverse:
            refuse_mapping(where, mapping, "include_reverse_edges is False")
        self.where, self.reverse, self.mapping = where, reverse, checked_mapping(where, mapping, edge_types)
        self.only_positive, self.by, self.negative_end = only_positive, by, negative_end

    def applied(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the minibatch without its seed edges."""
        nodes, hops = minibatch.input_nodes, minibatch.blocks
        if nodes is None or hops is None:
            raise _not_sampled(self.where)
        refuse_padding(self.where, minibatch)
        if minibatch.edge_features and self.by == "edge_id":
            names = sorted(names_of(minibatch.edge_features), key=str)
            raise _features_left_behind(self.where, f"edge_features {shown(names)}")
        excluded = self._excluded(minibatch)
        kept: list[Any] = []
        features: Any = [dict(of_hop) for of_hop in minibatch.edge_features or [{}] * len(hops)]
        for subgraphs, of_hop in zip(minibatch.sampled_subgraphs or (), features, strict=True):
            if isinstance(subgraphs, dict):
                by_key = {
                    key: self._without(subgraph, excluded.get(key), of_hop, key) for key, subgraph in subgraphs.items()
                }
                kept.append(by_key)
            else:
                kept.append(self._without(subgraphs, excluded.get(None), of_hop, None))
        return minibatch.replace(blocks=kept, edge_features=features if minibatch.edge_features else None)

    def _without(
        self, subgraph: Any, excluded: _core.ExcludedEdges | None, features: dict[Any, Any], edge_type: Any
    ) -> Block:
        """Return the block of a subgraph without the excluded edges. Their rows are taken out of `features`, those of
        the hop, too.
        """
        block: Block = subgraph.block
        if excluded is None:
            return block
        if self.by == "edge_id" and block.edge_ids is None:
            raise _no_edge_ids(self.where, "blocks without edge ids")
        own = [name for name in features if edge_type is None or name[0] == edge_type]
        if not own:
            left: Block = subgraph._without(excluded).block
            return left
        places = replace(block, edge_ids=torch.arange(block.num_edges))
        left = replace(subgraph, block=places)._without(excluded).block
        assert left.edge_ids is not None
        features |= {name: features[name][left.edge_ids] for name in own}
        return replace(left, edge_ids=None if block.edge_ids is None else block.edge_ids[left.edge_ids])

    def _excluded(self, minibatch: MiniBatch) -> dict[Any, _core.ExcludedEdges]:
        """Return {edge type: the edges to take out}, as objects of the C++ core."""
        seeds, has_types = minibatch.seeds, isinstance(minibatch.input_nodes, dict)
        if self.mapping is not None and not has_types:
            raise mapping_without_types(self.where)
        ids: dict[Any, Tensor] = {}
        pairs: dict[Any, Tensor] = {}
        for key, values in (seeds if isinstance(seeds, dict) else {None: seeds}).items():
            rows = check_seeds(self.where, "seeds" if key is None else f"seeds of {shown(key)}", values)
            if rows.ndim != 2 or rows.shape[1] < 2 or isinstance(key, str):
                raise _no_pairs(self.where, key, list(rows.shape))
            wanted = self._wanted(values_of(minibatch.labels, key), rows)
            if self.by == "edge_id":
                ids[key] = self._ids(key, values_of(minibatch.extra.get(EDGE_IDS), key), rows)[wanted]
            else:
                pairs[key] = self._pairs(rows[wanted])
        if self.by == "edge_id":
            return {key: _core.ExcludedEdges(numbers.numpy()) for key, numbers in ids.items()}
        if self.reverse:
            pairs = with_reverses(self.where, pairs, self.mapping)
        return {key: excluded_pairs(rows) for key, rows in pairs.items()}

    def _wanted(self, labels: Any, rows: Tensor) -> Tensor | slice:
        """Return an index of the rows of seeds whose edges are taken out: a bool mask [n], or a slice of all rows.

        Args:
            labels: the labels of the seeds, or None.
            rows: the seeds of one type, [n, 2] or [n, k].
        """
        if not self.only_positive or labels is None or rows.shape[1] > 2:
            return slice(None)
        if not isinstance(labels, Tensor) or labels.shape != rows.shape[:1]:
            shape = f"shape {list(labels.shape)}" if isinstance(labels, Tensor) else type(labels).__name__
            raise ValueError(
                f"{self.where}: only_positive needs labels of shape [{len(rows)}], one for each pair, found {shape}. "
                "Leave only_positive out, or give the labels another name in the item set."
            )
        return labels > 0

    def _pairs(self, rows: Tensor) -> Tensor:
        """Return the pairs [n, 2] to take out, given rows of source, destination and negatives."""
        if self.only_positive or rows.shape[1] == 2:
            return rows[:, :2]
        if self.negative_end == "dst":
            sources, destinations = rows[:, :1].expand(-1, rows.shape[1] - 1), rows[:, 1:]
        else:
            sources = torch.cat((rows[:, :1], rows[:, 2:]), 1)
            destinations = rows[:, 1:2].expand_as(sources)
        return torch.stack((sources.reshape(-1), destinations.reshape(-1)), 1)

    def _ids(self, edge_type: Any, ids: Any, rows: Tensor) -> Tensor:
        if not isinstance(ids, Tensor) or ids.dtype not in INDEX_DTYPES or ids.shape != rows.shape[:1]:
            text = f"{dtype_name(ids.dtype)} {list(ids.shape)}" if isinstance(ids, Tensor) else "none"
            raise _no_seed_ids(self.where, edge_type, f"{text} for {len(rows)} seeds")
        return ids.long()


# --- errors


def _not_sampled(where: str) -> ValueError:
    return ValueError(
        f"{where}: found nothing sampled before it, so there are no edges to take out; a sampler is needed. Put it "
        "behind sample_neighbor, or another sampler."
    )


def _no_edge_ids(where: str, sampled: str) -> ValueError:
    return ValueError(
        f"{where}: by='edge_id' needs the ids of the sampled edges, found {sampled}. Set return_edge_ids=True at the "
        "sampler."
    )


def _no_seed_ids(where: str, edge_type: Any, items: str) -> ValueError:
    return ValueError(
        f"{where}: by='edge_id' needs the id of each seed{of_type(edge_type)}, int64 [n], as an item named "
        f"{EDGE_IDS!r}, found {items}. Make the item set by dp.ItemSet.of_edges, or use by='pair'."
    )


def _features_left_behind(where: str, features: str) -> ValueError:
    return ValueError(
        f"{where}: found {features}; the rows of edges that are taken out would stay. Fetch edge features behind this "
        "stage."
    )


def _no_pairs(where: str, key: Any, shape: list[int]) -> ValueError:
    return ValueError(
        f"{where}: found seeds{of_type(key)} of shape {shape}; edges are pairs [n, 2], source and destination, or "
        "[n, k] with negatives. Give pairs as seeds."
    )
