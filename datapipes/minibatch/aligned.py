"""Checks that the fields of a minibatch belong to each other: equal lengths where rows stand for the same things.

With types the fields are dicts, and so all of them are; each type's rows are compared with those of the same type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.minibatch.block import Block
from datapipes.minibatch.minibatch import MiniBatch

TENSOR_OR_NONE = (Tensor, type(None))
NOTHING = MiniBatch()  # what a stage that starts minibatches is given


class Named(Protocol):
    """What can be named in an error: a stage, which makes its name when it is asked for it."""

    @property
    def name(self) -> str: ...


def check_aligned(stage: Named, minibatch: MiniBatch, given: MiniBatch) -> None:
    """Raise ValueError if a field of the minibatch has another length than what its rows belong to.

    It compares shapes and reads no values. It skips labels whose tensor and seeds are those of `given`, which was
    checked before; docs/decisions/009 says what that costs.
    """
    seeds, nodes, blocks = minibatch.seeds, minibatch.input_nodes, minibatch.blocks
    if not isinstance(seeds, TENSOR_OR_NONE) or not isinstance(nodes, TENSOR_OR_NONE):
        if isinstance(seeds, dict) or isinstance(nodes, dict):
            return _check_types(stage, minibatch, given)
        name, value = ("input_nodes", nodes) if isinstance(seeds, TENSOR_OR_NONE) else ("seeds", seeds)
        raise _no_tensor(stage, (name,), value)
    if seeds is not None:
        changed = seeds is not given.seeds
        labels, indexes, timestamps = minibatch.labels, minibatch.indexes, minibatch.timestamps
        if labels is not None and (changed or labels is not given.labels):
            _compare(stage, ("labels",), labels, _length(seeds), "seeds")
        if indexes is not None and (changed or indexes is not given.indexes):
            _compare(stage, ("indexes",), indexes, _length(seeds), "seeds")
        if timestamps is not None and (changed or timestamps is not given.timestamps):
            _compare(stage, ("timestamps",), timestamps, _length(seeds), "seeds")
        extra = minibatch.extra
        if extra is not None and (changed or extra is not given.extra):
            for name, rows in extra.items():
                _compare(stage, ("extra", name), rows, _length(seeds), "seeds")
        compacted = minibatch.compacted_seeds
        if compacted is not None and getattr(compacted, "shape", None) != seeds.shape:
            if not isinstance(compacted, Tensor):
                raise _no_tensor(stage, ("compacted_seeds",), compacted)
            raise _misaligned(stage, ("compacted_seeds",), compacted, f"seeds {list(seeds.shape)}")
    if nodes is not None:
        num_nodes, of = _length(nodes), "input_nodes"
        if minibatch.batch is not None:
            _compare(stage, ("batch",), minibatch.batch, num_nodes, of)
        if blocks and getattr(blocks[0], "num_src", None) != num_nodes:
            _check_is(stage, ("blocks", 0), blocks[0], Block)
            raise _misaligned(stage, ("blocks[0].num_src",), blocks[0].num_src, f"{num_nodes} {of}")
    elif seeds is not None and seeds.ndim == 1:
        num_nodes, of = _length(seeds), "seeds (nothing was sampled)"
    else:
        num_nodes, of = -1, ""
    if minibatch.node_features and of:
        for name, rows in minibatch.node_features.items():
            _compare(stage, ("node_features", name), rows, num_nodes, of)
    if minibatch.edge_features and blocks is not None:
        if len(minibatch.edge_features) != len(blocks):
            raise _misaligned(stage, ("edge_features",), len(minibatch.edge_features), f"{len(blocks)} blocks")
        for hop, block in enumerate(blocks):
            _check_is(stage, ("blocks", hop), block, Block)
            for name, rows in minibatch.edge_features[hop].items():
                _compare(stage, ("edge_features", hop, name), rows, block.num_edges, "edges of its block")


def _check_types(stage: Named, minibatch: MiniBatch, given: MiniBatch) -> None:
    """Do what check_aligned does, for a minibatch of which the seeds or the nodes have types."""
    seeds: Any = minibatch.seeds
    nodes: Any = minibatch.input_nodes
    blocks: Any = minibatch.blocks
    if seeds is not None:
        _check_kinds(stage, "seeds", seeds)
        aligned: dict[tuple[Any, ...], Any] = {
            (name,): getattr(minibatch, name)
            for name in ("labels", "indexes", "timestamps")
            if seeds is not given.seeds or getattr(minibatch, name) is not getattr(given, name)
        }
        if minibatch.extra is not None and (seeds is not given.seeds or minibatch.extra is not given.extra):
            aligned |= {("extra", name): value for name, value in minibatch.extra.items()}
        for path, value in aligned.items():
            if value is not None:
                _compare_each(stage, path, value, "seeds", seeds)
        compacted: Any = minibatch.compacted_seeds
        if compacted is not None:
            _compare_each(stage, ("compacted_seeds",), compacted, "seeds", seeds)
            for type_, ids in seeds.items():
                if type_ not in compacted or compacted[type_].shape != ids.shape:
                    found = compacted.get(type_)
                    raise _misaligned(stage, ("compacted_seeds", type_), found, f"seeds {list(ids.shape)}")
    of_features = minibatch.node_features or {}
    if nodes is not None:
        _check_kinds(stage, "input_nodes", nodes)
        if minibatch.batch is not None:
            _compare_each(stage, ("batch",), minibatch.batch, "input_nodes", nodes)
        if blocks and (blocks is not given.blocks or nodes is not given.input_nodes):
            _check_blocks(stage, blocks, nodes)
        for key, rows in of_features.items():
            found = _named_by(stage, ("node_features",), key, "input_nodes", nodes)
            _compare(stage, ("node_features", key), rows, _length(found), "input_nodes")
    elif all(isinstance(type_, str) for type_ in seeds):
        for key, rows in of_features.items():
            found = _named_by(stage, ("node_features",), key, "seeds", seeds)
            _compare(stage, ("node_features", key), rows, _length(found), "seeds (nothing was sampled)")
    if minibatch.edge_features and blocks is not None:
        if len(minibatch.edge_features) != len(blocks):
            raise _misaligned(stage, ("edge_features",), len(minibatch.edge_features), f"{len(blocks)} blocks")
        for hop, features in enumerate(minibatch.edge_features):
            _check_is(stage, ("blocks", hop), blocks[hop], dict)
            for key, rows in features.items():
                block = _named_by(stage, ("edge_features", hop), key, f"blocks[{hop}]", blocks[hop])
                _compare(stage, ("edge_features", hop, key), rows, block.num_edges, "edges of its block")


def _check_blocks(stage: Named, blocks: list[Any], nodes: Mapping[Any, Tensor]) -> None:
    """Check the edge types of all hops, and the sources of the outermost one."""
    for hop, of_hop in enumerate(blocks):
        _check_is(stage, ("blocks", hop), of_hop, dict)
        if of_hop.keys() != blocks[0].keys():
            raise _other_types(stage, ("blocks", hop), sorted(of_hop, key=shown), "blocks[0]", blocks[0])
    for edge_type, block in blocks[0].items():
        if not (isinstance(edge_type, tuple) and len(edge_type) == 3) or {edge_type[0], edge_type[2]} - nodes.keys():
            raise _other_types(stage, ("blocks", 0), edge_type, "input_nodes", nodes)
        _check_is(stage, ("blocks", 0, edge_type), block, Block)
        num_nodes = _length(nodes[edge_type[0]])
        if block.num_src != num_nodes:
            raise _misaligned(
                stage, ("blocks", 0, edge_type), f"num_src={block.num_src}", f"{num_nodes} input_nodes of its sources"
            )


def _check_kinds(stage: Named, name: str, by_type: Any) -> None:
    """Refuse a field that is no dict of tensors by node type, or, the seeds, by edge type."""
    _check_is(stage, (name,), by_type, dict)
    for type_, value in by_type.items():
        if not isinstance(value, Tensor):
            raise _no_tensor(stage, (name, type_), value)
    kinds = {str if isinstance(type_, str) else tuple for type_ in by_type}
    if len(kinds) > 1 or (name == "input_nodes" and tuple in kinds):
        allowed = "node types or edge types" if name == "seeds" else "node types"
        raise ValueError(
            f"{stage.name}: returned a minibatch whose {name} have the types {shown([*by_type])}; all must be "
            f"{allowed}. Give seeds of nodes and of links minibatches of their own."
        )


def _compare_each(stage: Named, path: tuple[Any, ...], by_type: Any, of: str, known: Mapping[Any, Tensor]) -> None:
    """Compare the rows of each type with those of the field `of`, which are `known`."""
    _check_is(stage, path, by_type, dict)
    for type_, rows in by_type.items():
        if type_ not in known:
            raise _other_types(stage, path, type_, of, known)
        _compare(stage, (*path, type_), rows, _length(known[type_]), of)


def _named_by(stage: Named, path: tuple[Any, ...], key: Any, of: str, known: Mapping[Any, Any]) -> Any:
    """Return what `known`, the field `of`, has for the type in the key (type, name) of a feature."""
    if not isinstance(key, tuple) or len(key) != 2 or key[0] not in known:
        raise _other_types(stage, path, key, of, known)
    return known[key[0]]


def _compare(stage: Named, path: tuple[Any, ...], rows: Any, count: int, of: str) -> None:
    """Refuse `rows` of another length; `path` leads to it: a field, and keys in it."""
    if not isinstance(rows, Tensor):
        raise _no_tensor(stage, path, rows)
    if _length(rows) != count:
        raise _misaligned(stage, path, rows, f"{count} {of}")


def _length(rows: Tensor) -> int:
    """Return the number of rows; -1 if it is no list of rows at all."""
    shape = rows.shape
    return shape[0] if shape else -1


def _misaligned(stage: Named, path: tuple[Any, ...], found: object, expected: str) -> ValueError:
    shown = list(found.shape) if isinstance(found, Tensor) else found
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} ({shown}) and {expected} do not belong "
        "together; they must have one row for each. Change both in the same replace(), or set the one that no longer "
        "fits to None."
    )


def _name_of(path: tuple[Any, ...]) -> str:
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _no_tensor(stage: Named, path: tuple[Any, ...], found: object) -> TypeError:
    return TypeError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(found).__name__}; a tensor is needed. "
        "Convert it: torch.as_tensor(...)."
    )


def _check_is(stage: Named, path: tuple[Any, ...], found: object, wanted: type) -> None:
    if not isinstance(found, wanted):
        needed = {Block: "a Block", dict: "a dict by type"}[wanted]
        raise TypeError(
            f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(found).__name__}; {needed} is "
            "needed, since a minibatch has types in all of its fields or in none. Give all fields the same form."
        )


def _other_types(stage: Named, path: tuple[Any, ...], found: object, of: str, known: Mapping[Any, Any]) -> ValueError:
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} names {shown(found)}, "
        f"but {of} has the types {shown(sorted(known, key=shown))}; only these can be meant. Change both "
        "in the same replace(); the key of a feature is (type, name)."
    )
