"""Read text files of unknown origin, packed with gzip or not, in pieces of whole lines or line by line.

A few kilobytes of gzip may hold gigabytes. So a file is unpacked piece by piece, its readers check each piece before
the next is unpacked, and a file that is longer than its limit is refused when it gets there.

Invariant: a few pieces of `CHUNK_BYTES` are in memory, not more; what readers make of them is theirs to bound. Refused
with `DatasetFormatError`: truncated and corrupt gzip, lines without an end, text that is not UTF-8.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datapipes.base.files import open_regular
from datapipes.datasets.raw import DatasetFormatError

MAX_UNPACKED_BYTES = 4 * 2**30  # of one file
CHUNK_BYTES = 2**22
MAX_LINE_BYTES = 2**20


def text_chunks(path: Path, most_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the content of a text file in pieces of whole lines; a name that ends in .gz is unpacked.

    Args:
        path: The file.
        most_bytes: Of the unpacked text, by default `MAX_UNPACKED_BYTES`.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is no regular one, its gzip is broken, or it or a line of it is too long.
    """
    limit = MAX_UNPACKED_BYTES if most_bytes is None else most_bytes
    rest, total = b"", 0
    try:
        file = open_regular(path)
    except ValueError as error:
        raise DatasetFormatError(f"{path.name}: {error}") from error
    with file, gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file as stream:
        while piece := _piece(path.name, stream):
            total += len(piece)
            if total > limit:
                raise DatasetFormatError.of(path.name, f"more than {limit} bytes of text", "at most that many")
            end = piece.rfind(b"\n") + 1
            if end > 0:
                yield rest + piece[:end]
                rest = b""
            rest += piece[end:]
            if len(rest) > MAX_LINE_BYTES:
                raise DatasetFormatError.of(path.name, f"a line of more than {MAX_LINE_BYTES} bytes", "shorter lines")
    if rest:
        yield rest


def _piece(file: str, stream: Any) -> bytes:
    try:
        piece: bytes = stream.read(CHUNK_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetFormatError.of(file, f"broken gzip ({str(error)[:200]})", "a whole gzip file") from error
    return piece


def text_lines(path: Path, most_bytes: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1 on, and the text of each line that is not empty, without white space at its ends.

    Raises:
        DatasetFormatError: As `text_chunks`, or the text is not UTF-8.
    """
    number = 0
    for chunk in text_chunks(path, most_bytes):
        for line in io.BytesIO(chunk):  # a list of all lines would take many times the memory of the chunk
            number += 1
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                found = f"bytes on line {number} that are no text ({error.reason})"
                raise DatasetFormatError.of(path.name, found, "UTF-8") from error
            if text:
                yield number, text
