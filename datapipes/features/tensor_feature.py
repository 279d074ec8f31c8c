"""TensorFeature: rows of a tensor in host memory, as they are or stored with fewer bits."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_index_tensor, dtype_name
from datapipes.base.rows import byte_rows, has_adjacent_values, take_rows
from datapipes.base.threads import num_threads
from datapipes.features.feature import Feature
from datapipes.features.given_rows import check_out
from datapipes.features.stored_values import check_stored_as, decode, encode, take_decoded

__all__ = ["TensorFeature"]


class TensorFeature(Feature):
    """The rows of a tensor or array in host memory, of any fixed-width dtype; it is viewed, so it may be memory-mapped.

    Args:
        tensor: [count, *shape]; rows may lie apart, the values of one row must be adjacent.
        stored_as: torch.float16, torch.bfloat16 or torch.int8, or such a name: float32 values are stored so, in memory
            of their own, half or a quarter as large; `read` gives float32 again. Less is read for each minibatch, and
            the values are rounded: float16 keeps 11 bits of each (and none below 6e-8), bfloat16 keeps 8. int8 keeps
            the nearest of 255 even steps from -m to m, where m is the largest |value| of the column, the same place in
            every row. None: as they are.
    Raises:
        TypeError: stored_as is given, and the tensor is not float32.
        ValueError: The tensor has no dimension, is not in host memory, or the values of a row lie apart. Or a column
            holds what stored_as cannot: for int8 NaN or an infinity, for the others a finite value beyond their
            largest (float16: 65504).
    Cost: nothing is copied without stored_as; with it the tensor is read once, for int8 twice, in pieces.
    """

    def __init__(self, tensor: Tensor | NDArray[Any], *, stored_as: torch.dtype | str | None = None) -> None:
        rows = as_tensor("TensorFeature", "tensor", tensor)
        if rows.ndim == 0:
            raise ValueError(
                "TensorFeature: needs at least 1 dimension, got a 0-d tensor. Its first size is the number of rows."
            )
        if rows.device.type != "cpu":
            raise ValueError(f"TensorFeature: must be in host memory, found the tensor on {rows.device}. Call .cpu().")
        rows = rows.resolve_conj().resolve_neg()
        if not has_adjacent_values(rows):
            raise ValueError(
                f"TensorFeature: the values of a row must be adjacent, got shape {list(rows.shape)} with stride "
                f"{rows.stride()}. Call .contiguous()."
            )
        self.stored_as = check_stored_as("TensorFeature", stored_as, rows.dtype)
        self.scale: Tensor | None = None
        self._dtype = rows.dtype
        if self.stored_as is not None:
            rows, self.scale = encode("TensorFeature", rows, self.stored_as)
        self.tensor = rows
        self._table = byte_rows(rows)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read, equal to `tensor[ids]`; on `torch.get_num_threads()` threads.

        With `stored_as` they are equal to `decode(tensor[ids])`.

        Args:
            out: memory for the rows, which is filled and returned: [n, *shape] of the same dtype, contiguous, in host
                memory (it may be pinned), not overlapping the rows or the ids. By default the rows lie in memory
                recycled from earlier minibatches.
        """
        if self.stored_as is None:
            return self.read_stored(ids, out)
        wanted = check_index_tensor("TensorFeature", "ids", ids)
        if out is not None:
            check_out("TensorFeature", out, wanted.shape[0], self.shape, self.dtype)
        return take_decoded(self._table, self.stored_as, self.scale, self.shape, wanted, out, num_threads())

    def read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as they are stored, equal to `tensor[ids]`: of the dtype `stored_as`, if given.

        Args:
            ids, out: as for `read`; `out` has the dtype of the stored rows.
        """
        wanted = check_index_tensor("TensorFeature", "ids", ids)
        if out is not None:
            check_out("TensorFeature", out, wanted.shape[0], self.shape, self.tensor.dtype)
            to = None if out.numel() == 0 else byte_rows(out)
            _core.gather_rows(self._table, wanted.numpy(), out=to, num_threads=num_threads())
            return out
        return take_rows(self.tensor, self._table, wanted, num_threads())

    def decode(self, rows: Tensor) -> Tensor:
        """Return the values of stored rows [n, *shape], float32, on the device of `rows`.

        `decode(read_stored(ids))` has the bits of `read(ids)` on every device; of a NaN only that it is one. Without
        `stored_as` the rows are returned as they are.
        """
        if self.stored_as is None:
            return rows
        if rows.dtype != self.stored_as:
            raise TypeError(
                f"TensorFeature: decode takes rows of {dtype_name(self.stored_as)}, as they are stored, got "
                f"{dtype_name(rows.dtype)}. Pass what read_stored returns."
            )
        return decode(rows, None if self.scale is None else self.scale.to(rows.device))

    @property
    def count(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def __repr__(self) -> str:
        stored = "" if self.stored_as is None else f", stored as {dtype_name(self.stored_as)}"
        return f"TensorFeature({self.count} rows of {dtype_name(self.dtype)} {list(self.shape)}{stored})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # a view of the rows, which a pickle would copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = byte_rows(self.tensor)
