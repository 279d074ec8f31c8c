"""Weights: by which items or nodes are drawn, and their running sums, from which the kernel draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import array_digest, version_of
from datapipes.base.checks import as_tensor, dtype_name
from datapipes.base.codec import flat_bytes
from datapipes.base.forms import check_values
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import of_type
from datapipes.processes.sharing import ForWorkers, Together

__all__: list[str] = []

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_WEIGHT = 9  # that the sums take


class Weights:
    """Weights of items or nodes, of one or more types, and the running sums over all of them in the order of the types.

    The sums are made once. A loader's workers get the sums in shared memory; other pickled copies make their own.

    Args:
        where, name: the stage and its argument, for errors.
        noun: "item" or "node", what has a weight, for errors.
        weights: {type or None: a float for each of these, [n]}.
        counts: {type or None: n}, with the same types.
        field: the name of the items' field that the user gave in place of the weights. None: the weights were given.
    Attributes:
        num_drawable: how many can be drawn: those whose weight is above 0, and not too small to change the sum.
    Raises:
        TypeError, ValueError: The weights do not fit; the message names the first wrong weight.
        MemoryError: The sums exceed the memory that is left.
    """

    def __init__(
        self,
        where: str,
        name: str,
        noun: str,
        weights: Mapping[Any, Any],
        counts: Mapping[Any, int],
        field: str | None = None,
    ) -> None:
        self._where, self._name, self._noun, self._field = where, f"{where}: {name}", noun, field
        self.counts = {type_: counts[type_] for type_ in weights}
        self._values = {type_: self._checked(type_, values) for type_, values in weights.items()}
        of_one = of_type(next(iter(weights))) if len(weights) == 1 else ""
        if not any(bool((values > 0).any()) for values in self._values.values()):
            raise ValueError(
                f"{self._name}{of_one} is 0 at all {sum(self.counts.values())} {noun}s, so none can be drawn. Give one "
                "of them a weight."
            )
        total = sum(float(values.sum(dtype=torch.float64)) for values in self._values.values())
        if total == float("inf"):
            raise ValueError(
                f"{self._name}{of_one} adds up to more than a float64 holds. Divide the weights by the largest."
            )
        self._versions = self._versions_now()
        self._made = self._sums()
        self._digest: str | None = None
        self._take()

    def _take(self) -> None:
        sums, coarse = (array.numpy() for array in self._made)
        self._argument = _core.RowSums(sums, coarse, np.array([self.num_drawable]))

    def _versions_now(self) -> list[int]:
        return [version_of(values) for values in self._values.values()]

    @property
    def given(self) -> Any:
        """What the user gave: a tensor [n]; with types {type: tensor}; or the name of a field."""
        self.refuse_change()
        return self._field or self._values.get(None, self._values)

    def sums(self) -> _core.RowSums:
        """Return the running sums, from which the kernel draws.

        Raises:
            ValueError: Some weights were changed after the sums were made.
        """
        self.refuse_change()
        return self._argument

    def refuse_change(self) -> None:
        """Raise ValueError if the weights were changed in place by torch; changes by NumPy are not noticed."""
        if self._versions != self._versions_now():
            raise ValueError(
                f"{self._name} was changed in place after the stage was built, which keeps the sums of the weights. "
                "Build the stage again after the change. A change of a tensor of which this is a view counts too."
            )

    def digest(self) -> str:
        """Return the digest of the sums, which decide what is drawn; computed once."""
        self.refuse_change()
        if self._digest is None:
            self._digest = array_digest(self._made[0][: sum(self.counts.values())])
        return self._digest

    def _checked(self, type_: Any, weights: Any) -> Tensor:
        name = f"{self._name}{of_type(type_)}"
        values = as_tensor(self._where, name.removeprefix(f"{self._where}: "), weights)
        check_values(name, values, _DTYPES, self.counts[type_], convert="Convert it: .float().")
        values = values.detach().contiguous()
        wrong = (~((values >= 0) & values.isfinite())).nonzero()
        if wrong.numel() > 0:
            place = int(wrong[0])
            raise ValueError(
                f"{name} is {float(values[place])} at {self._noun} {place}; weights must be finite and 0 or more. "
                "Correct it."
            )
        return values

    def _sums(self) -> list[Tensor]:
        count = sum(self.counts.values())
        check_memory(self._where, "the sums of weights", BYTES_PER_WEIGHT * count, "Leave out the weights.")
        values = torch.cat([*self._values.values()]) if len(self._values) > 1 else next(iter(self._values.values()))
        made = _core.row_sums(
            torch.tensor([0, count]).numpy(),
            flat_bytes(values),
            dtype=dtype_name(values.dtype),
            what=self._name,
            num_threads=num_threads(),
        )
        self.num_drawable = count if made[2] is None else int(made[2][0])
        return [torch.from_numpy(sums) for sums in made[:2]]

    def __getstate__(self) -> dict[str, Any]:
        self.refuse_change()
        left_out = ("_argument", "_made", "_versions")
        kept = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**kept, "made": ForWorkers(self._made)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        together = state.pop("made")
        self.__dict__.update(state)
        self._versions = self._versions_now()
        made = together.tensors if isinstance(together, Together) else together  # a Together after copy.copy
        self._made = [*made] or self._sums()
        self._take()

    def __repr__(self) -> str:
        return "<weights>" if None in self._values else f"<weights of {sorted(self._values)}>"
