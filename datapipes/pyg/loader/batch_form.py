"""How the batches of a Data or HeteroData are filled, as `filter_fn` of PyG's loaders does it.

Rows of tensors in host memory are gathered by our kernel, into memory recycled from earlier batches; every other value
by PyG. A thread may fill a batch before it is asked for; where a tensor has changed since, its rows are gathered anew.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor
from datapipes.base.rows import RowTable, has_adjacent_values, take_rows
from datapipes.base.threads import num_threads
from datapipes.base.types import of_type
from datapipes.pyg.loader.data_warnings import class_of_graphs
from datapipes.pyg.sampled import edge_index_of
from datapipes.pyg.torch_geometric_names import (
    Batch,
    Data,
    HeteroData,
    HeteroSamplerOutput,
    SamplerOutput,
    filter_edge_store_,
    index_select,
)

_CPU = torch.device("cpu")
_NOT_COMPARED = {"_mapping", "_parent", "_cached_attr"}  # fields of a store of PyG


class Sampled(NamedTuple):
    """What was sampled for a batch, by type; without types under None.

    Attributes:
        nodes: int64 [n], the ids.
        ends: pairs of int64 [e], the places of the source and the destination of each edge among the nodes.
        edges: int64 [e], the places of the edges in the data, or None.
    """

    nodes: dict[Any, Tensor]
    ends: dict[Any, tuple[Tensor, Tensor]]
    edges: dict[Any, Tensor | None]


class _Table(NamedTuple):
    """An attribute whose rows our kernel gathers.

    Attributes:
        value: the attribute, a tensor or an array.
        rows: the same values as a plain tensor.
        bytes: its rows as bytes.
    """

    value: Any
    rows: Tensor
    bytes: RowTable

    def keeps_layout(self) -> bool:
        """Return whether the value is still over the same memory."""
        return not isinstance(self.value, Tensor) or _layout(self.value) == _layout(self.rows)


class _Slot(NamedTuple):
    """An attribute of which a batch has the part that was sampled.

    Attributes:
        place: of its store among those of nodes, then those of edges.
        domain: "node" or "edge".
        table: for our kernel; None: PyG takes the rows.
        is_ours: whether a thread may fill it in: no code of the user's runs, and torch tells of changes.
    """

    place: int
    domain: str
    key: str
    table: _Table | None
    is_ours: bool

    def version(self) -> tuple[int, ...] | None:
        """Return what differs once torch has changed the values or moved them; None: only the loop may fill it in."""
        if not self.is_ours or self.table is None:
            return () if self.is_ours else None
        value = self.table.value
        return None if value.requires_grad else (value._version, value.data_ptr())


class BatchForm:
    """Which attributes the batches of a Data or HeteroData have, and of which they have the part that was sampled.

    The caller's thread makes it. `filled_ahead` may run in another: it looks at a copy of the data and at no code of
    the user's.

    Attributes:
        is_plain: as is_plain(data); else neither `filled_ahead` nor `holds` may be called.
    """

    def __init__(self, data: Any) -> None:
        self._class, self._copy = type(data), _copied(data)
        self.is_plain = is_plain(data)
        self._slots: list[_Slot] = []
        num_node_stores = len(data.node_stores)
        for place, store in enumerate((*data.node_stores, *data.edge_stores)):
            if place < num_node_stores:
                domain, structure, has_rows = "node", "num_nodes", store.is_node_attr
            else:
                domain, structure, has_rows = "edge", "edge_index", store.is_edge_attr
                if "adj_t" in store:  # a SparseTensor: PyG slices its whole store
                    self._slots.append(_Slot(place, domain, "adj_t", None, False))
                    continue
            for key, value in store.items():
                if key == structure:
                    is_ours = not isinstance(value, Tensor) or value.device == _CPU
                    self._slots.append(_Slot(place, domain, key, None, is_ours))
                elif has_rows(key):
                    table = _table_of(store, key, value)
                    is_ours = table is not None and isinstance(value, Tensor) and not value.is_inference()
                    self._slots.append(_Slot(place, domain, key, table, is_ours))

    def fits(self, out: Any) -> bool:
        """Return whether a sampler's output has types as the data has."""
        return isinstance(out, HeteroSamplerOutput if isinstance(self._copy, HeteroData) else SamplerOutput)

    def holds(self, data: Any) -> bool:
        """Return whether `data` has the same attributes as before, over the same memory."""
        return (
            type(data) is self._class
            and len(data.stores) == len(self._copy.stores)
            and all(map(_has_same, data.stores, self._copy.stores))
            and all(slot.table is None or slot.table.keeps_layout() for slot in self._slots)
        )

    def filled(self, sampled: Sampled) -> Any:
        """Return a batch of what was sampled."""
        batch = copy.copy(self._copy)
        self._complete(sampled)
        self._fill(batch, self._slots, sampled)
        return batch

    def filled_ahead(self, sampled: Sampled) -> Ahead:
        """Return a batch with the values of now; those that only the loop may look at are left for `catch_up`.

        Raises:
            IndexError: An id has no row: the data is not the sampler's.
        """
        batch, versions = copy.copy(self._copy), [slot.version() for slot in self._slots]
        self._complete(sampled)
        slots = [slot for slot, version in zip(self._slots, versions, strict=True) if version is not None]
        self._fill(batch, slots, sampled)
        return Ahead(self, batch, sampled, versions)

    def catch_up(self, ahead: Ahead) -> bool:
        """Give a batch that was filled ahead the values of now; return whether any differed."""
        before = zip(self._slots, ahead.versions, strict=True)
        slots = [slot for slot, version in before if version is None or version != slot.version()]
        if slots:
            self._fill(ahead.batch, slots, ahead.sampled)
        return bool(slots)

    def _complete(self, sampled: Sampled) -> None:
        """Set the types of the data of which nothing was sampled."""
        for store in self._copy.node_stores:
            _set_none(sampled.nodes, store._key)
        for store in self._copy.edge_stores:
            _set_none(sampled.edges, store._key)
            if store._key not in sampled.ends:
                sampled.ends[store._key] = (torch.empty(0, dtype=torch.int64),) * 2

    def _fill(self, batch: Any, slots: list[_Slot], sampled: Sampled) -> None:
        stores = (*self._copy.node_stores, *self._copy.edge_stores)
        filled = (*batch.node_stores, *batch.edge_stores)
        for slot in slots:
            store, to, key = stores[slot.place], filled[slot.place], slot.key
            group = store._key
            ids = sampled.nodes[group] if slot.domain == "node" else sampled.edges[group]
            if key == "adj_t":  # of a copy: what PyG notes in a store would be seen by a thread that copies it
                filter_edge_store_(copy.copy(store), to, *sampled.ends[group], ids)
            elif key == "num_nodes":
                to[key] = len(sampled.nodes[group])
            elif key == "edge_index":
                edge_index, value = edge_index_of(*sampled.ends[group]), store[key]
                is_there = not isinstance(value, Tensor) or edge_index.device == value.device
                to[key] = edge_index if is_there else edge_index.to(value.device)
            else:
                to[key] = None if ids is None else _rows(store, slot, ids)


class Ahead(NamedTuple):
    """A batch that was filled before the loop asked for it, and the version of each slot before that."""

    form: BatchForm
    batch: Any
    sampled: Sampled
    versions: list[tuple[int, ...] | None]


def _rows(store: Any, slot: _Slot, ids: Tensor) -> Any:
    """Return what an attribute has of these nodes or edges."""
    key, table = slot.key, slot.table
    value = store[key]
    if table is not None and ids.device == _CPU and not getattr(value, "requires_grad", False):
        try:
            return take_rows(table.rows, table.bytes.bytes_now(), ids.contiguous(), num_threads())
        except IndexError as error:
            raise IndexError(
                f"NeighborLoader: found an id without a row in {key}{of_type(store._key)} {list(value.shape)}: "
                f"{error}. The loader samples the edges that it was built with; build a new loader for other data."
            ) from error
    if isinstance(value, (list, tuple)):  # such as a name for each node, which PyG refuses
        return [value[place] for place in ids.tolist()]
    dim = store._parent().__cat_dim__(key, value, store)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value.take(ids.cpu().numpy(), axis=dim)  # of strings or dates, say: there is no such tensor
        return index_select(value, ids.cpu(), dim=dim)
    return index_select(value, ids.to(value.device), dim=dim)


def _table_of(store: Any, key: str, value: Any) -> _Table | None:
    """Return an attribute for our kernel; None: PyG takes its rows."""
    if type(value) is not Tensor and not isinstance(value, np.ndarray):
        return None  # such as a TensorFrame, or a subclass with an indexing of its own
    if isinstance(value, Tensor) and value.requires_grad:
        return None
    try:
        rows = as_tensor("NeighborLoader", key, value)
    except (TypeError, ValueError):
        return None
    is_plain = rows.device == _CPU and rows.ndim > 0 and not rows.is_conj() and not rows.is_neg()
    if not is_plain or not has_adjacent_values(rows) or store._parent().__cat_dim__(key, value, store) != 0:
        return None
    return _Table(value, rows, RowTable(rows))


def _layout(values: Tensor) -> tuple[Any, ...]:
    return values.data_ptr(), values.dtype, values.shape, values.stride()


def _has_same(store: Any, other: Any) -> bool:
    """Return whether two stores have the same attributes, those that begin with "_" too."""
    for one, two in ((store._mapping, other._mapping), (_private(store), _private(other))):
        if [*one] != [*two] or not all(map(operator.is_, one.values(), two.values())):
            return False
    return True


def _private(store: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(store).items() if name not in _NOT_COMPARED}


def _set_none(ids: dict[Any, Any], group: Any) -> None:
    if group not in ids:  # looked at first: each function of torch lets go of the GIL
        ids[group] = torch.empty(0, dtype=torch.int64)


def _copied(data: Any) -> Any:
    """Return a shallow copy; of a Batch one of the class of its graphs, whose batch_size may be set."""
    batch = copy.copy(data)
    if isinstance(data, Batch):
        object.__setattr__(batch, "__class__", class_of_graphs(data))
    return batch


def is_plain(data: Any) -> bool:
    """Return whether batches of a Data or HeteroData are of PyG's own classes, so that no code of the user's runs."""
    return (class_of_graphs(data) if isinstance(data, Batch) else type(data)) in (Data, HeteroData)
