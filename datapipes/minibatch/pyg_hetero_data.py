"""A minibatch with types as PyG's `HeteroData`; MiniBatch.to_pyg says what it means.

Each node type has rows of its own, in which seeds that repeat have one for each of their places, as in `Data`. Each
edge type keeps the in-edges of a node from one hop only. So what pyg_data.py does for a whole minibatch is done here
for each type.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datapipes.base.types import EdgeType, NodeType, type_text
from datapipes.minibatch.block import Block
from datapipes.minibatch.pyg_data import (
    Rows,
    check_edge_features,
    check_rows,
    check_sampled,
    check_seeds,
    columns_of,
    edge_ids_of,
    joined_features,
    kept_picks,
    new_data,
    rows_of_seeds,
    set_features,
    set_seeds,
)

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

Hops = Sequence[Mapping[EdgeType, Block]]  # from the seeds outwards


def pyg_hetero_data(
    *,
    blocks: list[dict[EdgeType, Block]] | None,
    input_nodes: dict[NodeType, Tensor] | None,
    plain: dict[str, dict[Any, Tensor]],
    extra: dict[str, dict[Any, Tensor]],
    node_features: dict[tuple[NodeType, str], Tensor],
    edge_features: list[dict[tuple[EdgeType, str], Tensor]] | None,
) -> HeteroData:
    """Return the fields of a minibatch as `HeteroData`; `plain` holds those of PLAIN_FIELDS that are set.

    Raises:
        ImportError, ValueError: See MiniBatch.to_pyg.
    """
    data = new_data("HeteroData")
    blocks, input_nodes = check_sampled(blocks, input_nodes)
    hops = blocks[::-1]
    features_of_hops = [{} for _ in hops] if edge_features is None else edge_features[::-1]
    compacted = plain.get("compacted_seeds", {})
    for type_ in _types_of_seeds(plain, extra):
        check_seeds(_where(type_), {**_of_type(plain, type_), **_of_type(extra, type_)})

    rows: dict[NodeType, Rows | None] = {}
    for node_type, nodes in input_nodes.items():
        where, num_nodes = _where(node_type), int(nodes.shape[0])
        features = _features_of(node_features, node_type)
        check_rows(where, "input_nodes", num_nodes, features)
        sizes = _sizes(hops, node_type, num_nodes, compacted)
        num_sampled = [sizes[0], *(after - before for before, after in itertools.pairwise(sizes))]
        fields = _of_type(plain, node_type)
        of_type = rows_of_seeds(where, fields.get("compacted_seeds"), sizes[0], num_nodes)
        if of_type is not None:
            num_sampled[0] = of_type.num_first
            features = {name: value[of_type.nodes] for name, value in features.items()}
            fields |= {"batch": fields["batch"][of_type.nodes]} if "batch" in fields else {}
        store = data.get_node_store(node_type)
        store.num_nodes = sum(num_sampled)
        store.n_id = nodes if of_type is None else nodes[of_type.nodes]
        store.num_sampled_nodes = num_sampled
        set_seeds(store, fields, of_type)
        set_features(where, store, _of_type(extra, node_type), features, {})
        rows[node_type] = of_type

    for edge_type in hops[0]:
        _set_edges(
            data.get_edge_store(*edge_type),
            _where(edge_type),
            [hop[edge_type] for hop in hops],
            [_features_of(features, edge_type) for features in features_of_hops],
            (rows[edge_type[0]], rows[edge_type[2]]),
        )
    for type_ in compacted:
        if isinstance(type_, tuple):
            store = data.get_edge_store(*type_)
            set_seeds(store, _of_type(plain, type_), None)
            set_features(_where(type_), store, _of_type(extra, type_), {}, {})
    return data


def _set_edges(
    store: Any,
    where: str,
    hops: list[Block],
    features_of_hops: list[dict[str, Tensor]],
    rows: tuple[Rows | None, Rows | None],
) -> None:
    """Set the edges of one type; `rows` are those of its source and destination type."""
    check_edge_features(where, hops, features_of_hops)
    kept = kept_picks(where, hops)
    of_src, of_dst = rows
    edge_indexes = [block.edge_index[:, places] for block, places in zip(hops, kept, strict=True)]
    if of_dst is not None:
        kept[0], destinations = columns_of(hops[0].indptr, of_dst.nodes[: of_dst.num_first])
        edge_indexes = [torch.stack((edge_index[0], of_dst.row_of[edge_index[1]])) for edge_index in edge_indexes]
        edge_indexes[0] = torch.stack((hops[0].indices[kept[0]].long(), destinations))
    if of_src is not None:
        edge_indexes = [torch.stack((of_src.row_of[edge_index[0]], edge_index[1])) for edge_index in edge_indexes]
    store.edge_index = torch.cat(edge_indexes, dim=1)
    store.num_sampled_edges = [int(edge_index.shape[1]) for edge_index in edge_indexes]
    if (edge_ids := edge_ids_of(hops, kept)) is not None:
        store.e_id = edge_ids
    set_features(where, store, {}, {}, joined_features(features_of_hops, kept))


def _sizes(hops: Hops, node_type: NodeType, num_nodes: int, compacted: Mapping[Any, Tensor]) -> list[int]:
    """Return the number of nodes of a type before the first hop and after each.

    A hop tells it of the types at the ends of its edges. A type that is no source has found no nodes; of one that is
    no destination, the local ids of the seeds tell how many came first.
    """
    as_src = next((edge_type for edge_type in hops[0] if edge_type[0] == node_type), None)
    as_dst = next((edge_type for edge_type in hops[0] if edge_type[2] == node_type), None)
    if as_src is None:
        return [num_nodes] * (len(hops) + 1)
    if as_dst is not None:
        first = hops[0][as_dst].num_dst
    else:
        ids = [_ids_of(type_, seeds, node_type) for type_, seeds in compacted.items()]
        first = int(torch.cat([torch.tensor([-1]), *(part.cpu() for part in ids)]).max()) + 1
    return [first, *(hop[as_src].num_src for hop in hops)]


def _ids_of(type_: Any, compacted_seeds: Tensor, node_type: NodeType) -> Tensor:
    """Return those of the local ids of seeds that are of the node type."""
    if type_ == node_type:
        return compacted_seeds.reshape(-1)
    columns = [column for column, end in ((0, 0), (1, 2)) if isinstance(type_, tuple) and type_[end] == node_type]
    return compacted_seeds[:, columns].reshape(-1) if columns else compacted_seeds.new_empty(0)


def _types_of_seeds(*fields: Mapping[str, Mapping[Any, Tensor]]) -> list[Any]:
    """Return the types that fields of the seeds have."""
    aside = ("input_nodes", "batch")
    return [*dict.fromkeys(type_ for each in fields for name in each if name not in aside for type_ in each[name])]


def _of_type(fields: Mapping[str, Mapping[Any, Tensor]], type_: Any) -> dict[str, Tensor]:
    return {name: by_type[type_] for name, by_type in fields.items() if type_ in by_type}


def _features_of(features: Mapping[tuple[Any, str], Tensor], type_: Any) -> dict[str, Tensor]:
    return {name: value for (of_type, name), value in features.items() if of_type == type_}


def _where(type_: Any) -> str:
    return f"to_pyg: {'edge' if isinstance(type_, tuple) else 'node'} type {type_text(type_)!r}"
