"""ByWeight: in-edges in proportion to their weights, or those of a mask; docs/semantics.md, section 3.1.

Running sums of the weights are made once for the rows of a graph or a part, by threads, and take 9 bytes an edge: a sum
for each, and every eighth again. If some in-edges are never drawn, 8 bytes a node are added. They stay in memory, also
where the rows are mapped from files; worker processes get them with the rows, so all share one copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import type_text
from datapipes.graph.choice import Attributed, Choice, Rows, form_of, refuse_elsewhere, refuse_no_tensor
from datapipes.graph.npy import to_numpy
from datapipes.graph.rows_digest import rows_digest

__all__: list[str] = []

DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_EDGE = 9
_WHAT = "weights"  # what a change is told of


@dataclass(frozen=True)
class ByWeight(Choice):
    """In-edges in proportion to their weights.

    Attributes:
        prob_name: the edge attribute that holds them, [num_edges] of bool (a mask), float16, bfloat16, float32 or
            float64; each 0 or more.
    """

    prob_name: str

    by: ClassVar[str] = "weight"

    @property
    def reads(self) -> ByWeight:
        return self

    def check(self, where: str, graph: Attributed, edge_types: Sequence[Any]) -> None:
        forms = graph.forms()
        for of in edge_types:
            known = [name for domain, kind, name in forms if (domain, kind) == ("edge", of)]
            self._refuse_missing(where, known, of)
            dtype, shape = forms["edge", of, self.prob_name]
            what = self._what(where, of)
            refuse_no_tensor(what, dtype)
            if dtype not in DTYPES:
                names = ", ".join(dtype_name(dtype) for dtype in DTYPES)
                raise TypeError(f"{what} must be one of {names}, got {dtype_name(dtype)}. Convert them.{graph.anew}")
            if shape != ():
                raise self._other_shape(where, of, "num_edges", ["num_edges", *map(str, shape)])

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        return {_WHAT: rows.edge_attributes.get(self.prob_name)}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        values, num_edges = rows.edge_attributes[self.prob_name], rows.indices.shape[0]
        what = self._what(where, edge_type)
        refuse_no_tensor(what, form_of(values).dtype)
        if tuple(values.shape) != (num_edges,):
            raise self._other_shape(where, edge_type, str(num_edges), list(map(str, values.shape)))
        refuse_elsewhere(what, values)
        num_bytes = BYTES_PER_EDGE * num_edges + 8 * rows.indptr.shape[0]
        remedy = "Sample without prob_name, or a smaller graph."
        check_memory(where, f"the sums of the weights {self.prob_name!r}{_of(edge_type)}", num_bytes, remedy)
        made = _core.row_sums(
            rows.indptr.numpy(),
            to_numpy(values.detach().contiguous()).view("uint8"),
            dtype=dtype_name(values.dtype),
            what=f"{where}: the weight {self.prob_name!r}{_of(edge_type)}",
            node_ids=None if rows.node_ids is None else rows.node_ids.numpy(),
            num_threads=num_threads(),
        )
        return [torch.from_numpy(array) for array in made if array is not None]

    def argument(self, rows: Rows, made: list[Tensor]) -> _core.RowSums:
        return _core.RowSums(*(tensor.numpy() for tensor in made))

    def digests(self, rows: Rows, made: list[Tensor]) -> list[str]:
        values = rows.edge_attributes[self.prob_name].detach().contiguous()
        return [rows_digest(values, rows.indptr, node_ids=rows.node_ids)]

    def kernel(self, arguments: list[Any]) -> _core.Weights:
        return _core.Weights(arguments)

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        found = {of: each[0] for of, each in digests.items() if each is not None}
        return {"weights_digest": found[None] if None in found else {join_key(of): each for of, each in found.items()}}

    def _refuse_missing(self, where: str, known: Collection[str], edge_type: Any) -> None:
        if not isinstance(self.prob_name, str):
            raise TypeError(
                f"{where}: prob_name must be a str, the name of an edge attribute, got {shown(self.prob_name)}. Pass "
                f"one of {shown(sorted(known))}."
            )
        if self.prob_name not in known:
            raise ValueError(
                f"{where}: no edge attribute {shown(self.prob_name)}{_of(edge_type)}, as prob_name says; there are "
                f"{shown(sorted(known))}. Add it to edge_attributes of the graph; equal weights, such as ones, give "
                "each in-edge the same probability."
            )

    def _what(self, where: str, edge_type: Any) -> str:
        return f"{where}: the weights {self.prob_name!r}{_of(edge_type)}"

    def _other_shape(self, where: str, edge_type: Any, wanted: str, found: list[str]) -> ValueError:
        return ValueError(
            f"{self._what(where, edge_type)} have shape [{', '.join(found)}]; they must be [{wanted}], one for each "
            "edge. Give one number each."
        )


def _of(edge_type: Any) -> str:
    return "" if edge_type is None else f" of {type_text(edge_type)}"
