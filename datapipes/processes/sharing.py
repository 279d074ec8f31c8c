"""Objects for worker processes. Their tensors and arrays travel as handles, so the workers share them without copies.

A handle names memory that another process can map: a part of a memory-mapped file, or a memfd (anonymous memory with a
descriptor, not limited by the size of /dev/shm). A tensor in ordinary memory is copied into a memfd once, however many
processes read it; the many tensors of a `Together` are copied into one. A handle is valid only in processes that this
one starts.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import threading
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import reduction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.values import bits, by_value, from_values, tensors_of

SMALL = 2**15  # bytes; a tensor up to this size travels by value, since a mapping of its own costs more
MOST_MEMORIES = 128  # memfds per packed object; a process can be sent 256 descriptors when it starts
ALIGNED = 64  # bytes; where a tensor among others begins
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


class Together:
    """Tensors that go to workers in one memory, however many and however small they are.

    An object with many tensors has one in its state, and finds the list of the tensors there when it is unpickled. By
    plain pickle the tensors travel by value.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors

    def __reduce__(self) -> tuple[Any, ...]:
        return tensors_of, ([by_value(each) if _is_simple(each) else each for each in self.tensors],)


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
    return _values(_copy([tensor])[0], tensor, 0)


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
        if type(value) is Together:
            return list, (self._gathered(value.tensors),)
        return (from_values, by_value(value)) if type(value) is Tensor and _is_plain(value) else NotImplemented

    def _gathered(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return the tensors; those in ordinary memory as copies in one shared memory, unless all are small."""
        room = MOST_MEMORIES - len(self.memories)
        found = {
            place: each.resolve_conj().resolve_neg()
            for place, each in enumerate(tensors)
            if _is_simple(each) and each.numel() > 0 and _mapping_of(each) is None
        }
        if room <= 0 or sum(each.nbytes for each in found.values()) <= SMALL:
            return tensors
        gathered = list(tensors)
        for (place, each), (memory, begin) in zip(found.items(), _copied([*found.values()], room), strict=True):
            gathered[place] = _values(memory, each, begin)
        return gathered

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
            ((memory, begin),) = _copied([tensor], 1)
            return self._in_memory(memory, begin, tensor, _contiguous_stride(tensor), as_array)
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


_Key = tuple[Any, ...]
_copies: weakref.WeakValueDictionary[_Key, _Mapped] = weakref.WeakValueDictionary()
_begins: weakref.WeakKeyDictionary[_Mapped, dict[_Key, int]] = weakref.WeakKeyDictionary()  # of the copies in a memory
_copying = threading.Lock()


def _copied(tensors: list[Tensor], most: int) -> list[tuple[_Mapped, int]]:
    """Return for each tensor a shared memory with its values, and where in it they begin.

    It is an earlier copy if that is still in use. The other tensors are copied together into one new memory; so are all
    if the earlier copies lie in more than `most` memories. An earlier copy counts only if its values are equal.
    tensor._version cannot tell: it does not count writes through NumPy or by a worker.
    """
    named = [((each.data_ptr(), each.dtype, tuple(each.shape), each.stride()), each) for each in tensors]
    with _copying:
        found: dict[_Key, tuple[_Mapped, int]] = {}
        for key, tensor in named:
            known = _copies.get(key)
            if known is not None and torch.equal(bits(_values(known, tensor, _begins[known][key])), bits(tensor)):
                found[key] = known, _begins[known][key]
        if len({id(memory) for memory, _ in found.values()}) > most:
            found = {}
        new = {key: tensor for key, tensor in named if key not in found}
        if new:
            memory, begins = _copy([*new.values()])
            _begins[memory] = dict(zip(new, begins, strict=True))
            for key, begin in _begins[memory].items():
                _copies[key] = memory
                found[key] = memory, begin
        return [found[key] for key, _ in named]


def _copy(tensors: list[Tensor]) -> tuple[_Mapped, list[int]]:
    """Return new shared memory with the values of all tensors, and where in it each begins."""
    begins, end = [], 0
    for tensor in tensors:
        begins.append(-(-end // ALIGNED) * ALIGNED)
        end = begins[-1] + tensor.nbytes
    memory = _known(_core.SharedMemory.create(end, "datapipes"))
    for tensor, begin in zip(tensors, begins, strict=True):
        _values(memory, tensor, begin).copy_(tensor)
    if end >= LARGE:  # takes seconds, so it runs while the workers start
        threading.Thread(target=memory.use_huge_pages, name="datapipes-huge-pages", daemon=True).start()
    return memory, begins


def _values(memory: _Mapped, tensor: Tensor, begin: int) -> Tensor:
    """Return the content of shared memory as a tensor with the dtype and shape of `tensor`, contiguous."""
    return _attached(memory, begin, tensor.dtype, tuple(tensor.shape), _contiguous_stride(tensor))


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
    mapped: _Mapped, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> Tensor:
    """Return the tensor at `offset` of a mapping; it has values, and keeps the mapping alive."""
    count = _steps(shape, stride) + 1  # no more: torch pickles all of it
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=offset).as_strided(shape, stride)


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


def _is_simple(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and _is_plain(tensor) and not tensor.requires_grad


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
    return (_steps(tensor.shape, tensor.stride()) + 1) * tensor.element_size()


def _steps(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Return the number of values from the first to the last."""
    return sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _contiguous_stride(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def _identity(status: os.stat_result) -> _Address:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_still(file: _File) -> bool:
    try:
        return _identity(Path(file.path).stat()) == file.identity
    except OSError:
        return False
