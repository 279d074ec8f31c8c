"""Pickles objects for worker processes. A tensor or array is replaced by a handle, so that workers share its memory.

A handle names memory that another process can map: a part of a memory-mapped file, or a memfd (anonymous memory with a
descriptor, not limited by the size of /dev/shm). A tensor in ordinary memory is copied into a memfd once, however many
processes read it; the tensors of a `Together` are copied into one memfd. A handle is valid only in processes that this
process starts.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.processes.copies import bits, copied, copy_together, values_in, zeros_together
from datapipes.processes.mappings import (
    File,
    Mapped,
    Mapping,
    attached,
    contiguous_stride,
    extent,
    identity_of,
    is_remembered,
    known,
    map_file,
    mapping_of,
    remember,
)

SMALL = 2**15  # bytes; a tensor up to this size travels by value, since a mapping of its own costs more
MOST_MEMORIES = 128  # memfds per packed object; a process can be sent 256 descriptors when it starts
_Parts = tuple[bytearray, torch.dtype, tuple[int, ...], bool]  # the arguments of _from_values


def zeros_for_workers(forms: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """Return a tensor of zeros for each (shape, dtype) in `forms`, all in one memory that workers can map.

    If the tensors take SMALL bytes or less together, they lie in ordinary memory.
    """
    if sum(math.prod(shape) * dtype.itemsize for shape, dtype in forms) <= SMALL:
        return [torch.zeros(shape, dtype=dtype) for shape, dtype in forms]
    return zeros_together(forms)


@dataclass(frozen=True)
class _Handle:
    """Says where a tensor lies, and its dtype, shape and stride. A worker makes the tensor from it.

    `source` is a file, or an index into `Packed.memories`; `as_array`: make a NumPy array.
    """

    source: File | int
    num_bytes: int  # the least length of the mapping
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    as_array: bool


class Packed:
    """An object that `pack` has pickled, with the shared memories and mapped files that its handles name."""

    def __init__(self, data: bytes, memories: list[Mapped], files: Iterable[File] = ()) -> None:
        self.data = data
        self.memories = memories
        self.files = [*files]  # known only to the process that packed

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for multiprocessing, which passes it to a process that it starts: data and descriptors."""
        descriptors = [reduction.DupFd(memory.descriptor) for memory in self.memories]
        return {"data": self.data, "descriptors": descriptors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data, self.files = state["data"], []
        self.memories = [known(_core.SharedMemory.attach(descriptor.detach())) for descriptor in state["descriptors"]]

    def unpack(self) -> Any:
        """Make the object again, with its tensors over the mapped memory, and return it."""
        return _Unpickler(io.BytesIO(self.data), self.memories).load()


class Together:
    """A list of tensors that goes to workers in one memory, however many and however small the tensors are.

    An object with many tensors puts a Together into its `__getstate__`. When the object is unpickled, the state has a
    list of the tensors in its place. After copy.copy, which pickles nothing, the state still has the Together;
    iterating over it gives the tensors, too. Plain pickle stores the tensors by value.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        return _tensors_of, ([_by_value(tensor) if _is_simple(tensor) else tensor for tensor in self.tensors],)


class ForWorkers(Together):
    """A Together for tensors that only workers get. Plain pickle and a deep copy have an empty list in its place.

    The tensors are computed from other tensors, which the owner of such a copy may change.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ()


def pack(value: Any) -> Packed:
    """Pickle `value` for worker processes, and return the Packed. Tensors and arrays in host memory become handles.

    Raises:
        TypeError: `value` contains a tensor on a GPU.
        MemoryError: There is no room for the shared copy of a tensor in ordinary memory.
        Exception: The error of pickle, if a part of `value` cannot be pickled.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    return Packed(buffer.getvalue(), pickler.memories, pickler.files)


def know_mapping(array: np.memmap[Any, Any], opened: BinaryIO | None = None) -> None:
    """Register the file that a memory-mapped array reads, so that workers map the file, too.

    Call this only for arrays that nobody writes to: an array of mode "c" differs from its file after a write. A file
    that has been removed or replaced since it was mapped is not registered, because no other process can map it.

    Args:
        opened: the file that was mapped, still open. None: the list of this process's mappings is searched, which takes
            longer.
    """
    mapped = array._mmap  # type: ignore[attr-defined]
    if mapped is None or array.filename is None or is_remembered(mapped):
        return
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    path = os.path.abspath(os.fspath(array.filename))
    try:
        identity = identity_of(os.stat(path))
        mapping = Mapping(mapped, File(path, identity), start)
        if opened is not None:
            is_mapped = identity == identity_of(os.fstat(opened.fileno()))
        else:
            is_mapped = _path_at(mapping.address) == os.fsencode(os.path.realpath(path))
        if is_mapped:
            remember(mapped, mapping)
    except OSError:
        return


def share_memory(tensor: Tensor) -> Tensor:
    """Return a contiguous copy of `tensor` in memory that workers can map.

    If `tensor` is in such memory already, or is empty, it is returned itself.

    Raises:
        MemoryError: Too little memory is left.
    """
    if tensor.numel() == 0 or mapping_of(tensor) is not None:
        return tensor
    return values_in(copy_together([tensor])[0], tensor, 0)


class _Pickler(pickle.Pickler):  # not multiprocessing's, for which torch puts tensors into /dev/shm
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self.memories: list[Mapped] = []
        self.files: set[File] = set()
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> _Handle | None:
        if type(value) is Tensor:
            return self._handle(value, False)
        if isinstance(value, np.ndarray) and type(value) in (np.ndarray, np.memmap):
            return self._handle_of_array(value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Together):
            return list, (self._gathered(value.tensors),)
        return (_from_values, _by_value(value)) if type(value) is Tensor and _is_plain(value) else NotImplemented

    def _gathered(self, tensors: list[Tensor]) -> list[Tensor]:
        """Return `tensors` with those in ordinary memory replaced by copies in shared memory.

        None is replaced if those take SMALL bytes or less together, or if the object that is being pickled uses
        MOST_MEMORIES blocks of shared memory already.
        """
        room = MOST_MEMORIES - len(self.memories)
        ordinary = {
            place: tensor.resolve_conj().resolve_neg()
            for place, tensor in enumerate(tensors)
            if _is_simple(tensor) and tensor.numel() > 0 and mapping_of(tensor) is None
        }
        if room <= 0 or sum(tensor.nbytes for tensor in ordinary.values()) <= SMALL:
            return tensors
        gathered = list(tensors)
        copies = copied([*ordinary.values()], room)
        for (place, tensor), (memory, begin) in zip(ordinary.items(), copies, strict=True):
            gathered[place] = values_in(memory, tensor, begin)
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
        mappable = mapping_of(tensor)
        if mappable is None:
            if tensor.nbytes <= SMALL or len(self.memories) >= MOST_MEMORIES:
                return None
            ((memory, begin),) = copied([tensor], 1)
            return self._in_memory(memory, begin, tensor, contiguous_stride(tensor), as_array)
        mapped, mapping = mappable
        offset = tensor.data_ptr() - mapping.address + mapping.offset
        if mapping.file is None:
            return self._in_memory(mapped, offset, tensor, tensor.stride(), as_array)
        end = offset + extent(tensor)
        self.files.add(mapping.file)
        return _Handle(mapping.file, end, offset, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), as_array)

    def _in_memory(
        self, memory: Mapped, offset: int, tensor: Tensor, stride: tuple[int, ...], as_array: bool
    ) -> _Handle:
        number = self._numbers.setdefault(id(memory), len(self.memories))
        if number == len(self.memories):
            self.memories.append(memory)
        return _Handle(number, len(memory), offset, tensor.dtype, tuple(tensor.shape), tuple(stride), as_array)


class _Unpickler(pickle.Unpickler):
    """Reads an object that the parent process has pickled by `pack`, and makes tensors from its handles."""

    def __init__(self, buffer: io.BytesIO, memories: list[Mapped]) -> None:
        super().__init__(buffer)
        self._mapped: dict[File | int, Mapped] = dict(enumerate(memories))

    def persistent_load(self, handle: _Handle) -> Any:
        mapped = self._mapped.get(handle.source)
        if mapped is None or len(mapped) < handle.num_bytes:
            assert isinstance(handle.source, File)
            mapped = self._mapped[handle.source] = map_file(handle.source)
        tensor = attached(mapped, handle.offset, handle.dtype, handle.shape, handle.stride)
        return tensor.numpy() if handle.as_array else tensor


# --- tensors by value; torch itself pickles the whole storage of a view, and cannot restore uint16 and 8-bit floats


def _by_value(tensor: Tensor) -> _Parts:
    """Return the content of a dense tensor in host memory: the arguments from which `_from_values` makes it again."""
    values = bytearray(bits(tensor.detach().resolve_conj().resolve_neg()).numpy().tobytes())
    return values, tensor.dtype, tuple(tensor.shape), tensor.requires_grad


def _from_values(values: bytearray, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    """Make a tensor from what `_by_value` returned."""
    flat = torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)
    return flat.view(shape).requires_grad_(requires_grad)


def _tensors_of(parts: list[_Parts | Tensor]) -> list[Tensor]:
    """Return a list of tensors from `parts`: each is a tensor itself, or what `_by_value` returned for a tensor."""
    return [part if isinstance(part, Tensor) else _from_values(*part) for part in parts]


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized


def _is_simple(tensor: Tensor) -> bool:
    return type(tensor) is Tensor and _is_plain(tensor) and not tensor.requires_grad


def _path_at(address: int) -> bytes | None:
    """Return the path of the file that is mapped at `address`. None: nothing is mapped there.

    If the file was removed since, the path ends in " (deleted)".
    """
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            begin, end = (int(bound, 16) for bound in line.split(maxsplit=1)[0].split(b"-"))
            if begin <= address < end:
                return line.rstrip(b"\n").split(maxsplit=5)[-1]
    return None
