"""A minibatch as PyG's `Data`, in the shape that PyG's own NeighborLoader gives; MiniBatch.to_pyg says what it means.

What is the same for each type of a HeteroData stands here too; pyg_hetero_data.py uses it.

In PyG each node has in-edges from one hop only, and `torch_geometric.utils.trim_to_layer` relies on it. So blocks that
draw other in-edges for a node again are refused. A seed that repeats has a row for each of its places, as in PyG; in
blocks it has one row.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.errors import needed
from datapipes.minibatch.block import Block

if TYPE_CHECKING:
    from torch_geometric.data import Data

# PyG's name of each field that is aligned with the seeds: for seeds [n], and for pairs [n, 2].
NODE_NAMES = {"labels": "y", "indexes": "input_id", "timestamps": "seed_time"}
LINK_NAMES = {"labels": "edge_label", "indexes": "input_id", "timestamps": "edge_label_time"}


def pyg_data(
    *,
    blocks: list[Block] | None,
    input_nodes: Tensor | None,
    plain: dict[str, Tensor],
    extra: dict[str, Tensor],
    node_features: dict[str, Tensor],
    edge_features: list[dict[str, Tensor]] | None,
) -> Data:
    """Return the fields of a minibatch as `Data`; `plain` holds those of PLAIN_FIELDS that are set.

    Raises:
        ImportError, ValueError: See MiniBatch.to_pyg.
    """
    data = new_data("Data")
    blocks, input_nodes = check_sampled(blocks, input_nodes)
    hops = blocks[::-1]
    features_of_hops = [{} for _ in hops] if edge_features is None else edge_features[::-1]
    where = "to_pyg"
    check_seeds(where, {**plain, **extra})
    check_rows(where, "input_nodes", int(input_nodes.shape[0]), node_features)
    check_edge_features(where, hops, features_of_hops)
    kept = kept_picks(where, hops)
    edge_indexes = [block.edge_index[:, places] for block, places in zip(hops, kept, strict=True)]
    sizes = [hops[0].num_dst, *(block.num_src for block in hops)]
    num_sampled_nodes = [sizes[0], *(after - before for before, after in itertools.pairwise(sizes))]
    rows = rows_of_seeds(where, plain.get("compacted_seeds"), hops[0].num_dst, int(input_nodes.shape[0]))
    if rows is not None:
        num_sampled_nodes[0] = rows.num_first
        input_nodes = input_nodes[rows.nodes]
        node_features = {name: value[rows.nodes] for name, value in node_features.items()}
        plain = {name: value[rows.nodes] if name == "batch" else value for name, value in plain.items()}
        kept[0], destinations = columns_of(hops[0].indptr, rows.nodes[: rows.num_first])
        edge_indexes = [rows.row_of[edge_index] for edge_index in edge_indexes]
        edge_indexes[0] = torch.stack((rows.row_of[hops[0].indices[kept[0]].long()], destinations))

    data.edge_index = torch.cat(edge_indexes, dim=1)
    data.num_nodes = sum(num_sampled_nodes)
    data.n_id = input_nodes
    data.num_sampled_nodes = num_sampled_nodes
    data.num_sampled_edges = [int(edge_index.shape[1]) for edge_index in edge_indexes]
    if (edge_ids := edge_ids_of(hops, kept)) is not None:
        data.e_id = edge_ids
    set_seeds(data, plain, rows)
    set_features(where, data, extra, node_features, joined_features(features_of_hops, kept))
    return data


def new_data(name: str) -> Any:
    """Return an empty Data or HeteroData."""
    return getattr(needed("torch_geometric.data", "pyg", "to_pyg:"), name)()


def check_sampled(blocks: list[Any] | None, input_nodes: Any) -> tuple[list[Any], Any]:
    """Return the two; refuse a minibatch without hops."""
    if blocks is None or input_nodes is None:
        raise ValueError(
            "to_pyg: found a minibatch without blocks; it must have been sampled. Put a sampler into the chain."
        )
    if not blocks:
        raise ValueError(
            "to_pyg: found a minibatch of no hops; at least one is needed. Sample with one fanout or more."
        )
    return blocks, input_nodes


class Rows(NamedTuple):
    """The rows of the nodes, where they are not the local ids: each seed has its own, in the order of the seeds.

    Attributes:
        nodes: int64 [num_rows], the local id of each row.
        row_of: int64 [num_nodes], the first row of each local id.
        num_first: rows before those of the first hop's new nodes.
    """

    nodes: Tensor
    row_of: Tensor
    num_first: int


def rows_of_seeds(where: str, compacted_seeds: Tensor | None, num_dst: int, num_nodes: int) -> Rows | None:
    """Return the rows, or None where they are the local ids: no node seeds, or each once and in order."""
    if compacted_seeds is None or compacted_seeds.ndim != 1:
        return None
    seeds = compacted_seeds.long()
    in_order = torch.arange(num_dst, device=seeds.device)
    if torch.equal(seeds, in_order):
        return None
    outside = seeds[(seeds < 0) | (seeds >= num_dst)]
    if outside.numel() > 0:
        raise ValueError(
            f"{where}: found {int(outside[0])} in compacted_seeds, but blocks[-1] has the destinations [0, {num_dst}), "
            "and seeds are among them. Change seeds before the sampler, not after it."
        )
    is_seed = torch.zeros(num_dst, dtype=torch.bool, device=seeds.device)
    is_seed[seeds] = True
    first = torch.cat((seeds, in_order[~is_seed]))
    nodes = torch.cat((first, torch.arange(num_dst, num_nodes, device=seeds.device)))
    numbers = torch.arange(nodes.shape[0], device=seeds.device)
    row_of = numbers.new_full((num_nodes,), int(nodes.shape[0])).scatter_reduce(0, nodes, numbers, "amin")
    return Rows(nodes, row_of, int(first.shape[0]))


def columns_of(indptr: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the places of the edges of these columns, and the number of the column that each edge belongs to."""
    counts = indptr.diff()[columns]
    numbers = torch.repeat_interleave(torch.arange(columns.shape[0], device=columns.device), counts)
    begin = indptr[columns] - (counts.cumsum(0) - counts)
    return begin[numbers] + torch.arange(numbers.shape[0], device=columns.device), numbers


def kept_picks(where: str, hops: list[Block]) -> list[slice | Tensor]:
    """Return which edges of each hop PyG's data keeps: those of nodes that no earlier hop drew for.

    Raises:
        ValueError: A hop drew other in-edges for an older node.
    """
    kept: list[slice | Tensor] = []
    seen = 0
    for hop, block in enumerate(hops):
        first = int(block.indptr[seen])  # the edges before belong to older nodes
        if first > 0 and not _are_repeated(block, seen, hops[:hop], kept):
            raise ValueError(
                f"{where}: found blocks in which hop {hop} drew other in-edges for nodes that an earlier hop had drawn "
                "for (frontier='all'); PyG's Data has one set of in-edges for each node. Sample with frontier='new', "
                "or with the fanouts -1, or give the model the blocks."
            )
        kept.append(slice(first, None))
        seen = block.num_dst
    return kept


def _are_repeated(block: Block, num_columns: int, before: list[Block], kept: Sequence[slice | Tensor]) -> bool:
    """Return whether the first columns of a block hold just what the hops before it drew for them."""
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
    """Return the kept rows of a tensor of each hop, from the seeds outwards."""
    return torch.cat([part[places] for part, places in zip(parts, kept, strict=True)])


def joined_features(features_of_hops: Sequence[dict[str, Tensor]], kept: Sequence[slice | Tensor]) -> dict[str, Tensor]:
    """Return the kept rows of each edge feature, from the seeds outwards."""
    return {name: joined([features[name] for features in features_of_hops], kept) for name in features_of_hops[0]}


def edge_ids_of(hops: Sequence[Block], kept: Sequence[slice | Tensor]) -> Tensor | None:
    """Return the ids of the kept edges, or None if a hop has none."""
    edge_ids = [block.edge_ids for block in hops if block.edge_ids is not None]
    return joined(edge_ids, kept) if len(edge_ids) == len(hops) else None


def check_seeds(where: str, plain: dict[str, Tensor]) -> None:
    """Raise ValueError where the fields of the seeds do not belong together; further fields count as such."""
    compacted = plain.get("compacted_seeds")
    aside = ("compacted_seeds", "input_nodes", "batch")
    found = {name: list(value.shape) for name, value in plain.items() if name not in aside}
    if compacted is None:
        if found:
            raise ValueError(
                f"{where}: found {sorted(found)} without compacted_seeds, which tell where the seeds lie among the "
                "nodes. Set compacted_seeds in the stage that samples."
            )
        return
    wrong = {name: shape for name, shape in found.items() if shape[:1] != list(compacted.shape[:1])}
    if wrong or found.get("seeds", list(compacted.shape)) != list(compacted.shape):
        raise ValueError(
            f"{where}: found {wrong or found} beside compacted_seeds of shape {list(compacted.shape)}; each must have "
            "a row for each seed. Change seeds and what belongs to them together, before the sampler."
        )


def check_rows(where: str, of_what: str, num_rows: int, features: dict[str, Tensor]) -> None:
    """Raise ValueError for a feature with another number of rows."""
    for name, value in features.items():
        if value.shape[:1] != (num_rows,):
            raise ValueError(
                f"{where}: feature {name!r} has shape {list(value.shape)}, but its rows must be those of {of_what}, "
                f"{num_rows}. Fetch it after sampling."
            )


def check_edge_features(where: str, hops: Sequence[Block], features_of_hops: Sequence[dict[str, Tensor]]) -> None:
    """Raise ValueError where edge features do not fit the hops, or are not the same in all."""
    for block, features in zip(hops, features_of_hops, strict=True):
        check_rows(where, "the edges of a block", block.num_edges, features)
    names = [sorted(features) for features in features_of_hops]
    if any(of_hop != names[0] for of_hop in names):
        raise ValueError(
            f"{where}: the hops have the edge features {names}; PyG's data needs the same names in all. Fetch them for "
            "all."
        )


def set_seeds(store: Any, plain: dict[str, Tensor], rows: Rows | None) -> None:
    """Set what PyG's loaders say about the seeds; `store` is a Data, or what a HeteroData has for one type."""
    if "batch" in plain:
        store.batch = plain["batch"]
    seeds = plain.get("compacted_seeds")
    if seeds is None:
        return
    is_pairs = seeds.ndim == 2 and seeds.shape[1] == 2
    for name, pyg_name in (LINK_NAMES if is_pairs else NODE_NAMES).items():
        if name in plain:
            store[pyg_name] = plain[name]
    if seeds.ndim == 1:
        store.batch_size = int(seeds.shape[0])
    if is_pairs:
        store.edge_label_index = seeds.long().t()
    store.seed_local_id = seeds if rows is None else torch.arange(len(seeds), dtype=seeds.dtype, device=seeds.device)


def set_features(
    where: str, store: Any, extra: dict[str, Tensor], of_nodes: dict[str, Tensor], of_edges: dict[str, Tensor]
) -> None:
    """Set further fields and features under their names; the node feature "feat" becomes x.

    Raises:
        ValueError: Two would have one name, or one hides an attribute of the store.
    """
    features = {"x" if name == "feat" else name: value for name, value in of_nodes.items()}
    if len(features) < len(of_nodes):
        raise ValueError(
            f"{where}: found node features 'feat' and 'x', which both become x; one can be held. Fetch one."
        )
    for name, value in of_edges.items():
        if name in features:
            raise ValueError(f"{where}: {name!r} is a node and an edge feature; Data holds one of a name. Rename one.")
        features[name] = value
    for name, value in extra.items():
        if name in features:
            raise ValueError(
                f"{where}: {name!r} is a feature and a further field of the seeds; one of a name is held. Rename one."
            )
        features[name] = value
    taken = sorted(name for name in features if name in store)
    if taken:
        raise ValueError(f"{where}: features {taken} have names of Data's own: {sorted(store.keys())}. Rename them.")
    for name, value in features.items():
        store[name] = value
