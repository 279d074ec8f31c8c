"""A .rows file: rows of a DiskFeature, as they are or stored with fewer bits.

The file has a line of JSON; for int8, the scale of each column; and the rows, which begin at a multiple of 4,096 bytes.
The reader checks the sizes in the line against the file, and unpickles nothing. A file appears whole or not at all.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, dtype_name, reason, shown
from datapipes.base.files import open_regular
from datapipes.base.folder import check_space, room_told
from datapipes.base.records import OMITTED, Count, from_json, to_json
from datapipes.base.strict_json import parse_strict
from datapipes.features.stored_values import Encoder, check_stored_as, pieces_of
from datapipes.graph.arena import DTYPE, SHAPE
from datapipes.graph.npy import to_numpy

FORMAT, SUFFIX = "datapipes-rows", ".rows"
BLOCK = 4096  # bytes: a page, and the largest minimal read of any disk
_MOST_HEADER = 2**16
_PIECE_BYTES = 2**24  # bytes of values that are written at once
_WHERE = "DiskFeature.write"


@dataclass(frozen=True)
class RowsHeader:
    """The first line of a .rows file: what its rows are, and how they are stored."""

    format: str
    version: Count
    dtype: Annotated[torch.dtype, DTYPE]  # of the values
    shape: Annotated[tuple[int, ...], SHAPE]
    begin: Count  # byte at which the rows begin
    stored_as: Annotated[Annotated[torch.dtype, DTYPE] | None, OMITTED] = None


def read_header(path: Path) -> tuple[RowsHeader, Tensor | None]:
    """Return (header, scale) of a .rows file: its first line, and the scale of each column, None unless int8.

    Raises:
        ValueError: The file is no whole .rows file.
        OSError: The file cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        line = file.read(_MOST_HEADER)
        try:
            header = from_json(RowsHeader, "the first line", parse_strict(line.rstrip(b" \n").decode()))
            if (header.format, header.version) != (FORMAT, 1) or not header.shape:
                raise ValueError(
                    f"format {shown(header.format)} version {header.version} with shape {list(header.shape)}; needed: "
                    f"{FORMAT!r} version 1 with 1 dimension or more"
                )
            if header.stored_as is not None:
                check_stored_as("DiskFeature", header.stored_as, header.dtype)
            stored, is_scaled = header.stored_as or header.dtype, header.stored_as == torch.int8
            of_scale = math.prod(header.shape[1:]) * 4 if is_scaled else 0
            needed = header.begin + math.prod(header.shape) * stored.itemsize
            if header.begin % BLOCK or header.begin < _MOST_HEADER + of_scale or needed != size:
                raise ValueError(f"the rows take bytes {header.begin} to {needed}, the file has {size} bytes")
            scale = np.frombuffer(file.read(of_scale), np.float32).copy() if of_scale else None
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"DiskFeature: {path} is no whole file of DiskFeature.write: {reason(error)} Write it again."
            ) from error
    return header, None if scale is None else torch.from_numpy(scale).reshape(header.shape[1:])


def write_rows_file(path: str | Path, values: Any, stored_as: torch.dtype | str | None) -> Path:
    """Write a .rows file and return its path; see DiskFeature.write."""
    target = Path(path)
    if target.suffix != SUFFIX:
        raise ValueError(f"{_WHERE}: path must end in {SUFFIX!r}, got {shown(str(path))}. Rename it.")
    pieces = _pieces_of(values)
    first = next(iter(pieces()), None)
    if first is None:
        raise ValueError(f"{_WHERE}: there are no pieces, so no dtype and no shape. Give at least one.")
    dtype, shape = first.dtype, tuple(first.shape[1:])
    kept_as = check_stored_as(_WHERE, stored_as, dtype)
    encoder = None if kept_as is None else Encoder(_WHERE, kept_as)
    scale = None
    if encoder is not None:
        for piece in pieces() if encoder.needs_scale else ():
            encoder.look(_like(piece, dtype, shape))
        scale = encoder.scale(shape, first.device)
    begin = -(-(_MOST_HEADER + (0 if scale is None else scale.numel() * 4)) // BLOCK) * BLOCK
    with room_told(_WHERE, target), _replacing(target) as file:
        count = 0
        file.seek(begin)
        for piece in pieces():
            stored = _like(piece, dtype, shape).cpu().contiguous()
            if encoder is not None:
                into = torch.empty(stored.shape, dtype=encoder.stored_as)
                encoder.store(stored, into)
                stored = into
            check_space(target.parent, stored.numel() * stored.element_size(), target)
            file.write(to_numpy(stored).reshape(-1).view(np.uint8).data)
            count += stored.shape[0]
        file.seek(0)
        header = RowsHeader(FORMAT, 1, dtype, (count, *shape), begin, kept_as)
        line = json.dumps(to_json(header)).encode()
        file.write(line + b" " * (_MOST_HEADER - 1 - len(line)) + b"\n")
        if scale is not None:
            file.write(scale.cpu().numpy().tobytes())
        file.truncate(begin + count * math.prod(shape) * (kept_as or dtype).itemsize)
    return target


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """Context manager: give an empty file that replaces `target` at the end of the `with` block; an error removes it.

    Only one process can write the new file at a time. A new file that a killed process has left is overwritten.

    Raises:
        BlockingIOError: Another process is writing the new file.
    """
    partial = target.with_name(f".{target.name}.new")
    with open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), partial.stat())  # else it was just moved to `target`
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:
            raise BlockingIOError(
                errno.EAGAIN, f"{_WHERE}: another process is writing the file. Wait for its end", str(target)
            )
        try:
            file.truncate(0)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _pieces_of(values: Any) -> Callable[[], Iterable[Tensor]]:
    if isinstance(values, (list, tuple, Iterator)):
        raise TypeError(
            f"{_WHERE}: values must be a tensor, an array or a function that returns an iterable of pieces, got "
            f"{type(values).__name__}. Pass a function that returns a new iterable at each call."
        )
    if callable(values) and not isinstance(values, Tensor):
        return lambda: (as_tensor(_WHERE, "a piece", piece) for piece in values())
    tensor = as_tensor(_WHERE, "values", values)
    if tensor.ndim == 0:
        raise ValueError(f"{_WHERE}: values must have at least 1 dimension, the rows, got none. Call .reshape(1).")
    return lambda: (piece.resolve_conj().resolve_neg() for _, piece in pieces_of(tensor, _PIECE_BYTES))


def _like(piece: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if piece.dtype != dtype or tuple(piece.shape[1:]) != shape:
        raise ValueError(
            f"{_WHERE}: a piece has rows of {dtype_name(piece.dtype)} {list(piece.shape[1:])}, the first one "
            f"of {dtype_name(dtype)} {list(shape)}. Give all pieces rows of one dtype and shape."
        )
    return piece
