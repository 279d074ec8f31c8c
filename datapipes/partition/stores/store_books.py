"""StoreOfPart, the base of the local stores: which layout they read, and which part owns what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from datapipes.base.checks import as_tensor, shown
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import MOST_PARTS, limits_of
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.part import Part
from datapipes.partition.pyg.pyg_names import meta_of


def choose_layout(where: str, root: str | Path, preferred: Sequence[str]) -> str:
    """Return the layout of a folder that is read.

    Raises:
        FileNotFoundError: It holds no partition.
    """
    found = layout_of(root)
    for layout in preferred:
        if layout in found:
            return layout
    raise FileNotFoundError(
        f"{where}: {root} holds no partition; it must be a folder with partition.json or META.json. Check the path."
    )


def owners_of(kind: str) -> property:
    """Return an attribute of a StoreOfPart: the parts of "nodes" or "edges", as PyG's code reads and sets them."""

    def read(store: StoreOfPart) -> Any:
        book = store._books.get(kind)
        if book is None or (kind == "edges" and not book.has_edges):
            return None
        maps: dict[Any, Tensor] = (
            {each: book.nodes(each).dense() for each in book.node_types}
            if kind == "nodes"
            else {each: book.edges(each).dense() for each in book.edge_types}
        )
        return maps.get(None, maps)

    def put(store: StoreOfPart, value: Any) -> None:
        store.part, store._books[kind] = None, _book_of(kind, value)

    doc = f"""The part of each of the {kind} by id: a tensor, or {{type: tensor}}; None if it is not known.

        May be set to those, with integers of any dtype, or to a PartitionBook.
        """
    return property(read, put, doc=doc)


class StoreOfPart:
    """What both local stores have: the number of their part, and which part owns what.

    Attributes:
        num_partitions: number of parts.
        partition_idx: the number of this part.
        meta: what PyG's META.json says.
        part: the open Part that the store was made from; None if there is none, or the store was changed since.
    """

    _layouts: tuple[str, ...] = ("native", "pyg")  # which is read where both are there
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
        num_nodes = {each: part.num_nodes_of(each) for each in part.node_types}
        self._set(part.num_parts, part.part, part.book, meta_of(part.num_parts, num_nodes, part.edge_types))

    def _book(self, where: str, kind: str, name: str) -> PartitionBook:
        """Return the book of "nodes" or "edges"; `name` is what a user sets.

        Raises:
            ValueError: It is not set.
        """
        book = self._books.get(kind)
        if book is None:
            raise ValueError(f"{where}: {name} is not set, so parts are not known. Set it, or use from_partition.")
        return book


def _book_of(kind: str, value: Any) -> PartitionBook | None:
    """Return a book of what a user sets as the parts of "nodes" or "edges": None, a book, or integers by type.

    Raises:
        TypeError, ValueError: The values are no parts.
    """
    if value is None or isinstance(value, PartitionBook):
        return value
    by_type = value if isinstance(value, Mapping) else {None: value}
    maps = {key: as_tensor("PartitionBook", "parts", each) for key, each in by_type.items()}
    most = max((limits_of(each)[1] for each in maps.values() if each.numel() > 0), default=0)
    if not 0 <= most < MOST_PARTS:
        raise ValueError(f"PartitionBook: found the part {shown(most)}; parts are in [0, {MOST_PARTS}). Correct it.")
    return PartitionBook(most + 1, maps) if kind == "nodes" else PartitionBook(most + 1, {}, maps)
