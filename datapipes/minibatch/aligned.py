"""Checks that the fields of a minibatch belong together: fields with a row for each seed, node or edge must have as
many rows as there are seeds, nodes or edges.

`check_aligned` says which field belongs to which. With types all fields are dicts, and rows are compared type by type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.minibatch.block import Block
from datapipes.minibatch.minibatch import MiniBatch
from datapipes.minibatch.sparse_rows import SparseRows

TENSOR_OR_NONE = (Tensor, type(None))
_FEATURES = ("node_features", "edge_features")
NOTHING = MiniBatch()  # the minibatch before a stage that starts minibatches


def check_aligned(stage: Named, minibatch: MiniBatch, before: MiniBatch) -> None:
    """Raise ValueError if a field of `minibatch` has more or fewer rows than the field that its rows belong to, such as
    `labels` and `seeds`.

    Only shapes are compared, no values are read. Without types, `labels`, `indexes` and `timestamps` are skipped if
    these and the seeds are the same tensors as in `before`, a minibatch that was checked; docs/decisions/009 has the
    cost. With types nothing is skipped: a stage may have changed a dict in place, so the same dict may have other rows.
    Time: 30 us for 30 node types and two hops of 150 edge types, 4 us for one type and one relation.
    """
    seeds, nodes, blocks = minibatch.seeds, minibatch.input_nodes, minibatch.blocks
    has_types = not isinstance(seeds, TENSOR_OR_NONE) or not isinstance(nodes, TENSOR_OR_NONE)
    if has_types and not isinstance(seeds, dict) and not isinstance(nodes, dict):
        name, value = ("input_nodes", nodes) if isinstance(seeds, TENSOR_OR_NONE) else ("seeds", seeds)
        raise _no_tensor(stage, (name,), value)
    if seeds is not None:
        if has_types:
            _check_types(stage, "seeds", seeds)
        changed = has_types or seeds is not before.seeds or minibatch.labels is not before.labels
        if changed or minibatch.indexes is not before.indexes or minibatch.timestamps is not before.timestamps:
            for name in ("labels", "indexes", "timestamps"):
                rows = getattr(minibatch, name)
                if rows is not None:
                    _compare(stage, (name,), rows, seeds, "seeds")
        if not isinstance(minibatch.extra, dict):
            raise TypeError(
                f"{stage.name}: returned a minibatch whose extra is a {type(minibatch.extra).__name__}; a dict {{name: "
                "tensor} is needed. Give each further field a name."
            )
        for name, rows in minibatch.extra.items():  # always: a stage may have changed the dict in place
            _compare(stage, ("extra", name), rows, seeds, "seeds")
        compacted = minibatch.compacted_seeds
        if compacted is not None and (has_types or getattr(compacted, "shape", None) != seeds.shape):
            _compare_shapes(stage, compacted, seeds)
    owners: Any = nodes
    field, when = "input_nodes", ""
    if nodes is None and minibatch.node_features and seeds is not None and _are_nodes(seeds):
        owners, field, when = seeds, "seeds", " (nothing was sampled)"
    count = -1 if has_types or owners is None else _length_of(owners)
    if nodes is not None:
        if has_types:
            _check_types(stage, "input_nodes", nodes)
        if minibatch.batch is not None:
            _compare(stage, ("batch",), minibatch.batch, nodes, field)
        if blocks and (has_types or getattr(blocks[0], "num_src", None) != count):
            _check_blocks(stage, blocks, nodes)
    if minibatch.node_features and owners is not None:
        for key, rows in minibatch.node_features.items():
            if has_types:
                count = _length_of(_named_by(stage, ("node_features",), key, field, owners))
            _compare_rows(stage, ("node_features", key), rows, count, field + when)
    if minibatch.edge_features and blocks is not None:
        _check_edge_features(stage, minibatch.edge_features, blocks, dict if has_types else Block)


def _check_types(stage: Named, name: str, by_type: Any) -> None:
    """Raise unless `by_type`, the value of the field `name`, is {node type: tensor}. For `seeds`, {edge type: tensor}
    is allowed too.
    """
    _check_is(stage, (name,), by_type, dict)
    for type_, value in by_type.items():
        if not isinstance(value, Tensor):
            raise _no_tensor(stage, (name, type_), value)
    kinds = {str if isinstance(type_, str) else tuple for type_ in by_type}
    if len(kinds) > 1 or (name == "input_nodes" and tuple in kinds):
        allowed = "node types or edge types" if name == "seeds" else "node types"
        raise ValueError(
            f"{stage.name}: returned a minibatch whose {name} have the types {shown([*by_type])}; all must be "
            f"{allowed}. Put seeds of nodes and of links into separate minibatches."
        )


def _are_nodes(seeds: Any) -> bool:
    """Return whether `seeds` are nodes, not links. If nothing was sampled, only such seeds can have `node_features`."""
    return all(isinstance(type_, str) for type_ in seeds) if isinstance(seeds, dict) else seeds.ndim == 1


def _check_edge_features(stage: Named, edge_features: list[Any], blocks: list[Any], form: type) -> None:
    """Check that edge features have a row for each edge of their hop. `form` is the class of a hop: Block, or dict."""
    if len(edge_features) != len(blocks):
        raise _misaligned(stage, ("edge_features",), f"a list of {len(edge_features)}", f"{len(blocks)} blocks")
    for hop, block in enumerate(blocks):
        if not isinstance(block, form):
            _check_is(stage, ("blocks", hop), block, form)
        for key, rows in edge_features[hop].items():
            of_key = block if form is Block else _named_by(stage, ("edge_features", hop), key, f"blocks[{hop}]", block)
            _compare_rows(stage, ("edge_features", hop, key), rows, of_key.num_edges, "edges of its block")


def _blocks_fit(blocks: list[Any], nodes: Mapping[Any, Tensor]) -> bool:
    """Return True only if the blocks pass `_check_blocks`; this takes a fifth of the time. False means that
    `_check_blocks` must be called.
    """
    counts = {type_: _length_of(ids) for type_, ids in nodes.items()}
    try:
        for (src, _, dst), block in blocks[0].items():
            if type(block) is not Block or block.num_src != counts[src] or dst not in counts:
                return False
        return all(hop.keys() == blocks[0].keys() for hop in blocks)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _check_blocks(stage: Named, blocks: list[Any], nodes: Any) -> None:
    """Check the edge types of all hops, and the number of sources of the outermost hop.

    Without types, this function always raises. So call it only if that number is wrong.
    """
    if not isinstance(nodes, dict):
        _check_is(stage, ("blocks", 0), blocks[0], Block)
        raise _misaligned(stage, ("blocks[0].num_src",), blocks[0].num_src, f"{_length_of(nodes)} input_nodes")
    if _blocks_fit(blocks, nodes):
        return
    for hop, of_hop in enumerate(blocks):
        _check_is(stage, ("blocks", hop), of_hop, dict)
        if of_hop.keys() != blocks[0].keys():
            raise _other_types(stage, ("blocks", hop), sorted(of_hop, key=shown), "blocks[0]", blocks[0])
    for edge_type, block in blocks[0].items():
        if not (isinstance(edge_type, tuple) and len(edge_type) == 3) or {edge_type[0], edge_type[2]} - nodes.keys():
            raise _other_types(stage, ("blocks", 0), edge_type, "input_nodes", nodes)
        _check_is(stage, ("blocks", 0, edge_type), block, Block)
        num_nodes = _length_of(nodes[edge_type[0]])
        if block.num_src != num_nodes:
            raise _misaligned(
                *(stage, ("blocks", 0, edge_type), f"a block with num_src={block.num_src}"),
                f"{num_nodes} input_nodes of its source type",
            )


# --- comparing rows with their owners


class Named(Protocol):
    """An object with a name for errors: a stage, whose name is computed at each read."""

    @property
    def name(self) -> str: ...


def _compare(stage: Named, path: tuple[Any, ...], rows: Any, owners: Any, field: str) -> None:
    """Raise unless `rows` has one row for each row of `owners`, the value of the field `field`. With types, compare
    type by type.

    `path` says where `rows` is: the name of a field, then the keys within this field.
    """
    if isinstance(owners, dict):
        _check_is(stage, path, rows, dict)
        for type_, of_type in rows.items():
            if type_ not in owners:
                raise _other_types(stage, path, type_, field, owners)
            _compare_rows(stage, (*path, type_), of_type, _length_of(owners[type_]), field)
    else:
        _compare_rows(stage, path, rows, _length_of(owners), field)


def _compare_rows(stage: Named, path: tuple[Any, ...], rows: Any, count: int, field: str) -> None:
    """Raise unless `rows` is a tensor of `count` rows. Features may be SparseRows too."""
    if not isinstance(rows, (Tensor, SparseRows) if path[0] in _FEATURES else Tensor):
        raise _no_tensor(stage, path, rows)
    if _length_of(rows) != count:
        raise _misaligned(stage, path, rows, f"{count} {field}")


def _compare_shapes(stage: Named, compacted: Any, seeds: Any) -> None:
    """Raise if `compacted`, the local ids of the seeds, have another shape than `seeds`.

    Without types, this function always raises. So call it only if the shapes differ.
    """
    if isinstance(seeds, dict):
        _compare(stage, ("compacted_seeds",), compacted, seeds, "seeds")
        for type_, ids in seeds.items():
            if type_ not in compacted or compacted[type_].shape != ids.shape:
                path = ("compacted_seeds", type_)
                raise _misaligned(stage, path, compacted.get(type_), f"seeds {list(ids.shape)}")
    elif not isinstance(compacted, Tensor):
        raise _no_tensor(stage, ("compacted_seeds",), compacted)
    else:
        raise _misaligned(stage, ("compacted_seeds",), compacted, f"seeds {list(seeds.shape)}")


def _length_of(rows: Tensor | SparseRows) -> int:
    """Return the number of rows; -1 for a tensor without dimensions."""
    shape = rows.shape
    return shape[0] if shape else -1


def _named_by(stage: Named, path: tuple[Any, ...], key: Any, field: str, owners: Mapping[Any, Any]) -> Any:
    """Return the nodes or edges that the rows of a feature belong to: the entry of `owners` for the feature's type.

    Args:
        path: where the feature is: the name of its field, then the keys within this field.
        key: the key of the feature, (type, name).
        field: the name of the field whose value `owners` is.
    """
    if not isinstance(key, tuple) or len(key) != 2 or key[0] not in owners:
        raise _other_types(stage, path, key, field, owners)
    return owners[key[0]]


def _misaligned(stage: Named, path: tuple[Any, ...], value: object, expected: str) -> ValueError:
    """Return the error for a field that has more or fewer rows than the field that its rows belong to."""
    is_value = f"has the shape {list(value.shape)}" if isinstance(value, (Tensor, SparseRows)) else f"is {value}"
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} {is_value}, beside {expected}; both must have the "
        "same number of rows or entries. Change both in the same replace(), or set the outdated field to None."
    )


def _name_of(path: tuple[Any, ...]) -> str:
    """Return a path as it is written in Python: labels['paper']."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _no_tensor(stage: Named, path: tuple[Any, ...], value: object) -> TypeError:
    """Return the error for rows that are no tensor."""
    return TypeError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(value).__name__}; a tensor is needed. "
        "Convert it: torch.as_tensor(...)."
    )


def _check_is(stage: Named, path: tuple[Any, ...], value: object, wanted: type) -> None:
    """Raise TypeError unless `value` is of the class `wanted`, Block or dict. Either all fields are dicts by type, or
    none is.
    """
    if not isinstance(value, wanted):
        needed = {Block: "a Block", dict: "a dict by type"}[wanted]
        raise TypeError(
            f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(value).__name__}; {needed} is "
            "needed, since a minibatch has types in all of its fields or in none. Give all fields the same form."
        )


def _other_types(
    stage: Named, path: tuple[Any, ...], types: object, field: str, owners: Mapping[Any, Any]
) -> ValueError:
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} names {shown(types)}, "
        f"but {field} has the types {shown(sorted(owners, key=shown))}; only these are allowed. Change both "
        "in the same replace(); the key of a feature is (type, name)."
    )
