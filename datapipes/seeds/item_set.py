"""ItemSet: the seeds of a task and the values that belong to each seed (labels, queries, times, the user's own).

HeteroItemSet: item sets of several node types, or of several edge types, as one set. The items are numbered type by
type, in sorted order of the types. ItemSampler permutes them as one set, so a minibatch holds items of several types.
Within a type, items keep the order in which the permutation visits them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import INDEX_DTYPES, as_tensor, check_int, dtype_name, how_to_get_ids, shown
from datapipes.base.rows import RowTable, has_adjacent_values, take_rows
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, check_node_type
from datapipes.minibatch import MiniBatch

__all__ = ["HeteroItemSet", "ItemSet"]

ITEM_NAMES = ("seeds", "labels", "indexes", "timestamps")
_TAKEN_NAMES = ({*MiniBatch.__dataclass_fields__} | {"extra", "sampled_subgraphs"}) - {*ITEM_NAMES}


class ItemSet(Hashed):
    """One or several tensors of equal length; item i is row i of each of them.

    Args:
        items: an int n for the ids 0 .. n-1; a tensor of node ids [n], pairs [n, 2] or [n, k]; or a tuple of these, of
            equal length. NumPy arrays are viewed. Tensors may be non-contiguous or memory-mapped. Seeds may also be a
            bool mask over the nodes, [num_nodes]: the ids of its True places. Other items of the mask's length are then
            taken at the same places; those with one row for each True place stay.
        names: the MiniBatch field of each tensor: "seeds", or a sequence such as ("seeds", "labels"). Default: the
            first names of ("seeds", "labels", "indexes", "timestamps"). Any other name is the user's own, such as
            "weights": its rows become `minibatch.extra["weights"]`. What MiniBatch fills itself cannot be named.
    Raises:
        TypeError, ValueError: The seeds are not ids, lengths differ, or a name is not allowed.
    """

    _hidden = frozenset({"refuse_empty", "take_fields"})

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
        _refuse_taken_names(self.names)
        self._has_own = not {*self.names} <= {*ITEM_NAMES}
        if "seeds" not in self.names:
            raise ValueError(f"ItemSet: one of the items must be named 'seeds', got {list(self.names)}. Name it.")
        self._count: int | None = None
        self._tensors: dict[str, Tensor] = {}
        self._tables: dict[str, RowTable] | None = None
        for name, value in zip(self.names, values, strict=True):
            if name == "seeds" and isinstance(value, (int, float, np.integer)):
                self._count = check_int("ItemSet", "number of seeds", value, 0)
            else:
                self._tensors[name] = _check_item(name, value)
        self._take_at_mask()
        lengths = {name: int(tensor.shape[0]) for name, tensor in self._tensors.items()}
        if self._count is not None:
            lengths["seeds"] = self._count
        if len(set(lengths.values())) != 1:
            raise ValueError(f"ItemSet: items must be equally long, got {lengths}. Cut them to one length.")
        self._length = lengths["seeds"]

    def _take_at_mask(self) -> None:
        """Turn a mask into the ids of its True places, and take the other items there."""
        mask = self._tensors.get("seeds")
        if mask is None or mask.dtype != torch.bool:
            return
        ids = mask.nonzero().flatten()
        of_mask = [name for name, tensor in self._tensors.items() if tensor.shape[0] == mask.shape[0]]
        self._tensors.update({name: self._tensors[name][ids] for name in of_mask})
        self._tensors["seeds"] = ids

    def __len__(self) -> int:
        return self._length

    @property
    def seeds_shape(self) -> tuple[int, ...]:
        """The shape of one seed: () for ids, (2,) for pairs, (k,) for seeds [n, k]."""
        return () if self._count is not None else tuple(self._tensors["seeds"].shape[1:])

    def __getstate__(self) -> dict[str, Any]:
        # _tables are views of the tensors; a pickle would copy them
        return {**self.__dict__, "_tables": None, "_kept": None}

    def take(self, positions: Tensor) -> dict[str, Tensor]:
        """Return {name: rows} at `positions`, int64 [n], each in [0, len(self)); new contiguous tensors.

        Raises:
            IndexError: A position is outside the items.
        """
        positions = positions.contiguous()
        if self._tables is None:
            self._tables = {name: RowTable(rows) for name, rows in self._tensors.items() if _can_gather(rows)}
        tables = self._tables
        try:
            taken = {
                name: take_rows(rows, tables[name].bytes_now(), positions) if name in tables else rows[positions]
                for name, rows in self._tensors.items()
            }
        except IndexError as error:
            raise IndexError(f"ItemSet: positions must be in [0, {len(self)}): {error}") from error
        if self._count is not None:
            taken["seeds"] = positions
        return taken

    def take_fields(self, positions: Tensor) -> dict[str, Any]:
        """Return what `take` returns as fields of a MiniBatch: names of the user's own are in "extra"."""
        taken = self.take(positions)
        return _as_fields(taken) if self._has_own else taken

    def refuse_empty(self, where: str) -> None:
        """Raise ValueError if there are no items; `where` is the stage that needs some."""
        if len(self) == 0:
            raise ValueError(f"{where}: found an item set of 0 items; at least 1 is needed. Check how it was split.")

    def digest(self) -> str:
        """Return a digest of the items, 32 hexadecimal digits; every byte counts. Each tensor is read once.

        Raises:
            ValueError: A tensor was changed in place after a minibatch or a digest was made from it.
        """
        facts = [len(self), self.names, self.array_digests()]
        return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()

    def hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the tensors by name; see Hashed."""
        return {name: (self._tensors[name], False) for name in self.names if name in self._tensors}

    def __repr__(self) -> str:
        return f"ItemSet({self._length} items, names={self.names})"


def _as_fields(taken: dict[str, Any]) -> dict[str, Any]:
    """Return {field of MiniBatch: rows}; names that are none are moved to the field "extra"."""
    extra = taken.keys() - ITEM_NAMES
    if not extra:
        return taken
    fields = {name: rows for name, rows in taken.items() if name not in extra}
    return {**fields, "extra": {name: rows for name, rows in taken.items() if name in extra}}


def _refuse_taken_names(names: tuple[Any, ...]) -> None:
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if wrong:
        raise TypeError(f"ItemSet: names must be str of at least one character, got {shown(wrong)}. Name the items.")
    taken = [name for name in names if name in _TAKEN_NAMES]
    if taken:
        raise ValueError(
            f"ItemSet: names must be among {list(ITEM_NAMES)}, or your own, got {taken}, which MiniBatch fills itself. "
            "Choose other names."
        )


def _can_gather(rows: Tensor) -> bool:
    """Return whether the row gather of the core can replace torch's indexing; it prefetches, so it is faster."""
    return rows.device.type == "cpu" and has_adjacent_values(rows) and not (rows.is_conj() or rows.is_neg())


def _check_item(name: str, value: Any) -> Tensor:
    tensor = as_tensor("ItemSet", name, value)
    if tensor.ndim == 0:
        raise ValueError(
            f"ItemSet: {name} must have at least 1 dimension, got a 0-d tensor. Pass an int for the ids 0 .. n-1."
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


# --- with types


class HeteroItemSet(Hashed):
    """The seeds of several node types, or of several edge types, and the values that belong to each seed.

    In a minibatch each field is a dict by type. `seeds` has all types of the set, with an empty tensor for a type of
    which the minibatch has no seed. `labels` and other names have the types whose item sets have them. A name of the
    user's own gives `minibatch.extra[name]`, {type: rows}.

    Args:
        item_sets: {type: ItemSet}. The keys are all node types or all edge types; their order does not matter. Seeds of
            a node type are ids [n] (or an int, or a mask). Seeds of an edge type (src, rel, dst) are pairs [n, 2]:
            column 0 holds nodes of the type src, column 1 of the type dst. For an edge type the text "src:rel:dst" is
            accepted too: a text is an edge type where its seeds are pairs.
    Raises:
        TypeError, ValueError: The types are mixed, a name is empty, or the seeds of a type have another shape.
    """

    _hidden = frozenset({"refuse_empty", "take_fields"})

    def __init__(self, item_sets: Mapping[str, ItemSet] | Mapping[EdgeType, ItemSet]) -> None:
        if not isinstance(item_sets, Mapping) or not item_sets:
            raise TypeError(
                f"HeteroItemSet: item_sets must be a dict {{type: ItemSet}} of at least one type, got "
                f"{shown(item_sets)}. Pass one."
            )
        for key, items in item_sets.items():
            if not isinstance(items, ItemSet):
                raise TypeError(
                    f"HeteroItemSet: the items of {shown(key)} must be an ItemSet, got {type(items).__name__}. Wrap "
                    "them: dp.ItemSet(...)."
                )
        self.item_sets = _sorted_by_type(item_sets)
        ends = list(accumulate(len(items) for items in self.item_sets.values()))
        self._length = ends[-1]
        self._ends = np.array(ends)  # int64 [number of types]: the end of each type in the numbering of the items

    @property
    def types(self) -> tuple[str, ...] | tuple[EdgeType, ...]:
        """The node types or the edge types, sorted."""
        return tuple(self.item_sets)

    def __len__(self) -> int:
        return self._length

    def take(self, positions: Tensor) -> dict[str, dict[Any, Tensor]]:
        """Return {name: {type: rows}} at `positions`, int64 [n], each in [0, len(self)); new contiguous tensors.

        Rows of a type keep the order of `positions`. O(n log n + number of types).

        Raises:
            IndexError: A position is outside the items.
        """
        taken: dict[str, dict[Any, Tensor]] = {}
        for (kind, items), places in zip(self.item_sets.items(), self._places(positions), strict=True):
            for name, rows in items.take(places).items():
                taken.setdefault(name, {})[kind] = rows
        return taken

    def take_fields(self, positions: Tensor) -> dict[str, Any]:
        """Return what `take` returns as fields of a MiniBatch: names of the user's own are in "extra"."""
        return _as_fields(self.take(positions))

    def _places(self, positions: Tensor) -> list[Tensor]:
        """Return for each type the places within its item set, in the order of `positions`."""
        # By NumPy: torch would wake its threads, which takes longer than the work.
        given = positions.numpy()
        outside = (given < 0) | (given >= len(self))
        if outside.any():
            raise IndexError(
                f"HeteroItemSet: positions must be in [0, {len(self)}), got {given[outside][0]}. Take others."
            )
        number = np.searchsorted(self._ends, given, side="right")
        ends = np.bincount(number, minlength=len(self.item_sets)).cumsum()[:-1]
        grouped = np.split(given[np.argsort(number, kind="stable")], ends)
        begins = [0, *self._ends[:-1]]
        return [torch.from_numpy(places - begin) for places, begin in zip(grouped, begins, strict=True)]

    def refuse_empty(self, where: str) -> None:
        """Raise ValueError if a type has no items; `where` is the stage that needs some."""
        for kind, items in self.item_sets.items():
            if len(items) == 0:
                raise ValueError(
                    f"{where}: found 0 items of the type {kind!r}; each type needs at least 1. Leave the type out, or "
                    "check how it was split."
                )

    def digest(self) -> str:
        """Return a digest of the types and their items, 32 hexadecimal digits; see ItemSet.digest."""
        facts = [[kind, len(items), items.names] for kind, items in self.item_sets.items()]
        return hashlib.blake2b(json.dumps([facts, self.array_digests()]).encode(), digest_size=16).hexdigest()

    def hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the tensors by name and type; see Hashed."""
        return {
            f"{name} of {kind!r}": array
            for kind, items in self.item_sets.items()
            for name, array in items.hashed_arrays().items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __repr__(self) -> str:
        kind = "edge" if isinstance(self.types[0], tuple) else "node"
        return f"HeteroItemSet({len(self)} items of {len(self.types)} {kind} types)"


def _sorted_by_type(given: Mapping[Any, ItemSet]) -> dict[Any, ItemSet]:
    """Return the item sets in sorted order of their types: all node types, or all edge types as tuples."""
    edges = {key: items for key, items in given.items() if isinstance(key, tuple) or _is_pairs(items)}
    nodes = {key: items for key, items in given.items() if key not in edges}
    for key, items in nodes.items():
        check_node_type("HeteroItemSet", key)
        if items.seeds_shape != ():
            how = "Transpose them if they are pairs of an edge type" if _is_edge_index(items) else "Flatten them"
            raise ValueError(
                f"HeteroItemSet: seeds of the node type {key!r} must have shape [n], got "
                f"{_shape_of(items)}. {how}, or give an edge type and pairs [n, 2]."
            )
    for key, items in edges.items():
        _check_pairs_type(key, items)
        if not _is_pairs(items):
            raise ValueError(
                f"HeteroItemSet: seeds of the edge type {key} must be pairs of shape [n, 2], got "
                f"{_shape_of(items)}. {'Transpose it?' if _is_edge_index(items) else 'Stack source and destination.'}"
            )
    if nodes and edges:
        raise ValueError(
            f"HeteroItemSet: found node types, such as {next(iter(nodes))!r}, beside edge types, such as "
            f"{next(iter(edges))!r}; all must be of one kind. Make two sets. (A text is an edge type if its seeds are "
            "pairs.)"
        )
    return by_edge_type("HeteroItemSet", edges) if edges else {key: nodes[key] for key in sorted(nodes)}


def _is_pairs(items: ItemSet) -> bool:
    return items.seeds_shape == (2,)


def _is_edge_index(items: ItemSet) -> bool:
    """Return whether the seeds look like an edge_index [2, n], which other libraries take for pairs."""
    return len(items) == 2 and items.seeds_shape != ()


def _shape_of(items: ItemSet) -> list[int]:
    return [len(items), *items.seeds_shape]


def _check_pairs_type(key: Any, items: ItemSet) -> None:
    """Refuse a key that is no edge type; a text may have been meant as a node type."""
    try:
        check_edge_type("HeteroItemSet", key)
    except ValueError as error:
        if not isinstance(key, str):
            raise
        raise ValueError(
            f"{error} Its seeds have shape {_shape_of(items)}, which are pairs of an edge type; seeds of a node type "
            "have shape [n]."
        ) from error
