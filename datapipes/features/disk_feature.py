"""DiskFeature: rows in a file, read when they are asked for, for features that do not fit into memory.

The rows of a minibatch are put into the order of the file, those whose blocks touch are read at once, and many reads
are under way at a time (csrc/disk/read_rows.h). Nothing is mapped: what is read takes no memory but that of the
minibatch, and a file that was cut off is an error, not the end of the process.

Besides .npy there is a form of its own, a `.rows` file, for rows that are stored with fewer bits: a line of JSON, the
scale of each column for int8, and the rows from a multiple of 4,096 bytes on. The reader checks the sizes in the line
against the file, and unpickles nothing.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_bool, check_index_tensor, check_int, dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.base.folder import check_space, room_told
from datapipes.base.records import OMITTED, Count, from_json, to_json
from datapipes.base.rows import byte_rows
from datapipes.base.strict_json import parse_strict
from datapipes.features.feature import Feature, check_out
from datapipes.features.stored_values import Encoder, check_stored_as, decode, encode, scale_on
from datapipes.graph.arena import DTYPE, SHAPE
from datapipes.graph.npy import NpyRows, to_numpy

__all__ = ["DiskFeature"]

FORMAT, SUFFIX = "datapipes-rows", ".rows"
BLOCK = 4096  # bytes: a page, and the most that disks read at least
DEPTH, MOST_DEPTH = 64, 256  # reads under way
_MOST_HEADER = 2**16
_PIECE_BYTES = 2**24  # of values that are written at once
_NAMES_A_FILE = ("st_dev", "st_ino", "st_size", "st_mtime_ns")


@dataclass(frozen=True)
class _Header:
    """The first line of a .rows file."""

    format: str
    version: Count
    dtype: Annotated[torch.dtype, DTYPE]  # of the values
    shape: Annotated[tuple[int, ...], SHAPE]
    begin: Count  # of the rows
    stored_as: Annotated[Annotated[torch.dtype, DTYPE] | None, OMITTED] = None


class DiskFeature(Feature):
    """Rows of a file, which are read from the disk when they are asked for.

    Several minibatches are read at once, see Feature.reads_async. A copy in another process opens the file anew.
    `update` writes rows where they are in the file. This machine sees them at once; the disk has them after `flush`. A
    kill or a full disk during an update leaves some rows new and one, perhaps, half new. To other DiskFeatures of the
    file it has changed.

    Args:
        path: a .npy file in C's order, or a .rows file, which `DiskFeature.write` makes.
        num_threads: reads under way at a time, 1 to 256; by default 64.
        direct: read past the page cache (O_DIRECT). None: where the disk allows it and the file is larger than the
            memory that is left; False: never; True: an error where the disk does not allow it.
    Raises:
        ValueError: The file is none of these, was cut off, or has changed since it was opened first.
        OSError: It cannot be opened or read.

    Attributes:
        stored_as, scale: as those of a TensorFeature.
    """

    reads_async = True
    _hidden = frozenset({"write_rows"})

    def __init__(self, path: str | Path, *, num_threads: int | None = None, direct: bool | None = None) -> None:
        self.path = Path(path)
        self._depth = (
            DEPTH if num_threads is None else check_int("DiskFeature", "num_threads", num_threads, 1, MOST_DEPTH)
        )
        self._direct = None if direct is None else check_bool("DiskFeature", "direct", direct)
        self.stored_as: torch.dtype | None = None
        self.scale: Tensor | None = None
        self._scales: dict[torch.device, Tensor] = {}
        if self.path.suffix == SUFFIX:
            self._shape, self._dtype, self._begin = self._read_header()
        else:
            rows = NpyRows("DiskFeature", self.path)
            if rows.is_transposed or not rows.shape:
                raise ValueError(
                    f"DiskFeature: {path} has shape {list(rows.shape)} in Fortran's order or without rows; rows in C's "
                    "order are needed. Write it with numpy.ascontiguousarray."
                )
            self._shape, self._begin = rows.shape, rows.begin
            self._dtype = torch.from_numpy(np.empty(0, rows.dtype)).dtype
        self._file = os.stat(self.path)
        self._counts = np.zeros(4, np.int64)
        self._use_descriptor()

    @classmethod
    def write(
        cls, path: str | Path, values: Any, *, stored_as: torch.dtype | str | None = None, **options: Any
    ) -> DiskFeature:
        """Write a .rows file, and return the feature that reads it.

        Args:
            path: ends in ".rows"; a file that is there stays until the new one is whole.
            values: [count, *shape], which may be mapped; or a callable that returns an iterable of such pieces, anew
                each time: for int8 it is called twice.
            stored_as: see TensorFeature.
            options: of the feature.
        Raises:
            ValueError: The pieces differ in shape or dtype, or hold what `stored_as` cannot.
            OSError: The disk is full, or the file cannot be written.
        """
        target = Path(path)
        if target.suffix != SUFFIX:
            raise ValueError(f"DiskFeature.write: path must end in {SUFFIX!r}, got {shown(str(path))}. Rename it.")
        pieces = _pieces_of(values)
        first = next(iter(pieces()), None)
        if first is None:
            raise ValueError("DiskFeature.write: there are no pieces, so no dtype and no shape. Give at least one.")
        dtype, shape = first.dtype, tuple(first.shape[1:])
        kept_as = check_stored_as("DiskFeature.write", stored_as, dtype)
        encoder = None if kept_as is None else Encoder("DiskFeature.write", kept_as)
        scale = None
        if encoder is not None:
            for piece in pieces() if encoder.needs_scale else ():
                if piece.shape[0] > 0:
                    encoder.look(_like(piece, dtype, shape))
            scale = encoder.scale(shape, first.device)
        begin = -(-(_MOST_HEADER + (0 if scale is None else scale.numel() * 4)) // BLOCK) * BLOCK
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with room_told("DiskFeature.write", target), partial.open("wb") as file:
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
                header = _Header(FORMAT, 1, dtype, (count, *shape), begin, kept_as)
                line = json.dumps(to_json(header)).encode()
                file.write(line + b" " * (_MOST_HEADER - 1 - len(line)) + b"\n")
                if scale is not None:
                    file.write(scale.cpu().numpy().tobytes())
                file.truncate(begin + count * math.prod(shape) * (kept_as or dtype).itemsize)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return cls(target, **options)

    def _read_header(self) -> tuple[tuple[int, ...], torch.dtype, int]:
        """Take what the first line of a .rows file says; return shape, dtype of the values, where the rows begin."""
        with open_regular(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            line = file.read(_MOST_HEADER)
            try:
                header = from_json(_Header, "the first line", parse_strict(line.rstrip(b" \n").decode()))
                if (header.format, header.version) != (FORMAT, 1) or not header.shape:
                    raise ValueError(f"format {shown(header.format)} version {header.version}")
                if header.stored_as is not None:
                    check_stored_as("DiskFeature", header.stored_as, header.dtype)
                stored = header.stored_as or header.dtype
                of_scale = (
                    math.prod(header.shape[1:]) * 4 if stored == torch.int8 and header.stored_as is not None else 0
                )
                needed = header.begin + math.prod(header.shape) * stored.itemsize
                if header.begin % BLOCK or header.begin < _MOST_HEADER + of_scale or needed != size:
                    raise ValueError(f"rows [{header.begin}, {needed}) in {size} bytes")
                if of_scale:
                    scale = np.frombuffer(file.read(of_scale), np.float32).copy()
                    self.scale = torch.from_numpy(scale).reshape(header.shape[1:])
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise ValueError(
                    f"DiskFeature: {self.path} is no whole file of DiskFeature.write: {shown(error)}. Write it again."
                ) from error
        self.stored_as = header.stored_as
        return header.shape, header.dtype, header.begin

    # --- the open file

    def _use_descriptor(self) -> None:
        """Open the file in this process, and see whether it is the one that was opened first."""
        file = open_regular(self.path)
        with file:
            self._refuse_change(file.fileno())
            self._reads_direct, self._descriptor = False, -1
            if self._direct is not False:
                self._open_direct()
            if self._descriptor < 0:
                self._descriptor = os.dup(file.fileno())
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        weakref.finalize(self, os.close, self._descriptor)

    def _open_direct(self) -> None:
        if self._direct is None and self._file.st_size <= _core.memory_left()[0]:
            return
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            self._reads_direct = True
        except OSError as error:
            if self._direct:
                raise type(error)(
                    error.errno,
                    f"DiskFeature: direct=True, but {self.path} cannot be read past the page cache: {error.strerror}. "
                    "Leave direct out",
                ) from error

    def _refuse_change(self, descriptor: int | None = None) -> None:
        """Raise ValueError if the file is not as it was when it was opened first, or last updated."""
        found = os.fstat(self._descriptor if descriptor is None else descriptor)
        if any(getattr(found, name) != getattr(self._file, name) for name in _NAMES_A_FILE):
            raise ValueError(
                f"DiskFeature: {self.path} has changed since it was opened: {found.st_size} bytes, it had "
                f"{self._file.st_size}. Make a new feature of it."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptor": -1, "_scales": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use_descriptor()

    # --- reads

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read; of a stored form float32 values, those of a TensorFeature.

        Raises:
            ValueError: The file has changed, or was cut off, since it was opened.
            OSError: The disk does not give what it has.
        """
        if self.stored_as is None:
            return self.read_stored(ids, out)
        if out is not None:
            check_out("DiskFeature", out, ids.shape[0], self.shape, self.dtype)
        values = self.decode(self.read_stored(ids))
        return values if out is None else out.copy_(values)

    def read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as they lie in the file; errors as those of `read`."""
        wanted, dtype = check_index_tensor("DiskFeature", "ids", ids), self.stored_dtype
        if out is not None:
            check_out("DiskFeature", out, wanted.shape[0], self.shape, dtype)
        self._refuse_change()
        row_bytes = math.prod(self.shape) * dtype.itemsize
        to = None if out is None or out.numel() == 0 else byte_rows(out)
        rows, reads, num_bytes = _core.read_rows(
            self._descriptor,
            wanted.numpy(),
            begin=self._begin,
            num_rows=self.count,
            row_bytes=row_bytes,
            block=BLOCK,
            direct=self._reads_direct,
            depth=self._depth,
            out=to,
        )
        _core.add_to(self._counts, [wanted.shape[0], wanted.shape[0] * row_bytes, reads, num_bytes])
        if out is not None:
            return out
        if rows.size == 0:
            return torch.empty((wanted.shape[0], *self.shape), dtype=dtype)
        return torch.from_numpy(rows).view(dtype).reshape(wanted.shape[0], *self.shape)

    # --- updates

    def write_rows(self, ids: Tensor, values: Tensor) -> None:
        rows, where = values.cpu(), "DiskFeature.update"
        table = byte_rows(rows if self.stored_as is None else encode(where, rows, self.stored_as, self.scale)[0])
        begins = [0, *((ids.diff() != 1).nonzero().flatten() + 1).tolist(), ids.shape[0]]  # of runs
        with self._open_to_write() as descriptor:
            for begin, end in pairwise(begins):
                left, at = table[begin:end].reshape(-1).data, self._begin + int(ids[begin]) * table.shape[1]
                while len(left) > 0:
                    written = os.pwrite(descriptor, left, at)
                    left, at = left[written:], at + written

    @contextmanager
    def _open_to_write(self) -> Iterator[int]:
        """Give a descriptor of the file, if it is still the one that was opened; what is written then belongs to it."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"DiskFeature.update: {self.path} may not be written: {error.strerror}. Allow it, or write a copy",
            ) from error
        try:
            with suppress(OSError):  # some network disks lock nothing
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # one update at a time, of any thread and process
            self._refuse_change(descriptor)
            try:
                yield descriptor
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"DiskFeature.update: {self.path} could not be written whole: {error.strerror}. The first rows, by "
                    "their ids, may be new, one of them in part; make room, and update them again",
                ) from error
            finally:
                found = os.fstat(descriptor)
                if found.st_size == self._file.st_size:  # else somebody else has changed it meanwhile
                    self._file = found
        finally:
            os.close(descriptor)

    def flush(self) -> None:
        """Bring what `update` has written to the disk, so that it outlives a machine that stops.

        Raises:
            OSError: The disk fails, or has failed since the feature was opened.
        """
        os.fdatasync(self._descriptor)

    # --- what it is

    def decode(self, rows: Tensor) -> Tensor:
        return rows if self.stored_as is None else decode(rows, scale_on(self.scale, rows.device, self._scales))

    def stats(self) -> dict[str, int]:
        """Return what was read so far: "rows", "row_bytes", "reads" of the disk, and "disk_bytes" of these reads."""
        return dict(zip(("rows", "row_bytes", "reads", "disk_bytes"), self._counts.tolist(), strict=True))

    @property
    def count(self) -> int:
        return self._shape[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape[1:]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def stored_dtype(self) -> torch.dtype:
        return self.stored_as or self._dtype

    def __repr__(self) -> str:
        stored = "" if self.stored_as is None else f", stored as {dtype_name(self.stored_as)}"
        return (
            f"DiskFeature({str(self.path)!r}, {self.count} rows of {dtype_name(self.dtype)} {list(self.shape)}{stored})"
        )


def _pieces_of(values: Any) -> Callable[[], Iterable[Tensor]]:
    if callable(values) and not isinstance(values, Tensor):
        return lambda: (as_tensor("DiskFeature.write", "a piece", piece) for piece in values())
    tensor = as_tensor("DiskFeature.write", "values", values)
    if tensor.ndim == 0:
        raise ValueError(
            "DiskFeature.write: values need at least 1 dimension; the first is the number of rows. Add it."
        )
    return lambda: _cut(tensor)


def _cut(values: Tensor) -> Iterator[Tensor]:
    step = max(1, _PIECE_BYTES // max(math.prod(values.shape[1:]) * values.element_size(), 1))
    for begin in range(0, max(values.shape[0], 1), step):
        yield values[begin : begin + step].resolve_conj().resolve_neg()


def _like(piece: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if piece.dtype != dtype or tuple(piece.shape[1:]) != shape:
        raise ValueError(
            f"DiskFeature.write: a piece has rows of {dtype_name(piece.dtype)} {list(piece.shape[1:])}, the first one "
            f"of {dtype_name(dtype)} {list(shape)}. Give all pieces the same."
        )
    return piece
