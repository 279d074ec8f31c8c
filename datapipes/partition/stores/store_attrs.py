"""What names a tensor or edges in a local store: classes with the fields of PyG's TensorAttr and EdgeAttr."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

from datapipes.base.checks import check_choice, shown

_T = TypeVar("_T", bound="_Castable")


class Unset(Enum):
    """The value of a field that was not given."""

    UNSET = None


class EdgeLayout(Enum):
    """How edges are stored: pairs, by destination, or by source."""

    COO = "coo"
    CSC = "csc"
    CSR = "csr"


class _Castable:
    """Made from itself, from a tuple or a dict of its fields, or from the fields themselves."""

    @classmethod
    def cast(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        """Return the one argument if it is one of this class, else a new one."""
        if len(args) == 1 and not kwargs:
            given = args[0]
            if isinstance(given, cls):
                return given
            if isinstance(given, tuple):
                return cls(*given)
            if isinstance(given, dict):
                return cls(**given)
        return cls(*args, **kwargs)


@dataclass
class TensorAttr(_Castable):
    """A tensor of a LocalFeatureStore.

    Attributes:
        group_name: a node type, an edge type; None for nodes without types, (None, None) for edges without types.
        attr_name: the name of the attribute, such as "x".
        index: rows that are asked for; None for all.
    """

    group_name: Any = Unset.UNSET
    attr_name: Any = Unset.UNSET
    index: Any = None

    def is_set(self, name: str) -> bool:
        """Return whether a field was given."""
        return getattr(self, name) is not Unset.UNSET

    def is_fully_specified(self) -> bool:
        """Return whether all fields were given."""
        return all(self.is_set(each.name) for each in fields(self))


@dataclass
class EdgeAttr(_Castable):
    """Edges of a LocalGraphStore.

    Attributes:
        edge_type: an edge type; None without types.
        layout: "coo", "csc" or "csr", or an EdgeLayout.
        is_sorted: whether pairs ascend by destination.
        size: numbers of source and destination nodes.
    """

    edge_type: Any
    layout: Any
    is_sorted: bool = False
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layout, EdgeLayout):
            self.layout = EdgeLayout(
                check_choice("EdgeAttr", "layout", self.layout, [each.value for each in EdgeLayout])
            )
        if self.layout is EdgeLayout.CSR and self.is_sorted:
            raise ValueError(
                "EdgeAttr: is_sorted must be False for the layout 'csr', which ascends by source. Leave it."
            )
        self.is_sorted = self.is_sorted or self.layout is EdgeLayout.CSC


def no_such(where: str, what: str, value: Any, known: Any) -> KeyError:
    """Return the error for a name that a store does not have."""
    return KeyError(
        f"{where}: no {what} {shown(value)}; the store has {shown(list(known))}. Use one of these, or put it."
    )
