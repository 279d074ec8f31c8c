"""ItemSet: the seeds of a task, and the values that belong to each seed: labels, queries, times and others."""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import (
    INDEX_DTYPES,
    as_tensor,
    check_index_tensor,
    check_int,
    check_within,
    dtype_name,
    how_to_get_ids,
    shown,
)
from datapipes.base.rows import RowTable, has_adjacent_values, take_rows
from datapipes.minibatch import MiniBatch, SparseRows
from datapipes.minibatch.sparse_rows import check_entries

__all__ = ["ItemSet"]

ROWS = 1024  # rows that an iteration takes at a time
FEW = 2**10  # torch takes the rows of up to this many positions; our kernel takes more, into recycled memory
ITEM_NAMES = ("seeds", "labels", "indexes", "timestamps")
_LIST_PARTS = ("indptr", "indices")
_TAKEN_NAMES = ({*MiniBatch.__dataclass_fields__} | {"extra", "sampled_subgraphs"}) - {*ITEM_NAMES}


class ItemSet(Hashed):
    """The seeds of a task and their values, as one or several tensors of equal length. Item i is row i of each tensor.

    Args:
        items: an int n for the ids 0 .. n-1; a tensor of node ids [n], pairs [n, 2] or [n, k]; or a tuple of these, of
            equal length. NumPy arrays are viewed. Tensors may be non-contiguous or memory-mapped. Seeds may also be a
            bool mask over the nodes, [num_nodes]; the seeds are then the ids of the nodes that are True. Of another
            tensor [num_nodes, ...], the rows of these nodes are taken; a tensor with one row for each True node stays
            as it is.
            A field of your own may be lists of different lengths, as SparseRows without values: row i has the list of
            item i as its columns. A minibatch has them as [n, longest list in it], padded with -1.
        names: the MiniBatch field of each tensor: "seeds", or a sequence such as ("seeds", "labels"). Default: the
            first names of ("seeds", "labels", "indexes", "timestamps"). You may also use names of your own: rows named
            "weights" become `minibatch.extra["weights"]`. Other fields of MiniBatch cannot be named.
    Raises:
        TypeError, ValueError: The seeds are not ids, lengths differ, or a name is not allowed.
    """

    def __init__(
        self, items: int | Tensor | np.ndarray[Any, Any] | tuple[Any, ...], names: str | Sequence[str] | None = None
    ) -> None:
        if isinstance(items, Mapping):
            raise TypeError(
                "ItemSet: items must be an int, a tensor or a tuple of these, got a dict. For items by type use "
                "dp.HeteroItemSet({type: dp.ItemSet(...)}); for several fields pass a tuple, and their names."
            )
        values = items if isinstance(items, tuple) else (items,)
        if not values:
            raise ValueError(
                "ItemSet: got an empty tuple; at least the seeds are needed. Pass (seeds,) or (seeds, labels)."
            )
        if names is None:
            names = ITEM_NAMES[: len(values)]
        self.names = (names,) if isinstance(names, str) else tuple(names)
        if len(self.names) != len(values) or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"ItemSet: {len(values)} items need as many different names, got {list(self.names)}. Name each once."
            )
        wrong = [name for name in self.names if not isinstance(name, str) or not name]
        if wrong:
            raise TypeError(f"ItemSet: names must be str of at least one character, got {shown(wrong)}. Name them.")
        taken = [name for name in self.names if name in _TAKEN_NAMES]
        if taken:
            raise ValueError(
                f"ItemSet: names must be among {list(ITEM_NAMES)}, or your own, got {taken}, which MiniBatch fills "
                "itself. Choose other names."
            )
        if "seeds" not in self.names:
            raise ValueError(f"ItemSet: one of the items must be named 'seeds', got {list(self.names)}. Name it.")
        self._count: int | None = None
        self._tensors: dict[str, Tensor] = {}
        self._lists: dict[str, SparseRows] = {}
        self._tables: dict[str, RowTable] | None = None
        for name, value in zip(self.names, values, strict=True):
            if name == "seeds" and isinstance(value, (int, float, np.integer)):
                self._count = check_int("ItemSet", "number of seeds", value, 0)
            elif isinstance(value, SparseRows):
                self._lists[name] = _check_lists(name, value)
            else:
                self._tensors[name] = _check_item(name, value)
        mask = self._tensors.get("seeds")
        if mask is not None and mask.dtype == torch.bool:
            ids = mask.nonzero().flatten()  # of the True places, at which the other items are taken
            of_mask = [name for name, tensor in self._tensors.items() if tensor.shape[0] == mask.shape[0]]
            self._tensors.update({name: self._tensors[name][ids] for name in of_mask})
            for name, lists in self._lists.items():
                self._lists[name] = lists[ids] if lists.shape[0] == len(mask) else lists
            self._tensors["seeds"] = ids
        lengths = {name: int(tensor.shape[0]) for name, tensor in self._tensors.items()}
        lengths |= {name: lists.shape[0] for name, lists in self._lists.items()}
        if self._count is not None:
            lengths["seeds"] = self._count
        if len(set(lengths.values())) != 1:
            raise ValueError(f"ItemSet: items must be equally long, got {lengths}. Cut them to one length.")
        self._length = lengths["seeds"]

    @staticmethod
    def of_edges(graph: Any, edge_type: Any = None, edge_ids: Any = None) -> Any:
        """Make an item set of a graph's edges: pairs (source, destination), and the edge ids as `extra["edge_ids"]`.

        Without `edge_ids`, the edges are in the order of the graph: by destination, then by position among the in-edges
        of the destination. With `edge_ids`, they are in the order of these ids. Memory: 24 bytes an edge, or 16 if ids
        are int32.

        Args:
            graph: a CSCGraph or HeteroCSCGraph, or a DistGraph, of which only the edges of the part in this process are
                taken.
            edge_type: on a graph with types, the edge type to take; None takes all types that have edges.
            edge_ids: int32 or int64 [n], the ids of the edges to take, as edge features are addressed; with types, the
                ids for `edge_type`, or {edge type: ids}. None takes all.
        Returns:
            An ItemSet; for a graph with types, a HeteroItemSet.
        Raises:
            TypeError, ValueError: There is no such type, no edge, or all parts are behind servers.
            IndexError: An id is the id of no edge; the message names the first such id.
        """
        make = getattr(graph, "_edge_items", None)
        if make is None:
            raise TypeError(
                f"ItemSet.of_edges: graph must be a CSCGraph, a HeteroCSCGraph or a DistGraph, got "
                f"{type(graph).__name__}. Convert it, see CSCGraph.from_*."
            )
        return make(edge_type, edge_ids)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        """Return the item at an int, or the items at a slice, a list or a tensor of positions [n], as new tensors.

        Returns:
            If the set has one tensor, a row or rows of it. If the set has several, a tuple of these in the order of
            `names`. (`take` returns a dict.)
        Raises:
            IndexError: A position is outside the items; ints and slices may count from the end.
        """
        positions, is_one = positions_at("ItemSet", index, len(self))
        taken = self.take(positions)
        rows = tuple(taken[name][0] if is_one else taken[name] for name in self.names)
        return rows if len(rows) > 1 else rows[0]

    def __iter__(self) -> Iterator[Any]:
        """Yield the items one by one, each as `self[i]` returns it. For minibatches use an ItemSampler."""
        for begin in range(0, len(self), ROWS):
            rows = self[begin : begin + ROWS]
            yield from zip(*rows, strict=True) if len(self.names) > 1 else rows

    @property
    def seeds_shape(self) -> tuple[int, ...]:
        """The shape of one seed: () for node ids, (2,) for pairs, (k,) for seeds [n, k]."""
        return () if self._count is not None else tuple(self._tensors["seeds"].shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        # _tables are views of the tensors; a pickle would copy them
        return {**self.__dict__, "_tables": None, "_kept": None}

    def take(self, positions: Tensor) -> dict[str, Tensor]:
        """Return the items at `positions`, int64 [n], as {name: rows}. Names are "seeds", "labels" and so on.

        The tensors are new and contiguous.

        Raises:
            IndexError: A position is outside the items.
        """
        positions = positions.contiguous()
        try:
            taken = self._taken(positions)
        except IndexError as error:
            raise IndexError(f"ItemSet: positions must be in [0, {len(self)}). Take others. ({error})") from error
        taken.update({name: rows.padded(positions) for name, rows in self._lists.items()})
        if self._count is not None:
            check_within("ItemSet", "positions", positions, self._count, "Take others.")
            taken["seeds"] = positions.clone()
        return taken

    def _taken(self, positions: Tensor) -> dict[str, Tensor]:
        if positions.shape[0] <= FEW:
            return {name: rows.index_select(0, positions) for name, rows in self._tensors.items()}
        if self._tables is None:
            self._tables = {name: RowTable(rows) for name, rows in self._tensors.items() if _can_gather(rows)}
        tables = self._tables
        return {
            name: take_rows(rows, tables[name].bytes_now(), positions) if name in tables else rows[positions]
            for name, rows in self._tensors.items()
        }

    def _refuse_empty(self, where: str) -> None:
        """Raise ValueError if there are no items. `where` is the stage that needs items, for the error."""
        if len(self) == 0:
            raise ValueError(f"{where}: found an item set of 0 items; at least 1 is needed. Check how it was split.")

    def digest(self) -> str:
        """Return a digest of all items, 32 hexadecimal digits, which depends on every byte.

        Each tensor is read only once.

        Raises:
            ValueError: A tensor was changed in place after a minibatch or a digest was made from it.
        """
        facts = [len(self), self.names, self._array_digests()]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def _hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the tensors that `digest` covers, as {name: (tensor, False)}. False: it is hashed in its own dtype."""
        arrays = {name: (self._tensors[name], False) for name in self.names if name in self._tensors}
        for name, rows in self._lists.items():
            arrays |= {f"{name}, {part}": (getattr(rows, part), False) for part in _LIST_PARTS}
        return arrays

    def _values(self) -> tuple[Any, ...]:
        """Return values of which an equal set can be made, in the order of `names`; the ids, for a mask."""
        return tuple({**self._tensors, **self._lists}.get(name, self._length) for name in self.names)

    def __repr__(self) -> str:
        return f"ItemSet({self._length} items, names={self.names})"


def kept_bytes(items: tuple[Any, ...], names: Any) -> int:
    """Return how many bytes the tensors of an ItemSet take that is made of `items` and `names`.

    Of a mask of seeds, an ItemSet keeps the ids, 8 bytes each.
    """
    tensors = [tensor for tensor in items if isinstance(tensor, Tensor)]
    at = names.index("seeds") if isinstance(names, (list, tuple)) and "seeds" in names else len(items)
    mask = items[at] if at < len(items) else None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.ndim != 1:
        return sum(tensor.nbytes for tensor in tensors)
    count, length = int(mask.count_nonzero()), len(mask)
    num_bytes = 8 * count
    for tensor in tensors:
        if tensor is not mask:
            is_taken = tensor.ndim > 0 and len(tensor) == length
            num_bytes += tensor.nbytes * count // max(length, 1) if is_taken else tensor.nbytes
    return num_bytes


def positions_at(where: str, index: Any, length: int) -> tuple[Tensor, bool]:
    """Convert an index of items; return (positions, is_one): int64 [n], and whether `index` is a single int.

    An int and a slice may count from the end.
    """
    if isinstance(index, slice):
        return torch.from_numpy(np.arange(*index.indices(length))), False
    if isinstance(index, (int, np.integer)) or (isinstance(index, Tensor) and index.ndim == 0):
        place = operator.index(index)
        if not -length <= place < length:
            raise IndexError(f"{where}: found the position {place}, must be in [{-length}, {length}). Choose another.")
        return torch.tensor([place % length]), True
    positions = torch.tensor(index, dtype=torch.int64) if isinstance(index, list) else index
    positions = positions.contiguous() if isinstance(positions, Tensor) else positions
    return check_index_tensor(where, "the index", positions).long(), False


def as_fields(taken: dict[str, Any]) -> dict[str, Any]:
    """Return `taken`, {name: rows}, as fields of a MiniBatch: a user's own names are moved into the dict "extra"."""
    extra = taken.keys() - ITEM_NAMES
    if not extra:
        return taken
    fields = {name: rows for name, rows in taken.items() if name not in extra}
    return {**fields, "extra": {name: rows for name, rows in taken.items() if name in extra}}


def _can_gather(rows: Tensor) -> bool:
    """Return whether the C++ gather, which prefetches, can take rows of this tensor faster than torch's indexing."""
    return rows.device.type == "cpu" and has_adjacent_values(rows) and not (rows.is_conj() or rows.is_neg())


def _check_lists(name: str, rows: SparseRows) -> SparseRows:
    if name in ITEM_NAMES:
        raise ValueError(f"ItemSet: {name} must be a tensor, got SparseRows. Give SparseRows a name of your own.")
    if rows.values is not None:
        raise ValueError(f"ItemSet: {name} must be SparseRows without values, got {rows}. Leave the values out.")
    indptr, indices = (check_index_tensor("ItemSet", f"{name}.{part}", getattr(rows, part)) for part in _LIST_PARTS)
    check_int("ItemSet", f"{name}.num_columns", rows.num_columns, 0)
    check_entries(f"ItemSet: {name}", indptr.long(), indices, rows.num_columns)
    return SparseRows(indptr.long(), indices, rows.num_columns)


def _check_item(name: str, value: Any) -> Tensor:
    tensor = as_tensor("ItemSet", name, value)
    if tensor.ndim == 0:
        raise ValueError(
            f"ItemSet: {name} must have at least 1 dimension, got a 0-d tensor. Pass one entry for each item; "
            "for the seeds 0 .. n-1, pass the int n."
        )
    if tensor.device.type != "cpu":
        raise ValueError(
            f"ItemSet: {name} must be in host memory, found it on {tensor.device}. Call .cpu(); use copy_to in the "
            "chain."
        )
    if name == "seeds":
        if tensor.dtype not in INDEX_DTYPES and not (tensor.dtype == torch.bool and tensor.ndim == 1):
            raise TypeError(
                f"ItemSet: seeds must be int32 or int64, or a bool mask [num_nodes], got {dtype_name(tensor.dtype)} "
                f"{list(tensor.shape)}. {how_to_get_ids(tensor)}"
            )
        if tensor.ndim > 2 or (tensor.ndim == 2 and tensor.shape[1] == 0):
            raise ValueError(f"ItemSet: seeds must have shape [n] or [n, k], got {list(tensor.shape)}. Reshape them.")
    return tensor
