"""The package as a whole: who imports whom, and that importing it changes nothing outside. `make check` runs these."""

import ast
import functools
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest
from count_code import MODULES, PACKAGE, ROOT, SOURCES, Import, all_imports, imported_modules

pytestmark = pytest.mark.full

# A folder imports only from what stands above it.
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
    "compat",
    "stages",
    "ingest",
    "partition",
    "distributed",
    "datasets",
    "pyg",
    "cli",
]

# Functions of the core that load an annex: graphs that are built on the disk.
DOORS = {(f"datapipes.graph.{module}", "datapipes.ingest.build") for module in ("csc_graph", "hetero_csc_graph")}

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
imports = functools.cache(all_imports)
MOST_LINES = 400  # of a module, so that it can be read in one sitting
# One idea each, which splitting would part; up to 500 lines.
WHOLE = {"distributed/server/producers.py", "distributed/chain_description.py", "partition/native/part.py"}


def layer_of(module: str) -> str:
    """Return the part of `datapipes.part.module`; "" for the package itself."""
    return [*module.split("."), ""][1]


def circles(edges: set[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of modules that reach each other, each sorted."""
    reached = {importer: {importer} for edge in edges for importer in edge}
    for _ in reached:
        grown = {
            name: set().union(found, *(reached[b] for a, b in edges if a in found)) for name, found in reached.items()
        }
        if grown == reached:
            break
        reached = grown
    loops = {a for a, b in edges if a == b}
    groups = {frozenset(b for b in found if a in reached[b]) for a, found in reached.items()}
    return sorted(sorted(group) for group in groups if len(group) > 1 or group & loops)


def upward(imports: list[Import]) -> list[str]:
    """Return the imports of a folder that does not stand above the importer's folder in LAYERS, but for DOORS."""
    wrong = []
    for importer, imported, place in imports:
        below, above = layer_of(importer), layer_of(imported)
        is_above = above in LAYERS and LAYERS.index(above) < LAYERS.index(below)
        if below != above and not is_above and (importer, imported) not in DOORS:
            wrong.append(f"{place}: {below} imports {above or 'the whole package'}")
    return wrong


def test_every_module_has_its_layer():
    parts = {layer_of(module) for module in MODULES} - {""}
    assert parts <= set(LAYERS), "name the new part in LAYERS, where the design has it"


def test_a_folder_imports_only_from_what_stands_above_it_inside_functions_too():
    assert upward(imports()) == []


def test_no_module_imports_one_that_imports_it_inside_functions_too():
    assert circles({(importer, imported) for importer, imported, _ in imports()}) == []


def included(path: Path) -> set[tuple[str, str]]:
    """Return the folders of csrc/ that a file there includes from: (its own folder, that folder)."""
    folder = path.relative_to(CSRC).parts[0]
    found = re.findall(r'^#include "(\w+)/', path.read_text(encoding="utf-8"), re.MULTILINE)
    return {(folder, other) for other in found if other != folder}


def test_no_folder_of_the_core_includes_one_that_includes_it():
    sources = [path for path in CSRC.rglob("*") if path.suffix in (".h", ".cpp")]
    edges = set().union(*map(included, sources))
    assert ("bindings", "sampling") in edges
    assert ("sampling", "graph") in edges
    assert circles(edges) == []


def test_imports_that_are_wrong_are_found():
    assert circles({("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")}) == [["a", "b", "c"]]
    assert circles({("a", "a"), ("a", "b")}) == [["a"]]
    assert circles({("a", "b"), ("b", "c"), ("a", "c")}) == []
    inside = ast.parse("def late():\n    from datapipes.loader import DataLoader").body[0].body[0]
    names = list(imported_modules(inside, PACKAGE / "base" / "checks.py"))
    assert names == ["datapipes.loader"]
    assert upward([Import("datapipes.base.checks", names[0], "here")]) == ["here: base imports loader"]
    assert list(imported_modules(ast.parse("from . import run").body[0], PACKAGE / "chain" / "state.py")) == [
        "datapipes.chain.run"
    ]


def test_the_top_of_the_package_holds_folders_and_modules_stay_short():
    modules = [path for path in SOURCES if path.name != "__init__.py"]
    assert [path.name for path in modules if path.parent == PACKAGE] == []
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert {name for name, length in lengths.items() if length > MOST_LINES} <= WHOLE
    assert max(lengths.values()) <= 500


# --- public names


@pytest.mark.parametrize("package", sorted(name for name, path in MODULES.items() if path.name == "__init__.py"))
def test_dir_of_a_package_shows_public_names_only(package):
    if "pyg" in package.split(".") and importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("the package needs torch_geometric: install the pyg extra")
    module = importlib.import_module(package)
    shown = set(dir(module)) - {"__version__"}
    assert shown == set(getattr(module, "__all__", ()))
    assert all(hasattr(module, name) for name in shown)
    assert ("__version__" in dir(module)) == (package == ROOT)


def test_a_name_that_no_package_has_is_an_attribute_error_that_says_where_it_is():
    for package in ("datapipes", "datapipes.stages", "datapipes.datasets", "datapipes.distributed"):
        assert not hasattr(importlib.import_module(package), "Nobody")
    with pytest.raises(AttributeError, match=r"Here: dp\.stages\.Sampler\."):
        importlib.import_module("datapipes").Sampler  # noqa: B018
    with pytest.raises(ImportError, match=r"Here: dp\.stages\.StageGraph\."):
        exec("from datapipes import StageGraph")


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
    "folders": sorted({name.split(".")[1] for name in sys.modules if name.startswith("datapipes.")}),
}))
"""

# What is said of an annex before it is loaded, and what loads it.
LAZY = """
import sys
import datapipes as dp

def is_loaded(name):
    return f"datapipes.{name}" in sys.modules

dp.CSCGraph.from_edge_index([[0], [1]], num_nodes=2)
assert not is_loaded("ingest")
assert {"datasets", "distributed"} <= {*dir(dp)} and "dist_sample_neighbor" in dir(dp.Stage)
assert not is_loaded("datasets") and not is_loaded("distributed")
from datapipes import datasets
assert is_loaded("datasets") and not hasattr(datasets, "nothing")
try:
    datasets.Dataset.yaml_data
except AttributeError as error:
    assert "Here: " in str(error)
try:
    @dp.register_stage("dist_sample_neighbor")
    class Own(dp.MiniBatchTransformer):
        pass
except ValueError as error:
    assert "already names DistNeighborSampler" in str(error)
else:
    raise AssertionError("a name of the package was taken")
pipe = dp.ItemSampler(dp.ItemSet(3), 1)
try:
    pipe.dist_sample_neighbor(None, [1])
except TypeError as error:
    assert str(error).startswith("dist_sample_neighbor: "), error
assert is_loaded("distributed") and dp.distributed.DistNeighborSampler
"""


def test_importing_changes_nothing_outside_starts_no_thread_and_loads_no_optional_dependency():
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr
    after_import = json.loads(child.stdout)
    assert after_import["changed"] == []
    assert {*HEAVY} & {*after_import["loaded"]} == set()
    assert {*after_import["folders"]} == {*LAYERS[: LAYERS.index("compat") + 1], "_core"}


def test_what_stands_below_the_core_is_loaded_when_it_is_first_used():
    child = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=120)
    assert child.returncode == 0, child.stderr


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
LAST_WORDS = {name.rpartition(".")[2] for name in FORBIDDEN}


SEEDS_AND_SETS_BACK = PACKAGE / "pyg" / "sampler.py"  # around samplers and transforms of PyG's users


def test_no_module_seeds_a_global_generator():
    wrong = []
    for path in {*SOURCES} - {SEEDS_AND_SETS_BACK}:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in LAST_WORDS and ast.unparse(node) in FORBIDDEN:
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
            if isinstance(node, ast.ImportFrom) and node.module in ("random", "numpy.random", "torch.random"):
                wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: from {node.module}")
    assert wrong == []


# --- imports of the tests


def top_imports(path: Path) -> set[str]:
    """Return the modules and packages that a file imports, also inside functions; of a dotted name the first part."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


def test_no_test_file_is_imported_by_another_file():
    tests = {path.stem for path in TESTS.rglob("test_*.py")}
    found = {str(path.relative_to(TESTS)): top_imports(path) & (tests - {path.stem}) for path in TESTS.rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}, "what is shared belongs in tests/support/"


@pytest.mark.parametrize("soak", sorted((TESTS / "soak").glob("*.py")), ids=lambda path: path.stem)
def test_a_soak_imports_only_what_its_command_finds(soak):
    others = [path for path in sys.path if not Path(path).is_relative_to(TESTS)]
    tops = top_imports(soak) - {*sys.stdlib_module_names, "datapipes"}
    assert [each for each in tops if PathFinder.find_spec(each, [str(TESTS / "support"), *others]) is None] == []
