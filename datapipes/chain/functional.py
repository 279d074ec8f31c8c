"""Functional forms of stages: `pipe.sample_neighbor(...)` for `NeighborSampler(pipe, ...)`.

`register_stage` adds the method to every stage. Type checkers and editors read the methods from `functional.pyi`, which
`make stubs` writes from the registered constructors; a test checks that the file is up to date.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import keyword
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["register_stage"]

_Class = TypeVar("_Class", bound=type)
_registry: dict[str, type] = {}
_expected: dict[str, str] = {}  # {functional name: the module that registers it when it is imported}
_names: dict[type, str] = {}  # {stage class: functional name}; every call of a stage looks its name up


class FunctionalForms:
    """Base of all stages. For each functional form, `register_stage` adds a method to this class."""


def register_stage(name: str) -> Callable[[_Class], _Class]:
    """Give a stage class the functional form `name`: `source.name(...)` builds `cls(source, ...)`.

    Raises:
        ValueError: `name` is no identifier, is taken by another stage, or would hide an attribute of Stage.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(
            f"register_stage: {name!r} cannot name a method of stages. Use letters, digits and '_'; begin with a "
            "letter, and take no keyword of Python."
        )

    def register(cls: _Class) -> _Class:
        if not (isinstance(cls, type) and issubclass(cls, FunctionalForms)):
            raise TypeError(f"register_stage: {cls!r} is not a subclass of Stage. Derive it from MiniBatchTransformer.")
        if name in _expected and not cls.__module__.startswith(_expected[name]):
            importlib.import_module(_expected[name])
        registered = _registry.get(name)
        same = registered is not None and (registered.__module__, registered.__qualname__) == (
            cls.__module__,
            cls.__qualname__,
        )
        if registered is not None and not same:
            raise ValueError(f"register_stage: {name!r} already names {registered.__qualname__}. Choose another name.")
        is_new = registered is None and name not in _expected
        if is_new and any(FunctionalForms in base.__bases__ and hasattr(base, name) for base in cls.__mro__):
            raise ValueError(
                f"register_stage: {name!r} is an attribute of {cls.__qualname__} already. Choose another name."
            )

        _registry[name] = cls
        _names[cls] = name
        _add_form(name, f"Functional form of {cls.__qualname__}.\n\n{inspect.getdoc(cls)}")
        return cls

    return register


def expect_stages(module: str, *names: str) -> None:
    """Give every stage the functional forms `names` of stages in `module`. The first use of a form imports `module`."""
    for name in names:
        _expected[name] = module
        _add_form(name, f"Functional form of a stage of {module}.")


def _add_form(name: str, doc: str) -> None:
    def functional_form(source: Any, *args: Any, **kwargs: Any) -> Any:
        if name not in _registry:
            importlib.import_module(_expected[name])
        return _registry[name](source, *args, **kwargs)

    functional_form.__name__ = name
    functional_form.__qualname__ = f"Stage.{name}"
    functional_form.__doc__ = doc
    setattr(FunctionalForms, name, functional_form)


def registered_stages() -> dict[str, type]:
    """Return {functional name: stage class}, sorted by name. Imports the modules of `expect_stages` first."""
    for module in {*_expected.values()}:
        importlib.import_module(module)
    return dict(sorted(_registry.items()))


def functional_name(cls: type) -> str:
    """Return the functional name of a registered stage class; for any other class, its name in snake case."""
    return _registered(cls) or _snake_case(cls.__name__)


def names_of(cls: type) -> set[str]:
    """Return the functional names by which `cls` is found in a chain: its own name, and the registered name of its
    nearest base class.
    """
    nearest = next((name for base in cls.__mro__ if (name := _registered(base)) is not None), None)
    return {functional_name(cls), *([] if nearest is None else [nearest])}


def _registered(cls: type) -> str | None:
    name = _names.get(cls)
    return name if name is not None and _registry.get(name) is cls else None


@functools.cache
def _snake_case(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() and i else char.lower() for i, char in enumerate(name))
