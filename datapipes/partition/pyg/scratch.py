"""Tensors in files of their own: what is written to them stays out of the process's own memory.

The system writes their pages to disk when memory is short. A file loses its name as soon as it is mapped, and no
descriptor is held, since a part of many types needs many tensors. It is gone once its tensor is, or when the process
ends, however it ends.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import bits_of

_MOST_OVERHEAD = 2**20  # of a file of torch.save


def scratch(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros whose memory is a file on the disk of `folder`, which has no name when this returns.

    Raises:
        OSError: The disk is full. The space is taken here: without it, a write to the tensor would kill the process
            (SIGBUS).
    """
    num_bytes = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        # Python and NumPy keep a descriptor for each file that they map; torch maps by name, and keeps none.
        return torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8).view(dtype).view(shape)


def filled(folder: Path, shape: tuple[int, ...], dtype: torch.dtype, pieces: Iterable[Tensor]) -> Tensor:
    """Return a scratch tensor that holds the pieces, one below the other; together they are as long as the tensor."""
    made, begin = scratch(folder, shape, dtype), 0
    for piece in pieces:
        end = begin + piece.shape[0]
        made[begin:end] = piece
        begin = end
    assert begin == shape[0], f"{begin} rows for {shape[0]}"
    return made


def storing(tensor: Tensor) -> Tensor:
    """Return `tensor` with a storage that ends where it ends, since torch.save writes all of a storage.

    A view of the same memory if the values are adjacent there, else a copy.
    """
    return torch.from_numpy(bits_of(tensor.contiguous()).numpy()).view(tensor.dtype)


def save(value: Any, path: Path) -> None:
    """Write dicts of tensors with torch.save.

    Raises:
        OSError: The disk is full, or the file cannot be written. torch says neither: it raises RuntimeError.
    """
    try:
        torch.save(value, str(path))
    except RuntimeError as error:
        path.unlink(missing_ok=True)
        scratch(path.parent, (_num_bytes(value) + _MOST_OVERHEAD,), torch.uint8)  # raises why there is no room
        raise OSError(errno.EIO, f"torch.save failed: {error}", str(path)) from error


def _num_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    return value.nbytes if isinstance(value, Tensor) else 0
