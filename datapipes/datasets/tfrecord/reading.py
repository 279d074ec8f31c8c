"""Read TFRecord files in parallel, each file in one thread.

Files are read twice: first to count their records, so that the result is allocated at its final size, then to parse
each record into its row of shared memory. The result does not depend on the threads. Every error names the entity, the
file and the record.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from datapipes import _core
from datapipes.base.errors import text_of
from datapipes.base.log import logger
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.tfrecord.spec import WrongRecord
from datapipes.ingest.remote import AnyFile, opened

_T = TypeVar("_T")
_Use = Callable[[memoryview, int], tuple[int, int, str]]  # see Reader._read


class Reader:
    """Reads the TFRecord files of one entity (the nodes or the edges of a type), several at a time.

    Args:
        where: how messages begin; it names the entity.
        most_bytes: the most bytes of a record, framing included.
        num_threads: how many files are read at the same time.
        log_every: number of records between two lines of the log.
    """

    def __init__(self, where: str, most_bytes: int, num_threads: int, log_every: int) -> None:
        self._where = where
        self._most_bytes = most_bytes
        self._num_threads = num_threads
        self._log_every = log_every
        self._lock = threading.Lock()
        self._num_parsed = self._num_records = 0
        self._stopped = threading.Event()

    def counts(self, files: Sequence[AnyFile]) -> list[int]:
        """Return the number of records of each file.

        Raises:
            DatasetFormatError: A file is broken.
            OSError: A file cannot be read.
        """
        return self._side_by_side(self._count, [(file,) for file in files])

    def parse(
        self, parser: _core.ExampleParser, files: Sequence[AnyFile], counts: Sequence[int], tables: Sequence[Table]
    ) -> None:
        """Parse the records of the files into consecutive rows of the tables.

        Args:
            counts: the number of records of each file; their sum is the number of rows of the tables.
            tables: where to write; the columns of all tables, in order, are the columns of the parser.
        Raises:
            DatasetFormatError: A file is broken, does not fit the parser, or has changed since its records were
                counted.
            OSError: A file cannot be read.
        """
        begins = itertools.accumulate(counts, initial=0)
        jobs = [(parser, file, count, begin, tables) for file, count, begin in zip(files, counts, begins, strict=False)]
        self._num_records = sum(counts)
        self._side_by_side(self._parse, jobs)

    def _count(self, file: AnyFile) -> int:
        return self._read(file, lambda content, _: _core.scan_records(content, False))

    def _parse(
        self, parser: _core.ExampleParser, file: AnyFile, count: int, first_row: int, tables: Sequence[Table]
    ) -> None:
        staging = _Staging(tables)

        def use(content: memoryview, done: int) -> tuple[int, int, str]:
            records = num_bytes = 0
            while True:
                more, size, problem = parser.parse(content[num_bytes:], staging.targets, 0)
                if done + records + more > count:  # the next rows belong to another file
                    raise self._changed(file, count, "more")
                staging.write(first_row + done + records, more)
                records, num_bytes = records + more, num_bytes + size
                if more < staging.num_rows:  # otherwise parsing may have ended only because the staging rows are full
                    self._tell(records)
                    return records, num_bytes, problem

        if (records_read := self._read(file, use)) != count:
            raise self._changed(file, count, str(records_read))

    def first(self, file: AnyFile, look: Callable[[memoryview], _T]) -> _T | None:
        """Return `look(record)`, where `record` is the first record of the file with its framing. None: no records.

        Raises:
            DatasetFormatError: The file is broken, or `look` raises WrongRecord.
            OSError: The file cannot be read.
        """
        results: list[_T] = []

        def use(content: memoryview, done: int) -> tuple[int, int, str]:
            records, num_bytes, problem = _core.scan_records(content, False)
            if records == 0:
                return 0, num_bytes, problem
            try:
                results.append(look(content[: _core.record_length(content)]))
            except WrongRecord as error:
                return 0, 0, text_of(error)
            raise _Stopped

        with contextlib.suppress(_Stopped):
            self._read(file, use)
        return results[0] if results else None

    def _read(self, file: AnyFile, use: _Use) -> int:
        """Read a file from beginning to end, piece by piece; return the number of its records.

        `use` is called with (content, number of records before it) for each piece. It returns (number of records used
        up, bytes used up, problem); the problem is a text, "" if all is well. Content that is not used up is given
        again.
        """
        done = 0
        try:
            with opened(file) as (plain, num_bytes):
                is_packed = file.name.endswith(".gz")
                stream = _GzipStream(plain, num_bytes) if is_packed else _Stream(plain, num_bytes)
                window = Window(stream, self._most_bytes)
                try:
                    while window.fill():
                        if self._stopped.is_set():
                            raise _Stopped
                        records, used_up, problem = use(window.content, done)
                        done += records
                        window.use_up(used_up)
                        if problem:
                            raise self._broken(file, done, window.at, problem)
                except (_StreamBroken, _RecordTooLong) as error:
                    raise self._broken(file, done, window.at, text_of(error)) from error
                rest = len(window.content)
                if rest > 0:
                    raise self._broken(file, done, window.at, f"the file ends inside it, after {_of_whole(window)}")
        except OSError as error:
            # Python picks the subclass of OSError, such as PermissionError, by the number.
            raise OSError(
                error.errno, f"{self._where}: the file cannot be read ({error.strerror}). Check it", str(file)
            ) from error
        except DatasetFormatError:
            raise
        except ValueError as error:
            raise DatasetFormatError(f"{self._where}: {text_of(error)}") from error
        return done

    def _broken(self, file: AnyFile, record: int, at: int, problem: str) -> DatasetFormatError:
        place = " of the unpacked content" if file.name.endswith(".gz") else ""
        if problem.startswith("key "):
            remedy = "Correct the keys to load and the spec, or write the file again."
        elif "file_buffer_size" in problem:
            remedy = "Raise file_buffer_size, or write shorter records."
        else:
            remedy = "Write or copy the file again."
        return DatasetFormatError(
            f"{self._where}: {file}, record {record}, which begins at byte {at}{place}: {problem}. {remedy}"
        )

    def _changed(self, file: AnyFile, count: int, count_now: str) -> DatasetFormatError:
        return DatasetFormatError(
            f"{self._where}: {file} had {count} records when they were counted, and {count_now} when they were read; "
            "it must not change meanwhile. Load again when it is whole."
        )

    def _tell(self, count: int) -> None:
        with self._lock:
            before = self._num_parsed // self._log_every
            self._num_parsed += count
            if self._num_parsed // self._log_every > before:
                logger.info("%s: %d of %d records are read", self._where, self._num_parsed, self._num_records)

    def _side_by_side(self, call: Callable[..., Any], jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call `call(*job)` for each job, in threads; return the results. The first error stops all, and is raised."""
        self._stopped.clear()
        num_threads = min(self._num_threads, len(jobs))
        if num_threads <= 1:
            return [call(*job) for job in jobs]
        with ThreadPoolExecutor(num_threads, "datapipes-tfrecord") as pool:
            futures: list[Future[Any]] = []
            try:
                futures += [pool.submit(call, *job) for job in jobs]
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            finally:  # also at Ctrl-C: otherwise the pool would wait for whole files
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)
            error = next((future.exception() for future in futures if future in done and future.exception()), None)
            if error is not None:
                try:
                    raise error
                finally:  # the error refers to this frame; without this, both would keep the memory of the result
                    del error, futures, done
            return [future.result() for future in futures]


class _Stopped(Exception):
    """Raised to stop reading a file: its first record was found, or another thread has failed."""


def _of_whole(window: Window) -> str:
    length = _core.record_length(window.content)
    return f"{len(window.content)} of {length} bytes" if length >= 0 else f"{len(window.content)} bytes"


_FIRST_BYTES = 2**18  # of the window, which stays in the cache at this size


class _RecordTooLong(Exception):
    """Raised if a record does not fit into the largest buffer that is allowed. The message has the record's length."""


class Window:
    """A buffer of the bytes that were read from a stream and not yet used up. It grows up to `most_bytes`.

    Attributes:
        at: position in the stream of the first byte of `content`.
    """

    def __init__(self, stream: _Stream, most_bytes: int) -> None:
        self._stream = stream
        self._most = most_bytes
        self._room = memoryview(bytearray(min(_FIRST_BYTES, most_bytes)))
        self._begin = self._end = 0
        self.at = 0

    @property
    def content(self) -> memoryview:
        """A view of the bytes that were read and not yet used up; valid until the next call of `fill`."""
        return self._room[self._begin : self._end]

    def use_up(self, num_bytes: int) -> None:
        """Drop `num_bytes` bytes from the beginning of `content`."""
        self._begin += num_bytes
        self.at += num_bytes

    def fill(self) -> bool:
        """Read more bytes to the end of `content`; return False if the stream has ended.

        Raises:
            _RecordTooLong: `content` fills the largest window, but is not a whole record.
            _StreamBroken, OSError: The errors of the stream.
        """
        rest = self.content
        room = self._room if len(rest) < len(self._room) else self._larger()
        if self._begin > 0 or room is not self._room:
            room[: len(rest)] = rest
        self._room, self._begin, self._end = room, 0, len(rest)
        count = self._stream.readinto(room[self._end :])
        self._end += count
        return count > 0

    def _larger(self) -> memoryview:
        # Double the size, rather than take the length that a record states: that length may be false.
        if len(self._room) == self._most:
            length = _core.record_length(self._room)
            raise _RecordTooLong(f"it has {length} bytes, file_buffer_size allows {self._most}")
        return memoryview(bytearray(min(2 * len(self._room), self._most)))


_BYTES = 2**18  # of all staging arrays together


@dataclass(frozen=True)
class Table:
    """Rows in shared memory, to which records are written. All values have one dtype.

    `begin` is the byte of the memory at which row 0 begins; `widths` has the number of values of each column.
    """

    memory: _core.SharedMemory
    begin: int
    dtype: np.dtype[Any]
    widths: Sequence[int]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return self.dtype.itemsize * sum(self.widths)


class _Staging:
    """Small arrays with room for some rows of each table. A thread parses into them, then writes to the tables.

    Attributes:
        num_rows: how many rows fit.
        targets: the arrays that the parser writes to, one for each column of each table.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.num_rows = max(_BYTES // sum(table.row_bytes for table in tables), 1)
        self.targets: list[NDArray[Any]] = []
        self._tables = []
        for table in tables:
            rows = np.empty((self.num_rows, sum(table.widths)), table.dtype)
            self._tables.append((table, rows.reshape(-1).view(np.uint8).data))
            self.targets += np.split(rows, np.cumsum(table.widths)[:-1], axis=1)

    def write(self, first_row: int, count: int) -> None:
        """Write the first `count` rows of the arrays to the rows of the tables from `first_row` on."""
        for table, data in self._tables:
            at, left = table.begin + first_row * table.row_bytes, data[: count * table.row_bytes]
            while left:
                written = os.pwrite(table.memory.descriptor, left, at)
                at, left = at + written, left[written:]


_CHUNK = 2**17  # packed bytes read at once
_MOST_ZEROS = 2**26  # accepted after gzip data, since tapes pad their last block; a sparse file may have any number
_MOST_UNPACKED = 2**20  # bytes unpacked at once
_GZIP = 31  # tells zlib to expect the largest window and a gzip header


class _StreamBroken(Exception):
    """Raised if the bytes of a file cannot be unpacked. The message says why."""


class _Stream:
    """A stream of the first `num_bytes` bytes of a file, unchanged."""

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        self._file = file
        self._left = num_bytes

    def readinto(self, view: memoryview) -> int:
        """Read up to len(view) bytes into `view`; return how many, 0 only at the end of the stream.

        Raises:
            _StreamBroken: The bytes cannot be unpacked.
            OSError: The file cannot be read.
        """
        count: int = self._file.readinto(view[: self._left])  # type: ignore[attr-defined]
        self._left -= count
        return count


class _GzipStream(_Stream):
    """A stream of the unpacked bytes of a gzip file with one or more members; skips zeros at its end, as gzip does."""

    def __init__(self, file: BinaryIO, num_bytes: int) -> None:
        super().__init__(file, num_bytes)
        self._packed = b""
        self._chunk = memoryview(bytearray(_CHUNK))
        self._member = None if self._left == 0 else zlib.decompressobj(_GZIP)
        self._zeros = 0  # number of zeros read since the last member ended

    def readinto(self, view: memoryview) -> int:
        while self._more():
            assert self._member is not None
            try:
                unpacked = self._member.decompress(self._packed, min(len(view), _MOST_UNPACKED))
            except zlib.error as error:
                raise _StreamBroken(f"its gzip data is broken ({error})") from error
            if self._member.eof:
                self._packed, self._member = self._member.unused_data, None
            else:
                self._packed = self._member.unconsumed_tail
            if unpacked:
                view[: len(unpacked)] = unpacked
                return len(unpacked)
        return 0

    def _more(self) -> bool:
        """Return whether there are compressed bytes to unpack; read some if needed. False: all members have ended."""
        while True:
            if self._member is None:
                packed, self._packed = self._packed, self._packed.lstrip(b"\0")
                self._zeros = 0 if self._packed else self._zeros + len(packed)
                if self._zeros > _MOST_ZEROS:
                    raise _StreamBroken(f"more than {_MOST_ZEROS} zeros follow its gzip data")
            if self._packed:
                self._member = self._member or zlib.decompressobj(_GZIP)
                return True
            count = super().readinto(self._chunk)
            if count == 0 and self._member is not None:
                raise _StreamBroken("its gzip data ends too early")
            if count == 0:
                return False
            self._packed = bytes(self._chunk[:count])
