"""Whether torch's loader will be done with a file of torch.save soon. Nothing of the file is built or run.

The loader hashes the keys of dicts, and writes what it refuses into its message. Tuples or lists, each used twice in
the next, make a value of a few hundred bytes that takes for ever to hash or to write. So the pickle in the archive is
walked first, operation by operation, with a list of what it holds in the place of each value.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

MOST_BYTES = 2**21  # of the pickle, thousands of types; the tensors stand beside it
MOST_BITS = 64  # of a number: among longer ones are as many as one likes that have one hash
MOST_VISITS = 2**10  # values within one tuple, each as often as it is used there
MOST_VALUES = 2**22  # values within any other, likewise
_UNKNOWN, _OPEN = -1, -2
_MAKES_EMPTY = ("EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE")
_FILLS = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")


class _Value:
    """A value of the pickle that holds others.

    Attributes:
        plain: number of values that it holds and that hold none.
        held: the others.
        visits: number of values within it, once it is known.
    """

    __slots__ = ("held", "is_tuple", "plain", "visits")

    def __init__(self, is_tuple: bool) -> None:
        self.plain, self.visits, self.is_tuple = 1, _UNKNOWN, is_tuple
        self.held: list[_Value] | tuple[()] = ()  # most hold none: a list for each would take most of the memory

    def add(self, values: list[Any]) -> None:
        """Let it hold more values."""
        for each in values:
            if isinstance(each, _Value):
                if isinstance(self.held, tuple):
                    self.held = []
                self.held.append(each)
            else:
                self.plain += each


def refuse_endless(path: Path) -> None:
    """Raise ValueError if the archive at `path` is none of torch.save, or holds a value that takes too long to visit.

    Raises:
        ValueError: As above.
        Exception: Whatever zipfile or pickletools raise for a corrupt file.
    """
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(each.compress_type != zipfile.ZIP_STORED for each in entries):
            raise ValueError("its entries are compressed, and may be of any size")
        if sum(each.file_size for each in entries) > path.stat().st_size:
            raise ValueError("its entries are larger than the file")
        pickles = [each for each in entries if each.filename.endswith("data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MOST_BYTES:
            raise ValueError(f"it has not one pickle of up to {MOST_BYTES} bytes")
        content = archive.read(pickles[0])
    _refuse_large(_values_of(content))


def _values_of(content: bytes) -> list[_Value]:
    """Return the values of a pickle that hold others. On the stack stands a number for each value that holds none.

    O(length of the pickle).
    """
    stack: list[Any] = []
    marks: list[int] = []  # how long the stack was at each mark
    memo: dict[int, Any] = {}
    values: list[_Value] = []
    argument: Any
    for operation, argument, _ in pickletools.genops(content):
        name, before, after = operation.name, operation.stack_before, operation.stack_after
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name in ("PUT", "GET"):  # as text: of any size, so as many as one likes have one hash
            raise ValueError(f"it has the operation {name}, which torch.save does not write")
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
            continue
        if name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument)])
            continue
        if pickletools.markobject in before:
            begin = marks.pop() - before.index(pickletools.markobject)
        else:
            begin = len(stack) - len(before)
        if begin < (marks[-1] if marks else 0):
            raise ValueError(f"its operation {name} takes more values than there are")
        taken = stack[begin:]
        del stack[begin:]
        if name in _FILLS and isinstance(taken[0], _Value):
            taken[0].add(taken[1:])
            stack.append(taken[0])
        elif taken or name in _MAKES_EMPTY:
            made = _Value(name.startswith("TUPLE"))
            made.add(taken)
            values.append(made)
            stack.extend([made] * len(after))
        else:
            stack.extend([_weight(argument)] * len(after))
    return values


def _weight(argument: Any) -> int:
    """Return as how many values a text or number counts: one for each 64 bytes. Refuse a long number."""
    if isinstance(argument, int) and argument.bit_length() > MOST_BITS:
        raise ValueError(f"a number in it has more than {MOST_BITS} bits")
    return 1 + len(argument) // 64 if isinstance(argument, (str, bytes, bytearray)) else 1


def _refuse_large(values: list[_Value]) -> None:
    """Refuse a value that holds too many others, each as often as it is used, or itself."""
    for value in values:
        path = [value]  # of values that wait for those that they hold
        while path:
            last = path[-1]
            if last.visits == _UNKNOWN:
                last.visits = _OPEN
                path += [each for each in last.held if each.visits == _UNKNOWN]
                if any(each.visits == _OPEN for each in last.held):
                    raise ValueError("a value in it holds itself")
                continue
            if path.pop().visits == _OPEN:
                last.visits = last.plain + sum(each.visits for each in last.held)
                if last.visits > (MOST_VISITS if last.is_tuple else MOST_VALUES):
                    what = (
                        f"a tuple in it holds more than {MOST_VISITS}"
                        if last.is_tuple
                        else f"it holds more than {MOST_VALUES}"
                    )
                    raise ValueError(f"{what} values")
