"""The Python half of the message layout in shared memory; csrc/bindings/frame.h has the layout and the C++ half.

The C++ half copies a tensor directly if it is contiguous, in host memory, and of a dtype that DLPack can name. For any
other value it calls `plain`, which returns such a tensor or raises an error that says why the value cannot be sent.
"""

from __future__ import annotations

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
# The public from_dlpack takes objects with __dlpack__. This one takes a capsule.
from_capsule: Callable[[object], Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


def plain(key: Any, value: Any) -> tuple[Tensor, str]:
    """Return (tensor, dtype name): a contiguous tensor of a dtype that DLPack can name, with the values of `value`.

    The name is that of the original dtype if `tensor` is a view of its bits, otherwise "".

    Raises:
        TypeError: The value is not a dense tensor in host memory, or the key is no str; the message says which.
        ValueError: UTF-8 cannot encode the key.
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
    else:
        tensor = value.detach().as_subclass(Tensor).resolve_conj().resolve_neg().contiguous()
        if tensor.numel() > 0 and not _has_memory(tensor):
            raise TypeError(
                f"{where}: {key!r} has no memory, so there are no values to send. Send a tensor with values."
            )
        if tensor.dtype in _HAS_DLPACK:
            return tensor, ""
        return tensor.view(_CARRIERS[tensor.dtype.itemsize]), dtype_name(tensor.dtype)
    raise TypeError(f"{where}: {key!r} has {found}; only dense tensors in host memory can be sent. {remedy}.")


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
