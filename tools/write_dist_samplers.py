"""Write datapipes/distributed/dist_samplers.py: each sampler that draws by a choice, under a name for graphs in parts.

A class X that derives from ChoiceSampler, the stage `sample_x`, gets a class DistX and the name `dist_sample_x`. Its
constructor takes `dist_graph` in the place of `graph`, and `concurrency` is a number. Type checkers and editors read
the file as any other.

Run: make stubs   (a test fails if the file differs from the registered constructors)
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import datapipes
import datapipes.sampling
from datapipes.chain.functional import registered_stages
from datapipes.distributed.sampler_over_parts import OneHopSampler, SamplerOverParts
from datapipes.sampling.choice_sampler import ChoiceSampler

FILE = Path(datapipes.__file__).parent / "distributed" / "dist_samplers.py"
BASES = {"sample_neighbor": OneHopSampler}  # of SamplerOverParts, where a sampler has more methods
HEAD = '''\
"""The samplers under their `dist_` names, which require a graph in parts. Written by `make stubs`; do not edit."""

from __future__ import annotations

'''


def module_text() -> str:
    """Return the text of dist_samplers.py."""
    for module in pkgutil.iter_modules(datapipes.sampling.__path__, "datapipes.sampling."):
        importlib.import_module(module.name)  # a new one is in no `__init__` yet
    samplers = {
        name: cls
        for name, cls in registered_stages().items()
        if issubclass(cls, ChoiceSampler) and cls.__module__.startswith("datapipes.sampling.")
    }
    imports = {
        "datapipes.chain.functional": {"register_stage"},
        "datapipes.distributed.dist_graph": {"DistGraph"},
        "datapipes.sampling.choice_sampler": {"CONCURRENCY"},
    }
    classes = [_class_text(name, cls, imports) for name, cls in samplers.items()]
    own, others = (
        "".join(
            f"from {module} import {', '.join(sorted(imports[module], key=lambda name: (not name.isupper(), name)))}\n"
            for module in sorted(imports)
            if module.startswith("datapipes.") == is_own
        )
        for is_own in (True, False)
    )
    names = "".join(f'    "{name}",\n' for name in sorted(f"Dist{cls.__name__}" for cls in samplers.values()))
    return f"{HEAD}{others}\n{own}\n__all__ = [\n{names}]\n" + "".join(f"\n\n{each}" for each in classes)


def _class_text(name: str, cls: type, imports: dict[str, set[str]]) -> str:
    constructor: Any = cls.__init__  # type: ignore[misc]
    base = BASES.get(name, SamplerOverParts)
    for each in (cls, base):
        imports.setdefault(each.__module__, set()).add(each.__name__)
    _, source, _, *rest = inspect.signature(constructor).parameters.values()
    positional = [each for each in rest if each.kind is each.POSITIONAL_OR_KEYWORD]
    options = [each for each in rest if each.kind is each.KEYWORD_ONLY and each.name != "concurrency"]
    known = _imported_by(cls)
    for each in (source, *positional, *options):
        for node in ast.walk(ast.parse(each.annotation)):
            if isinstance(node, ast.Name) and node.id in known:
                imports.setdefault(known[node.id], set()).add(node.id)
    taken = [
        f"{source.name}: {source.annotation}",
        "dist_graph: DistGraph",
        *(f"{each.name}: {each.annotation}" for each in positional),
        "*",
        "concurrency: int = CONCURRENCY",
        *(f"{each.name}: {each.annotation}{_default(each.default)}" for each in options),
    ]
    given = [source.name, "self._in_parts(dist_graph)"]
    given += [each.name for each in positional]
    given += [f"{each}={each}" for each in ("concurrency", *(option.name for option in options))]
    names = ", ".join(each.name for each in (*positional, *options)) + ", concurrency"
    return "\n".join(
        [
            f'@register_stage("dist_{name}")',
            f"class Dist{cls.__name__}({base.__name__}, {cls.__name__}):",
            f'    """{cls.__name__} over a graph in parts: `{name}` with a DistGraph.',
            "",
            "    Args:",
            "        dist_graph: the graph in parts, of DistGraph.connect.",
            *_wrapped(f"{names}: as for {name}.", 12),
            "    Raises:",
            *_wrapped(
                f"As {name} does; while running, what the requests raise, see DistGraph.connect. A note names stage "
                "and minibatch, another one the part.",
                8,
            ),
            '    """',
            "",
            "    def __init__(",
            "        self,",
            *(f"        {each}," for each in taken),
            "    ) -> None:",
            "        super().__init__(",
            *(f"            {each}," for each in given),
            "        )",
            "",
        ]
    )


def _wrapped(text: str, indent: int) -> list[str]:
    """Return the lines of an entry of a docstring; `indent` is that of all but the first."""
    return textwrap.wrap(text, 120, initial_indent=" " * 8, subsequent_indent=" " * indent)


def _imported_by(cls: type) -> dict[str, str]:
    """Return {name: module} of what the module of a class imports."""
    text = Path(inspect.getfile(sys.modules[cls.__module__])).read_text(encoding="utf-8")
    statements = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in statements for alias in node.names}


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return ""
    return f" = {json.dumps(value) if isinstance(value, str) else repr(value)}"


if __name__ == "__main__":
    FILE.write_text(module_text(), encoding="utf-8")
