"""The bytes of a file of records: as they are, or unpacked if the name ends in .gz.

Invariant: no more bytes are read than the file had when it was opened, and nothing is unpacked before there is room.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from datapipes.base.files import open_regular

_CHUNK = 2**17  # packed bytes that are read at once
_MOST_UNPACKED = 2**20  # bytes that are unpacked at once
_GZIP = 31  # tells zlib that the largest window and the head of gzip are to be expected


class StreamBroken(Exception):
    """The bytes of a file cannot be unpacked. The text says why."""


class Stream:
    """A file as it is."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = os.fstat(file.fileno()).st_size

    def readinto(self, view: memoryview) -> int:
        """Read up to len(view) bytes into `view`; return how many, 0 only at the end.

        Raises:
            StreamBroken: The bytes cannot be unpacked.
            OSError: The file cannot be read.
        """
        count: int = self._file.readinto(view[: self._left])  # type: ignore[attr-defined]
        self._left -= count
        return count


class GzipStream(Stream):
    """A file packed by gzip, of one member or several; zeros after the last are skipped, as gzip does."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._packed = b""
        self._chunk = memoryview(bytearray(_CHUNK))
        self._member = None if self._left == 0 else zlib.decompressobj(_GZIP)

    def readinto(self, view: memoryview) -> int:
        while self._more():
            assert self._member is not None
            try:
                unpacked = self._member.decompress(self._packed, min(len(view), _MOST_UNPACKED))
            except zlib.error as error:
                raise StreamBroken(f"its gzip data is broken ({error})") from error
            if self._member.eof:
                self._packed, self._member = self._member.unused_data, None
            else:
                self._packed = self._member.unconsumed_tail
            if unpacked:
                view[: len(unpacked)] = unpacked
                return len(unpacked)
        return 0

    def _more(self) -> bool:
        """Return whether there is anything to unpack, after reading it; False at the end of the last member."""
        while True:
            if self._member is None:
                self._packed = self._packed.lstrip(b"\0")
            if self._packed:
                self._member = self._member or zlib.decompressobj(_GZIP)
                return True
            count = super().readinto(self._chunk)
            if count == 0 and self._member is not None:
                raise StreamBroken("its gzip data ends too early")
            if count == 0:
                return False
            self._packed = bytes(self._chunk[:count])


@contextmanager
def opened(path: Path) -> Iterator[Stream]:
    """Open a file of records.

    Raises:
        ValueError: It is no regular file.
        OSError: It cannot be opened.
    """
    with open_regular(path) as file:
        yield GzipStream(file) if path.name.endswith(".gz") else Stream(file)
