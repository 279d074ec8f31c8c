"""Checks that the fields of a minibatch belong to each other: equal lengths where rows stand for the same things.

With types all fields are dicts, and the rows of each type are compared with those of the same type.
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


def check_aligned(stage: Named, minibatch: MiniBatch, given: MiniBatch) -> None:
    """Raise ValueError if a field of the minibatch has another length than what its rows belong to.

    It compares shapes and reads no values. Without types it skips labels whose tensor and seeds are those of `given`,
    which was checked before; docs/decisions/009 says what that costs.
    """
    seeds, nodes, blocks = minibatch.seeds, minibatch.input_nodes, minibatch.blocks
    if not isinstance(seeds, TENSOR_OR_NONE) or not isinstance(nodes, TENSOR_OR_NONE):
        if isinstance(seeds, dict) or isinstance(nodes, dict):
            return _check_types(stage, minibatch)
        name, value = ("input_nodes", nodes) if isinstance(seeds, TENSOR_OR_NONE) else ("seeds", seeds)
        raise _no_tensor(stage, (name,), value)
    if seeds is not None:
        changed = seeds is not given.seeds
        labels, indexes, timestamps = minibatch.labels, minibatch.indexes, minibatch.timestamps
        if labels is not None and (changed or labels is not given.labels):
            compare(stage, ("labels",), labels, _length_of(seeds), "seeds")
        if indexes is not None and (changed or indexes is not given.indexes):
            compare(stage, ("indexes",), indexes, _length_of(seeds), "seeds")
        if timestamps is not None and (changed or timestamps is not given.timestamps):
            compare(stage, ("timestamps",), timestamps, _length_of(seeds), "seeds")
        extra = minibatch.extra
        if extra is not None:  # a dict, which may have been changed in place
            for name, rows in extra.items():
                compare(stage, ("extra", name), rows, _length_of(seeds), "seeds")
        compacted = minibatch.compacted_seeds
        if compacted is not None and getattr(compacted, "shape", None) != seeds.shape:
            if not isinstance(compacted, Tensor):
                raise _no_tensor(stage, ("compacted_seeds",), compacted)
            raise _misaligned(stage, ("compacted_seeds",), compacted, f"seeds {list(seeds.shape)}")
    if nodes is not None:
        num_nodes, of = _length_of(nodes), "input_nodes"
        if minibatch.batch is not None:
            compare(stage, ("batch",), minibatch.batch, num_nodes, of)
        if blocks and getattr(blocks[0], "num_src", None) != num_nodes:
            _check_is(stage, ("blocks", 0), blocks[0], Block)
            raise _misaligned(stage, ("blocks[0].num_src",), blocks[0].num_src, f"{num_nodes} {of}")
    elif seeds is not None and seeds.ndim == 1:
        num_nodes, of = _length_of(seeds), "seeds (nothing was sampled)"
    else:
        num_nodes, of = -1, ""
    if minibatch.node_features and of:
        for name, rows in minibatch.node_features.items():
            compare(stage, ("node_features", name), rows, num_nodes, of)
    if minibatch.edge_features and blocks is not None:
        if len(minibatch.edge_features) != len(blocks):
            raise _misaligned(stage, ("edge_features",), len(minibatch.edge_features), f"{len(blocks)} blocks")
        for hop, block in enumerate(blocks):
            if not isinstance(block, Block):
                _check_is(stage, ("blocks", hop), block, Block)
            for name, rows in minibatch.edge_features[hop].items():
                compare(stage, ("edge_features", hop, name), rows, block.num_edges, "edges of its block")


# --- comparing rows with what they stand for


class Named(Protocol):
    """What can be named in an error: a stage, which makes its name when it is asked for it."""

    @property
    def name(self) -> str: ...


def compare(stage: Named, path: tuple[Any, ...], rows: Any, count: int, of: str) -> None:
    """Refuse `rows` of another length; `path` leads to it: a field, and keys in it."""
    if not isinstance(rows, Tensor):
        raise _no_tensor(stage, path, rows)
    if _length_of(rows) != count:
        raise _misaligned(stage, path, rows, f"{count} {of}")


def _length_of(rows: Tensor) -> int:
    """Return the number of rows; -1 if it is no list of rows at all."""
    shape = rows.shape
    return shape[0] if shape else -1


def _misaligned(stage: Named, path: tuple[Any, ...], found: object, expected: str) -> ValueError:
    """Return the error for rows that are not as many as what they belong to."""
    shown = list(found.shape) if isinstance(found, Tensor) else found
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} ({shown}) and {expected} do not belong "
        "together; they must have one row for each. Change both in the same replace(), or set the one that no longer "
        "fits to None."
    )


def _name_of(path: tuple[Any, ...]) -> str:
    """Return a path as it is written in Python: labels['paper']."""
    return str(path[0]) + "".join(f"[{key!r}]" for key in path[1:])


def _no_tensor(stage: Named, path: tuple[Any, ...], found: object) -> TypeError:
    """Return the error for rows that are no tensor."""
    return TypeError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(found).__name__}; a tensor is needed. "
        "Convert it: torch.as_tensor(...)."
    )


def _check_is(stage: Named, path: tuple[Any, ...], found: object, wanted: type) -> None:
    """Refuse a Block where a dict by type belongs, or the other way round; such a minibatch mixes both forms."""
    if not isinstance(found, wanted):
        needed = {Block: "a Block", dict: "a dict by type"}[wanted]
        raise TypeError(
            f"{stage.name}: returned a minibatch whose {_name_of(path)} is a {type(found).__name__}; {needed} is "
            "needed, since a minibatch has types in all of its fields or in none. Give all fields the same form."
        )


# --- with types


def _check_types(stage: Named, minibatch: MiniBatch) -> None:
    """Do what check_aligned does, for a minibatch of which the seeds or the nodes have types.

    It skips nothing: a field is a dict, which a stage may have changed in place, so the same dict may hold other rows.
    It takes 30 us for 30 node types and two hops of 150 edge types, 4 us for one type and one relation.
    """
    seeds: Any = minibatch.seeds
    nodes: Any = minibatch.input_nodes
    if seeds is not None:
        _check_seeds(stage, minibatch, seeds)
    if nodes is not None:
        _check_nodes(stage, minibatch, nodes)
    elif minibatch.node_features and all(isinstance(type_, str) for type_ in seeds):
        _check_features(stage, minibatch.node_features, "seeds", seeds, " (nothing was sampled)")
    if minibatch.edge_features and minibatch.blocks is not None:
        _check_edge_features(stage, minibatch.edge_features, minibatch.blocks)


def _check_seeds(stage: Named, minibatch: MiniBatch, seeds: Any) -> None:
    """Check the seeds, and the fields that have a row for each of them."""
    _check_kinds(stage, "seeds", seeds)
    for name in ("labels", "indexes", "timestamps"):
        by_type = getattr(minibatch, name)
        if by_type is not None:
            _compare_each(stage, (name,), by_type, "seeds", seeds)
    for name, by_type in (minibatch.extra or {}).items():
        _compare_each(stage, ("extra", name), by_type, "seeds", seeds)
    compacted: Any = minibatch.compacted_seeds
    if compacted is not None:
        _compare_each(stage, ("compacted_seeds",), compacted, "seeds", seeds)
        for type_, ids in seeds.items():
            if type_ not in compacted or compacted[type_].shape != ids.shape:
                found = compacted.get(type_)
                raise _misaligned(stage, ("compacted_seeds", type_), found, f"seeds {list(ids.shape)}")


def _check_nodes(stage: Named, minibatch: MiniBatch, nodes: Any) -> None:
    """Check the input nodes, the fields that have a row for each of them, and the blocks over them."""
    _check_kinds(stage, "input_nodes", nodes)
    if minibatch.batch is not None:
        _compare_each(stage, ("batch",), minibatch.batch, "input_nodes", nodes)
    if minibatch.blocks and not _blocks_fit(minibatch.blocks, nodes):
        _check_blocks(stage, minibatch.blocks, nodes)
    if minibatch.node_features:
        _check_features(stage, minibatch.node_features, "input_nodes", nodes)


def _check_features(
    stage: Named, features: Mapping[Any, Any], of: str, known: Mapping[Any, Tensor], when: str = ""
) -> None:
    """Check the features of nodes; their rows belong to those of the field `of`, which are `known`."""
    for key, rows in features.items():
        found = _named_by(stage, ("node_features",), key, of, known)
        compare(stage, ("node_features", key), rows, _length_of(found), f"{of}{when}")


def _check_edge_features(stage: Named, edge_features: list[Any], blocks: list[Any]) -> None:
    """Check the features of edges, which belong to the edges of their hop."""
    if len(edge_features) != len(blocks):
        raise _misaligned(stage, ("edge_features",), len(edge_features), f"{len(blocks)} blocks")
    for hop, features in enumerate(edge_features):
        _check_is(stage, ("blocks", hop), blocks[hop], dict)
        for key, rows in features.items():
            block = _named_by(stage, ("edge_features", hop), key, f"blocks[{hop}]", blocks[hop])
            compare(stage, ("edge_features", hop, key), rows, block.num_edges, "edges of its block")


def _blocks_fit(blocks: list[Any], nodes: Mapping[Any, Tensor]) -> bool:
    """Return whether `_check_blocks` would raise nothing, in a fifth of its time; False also where it has to look."""
    counts = {type_: _length_of(ids) for type_, ids in nodes.items()}
    try:
        for (src, _, dst), block in blocks[0].items():
            if type(block) is not Block or block.num_src != counts[src] or dst not in counts:
                return False
        return all(hop.keys() == blocks[0].keys() for hop in blocks)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _check_blocks(stage: Named, blocks: list[Any], nodes: Mapping[Any, Tensor]) -> None:
    """Check the edge types of all hops, and the sources of the outermost one."""
    for hop, of_hop in enumerate(blocks):
        _check_is(stage, ("blocks", hop), of_hop, dict)
        if of_hop.keys() != blocks[0].keys():
            raise other_types(stage, ("blocks", hop), sorted(of_hop, key=shown), "blocks[0]", blocks[0])
    for edge_type, block in blocks[0].items():
        if not (isinstance(edge_type, tuple) and len(edge_type) == 3) or {edge_type[0], edge_type[2]} - nodes.keys():
            raise other_types(stage, ("blocks", 0), edge_type, "input_nodes", nodes)
        _check_is(stage, ("blocks", 0, edge_type), block, Block)
        num_nodes = _length_of(nodes[edge_type[0]])
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
            raise other_types(stage, path, type_, of, known)
        compare(stage, (*path, type_), rows, _length_of(known[type_]), of)


def _named_by(stage: Named, path: tuple[Any, ...], key: Any, of: str, known: Mapping[Any, Any]) -> Any:
    """Return what `known`, the field `of`, has for the type in the key (type, name) of a feature."""
    if not isinstance(key, tuple) or len(key) != 2 or key[0] not in known:
        raise other_types(stage, path, key, of, known)
    return known[key[0]]


def other_types(stage: Named, path: tuple[Any, ...], found: object, of: str, known: Mapping[Any, Any]) -> ValueError:
    return ValueError(
        f"{stage.name}: returned a minibatch whose {_name_of(path)} names {shown(found)}, "
        f"but {of} has the types {shown(sorted(known, key=shown))}; only these can be meant. Change both "
        "in the same replace(); the key of a feature is (type, name)."
    )
