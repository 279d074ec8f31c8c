"""Errors about names from PyG, GraphBolt and torch: each says what the name is here.

name_tables.py is the one place for the names. docs/migrate/ has the whole story.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, NoReturn

from datapipes.base.name_tables import ATTRIBUTES, KEYWORDS, Table


class OtherName:
    """An attribute that a class does not have, under the name of another library: reading it raises AttributeError.

    Each name is one such attribute of the class and not a case in `__getattr__`, which would make every attribute of
    the class slower to read.
    """

    def __init__(self, owner: str, name: str, ours: str) -> None:
        self._owner, self._name, self._ours = owner, name, ours

    def __get__(self, obj: object, cls: type | None = None) -> NoReturn:
        owner = self._owner if obj is None else type(obj).__name__
        raise AttributeError(attribute_text(owner, self._name, self._ours), name=self._name, obj=obj)


def add_other_names(cls: type, owner: str) -> None:
    """Give `cls` the rows of `owner` in ATTRIBUTES, but for names that it or a base of it has."""
    for name, ours in ATTRIBUTES.get(owner, {}).items():
        if not any(name in vars(base) for base in cls.__mro__):
            setattr(cls, name, OtherName(owner, name, ours))


class OtherNames:
    """Base of the classes in ATTRIBUTES. The error for such a name says what to use; all other errors are Python's."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__module__.startswith("datapipes."):
            add_other_names(cls, cls.__name__)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if type(inspect.getattr_static(self, name, None)) is not OtherName]


def attribute_text(owner: str, name: str, ours: str) -> str:
    """Return the text of the error for an attribute that is called something else here."""
    return f"{owner} has no {name!r}. Here: {ours}."


def missing_public_name(name: str) -> AttributeError:
    """Return the error for a name that the package `datapipes` does not have."""
    ours = ATTRIBUTES["datapipes"].get(name)
    text = f"module 'datapipes' has no attribute {name!r}" if ours is None else attribute_text("datapipes", name, ours)
    return AttributeError(text, name=name)


def refuse_other_keywords(where: str, cls: type, keywords: Iterable[str]) -> None:
    """Raise TypeError for a keyword of KEYWORDS that the constructor of `cls` does not take.

    Raises:
        TypeError: As Python would; the message says what to use.
    """
    for name in keywords:
        ours = _row(KEYWORDS, cls, name)
        if ours is None:
            continue
        parameters = inspect.signature(cls.__init__).parameters  # type: ignore[misc]  # of this very class
        if name not in parameters and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            raise TypeError(f"{where}: {cls.__name__} takes no {name!r}. Here: {ours}.")


def _row(table: Table, cls: type, name: str) -> str | None:
    """Return what `table` says about a name of `cls` or of one of its bases."""
    for base in cls.__mro__:
        rows = table.get(base.__name__.removeprefix("Dist"))  # a sampler of parts has the names of one of whole graphs
        if rows is not None and name in rows:
            return rows[name]
    return None
