"""Tensors by value: the parts that a pickle holds of a tensor in ordinary memory, whatever its dtype and layout.

Not torch's own way, which pickles the whole storage of a view and cannot restore uint16 and 8-bit floats.
"""

from __future__ import annotations

import torch
from torch import Tensor

_Parts = tuple[bytearray, torch.dtype, tuple[int, ...], bool]


def by_value(tensor: Tensor) -> _Parts:
    """Return the arguments of `from_values` for a dense tensor in host memory."""
    values = bytearray(bits(tensor.detach().resolve_conj().resolve_neg()).numpy().tobytes())
    return values, tensor.dtype, tuple(tensor.shape), tensor.requires_grad


def from_values(values: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    """Return a tensor that travelled by value."""
    flat = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
    return flat.view(shape).requires_grad_(requires_grad)


def tensors_of(parts: list[_Parts | Tensor]) -> list[Tensor]:
    """Return tensors of which some travelled by value."""
    return [part if isinstance(part, Tensor) else from_values(*part) for part in parts]


def bits(tensor: Tensor) -> Tensor:
    """Return the bits of `tensor` as integers, so that NaN equals NaN and -0.0 differs from 0.0."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[real.element_size()])
