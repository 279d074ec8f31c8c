"""Modules under the names that they had before: `import datapipes.distributed.pyg` gives `datapipes.pyg.distributed`.

A module that has moved is one object under both names, so classes are the same, and what was pickled under the old name
can be read. other_names.py puts the finder before those of Python.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

MOVED = {"datapipes.distributed.pyg": "datapipes.pyg.distributed"}


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a module, and those within it, under the new name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if any(fullname == old or fullname.startswith(f"{old}.") for old in MOVED):
            return importlib.machinery.ModuleSpec(fullname, self)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new name in the place of `module`."""
        old, new = next(each for each in MOVED.items() if module.__name__.startswith(each[0]))
        sys.modules[module.__name__] = importlib.import_module(new + module.__name__[len(old) :])
