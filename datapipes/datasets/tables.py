"""Read tables of numbers of unknown origin from text, packed with gzip or not.

Invariant: each piece of a file is parsed before the next is unpacked. The numbers of a table take at most
`MAX_TABLE_BYTES`, and, while its pieces are collected, half of the memory that is left. Refused with
`DatasetFormatError`: what text.py refuses, bytes that are not in a number, ragged rows, numbers that do not fit.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np

from datapipes.base.sizes import check_memory
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.text import text_chunks

MAX_TABLE_BYTES = 8 * 2**30  # of the numbers of one file

_DIGITS = b"0123456789-\r\n"
_OF_FLOATS = b".eE+"
_COMMENT = re.compile(rb"(?m)^#.*\n?")


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
    most_bytes: int | None = None,
    remedy: str = "",
) -> np.ndarray:
    """Return a table of numbers: int64 [rows, columns], or float64 if one of the numbers is not whole.

    Args:
        path: The file, one row a line; empty lines do not count.
        columns, rows: How many there must be; None allows any number, but the same in all rows.
        delimiter: Between numbers: a comma, or " " for spaces and tabs.
        whole: Only whole numbers are allowed.
        missing: "nan" is allowed.
        skip_header: A first line that starts with a letter is left out.
        comments: Lines that begin with "#" are left out.
        most_bytes: Of the text; None for the limit of text.py.
        remedy: What an error says to do, as DatasetFormatError.of has it.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken, is no such table, or has other numbers of rows or columns.
        MemoryError: The table needs more memory than is left.
    """
    parts: list[np.ndarray] = []
    num_rows = num_bytes = 0
    for chunk in text_chunks(path, most_bytes):
        if comments and b"#" in chunk:
            chunk = _COMMENT.sub(b"", chunk)
        if skip_header and not parts and chunk.lstrip(b' "')[:1].isalpha():
            chunk = chunk.partition(b"\n")[2]
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
        # As much again to join the pieces, and as much for what a reader makes of the table.
        check_memory("datasets.open", f"the table in {path.name}", 2 * num_bytes, "Use a machine with more memory.")
        parts.append(part)
    if rows is not None and num_rows != rows:
        raise DatasetFormatError.of(path.name, f"{num_rows} rows", f"{rows} rows")
    return np.concatenate(parts) if parts else np.zeros((0, columns or 0), dtype=np.int64)


def _parsed(file: str, chunk: bytes, delimiter: str, whole: bool, missing: bool, remedy: str) -> np.ndarray:
    between = b" \t" if delimiter == " " else delimiter.encode()
    others = chunk.translate(None, _DIGITS + between)
    allowed = b"" if whole else _OF_FLOATS + (b"nNaA" if missing else b"")
    if foreign := others.translate(None, allowed):
        found = f"the character {chr(foreign[0])!r}"
        kind = "whole numbers" if whole else "finite numbers"
        raise DatasetFormatError.of(
            file, found, f"{kind} with {'spaces' if delimiter == ' ' else 'commas'} between", remedy
        )
    try:
        table = np.loadtxt(
            io.StringIO(chunk.decode("ascii")),
            dtype=np.float64 if others else np.int64,
            delimiter=None if delimiter == " " else delimiter,
            comments=None,
            ndmin=2,
        )
    except (ValueError, OverflowError) as error:
        raise DatasetFormatError.of(
            file, f"a row that is none ({str(error)[:200]})", "numbers that fit 64 bits, as many in each row", remedy
        ) from error
    if np.isinf(table).any() or (not missing and np.isnan(table).any()):
        raise DatasetFormatError.of(file, "a number beyond 64 bits", "finite numbers", remedy)
    return table


def ids_of(file: str, table: np.ndarray, limit: int, what: str = "id", remedy: str = "") -> np.ndarray:
    """Return `table`, whole numbers of which each is in [0, limit).

    Raises:
        DatasetFormatError: One is outside.
    """
    if table.size and (table.min() < 0 or table.max() >= limit):
        outside = table.min() if table.min() < 0 else table.max()
        raise DatasetFormatError.of(file, f"the {what} {outside}", f"{what}s in [0, {limit})", remedy)
    return table
