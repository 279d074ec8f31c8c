"""The Python half of the message layout in shared memory; csrc/bindings/frame.h has the layout and the C++ half.

The C++ half copies a tensor directly if it is contiguous, in host memory, and of a dtype that DLPack can name. For any
other value it calls `plain`, which returns such a tensor or raises an error that says why the value cannot be sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torch.utils.dlpack import to_dlpack as to_dlpack  # type: ignore[attr-defined]

from datapipes.base.checks import dtype_name
from datapipes.channel.base import check_item

_HAS_DLPACK = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by item size, for all other dtypes
_MOST_DIMS = 64  # csrc/bindings/frame.cpp has the same number
# The public from_dlpack takes objects with __dlpack__. This one takes a capsule.
from_capsule: Callable[[object], Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


def plain(key: Any, value: Any, most_bytes: int) -> tuple[Tensor, str]:
    """Return (tensor, dtype name): a contiguous tensor of a dtype that DLPack can name, with the values of `value`.

    The name is that of the original dtype if `tensor` has its bits under another dtype, otherwise "".

    Raises:
        TypeError: The value is not a dense tensor in host memory, or the key is no str; the message says which.
        ValueError: UTF-8 cannot encode the key; the tensor has more than 64 dimensions or `most_bytes` bytes, or its
            strides overflow.
    """
    where = "ShmChannel.send"
    check_item(where, key, value)
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: key {key!r} cannot be encoded as UTF-8. Rename it.") from error
    if value.is_nested or value.layout is not torch.strided:
        found, remedy = f"layout {value.layout}", "Send its parts, such as indices and values, or call .to_dense()"
    elif value.is_quantized:
        found, remedy = f"quantized dtype {value.dtype}", "Send .int_repr() and the scale, or call .dequantize()"
    elif value.device.type != "cpu":
        found, remedy = f"device {value.device}", "Call .cpu(), or copy to the device after the channel"
    elif value.dtype not in _HAS_DLPACK and value.dtype.itemsize not in _CARRIERS:
        found, remedy = f"dtype {value.dtype} of {value.dtype.itemsize} bytes", "Convert it"
    else:
        _check_shape(where, key, value, most_bytes)
        tensor, name = value.detach().as_subclass(Tensor).resolve_conj().resolve_neg(), ""
        if tensor.dtype not in _HAS_DLPACK:  # before the copy: torch cannot copy all of these
            tensor, name = tensor.view(_CARRIERS[tensor.dtype.itemsize]), dtype_name(tensor.dtype)
        tensor = tensor.contiguous()
        if tensor.numel() > 0 and not _has_memory(tensor):
            raise TypeError(
                f"{where}: {key!r} has no memory, so there are no values to send. Send a tensor with values."
            )
        return tensor, name
    raise TypeError(f"{where}: {key!r} has {found}; only dense tensors in host memory can be sent. {remedy}.")


def _check_shape(where: str, key: str, value: Tensor, most_bytes: int) -> None:
    """Refuse a shape that `recv` would refuse, and more values than the channel holds before they are copied."""
    if value.dim() > _MOST_DIMS:
        raise ValueError(
            f"{where}: {key!r} has {value.dim()} dimensions; at most {_MOST_DIMS} can be sent. Call .flatten() or "
            ".reshape() first."
        )
    if math.prod(max(size, 1) for size in value.shape) * value.dtype.itemsize >= 2**63 and 0 in value.shape:
        raise ValueError(
            f"{where}: {key!r} has shape {tuple(value.shape)}; its sizes without 0, times {value.dtype.itemsize} "
            "bytes, must stay below 2^63. Send it in another shape, such as (0,)."
        )
    num_bytes = math.prod(value.shape) * value.dtype.itemsize
    if num_bytes > most_bytes:
        raise ValueError(
            f"{where}: {key!r} takes {num_bytes} bytes, the channel has {most_bytes}. Give a larger shm_size, or send "
            "it in parts."
        )


def as_dtype(tensor: Tensor, name: str) -> Tensor:
    """Return `tensor`, which `plain` made, as a tensor of its original dtype `name`."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != tensor.itemsize:
        raise ValueError(
            f"ShmChannel.recv: the message names dtype {name!r}, which does not fit values of {tensor.itemsize} bytes. "
            "Use the same version of torch and datapipes in all processes."
        )
    return tensor.view(dtype)


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # tensor subclasses without storage raise
        return False
