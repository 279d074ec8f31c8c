"""Functional forms of stages: `pipe.sample_neighbor(...)` for `NeighborSampler(pipe, ...)`.

`register_stage` adds the method to every stage. Type checkers and editors read the methods from `functional.pyi`, which
`make stubs` writes from the registered constructors; a test keeps the two equal.
"""

from __future__ import annotations

import inspect
import keyword
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)
_registry: dict[str, type] = {}


class FunctionalForms:
    """Carries the methods that `register_stage` adds."""


def register_stage(name: str) -> Callable[[_Class], _Class]:
    """Give a stage class the functional form `name`: `source.name(...)` builds `cls(source, ...)`.

    Raises:
        ValueError: `name` is no identifier, is taken by another stage, or would hide an attribute of Stage.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"register_stage: {name!r} is not a usable method name. Use letters, digits and '_'.")

    def register(cls: _Class) -> _Class:
        if not (isinstance(cls, type) and issubclass(cls, FunctionalForms)):
            raise TypeError(f"register_stage: {cls!r} is not a subclass of Stage. Derive it from MiniBatchTransformer.")
        known = _registry.get(name)
        same = known is not None and (known.__module__, known.__qualname__) == (cls.__module__, cls.__qualname__)
        if known is not None and not same:
            raise ValueError(f"register_stage: {name!r} already names {known.__qualname__}. Choose another name.")
        if known is None and any(FunctionalForms in base.__bases__ and hasattr(base, name) for base in cls.__mro__):
            raise ValueError(
                f"register_stage: {name!r} is an attribute of {cls.__qualname__} already. Choose another name."
            )

        def functional_form(source: Any, *args: Any, **kwargs: Any) -> Any:
            return _registry[name](source, *args, **kwargs)

        functional_form.__name__ = name
        functional_form.__qualname__ = f"Stage.{name}"
        functional_form.__doc__ = f"Functional form of {cls.__qualname__}.\n\n{inspect.getdoc(cls)}"
        _registry[name] = cls
        setattr(FunctionalForms, name, functional_form)
        return cls

    return register


def registered_stages() -> dict[str, type]:
    """Return {functional name: stage class}, in the order of the names."""
    return dict(sorted(_registry.items()))


def functional_name(cls: type) -> str:
    """Return the functional name of a registered stage class, of others the class name in snake case."""
    for name, known in _registry.items():
        if known is cls:
            return name
    return "".join(f"_{char.lower()}" if char.isupper() and i else char.lower() for i, char in enumerate(cls.__name__))


# --- the stub ---------------------------------------------------------------------------------------------------------


def stub_text(module_prefix: str = "datapipes.") -> str:
    """Return the text of functional.pyi: one method for each registered stage of this package."""
    modules: set[str] = set()
    methods = []
    for name, cls in registered_stages().items():
        if cls.__module__.startswith(module_prefix):
            methods.append(_method_text(name, cls, modules))
    imports = "\n".join(f"import {module}" for module in sorted(modules))
    return (
        '"""Written by `make stubs`; do not edit."""\n\n'
        f"{imports}\nfrom collections.abc import Callable\nfrom typing import Any, TypeVar\n\n"
        '_Class = TypeVar("_Class", bound=type)\n\n'
        "def register_stage(name: str) -> Callable[[_Class], _Class]: ...\n"
        "def registered_stages() -> dict[str, type]: ...\n"
        "def functional_name(cls: type) -> str: ...\n"
        "def stub_text(module_prefix: str = ...) -> str: ...\ndef write_stub() -> None: ...\n\n"
        "class FunctionalForms:\n" + "\n".join(methods) + "\n"
    )


def _method_text(name: str, cls: type, modules: set[str]) -> str:
    constructor: Any = cls.__init__  # type: ignore[misc]
    hints = typing.get_type_hints(constructor)
    parameters = list(inspect.signature(constructor).parameters.values())[2:]
    texts = ["self"]
    star_written = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star_written:
            texts.append("*")
            star_written = True
        text = f"{parameter.name}: {_type_text(hints[parameter.name], modules)}"
        if parameter.default is not parameter.empty:
            text += (
                f" = {parameter.default!r}"
                if isinstance(parameter.default, (int, str, float, type(None)))
                else " = ..."
            )
        texts.append(text)
    if hasattr(cls, name) and not getattr(cls, name).__qualname__.startswith("Stage."):
        # the class has a method of this name as well: only a signature that promises nothing can be overridden by both
        return f"    def {name}(self, *args: Any, **kwargs: Any) -> Any: ..."
    modules.add(cls.__module__)
    return f"    def {name}({', '.join(texts)}) -> {cls.__module__}.{cls.__qualname__}: ..."


def _type_text(hint: Any, modules: set[str]) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "None"
    if hint is Ellipsis:
        return "..."
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_type_text(arg, modules) for arg in args)
    if isinstance(hint, list):
        return "[" + ", ".join(_type_text(arg, modules) for arg in hint) + "]"
    if origin is not None:
        return f"{_type_text(origin, modules)}[{', '.join(_type_text(arg, modules) for arg in args)}]"
    if hint.__module__ == "builtins":
        return str(hint.__name__)
    modules.add(hint.__module__)
    return f"{hint.__module__}.{getattr(hint, '__qualname__', None) or hint._name}"


def write_stub() -> None:
    """Write functional.pyi beside this module; `make stubs` calls it."""
    Path(__file__).with_suffix(".pyi").write_text(stub_text(), encoding="utf-8")
