"""Objects for worker processes. Their tensors and arrays travel as handles, so the workers share them without copies.

A handle names memory that another process can map: a part of a memory-mapped file, or a memfd (anonymous memory with a
descriptor, not limited by the size of /dev/shm). A tensor in ordinary memory is copied into a memfd once, however many
processes read it. A handle is valid only in processes that this one starts.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import threading
import warnings
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from datapipes import _core

SMALL = 2**15  # bytes; a tensor up to this size travels by value, since a mapping of its own costs more
MOST_MEMORIES = 128  # memfds per packed object; a process can be sent 256 descriptors when it starts
LARGE = 2**22  # bytes; huge pages pay from this size on
_Address = tuple[int, int, int, int]  # identifies the content of a file: device, inode, size, time of change


@dataclass(frozen=True)
class _File:
    """A mapped file: its path, and the identity it had when it was mapped."""

    path: str
    identity: _Address

    def open(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        if _identity(os.fstat(descriptor)) != self.identity:
            os.close(descriptor)
            raise ValueError(
                f"datapipes: {self.path} has changed since it was mapped; workers would read another graph than the "
                "process that started them. Open it again, and write to new files instead of changing one."
            )
        return descriptor


_Mapped = Any  # memory that another process can map too: an mmap.mmap of a file, or a _core.SharedMemory


class _Mapping:
    """The address and size of a mapping in this process, and the file it maps (None for a SharedMemory)."""

    def __init__(self, mapped: _Mapped, file: _File | None = None, offset: int = 0) -> None:
        self.address = np.frombuffer(mapped, np.uint8).ctypes.data
        self.num_bytes = len(mapped)
        self.file = file
        self.offset = offset  # of the first byte within the file

    def holds(self, address: int, num_bytes: int) -> bool:
        return self.address <= address and address + num_bytes <= self.address + self.num_bytes


_mappings: weakref.WeakKeyDictionary[_Mapped, _Mapping] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class _Handle:
    """A tensor by its place and form. `source` is a file, or an index into the memories of the same `Packed`."""

    source: _File | int
    num_bytes: int  # length that the mapping needs at least
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    as_array: bool


class Packed:
    """A pickled object and the shared memories it refers to. Copies neither."""

    def __init__(self, data: bytes, memories: list[_Mapped]) -> None:
        self.data = data
        self.memories = memories

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that multiprocessing passes to a process it starts."""
        descriptors = [reduction.DupFd(memory.descriptor) for memory in self.memories]
        return {"data": self.data, "descriptors": descriptors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data = state["data"]
        self.memories = [_known(_core.SharedMemory.attach(given.detach())) for given in state["descriptors"]]

    def unpack(self) -> Any:
        """Return the object, with its tensors mapped."""
        return _Unpickler(io.BytesIO(self.data), self.memories).load()


def pack(value: Any) -> Packed:
    """Return `value` pickled for worker processes, with tensors and arrays in host memory as handles.

    Raises:
        TypeError: It holds a tensor on a GPU.
        MemoryError: There is no room for the shared copy of a tensor in ordinary memory.
        Exception: The error of pickle, if a part of `value` cannot be pickled.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return Packed(buffer.getvalue(), pickler.memories)


def know_mapping(array: np.memmap[Any, Any], opened: BinaryIO | None = None) -> None:
    """Remember which file a memory-mapped array reads, so that workers map it too.

    Call this only for arrays that nobody writes to: an array of mode "c" differs from its file after a write. A file
    that has been removed or replaced since is not remembered, because no other process can map it.

    Args:
        opened: the file that was mapped, still open. Without it, the memory map of this process is searched for the
            file, which takes longer with every mapping.
    """
    mapped = array._mmap  # type: ignore[attr-defined]
    if mapped is None or array.filename is None or mapped in _mappings:
        return
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    path = os.path.abspath(os.fspath(array.filename))
    try:
        identity = _identity(os.stat(path))
        mapping = _Mapping(mapped, _File(path, identity), start)
        if opened is not None:
            is_mapped = identity == _identity(os.fstat(opened.fileno()))
        else:
            is_mapped = _path_at(mapping.address) == os.fsencode(os.path.realpath(path))
        if is_mapped:
            _mappings[mapped] = mapping
    except OSError:
        return


def share_memory(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in memory that workers can map, or `tensor` if it is in such memory already.

    Raises:
        MemoryError: Too little memory is left.
    """
    if tensor.numel() == 0 or _mapping_of(tensor) is not None:
        return tensor
    return _values(_copy(tensor), tensor)


class _Pickler(pickle.Pickler):  # not the one of multiprocessing: there torch puts tensors into /dev/shm
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.memories: list[_Mapped] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> _Handle | None:
        if type(value) is Tensor:
            return self._handle(value, False)
        if isinstance(value, np.ndarray) and type(value) in (np.ndarray, np.memmap):
            return self._handle_of_array(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or not _is_plain(value):
            return NotImplemented
        # Not torch's own way: it pickles the whole storage of a view, and cannot restore uint16 and 8-bit floats.
        values = bytearray(_bits(value.detach().resolve_conj().resolve_neg()).numpy().tobytes())
        return _from_values, (values, value.dtype, tuple(value.shape), value.requires_grad)

    def _handle_of_array(self, array: np.ndarray[Any, Any]) -> _Handle | None:
        if array.dtype.kind not in "biufc" or not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            return None
        if isinstance(array, np.memmap) and array.mode == "r":
            know_mapping(array)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
                return self._handle(torch.from_numpy(np.asarray(array)), True)
        except (TypeError, ValueError):  # a dtype or stride that torch does not have
            return None

    def _handle(self, tensor: Tensor, as_array: bool) -> _Handle | None:
        if tensor.device.type == "cuda":
            raise TypeError(
                f"datapipes: a tensor on {tensor.device}, shape {list(tensor.shape)}, cannot go to a worker process. "
                "Keep the tensors of the stages that run in workers in host memory."
            )
        if not _is_plain(tensor) or tensor.requires_grad or tensor.numel() == 0:
            return None
        tensor = tensor.resolve_conj().resolve_neg()
        found = _mapping_of(tensor)
        if found is None:
            if tensor.nbytes <= SMALL or len(self.memories) >= MOST_MEMORIES:
                return None
            memory = _copied(tensor)
            return self._in_memory(memory, 0, tensor, _contiguous_stride(tensor), as_array)
        mapped, mapping = found
        offset = tensor.data_ptr() - mapping.address + mapping.offset
        if mapping.file is None:
            return self._in_memory(mapped, offset, tensor, tensor.stride(), as_array)
        end = offset + _extent(tensor)
        return _Handle(mapping.file, end, offset, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), as_array)

    def _in_memory(
        self, memory: _Mapped, offset: int, tensor: Tensor, stride: tuple[int, ...], as_array: bool
    ) -> _Handle:
        number = self._numbers.setdefault(id(memory), len(self.memories))
        if number == len(self.memories):
            self.memories.append(memory)
        return _Handle(number, len(memory), offset, tensor.dtype, tuple(tensor.shape), tuple(stride), as_array)


class _Unpickler(pickle.Unpickler):
    """Reads an object that the parent process has packed."""

    def __init__(self, buffer: io.BytesIO, memories: list[_Mapped]) -> None:
        super().__init__(buffer)
        self._mapped: dict[_File | int, _Mapped] = dict(enumerate(memories))

    def persistent_load(self, handle: _Handle) -> Any:
        mapped = self._mapped.get(handle.source)
        if mapped is None or len(mapped) < handle.num_bytes:
            assert isinstance(handle.source, _File)
            mapped = self._mapped[handle.source] = _map(handle.source)
        tensor = _attached(mapped, handle.offset, handle.dtype, handle.shape, handle.stride)
        return tensor.numpy() if handle.as_array else tensor


_copies: weakref.WeakValueDictionary[tuple[Any, ...], _Mapped] = weakref.WeakValueDictionary()
_copying = threading.Lock()


def _copied(tensor: Tensor) -> _Mapped:
    """Return shared memory with the values of `tensor`: an earlier copy if it is still in use, otherwise a new one.

    An earlier copy counts only if its values are equal. tensor._version cannot tell: it does not count writes through
    NumPy or by a worker.
    """
    key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
    with _copying:
        known = _copies.get(key)
        if known is not None and _holds(known, tensor):
            return known
        memory = _copies[key] = _copy(tensor)
        return memory


def _copy(tensor: Tensor) -> _Mapped:
    """Return new shared memory with the values of `tensor`."""
    memory = _known(_core.SharedMemory.create(tensor.nbytes, "datapipes"))
    _values(memory, tensor).copy_(tensor)
    if tensor.nbytes >= LARGE:  # takes seconds, so it runs while the workers start
        threading.Thread(target=memory.use_huge_pages, name="datapipes-huge-pages", daemon=True).start()
    return memory


def _holds(memory: _Mapped, tensor: Tensor) -> bool:
    return torch.equal(_bits(_values(memory, tensor)), _bits(tensor))


def _values(memory: _Mapped, tensor: Tensor) -> Tensor:
    """Return the content of shared memory as a tensor with the dtype and shape of `tensor`, contiguous."""
    return _attached(memory, 0, tensor.dtype, tuple(tensor.shape), None)


def _bits(tensor: Tensor) -> Tensor:
    """Return the bits of `tensor` as integers, so that NaN equals NaN and -0.0 differs from 0.0."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[real.element_size()])


def _map(file: _File) -> mmap.mmap:
    descriptor = file.open()
    try:
        # Copy-on-write: torch treats the memory as writable, and the file must not change.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    _mappings[mapped] = _Mapping(mapped, file)
    return mapped


def _known(memory: _Mapped) -> _Mapped:
    """Register `memory` as a mapping that tensors may lie in, and return it."""
    _mappings[memory] = _Mapping(memory)
    return memory


def _attached(
    mapped: _Mapped, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...] | None
) -> Tensor:
    """Return the tensor at `offset` of a mapping; it keeps the mapping alive. Without a stride it is contiguous."""
    count = (len(mapped) - offset) // dtype.itemsize
    flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset)
    if stride is None:
        return flat[: int(np.prod(shape, dtype=np.int64))].view(shape)
    return flat.as_strided(shape, stride)


def _mapping_of(tensor: Tensor) -> tuple[_Mapped, _Mapping] | None:
    """Return the mapping that holds a tensor, or None if there is none or other processes cannot map it any more."""
    address, num_bytes = tensor.data_ptr(), _extent(tensor)
    for reference in _mappings.keyrefs():  # a list, since other threads map and unmap meanwhile
        mapped = reference()
        mapping = _mappings.get(mapped) if mapped is not None else None
        if mapping is not None and mapping.holds(address, num_bytes):
            if mapping.file is not None and not _is_still(mapping.file):
                return None
            return mapped, mapping
    return None


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _from_values(values: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    """Return a tensor that travelled by value."""
    flat = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
    return flat.view(shape).requires_grad_(requires_grad)


def _path_at(address: int) -> bytes | None:
    """Return the path of the file mapped at `address`; a file that was removed or replaced has another path there."""
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            begin, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split(b"-"))
            if begin <= address < end:
                return line.rstrip(b"\n").split(maxsplit=5)[-1]
    return None


def _extent(tensor: Tensor) -> int:
    """Return the number of bytes from the first value of a tensor to the end of its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (steps + 1) * tensor.element_size()


def _contiguous_stride(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def _identity(status: os.stat_result) -> _Address:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_still(file: _File) -> bool:
    try:
        return _identity(Path(file.path).stat()) == file.identity
    except OSError:
        return False
