"""Count what the package is made of, and read who imports whom; tests/test_layers.py reads the imports here too.

Run: python tools/count_code.py [MODULE ...]
It prints lines of code (no blank line, comment or docstring) and statements; the modules that only one other reads, of
their own folder; and for each MODULE (datapipes.sampling.neighbor_sampler) how many modules it imports, in all.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SPEC = importlib.util.find_spec("datapipes")  # the package that is installed: that of the checkout, or of a wheel
if _SPEC is None or _SPEC.origin is None:
    raise ImportError("count_code: found no package datapipes to count. Run make build, and take .venv/bin/python.")
PACKAGE = Path(_SPEC.origin).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
ROOT = PACKAGE.name


class Import(NamedTuple):
    """One import of the package by itself, wherever it stands: at the top, inside a function, or for type checkers."""

    importer: str
    imported: str
    place: str


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def imported_modules(node: ast.AST, path: Path) -> Iterator[str]:
    """Yield the modules of the package that an import statement names; `from folder import module` names the module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        package = module_of(path).split(".")
        package = package if path.name == "__init__.py" else package[:-1]
        base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, [base, node.module]))
        submodules = [f"{module}.{alias.name}" for alias in node.names]
        names = [name if name in MODULES or module == ROOT else module for name in submodules]
    else:
        return
    yield from (name for name in names if name.split(".")[0] == ROOT and name != f"{ROOT}._core")


def all_imports() -> list[Import]:
    """Return all imports but those of the package's own __init__, which gathers the public names."""
    return [
        Import(module, name, f"{path.relative_to(PACKAGE)}:{node.lineno}")
        for module, path in MODULES.items()
        if module != ROOT
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in imported_modules(node, path)
    ]


def read_by_one(imports: list[Import]) -> dict[str, str]:
    """Return {module: its reader} of the modules that one module alone imports, of their own folder."""
    readers: dict[str, set[str]] = {}
    for importer, imported, _ in imports:
        if MODULES[importer].name != "__init__.py" and MODULES[imported].name != "__init__.py":
            readers.setdefault(imported, set()).add(importer)
    alone = {module: next(iter(found)) for module, found in readers.items() if len(found) == 1}
    return {module: reader for module, reader in alone.items() if MODULES[module].parent == MODULES[reader].parent}


def closure(module: str, imports: list[Import]) -> set[str]:
    """Return the modules that importing `module` needs, without itself; the `__init__` of their folders not counted."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {imported for importer, imported, _ in imports if importer in new} - found
    return {each for each in found - {module} if MODULES[each].name != "__init__.py"}


def lines_of_code(text: str) -> int:
    """Return the number of lines that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        has_body = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if has_body and ast.get_docstring(node) is not None:
            docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = [each for each in tokenize.generate_tokens(io.StringIO(text).readline) if each.type not in empty]
    return len({line for each in tokens for line in range(each.start[0], each.end[0] + 1)} - docstrings)


def main() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    statements = sum(isinstance(node, ast.stmt) for text in texts.values() for node in ast.walk(ast.parse(text)))
    imports = all_imports()
    alone = read_by_one(imports)
    print(f"{len(SOURCES)} files, {sum(map(lines_of_code, texts.values()))} lines of code, {statements} statements")
    print(f"{len(alone)} modules have one reader, in their own folder:")
    for module, reader in sorted(alone.items()):
        print(f"  {module}, read by {reader.rpartition('.')[2]}")
    for module in sys.argv[1:]:
        print(f"{module} imports {len(closure(module, imports))} modules")


if __name__ == "__main__":
    main()
