"""Checks that the fields of a minibatch with types belong to each other.

All of its fields are dicts; the rows of each type are compared with those of the same type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.minibatch.aligned_rows import Named, check_is, compare, length_of, misaligned, name_of, no_tensor
from datapipes.minibatch.block import Block
from datapipes.minibatch.minibatch import MiniBatch


def check_types(stage: Named, minibatch: MiniBatch, given: MiniBatch) -> None:
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
                    raise misaligned(stage, ("compacted_seeds", type_), found, f"seeds {list(ids.shape)}")
    of_features = minibatch.node_features or {}
    if nodes is not None:
        _check_kinds(stage, "input_nodes", nodes)
        if minibatch.batch is not None:
            _compare_each(stage, ("batch",), minibatch.batch, "input_nodes", nodes)
        if blocks and (blocks is not given.blocks or nodes is not given.input_nodes):
            _check_blocks(stage, blocks, nodes)
        for key, rows in of_features.items():
            found = _named_by(stage, ("node_features",), key, "input_nodes", nodes)
            compare(stage, ("node_features", key), rows, length_of(found), "input_nodes")
    elif all(isinstance(type_, str) for type_ in seeds):
        for key, rows in of_features.items():
            found = _named_by(stage, ("node_features",), key, "seeds", seeds)
            compare(stage, ("node_features", key), rows, length_of(found), "seeds (nothing was sampled)")
    if minibatch.edge_features and blocks is not None:
        if len(minibatch.edge_features) != len(blocks):
            raise misaligned(stage, ("edge_features",), len(minibatch.edge_features), f"{len(blocks)} blocks")
        for hop, features in enumerate(minibatch.edge_features):
            check_is(stage, ("blocks", hop), blocks[hop], dict)
            for key, rows in features.items():
                block = _named_by(stage, ("edge_features", hop), key, f"blocks[{hop}]", blocks[hop])
                compare(stage, ("edge_features", hop, key), rows, block.num_edges, "edges of its block")


def _check_blocks(stage: Named, blocks: list[Any], nodes: Mapping[Any, Tensor]) -> None:
    """Check the edge types of all hops, and the sources of the outermost one."""
    for hop, of_hop in enumerate(blocks):
        check_is(stage, ("blocks", hop), of_hop, dict)
        if of_hop.keys() != blocks[0].keys():
            raise other_types(stage, ("blocks", hop), sorted(of_hop, key=shown), "blocks[0]", blocks[0])
    for edge_type, block in blocks[0].items():
        if not (isinstance(edge_type, tuple) and len(edge_type) == 3) or {edge_type[0], edge_type[2]} - nodes.keys():
            raise other_types(stage, ("blocks", 0), edge_type, "input_nodes", nodes)
        check_is(stage, ("blocks", 0, edge_type), block, Block)
        num_nodes = length_of(nodes[edge_type[0]])
        if block.num_src != num_nodes:
            raise misaligned(
                stage, ("blocks", 0, edge_type), f"num_src={block.num_src}", f"{num_nodes} input_nodes of its sources"
            )


def _check_kinds(stage: Named, name: str, by_type: Any) -> None:
    """Refuse a field that is no dict of tensors by node type, or, the seeds, by edge type."""
    check_is(stage, (name,), by_type, dict)
    for type_, value in by_type.items():
        if not isinstance(value, Tensor):
            raise no_tensor(stage, (name, type_), value)
    kinds = {str if isinstance(type_, str) else tuple for type_ in by_type}
    if len(kinds) > 1 or (name == "input_nodes" and tuple in kinds):
        allowed = "node types or edge types" if name == "seeds" else "node types"
        raise ValueError(
            f"{stage.name}: returned a minibatch whose {name} have the types {shown([*by_type])}; all must be "
            f"{allowed}. Give seeds of nodes and of links minibatches of their own."
        )


def _compare_each(stage: Named, path: tuple[Any, ...], by_type: Any, of: str, known: Mapping[Any, Tensor]) -> None:
    """Compare the rows of each type with those of the field `of`, which are `known`."""
    check_is(stage, path, by_type, dict)
    for type_, rows in by_type.items():
        if type_ not in known:
            raise other_types(stage, path, type_, of, known)
        compare(stage, (*path, type_), rows, length_of(known[type_]), of)


def _named_by(stage: Named, path: tuple[Any, ...], key: Any, of: str, known: Mapping[Any, Any]) -> Any:
    """Return what `known`, the field `of`, has for the type in the key (type, name) of a feature."""
    if not isinstance(key, tuple) or len(key) != 2 or key[0] not in known:
        raise other_types(stage, path, key, of, known)
    return known[key[0]]


def other_types(stage: Named, path: tuple[Any, ...], found: object, of: str, known: Mapping[Any, Any]) -> ValueError:
    return ValueError(
        f"{stage.name}: returned a minibatch whose {name_of(path)} names {shown(found)}, "
        f"but {of} has the types {shown(sorted(known, key=shown))}; only these can be meant. Change both "
        "in the same replace(); the key of a feature is (type, name)."
    )
