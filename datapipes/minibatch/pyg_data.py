"""Turn a minibatch into PyG's `Data` or `HeteroData`, as PyG's NeighborLoader returns them. MiniBatch.to_pyg has the
contract.

flat.py makes the nodes and edges. With types each node type has rows of its own. A `Data` is filled like a HeteroData
of the one node type None and the one edge type None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datapipes.base.errors import needed
from datapipes.base.types import EdgeType, NodeType
from datapipes.minibatch.block import Block
from datapipes.minibatch.flat import SeedRows, flattened, joined, where_of
from datapipes.minibatch.message import by_type
from datapipes.minibatch.sparse_rows import SparseRows

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

# PyG's names of each field that is aligned with the seeds: for seeds [n], and for pairs [n, 2].
NODE_NAMES = {"labels": "y", "indexes": "input_id", "timestamps": "seed_time"}
LINK_NAMES = {"labels": "edge_label", "indexes": "input_id", "timestamps": "edge_label_time"}


def pyg_data(minibatch: Any) -> Data | HeteroData:
    """Return a MiniBatch as `Data`, with types as `HeteroData`.

    Raises:
        ImportError, ValueError: See MiniBatch.to_pyg.
    """
    blocks, input_nodes, edge_features = minibatch.blocks, minibatch.input_nodes, minibatch.edge_features
    if not blocks or input_nodes is None:
        lack, how = "without blocks", "Put a sampler into the chain"
        if blocks == []:
            lack, how = "of no hops", "Sample with one fanout or more"
        raise ValueError(f"to_pyg: found a minibatch {lack}; one block or more is needed. {how}.")
    kind = "HeteroData" if isinstance(input_nodes, dict) else "Data"
    data: Any = getattr(needed("torch_geometric.data", "pyg", "to_pyg:"), kind)()

    def store_of(type_: NodeType | EdgeType | None) -> Any:
        if type_ is None:
            return data
        return data.get_node_store(type_) if isinstance(type_, str) else data.get_edge_store(*type_)

    plain = {name: by_type(value) for name, value in minibatch._plain_fields().items()}
    extra = {name: by_type(value) for name, value in minibatch.extra.items()}
    compacted: Mapping[Any, Tensor] = plain.get("compacted_seeds", {})
    for type_ in _types_of_seeds(plain, extra):
        _check_seeds(where_of(type_), {**_of_type(plain, type_), **_of_type(extra, type_)})
    is_padded = minibatch.bucket is not None
    nodes, edges, has_hops = flattened(blocks, input_nodes, compacted, plain.get("seeds", {}), is_padded)
    hops, local = [by_type(hop) for hop in reversed(blocks)], by_type(input_nodes)
    features_of_hops: list[Any] = [{} for _ in hops] if edge_features is None else edge_features[::-1]

    without_types: tuple[dict[str, Tensor], dict[str, Tensor]] = {}, {}  # attributes of a Data besides edge features
    for node_type, (ids, rows, counts) in nodes.items():
        where, fields = where_of(node_type), _of_type(plain, node_type)
        features = _features_of(minibatch.node_features or {}, node_type)
        _check_rows(where, "input_nodes", int(local[node_type].shape[0]), features)
        if rows is not None:
            features = {name: value[rows.nodes] for name, value in features.items()}
            fields |= {"batch": fields["batch"][rows.nodes]} if "batch" in fields else {}
        store = store_of(node_type)
        store.num_nodes, store.n_id = int(ids.shape[0]), ids
        if has_hops:
            store.num_sampled_nodes = counts
        _set_seeds(store, fields, rows)
        if node_type is None:
            without_types = _of_type(extra, None), features
        else:
            _set_features(where, store, _of_type(extra, node_type), features, {})

    for edge_type, (edge_index, edge_ids, counts, kept) in edges.items():
        where, store = where_of(edge_type), store_of(edge_type)
        store.edge_index = edge_index
        if has_hops:
            store.num_sampled_edges = counts
        if edge_ids is not None:
            store.e_id = edge_ids
        by_hop = [_features_of(features, edge_type) for features in features_of_hops]
        _check_edge_features(where, [hop[edge_type] for hop in hops], by_hop)
        of_edges = {name: joined([features[name] for features in by_hop], kept) for name in by_hop[0]}
        _set_features(where, store, *without_types, of_edges)
    for type_ in compacted:
        if isinstance(type_, tuple):
            store = store_of(type_)
            _set_seeds(store, _of_type(plain, type_), None)
            _set_features(where_of(type_), store, _of_type(extra, type_), {}, {})
    return data


def _check_seeds(where: str, plain: dict[str, Tensor]) -> None:
    """Raise ValueError if two fields of the seeds have different numbers of rows, or if compacted_seeds is missing.
    Entries of `extra` are fields of the seeds too.
    """
    compacted = plain.get("compacted_seeds")
    aside = ("compacted_seeds", "input_nodes", "batch")
    shapes = {name: list(value.shape) for name, value in plain.items() if name not in aside}
    if compacted is None:
        if shapes:
            raise ValueError(
                f"{where}: found {sorted(shapes)} without compacted_seeds, the places of the seeds among the "
                "nodes. Set compacted_seeds in the stage that samples."
            )
        return
    wrong = {name: shape for name, shape in shapes.items() if shape[:1] != list(compacted.shape[:1])}
    if wrong or shapes.get("seeds", list(compacted.shape)) != list(compacted.shape):
        raise ValueError(
            f"{where}: found {wrong or shapes} beside compacted_seeds of shape {list(compacted.shape)}; each must have "
            "a row for each seed. Change seeds and their fields together, before the sampler."
        )


def _check_rows(where: str, of_what: str, num_rows: int, features: dict[str, Tensor]) -> None:
    """Raise ValueError if a feature does not have `num_rows` rows. `of_what` names in the error what the rows belong
    to.
    """
    for name, value in features.items():
        if value.shape[:1] != (num_rows,):
            raise ValueError(
                f"{where}: feature {name!r} has shape {list(value.shape)}, but it must have {num_rows} rows, one for "
                f"each of {of_what}. Fetch it after sampling."
            )


def _check_edge_features(where: str, hops: Sequence[Block], features_of_hops: Sequence[dict[str, Tensor]]) -> None:
    """Raise ValueError if edge features do not fit the hops, or their names differ between hops; TypeError for
    SparseRows.
    """
    if any(isinstance(rows, SparseRows) for features in features_of_hops for rows in features.values()):
        raise TypeError(f"{where}: found sparse rows of edges; PyG's data has them of nodes only. Fetch dense rows.")
    for block, features in zip(hops, features_of_hops, strict=True):
        _check_rows(where, "the edges of a block", block.num_edges, features)
    names = [sorted(features) for features in features_of_hops]
    if any(of_hop != names[0] for of_hop in names):
        raise ValueError(
            f"{where}: the hops have the edge features {names}; PyG's data needs the same names in all. Fetch them all."
        )


def _set_seeds(store: Any, plain: dict[str, Tensor], rows: SeedRows | None) -> None:
    """Set the attributes with which PyG's loaders describe the seeds. `store` is a Data, or a HeteroData's store of one
    type.
    """
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


def _set_features(
    where: str, store: Any, extra: dict[str, Tensor], of_nodes: dict[str, Tensor], of_edges: dict[str, Tensor]
) -> None:
    """Set the values of `extra` and the features as attributes of `store`, under their names; the node feature "feat"
    becomes x.

    Raises:
        ValueError: Two values would have the same name, or a name hides an attribute of the store.
    """
    features = {"x" if name == "feat" else name: value for name, value in of_nodes.items()}
    if len(features) < len(of_nodes):
        raise ValueError(f"{where}: found node features 'feat' and 'x', which both become x. Fetch one of them.")
    for name, value in of_edges.items():
        if name in features:
            raise ValueError(f"{where}: {name!r} is a node and an edge feature; Data holds one per name. Rename one.")
        features[name] = value
    for name, value in extra.items():
        if name in features:
            raise ValueError(f"{where}: {name!r} is a feature and a further field of the seeds. Rename one of them.")
        features[name] = value
    taken = sorted(name for name in features if name in store)
    if taken:
        raise ValueError(f"{where}: features {taken} have names of Data's own: {sorted(store.keys())}. Rename them.")
    for name, value in features.items():
        store[name] = value.csr() if isinstance(value, SparseRows) else value


def _types_of_seeds(*fields: Mapping[str, Mapping[Any, Tensor]]) -> list[Any]:
    """Return the types of the seeds, each once. `fields` are fields of the minibatch: {field name: {type: tensor}}."""
    aside = ("input_nodes", "batch")
    return [*dict.fromkeys(type_ for field in fields for name in field if name not in aside for type_ in field[name])]


def _of_type(fields: Mapping[str, Mapping[Any, Tensor]], type_: Any) -> dict[str, Tensor]:
    return {name: by_type[type_] for name, by_type in fields.items() if type_ in by_type}


def _features_of(features: Mapping[Any, Tensor], type_: Any) -> dict[str, Tensor]:
    if type_ is None:
        return {**features}
    return {name: value for (of_type, name), value in features.items() if of_type == type_}
