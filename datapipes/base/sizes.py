"""Sizes of memory: parsed as people write them ("256MB", "1.5 GiB", bytes), and compared with the memory left."""

from __future__ import annotations

import re
from fractions import Fraction

from datapipes import _core
from datapipes.base.checks import check_int, shown

UNCHECKED_BYTES = 2**27  # for fewer bytes, a look at the memory left is not worth its time

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_DIGITS = r"\d{1,40}"
_WRITTEN = re.compile(
    rf"\s*(?:({_DIGITS})\s*B?|({_DIGITS}(?:\.{_DIGITS})?)\s*([KMGT])(?:i?B)?)\s*", re.IGNORECASE | re.ASCII
)


def parse_size(where: str, name: str, size: int | str) -> int:
    """Return a size in bytes; K, M, G and T stand for powers of 1024, with B, iB or nothing after them.

    Raises:
        TypeError: `size` is neither an int nor a str.
        ValueError: The text is not a size, or the size is not above 0.
    """
    if hasattr(size, "__index__") and not isinstance(size, bool):
        return check_int(where, name, size, 1)
    written = _WRITTEN.fullmatch(size) if isinstance(size, str) else None
    if written is None:
        error = ValueError if isinstance(size, str) else TypeError
        raise error(
            f"{where}: {name} must be an int, a number of bytes, or a text such as '256MB' or '1.5GB', got "
            f"{shown(size)}. Write it so."
        )
    whole, number, unit = written.groups()
    num_bytes = int(whole) if whole is not None else int(Fraction(number) * _UNITS[unit.upper()])
    return check_int(where, f"{name} ({shown(size)})", num_bytes, 1)


def check_memory(where: str, content: str, num_bytes: int, remedy: str) -> None:
    """Raise MemoryError if `num_bytes` is more than the memory that is left. Fewer than UNCHECKED_BYTES always pass.

    The system might grant more memory than is left, and kill the process later.
    """
    if num_bytes < UNCHECKED_BYTES:
        return
    left, limit = _core.memory_left()
    if num_bytes > left:
        raise MemoryError(f"{where}: {content} needs {shown(num_bytes)} bytes; {left} are left by {limit}. {remedy}")
