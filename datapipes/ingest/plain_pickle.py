"""Read a pickle that has plain data only (numbers, text, tuples, lists, dicts, arrays, tensors), without running it.

A pickle is a program. Python's own unpickler would run it; this module does not use it:

- `Reader` follows the instructions that plain data needs, as `pickletools` finds them, and refuses other instructions.
- `Reader` accepts the globals (functions and classes) that its caller lists. It refuses any other global by name.
- For each global this package has a stand-in, so not even the unpickling code of numpy, scipy or torch runs.
  The callers check the state of stand-ins when they make arrays or tensors of them.
- A dict becomes a list of pairs, `Items`. Hashing keys that the file chose could take quadratic time, or never end
  for tuples of tuples. For the same reason values are never compared, nor written into a message.

Invariant: the file cannot choose code to run and cannot change an object. Time and memory stay in proportion to the
size of the file. Refused with `FileRefused`: truncated, corrupt or hostile files.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from datapipes.base.checks import shown

MAX_LENGTH = 2**48  # of a side of an array or a matrix
MAX_INSTRUCTIONS = 2**25  # of a pickle; some take a byte of the file and a hundred of memory

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_OF_VALUES = """
    INT BININT BININT1 BININT2 LONG LONG1 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE
"""
_VALUES = frozenset(_OF_VALUES.split())
_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_UNSET = object()
_T = TypeVar("_T")
_MOST_ARGUMENTS = 8  # of a call


class FileRefused(ValueError):
    """A file is broken, hostile, or has something other than plain data. No code of the file was run.

    Attributes:
        found, expected: texts for an error that names the file: what the file has, and what it should have.
        remedy: a text that says what to do; "": another copy of the file may help.
        named: the unknown global because of which the file was refused; None if the reason is another.
    """

    def __init__(self, found: str, expected: str, remedy: str = "", named: str | None = None) -> None:
        super().__init__(f"found {found}; expected {expected}")
        self.found, self.expected, self.remedy, self.named = found, expected, remedy, named


_DISTRUST = "Do not trust this file; nothing of it was run."


class Items:
    """What a Reader makes of a dict in a pickle: its (key, value) pairs, unhashed, in the order of the file."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[object, object]] = []

    def add(self, flat: list[object]) -> None:
        """Add pairs from the list `flat`: a key, its value, the next key, its value, and so on."""
        self.pairs.extend(zip(flat[::2], flat[1::2], strict=True))


def _refuse_call(*_: object) -> object:
    raise TypeError("something that is not called")


class Global:
    """What a Reader makes of a function or class that a pickle names; the real one is never called.

    Args:
        name: its name in errors.
        make: called when the pickle calls the global, with the same arguments; returns what stands for the result. It
            raises TypeError for arguments that no pickler passes, and ValueError for impossible values. By default the
            global cannot be called, and may only be an argument.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., object] = _refuse_call) -> None:
        self.name, self.make = name, make


def _empty_dict(default: object = None) -> Items:
    if default is not None and not isinstance(default, Global):
        raise TypeError("a default that is no class")
    return Items()


ENCODE = Global("encode")  # of a text in latin-1: bytes are written this way in Python 2's protocols; Reader bounds it
PLAIN: dict[tuple[str, str], Global] = {
    ("collections", "defaultdict"): Global("defaultdict", _empty_dict),
    **{(module, name): Global(name) for module in ("__builtin__", "builtins") for name in ("list", "dict")},
    ("_codecs", "encode"): ENCODE,
}


def parse_pickles(
    content: bytes, allowed: Mapping[tuple[str, str], Global], count: int = 1, kind: type[Reader] | None = None
) -> list[object]:
    """Read the first `count` pickles in `content` without running them, and return their objects.

    Args:
        content: the pickles, one after another; anything may follow.
        allowed: {(module, name): Global}, the globals that pickles may name.
        kind: the class that reads the pickles; None for Reader.
    Raises:
        FileRefused: A pickle is broken or hostile, or holds something else.
    """
    stream = io.BytesIO(content)
    try:
        return [(kind or Reader)(content, stream, allowed).read() for _ in range(count)]
    except FileRefused:
        raise
    except Exception as error:  # a corrupt stream can raise nearly anything; no other code runs in here
        text = f"a broken pickle ({type(error).__name__}: {str(error)[:200]})"
        raise FileRefused(text, "a whole one, as published") from error


METHODS = {
    "mark": "MARK",
    "put": "PUT BINPUT LONG_BINPUT MEMOIZE",
    "get": "GET BINGET LONG_BINGET",
    **{name: name.upper() for name in ("tuple", "empty_list", "list", "append", "appends")},
    **{name: name.upper() for name in ("empty_dict", "dict", "setitem", "setitems", "global", "stack_global")},
    "fixed_tuple": "TUPLE1 TUPLE2 TUPLE3",
    "call": "NEWOBJ REDUCE",
    "build": "BUILD",
}


class Reader:
    """Follows the instructions of one pickle and builds its object, without running code that the pickle names.

    The method `_x` handles the instructions named in `methods["x"]`.
    """

    methods: Mapping[str, str] = METHODS

    def __init__(self, content: bytes, stream: io.BytesIO, allowed: Mapping[tuple[str, str], Global]) -> None:
        self._content, self._stream, self._allowed = content, stream, allowed
        self._stack: list[Any] = []  # objects since the last mark
        self._outer: list[list[Any]] = []  # the stacks before each mark
        self._memo: list[Any] = []  # not a dict, since the file chooses the numbers
        self._encodable = len(content)  # characters that may still be encoded: a file needs each of its texts once

    def read(self) -> object:
        """Follow the instructions, and return the object in the pickle."""
        follow = {name: getattr(self, f"_{method}") for method, names in self.methods.items() for name in names.split()}
        for place, (opcode, argument, position) in enumerate(pickletools.genops(self._stream)):
            name = opcode.name
            if place >= MAX_INSTRUCTIONS:
                raise ValueError(f"more than {MAX_INSTRUCTIONS} instructions")
            if name in _VALUES:
                self._stack.append(argument)
            elif name in follow:
                try:
                    follow[name](int(name[-1]) if name.startswith("TUPLE") and name != "TUPLE" else argument)
                except IndexError as error:
                    raise ValueError(f"its operation {name} takes more values than there are") from error
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            elif name not in _IGNORED:
                text = "" if argument is None else f" {shown(argument)}"
                instruction = f"the pickle instruction {name}{text} at byte {position}"
                raise FileRefused(instruction, "plain numbers, text, lists, dicts and arrays", _DISTRUST)
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

    def _fixed_tuple(self, length: int) -> None:
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
        if (module, name) not in self._allowed:
            named = f"{module[:80]}.{name[:80]}"
            allowed = shown(sorted({".".join(key) for key in self._allowed}))
            raise FileRefused(f"a pickle that asks for the global {named}", f"none but {allowed}", _DISTRUST, named)
        self._stack.append(self._allowed[module, name])

    def _call(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        is_call = isinstance(function, Global) and isinstance(arguments, tuple) and len(arguments) <= _MOST_ARGUMENTS
        if not is_call:
            raise ValueError("a call that no pickler writes")
        try:
            made = self._encoded(*arguments) if function is ENCODE else function.make(*arguments)
        except TypeError as error:
            text = f"{function.name} called with {len(arguments)} arguments that no pickler passes"
            raise ValueError(text) from error
        self._stack.append(made)

    def _encoded(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise TypeError("no text in latin-1")
        self._encodable -= len(text)
        if self._encodable < 0:
            raise ValueError("a text that is encoded again and again")
        return text.encode("latin-1")

    def _build(self, _: Any) -> None:
        state, built = self._stack.pop(), self._stack[-1]
        if not hasattr(built, "set_state"):
            raise ValueError(f"the file tries to change {getattr(built, 'name', f'a {type(built).__name__}')}")
        built.set_state(state)

    def _target(self, kind: type[_T]) -> _T:
        """Return the object on top of the stack, which the pickle wants to fill. ValueError unless it is of `kind`."""
        if type(self._stack[-1]) is not kind:
            raise ValueError(f"something added to a {kind_of(self._stack[-1])}")
        return self._stack[-1]


def kind_of(value: object) -> str:
    """Return the class name of a value that a Reader made, for errors: a repr of the value might never end."""
    return type(value).__name__.lstrip("_")
