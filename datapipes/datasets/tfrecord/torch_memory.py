"""Tensors in memory that other processes can map in two ways: by torch.multiprocessing or by `_core.SharedMemory`.

The memory is a memfd, as always with `_core.SharedMemory`, so its size is not limited by /dev/shm. Torch maps the same
descriptor as the storage of the tensor, and passes that descriptor on, so neither way copies. Only torch's mapping is
touched: a page touched in two mappings would count twice as resident memory.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.torch_storage import memory_of_storage, storage_in


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> Tensor:
    """Return a contiguous tensor of zeros in new shared memory. An empty tensor is in ordinary memory.

    Args:
        who: names the caller in the error.
    Raises:
        MemoryError: Too little memory is left. The whole tensor is reserved here, so a later write cannot fail.
        OSError: The system refuses, for example since no descriptors are left.
    """
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype)
    return shared_with_memory(shape, dtype, who)[0]


def shared_with_memory(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> tuple[Tensor, _core.SharedMemory]:
    """Return (tensor, memory): a tensor in new shared memory, and this memory. The tensor must not be empty.

    The values may be written with `os.pwrite` to the descriptor of the memory. That takes half the time of writing to
    fresh memory through the tensor: no page is zeroed first, and no page is mapped.
    """
    memory = _core.SharedMemory.create(math.prod(shape) * dtype.itemsize, who)
    return _tensor_of(memory, shape, dtype), memory


def received_tensor(descriptor: int, offset: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return the contiguous tensor at byte `offset` of a memory that came from another process.

    Args:
        descriptor: the descriptor of the memory. It is copied; the caller closes its own.
    Raises:
        ValueError: The descriptor is not of a shared memory, or the tensor does not fit.
        OSError, RuntimeError: The system refuses, for example since no descriptors are left.
    """
    memory = _core.SharedMemory.attach(os.dup(descriptor))
    if offset % dtype.itemsize or offset + math.prod(shape) * dtype.itemsize > len(memory):
        raise ValueError(f"datapipes: {list(shape)} {dtype} at byte {offset} of {len(memory)} bytes does not fit.")
    return _tensor_of(memory, shape, dtype, offset // dtype.itemsize)


def shared_tensor(tensor: Tensor, who: str) -> Tensor:
    """Return a dense tensor in shared memory: `tensor` itself if it is in a memfd already, otherwise a copy.

    A tensor in a memfd stays in it when torch.multiprocessing passes it on. Shared memory that torch made is copied.

    Raises:
        MemoryError, OSError: As for `shared_empty`.
    """
    if tensor.numel() == 0 or memory_of_storage(tensor) is not None:
        return tensor
    return shared_empty(tuple(tensor.shape), tensor.dtype, who).copy_(tensor)


def _tensor_of(memory: _core.SharedMemory, shape: tuple[int, ...], dtype: torch.dtype, first: int = 0) -> Tensor:
    """Return a contiguous tensor in a memory. `first` is the index of its first value, counted in values of `dtype`."""
    form = torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty(0, dtype=dtype).set_(storage_in(memory), first, form.shape, form.stride())
