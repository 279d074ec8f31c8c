"""The weights of in-edges, as weighted sampling reads them: running sums by row (docs/semantics.md, section 3.1).

They are made once for a graph and an attribute, by threads, and take 9 bytes an edge: a sum for each, and every eighth
again. If some in-edges are never drawn, 8 bytes a node are added. They stay in memory, also where the graph is mapped
from files; worker processes get them as they get the arrays of the graph, so all share one copy.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import type_text
from datapipes.graph.rows_digest import rows_digest
from datapipes.graph.storage import to_numpy
from datapipes.processes.sharing import ForWorkers, Together

__all__: list[str] = []

DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_EDGE = 9


class Rows(NamedTuple):
    """The rows that weights belong to: those of a graph, of a relation or of a part; `node_ids` as in `rows_digest`."""

    indptr: Tensor
    edge_attributes: dict[str, Tensor]
    num_edges: int
    node_ids: Tensor | None = None


class RowWeights:
    """The running sums of the weights of one edge type.

    Attributes:
        digest: of the weights; part of a sampler's fingerprint. Those of the parts of a graph add up to it.
    """

    def __init__(self, tensors: list[Tensor], digest: str, values: Tensor | None = None) -> None:
        self.tensors = tensors  # sums, coarse sums, and counts of drawable in-edges where some are not
        self.digest = digest
        self._values = values  # the attribute that they were made of; None in a worker
        self._version = None if values is None else version_of(values)
        self._sums: tuple[_core.RowSums, list[int]] | None = None

    def refuse_change(self, where: str, now: Tensor | None) -> None:
        """Raise ValueError if `now`, the attribute as the graph has it, is not what the sums were made of."""
        if self._values is not None:
            refuse_other_values(where, "weights", (self._values, self._version), now)

    def sums(self) -> _core.RowSums:
        """Return the sums as the kernels take them; made again when the memory of a tensor has moved."""
        places = [tensor.data_ptr() for tensor in self.tensors]
        if self._sums is None or self._sums[1] != places:
            self._sums = (_core.RowSums(*(tensor.numpy() for tensor in self.tensors)), places)
        return self._sums[0]


class KeptWeights:
    """The weights of a graph or a part that samplers have asked for. Workers get them with it; a copy makes its own."""

    def __init__(self, kept: dict[tuple[str, Any], RowWeights] | None = None) -> None:
        self._kept = kept or {}
        self._read: dict[tuple[str, Any], tuple[Tensor, int]] = {}  # the attribute that each was made of, its version
        self._making = threading.Lock()  # a server's threads share what is made

    @property
    def num_bytes(self) -> int:
        """Bytes of memory of all sums."""
        return sum(tensor.nbytes for each in [*self._kept.values()] for tensor in each.tensors)

    def get(self, where: str, name: Any, edge_type: Any, rows: Rows) -> RowWeights:
        """Return the weights that the edge attribute `name` gives; made when the attribute is another than before.

        Raises:
            TypeError, ValueError: There is no such attribute, or its values are no weights; the message says why.
            MemoryError: The sums exceed the memory that is left.
        """
        with self._making:
            kept = self._kept.get((name, edge_type)) if isinstance(name, str) else None
            if kept is not None and (name, edge_type) not in self._read:
                return kept  # it came with a worker's graph
            values = _values(where, name, edge_type, rows)
            state = (values, version_of(values))
            before = self._read.get((name, edge_type))
            if kept is None or before is None or before[0] is not values or before[1] != state[1]:
                kept = self._kept[name, edge_type] = _made(where, name, edge_type, values, rows)
                self._read[name, edge_type] = state
            return kept

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state with all tensors together, so that they reach workers in one memory; others get none."""
        with self._making:
            kept = list(self._kept.items())
        forms = [(key, len(each.tensors), each.digest) for key, each in kept]
        return _restored, (forms, ForWorkers([tensor for _, each in kept for tensor in each.tensors]))


def _restored(forms: list[tuple[tuple[str, Any], int, str]], given: Any) -> KeptWeights:
    came = given.tensors if isinstance(given, Together) else given  # copy.copy pickles nothing
    if not came:
        return KeptWeights()
    tensors = iter(came)
    return KeptWeights({key: RowWeights([next(tensors) for _ in range(n)], digest) for key, n, digest in forms})


def refuse_other_values(where: str, what: str, read: tuple[Tensor | None, int | None], now: Tensor | None) -> None:
    """Raise ValueError if an attribute is not what was read when a stage was built.

    Args:
        what: "weights" or "times".
        read: the tensor that was read, and its version then; (None, None) if the graph did not have it.
        now: the tensor that the graph has now.
    """
    values, version = read
    if now is not values:
        change, more = "replaced by another tensor", ""
    elif values is not None and version_of(values) != version:
        change, more = "changed in place", " A change of a tensor that they are a view of counts too."
    else:
        return
    raise ValueError(
        f"{where}: the {what} were {change} after the stage was built, which keeps what it made of them. Build the "
        f"stage again after the change.{more}"
    )


def weights_fingerprint(digests: Mapping[Any, str]) -> dict[str, Any]:
    """Return what the weights of the edge types that are sampled add to a fingerprint; nothing without weights."""
    if not digests:
        return {}
    if None in digests:
        return {"weights_digest": digests[None]}
    return {"weights_digest": {join_key(of): digest for of, digest in digests.items()}}


def refuse_missing(where: str, name: Any, known: Collection[str], edge_type: Any = None) -> None:
    """Raise TypeError or ValueError if `name` is no edge attribute among `known`."""
    if not isinstance(name, str):
        raise TypeError(
            f"{where}: prob_name must be a str, the name of an edge attribute, got {shown(name)}. Pass one of "
            f"{shown(sorted(known))}."
        )
    if name not in known:
        raise ValueError(
            f"{where}: no edge attribute {shown(name)}{_of(edge_type)}, as prob_name says; there are "
            f"{shown(sorted(known))}. Add it to edge_attributes of the graph; equal weights, such as ones, give each "
            "in-edge the same probability."
        )


def refuse_no_tensor(what: str, values: Any) -> None:
    """Raise TypeError unless `values` are a tensor, as the graph makes all attributes when it is built."""
    if not isinstance(values, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(values).__name__}. Set torch.as_tensor(values).")


def refuse_other_form(
    where: str, name: str, edge_type: Any, dtype: torch.dtype, shape: tuple[int, ...], num_edges: int = -1
) -> None:
    """Raise TypeError or ValueError if values of this form are no weights; `num_edges` is -1 if it is not known."""
    what = f"{where}: the weights {name!r}{_of(edge_type)}"
    if dtype not in DTYPES:
        names = ", ".join(dtype_name(dtype) for dtype in DTYPES)
        raise TypeError(f"{what} must be one of {names}, got {dtype_name(dtype)}. Convert them.")
    if shape != (num_edges,):
        count = "num_edges" if num_edges < 0 else str(num_edges)
        found = ", ".join(["num_edges" if each < 0 else str(each) for each in shape])
        raise ValueError(
            f"{what} have shape [{found}]; they must be [{count}], one for each edge. Give one number each."
        )


def _values(where: str, name: Any, edge_type: Any, rows: Rows) -> Tensor:
    """Return the edge attribute as weights; their values are not read."""
    refuse_missing(where, name, rows.edge_attributes, edge_type)
    values = rows.edge_attributes[name]
    refuse_no_tensor(f"{where}: the weights {name!r}{_of(edge_type)}", values)
    refuse_other_form(where, name, edge_type, values.dtype, tuple(values.shape), rows.num_edges)
    what = f"{where}: the weights {name!r}{_of(edge_type)}"
    if values.device.type != "cpu":
        raise ValueError(f"{what} must be in host memory, found them on {values.device}. Call .cpu().")
    return values


def _made(where: str, name: str, edge_type: Any, values: Tensor, rows: Rows) -> RowWeights:
    num_bytes = BYTES_PER_EDGE * rows.num_edges + 8 * rows.indptr.shape[0]
    remedy = "Sample without prob_name, or a smaller graph."
    check_memory(where, f"the sums of the weights {name!r}{_of(edge_type)}", num_bytes, remedy)
    contiguous = values.detach().contiguous()
    raw = to_numpy(contiguous).view("uint8")
    made = _core.row_sums(
        rows.indptr.numpy(),
        raw,
        dtype=dtype_name(values.dtype),
        what=f"{where}: the weight {name!r}{_of(edge_type)}",
        node_ids=None if rows.node_ids is None else rows.node_ids.numpy(),
        num_threads=num_threads(),
    )
    tensors = [torch.from_numpy(array) for array in made if array is not None]
    return RowWeights(tensors, rows_digest(contiguous, rows.indptr, node_ids=rows.node_ids), values)


def _of(edge_type: Any) -> str:
    return "" if edge_type is None else f" of {type_text(edge_type)}"
