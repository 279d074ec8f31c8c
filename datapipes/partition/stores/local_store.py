"""What LocalGraphStore and LocalFeatureStore have in common, and the names of their tensors and edges.

TensorAttr and EdgeAttr have the fields of PyG's classes. StoreOfPart is the base of both stores. TensorStore keeps
tensors by group and name, and finds their rows by global id; it is the base of LocalFeatureStore.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from datapipes.base.checks import as_tensor, check_choice, check_index_tensor, shown
from datapipes.base.rows import bits_of, byte_rows, has_adjacent_values, take_rows
from datapipes.partition.book import MOST_PARTS, PartitionBook, limits_of
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.own_rows import OwnRows
from datapipes.partition.native.part import Part
from datapipes.partition.pyg.pyg_names import meta_of

_FEATURES = "LocalFeatureStore"  # whose tensors a TensorStore has
_LOOKED_UP = "get_tensor_from_global_id"
_T = TypeVar("_T", bound="_Castable")


class Unset(Enum):
    """The value of a field of TensorAttr that was not given."""

    UNSET = None


class EdgeLayout(Enum):
    """How edges are stored: as pairs ("coo"), by destination ("csc"), or by source ("csr")."""

    COO = "coo"
    CSC = "csc"
    CSR = "csr"


class _Castable:
    """Base of TensorAttr and EdgeAttr, which name something in a store; they are made by `cast`."""

    @classmethod
    def cast(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        """Return the only argument if it is of this class; else an object made of a tuple, a dict, or the arguments."""
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
    """The name of a tensor in a LocalFeatureStore, and perhaps an index of some of its rows.

    Attributes:
        group_name: a node type or an edge type; in a graph without types, None for nodes, (None, None) for edges.
        attr_name: the name of the attribute, such as "x".
        index: which rows are wanted; None for all.
    """

    group_name: Any = Unset.UNSET
    attr_name: Any = Unset.UNSET
    index: Any = None

    def is_fully_specified(self) -> bool:
        """Return whether group_name and attr_name were given."""
        return Unset.UNSET not in (self.group_name, self.attr_name)


@dataclass
class EdgeAttr(_Castable):
    """The name of edges in a LocalGraphStore: their type and layout, with facts about them.

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
                "EdgeAttr: is_sorted must be False for the layout 'csr', which ascends by source. Leave is_sorted out."
            )
        self.is_sorted = self.is_sorted or self.layout is EdgeLayout.CSC


def no_such(where: str, noun: str, value: Any, stored: Any) -> KeyError:
    """Return the KeyError for a name that a store does not have. `noun` says what it names; `stored` has all names."""
    there = (
        f"the store has {shown(list(stored))}. Use one of these, or put it" if stored else "the store has none. Put it"
    )
    return KeyError(f"{where}: no {noun} {shown(value)}; {there}.")


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
    """Return a property for stores that has the part of each node or edge, such as PyG's `node_pb`.

    `kind` is "nodes" or "edges".
    """

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
    """The base of both local stores. It knows which part the store has, and which part owns each node and edge.

    Attributes:
        num_partitions: number of parts.
        partition_idx: the id of this part.
        meta: the content of PyG's META.json.
        part: the open Part that the store was made from. None: it was made from something else, or changed since.
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
        """Return the PartitionBook with the owners of nodes or edges; `kind` is "nodes" or "edges".

        `name` is the attribute by which a user sets the book, for the error.

        Raises:
            ValueError: The book is not set.
        """
        book = self._books.get(kind)
        if book is None:
            raise ValueError(f"{where}: {name} is not set, so parts are not known. Set it, or use from_partition.")
        return book


def _book_of(kind: str, value: Any) -> PartitionBook | None:
    """Make a PartitionBook of `value`, the part of each node or edge, which a user has set.

    `value` is a tensor of integers, or {type: integers}; `kind` is "nodes" or "edges". A PartitionBook and None are
    returned as they are.

    Raises:
        TypeError, ValueError: The values are no ids of parts.
    """
    if value is None or isinstance(value, PartitionBook):
        return value
    by_type = value if isinstance(value, Mapping) else {None: value}
    maps = {key: as_tensor("PartitionBook", "parts", parts) for key, parts in by_type.items()}
    most = max((limits_of(parts)[1] for parts in maps.values() if parts.numel() > 0), default=0)
    if not 0 <= most < MOST_PARTS:
        raise ValueError(f"PartitionBook: found the part {shown(most)}; parts are in [0, {MOST_PARTS}). Correct it.")
    return PartitionBook(most + 1, maps) if kind == "nodes" else PartitionBook(most + 1, {}, maps)


class TensorStore(StoreOfPart):
    """Keeps tensors by (group, name); a group is a node type or an edge type, as in TensorAttr.

    In a group with global ids, global_id[i] is the id of row i in every tensor of the group.
    """

    _tensor_attr_cls: Any = TensorAttr

    def __init__(self) -> None:
        super().__init__()
        self._feat: dict[tuple[Any, Any], Tensor] = {}
        self.of_all: set[tuple[Any, Any]] = set()  # tensors with a row for each node of the graph: PyG's times
        self._ids: dict[Any, Tensor] = {}
        self._rows: dict[Any, OwnRows] = {}  # made when they are first asked for

    @staticmethod
    def key(attr: Any) -> tuple[Any, Any]:
        """Return the key of the store's dict of tensors for a TensorAttr: (group, name)."""
        return attr.group_name, attr.attr_name

    # --- global ids

    def put_global_id(self, global_id: Tensor, group_name: Any) -> bool:
        """Store the global id of each row of a group, int32 or int64 [n], in any order, without repeats.

        Return True.
        """
        self.part = None
        where = f"{_FEATURES}, group {shown(group_name)}"
        self._ids[group_name] = check_index_tensor(where, "global_id", global_id)
        self._rows.pop(group_name, None)
        return True

    def get_global_id(self, group_name: Any) -> Tensor | None:
        """Return the global id of each row of a group. None: the group has no ids."""
        return self._ids.get(group_name)

    def remove_global_id(self, group_name: Any) -> bool:
        """Remove the global ids of a group; return whether there were any."""
        self.part = None
        self._rows.pop(group_name, None)
        return self._ids.pop(group_name, None) is not None

    # --- tensors

    def put_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Store a tensor or array [n, ...] under a name (a TensorAttr, or its group_name and attr_name); return True.

        Raises:
            ValueError: A field is missing, or an index is given.
        """
        return self._put_tensor(tensor, self._full_attr(*args, **kwargs))

    def get_tensor(self, *args: Any, convert_type: bool = False, **kwargs: Any) -> Any:
        """Return the tensor under a name (a TensorAttr or its fields).

        If the name has an `index`, return only these rows. The index has positions of rows, not global ids.

        Args:
            convert_type: return a NumPy array if the index is a NumPy array.
        Raises:
            KeyError: There is no such tensor; the message says which there are.
        """
        attr = self._full_attr(*args, **kwargs)
        tensor = self._get_tensor(attr)
        return tensor.numpy() if convert_type and isinstance(attr.index, np.ndarray) else tensor

    def remove_tensor(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the tensor under a name (a TensorAttr or its fields); return whether there was one."""
        return self._remove_tensor(self._full_attr(*args, **kwargs))

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Store a tensor as `put_tensor` does. It replaces the tensor of the same group and name, if there is one."""
        return self.put_tensor(tensor, *args, **kwargs)

    def get_tensor_size(self, *args: Any, **kwargs: Any) -> tuple[int, ...] | None:
        """Return the shape of the tensor under a name (a TensorAttr or its fields). None: there is no such tensor."""
        return self._get_tensor_size(self._tensor_attr_cls.cast(*args, **kwargs))

    def get_all_tensor_attrs(self) -> list[Any]:
        """Return a list of a TensorAttr for each tensor in the store."""
        return [self._tensor_attr_cls(*key) for key in self._feat]

    def has_edge_attr(self) -> bool:
        """Return whether edges of any type have the attribute "edge_attr"."""
        return any(isinstance(group, tuple) and name == "edge_attr" for group, name in self._feat)

    def _full_attr(self, *args: Any, **kwargs: Any) -> Any:
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        if not attr.is_fully_specified():
            raise ValueError(f"{_FEATURES}: found {shown(attr)}; group_name and attr_name are needed. Give both.")
        return attr

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        if attr.index is not None:
            raise ValueError(
                f"{_FEATURES}: found an index for a tensor to put; a tensor is put whole. Leave the index out."
            )
        values = as_tensor(_FEATURES, shown(self.key(attr)), tensor)
        if values.ndim == 0:
            raise ValueError(
                f"{_FEATURES}: {shown(self.key(attr))} must be [n, ...], got a single value. Give a row for each id."
            )
        self.part, self._feat[self.key(attr)] = None, values
        self.of_all.discard(self.key(attr))
        return True

    def _get_tensor(self, attr: Any) -> Tensor:
        tensor = self._feat.get(self.key(attr))
        if tensor is None:
            raise no_such(_FEATURES, "tensor", self.key(attr), self._feat)
        return tensor if attr.index is None else tensor[attr.index]

    def _remove_tensor(self, attr: Any) -> bool:
        self.part = None
        self.of_all.discard(self.key(attr))
        return self._feat.pop(self.key(attr), None) is not None

    def _get_tensor_size(self, attr: Any) -> tuple[int, ...] | None:
        tensor = self._feat.get(self.key(attr))
        return None if tensor is None else tuple(tensor.shape)

    # --- by global id

    def get_tensor_from_global_id(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the rows of a tensor at global ids. The arguments are a TensorAttr or its fields.

        Its `index` has the global ids, int32 or int64 [n], in any order, repeats allowed.

        Raises:
            KeyError: There is no such tensor; the message says which there are.
            IndexError: This part does not have an id; the message names the first one.
            ValueError: There is no index, or the group does not have a global id for each row of the tensor.
        """
        attr = self._full_attr(*args, **kwargs)
        if attr.index is None:
            raise ValueError(f"{_LOOKED_UP}: {shown(self.key(attr))} needs an index. Give the global ids.")
        return self._rows_of_ids(self.key(attr), check_index_tensor(_LOOKED_UP, "index", attr.index).long())

    def _rows_of_ids(self, key: tuple[Any, Any], ids: Tensor) -> Tensor:
        tensor = self._get_tensor(self._tensor_attr_cls(*key))
        if key in self.of_all:
            rows = ids.where(ids < tensor.shape[0], -1)
        else:
            known_ids = self._ids.get(key[0])
            if known_ids is None or known_ids.shape[0] != tensor.shape[0]:
                count = "no" if known_ids is None else str(known_ids.shape[0])
                raise ValueError(
                    f"{_LOOKED_UP}: {shown(key)} has {tensor.shape[0]} rows, and its group has {count} global ids; "
                    "each row needs one. Call put_global_id."
                )
            rows = self._rows_of_group(key[0]).rows(ids)
        if bool((missing := rows < 0).any()):
            raise IndexError(
                f"{_LOOKED_UP}: part {self.partition_idx} does not have the id {int(ids[missing][0])} of "
                f"{shown(key[0])}. Ask the part that owns it, or use lookup_features."
            )
        if has_adjacent_values(tensor) and not (tensor.is_conj() or tensor.is_neg()):
            return take_rows(tensor, byte_rows(tensor), rows)
        return bits_of(tensor)[rows].view(tensor.dtype)

    def _rows_of_group(self, group: Any) -> OwnRows:
        """Return the OwnRows that finds the rows of a group's ids. Threads that call this at once get equal results.

        Raises:
            ValueError: Two rows have the same id.
        """
        if group in self._rows:
            return self._rows[group]
        ids = self._ids[group].long()
        rows = OwnRows(ids)
        if rows.num_ids < rows.num_rows:
            ascending = ids.sort().values
            twice = int(ascending[1:][ascending[1:] == ascending[:-1]][0])
            raise ValueError(
                f"{_FEATURES}, group {shown(group)}: the id {twice} is there twice, so its row is not known; each id "
                "may be there once. Put other global ids."
            )
        return self._rows.setdefault(group, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": {}}
