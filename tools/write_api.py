"""Write the pages of the API reference: an entry for each public name, which Sphinx fills from the docstring.

A public name stands in the `__all__` of the package, or of a folder in SPACES, which users import from. The names in
CORE stand on a page for each folder that defines them, those of the others on a page for each of SPACES. A name that
several of them export has one entry.

Run: make stubs   (a test fails where a page is out of date)
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from datapipes.chain.functional import FunctionalForms, registered_stages

API = Path(__file__).parents[1] / "docs" / "api"
CORE = ("datapipes", "datapipes.stages")
SPACES = (
    "datapipes.datasets",
    "datapipes.distributed",
    "datapipes.pyg.loader",
    "datapipes.pyg",
    "datapipes.pyg.distributed",
)
TITLES = {  # of the pages, in the order of the reference
    "datapipes.seeds": "Seeds",
    "datapipes.sampling": "Samplers",
    "datapipes.graph": "Graphs",
    "datapipes.features": "Features",
    "datapipes.device": "Devices",
    "datapipes.chain": "Stages and chains",
    "datapipes.loader": "Loaders",
    "datapipes.minibatch": "Minibatches",
    "datapipes.channel": "Channels",
    "datapipes.base": "Errors and the random key",
    "datapipes.datasets": "Data sets",
    "datapipes.distributed": "Parts, servers and clients",
    "datapipes.pyg.loader": "PyG's loaders",
    "datapipes.pyg": "PyG's sampler",
    "datapipes.pyg.distributed": "PyG's distributed loaders",
}
INTRODUCTION = """\
# API reference

Every public name, by the folder that defines it. `dp` is `datapipes`; the names of `dp.datasets`, `dp.distributed` and
`datapipes.pyg` are imported from there, and from `dp.stages` what those need who write stages, samplers
or channels. [The tour](../tour.md#stages) lists the stages by their functional forms, and
[names.md](../migrate/names.md) says what the names of other libraries are here.
"""


def entries() -> dict[str, dict[str, Any]]:
    """Return {page: {dotted name: object}}; `page` is the module that the page is about."""
    found: dict[str, dict[str, Any]] = {page: {} for page in TITLES}
    seen: set[int] = set()
    for space in (*CORE, *SPACES):
        module = importlib.import_module(space)
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, ModuleType) or (callable(value) and id(value) in seen) or not is_ours(value):
                continue
            seen.add(id(value))
            page = space if space not in CORE else ".".join(_module_of(name, value).split(".")[:2])
            if page not in found:
                raise ValueError(f"{space}.{name} is defined in {page}, which has no page. Add it to TITLES.")
            found[page][f"{space}.{name}"] = value
    return found


def is_ours(value: Any) -> bool:
    """Return whether a public name is of this package: some modules hand on classes of PyG."""
    return not callable(value) or str(value.__module__).startswith("datapipes.")


def page_text(module: str, names: dict[str, Any], public: set[int]) -> str:
    """Return a page: what the module is, if users import from it, and its entries."""
    title = f"{TITLES[module]}: {module}" if module in SPACES else TITLES[module]
    parts = [f"{title}\n{'=' * len(title)}\n"]
    if module in SPACES:
        parts.append(f".. automodule:: {module}\n   :no-members:\n")
    return "\n".join([*parts, *(_entry(name, value, public) for name, value in names.items())])


def index_text(found: dict[str, dict[str, Any]]) -> str:
    """Return the page that lists all names, with the first sentence of each docstring."""
    parts = [INTRODUCTION]
    for module, names in found.items():
        rows = [f"| `{_short(name)}` | {_summary(name, value)} |\n" for name, value in names.items()]
        parts.append(f"## [{TITLES[module]}]({_file(module)})\n\n| name | |\n| --- | --- |\n{''.join(rows)}")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Return {path: text} of all pages of the reference."""
    found = entries()
    public = {id(value) for names in found.values() for value in names.values()}
    texts = {API / _file(module): page_text(module, names, public) for module, names in found.items()}
    return {API / "index.md": index_text(found), **texts}


def _file(module: str) -> str:
    return module.partition(".")[2].replace(".", "-") + ".rst"


def _short(name: str) -> str:
    """Return how the docs write a name: `dp.` for the package, the module's full name for PyG's."""
    return name if name.startswith("datapipes.pyg") else f"dp.{name.partition('.')[2]}"


def _entry(name: str, value: Any, public: set[int]) -> str:
    if inspect.isclass(value):
        kind = "exception" if issubclass(value, BaseException) else "class"
        lines = [f".. auto{kind}:: {name}"]
        if name.startswith(
            "datapipes.stages."
        ):  # pages of source text link to all names of a module as `datapipes.NAME`
            lines[:0] = [".. raw:: html", "", f'   <span id="datapipes.{value.__name__}"></span>', ""]
        if any(id(base) in public or _is_foreign(base) for base in value.__bases__ if base is not object):
            lines.append("   :show-inheritance:")
        if members := _members(value, public):
            listed = f"   :members: {', '.join(members)}"
            lines += textwrap.wrap(listed, 120, subsequent_indent=" " * 6)
        forms = [form for form, cls in registered_stages().items() if cls is value]
        lines += ["", f"   Functional form: `pipe.{forms[0]}(...)`"] if forms else []
    elif callable(value):
        lines = [f".. autofunction:: {name}"]
    else:
        lines = [f".. py:data:: {name}", f"   :value: {value!r}", "", f"   {_comment(name)}"]
    return "\n".join(lines) + "\n"


def _is_foreign(cls: type) -> bool:
    return not cls.__module__.startswith("datapipes.")


def _members(cls: type, public: set[int]) -> list[str]:
    """Return the members with a docstring, of the class and its private bases; a public base has its own entry."""
    above = [base for base in inspect.getmro(cls)[1:] if id(base) in public or _is_foreign(base)]
    own = [base for base in inspect.getmro(cls) if not any(issubclass(each, base) for each in above)]
    own = [base for base in own if base is not FunctionalForms]  # each stage names its form
    shown = {name for name in dir(cls) if not name.startswith("_")}
    names = dict.fromkeys(name for base in own for name in vars(base) if name in shown)
    return [name for name in names if _has_docstring(inspect.getattr_static(cls, name))]


def _has_docstring(member: Any) -> bool:
    described = (FunctionType, property, classmethod, staticmethod, functools.cached_property)
    return isinstance(member, described) and bool(member.__doc__)


def _summary(name: str, value: Any) -> str:
    """Return how a docstring begins, up to the end of its first sentence or clause."""
    text = (inspect.getdoc(value) or "") if callable(value) else _comment(name)
    first = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.;:]) ", first)[0].rstrip(";:").replace("|", r"\|")


def _comment(name: str) -> str:
    """Return the comment `#: ...` above a constant."""
    short = name.rpartition(".")[2]
    module = _module_of(short, None)
    if found := re.search(rf"^#: (.*)\n{short}\b", inspect.getsource(sys.modules[module]), re.MULTILINE):
        return found[1]
    raise ValueError(f"{module}: {short} has no comment that says what it is. Write `#: ...` above it.")


def _module_of(name: str, value: Any) -> str:
    """Return the module that defines a public name; a constant does not know it."""
    if callable(value):
        return str(value.__module__)
    ours = {path: module for path, module in sys.modules.items() if path.startswith("datapipes.")}
    return next(path for path, module in ours.items() if not hasattr(module, "__path__") and name in _all_of(module))


def _all_of(module: ModuleType) -> list[str]:
    return getattr(module, "__all__", [])


if __name__ == "__main__":
    API.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
