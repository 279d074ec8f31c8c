"""Read a pickle that holds plain data only: numbers, text, lists, dicts, arrays and CSR matrices.

A pickle is a program. Python's own unpickler would run it; this module does not use it:

- `Reader` follows the instructions that plain data needs, as `pickletools` finds them, and refuses every other.
- It knows ten names of seven globals and refuses any other by name.
- Each of these globals is a stand-in of this module, so not even the unpickling code of numpy or scipy runs. `array_of`
  checks the stand-ins and makes arrays of them.
- A dict stays a list of pairs, `Items`: to hash keys that the file chose could take time in proportion to the square of
  their number, or, for tuples of tuples, for ever.

Invariant: the file cannot choose code to run and cannot change an object. Time and memory stay in proportion to the
size of the file. Refused with `DatasetFormatError`: truncated, corrupt or hostile files.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from datapipes.base.checks import shown
from datapipes.datasets.raw import DatasetFormatError, content_of

MAX_FILE_BYTES = 2**30
MAX_LENGTH = 2**48  # of a side of an array or a matrix
MAX_INSTRUCTIONS = 2**25  # of a pickle; some take a byte of the file and a hundred of memory
MAX_FIELDS = 64  # of a dict with text for its keys
MAX_KEY = 64  # characters of such a key

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_OF_VALUES = """
    INT BININT BININT1 BININT2 LONG LONG1 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE
    BINUNICODE SHORT_BINUNICODE
"""
_VALUES = frozenset(_OF_VALUES.split())
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_UNSET = object()
_T = TypeVar("_T")
_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"})


def read_pickle(path: Path) -> object:
    """Return the content of a pickle: numbers, text, tuples, lists, and the stand-ins below."""
    return parse_pickles(path.name, content_of(path, MAX_FILE_BYTES))[0]


def parse_pickles(file: str, content: bytes, count: int = 1, kind: type[Reader] | None = None) -> list[object]:
    """Return the content of the first `count` pickles, which stand one behind the other, as `kind` reads them."""
    kind = kind or Reader
    stream = io.BytesIO(content)
    try:
        return [kind(file, content, stream).read() for _ in range(count)]
    except Exception as error:  # a corrupt stream can raise nearly anything; no other code runs in here
        _refuse_instructions(file, content, kind)
        if isinstance(error, DatasetFormatError):
            raise
        raise DatasetFormatError.of(
            file,
            f"a broken pickle ({type(error).__name__}: {str(error)[:200]})",
            "a whole one, as published",
        ) from error


def _refuse_instructions(file: str, content: bytes, kind: type[Reader]) -> None:
    """Raise an error that names the first instruction which plain data does not need; return if there is none.

    Such an instruction says more about a file than the place at which the reader stopped.
    """
    followed = {name for names in kind.methods.values() for name in names.split()}
    known = _VALUES | _IGNORED | _CONSTANTS.keys() | followed
    found = None
    with contextlib.suppress(Exception):  # of a file that breaks off
        for opcode, argument, position in itertools.islice(pickletools.genops(content), MAX_INSTRUCTIONS):
            if opcode.name not in known:
                text = "" if argument is None else f" {shown(argument)}"
                found = f"{opcode.name}{text} at byte {position}"
                break
    if found is not None:
        raise _refused(file, f"the pickle instruction {found}", "plain numbers, text, lists, dicts and arrays")


def _refused(file: str, found: str, expected: str) -> DatasetFormatError:
    return DatasetFormatError.of(file, found, expected, "Do not trust this file; nothing of it was run.")


class _Dtype:
    """Stands for `numpy.dtype`; its state may set the byte order and nothing else."""

    __slots__ = ("byte_order", "spec")

    def __init__(self, spec: object) -> None:
        if not isinstance(spec, str) or spec not in _DTYPES:
            found = spec[:20] if isinstance(spec, str) else type(spec).__name__
            raise ValueError(f"dtype {found!r} is none of {sorted(_DTYPES)}")
        self.spec, self.byte_order = spec, "|"

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("the state of a dtype is not (version, byte order, ...)")
        if any(part is not None for part in state[2:5]):
            raise ValueError("the dtype has fields or a shape of its own")
        self.byte_order = "<" if state[1] == "=" else state[1]

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.spec)


class _Array:
    """Stands for `numpy.ndarray`; holds the unchecked state until `array_of` checks it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: object = None


class Csr:
    """Stands for `scipy.sparse.csr_matrix`; holds its unchecked state."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: object = None


class Items:
    """Stands for a dict: its keys and values, unhashed, in the order of the file."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []

    def add(self, flat: list[object]) -> None:
        """Add keys and values, given by turns."""
        self.pairs.extend(zip(flat[::2], flat[1::2], strict=True))


class Global:
    """Stands for a function or class that a pickle names."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


_NDARRAY, _DTYPE, _LIST, _CSR = (Global(name) for name in ("ndarray", "dtype", "list", "csr_matrix"))
_RECONSTRUCT, _DEFAULTDICT, _ENCODE = (Global(name) for name in ("_reconstruct", "defaultdict", "encode"))
KNOWN = {
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _DTYPE,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): _CSR,
    ("scipy.sparse._csr", "csr_matrix"): _CSR,
    ("collections", "defaultdict"): _DEFAULTDICT,
    ("__builtin__", "list"): _LIST,
    ("builtins", "list"): _LIST,
    ("_codecs", "encode"): _ENCODE,
}


METHODS = {
    "mark": "MARK",
    "put": "PUT BINPUT LONG_BINPUT MEMOIZE",
    "get": "GET BINGET LONG_BINGET",
    **{
        name: name.upper()
        for name in ("tuple", "tuple1", "tuple2", "tuple3", "empty_list", "list", "append", "appends")
    },
    **{name: name.upper() for name in ("empty_dict", "dict", "setitem", "setitems", "global", "stack_global")},
    **{name: name.upper() for name in ("newobj", "reduce", "build")},
}


class Reader:
    """Follows the instructions of one pickle. A method `_x` follows the instructions that `methods` has for it."""

    known: Mapping[tuple[str, str], Global] = KNOWN
    methods: Mapping[str, str] = METHODS
    most_arguments = 3  # of a call

    def __init__(self, file: str, content: bytes, stream: io.BytesIO) -> None:
        self._file = file
        self._content = content
        self._stream = stream
        self._stack: list[Any] = []  # what was made since the last mark
        self._outer: list[list[Any]] = []  # the stacks before each mark
        self._memo: list[Any] = []  # not a dict, since the file chooses the numbers
        self._encodable = len(content)  # characters that may yet be encoded: a file needs each of its texts once

    def read(self) -> object:
        """Return what the pickle holds."""
        follow = {name: getattr(self, f"_{method}") for method, names in self.methods.items() for name in names.split()}
        for place, (opcode, argument, _) in enumerate(pickletools.genops(self._stream)):
            name = opcode.name
            if place >= MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
            if name in _VALUES:
                self._stack.append(argument)
            elif name in follow:
                follow[name](argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name not in _IGNORED:
                raise ValueError(f"the instruction {name}")
        return self._stack.pop()

    def _mark(self, _: Any) -> None:
        self._outer.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        made, self._stack = self._stack, self._outer.pop()
        return made

    def _put(self, number: Any) -> None:
        place = len(self._memo) if number is None else int(number)
        if not 0 <= place <= len(self._content):
            raise ValueError(f"the memo number {shown(place)}, allowed are those up to {len(self._content)}")
        self._memo.extend([_UNSET] * (place + 1 - len(self._memo)))
        self._memo[place] = self._stack[-1]

    def _get(self, number: Any) -> None:
        place = int(number)
        if not 0 <= place < len(self._memo) or self._memo[place] is _UNSET:
            raise ValueError(f"the memo number {shown(place)}, at which nothing was put")
        self._stack.append(self._memo[place])

    def _tuple(self, _: Any) -> None:
        made = tuple(self._since_mark())
        self._stack.append(made)

    def _tuple1(self, _: Any) -> None:
        self._take_tuple(1)

    def _tuple2(self, _: Any) -> None:
        self._take_tuple(2)

    def _tuple3(self, _: Any) -> None:
        self._take_tuple(3)

    def _take_tuple(self, length: int) -> None:
        parts = [self._stack.pop() for _ in range(length)]
        self._stack.append(tuple(parts[::-1]))

    def _empty_list(self, _: Any) -> None:
        self._stack.append([])

    def _list(self, _: Any) -> None:
        made = self._since_mark()
        self._stack.append(made)

    def _append(self, _: Any) -> None:
        last = self._stack.pop()
        self._target(list).append(last)

    def _appends(self, _: Any) -> None:
        made = self._since_mark()
        self._target(list).extend(made)

    def _empty_dict(self, _: Any) -> None:
        self._stack.append(Items())

    def _dict(self, _: Any) -> None:
        made = self._since_mark()
        self._stack.append(Items())
        self._stack[-1].add(made)

    def _setitem(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._target(Items).add([key, value])

    def _setitems(self, _: Any) -> None:
        made = self._since_mark()
        self._target(Items).add(made)

    def _global(self, named: Any) -> None:
        module, _, name = named.partition(" ")
        self._push_global(module, name)

    def _stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ValueError("a global whose name is no text")
        self._push_global(module, name)

    def _push_global(self, module: str, name: str) -> None:
        known = self.known.get((module, name))
        if known is None:
            known_names = sorted({".".join(key) for key in self.known})
            raise _refused(
                self._file, f"a pickle that asks for the global {module[:80]}.{name[:80]}", f"none but {known_names}"
            )
        self._stack.append(known)

    def _newobj(self, _: Any) -> None:
        arguments, cls = self._stack.pop(), self._stack.pop()
        if cls is not _CSR or arguments != ():
            raise ValueError("an object of another class than csr_matrix, or with arguments")
        self._stack.append(Csr())

    def _reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple) or len(arguments) > self.most_arguments:
            raise ValueError("a call that no pickler writes")
        self._stack.append(self._call(function, arguments))

    def _call(self, function: Global, arguments: tuple[Any, ...]) -> object:
        first = arguments[0] if arguments else None
        if function is _DTYPE:
            return _Dtype(first)
        if function is _RECONSTRUCT and first is _NDARRAY:
            return _Array()
        if function is _DEFAULTDICT and (not arguments or (first is _LIST and len(arguments) == 1)):
            return Items()
        if function is _ENCODE and len(arguments) == 2 and isinstance(first, str) and arguments[1] == "latin1":
            self._encodable -= len(first)
            if self._encodable < 0:
                raise ValueError("a text that is encoded again and again")
            return first.encode("latin-1")
        raise ValueError(f"{function.name} called with {len(arguments)} arguments that no pickler passes")

    def _build(self, _: Any) -> None:
        state, built = self._stack.pop(), self._stack[-1]
        if isinstance(built, _Dtype):
            built.set_state(state)
        elif isinstance(built, (_Array, Csr)):
            built.state = state
        else:
            raise ValueError(f"the file tries to change {getattr(built, 'name', f'a {type(built).__name__}')}")

    def _target(self, kind: type[_T]) -> _T:
        """Return the object on top of the stack, which must be of `kind`."""
        if type(self._stack[-1]) is not kind:
            raise ValueError(f"something added to a {type(self._stack[-1]).__name__.lstrip('_')}")
        return self._stack[-1]


def shown_plain(found: object) -> str:
    """Return text about an object for a message. The repr of a tuple of tuples, each used twice, would never end."""
    return shown(found) if type(found) is int else f"of {type(found).__name__.lstrip('_')}"


def fields_of(file: str, found: object, what: str) -> dict[str, object]:
    """Return the fields of an `Items` whose keys are short text, each once."""
    pairs = found.pairs if isinstance(found, Items) else None
    if pairs is None or len(pairs) > MAX_FIELDS:
        shown_as = f"of {type(found).__name__.lstrip('_')}" if pairs is None else f"with {len(pairs)} fields"
        raise DatasetFormatError.of(file, f"{what} {shown_as}", f"a dict of up to {MAX_FIELDS} fields")
    fields: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str) or len(key) > MAX_KEY or key in fields:
            expected = f"text of up to {MAX_KEY} characters, each once"
            raise DatasetFormatError.of(
                file, f"{what} with the field {shown(key) if isinstance(key, str) else shown_plain(key)}", expected
            )
        fields[key] = value
    return fields


def array_of(file: str, found: object, what: str) -> np.ndarray:
    """Return the array that a stand-in describes; it shares the bytes of the pickle."""
    if not isinstance(found, _Array):
        raise DatasetFormatError.of(file, f"{what} of {type(found).__name__.lstrip('_')}", "a numpy array")
    state = found.state
    if not isinstance(state, tuple) or len(state) != 5:
        found_parts = f"{what} without its five parts"
        raise DatasetFormatError.of(file, found_parts, "version, shape, dtype, order, bytes")
    _, shape, dtype, fortran, content = state
    if isinstance(content, str):
        try:
            content = content.encode("latin-1")
        except UnicodeEncodeError as error:
            raise DatasetFormatError.of(file, f"{what} with text for its bytes", "bytes") from error
    if (
        not isinstance(shape, tuple)
        or not 1 <= len(shape) <= 2
        or not all(type(length) is int and 0 <= length <= MAX_LENGTH for length in shape)
        or not isinstance(dtype, _Dtype)
        or type(fortran) not in (bool, int)
        or not isinstance(content, bytes)
    ):
        expected = "one or two dimensions of numbers"
        raise DatasetFormatError.of(file, f"{what} that is no plain array", expected)
    plain = dtype.plain()
    if math.prod(shape) * plain.itemsize != len(content):
        disagreeing = f"{what} of shape {list(shape)} with {len(content)} bytes"
        raise DatasetFormatError.of(file, disagreeing, f"{plain.itemsize} bytes for each element")
    return np.frombuffer(content, dtype=plain).reshape(shape, order="F" if fortran else "C")
