"""Read a pickle that holds plain data only: numbers, text, lists, dicts, arrays and CSR matrices.

A pickle is a program. Three layers keep it harmless:

- `_check_opcodes` reads the file first. It refuses every instruction that plain data does not need.
- `_PlainUnpickler` knows ten names of seven globals and refuses any other by name.
- Each of these globals is replaced by a stand-in of this module, so not even the unpickling code of numpy or scipy
  runs. `array_of` checks the stand-ins and makes arrays of them.

Invariant: the file cannot choose code to run and cannot change an object. Memory stays in proportion to the size of the
file. Refused with `DatasetFormatError`: truncated, corrupt or hostile files.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from datapipes.datasets.raw import DatasetFormatError

MAX_TUPLES = 1024

_PLAIN_OPCODES = """
    PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD NONE NEWTRUE NEWFALSE INT BININT BININT1
    BININT2 LONG LONG1 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE
    SHORT_BINUNICODE TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 LIST EMPTY_LIST APPEND APPENDS DICT EMPTY_DICT
    SETITEM SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
"""
_OPCODES = frozenset(_PLAIN_OPCODES.split())
_TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_OPCODES_THAT_MAKE = """
    GLOBAL STACK_GLOBAL NEWOBJ REDUCE LONG LONG1 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE EMPTY_TUPLE LIST EMPTY_LIST DICT EMPTY_DICT
"""
_MAKERS = _TUPLES | frozenset(_OPCODES_THAT_MAKE.split())
_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"})


def read_pickle(path: Path) -> object:
    """Return the content of a pickle: numbers, text, tuples, lists, dicts, and the stand-ins below."""
    content = path.read_bytes()
    try:
        _check_opcodes(path.name, content)
        return _PlainUnpickler(path.name, content).load()
    except DatasetFormatError:
        raise
    except Exception as error:  # a corrupt stream can raise nearly anything; no other code runs in here
        raise DatasetFormatError.of(
            path.name,
            f"a broken pickle ({type(error).__name__}: {str(error)[:200]})",
            "a whole one, as published",
        ) from error


def _check_opcodes(file: str, content: bytes) -> None:
    """Refuse a pickle that could run code, or make the unpickler use time or memory out of proportion.

    Memo numbers are bounded, because the unpickler allocates that many places. The number of tuples is
    bounded, and a tuple must not be read back from the memo. So no tuple is deep or has more leaves than
    the file has bytes; hashing such a tuple as the key of a dict would never end. An object must be put in
    the memo right after it is made. Every pickler does so, and this walk then knows which places hold
    tuples.
    """
    num_tuples, last = 0, ""
    memo: set[int] = set()
    kept_tuples: set[int] = set()
    for opcode, argument, position in pickletools.genops(content):
        name = opcode.name
        if name not in _OPCODES:
            shown = "" if argument is None else f" {str(argument)[:80]!r}"
            raise DatasetFormatError.of(
                file,
                f"the pickle instruction {name}{shown} at byte {position}",
                "plain numbers, text, lists, dicts and arrays",
                "Do not trust this file; nothing of it was run.",
            )
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if not 0 <= place <= len(content) or last not in _MAKERS:
                raise DatasetFormatError.of(
                    file,
                    f"the memo number {place} after {last or 'nothing'} at byte {position}",
                    f"numbers up to {len(content)}, each after the object it is for",
                )
            memo.add(place)
            if last in _TUPLES:
                kept_tuples.add(place)
            else:
                kept_tuples.discard(place)
        elif name in ("GET", "BINGET", "LONG_BINGET") and int(argument or 0) in kept_tuples:
            raise DatasetFormatError.of(file, f"a tuple used twice at byte {position}", "each tuple once")
        num_tuples += name in _TUPLES
        if num_tuples > MAX_TUPLES:
            raise DatasetFormatError.of(file, f"more than {MAX_TUPLES} tuples", "a few for the shapes of arrays")
        if name != "FRAME":
            last = name


class _Dtype:
    """Stands for `numpy.dtype`; its state may set the byte order and nothing else."""

    __slots__ = ("byte_order", "spec")

    def __init__(self, spec: object, *flags: object) -> None:
        if not isinstance(spec, str) or spec not in _DTYPES:
            shown = spec[:20] if isinstance(spec, str) else type(spec).__name__
            raise ValueError(f"dtype {shown!r} is none of {sorted(_DTYPES)}")
        self.spec, self.byte_order = spec, "|"

    def __setstate__(self, state: object) -> None:
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

    def __setstate__(self, state: object) -> None:
        self.state = state


class Csr:
    """Stands for `scipy.sparse.csr_matrix`. `NEWOBJ` makes it, so the pickle must see a class here.

    A `BUILD` aimed at the class itself calls `__setstate__` without an instance, and fails.
    """

    __slots__ = ("state",)
    state: object

    def __new__(cls) -> Csr:
        matrix = super().__new__(cls)
        matrix.state = None
        return matrix

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Global:
    """Stands for a function or class that a pickle names. It can be called but not changed."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __setstate__(self, state: object) -> None:
        raise ValueError(f"the file tries to change {self._name}")

    def __call__(self, *arguments: object) -> object:
        if self._name == "numpy.dtype":
            return _Dtype(*arguments)
        if self._name == "numpy._reconstruct" and arguments[:1] == (_NDARRAY,):
            return _Array()
        if self._name == "collections.defaultdict" and arguments in ((), (_LIST,)):
            return {}
        if self._name == "codecs.encode":
            text, encoding = arguments
            if isinstance(text, str) and encoding == "latin1":
                return text.encode("latin-1")
        raise ValueError(f"{self._name} called with {len(arguments)} arguments that no pickler passes")


_NDARRAY = _Global("numpy.ndarray")
_LIST = _Global("list")
_RECONSTRUCT = _Global("numpy._reconstruct")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that knows no globals except `_KNOWN`."""

    _KNOWN: ClassVar[dict[tuple[str, str], object]] = {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _Global("numpy.dtype"),
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("scipy.sparse.csr", "csr_matrix"): Csr,
        ("scipy.sparse._csr", "csr_matrix"): Csr,
        ("collections", "defaultdict"): _Global("collections.defaultdict"),
        ("__builtin__", "list"): _LIST,
        ("builtins", "list"): _LIST,
        ("_codecs", "encode"): _Global("codecs.encode"),
    }

    def __init__(self, file: str, content: bytes) -> None:
        super().__init__(io.BytesIO(content), fix_imports=False, encoding="latin-1")
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a global, or refuse it."""
        if (module, name) not in self._KNOWN:
            known = sorted({".".join(key) for key in self._KNOWN})
            raise DatasetFormatError.of(
                self._file,
                f"a pickle that asks for the global {module}.{name}",
                f"none but {known}",
                "Do not trust this file; nothing of it was run.",
            )
        return self._KNOWN[module, name]


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
        or not all(type(length) is int and length >= 0 for length in shape)
        or not 1 <= len(shape) <= 2
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
