"""Host memory for page-locking: the bytes of a tensor, which may be written, and why CUDA did not lock them."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.processes.mappings import extent, mapping_of

NOT_SUPPORTED = 801  # cudaErrorNotSupported: this driver locks no pages that it may not write
INVALID_VALUE = 1  # cudaErrorInvalidValue: pages of a kind that the driver does not take
_PADDING = 64  # bytes: arrays in one file begin at multiples of it
_ALREADY_REGISTERED = 712  # cudaErrorHostMemoryAlreadyRegistered


class Memory(NamedTuple):
    """The bytes [begin, end) of this process's memory, those of a tensor or of another object.

    Attributes:
        keep: the object that keeps the memory alive.
        address: where the memory of `keep` began when this object was made.
    """

    begin: int
    end: int
    keep: Any
    address: int

    @classmethod
    def of(cls, tensor: Tensor) -> Memory:
        """Return the Memory from the first value of a tensor to its last."""
        storage, begin = tensor.untyped_storage(), tensor.data_ptr()
        return cls(begin, begin + extent(tensor), storage, storage.data_ptr())

    @property
    def is_there(self) -> bool:
        """Whether `keep` still has its memory here; False once a storage has moved (`share_memory_`, `resize_`)."""
        return not isinstance(self.keep, torch.UntypedStorage) or self.keep.data_ptr() == self.address


class Run(NamedTuple):
    """Bytes [begin, end) without a gap, and the memories that lie there, which may overlap."""

    begin: int
    end: int
    memories: list[Memory]


def runs_of(memories: Iterable[Memory]) -> list[Run]:
    """Join memories that overlap, or have only padding between, into ranges of bytes, and return these as Runs.

    The bytes are not rounded to pages, though CUDA locks pages: CUDA takes registered bytes for page-locked, and
    refuses to copy memory that is registered in part. A tensor's first and last page may have bytes of other objects.
    """
    runs: list[Run] = []
    for memory in sorted(memories, key=lambda memory: memory[:2]):
        if runs and memory.begin < runs[-1].end + _PADDING:
            last = runs.pop()
            runs.append(Run(last.begin, max(last.end, memory.end), [*last.memories, memory]))
        else:
            runs.append(Run(memory.begin, memory.end, [memory]))
    return runs


class Mapped(NamedTuple):
    """A range [begin, end) of this process's memory in which all pages are mapped in the same way.

    Attributes:
        may_write: whether the pages may be written.
        is_file: whether the pages are those of a file.
        copies_on_write: whether the file is mapped privately: a page that is written, or locked for writing, becomes a
            copy.
    """

    begin: int
    end: int
    may_write: bool
    is_file: bool
    copies_on_write: bool  # a private mapping of a file: a page locked for writing becomes a copy


def mapped_in(begin: int, end: int) -> list[Mapped]:
    """Return how this process's memory in [begin, end) is mapped, ascending; neighbours of one kind are joined."""
    ranges: list[Mapped] = []
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            bounds, mode, _, _, inode = line.split(maxsplit=5)[:5]
            low, high = (int(bound, 16) for bound in bounds.split(b"-"))
            low, high = max(low, begin), min(high, end)
            if low >= high:
                continue
            is_file = int(inode) != 0
            mapped = Mapped(low, high, b"w" in mode, is_file, is_file and b"p" in mode)
            if ranges and ranges[-1].end == low and ranges[-1][2:] == mapped[2:]:
                mapped = ranges.pop()._replace(end=high)
            ranges.append(mapped)
    return ranges


def refuse_read_only(where: str, tensor: Tensor, is_frozen: bool = False) -> None:
    """Raise ValueError if a tensor in host memory must not be changed in place.

    Such a tensor lies in pages that are mapped for reading, or in a file that other processes map by themselves, so
    that they would miss the change.

    Args:
        is_frozen: whether the owner of the tensor forbids changes.
    """
    begin, mapping = tensor.data_ptr(), mapping_of(tensor)
    is_shared_file = mapping is not None and mapping[1].file is not None
    if is_frozen or is_shared_file or not all(mapped.may_write for mapped in mapped_in(begin, begin + extent(tensor))):
        raise ValueError(
            f"{where}: the rows are read-only, as in a file mapped for reading. Read them into memory, map the "
            "file with mmap_mode='r+', or take a DiskFeature."
        )


def refusal(where: str, code: int, num_bytes: int, before: int, remedy: str) -> Exception:
    """Return the exception to raise if CUDA did not lock `num_bytes` bytes of host memory.

    Args:
        code: the error code of cudaHostRegister.
        before: how many bytes are locked already.
        remedy: what to do, as words for the error.
    """
    if code == NOT_SUPPORTED:
        return RuntimeError(
            f"{where}: {num_bytes} bytes lie in pages that may not be written, as in a file mapped for reading. This "
            f"driver cannot lock such pages (error {code} of cudaHostRegister). Map the file copy-on-write "
            "(np.load(path, mmap_mode='c')), or read it into memory."
        )
    if code == _ALREADY_REGISTERED:
        return RuntimeError(
            f"{where}: other code has registered a part of these {num_bytes} bytes with CUDA (error {code} of "
            "cudaHostRegister); only all or none of them may be registered. Undo that registration first, or let it "
            "cover all bytes."
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if 0 <= limit < before + -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE:
        return MemoryError(
            f"{where}: CUDA cannot lock {num_bytes} bytes (error {code}) beside {before} bytes that are locked "
            f"already; the limit of locked memory is {limit} bytes. Raise the limit (ulimit -l), or {remedy}."
        )
    return RuntimeError(
        f"{where}: CUDA cannot register {num_bytes} bytes of host memory (error {code} of cudaHostRegister). To go on, "
        f"{remedy}."
    )
