"""Flatten the blocks of a minibatch to PyG's layout: each node and each edge once, type by type. A `Data` and the
output of a PyG sampler are made from the result.

In PyG each node has in-edges from one hop only, and `torch_geometric.utils.trim_to_layer` relies on this. So blocks in
which a later hop draws other in-edges for the same node are refused. A seed that is given n times has n rows, as in
PyG; in blocks it has one row. Without types, nodes and edges have the one type None.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import check_within
from datapipes.base.types import EdgeType, NodeType, ends_of, type_text
from datapipes.minibatch.block import Block, edges_of
from datapipes.minibatch.message import by_type

_Hops = Sequence[Mapping[EdgeType | None, Block]]  # from the seeds outwards


class FlatNodes(NamedTuple):
    """The nodes of one type in PyG's layout: a row for each node, seeds first. A seed that is given n times has n rows.

    Attributes:
        ids: the id of the node in each row.
        rows: the SeedRows, which give nodes their rows. None: the row of each node is its local id.
        counts: how many nodes there are before the first hop, then how many are new in each hop, from the seeds
            outwards.
    """

    ids: Tensor
    rows: SeedRows | None
    counts: list[int]


class FlatEdges(NamedTuple):
    """The edges of one type in PyG's layout: each edge once. A seed that is given n times has its in-edges n times.

    Attributes:
        edge_index: int64 [2, num_edges], the ends of each edge as rows of FlatNodes.
        ids: the id of each edge, or None if the blocks have no ids.
        counts: how many edges each hop has, from the seeds outwards.
        kept: for each hop, which edges of its block are taken, since blocks may repeat edges: a slice, or int64
            positions.
    """

    edge_index: Tensor
    ids: Tensor | None
    counts: list[int]
    kept: list[slice | Tensor]


def flattened(
    blocks: list[Any],
    input_nodes: Any,
    compacted: Mapping[Any, Tensor],
    seeds: Mapping[Any, Tensor],
    is_padded: bool = False,
) -> tuple[dict[Any, FlatNodes], dict[Any, FlatEdges], bool]:
    """Return (nodes, edges, has_hops): the blocks in PyG's layout.

    `nodes` is {node type: FlatNodes}, `edges` is {edge type: FlatEdges}. Without types the one type is None. `has_hops`
    says whether the `counts` for each hop in them are certain.

    Args:
        compacted, seeds: the fields `compacted_seeds` and `seeds` as {type: tensor}; {} if the field is None.
        is_padded: whether the minibatch has padding.
    Raises:
        IndexError, ValueError: See MiniBatch.to_pyg.
    """
    hops: _Hops = [by_type(hop) for hop in reversed(blocks)]
    num_seeds, is_known = count_seeds(compacted, seeds, by_type(input_nodes))
    # Blocks of a subgraph_type have more destinations than seeds; padded, all nodes of a source type as destinations.
    has_hops = is_known and (
        len(hops) > 1
        or not compacted
        or all(block.num_dst <= num_seeds[ends_of(edge_type)[1]] for edge_type, block in hops[0].items())
    )
    if is_padded and len(hops) == 1:
        sources, ids_of = {ends_of(edge_type)[0] for edge_type in hops[0]}, by_type(input_nodes)
        sizes = {ends_of(edge_type)[1]: block.num_dst for edge_type, block in hops[0].items()}
        has_hops &= not any(dst in sources and size == len(ids_of[dst]) for dst, size in sizes.items())
    nodes: dict[Any, FlatNodes] = {}
    for node_type, ids in by_type(input_nodes).items():
        reached = sizes_of_nodes(hops, node_type, int(ids.shape[0]), num_seeds)
        counts = [reached[0], *(after - before for before, after in itertools.pairwise(reached))]
        rows = _rows_of_seeds(where_of(node_type), compacted.get(node_type), reached[0], int(ids.shape[0]))
        if rows is not None:
            ids, counts[0] = ids[rows.nodes], rows.num_first
        nodes[node_type] = FlatNodes(ids, rows, counts)
    edges = {}
    for edge_type in hops[0]:
        src, dst = ends_of(edge_type)
        of_type = [hop[edge_type] for hop in hops]
        edges[edge_type] = _edges(where_of(edge_type), of_type, nodes[src].rows, nodes[dst].rows)
    return nodes, edges, has_hops


class SeedRows(NamedTuple):
    """The rows of the nodes of one type in PyG's layout, if they are not the local ids: each seed has its own row, in
    the order of the seeds.

    Attributes:
        nodes: int64 [num_rows], the local id of each row.
        row_of: int64 [num_nodes], the first row of each local id.
        num_first: number of rows before the new nodes of the first hop.
    """

    nodes: Tensor
    row_of: Tensor
    num_first: int


def _rows_of_seeds(where: str, compacted_seeds: Tensor | None, num_dst: int, num_nodes: int) -> SeedRows | None:
    """Return the SeedRows of a node type. None: the row of each node is its local id, since there are no seeds of that
    type, or each seed is given once, in the order of the local ids.
    """
    if compacted_seeds is None or compacted_seeds.ndim != 1:
        return None
    seeds = compacted_seeds.long()
    in_order = torch.arange(num_dst, device=seeds.device)
    if torch.equal(seeds, in_order):
        return None
    remedy = "Seeds are destinations of blocks[-1]. Change them before the sampler, not after it."
    check_within(where, "compacted_seeds", seeds, num_dst, remedy)
    is_seed = torch.zeros(num_dst, dtype=torch.bool, device=seeds.device)
    is_seed[seeds] = True
    first = torch.cat((seeds, in_order[~is_seed]))
    nodes = torch.cat((first, torch.arange(num_dst, num_nodes, device=seeds.device)))
    numbers = torch.arange(nodes.shape[0], device=seeds.device)
    row_of = numbers.new_full((num_nodes,), int(nodes.shape[0])).scatter_reduce(0, nodes, numbers, "amin")
    return SeedRows(nodes, row_of, int(first.shape[0]))


def _columns_of(indptr: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return (places, numbers) of the edges in some columns of a CSC, both int64 [number of edges].

    `places` are the positions of the edges in the CSC. `numbers` are the indices of their columns in `columns`.
    """
    counts = indptr.diff()[columns]
    numbers = torch.repeat_interleave(torch.arange(columns.shape[0], device=columns.device), counts)
    begin = indptr[columns] - (counts.cumsum(0) - counts)
    return begin[numbers] + torch.arange(numbers.shape[0], device=columns.device), numbers


def _kept_picks(where: str, hops: list[Block]) -> list[slice]:
    """Return for each hop the edges that PyG's data keeps, as a slice: the in-edges of nodes that no earlier hop drew
    for.

    Raises:
        ValueError: A hop drew other in-edges for a node that an earlier hop had drawn for.
    """
    kept: list[slice] = []
    seen = 0
    for hop, block in enumerate(hops):
        first = int(block.indptr[seen])  # the edges before belong to older nodes
        if first > 0 and not _are_repeated(block, seen, hops[:hop], kept):
            raise ValueError(
                f"{where}: found blocks in which hop {hop} drew other in-edges for nodes that an earlier hop had drawn "
                "for (frontier='all'); PyG's Data has one set of in-edges for each node. Give the model the blocks, "
                "or sample with frontier='new', or without padding with the fanouts -1, if the sampler has these."
            )
        kept.append(slice(first, block.num_edges))
        seen = block.num_dst
    return kept


def _are_repeated(block: Block, num_columns: int, before: list[Block], kept: Sequence[slice | Tensor]) -> bool:
    """Return whether the first `num_columns` columns of `block` have exactly the edges that earlier hops drew for these
    nodes.

    Args:
        before: the blocks of the earlier hops.
        kept: the edges of each earlier hop that count, the result of `_kept_picks` so far.
    """
    last = int(block.indptr[num_columns])
    starts = [0, *(hop.num_dst for hop in before)]
    counts = torch.cat([hop.indptr.diff()[start:] for hop, start in zip(before, starts, strict=False)])
    if not torch.equal(block.indptr[: num_columns + 1].diff(), counts):
        return False
    if not torch.equal(block.indices[:last], joined([hop.indices for hop in before], kept)):
        return False
    edge_ids = [hop.edge_ids for hop in before if hop.edge_ids is not None]
    if block.edge_ids is None or len(edge_ids) < len(before):
        return True
    return torch.equal(block.edge_ids[:last], joined(edge_ids, kept))


def joined(parts: Sequence[Tensor], kept: Sequence[slice | Tensor]) -> Tensor:
    """Join tensors of the hops: take the rows `kept` of each, and return them one after the other, from the seeds
    outwards.
    """
    return torch.cat([part[places] for part, places in zip(parts, kept, strict=True)])


def _edges(where: str, hops: list[Block], of_src: SeedRows | None, of_dst: SeedRows | None) -> FlatEdges:
    """Return the FlatEdges of one edge type, given its block in each hop; `of_src` and `of_dst` are the SeedRows of the
    types at its ends.
    """
    if not any(hop.num_edges for hop in hops):  # most types of a large schema have no edges
        none = hops[0].indices.new_empty((2, 0), dtype=torch.int64)
        has_ids = all(hop.edge_ids is not None for hop in hops)
        return FlatEdges(none, none[0] if has_ids else None, [0] * len(hops), [slice(0)] * len(hops))
    picks = _kept_picks(where, hops)
    counts = [pick.stop - pick.start for pick in picks]
    kept: list[slice | Tensor] = [*picks]
    edge_index, edge_ids = edges_of(hops)
    if of_dst is not None:
        places, destinations = _columns_of(hops[0].indptr, of_dst.nodes[: of_dst.num_first])
        later = edge_index[:, counts[0] :]
        first = torch.stack((hops[0].indices[places].long(), destinations))
        edge_index = torch.cat((first, torch.stack((later[0], of_dst.row_of[later[1]]))), dim=1)
        if edge_ids is not None and hops[0].edge_ids is not None:
            edge_ids = torch.cat((hops[0].edge_ids[places], edge_ids[counts[0] :]))
        kept[0], counts[0] = places, len(places)
    if of_src is not None:
        edge_index = torch.stack((of_src.row_of[edge_index[0]], edge_index[1]))
    return FlatEdges(edge_index, edge_ids, counts, kept)


def sizes_of_nodes(hops: _Hops, node_type: NodeType | None, num_nodes: int, num_seeds: Mapping[Any, int]) -> list[int]:
    """Return how many nodes of a type were found before the first hop, and after each hop.

    A block gives the number of nodes of its source type and of its destination type. A type that is no source has no
    new nodes. For a type that is no destination, the number of seeds is the number before the first hop.
    """
    as_src = [edge_type for edge_type in hops[0] if ends_of(edge_type)[0] == node_type]
    as_dst = [edge_type for edge_type in hops[0] if ends_of(edge_type)[1] == node_type]
    if not as_src:
        return [num_nodes] * (len(hops) + 1)
    first = hops[0][as_dst[0]].num_dst if as_dst else num_seeds[node_type]
    return [first, *(hop[as_src[0]].num_src for hop in hops)]


def count_seeds(
    compacted: Mapping[Any, Tensor],
    seeds: Mapping[Any, Tensor],
    nodes: Mapping[Any, Tensor],
    negative_end: str | None = None,
) -> tuple[Any, bool]:
    """Return (counts, is_known). counts is {node type: how many of its nodes are seeds}; is_known says whether these
    counts are certain.

    The counts follow from the largest local ids of seeds, since seeds have the first local ids.

    Args:
        negative_end: "src" or "dst", the end to which the columns from 2 on of seeds [n, k] belong. None: not known;
            the ids show it, except in tiny graphs.
    """
    counts, is_known = dict.fromkeys(nodes, 0), True
    for type_, local in compacted.items():
        columns = [(type_, local)]
        if isinstance(type_, tuple):
            more, pairs = local[:, 2:], local[:, :2]
            # Negatives are destinations or sources: find the end whose node ids match.
            ends = [i for i in (2, 0) if type_ not in seeds or _are_nodes(nodes[type_[i]], more, seeds[type_][:, 2:])]
            if negative_end is not None:
                ends = [0 if negative_end == "src" else 2]
            columns = [(type_[0], pairs[:, 0]), (type_[2], pairs[:, 1]), (type_[ends[0] if ends else 0], more)]
            if len({type_[i] for i in ends}) == 2 and more.numel() > 0:  # few nodes: the ids fit both types
                is_known &= bool(more.max() <= pairs.amax(0).min())
        for node_type, ids in columns:
            if ids.numel() > 0:
                counts[node_type] = max(counts[node_type], int(ids.max()) + 1)
    return counts, is_known


def _are_nodes(nodes: Tensor, local: Tensor, ids: Tensor) -> bool:
    """Return whether `nodes[local]` equals `ids`."""
    within = local.numel() == 0 or int(local.max()) < len(nodes)
    return within and bool((nodes[local.long()] == ids).all())


def where_of(type_: Any) -> str:
    """Return the words with which an error about the node or edge type `type_` begins."""
    if type_ is None:
        return "to_pyg"
    return f"to_pyg: {'edge' if isinstance(type_, tuple) else 'node'} type {type_text(type_)!r}"
