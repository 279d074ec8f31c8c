"""Copies of tensors in shared memory, which worker processes can map. An earlier copy is used again while it exists."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INT_OF_BYTES
from datapipes.processes.mappings import LARGE, Mapped, attached, contiguous_stride, known

ALIGNED = 64  # bytes; a tensor in a shared memory begins at a multiple of this

_Key = tuple[Any, ...]
_copies: weakref.WeakValueDictionary[_Key, Mapped] = weakref.WeakValueDictionary()
_begins: weakref.WeakKeyDictionary[Mapped, dict[_Key, int]] = weakref.WeakKeyDictionary()  # {key: first byte}
_copying = threading.Lock()


def copied(tensors: list[Tensor], most: int) -> list[tuple[Mapped, int]]:
    """Copy tensors into shared memory; return (memory, begin) for each: `memory` has the values from byte `begin` on.

    An earlier copy that is still in use is taken again, if a comparison shows that it has the values of the tensor.
    (tensor._version would not count writes through NumPy or by a worker.) The other tensors are copied together into
    one new memory. If the earlier copies lie in more than `most` memories, all tensors are copied into the new one.
    """
    keys = [(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()) for tensor in tensors]
    by_key = dict(zip(keys, tensors, strict=True))
    with _copying:
        places: dict[_Key, tuple[Mapped, int]] = {}
        for key, tensor in by_key.items():
            memory = _copies.get(key)
            if memory is not None and torch.equal(bits(values_in(memory, tensor, _begins[memory][key])), bits(tensor)):
                places[key] = memory, _begins[memory][key]
        if len({id(memory) for memory, _ in places.values()}) > most:
            places = {}
        new = {key: tensor for key, tensor in by_key.items() if key not in places}
        if new:
            memory, begins = copy_together([*new.values()])
            _begins[memory] = dict(zip(new, begins, strict=True))
            for key, begin in _begins[memory].items():
                _copies[key] = memory
                places[key] = memory, begin
        return [places[key] for key in keys]


def copy_together(tensors: list[Tensor]) -> tuple[Mapped, list[int]]:
    """Copy all tensors into one new shared memory; return (memory, list of the byte at which each tensor begins)."""
    begins, end = _begins_of([tensor.nbytes for tensor in tensors])
    memory = _new_memory(end)
    for tensor, begin in zip(tensors, begins, strict=True):
        values_in(memory, tensor, begin).copy_(tensor)
    _use_huge_pages(memory)
    return memory, begins


def zeros_together(forms: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
    """Return a tensor of zeros for each (shape, dtype) in `forms`, all in one new shared memory that workers can map.

    The memory exists as long as one of the tensors. When a tensor is sent to a worker, it is not copied.

    Raises:
        MemoryError: Too little memory is left.
    """
    models = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in forms]
    begins, end = _begins_of([model.nbytes for model in models])
    memory = _new_memory(max(end, 1))
    _use_huge_pages(memory)
    made = zip(models, begins, strict=True)
    return [
        values_in(memory, model, begin) if model.numel() > 0 else torch.empty(model.shape, dtype=model.dtype)
        for model, begin in made
    ]


def _new_memory(num_bytes: int) -> Mapped:
    return known(_core.SharedMemory.create(num_bytes, "datapipes", num_bytes >= LARGE))


def _use_huge_pages(memory: Mapped) -> None:
    if len(memory) >= LARGE:  # takes seconds, so it runs while the workers start
        threading.Thread(target=memory.use_huge_pages, name="datapipes-huge-pages", daemon=True).start()


def _begins_of(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Lay out tensors of `sizes` bytes in one memory, and return (begins, end).

    begins: the byte at which each tensor begins, aligned; end: the byte at which the last tensor ends.
    """
    begins, end = [], 0
    for size in sizes:
        begins.append(-(-end // ALIGNED) * ALIGNED)
        end = begins[-1] + size
    return begins, end


def values_in(memory: Mapped, tensor: Tensor, begin: int) -> Tensor:
    """Return a contiguous tensor over the shared memory, from byte `begin` on, with the dtype and shape of `tensor`."""
    return attached(memory, begin, tensor.dtype, tuple(tensor.shape), contiguous_stride(tensor))


def bits(tensor: Tensor) -> Tensor:
    """Return the bits of `tensor` as integers. If these are compared, NaN equals NaN, and -0.0 differs from 0.0."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(INT_OF_BYTES[real.element_size()])
