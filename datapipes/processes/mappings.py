"""Mappings: a register of the memory of this process that other processes can map, too, and of the tensors in it.

Such memory is a memory-mapped file or a memfd (anonymous memory with a file descriptor). A mapping stays registered as
long as something uses it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.torch_storage import memory_of_storage

LARGE = 2**22  # bytes; huge pages pay from this size on

_Address = tuple[int, int, int, int]  # identifies the content of a file: device, inode, size, time of change


@dataclass(frozen=True)
class File:
    """A file that was memory-mapped: its path, and device, inode, size and time of change when it was mapped."""

    path: str
    identity: _Address

    def is_still_there(self) -> bool:
        """Return whether the path still leads to the file that was mapped, unchanged."""
        try:
            return identity_of(os.stat(self.path)) == self.identity
        except OSError:
            return False

    def open(self) -> int:
        """Open the file for reading, and return its descriptor. ValueError if it has changed since it was mapped."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if identity_of(os.fstat(descriptor)) != self.identity:
            os.close(descriptor)
            raise ValueError(
                f"datapipes: {self.path} has changed since it was mapped; workers would read another graph than the "
                "process that started them. Open it again, and write to new files instead of changing one."
            )
        return descriptor


Mapped = Any  # memory that another process can map too: an mmap.mmap of a file, or a _core.SharedMemory


class Mapping:
    """Where a mapping lies in this process: its address and size, and the file that it maps.

    The mapping of a SharedMemory has the file None.
    """

    def __init__(self, mapped: Mapped, file: File | None = None, offset: int = 0, address: int | None = None) -> None:
        # `address` is given if the tensors lie in another mapping of the same memory.
        self.address = np.frombuffer(mapped, np.uint8).ctypes.data if address is None else address
        self.num_bytes = len(mapped)
        self.file = file
        self.offset = offset  # of the first byte within the file


_mappings: weakref.WeakKeyDictionary[Mapped, Mapping] = weakref.WeakKeyDictionary()


def map_file(file: File) -> mmap.mmap:
    """Memory-map a file that another process has mapped, and register the mapping.

    ValueError if it has changed since.
    """
    descriptor = file.open()
    try:
        # Copy-on-write: torch treats the memory as writable, and the file must not change.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    remember(mapped, Mapping(mapped, file))
    return mapped


def remember(mapped: Mapped, mapping: Mapping) -> None:
    """Register the mapping of `mapped`, so that `mapping_of` finds it for a tensor that lies in it.

    If it maps a file, also ask the system for huge pages.
    """
    _mappings[mapped] = mapping
    if mapping.file is not None:
        ask_for_huge_pages(mapped)


def ask_for_huge_pages(mapped: mmap.mmap) -> None:
    """Ask the system to use huge pages when parts of a mapped file are read. Nothing is read yet.

    It has an effect only on file systems with huge pages. There, each access to a page that is not in memory reads
    several MiB. So nothing is asked for a file larger than half of the memory left: with small pages, less of the file
    is read.
    """
    if LARGE <= len(mapped) <= _core.memory_left()[0] // 2:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)


def is_remembered(mapped: Mapped) -> bool:
    """Return whether the mapping `mapped` was registered by `remember`."""
    return mapped in _mappings


def known(memory: Mapped) -> Mapped:
    """Register a shared memory as a mapping, as `remember` does, and return it."""
    remember(memory, Mapping(memory))
    return memory


def attached(
    mapped: Mapped, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """Return a tensor over a mapping, from byte `offset` on.

    The tensor must have one value or more. It keeps the mapping alive.
    """
    count = _steps(shape, stride) + 1  # no more values: torch pickles the whole buffer
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset).as_strided(shape, stride)


def mapping_of(tensor: Tensor) -> tuple[Mapped, Mapping] | None:
    """Find the registered memory in which a tensor lies; return (memory, its Mapping).

    None: other processes cannot map the memory. Keep `memory` for as long as you use its descriptor.
    """
    memory = memory_of_storage(tensor)
    if memory is not None:
        return memory, Mapping(memory, address=tensor.untyped_storage().data_ptr())
    address, num_bytes = tensor.data_ptr(), extent(tensor)
    for reference in _mappings.keyrefs():  # a list, since other threads map and unmap meanwhile
        mapped = reference()
        mapping = _mappings.get(mapped) if mapped is not None else None
        if mapping is None or address < mapping.address or address + num_bytes > mapping.address + mapping.num_bytes:
            continue
        return (mapped, mapping) if mapping.file is None or mapping.file.is_still_there() else None
    return None


def extent(tensor: Tensor) -> int:
    """Return how many bytes the values of a tensor span: from the begin of the first value to the end of the last."""
    return (_steps(tensor.shape, tensor.stride()) + 1) * tensor.element_size()


def _steps(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Return how far apart the first and last value of a tensor lie, counted in values; 0 for a tensor of one value."""
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def contiguous_stride(tensor: Tensor) -> tuple[int, ...]:
    """Return the stride that a contiguous tensor of the shape of `tensor` has."""
    return torch.empty(tensor.shape, device="meta").stride()


def identity_of(status: os.stat_result) -> _Address:
    """Return (device, inode, size, time of change) of a file, by which a change of its content is noticed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
