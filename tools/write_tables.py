"""Write what the docs repeat: tables of stages and of other libraries' names, parts of README.md, a list of pages.

It stands between `<!-- NAME: written by make stubs -->` and `<!-- end of NAME -->`; the text around it is kept.

Run: make stubs   (a test fails where a page is out of date)
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import ran

from datapipes.chain.functional import registered_stages
from datapipes.compat.name_tables import ATTRIBUTES, KEYWORDS

DOCS = Path(__file__).parents[1] / "docs"
Rows = Sequence[tuple[str, ...]]


def stages(module_prefix: str = "datapipes.") -> str:
    """Return the table of registered stages: how each is called, its class, and the first clause of its docstring."""
    rows = []
    for name, cls in registered_stages().items():
        if cls.__module__.startswith(module_prefix):
            summary = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
            clause = re.split(r"(?<=[.;:]) ", summary)[0].rstrip(".;:")
            rows.append((f"`{name}({_arguments(cls)})`", f"`{cls.__qualname__}`", clause))
    return _table(("method of a stage", "class", "does"), rows)


def attributes() -> str:
    """Return the tables of attributes that a class does not have, and what to use instead."""
    return _tables("", ATTRIBUTES)


def keywords() -> str:
    """Return the tables of keywords that a constructor does not take, and what to use instead."""
    return _tables("(...)", {of: rows for of, rows in KEYWORDS.items() if rows is not ATTRIBUTES.get(of)})


def readme(first: str, last: str) -> str:
    """Return README.md from the line `first` to before the line `last`, with the links of a page in docs/."""
    text = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    part = text[text.index(first) : text.index(f"\n{last}\n") + 1]
    part = re.sub(r"\]\((?!docs/|https?://|#)", "](../", part).replace("](docs/", "](").replace("[docs/", "[")
    return part.rstrip() + "\n"


def decisions() -> str:
    """Return the list of decisions, by their titles."""
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    return "".join(f"* [{title}]({page.name})\n" for page, title in zip(pages, titles, strict=True))


def runs() -> str:
    """Return the table of what was run where."""
    return _table(ran.HEADER, [tuple(each.values()) for each in ran.records()])


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "index.md": {
        "introduction": lambda: readme("![A chain", "## Measured"),
        "promises": lambda: readme("## Four promises", "## Read on"),
    },
    "install.md": {"runs": runs},
    "decisions/index.md": {"decisions": decisions},
    "tour.md": {"stages": stages},
    "migrate/names.md": {"attributes": attributes, "keywords": keywords},
}


def pages() -> dict[Path, str]:
    """Return {path: text} of all pages with generated tables."""
    found = {}
    for page, tables in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, table in tables.items():
            begin, end = f"<!-- {name}: written by make stubs -->\n", f"<!-- end of {name} -->"
            before, between, rest = text.partition(begin)
            _, closing, after = rest.partition(end)
            if not (between and closing):
                raise ValueError(f"{page} has no place for the table {name!r}. Add {begin.strip()} and {end}.")
            text = f"{before}{begin}\n{table()}\n{end}{after}"
        found[DOCS / page] = text
    return found


def _tables(call: str, tables: dict[str, dict[str, str]]) -> str:
    """Return a table for each set of classes that share rows; names that are the same here share a row."""
    owners: dict[tuple[str, str], list[str]] = {}
    for of, rows in tables.items():
        for row in rows.items():
            owners.setdefault(row, []).append("the package" if of == "datapipes" else f"`{of}{call}`")
    grouped: dict[str, dict[str, list[str]]] = {}
    for (name, ours), classes in owners.items():
        grouped.setdefault(", ".join(classes), {}).setdefault(ours, []).append(f"`{name}`")
    return "\n".join(
        _table((f"{classes}: name", "here"), [(", ".join(names), ours) for ours, names in rows.items()])
        for classes, rows in grouped.items()
    )


def _table(header: tuple[str, ...], rows: Rows) -> str:
    lines = [header, ("---",) * len(header), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _arguments(cls: type) -> str:
    """Return the arguments behind the source that have no default, and "..." if there are others."""
    constructor = cls.__init__  # type: ignore[misc]  # of this very class
    parameters = list(inspect.signature(constructor).parameters.values())[2:]
    required = [each.name for each in parameters if each.default is each.empty]
    return ", ".join(required if len(required) == len(parameters) else [*required, "..."])


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
