"""PlacedGraph: the shards of all ranks as one graph in parts: who owns what, and how each column gets to its owner."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import ends_of, type_text
from datapipes.datasets.tfrecord.over_ranks.exchange import Exchange
from datapipes.datasets.tfrecord.over_ranks.owned_ranges import owned_ranges
from datapipes.datasets.tfrecord.over_ranks.placement import (
    Column,
    Placement,
    column_of,
    placed_by_destination,
    placed_by_id,
)
from datapipes.datasets.tfrecord.over_ranks.shard import Shard
from datapipes.partition.id_maps import RangeMap


class PlacedEdges(NamedTuple):
    """The edges of one type.

    Attributes:
        placement: the place of each is its position among the in-edges of its owner's nodes.
        indptr: int64 [own nodes of the destination type + 1], of this rank's part.
        first_id: the edge id of this rank's first edge; the others follow, in the order of its files.
        first_positions: [ranks + 1], where the edges of each part begin in the whole graph.
        sources: of this rank's edges.
        columns: {name of an attribute: its values for this rank's edges}.
    """

    placement: Placement
    indptr: Tensor
    first_id: int
    first_positions: list[int]
    sources: Column
    columns: dict[str, Column]

    @property
    def ids(self) -> Column:
        """The ids of this rank's edges."""
        return Column(torch.int64, (), lambda numbers: numbers + self.first_id)

    @property
    def total(self) -> int:
        """Number of edges of all parts."""
        return self.first_positions[-1]


class PlacedNodes(NamedTuple):
    """The nodes of one type.

    Attributes:
        placement: by id.
        owners: the range of each rank.
        columns: {name of an attribute: its values for this rank's nodes}.
    """

    placement: Placement
    owners: RangeMap
    columns: dict[str, Column]

    @property
    def offsets(self) -> list[int]:
        """Where the range of each rank begins, [ranks + 1]."""
        return self.owners.stored().tolist()


class PlacedGraph(NamedTuple):
    """The whole graph, as this rank knows it."""

    ranks: Exchange
    nodes: dict[Any, PlacedNodes]
    edges: dict[Any, PlacedEdges]

    def num_nodes(self) -> dict[Any, int]:
        """Return {node type: nodes of all parts}."""
        return {kind: each.owners.num_ids for kind, each in self.nodes.items()}

    def num_edges(self) -> dict[Any, int]:
        """Return {edge type: edges of all parts}."""
        return {kind: each.total for kind, each in self.edges.items()}


def place(ranks: Exchange, shard: Shard) -> PlacedGraph:
    """Find out where all nodes and edges of all ranks belong.

    Raises:
        ValueError: Ids of nodes have gaps or repeats, an edge has an end that is no node, or there are fewer nodes than
            ranks.
    """
    of_ranks = ranks.gather([[int(ids.shape[0]) for ids in shard.ids.values()], _num_edges(shard)])
    counts = {kind: sum(nodes[number] for nodes, _ in of_ranks) for number, kind in enumerate(shard.ids)}
    owners = owned_ranges(ranks, shard, counts)
    for edge_type, edge_index in shard.edges.items():
        for row, (end, kind) in enumerate(zip(("source", "destination"), ends_of(edge_type), strict=True)):
            _refuse_unknown(ranks, edge_type, end, edge_index[row], counts, kind)
    nodes = {}
    for kind, ids in shard.ids.items():
        placement = placed_by_id(ranks, ids, owners[kind].stored().tolist())
        nodes[kind] = PlacedNodes(placement, owners[kind], _columns(shard.of_nodes[kind]))
    edges = {}
    for number, (edge_type, edge_index) in enumerate(shard.edges.items()):
        offsets = owners[ends_of(edge_type)[1]].stored().tolist()
        placement, indptr = placed_by_destination(ranks, edge_index[1], offsets)
        edges[edge_type] = PlacedEdges(
            placement,
            indptr,
            sum(of_edges[number] for _, of_edges in of_ranks[: ranks.rank]),
            [0, *accumulate(placement.counts)],
            column_of(edge_index[0]),
            _columns(shard.of_edges[edge_type]),
        )
    return PlacedGraph(ranks, nodes, edges)


def _num_edges(shard: Shard) -> list[int]:
    return [int(edge_index.shape[1]) for edge_index in shard.edges.values()]


def _columns(given: Mapping[str, Tensor]) -> dict[str, Column]:
    return {name: column_of(values) for name, values in given.items()}


def _refuse_unknown(
    ranks: Exchange, edge_type: Any, end: str, ids: Tensor, counts: Mapping[Any, int], kind: Any
) -> None:
    count = counts[kind]
    outside = (ids < 0) | (ids >= count)
    if bool(outside.any()):
        edge = int(outside.nonzero()[0])
        of_edge = "" if edge_type is None else f" of {type_text(edge_type)}"
        of_node = "" if kind is None else f" of {shown(kind)}"
        raise ValueError(
            f"{ranks.where}: edge {edge}{of_edge} of rank {ranks.rank} has the {end} {int(ids[edge])}; the ids of nodes"
            f"{of_node} are in [0, {count}). Drop the edge, or load the node."
        )
