"""Tensors in memory that other processes map in either way: by torch.multiprocessing, and by our handles.

The memory is a memfd, as for every handle (`_core.SharedMemory`), so its size is not limited by /dev/shm. Torch maps
the same descriptor as the storage of the tensor, and passes that descriptor on, so neither way copies. Only torch's
mapping is touched: a page that is touched in two mappings would count twice as resident memory.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.mappings import Mapping, mapping_of, remember


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> Tensor:
    """Return a contiguous tensor of zeros in new shared memory; an ordinary one if it has no values.

    Its values may be written with `os.pwrite` to the descriptor of the memory (see `mapping_of`). That takes half the
    time of writing to fresh memory through the tensor: no page is filled with zeros before, and none is mapped.

    Args:
        who: names the caller in the error.
    Raises:
        MemoryError: Too little memory is left. All of it is reserved here, so a later write cannot fail.
        OSError: The system refuses, such as for want of descriptors.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    return _tensor_of(_core.SharedMemory.create(num_bytes, who), shape, dtype)


def received_tensor(descriptor: int, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the contiguous tensor that lies `offset` bytes from the begin of a memory of another process of ours.

    Args:
        descriptor: of the memory; it stays the caller's.
    Raises:
        ValueError: It names no such memory, or the tensor does not fit.
        OSError, RuntimeError: The system refuses, such as for want of descriptors.
    """
    memory = _core.SharedMemory.attach(os.dup(descriptor))
    if offset % dtype.itemsize or offset + math.prod(shape) * dtype.itemsize > len(memory):
        raise ValueError(f"datapipes: {list(shape)} {dtype} at byte {offset} of {len(memory)} bytes does not fit.")
    return _tensor_of(memory, shape, dtype, offset // dtype.itemsize)


def shared_tensor(tensor: Tensor, who: str) -> Tensor:
    """Return the values of a dense tensor in such memory: `tensor` itself if it lies there, otherwise a copy.

    What torch.multiprocessing brought from the memory of another process lies there too; nothing is copied.

    Raises:
        MemoryError, OSError: as `shared_empty`.
    """
    if tensor.numel() == 0 or _lies_there(tensor):
        return tensor
    return shared_empty(tuple(tensor.shape), tensor.dtype, who).copy_(tensor)


def _tensor_of(memory: _core.SharedMemory, shape: tuple[int, ...], dtype: torch.dtype, first: int = 0) -> Tensor:
    """Return a contiguous tensor in a memory, from its value number `first` on."""
    made: Any = torch.UntypedStorage  # the stub lacks what torch.multiprocessing calls
    storage: torch.UntypedStorage = made._new_shared_fd_cpu(memory.descriptor, len(memory))  # duplicates the descriptor
    form = torch.empty(shape, dtype=dtype, device="meta")
    tensor = torch.empty(0, dtype=dtype).set_(storage, first, form.shape, form.stride())
    _know(memory, tensor)
    return tensor


def _lies_there(tensor: Tensor) -> bool:
    storage = tensor.untyped_storage()
    if tensor.device.type != "cpu" or not storage.is_shared():
        return False
    if mapping_of(tensor) is not None:
        return True
    strategy = torch.multiprocessing.get_sharing_strategy()  # type: ignore[no-untyped-call]
    if strategy != "file_descriptor":  # then the next call would make a copy
        return False
    descriptor, num_bytes = storage._share_fd_cpu_()
    try:
        memory = _core.SharedMemory.attach(os.dup(descriptor))
    except ValueError:  # memory that torch made: it can be cut, so our handles do not take it
        return False
    if len(memory) != num_bytes:
        return False
    _know(memory, tensor)
    return True


def _know(memory: _core.SharedMemory, tensor: Tensor) -> None:
    """Let handles find the memory at the address of a tensor's storage, as long as the storage lives."""
    storage = tensor.untyped_storage()  # of the tensor: older torch drops another object of the same storage
    remember(memory, Mapping(memory, address=storage.data_ptr()))
    # Torch keeps this object, with what it refers to, until the last tensor has gone.
    storage._datapipes_memory = memory  # type: ignore[attr-defined]
