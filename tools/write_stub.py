"""Write datapipes/chain/functional.pyi: the methods that registered stages add to every stage, for editors.

Run: make stubs   (a test fails if the file differs from the registered constructors)
"""

from __future__ import annotations

import inspect
import types
import typing
from pathlib import Path
from typing import Any

import datapipes
from datapipes.chain.functional import registered_stages

STUB = Path(datapipes.__file__).parent / "chain" / "functional.pyi"


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
        "def expect_stages(module: str, *names: str) -> None: ...\n"
        "def registered_stages() -> dict[str, type]: ...\n"
        "def functional_name(cls: type) -> str: ...\n"
        "def names_of(cls: type) -> set[str]: ...\n\n"
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
        # The class also has its own method of this name. Only a signature without promises fits both.
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


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
