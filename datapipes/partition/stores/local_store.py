"""The base of both local stores, and how their tensors and edges are named.

TensorAttr and EdgeAttr have the fields of PyG's classes. StoreOfPart is the base of the stores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from datapipes.base.checks import as_tensor, check_choice, shown
from datapipes.partition.book import MOST_PARTS, PartitionBook, limits_of
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.part import Part
from datapipes.partition.pyg.pyg_names import meta_of

_T = TypeVar("_T", bound="_Castable")


class Unset(Enum):
    """Marks a field of TensorAttr that was not given."""

    UNSET = None


class EdgeLayout(Enum):
    """How edges are stored: as pairs ("coo"), by destination ("csc"), or by source ("csr")."""

    COO = "coo"
    CSC = "csc"
    CSR = "csr"


class _Castable:
    """Base of records with a `cast` method, which accepts a record, its fields as a tuple or dict, or as arguments."""

    @classmethod
    def cast(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        """Return a single argument of this class as it is; else a new record of a tuple, a dict, or the arguments."""
        if len(args) == 1 and not kwargs:
            if isinstance(args[0], cls):
                return args[0]
            if isinstance(args[0], tuple):
                return cls(*args[0])
            if isinstance(args[0], dict):
                return cls(**args[0])
        return cls(*args, **kwargs)


@dataclass
class TensorAttr(_Castable):
    """Names a tensor of a LocalFeatureStore, and perhaps some of its rows.

    Attributes:
        group_name: a node type or an edge type; None for nodes without types, (None, None) for edges without types.
        attr_name: the name of the attribute, such as "x".
        index: the rows wanted; None for all.
    """

    group_name: Any = Unset.UNSET
    attr_name: Any = Unset.UNSET
    index: Any = None

    def is_fully_specified(self) -> bool:
        """Return whether group_name and attr_name were given."""
        return Unset.UNSET not in (self.group_name, self.attr_name)


@dataclass
class EdgeAttr(_Castable):
    """Names edges of a LocalGraphStore.

    Attributes:
        edge_type: an edge type; None without types.
        layout: "coo", "csc" or "csr", or an EdgeLayout.
        is_sorted: whether the edges ascend by destination.
        size: (number of source nodes, number of destination nodes); None if not given.
    """

    edge_type: Any
    layout: Any
    is_sorted: bool = False
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.layout, EdgeLayout):
            names = [layout.value for layout in EdgeLayout]
            self.layout = EdgeLayout(check_choice("EdgeAttr", "layout", self.layout, names))
        if self.layout is EdgeLayout.CSR and self.is_sorted:
            raise ValueError(
                "EdgeAttr: is_sorted must be False for the layout 'csr', which ascends by source. Leave it."
            )
        self.is_sorted = self.is_sorted or self.layout is EdgeLayout.CSC


def no_such(where: str, noun: str, value: Any, stored: Any) -> KeyError:
    """Return the KeyError for a name that a store does not have; `stored` has its names."""
    return KeyError(
        f"{where}: no {noun} {shown(value)}; the store has {shown(list(stored))}. Use one of these, or put it."
    )


def choose_layout(where: str, root: str | Path, preferred: Sequence[str]) -> str:
    """Return the first layout of `preferred` that the folder `root` holds.

    Raises:
        FileNotFoundError: `root` holds none of them.
    """
    layouts = layout_of(root)
    for layout in preferred:
        if layout in layouts:
            return layout
    raise FileNotFoundError(
        f"{where}: {root} holds no partition; it must be a folder with partition.json or META.json. Check the path."
    )


def owners_of(kind: str) -> property:
    """Return a property of a StoreOfPart: which part owns each of the "nodes" or "edges", under PyG's conventions."""

    def read(store: StoreOfPart) -> Any:
        book: Any = store._books.get(kind)
        if book is None or (kind == "edges" and not book.has_edges):
            return None
        types, map_of = (book.node_types, book.nodes) if kind == "nodes" else (book.edge_types, book.edges)
        maps: dict[Any, Tensor] = {name: map_of(name).dense() for name in types}
        return maps.get(None, maps)

    def put(store: StoreOfPart, value: Any) -> None:
        store.part, store._books[kind] = None, _book_of(kind, value)

    doc = f"""The part of each of the {kind} by id: a tensor, or {{type: tensor}}; None if it is not known.

        May be set to those, with integers of any dtype, or to a PartitionBook.
        """
    return property(read, put, doc=doc)


class StoreOfPart:
    """The base of both local stores: the number of their part, and the owners of nodes and edges.

    Attributes:
        num_partitions: number of parts.
        partition_idx: the number of this part.
        meta: the content of PyG's META.json.
        part: the open Part that the store was made from; None if there is none, or the store was changed since.
    """

    _layouts: tuple[str, ...] = ("native", "pyg")  # the first that is there is read
    meta: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.num_partitions, self.partition_idx = 1, 0
        self.part: Part | None = None
        self._books: dict[str, PartitionBook | None] = {}  # of "nodes" and "edges"

    def _set(self, num_parts: int, part: int, book: PartitionBook, meta: dict[str, Any]) -> None:
        self.num_partitions, self.partition_idx, self.meta = num_parts, part, meta
        self._books = {"nodes": book, "edges": book}

    def _set_part(self, part: Part) -> None:
        num_nodes = {node_type: part.num_nodes_of(node_type) for node_type in part.node_types}
        self._set(part.num_parts, part.part, part.book, meta_of(part.num_parts, num_nodes, part.edge_types))

    def _book(self, where: str, kind: str, name: str) -> PartitionBook:
        """Return the book that knows the owners of "nodes" or "edges"; errors use `name`, the attribute that users set.

        Raises:
            ValueError: The book is not set.
        """
        book = self._books.get(kind)
        if book is None:
            raise ValueError(f"{where}: {name} is not set, so parts are not known. Set it, or use from_partition.")
        return book


def _book_of(kind: str, value: Any) -> PartitionBook | None:
    """Return a book of the parts of "nodes" or "edges" that a user set: integers, or {type: integers}.

    A book, or None, is returned as it is.

    Raises:
        TypeError, ValueError: The values are no numbers of parts.
    """
    if value is None or isinstance(value, PartitionBook):
        return value
    by_type = value if isinstance(value, Mapping) else {None: value}
    maps = {key: as_tensor("PartitionBook", "parts", parts) for key, parts in by_type.items()}
    most = max((limits_of(parts)[1] for parts in maps.values() if parts.numel() > 0), default=0)
    if not 0 <= most < MOST_PARTS:
        raise ValueError(f"PartitionBook: found the part {shown(most)}; parts are in [0, {MOST_PARTS}). Correct it.")
    return PartitionBook(most + 1, maps) if kind == "nodes" else PartitionBook(most + 1, {}, maps)
