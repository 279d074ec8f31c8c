"""Errors about names from PyG, GraphBolt, DGL, GraphLearn and torch: each error tells what to use here instead.

`import datapipes` imports this module last, and the import installs the errors. The public classes of the core get an
attribute for each name of other libraries that they lack. `base/checks.py` gets the keywords. Classes that are loaded
later call `with_other_names`. name_tables.py has all names. docs/migrate/ compares the libraries.
"""

from __future__ import annotations

import dis
import inspect
import sys
from typing import Any, NoReturn, TypeVar

from datapipes import channel
from datapipes.base import checks
from datapipes.chain.functional import FunctionalForms
from datapipes.compat.name_tables import ATTRIBUTES, KEYWORDS
from datapipes.features.feature import Feature
from datapipes.features.feature_store import FeatureStore
from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.minibatch.block import Block, SampledSubgraph
from datapipes.minibatch.minibatch import MiniBatch
from datapipes.seeds.item_set import ItemSet

_Class = TypeVar("_Class", bound=type)


class OtherName:
    """Descriptor for a name of another library. Reading it raises an AttributeError that tells what to use here.

    Each such name is an attribute of the class, since a `__getattr__` would slow down every attribute of the class.
    `dir` of an instance leaves these names out.
    """

    def __init__(self, owner: str, name: str, ours: str) -> None:
        self._owner, self._name, self._ours = owner, name, ours

    def __repr__(self) -> str:
        return f"<not here: {self._ours}>"

    def __get__(self, obj: object, cls: type | None = None) -> NoReturn:
        owner = self._owner if obj is None else type(obj).__name__
        raise AttributeError(_text(owner, self._name, self._ours), name=self._name, obj=obj)


def missing_public_name(name: str, module: str = "datapipes", ours: str | None = None) -> AttributeError | ImportError:
    """Return the error to raise for a name that the package `module` lacks.

    For `from ... import` the error is an ImportError, since Python would replace an AttributeError by an error without
    our text.

    Args:
        ours: what to use instead, as a text for the error; None: what name_tables.py says.
    """
    ours = ours or ATTRIBUTES.get(module, {}).get(name)
    if ours is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    asks = sys._getframe(2)  # the caller of the package's `__getattr__`
    if asks.f_lasti >= 0 and dis.opname[asks.f_code.co_code[asks.f_lasti]] == "IMPORT_FROM":
        return ImportError(f"cannot import name {name!r} from {module!r}. Here: {ours}.", name=module)
    return AttributeError(_text(module, name, ours), name=name)


def _missing_in_channel(name: str) -> NoReturn:
    raise missing_public_name(name, channel.__name__)


def _text(owner: str, name: str, ours: str) -> str:
    return f"{owner} has no {name!r}. Here: {ours}."


def _add_other_names(cls: Any, owner: str) -> None:
    """Give `cls` an OtherName for each name in ATTRIBUTES[owner] that neither it nor a base class has."""
    for name, ours in ATTRIBUTES[owner].items():
        if not any(name in vars(base) for base in cls.__mro__):
            setattr(cls, name, OtherName(owner, name, ours))
    cls.__dir__ = _names_of_its_own


def _names_of_its_own(self: object) -> list[str]:
    names = object.__dir__(self)
    return [name for name in names if not isinstance(inspect.getattr_static(type(self), name, None), OtherName)]


def with_other_names(cls: _Class) -> _Class:
    """Class decorator: let `cls` raise helpful errors for names that other libraries' classes have; return `cls`."""
    _add_other_names(cls, cls.__name__)
    return cls


for core_class in (Block, CSCGraph, Feature, FeatureStore, HeteroCSCGraph, ItemSet, MiniBatch, SampledSubgraph):
    with_other_names(core_class)
vars(channel)["__getattr__"] = _missing_in_channel
_add_other_names(FunctionalForms, "Stage")  # a stage registered under one of these names replaces the error
checks.OTHER_KEYWORDS.update(KEYWORDS)
