"""Item sets of nodes as node attributes: a mask for each set, and the labels and times of all sets as one tensor each.

An attribute has one row for each node, so it keeps neither the order of the items nor repeats.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.seeds import HeteroItemSet, ItemSet

MASKS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
VALUES = {"labels": "y", "timestamps": "seed_time"}


def attributes_of_items(where: str, data: Any, attributes: dict[Any, dict[str, Tensor]]) -> list[str]:
    """Add the item sets of a Dataset to the attributes of its nodes, and return words on what is none.

    Args:
        data: a Dataset, or an object with the same attributes.
        attributes: {node type: {name: rows}}, changed in place. What stands there already must agree with the items.
    """
    left_out: list[str] = []
    of_nodes: dict[str, dict[Any, ItemSet]] = {}
    for name in MASKS:
        items = getattr(data, name)
        sets: dict[Any, ItemSet] = items.item_sets if isinstance(items, HeteroItemSet) else {None: items}
        if len(items) == 0 and {*sets} == {None} and None not in attributes:
            sets = {}  # an empty set of a graph with types may name none
        if any(isinstance(kind, tuple) or each.seeds_shape != () for kind, each in sets.items()):
            left_out.append(f"{name}, {len(items)} links")
        else:
            of_nodes[name] = sets
    for kind in sorted({kind for sets in of_nodes.values() for kind in sets}, key=lambda kind: kind or ""):
        if kind not in attributes:
            raise ValueError(
                f"{where}: an item set has the node type {shown(kind)}; the graph has {list(attributes)}. Correct the "
                "item sets."
            )
        _Items(where, kind, data.graph.num_nodes_of(kind), attributes[kind], left_out).add(of_nodes)
    return left_out


class _Items:
    """The items of one node type, on their way into its attributes."""

    def __init__(
        self, where: str, kind: Any, num_nodes: int, attributes: dict[str, Tensor], left_out: list[str]
    ) -> None:
        self.where, self.kind, self.num_nodes = where, kind, num_nodes
        self.attributes, self.left_out = attributes, left_out
        self.of = "" if kind is None else f" of {kind!r}"

    def add(self, of_nodes: dict[str, dict[Any, ItemSet]]) -> None:
        """Add the masks, then the labels and times of all sets."""
        values: dict[str, list[tuple[str, Tensor, Tensor]]] = {name: [] for name in VALUES}
        for name, sets in of_nodes.items():
            fields: dict[str, Tensor] = {"seeds": torch.empty(0, dtype=torch.int64)}
            if self.kind in sets:
                items = sets[self.kind]
                fields = items.take(torch.arange(len(items)))
            ids = self._checked(name, fields.pop("seeds"))
            mask = torch.zeros(self.num_nodes, dtype=torch.bool)
            mask[ids] = True
            if int(mask.sum()) < ids.shape[0]:
                self.left_out.append(f"{name}{self.of}, items of a node that has one: {ids.shape[0] - int(mask.sum())}")
            self._add(name, MASKS[name], mask, torch.ones_like(mask))
            for field, rows in fields.items():
                if field in VALUES:
                    values[field].append((name, ids, rows))
                else:
                    self.left_out.append(f"{name}{self.of}, the field {field!r}")
        for field, given in values.items():
            if given:
                self._add(field, VALUES[field], *self._joined(field, given))

    def _checked(self, name: str, ids: Tensor) -> Tensor:
        outside = (ids < 0) | (ids >= self.num_nodes)
        if bool(outside.any()):
            raise IndexError(
                f"{self.where}: {name}{self.of} has the node {int(ids[outside][0])}; nodes{self.of} are in "
                f"[0, {self.num_nodes}). Check that the items belong to this graph."
            )
        return ids.long()

    def _joined(self, field: str, given: list[tuple[str, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Return one row for each node, and which nodes have one."""
        shapes = {name: tuple(rows.shape[1:]) for name, _, rows in given}
        if len(set(shapes.values())) > 1:
            raise ValueError(
                f"{self.where}: {field}{self.of} have rows of different shapes, {shapes}; one tensor must hold them "
                "all. Give them one shape."
            )
        dtype = given[0][2].dtype
        for _, _, rows in given:
            dtype = torch.promote_types(dtype, rows.dtype)
        has_nan = dtype.is_floating_point or dtype.is_complex
        dtype, missing = (dtype, float("nan")) if has_nan else (torch.int64, -1)
        joined = torch.full((self.num_nodes, *given[0][2].shape[1:]), missing, dtype=dtype)
        known = torch.zeros(self.num_nodes, dtype=torch.bool)
        for _, ids, rows in given:
            joined[ids] = rows.to(dtype)
            known[ids] = True
        for name, ids, rows in given:  # a row that another item has overwritten differs now
            place = _first_difference(rows.to(dtype), joined[ids])
            if place is not None:
                node = int(ids[place])
                other = next(other for other, ids, _ in reversed(given) if bool((ids == node).any()))
                raise ValueError(
                    f"{self.where}: the items of node {node}{self.of} have different {field}, "
                    f"{shown(rows[place].tolist())} in {name} and {shown(joined[node].tolist())} in {other}. Give each "
                    "node one value."
                )
        return joined, known

    def _add(self, what: str, name: str, rows: Tensor, known: Tensor) -> None:
        """Add an attribute, or keep the one that stands there, if it has the same values for the `known` nodes."""
        found = self.attributes.setdefault(name, rows)
        if found is rows:
            return
        agrees = found.shape == rows.shape and _kind(found.dtype) == _kind(rows.dtype)
        ids = known.nonzero().flatten()
        if not agrees or _differ(found[ids], rows[ids]):
            raise ValueError(
                f"{self.where}: the {what}{self.of} of the data set become the node attribute {name!r}, but the graph "
                "has an attribute or feature of this name with other values. Rename or drop it."
            )


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype == torch.bool else "complex" if dtype.is_complex else "real"


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether any value of two tensors of one kind differs. No dtype need hold the values of both exactly."""
    converted = one.to(other.dtype)
    return (
        _first_difference(converted, other) is not None or _first_difference(converted.to(one.dtype), one) is not None
    )


def _first_difference(one: Tensor, other: Tensor) -> int | None:
    """Return the first row in which two tensors of one dtype differ; nan equals nan."""
    differs = (one != other) & ~((one != one) & (other != other))
    rows = differs[:, None].flatten(1).any(dim=1).nonzero()
    return int(rows[0]) if rows.numel() > 0 else None
