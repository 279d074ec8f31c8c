"""Read text files of unknown origin, compressed with gzip or not: in pieces, line by line, or as numbers.

A few kilobytes of gzip may hold gigabytes. So a file is unpacked piece by piece, readers check each piece before the
next is unpacked, and a file is refused as soon as it exceeds its limit.

Invariant: at most a few pieces of `CHUNK_BYTES` are in memory; readers limit what they make of the pieces. Refused
with `DatasetFormatError`: truncated and corrupt gzip, lines without an end, text that is not UTF-8.

A table is parsed piece by piece. Its numbers take at most `MAX_TABLE_BYTES`, and, while its pieces are collected, half
of the memory that is left. Refused: bytes outside of numbers, ragged rows, and numbers that do not fit.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from datapipes.base.files import open_regular
from datapipes.base.sizes import check_memory
from datapipes.datasets.raw import RIGHT_FILE, DatasetFormatError, format_errors

MAX_UNPACKED_BYTES = 4 * 2**30  # of one file
CHUNK_BYTES = 2**22
MAX_LINE_BYTES = 2**20


def text_chunks(path: Path, most_bytes: int | None = None) -> Iterator[bytes]:
    """Yield the content of a text file in pieces of whole lines. A file whose name ends in .gz is unpacked.

    Args:
        path: The file.
        most_bytes: The most bytes of unpacked text; None for `MAX_UNPACKED_BYTES`.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is not regular, its gzip is broken, or the file or a line is too long.
    """
    limit = MAX_UNPACKED_BYTES if most_bytes is None else most_bytes
    rest, total = b"", 0
    with format_errors(path.name):
        file = open_regular(path)
    with file, gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file as stream:
        while True:
            try:
                piece = stream.read(CHUNK_BYTES)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                fault = f"broken gzip ({str(error)[:200]})"
                raise DatasetFormatError.of(path.name, fault, "a whole gzip file") from error
            if not piece:
                break
            total += len(piece)
            if total > limit:
                raise DatasetFormatError.of(
                    path.name, f"more than {limit} bytes of text", "at most that many", RIGHT_FILE
                )
            end = piece.rfind(b"\n") + 1
            if end > 0:
                yield rest + piece[:end]
                rest = b""
            rest += piece[end:]
            if len(rest) > MAX_LINE_BYTES:
                raise DatasetFormatError.of(path.name, f"a line of more than {MAX_LINE_BYTES} bytes", "shorter lines")
    if rest:
        yield rest


def text_lines(path: Path, most_bytes: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1 on, text) of each line that is not empty. Texts have no white space at their ends.

    Raises:
        DatasetFormatError: As `text_chunks`, or the text is not UTF-8.
    """
    number = 0
    for chunk in text_chunks(path, most_bytes):
        for line in io.BytesIO(chunk):  # a list of lines would take many times the memory of the chunk
            number += 1
            try:
                text = line.decode("utf-8").strip()
            except UnicodeDecodeError as error:
                fault = f"bytes on line {number} that are no text ({error.reason})"
                raise DatasetFormatError.of(path.name, fault, "UTF-8") from error
            if text:
                yield number, text


# --- tables of numbers

MAX_TABLE_BYTES = 8 * 2**30  # of the numbers of one file

_DIGITS = b"0123456789-\r\n"
_OF_FLOATS = b".eE+"
_COMMENT = re.compile(rb"(?m)^[#%].*\n?")


def read_table(
    path: Path,
    *,
    columns: int | None = None,
    rows: int | None = None,
    delimiter: str = ",",
    whole: bool = False,
    missing: bool = False,
    skip_header: bool = False,
    comments: bool = False,
    skip_rows: int = 0,
    most_bytes: int | None = None,
    remedy: str = "",
) -> np.ndarray:
    """Return a table of numbers: int64 [rows, columns], or float64 if any number has a fraction.

    Args:
        path: The file, one row a line; empty lines are skipped.
        columns, rows: The required numbers of columns and rows; None: any, but all rows have equal lengths.
        delimiter: What separates numbers: a comma, or " " for spaces and tabs.
        whole: Whether only whole numbers are allowed.
        missing: Whether "nan" is allowed.
        skip_header: Whether to skip a first line that starts with a letter.
        comments: Whether to skip lines that begin with "#" or "%".
        skip_rows: How many rows, comments not counted, to skip.
        most_bytes: The most bytes of unpacked text; None for `MAX_UNPACKED_BYTES`.
        remedy: Advice in errors, see DatasetFormatError.of.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken, has a forbidden value, or a wrong number of rows or columns.
        MemoryError: The table needs more memory than is left.
    """
    parts: list[np.ndarray] = []
    num_rows = num_bytes = 0
    for chunk in text_chunks(path, most_bytes):
        if comments and (b"#" in chunk or b"%" in chunk):
            chunk = _COMMENT.sub(b"", chunk)
        if skip_header and not parts and chunk.lstrip(b' "')[:1].isalpha():
            chunk = chunk.partition(b"\n")[2]
        while skip_rows and chunk.strip():
            chunk, skip_rows = chunk.lstrip().partition(b"\n")[2], skip_rows - 1
        if not chunk.strip():
            continue
        part = _parsed(path.name, chunk, delimiter, whole, missing, remedy)
        if columns is None:
            columns = part.shape[1]
        num_rows += len(part)
        num_bytes += part.nbytes
        if part.shape[1] != columns:
            raise DatasetFormatError.of(path.name, f"rows of {part.shape[1]} numbers", f"{columns} in each row", remedy)
        if (rows is not None and num_rows > rows) or num_bytes > MAX_TABLE_BYTES:
            most = f"{rows} rows" if rows is not None else f"{MAX_TABLE_BYTES} bytes of numbers"
            raise DatasetFormatError.of(path.name, f"at least {num_rows} rows, {num_bytes} bytes of numbers", most)
        # Twice: once to join the pieces, once for the arrays that a reader makes of the table.
        check_memory("datasets.open", f"the table in {path.name}", 2 * num_bytes, "Use a machine with more memory.")
        parts.append(part)
    if rows is not None and num_rows != rows:
        raise DatasetFormatError.of(path.name, f"{num_rows} rows", f"{rows} rows")
    return np.concatenate(parts) if parts else np.zeros((0, columns or 0), dtype=np.int64)


def _parsed(file: str, chunk: bytes, delimiter: str, whole: bool, missing: bool, remedy: str) -> np.ndarray:
    between = b" \t" if delimiter == " " else delimiter.encode()
    others = chunk.translate(None, _DIGITS + between)
    float_bytes = b"" if whole else _OF_FLOATS + (b"nNaA" if missing else b"")
    if foreign := others.translate(None, float_bytes):
        fault = f"the character {chr(foreign[0])!r}"
        kind, between_text = "whole" if whole else "finite", "spaces" if delimiter == " " else "commas"
        raise DatasetFormatError.of(file, fault, f"{kind} numbers with {between_text} between", remedy)
    try:
        table = np.loadtxt(
            io.StringIO(chunk.decode("ascii")),
            dtype=np.float64 if others else np.int64,
            delimiter=None if delimiter == " " else delimiter,
            comments=None,
            ndmin=2,
        )
    except (ValueError, OverflowError) as error:
        fault = f"a broken row ({str(error).partition(';')[0][:200]})"  # after it, advice on arguments of numpy
        allowed = "numbers that fit 64 bits, as many in each row"
        raise DatasetFormatError.of(file, fault, allowed, remedy) from error
    if np.isinf(table).any() or (not missing and np.isnan(table).any()):
        raise DatasetFormatError.of(file, "a number beyond 64 bits", "finite numbers", remedy)
    return table
