"""Records: frozen dataclasses that are stored or sent as JSON. The annotation of a field gives its JSON form.

* `Annotated[X, form]`: that form, such as `whole(low, high)` or `one_of("node", "edge")`;
* `bool`, `str`, `float`: true or false, a text, a finite number; `X | None`: null, or the form of X;
* `tuple[X, ...]`: a list of up to 65,536 values; `tuple[X, Y]` or a NamedTuple: a list with one value for each field;
* `Mapping[str, X]`: an object; `Mapping[K, X]`: a list of up to 262,144 entries [K, X]. The values of a fixed-length
  tuple K or X are written into the entry itself, not as a list within the entry;
* a dataclass: an object that has exactly its fields. Fields `Annotated[X | None, OMITTED]` that are None are left out.

The reader takes values of unknown origin, as `parse_strict` returns them. It bounds each number and list; the file or
message bounds texts and objects, and the annotations bound the nesting. It refuses a value by a ValueError with the
field, the value found and the values allowed. Checks of one field against another are in `__post_init__` of the record,
and raise ValueError too.

A lambda within an annotation finds no names of its module when the annotation is evaluated: give the form a name in the
module, and annotate with this name. Reading takes a few microseconds more than code by hand; a large list should be a
tensor.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from datapipes.base.checks import INT64_MAX, dtype_from_name, dtype_name, shown
from datapipes.base.types import MOST_CHARACTERS, EdgeType, NodeType

MOST_ENTRIES = 2**16  # of a list
MOST_KEYS = 2**18  # of an object that is a list of entries; a header of 2 MiB has room for no more
OMITTED = object()
Record = TypeVar("Record")


class Form(NamedTuple):
    """How a value is read from JSON and written to JSON.

    Attributes:
        read: function (name, JSON value) -> value, where error messages use the name; raises ValueError if the JSON
            value does not fit.
        write: function value -> JSON value.
        width: length of the JSON list, if the form is a list of fixed length; else 0.
    """

    read: Callable[[str, Any], Any]
    write: Callable[[Any], Any] = lambda value: value
    width: int = 0


def from_json(record: type[Record], name: str, value: Any, *, others: bool = False) -> Record:
    """Return a record of the class `record`, made from the JSON object `value`.

    Args:
        name: what error messages call the object.
        others: True allows other fields in the object, which are ignored.
    Raises:
        ValueError: The object does not fit the class; the message names the field.
    """
    forms: dict[str, tuple[Form, bool]] = _forms_of(record)  # type: ignore[arg-type]  # mypy: no class is hashable
    values = value if isinstance(value, dict) else {}
    names = [field for field, (_, is_omitted) in forms.items() if not is_omitted or values.get(field) is not None]
    wanted = {*names}
    if value is not values or not (values.keys() == wanted or (others and values.keys() > wanted)):
        needed = [field for field, (_, is_omitted) in forms.items() if not is_omitted]
        may_have = [field for field in forms if field not in needed]
        more = (f", may have {may_have} (not null)" if may_have else "") + ("" if others else ", and no others")
        found = [] if value is values else [f"is {shown(value)}"]
        if missing := [field for field in needed if field not in values and value is values]:
            found.append(f"lacks the fields {missing}")
        if not others and (unknown := values.keys() - forms.keys()):
            found.append(f"has the unknown fields {shown(sorted(unknown))}")
        if nulls := [field for field in may_have if field in values and values[field] is None]:
            found.append(f"has null for {nulls}")
        raise ValueError(f"{name} {' and '.join(found)}; it must have the fields {needed}{more}")
    return record(**{field: forms[field][0].read(field, values[field]) for field in names})


def to_json(record: Any) -> dict[str, Any]:
    """Return a record as a JSON object, its fields in the order of the class."""
    forms = _forms_of(type(record))  # type: ignore[arg-type]
    values = {}
    for field, (form, is_omitted) in forms.items():
        value = getattr(record, field)
        if value is not None or not is_omitted:
            values[field] = form.write(value)
    return values


@cache
def form_of(annotation: Any) -> Form:
    """Return the Form of the values with this annotation; the docstring of the module lists the annotations."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return next((arg for arg in args if isinstance(arg, Form)), None) or form_of(args[0])
    if origin in (Union, UnionType):
        return _optional(*(form_of(arg) for arg in args if arg is not type(None)))
    if origin is tuple:
        forms = [form_of(arg) for arg in args if arg is not ...]
        return _listed(forms[0]) if args[-1] is ... else _row([""] * len(forms), forms, tuple)
    if origin is Mapping:
        return _object(form_of(args[1])) if args[0] is str else _entries(form_of(args[0]), form_of(args[1]))
    if is_dataclass(annotation):
        return Form(partial(from_json, annotation), to_json)  # type: ignore[arg-type]
    if issubclass(annotation, tuple):
        hints = get_type_hints(annotation, include_extras=True)
        return _row([*hints], [*map(form_of, hints.values())], annotation._make)
    return _PLAIN[annotation]


@cache
def _forms_of(record: Any) -> dict[str, tuple[Form, bool]]:
    """Return {field: (its form, whether JSON omits it if it is None)}."""
    hints = get_type_hints(record, include_extras=True)
    names = [field.name for field in fields(record)]
    return {name: (form_of(hints[name]), OMITTED in get_args(hints[name])) for name in names}


# --- values


def plain(allowed: str, is_one: Callable[[Any], bool]) -> Form:
    """Return the Form of values that are written to JSON as they are.

    Args:
        allowed: which values fit, in words for errors.
        is_one: tells whether a JSON value fits.
    """

    def read(name: str, value: Any) -> Any:
        if not is_one(value):
            raise ValueError(f"{name} is {shown(value)}; allowed: {allowed}")
        return value

    return Form(read)


def whole(low: int, high: int = INT64_MAX) -> Form:
    """Return the Form of an int in [low, high]."""
    allowed = f"integers in [{low}, {high}], without a decimal point"
    form = plain(allowed, lambda value: type(value) is int and low <= value <= high)
    return form._replace(write=operator.index)  # NumPy's numbers are no JSON


def one_of(*texts: str) -> Form:
    """Return the Form of a text that is one of `texts`."""
    *others, last = map(repr, texts)
    allowed = f"{', '.join(others)} or {last}" if others else last
    return plain(allowed, lambda value: isinstance(value, str) and value in texts)


def dtype_among(*names: str) -> Form:
    """Return the Form of a dtype whose name is one of `names`; the JSON value is the name."""
    named = one_of(*names)
    return Form(lambda name, value: dtype_from_name(name, named.read(name, value)), dtype_name)


Count = Annotated[int, whole(0)]
_NUMBER = plain(
    "numbers between -1.8e308 and 1.8e308",
    lambda value: type(value) in (int, float) and abs(value) <= sys.float_info.max,
)
_PLAIN = {
    bool: plain("true or false", lambda value: type(value) is bool),
    str: plain("texts", lambda value: isinstance(value, str)),
    float: Form(lambda name, value: float(_NUMBER.read(name, value))),
}


def _optional(one: Form) -> Form:
    return Form(
        lambda name, value: None if value is None else one.read(name, value),
        lambda value: None if value is None else one.write(value),
    )


# --- types of nodes and edges, None in a graph without types


_LENGTHS = f"1 to {MOST_CHARACTERS} characters"


def node_type_of(value: Any) -> NodeType | None:
    """Return a JSON value as a node type: null, or a text that is not empty. Raise ValueError for any other value."""
    if value is None or _is_name(value):
        return cast("NodeType | None", value)
    raise ValueError(f"found the node type {shown(value)}; allowed: null or a name of {_LENGTHS}")


def edge_type_of(value: Any) -> EdgeType | None:
    """Return a JSON value as an edge type: null, or a list of three texts. Raise ValueError for any other value."""
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 3:
        src, rel, dst = value
        if _is_name(src) and _is_name(rel) and _is_name(dst):
            return src, rel, dst
    raise ValueError(f"found the edge type {shown(value)}; allowed: null or a list of three names of {_LENGTHS}")


def type_to_json(value: Any) -> Any:
    """Return the JSON value of a node type or an edge type."""
    return [*value] if isinstance(value, tuple) else value


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_CHARACTERS


def _any_type(_: str, value: Any) -> Any:
    return edge_type_of(value) if isinstance(value, list) else node_type_of(value)


OptionalNodeType = Annotated[NodeType | None, Form(lambda _, value: node_type_of(value), type_to_json)]
OptionalEdgeType = Annotated[EdgeType | None, Form(lambda _, value: edge_type_of(value), type_to_json)]
AnyType = Annotated[Any, Form(_any_type, type_to_json)]  # either


# --- lists and objects


def list_of(name: str, value: Any, most: int = MOST_ENTRIES) -> list[Any]:
    """Return `value` if it is a list of at most `most` entries; else raise a ValueError that calls it `name`."""
    if not isinstance(value, list) or len(value) > most:
        seen = f"a list of {len(value)} entries" if isinstance(value, list) else shown(value)
        raise ValueError(f"{name} is {seen}; it must be a list of at most {most} entries")
    return value


def _fixed_list_of(name: str, value: Any, length: int) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"{name} is {shown(value)}; it must be a list of {length} entries")
    return value


def _listed(one: Form) -> Form:
    read, write, _ = one

    def read_all(name: str, value: Any) -> tuple[Any, ...]:
        entry = f"an entry of {name}"
        return tuple([read(entry, element) for element in list_of(name, value)])

    return Form(read_all, lambda values: [write(element) for element in values])


def _row(names: Sequence[str], forms: Sequence[Form], make: Callable[[Any], Any]) -> Form:

    def read(name: str, value: Any) -> Any:
        entries = zip(names, forms, _fixed_list_of(name, value, len(forms)), strict=True)
        return make([form.read(field_name or name, entry) for field_name, form, entry in entries])

    def write(values: Any) -> list[Any]:
        return [form.write(entry) for form, entry in zip(forms, values, strict=True)]

    return Form(read, write, len(forms))


def _object(one: Form) -> Form:
    def read(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"{name} is {shown(value)}; it must be an object {{name: value}}")
        return {key: one.read(name, entry) for key, entry in value.items()}

    return Form(read, lambda values: {key: one.write(entry) for key, entry in values.items()})


def _entries(key: Form, value: Form) -> Form:
    cut, length = key.width or 1, (key.width or 1) + (value.width or 1)

    def read(name: str, pairs: Any) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        for entry in list_of(name, pairs, MOST_KEYS):
            values = _fixed_list_of(f"an entry of {name}", entry, length)
            read_key = key.read(name, values[:cut] if key.width else values[0])
            if read_key in entries:
                raise ValueError(f"{name} has {shown(read_key)} twice")
            entries[read_key] = value.read(name, values[cut:] if value.width else values[cut])
        return entries

    def write(values: Mapping[Any, Any]) -> list[list[Any]]:
        return [_spread(key, entry_key) + _spread(value, entry) for entry_key, entry in values.items()]

    return Form(read, write)


def _spread(form: Form, value: Any) -> list[Any]:
    written: Any = form.write(value)
    return [*written] if form.width else [written]
