"""Storages of torch in this package's own shared memory: memfds, each with a `_core.SharedMemory` object.

Which memory a storage maps is asked of the storage each time. It is not remembered with the storage's Python object,
because this object may exist long after the memory was given back: torch.multiprocessing remembers the storages that it
has passed on.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import StorageWeakRef

from datapipes import _core

_Inode = tuple[int, int]  # device and inode
_made: dict[int, Any] = {}  # {address of the C++ object: weak reference of torch} of the storages made here
_attached: weakref.WeakValueDictionary[_Inode, _core.SharedMemory] = weakref.WeakValueDictionary()


def storage_in(memory: _core.SharedMemory) -> torch.UntypedStorage:
    """Return a torch storage over all of `memory`. It has a file descriptor of its own."""
    for address, reference in [*_made.items()]:
        if reference.expired():
            _made.pop(address, None)
    make: Any = torch.UntypedStorage  # the stub lacks the method that torch.multiprocessing calls
    storage: torch.UntypedStorage = make._new_shared_fd_cpu(memory.descriptor, len(memory))
    # As long as this reference exists, no other storage gets the address.
    _made[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    return storage


def memory_of_storage(tensor: Tensor) -> _core.SharedMemory | None:
    """Return the shared memory in which the storage of a tensor lies.

    None: the storage is not in a memory of this package. While the returned object exists, further calls return the
    same object. It has a descriptor of its own.

    Raises:
        OSError: This process may open no more descriptors.
    """
    if tensor.device.type != "cpu" or not (storage := tensor.untyped_storage()).is_shared():
        return None
    # A storage that torch has shared under another strategy has no descriptor, and the next call would copy it.
    strategy = get_sharing_strategy()  # type: ignore[no-untyped-call]
    if storage._cdata not in _made and strategy != "file_descriptor":
        return None
    descriptor, num_bytes = storage._share_fd_cpu_()  # the storage goes on using this descriptor
    if descriptor < 0:  # a storage of torch.from_file
        return None
    status = os.fstat(descriptor)
    inode = status.st_dev, status.st_ino
    memory = _attached.get(inode)
    if memory is None:
        try:
            memory = _core.SharedMemory.attach(os.dup(descriptor))
        except ValueError:  # memory that torch made: it can be truncated, so our handles do not take it
            return None
        _attached[inode] = memory
    return memory if len(memory) == num_bytes else None
