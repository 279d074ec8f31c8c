"""HeteroItemSet: item sets of several node types, or of several edge types, as one set.

The items are numbered type by type, in sorted order of the types. ItemSampler permutes them as one set, so a minibatch
has items of several types. Within a type, items keep the order in which the permutation visits them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import check_within, shown
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, check_node_type
from datapipes.seeds.item_set import ItemSet, positions_at

__all__ = ["HeteroItemSet"]


class HeteroItemSet(Hashed):
    """The seeds of several node types, or of several edge types, and the values that belong to each seed.

    In a minibatch each field is a dict {type: rows}. `seeds` has all types of the set, with an empty tensor for a type
    without a seed in the minibatch. `labels` and other fields have only the types whose item sets have this field. Your
    own names become `minibatch.extra[name]`, {type: rows}.

    Args:
        item_sets: {type: ItemSet}. The keys are all node types or all edge types; their order does not matter. Seeds of
            a node type are ids [n] (or an int, or a mask). Seeds of an edge type (src, rel, dst) are pairs [n, 2]:
            column 0 has nodes of the type src, column 1 of the type dst. Or they are rows [n, k], whose further columns
            have nodes of the type dst, such as negatives. The text "src:rel:dst" is accepted as an edge type, too: a
            key that is a text is an edge type if its seeds are pairs.
    Raises:
        TypeError, ValueError: The types are mixed, a name is empty, or the seeds of a type have another shape.
    """

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

    def __getitem__(self, index: Any) -> dict[Any, Any]:
        """Return {type: item} for an int `index`; {type: items} for a slice, a list or a tensor of positions [n].

        The positions count the items of all types, type by type. Item and items are what `ItemSet.__getitem__` returns.
        Types without an item at these positions are left out.

        Raises:
            IndexError: A position is outside the items.
        """
        positions, is_one = positions_at("HeteroItemSet", index, len(self))
        places = zip(self.item_sets.items(), self._places(positions), strict=True)
        return {kind: items[int(at) if is_one else at] for (kind, items), at in places if len(at) > 0}

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        """Yield the items one by one, type by type, each as {type: item}."""
        return ({kind: item} for kind, items in self.item_sets.items() for item in items)

    def take(self, positions: Tensor) -> dict[str, dict[Any, Tensor]]:
        """Return the items at `positions`, int64 [n], as {name: {type: rows}}. Names are "seeds", "labels" and so on.

        The tensors are new and contiguous. Rows of a type keep the order of `positions`. Time O(n log n + number of
        types).

        Raises:
            IndexError: A position is outside the items.
        """
        taken: dict[str, dict[Any, Tensor]] = {}
        for (kind, items), places in zip(self.item_sets.items(), self._places(positions), strict=True):
            for name, rows in items.take(places).items():
                taken.setdefault(name, {})[kind] = rows
        return taken

    def _places(self, positions: Tensor) -> list[Tensor]:
        """Find the items at `positions` of the whole set in the item sets of the types.

        Return a tensor for each type, int64: positions in the item set of the type, in the order of `positions`.
        """
        if len(self.item_sets) == 1:  # whose `take` checks them
            return [positions]
        # By NumPy: torch would wake its threads, which takes longer than the work.
        items = positions.numpy()
        outside = (items < 0) | (items >= len(self))
        if outside.any():
            check_within("HeteroItemSet", "positions", positions, len(self), "Take others.")
        number = np.searchsorted(self._ends, items, side="right")
        ends = np.bincount(number, minlength=len(self.item_sets)).cumsum()[:-1]
        grouped = np.split(items[np.argsort(number, kind="stable")], ends)
        begins = [0, *self._ends[:-1]]
        return [torch.from_numpy(places - begin) for places, begin in zip(grouped, begins, strict=True)]

    def _refuse_empty(self, where: str) -> None:
        """Raise ValueError if a type has no items. `where` is the stage that needs items, for the error."""
        for kind, items in self.item_sets.items():
            if len(items) == 0:
                raise ValueError(
                    f"{where}: found 0 items of the type {kind!r}; each type needs at least 1. Leave the type out, or "
                    "check how it was split."
                )

    def digest(self) -> str:
        """Return a digest of the types and of all items, 32 hexadecimal digits, as ItemSet.digest does for one type."""
        facts = [[kind, len(items), items.names] for kind, items in self.item_sets.items()]
        return hashlib.blake2b(json.dumps([facts, self._array_digests()]).encode(), digest_size=16).hexdigest()

    def _hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the tensors that `digest` covers, as {text of name and type: (tensor, False)}.

        False: a tensor is hashed in its own dtype.
        """
        return {
            f"{name} of {kind!r}": array
            for kind, items in self.item_sets.items()
            for name, array in items._hashed_arrays().items()
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}

    def __repr__(self) -> str:
        kind = "edge" if isinstance(self.types[0], tuple) else "node"
        return f"HeteroItemSet({len(self)} items of {len(self.types)} {kind} types)"


def _sorted_by_type(item_sets: Mapping[Any, ItemSet]) -> dict[Any, ItemSet]:
    """Check the item sets and return them sorted by type: all are of node types, or all of edge types, as tuples."""
    nodes: dict[Any, ItemSet] = {}
    edges: dict[Any, ItemSet] = {}
    for key, items in item_sets.items():
        is_edges = isinstance(key, tuple) or items.seeds_shape == (2,) or (_has_rows(items) and ":" in str(key))
        (edges if is_edges else nodes)[key] = items
    for key, items in nodes.items():
        check_node_type("HeteroItemSet", key)
        if items.seeds_shape != ():
            how = "For an edge_index, pass its transpose" if _is_edge_index(items) else "Flatten them, or pass pairs"
            raise ValueError(
                f"HeteroItemSet: seeds of the node type {key!r} must have shape [n], got "
                f"{_shape_of(items)}. {how} [n, 2] under an edge type."
            )
    for key, items in edges.items():
        try:
            check_edge_type("HeteroItemSet", key)
        except ValueError as error:
            if not isinstance(key, str):  # a text may have been meant as a node type
                raise
            raise ValueError(
                f"{error} Its seeds have shape {_shape_of(items)}, which are pairs of an edge type; seeds of a node "
                "type have shape [n]."
            ) from error
        if not (items.seeds_shape == (2,) or _has_rows(items)):
            raise ValueError(
                f"HeteroItemSet: seeds of the edge type {key} must be pairs of shape [n, 2], or rows [n, k], got "
                f"{_shape_of(items)}. {_TWO_ROWS if _is_edge_index(items) else 'Stack source and destination.'}"
            )
    if nodes and edges:
        raise ValueError(
            f"HeteroItemSet: found node types, such as {next(iter(nodes))!r}, beside edge types, such as "
            f"{next(iter(edges))!r}; all must be of one kind. Make two sets. (A text is an edge type if its seeds are "
            "pairs.)"
        )
    return by_edge_type("HeteroItemSet", edges) if edges else {key: nodes[key] for key in sorted(nodes)}


_TWO_ROWS = "For an edge_index, pass its transpose. (2 rows of a pair and further nodes look the same: pass 3 or more.)"


def _has_rows(items: ItemSet) -> bool:
    """Return whether each seed is a row of more than two nodes: a pair (source, destination) and further nodes."""
    return len(items.seeds_shape) == 1 and items.seeds_shape[0] > 2 and not _is_edge_index(items)


def _is_edge_index(items: ItemSet) -> bool:
    """Return whether the seeds look like an edge_index [2, n], which other libraries take for pairs."""
    return len(items) == 2 and items.seeds_shape != ()


def _shape_of(items: ItemSet) -> list[int]:
    return [len(items), *items.seeds_shape]
