"""Tensors in memory that other processes map in either way: by torch.multiprocessing, and by our handles.

The memory is a memfd, as for every handle (`_core.SharedMemory`), so its size is not limited by /dev/shm. Torch maps
the same descriptor as the storage of the tensor, and passes that descriptor on, so neither way copies. Only torch's
mapping is touched: a page that is touched in two mappings would count twice as resident memory.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.torch_storage import memory_of_storage, storage_in


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> Tensor:
    """Return a contiguous tensor of zeros in new shared memory; an ordinary one if it has no values.

    Args:
        who: names the caller in the error.
    Raises:
        MemoryError: Too little memory is left. All of it is reserved here, so a later write cannot fail.
        OSError: The system refuses, such as for want of descriptors.
    """
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    return shared_with_memory(shape, dtype, who)[0]


def shared_with_memory(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> tuple[Tensor, _core.SharedMemory]:
    """Return a tensor as `shared_empty` does, which has values, and its memory.

    The values may be written with `os.pwrite` to the descriptor of the memory. That takes half the time of writing to
    fresh memory through the tensor: no page is filled with zeros before, and none is mapped.
    """
    memory = _core.SharedMemory.create(math.prod(shape) * dtype.itemsize, who)
    return _tensor_of(memory, shape, dtype), memory


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
    if tensor.numel() == 0 or memory_of_storage(tensor) is not None:
        return tensor
    return shared_empty(tuple(tensor.shape), tensor.dtype, who).copy_(tensor)


def _tensor_of(memory: _core.SharedMemory, shape: tuple[int, ...], dtype: torch.dtype, first: int = 0) -> Tensor:
    """Return a contiguous tensor in a memory, from its value number `first` on."""
    form = torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty(0, dtype=dtype).set_(storage_in(memory), first, form.shape, form.stride())
