"""Memory that a caller gives for the rows of a feature."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name


def check_out(where: str, out: Tensor, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse `out` unless it is a contiguous tensor [num_rows, *shape] of `dtype` in host memory.

    Raises:
        TypeError, ValueError: It is not; the message says what it must be.
    """
    if not isinstance(out, Tensor):
        raise TypeError(f"{where}: out must be a tensor, got {type(out).__name__}. Use torch.empty.")
    if out.layout != torch.strided or out.requires_grad or out.is_conj() or out.is_neg():
        raise TypeError(
            f"{where}: out must be a dense tensor without gradient, conjugate or negative view, got layout "
            f"{out.layout}, requires_grad={out.requires_grad}. Use torch.empty."
        )
    wanted = (num_rows, *shape)
    if tuple(out.shape) != wanted or out.dtype != dtype:
        raise ValueError(
            f"{where}: out has shape {list(out.shape)} and dtype {dtype_name(out.dtype)}; it must have shape "
            f"{list(wanted)} and dtype {dtype_name(dtype)}. Allocate it for these ids."
        )
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ValueError(
            f"{where}: out must be contiguous in host memory, found stride {out.stride()} on {out.device}. Use "
            "torch.empty."
        )
