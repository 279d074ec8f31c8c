"""ShownNames, the metaclass of public classes: `dir`, completion and `help` show what users may touch.

A class lists in `_hidden` the public names that only other classes of the package use. Names of other libraries, which
raise when they are read (compat/other_names.py), say so by `is_foreign`. All of them are found as before.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from collections.abc import Iterable
from typing import Any


class ShownNames(type):
    """Leaves hidden names out of the `dir` of a class and of its instances."""

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        namespace.setdefault("__dir__", _dir_of_instance)
        return super().__new__(mcs, name, bases, namespace, **options)

    def __dir__(cls) -> Iterable[str]:
        return _shown(cls, super().__dir__())


class ShownABC(ShownNames, ABCMeta):
    """ShownNames for classes with abstract methods."""


def _dir_of_instance(self: object) -> Iterable[str]:
    return _shown(type(self), object.__dir__(self))


def _shown(cls: type, names: Iterable[str]) -> list[str]:
    hidden = {name for base in cls.__mro__ for name in vars(base).get("_hidden", ())}
    return [name for name in names if name not in hidden and not _is_foreign(inspect.getattr_static(cls, name, None))]


def _is_foreign(found: Any) -> bool:
    return bool(vars(type(found)).get("is_foreign", False))
