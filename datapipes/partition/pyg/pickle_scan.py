"""Whether torch's loader will be done with a file of torch.save soon. Nothing of the file is built or run.

The loader hashes the keys of dicts. Tuples of tuples, each used twice, make a key of a few hundred bytes that takes for
ever to hash. So the pickle in the archive is walked first, operation by operation, with a number in the place of each
value: how many values hashing it may visit.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

MOST_BYTES = 2**24  # of the pickle; the tensors stand beside it
MOST_VISITS = 2**10  # values within one tuple, each as often as it is used there
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
_MARK: Any = object()


def refuse_endless(path: Path) -> None:
    """Raise ValueError if the archive at `path` is none of torch.save, or holds a key that takes too long to hash.

    Raises:
        ValueError: As above.
        Exception: Whatever zipfile or pickletools raise for a corrupt file.
    """
    with zipfile.ZipFile(path) as archive:
        pickles = [each for each in archive.infolist() if each.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MOST_BYTES:
            raise ValueError(f"it has not one pickle of up to {MOST_BYTES} bytes")
        content = archive.read(pickles[0])
    if _most_visits(content) > MOST_VISITS:
        raise ValueError(f"a tuple in it holds more than {MOST_VISITS} values")


def _most_visits(content: bytes) -> int:
    """Return how many values the largest tuple of a pickle holds, each as often as it is used."""
    stack: list[Any] = []
    memo: dict[Any, int] = {}
    most = 0
    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        name, before, after = operation.name, operation.stack_before, operation.stack_after
        if name == "MARK":
            stack.append(_MARK)
            continue
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
            continue
        if name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument)])
            continue
        if pickletools.markobject in before:
            begin = len(stack) - 1 - stack[::-1].index(_MARK)
            below = before.index(pickletools.markobject)
        else:
            begin, below = len(stack), len(before)
        taken = [each for each in stack[begin:] if each is not _MARK]
        del stack[begin:]
        if below:
            taken += stack[-below:]
            del stack[-below:]
        visits = 1 + sum(taken) if name in _TUPLES else 1
        most = max(most, visits)
        if most > MOST_VISITS:
            break
        stack.extend([visits] * len(after))
    return most
