"""The package as a whole: who imports whom, and that importing it changes nothing outside."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import datapipes

PACKAGE = Path(datapipes.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A module imports only from what stands above it.
LAYERS = [
    "base",
    "processes",
    "minibatch",
    "chain",
    "device",
    "seeds",
    "graph",
    "sampling",
    "features",
    "channel",
    "loader",
    "partition",
    "distributed",
    "datasets",
    "cli",
]

# Upwards, resolved when it is called or only by type checkers: each entry is a decision.
LAZY: set[tuple[str, str]] = set()


class Import(NamedTuple):
    """One import of the package by itself: layers, whether it runs when the module is imported, and where it stands."""

    importer: str
    imported: str
    at_import: bool
    place: str


def layer_of(module: str) -> str:
    """The part of `datapipes.part.module`; "" for the package itself."""
    return [*module.split("."), ""][1]


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(node: ast.AST, path: Path) -> Iterator[str]:
    """The modules of the package that an import statement names."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        package = module_of(path).split(".")
        package = package if path.name == "__init__.py" else package[:-1]
        base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
        module = ".".join(filter(None, [base, node.module]))
        names = [f"{module}.{alias.name}" for alias in node.names] if module == "datapipes" else [module]
    else:
        return
    yield from (name for name in names if name.split(".")[0] == "datapipes")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_below(node: ast.AST, path: Path, at_import: bool) -> Iterator[Import]:
    for name in imported_modules(node, path):
        place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
        yield Import(layer_of(module_of(path)), layer_of(name), at_import, place)
    lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or is_type_checking(node)
    for child in ast.iter_child_nodes(node):
        yield from imports_below(child, path, at_import and not lazy)


def all_imports() -> list[Import]:
    found = []
    for path in SOURCES:
        if path != PACKAGE / "__init__.py":
            found += imports_below(ast.parse(path.read_text(encoding="utf-8")), path, at_import=True)
    return [found for found in found if found.importer != found.imported and found.imported != "_core"]


def test_every_module_has_its_layer():
    parts = {layer_of(module_of(path)) for path in SOURCES} - {""}
    assert parts <= set(LAYERS), "name the new part in LAYERS, where the design has it"


def test_a_module_imports_only_from_what_stands_above_it():
    wrong = []
    for importer, imported, at_import, place in all_imports():
        above = imported in LAYERS and LAYERS.index(imported) < LAYERS.index(importer)
        if not above and (at_import or (importer, imported) not in LAZY):
            wrong.append(f"{place}: {importer} imports {imported or 'the whole package'}")
    assert wrong == []


def test_the_exceptions_are_still_needed():
    upwards = {(found.importer, found.imported) for found in all_imports() if not found.at_import}
    assert upwards >= LAZY


# --- importing

HEAVY = ["pyarrow", "pymetis", "torch_geometric", "triton", "ray", "matplotlib", "scipy", "networkx"]

CHILD = """
import json, logging, os, random, sys, threading, warnings
import numpy, torch, torchdata.nodes

def world():
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": [str(part) for part in numpy.random.get_state()],
        "random": str(random.getstate()),
        "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "torch_dtype": str(torch.get_default_dtype()),
        "threads": [thread.name for thread in threading.enumerate()],
        "os_threads": len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0,
        "environment": dict(os.environ),
        "filters": str(warnings.filters),
        "path": sys.path,
        "handlers": str(logging.getLogger().handlers),
    }

before, modules = world(), set(sys.modules)
import datapipes
after = world()
print(json.dumps({
    "changed": [name for name in before if before[name] != after[name]],
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - modules}),
}))
"""


@pytest.fixture(scope="module")
def after_import():
    """What a fresh process finds changed and newly loaded after `import datapipes`."""
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_importing_changes_nothing_outside_and_starts_no_thread(after_import):
    assert after_import["changed"] == []


@pytest.mark.parametrize("name", HEAVY)
def test_importing_loads_no_optional_dependency(after_import, name):
    assert name not in after_import["loaded"]


def test_no_optional_dependency_is_imported_at_the_top_of_a_module():
    wrong = []
    for path in SOURCES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[0] in HEAVY]
    assert wrong == []


# --- global generators

FORBIDDEN = ["torch.manual_seed", "torch.seed", "torch.randperm", "np.random.seed", "numpy.random.seed", "random.seed"]


def test_no_module_seeds_a_global_generator():
    wrong = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in FORBIDDEN:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random", "torch.random"):
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: from {node.module}")
    assert wrong == []
