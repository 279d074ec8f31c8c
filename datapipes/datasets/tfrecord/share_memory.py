"""share_memory: tensors that other processes map without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from torch import Tensor

from datapipes.base.checks import as_tensor, shown
from datapipes.datasets.tfrecord.torch_memory import shared_tensor

__all__ = ["share_memory"]

_Key = TypeVar("_Key")


@overload
def share_memory(entity: Tensor) -> Tensor: ...
@overload
def share_memory(entity: None) -> None: ...
@overload
def share_memory(entity: Mapping[_Key, Tensor]) -> dict[_Key, Tensor]: ...
def share_memory(entity: Any) -> Any:
    """Return tensors with the values of `entity` in memory that other processes map instead of copying it.

    The memory is a memfd: anonymous, with a descriptor, not limited by the size of /dev/shm, and gone with its last
    user. It passes without a copy through torch.multiprocessing (with its sharing strategy "file_descriptor", which is
    the default of Linux), through an MpChannel, and to the workers of a DataLoader; a ShmChannel copies into its ring,
    as it does with everything. All processes see what one of them writes.

    Args:
        entity: a dense tensor in host memory, a dict of them, or None. It is left as it is.
    Returns:
        Tensors of the same shapes and dtypes, in a dict if a dict was given. A tensor that lies in such memory is
        returned without a copy; so are tensors without values. Copies are contiguous. None for None.
    Raises:
        TypeError: `entity` is something else, or a tensor is sparse or quantised.
        ValueError: A tensor is not in host memory.
        MemoryError: Too little memory is left.
    """
    if entity is None:
        return None
    if isinstance(entity, Mapping):
        return {key: _shared(f"share_memory: the tensor {key!r}", value) for key, value in entity.items()}
    return _shared("share_memory: the tensor", entity)


def _shared(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {shown(value)}. Pass a tensor, a dict of tensors, or None.")
    tensor = as_tensor("share_memory", name.partition(": ")[2], value)
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be in host memory, found it on {tensor.device}. Call .cpu().")
    return shared_tensor(tensor, "share_memory")
