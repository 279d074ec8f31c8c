"""RowForm: dtype and row shape of an attribute; and checks that an attribute has a form that its reader takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name


class RowForm(NamedTuple):
    """Dtype and row shape of an attribute. If the attribute is no tensor, `dtype` is its Python type."""

    dtype: Any
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * int(self.dtype.itemsize)


def check_form(
    name: str, form: RowForm, dtypes: Sequence[torch.dtype], size: Any, *, convert: str = "Convert it.", anew: str = ""
) -> None:
    """Raise TypeError if the dtype in `form` is not in `dtypes`, ValueError if a row is more than one number."""
    kind, shape = form
    if not isinstance(kind, torch.dtype):  # the graph made tensors of all attributes when it was built
        raise TypeError(f"{name} must be a tensor, got {kind.__name__}. Set torch.as_tensor(values).")
    if kind not in dtypes:
        allowed = f"{'one of ' if len(dtypes) > 1 else ''}{', '.join(map(dtype_name, dtypes))}"
        raise TypeError(f"{name} must be {allowed}, got {dtype_name(kind)}. {convert}{anew}")
    if shape != ():
        sizes = ", ".join(map(str, (size, *shape)))
        raise ValueError(f"{name} must have shape [{size}], got [{sizes}]. Make one number of each row.{anew}")


def check_values(
    name: str, values: Any, dtypes: Sequence[torch.dtype], count: int, *, convert: str = "Convert it."
) -> None:
    """Raise TypeError or ValueError unless `values` is a tensor [count] in host memory with a dtype in `dtypes`."""
    check_form(name, form_of(values)._replace(shape=()), dtypes, count, convert=convert)
    if tuple(values.shape) != (count,):
        raise ValueError(f"{name} must have shape [{count}], got {list(values.shape)}. Pass one number for each.")
    if values.device.type != "cpu":
        raise ValueError(f"{name} must be in host memory, found it on {values.device}. Call .cpu().")


def form_of(values: Any) -> RowForm:
    """Return dtype and row shape of an attribute as a RowForm. A user may have set the attribute to any object."""
    return RowForm(values.dtype, tuple(values.shape[1:])) if isinstance(values, Tensor) else RowForm(type(values), ())
