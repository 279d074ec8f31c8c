"""DiskFeature: rows in a file, read on demand, for features that do not fit into memory.

The rows of a minibatch are put into the order of the file, rows in touching blocks are read at once, and many reads are
under way at a time (csrc/disk/read_rows.h). Nothing is mapped: reads take only the memory of the minibatch, and a
truncated file is an error, not the end of the process.

Besides .npy files it reads `.rows` files, whose rows may be stored with fewer bits (rows_file.py).
"""

from __future__ import annotations

import errno
import math
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_bool, check_index_tensor, check_int
from datapipes.base.files import lock_within, open_regular
from datapipes.base.rows import byte_rows
from datapipes.features.feature import StoredFeature, check_out, read_decoded
from datapipes.features.rows_file import BLOCK, SUFFIX, read_header, write_rows_file
from datapipes.features.stored_values import encode
from datapipes.graph.npy import NpyRows
from datapipes.processes.mappings import identity_of

__all__ = ["DiskFeature"]

DEPTH, MOST_DEPTH = 64, 256  # reads under way at a time
_LOCK_S = 60  # how long to wait for another update of the file


class DiskFeature(StoredFeature):
    """Rows of a file, read from the disk on demand.

    Several minibatches are read at once, see Feature.reads_async. A copy in another process opens the file anew.
    `update` overwrites rows in the file. This machine reads the new rows at once; they are safely on the disk after
    `flush`. A kill or a full disk during an update leaves some rows new and perhaps one row half new. Other
    DiskFeatures of the file raise ValueError after an update, since their file has changed.

    Args:
        path: a .npy file in C's order, or a .rows file, which `DiskFeature.write` makes.
        num_threads: reads under way at a time, 1 to 256; by default 64.
        direct: True: read past the page cache (O_DIRECT); an error if the disk does not allow this. False: read through
            the page cache. None: read past it if the disk allows this and the file exceeds the memory that is left.
    Raises:
        ValueError: The file is neither kind of file, was cut off, or has changed since it was first opened.
        OSError: The file cannot be opened or read.

    Attributes:
        stored_as: dtype of the rows in the file; None if it is the dtype of the values.
        scale: float32 [*shape], the factors of stored int8 values; else None.
    """

    reads_async = True

    def __init__(self, path: str | Path, *, num_threads: int | None = None, direct: bool | None = None) -> None:
        self.path = Path(path)
        num_threads = DEPTH if num_threads is None else num_threads
        self._depth = check_int("DiskFeature", "num_threads", num_threads, 1, MOST_DEPTH)
        self._direct = None if direct is None else check_bool("DiskFeature", "direct", direct)
        self._scales: dict[torch.device, Tensor] = {}
        if self.path.suffix == SUFFIX:
            header, self.scale = read_header(self.path)
            self.stored_as, self._shape = header.stored_as, header.shape
            self._dtype, self._begin = header.dtype, header.begin
        else:
            rows = NpyRows("DiskFeature", self.path)
            if rows.is_transposed or not rows.shape:
                raise ValueError(
                    f"DiskFeature: {path} has shape {list(rows.shape)}, and is in Fortran's order or has no rows; rows "
                    "in C's order are needed. Write numpy.ascontiguousarray of the array."
                )
            self._shape, self._begin = rows.shape, rows.begin
            self._dtype = torch.from_numpy(np.empty(0, rows.dtype)).dtype
        self._file = os.stat(self.path)
        self._is_updated = False  # whether a thread of this process updates the file now
        self._counts = np.zeros(4, np.int64)
        self._use_descriptor()

    @classmethod
    def write(
        cls, path: str | Path, values: Any, *, stored_as: torch.dtype | str | None = None, **options: Any
    ) -> DiskFeature:
        """Write a .rows file, and return the feature that reads it.

        Args:
            path: ends in ".rows"; an existing file stays until the new one is whole.
            values: [count, *shape], which may be mapped; or a callable that returns a new iterable of pieces at each
                call. It is called twice, for int8 three times.
            stored_as: see TensorFeature.
            options: `num_threads` and `direct` of the returned feature.
        Raises:
            ValueError: The pieces differ in shape or dtype, or have values that `stored_as` cannot hold.
            OSError: The disk is full, or the file cannot be written.
        """
        return cls(write_rows_file(path, values, stored_as), **options)

    # --- the open file

    def _use_descriptor(self) -> None:
        """Open the file in this process, and check that it is the same file as when the feature was built."""
        file = open_regular(self.path)
        with file:
            self._refuse_change(file.fileno())
            descriptor = self._open_direct()
            self._reads_direct = descriptor is not None
            if descriptor is None:
                descriptor = os.dup(file.fileno())
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            self._descriptor = descriptor
        weakref.finalize(self, os.close, self._descriptor)

    def _open_direct(self) -> int | None:
        """Return a descriptor that reads past the page cache (O_DIRECT). None: that is not wanted, or the disk does not
        allow it.
        """
        is_wanted = self._file.st_size > _core.memory_left()[0] if self._direct is None else self._direct
        if not is_wanted:
            return None
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if self._direct:
                raise type(error)(
                    error.errno,
                    f"DiskFeature: direct=True, but {self.path} cannot be read past the page cache: {error.strerror}. "
                    "Leave direct out",
                ) from error
            return None

    def _refuse_change(self, descriptor: int | None = None) -> None:
        """Raise ValueError if the file has changed since it was first opened, or last updated through this feature.
        Raise RuntimeError if another thread is updating it through this feature.
        """
        opened = self._descriptor if descriptor is None else descriptor
        if identity_of(os.fstat(opened)) == identity_of(self._file):
            return
        if self._is_updated:
            raise RuntimeError(
                f"DiskFeature: another thread updates {self.path} through this feature, and no rows may be read "
                "meanwhile. Read them when its call of update has returned."
            )
        status = os.fstat(opened)  # again: an update may have ended since
        if identity_of(status) != identity_of(self._file):
            raise ValueError(
                f"DiskFeature: {self.path} has changed since it was opened: it has {_bytes_and_time(status)}; it "
                f"had {_bytes_and_time(self._file)}. Make a new feature of the file."
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "path": self.path.absolute(), "_descriptor": -1, "_scales": {}, "_is_updated": False}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use_descriptor()

    # --- reads

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read; rows stored with fewer bits are decoded as by TensorFeature.

        Raises:
            ValueError: The file has changed, or was cut off, since it was opened.
            RuntimeError: Another thread is updating the file through this feature.
            OSError: The disk fails.
        """
        return read_decoded("DiskFeature", self, ids, out)

    def _read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as they lie in the file; errors as in `read`."""
        wanted, dtype = check_index_tensor("DiskFeature", "ids", ids, is_kept=False), self._stored_dtype
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
        begins = [0, *((ids.diff() != 1).nonzero().flatten() + 1).tolist(), ids.shape[0]]  # of runs of ids
        with self._open_to_write() as descriptor:
            for begin, end in pairwise(begins):
                left, at = table[begin:end].reshape(-1).data, self._begin + int(ids[begin]) * table.shape[1]
                while len(left) > 0:
                    written = os.pwrite(descriptor, left, at)
                    left, at = left[written:], at + written

    @contextmanager
    def _open_to_write(self) -> Iterator[int]:
        """Context manager: yield a file descriptor for overwriting rows. After writes in its `with` block, this feature
        does not raise that the file has changed.

        Raises:
            ValueError: The file has changed since it was opened.
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise type(error)(
                error.errno,
                f"DiskFeature.update: {self.path} may not be written: {error.strerror}. Allow it, or write a copy",
            ) from error
        try:
            is_free = True
            with suppress(OSError):  # some network disks lock nothing
                is_free = lock_within(descriptor, _LOCK_S)  # one update at a time, of any thread and process
            if not is_free:
                raise BlockingIOError(
                    errno.EAGAIN,
                    f"DiskFeature.update: another update of {self.path} has not ended within {_LOCK_S} s. Wait for its "
                    "end, then call update again",
                )
            self._refuse_change(descriptor)
            self._is_updated = True
            try:
                yield descriptor
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"DiskFeature.update: {self.path} could not be written whole: {error.strerror}. The rows with "
                    "the lowest ids may be new, and one of them new in part. Make room, and update all rows again",
                ) from error
            finally:
                status = os.fstat(descriptor)
                if status.st_size == self._file.st_size:  # else another process has changed it meanwhile
                    self._file = status
                self._is_updated = False
        finally:
            os.close(descriptor)

    def flush(self) -> None:
        """Wait until the disk has all rows that `update` wrote, so that they survive a crash of the machine.

        Raises:
            OSError: The disk fails, or has failed since the feature was opened.
        """
        os.fdatasync(self._descriptor)

    # --- properties

    def stats(self) -> dict[str, int]:
        """Return counts so far: "rows" and "row_bytes" that were asked for, "reads" of the disk, and "disk_bytes" that
        they read.
        """
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
    def _stored_dtype(self) -> torch.dtype:
        return self.stored_as or self._dtype

    def __repr__(self) -> str:
        return f"DiskFeature({str(self.path)!r}, {self._form()})"


def _bytes_and_time(status: os.stat_result) -> str:
    return f"{status.st_size} bytes, written at {datetime.fromtimestamp(status.st_mtime):%H:%M:%S.%f}"
