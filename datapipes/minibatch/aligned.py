"""Checks that the fields of a minibatch belong to each other: equal lengths where rows stand for the same things."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

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
    if not isinstance(seeds, TENSOR_OR_NONE):
        raise _no_tensor(stage, ("seeds",), seeds)
    if not isinstance(nodes, TENSOR_OR_NONE):
        raise _no_tensor(stage, ("input_nodes",), nodes)
    if seeds is not None:
        changed = seeds is not given.seeds
        labels, indexes, timestamps = minibatch.labels, minibatch.indexes, minibatch.timestamps
        if labels is not None and (changed or labels is not given.labels):
            _compare(stage, ("labels",), labels, _length(seeds), "seeds")
        if indexes is not None and (changed or indexes is not given.indexes):
            _compare(stage, ("indexes",), indexes, _length(seeds), "seeds")
        if timestamps is not None and (changed or timestamps is not given.timestamps):
            _compare(stage, ("timestamps",), timestamps, _length(seeds), "seeds")
        compacted = minibatch.compacted_seeds
        if compacted is not None and compacted.shape != seeds.shape:
            raise _misaligned(stage, ("compacted_seeds",), compacted, f"seeds {list(seeds.shape)}")
    if nodes is not None:
        num_nodes, of = _length(nodes), "input_nodes"
        if minibatch.batch is not None:
            _compare(stage, ("batch",), minibatch.batch, num_nodes, of)
        if blocks and blocks[0].num_src != num_nodes:
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
            for name, rows in minibatch.edge_features[hop].items():
                _compare(stage, ("edge_features", hop, name), rows, block.num_edges, "edges of its block")


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
