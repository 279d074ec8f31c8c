"""Tensors in memory that other processes map in either way: by torch.multiprocessing, and by our handles.

The memory is a memfd, as for every handle (`_core.SharedMemory`), so its size is not limited by /dev/shm. Torch maps
the same descriptor as the storage of the tensor, and passes that descriptor on, so neither way copies. Only torch's
mapping is touched: a page that is touched in two mappings would count twice as resident memory.
"""

from __future__ import annotations

import fcntl
import math
import os
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.sizes import check_memory
from datapipes.processes.mappings import Mapping, mapping_of, remember


def shared_empty(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> Tensor:
    """Return a contiguous tensor of zeros in new shared memory; an ordinary one if it has no values.

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


def shared_unreserved(shape: tuple[int, ...], dtype: torch.dtype, who: str) -> tuple[Tensor, _core.SharedMemory]:
    """Return a tensor as `shared_empty` does, which has values, and its memory, of which nothing is reserved.

    Write all of it with `os.pwrite` to the descriptor of the memory before the tensor is read. That takes half the time
    of a write to fresh memory through the mapping: no page is filled with zeros before, and none is mapped by a fault
    of its own. It raises OSError where memory is short, and a write through the mapping would be a SIGBUS.

    Raises:
        MemoryError: Less memory is left.
        OSError: The system refuses.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    check_memory(who, "the result", num_bytes, "Free memory, or load less.")
    descriptor = os.memfd_create("datapipes", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, num_bytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        memory = _core.SharedMemory.attach(os.dup(descriptor))
    finally:
        os.close(descriptor)
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
    made: Any = torch.UntypedStorage  # the stub lacks what torch.multiprocessing calls
    storage: torch.UntypedStorage = made._new_shared_fd_cpu(memory.descriptor, len(memory))
    if offset % dtype.itemsize or offset + math.prod(shape) * dtype.itemsize > len(memory):
        raise ValueError(f"datapipes: {list(shape)} {dtype} at byte {offset} of {len(memory)} bytes does not fit.")
    _know(memory, storage)
    form = torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty(0, dtype=dtype).set_(storage, offset // dtype.itemsize, form.shape, form.stride())


def shared_tensor(tensor: Tensor, who: str) -> Tensor:
    """Return the values of a dense tensor in such memory: `tensor` itself if it lies there, otherwise a copy.

    What torch.multiprocessing brought from the memory of another process lies there too; nothing is copied.

    Raises:
        MemoryError, OSError: as `shared_empty`.
    """
    if tensor.numel() == 0 or _lies_there(tensor):
        return tensor
    return shared_empty(tuple(tensor.shape), tensor.dtype, who).copy_(tensor)


def _tensor_of(memory: _core.SharedMemory, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    made: Any = torch.UntypedStorage  # the stub lacks what torch.multiprocessing calls
    storage: torch.UntypedStorage = made._new_shared_fd_cpu(memory.descriptor, len(memory))  # duplicates the descriptor
    _know(memory, storage)
    form = torch.empty(shape, dtype=dtype, device="meta")
    return torch.empty(0, dtype=dtype).set_(storage, 0, form.shape, form.stride())


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
    _know(memory, storage)
    return True


def _know(memory: _core.SharedMemory, storage: torch.UntypedStorage) -> None:
    """Let handles find the memory at the address of the storage, as long as the storage lives."""
    remember(memory, Mapping(memory, address=storage.data_ptr()))
    # Torch keeps the object of a storage, with what it refers to, until the last tensor has gone.
    storage._datapipes_memory = memory  # type: ignore[attr-defined]
