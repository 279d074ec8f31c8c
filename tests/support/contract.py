"""The chains over which the contract suites run: one that ends in each registered stage, and others of pipelines.py.

A registered stage brings its own chain: the test file of its module, found by its path, defines

* `contract_chain()`, a chain that ends in the stage, built anew by each call;
* `contract_forms()`, the same stage built by its functional form and by its constructor;
* `CONTRACT_DROPS`, how many minibatches of an epoch that chain drops, if it drops any.

Where a module has several stages, both functions take the name of one.
"""

import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pipelines

import datapipes as dp
from datapipes.chain.functional import registered_stages

TESTS = Path(__file__).parents[1]
REGISTERED = {name: cls for name, cls in registered_stages().items() if cls.__module__.startswith("datapipes.")}
CHAINS = sorted({*pipelines.BUILDERS, *REGISTERED})


def build(name: str) -> dp.Stage:
    """Return a chain that ends in the stage of this name."""
    return pipelines.BUILDERS[name]() if name in pipelines.BUILDERS else _part(name, "contract_chain")


def forms(name: str) -> tuple[dp.Stage, dp.Stage]:
    """Return a registered stage by its functional form and by its constructor."""
    return _part(name, "contract_forms")


def dropped(name: str) -> int:
    """Return how many minibatches of an epoch the chain drops."""
    if name in pipelines.BUILDERS:
        return pipelines.DROPS.get(name, 0)
    return getattr(tests_of(REGISTERED[name]), "CONTRACT_DROPS", 0)


def _part(name: str, function: str):
    tests = tests_of(REGISTERED[name])
    found = getattr(tests, function, None)
    assert found is not None, f"the contract suite runs over {name!r}: define {function}() in {tests.__file__}"
    return found(name) if inspect.signature(found).parameters else found()


def tests_of(cls: type) -> ModuleType:
    """Return the test file of a class's module: tests/folder/test_module.py for datapipes.folder.module."""
    _, *folders, module = cls.__module__.split(".")
    path = TESTS.joinpath(*folders, f"test_{module}.py")
    assert path.is_file(), f"the tests of {cls.__module__} belong into {path}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)
