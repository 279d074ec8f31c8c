"""What a file of PyG's layout may hold; each refusal is a ValueError that names the file, what was found, what not."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.partition.pyg.torch_file import OtherTensor

_DTYPES = {
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.complex32, torch.complex64, torch.complex128),
}


def said(value: Any) -> str:
    """Return a short text of a value from a file. Of other values than names and numbers only the kind.

    A list in a list may be used many times there: a file of a few bytes whose repr never ends.
    """
    if value is None or isinstance(value, (str, int, float)):
        return shown(value)
    if isinstance(value, (tuple, list)):
        if len(value) <= 3 and all(isinstance(each, (str, int)) for each in value):
            return shown(value)
        return f"a {type(value).__name__} of {len(value)} values"
    return f"a {type(value).__name__}"


def refuse(path: Path, found: str, allowed: str) -> NoReturn:
    """Raise the error for a file."""
    raise ValueError(
        f"partition: {path} has {found}; allowed: {allowed}. Write the partition again, or read the folder it is of."
    )


def dict_in(
    path: Path, what: str, value: Any, needed: Set[str] = frozenset(), optional: Set[str] | None = None
) -> dict[Any, Any]:
    """Return a plain dict that has the keys `needed`, and others only from `optional`, if that is given."""
    if not isinstance(value, dict):
        refuse(path, f"{type(value).__name__} for {what}", "a dict")
    lacking = sorted(needed - value.keys())
    if lacking:
        refuse(path, f"no {lacking[0]!r} in {what}", f"a dict with {sorted(needed)}")
    if optional is not None:
        for key in value:
            if not isinstance(key, str) or key not in needed | optional:
                refuse(path, f"the key {said(key)} in {what}", f"{sorted(needed | optional)}")
    return value


def ids_in(path: Path, what: str, value: Any) -> Tensor:
    """Return an int64 tensor [n]."""
    found = _plain(path, what, value)
    if found.dtype != torch.int64 or found.ndim != 1 or not found.is_contiguous():
        refuse(path, f"{dtype_name(found.dtype)} {list(found.shape)} for {what}", "int64 [n]")
    return found


def tensor_in(path: Path, what: str, value: Any, count: int) -> Tensor:
    """Return a tensor [count, ...]."""
    found = _plain(path, what, value)
    if found.ndim == 0 or found.shape[0] != count:
        refuse(path, f"a tensor {list(found.shape)} for {what}", f"one of {count} rows")
    return found


def attributes_in(path: Path, what: str, value: Any, count: int) -> dict[str, Tensor]:
    """Return {name: [count, ...]}; PyG writes None where it has no features."""
    given = dict_in(path, what, value)
    for name in given:
        if not isinstance(name, str):
            refuse(path, f"the name {said(name)} in {what}", "a text")
    there = {name: each for name, each in given.items() if each is not None}
    return {name: tensor_in(path, f"{what}[{shown(name)}]", each, count) for name, each in there.items()}


def size_in(path: Path, what: str, value: Any, expected: tuple[int, int]) -> tuple[int, int]:
    """Return the numbers of nodes at both ends, which must be those of the maps."""
    is_pair = isinstance(value, (tuple, list)) and [type(each) for each in value] == [int, int]
    if not is_pair or tuple(value) != expected:
        refuse(path, f"{said(value)} for {what}", f"{expected}, as the maps of nodes are long")
    return expected


def refuse_others(path: Path, what: str, values: Tensor, count: int) -> None:
    """Refuse values outside [0, count)."""
    if values.numel() == 0:
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= count:
        refuse(path, f"{low if low < 0 else high} in {what}", f"[0, {count})")


def _plain(path: Path, what: str, value: Any) -> Tensor:
    if isinstance(value, OtherTensor):
        refuse(path, f"{value.what} for {what}", "a dense one in host memory")
    if not isinstance(value, Tensor):
        refuse(path, f"{type(value).__name__} for {what}", "a tensor")
    if value.dtype not in _DTYPES:
        refuse(path, f"{dtype_name(value.dtype)} for {what}", "numbers of 8 to 128 bits, or bool")
    return value
