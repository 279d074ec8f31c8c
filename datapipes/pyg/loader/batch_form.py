"""BatchForm: fills batches from a Data or HeteroData, as `filter_fn` of PyG's loaders does.

Our kernel gathers rows of tensors in host memory, into memory recycled from earlier batches; PyG gathers other rows. A
thread may fill a batch before the loop asks for it. Attributes that have changed since are then filled in again.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor
from datapipes.base.errors import sentence
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
_KEPT_APART = {"_mapping", "_parent", "_cached_attr"}  # a PyG store's own; other names with "_" are of the user


class SampledIds(NamedTuple):
    """The nodes and edges that were sampled for a batch. Each field is a dict by type; without types, the key is None.

    Attributes:
        nodes: {node type: int64 [n], the ids}.
        ends: {edge type: (sources, destinations)}, int64 [e] each, as positions in the `nodes` of their types.
        edges: {edge type: int64 [e], the positions of the edges in the data}; None: the sampler gives no edge ids.
    """

    nodes: dict[Any, Tensor]
    ends: dict[Any, tuple[Tensor, Tensor]]
    edges: dict[Any, Tensor | None]


@dataclass(slots=True, eq=False)
class _Slot:
    """An attribute of the data, and how to fill it into a batch.

    Attributes:
        place: the position in `data.stores` of the store that has the attribute.
        domain: "node" or "edge": a batch gets the rows of its nodes or edges. None: a batch gets the whole value.
        key: the attribute's name.
        value: its value in the data.
        dim: the dimension along which PyG slices the value.
        table: the value as our kernel reads it; None: PyG slices the value.
        may_be_ahead: whether a background thread may fill the attribute in. It may if torch counts the changes of the
            value and no code of the user runs.
    """

    place: int
    domain: str | None
    key: str
    value: Any
    dim: Any = None
    table: RowTable | None = None
    may_be_ahead: bool = True

    def version(self) -> tuple[int, ...] | None:
        """Return a tuple that changes if torch changes or moves the value. None: only the loop may fill it in."""
        if not self.may_be_ahead or self.table is None:
            return () if self.may_be_ahead else None
        return None if self.value.requires_grad else (self.value._version, self.value.data_ptr())

    def keeps_layout(self) -> bool:
        """Return whether the value still has the memory, dtype and shape of `table`; True if there is no table.

        Call it only if the data still has the very object `value`.
        """
        if self.table is None or not isinstance(self.value, Tensor):
            return True
        return _layout(self.value) == _layout(self.table.rows)


class BatchForm:
    """Fills batches with the attributes of a Data or HeteroData, and knows which are cut to the sampled rows.

    The thread of the loop makes a BatchForm and compares it with the data. `filled_ahead` may run in another thread: it
    reads a shallow copy of the data, and runs none of the user's code.

    Attributes:
        is_kept: whether batches may be filled ahead, and later batches may use this object. If False, `why_not_ahead`
            returns the reason.
    """

    def __init__(self, data: Any) -> None:
        self.is_kept = why_not_ahead(data) is None
        self._class, self._copy = type(data), _copied(data)
        self._slots = [slot for place, store in enumerate(data.stores) for slot in _slots_of(place, store)]

    def fits(self, out: Any) -> bool:
        """Return whether the data and `out`, a sampler's output, fit together: both have types, or neither has."""
        return isinstance(out, HeteroSamplerOutput if isinstance(self._copy, HeteroData) else SamplerOutput)

    def holds(self, data: Any) -> bool:
        """Return whether `data` still has the same attributes in the same memory, so that this object can serve it.

        Attributes that batches get whole may have other values; the new values are taken over.
        """
        stores, kept = data.stores, self._copy.stores
        if type(data) is not self._class or len(stores) != len(kept) or not all(map(_has_same_names, stores, kept)):
            return False
        for slot in self._slots:
            value = stores[slot.place]._mapping[slot.key]
            if slot.domain is None:
                slot.value = value
            elif value is not slot.value or not slot.keeps_layout():
                return False
        return True

    def filled(self, sampled: SampledIds) -> Any:
        """Return a batch for the nodes and edges in `sampled`. Call it only once unless `is_kept`."""
        batch = copy.copy(self._copy) if self.is_kept else self._copy
        self._complete(sampled)
        self._fill(batch, self._slots, sampled)
        return batch

    def filled_ahead(self, sampled: SampledIds) -> Ahead:
        """Fill a batch, perhaps in a background thread, with the present values, and return it.

        Attributes that only the thread of the loop may read are left out; `catch_up` fills them in.
        """
        batch, before = copy.copy(self._copy), [(slot.value, slot.version()) for slot in self._slots]
        self._complete(sampled)
        slots = [slot for slot, (_, version) in zip(self._slots, before, strict=True) if version is not None]
        self._fill(batch, slots, sampled)
        return Ahead(self, batch, sampled, before)

    def catch_up(self, ahead: Ahead) -> bool:
        """Fill in the attributes of `ahead` that were left out or have changed since. Return whether there were any."""
        slots = [
            slot
            for slot, (value, version) in zip(self._slots, ahead.before, strict=True)
            if version is None or value is not slot.value or version != slot.version()
        ]
        if slots:
            self._fill(ahead.batch, slots, ahead.sampled)
        return bool(slots)

    def _complete(self, sampled: SampledIds) -> None:
        """Add empty entries to `sampled` for the types of the data from which nothing was sampled."""
        nodes, ends, edges = sampled
        for store in self._copy.node_stores:
            if store._key not in nodes:  # looked up first, since each function of torch releases the GIL
                nodes[store._key] = torch.empty(0, dtype=torch.int64)
        for store in self._copy.edge_stores:
            if store._key not in ends:
                ends[store._key] = (torch.empty(0, dtype=torch.int64),) * 2
                edges[store._key] = torch.empty(0, dtype=torch.int64)
            elif store._key not in edges:
                edges[store._key] = None

    def _fill(self, batch: Any, slots: list[_Slot], sampled: SampledIds) -> None:
        stores = batch.stores
        for slot in slots:
            store, key, value = stores[slot.place], slot.key, slot.value
            if slot.domain is None:
                store[key] = value
            elif key == "num_nodes":
                store[key] = len(sampled.nodes[store._key])
            elif key == "adj_t":
                filter_edge_store_(value, store, *sampled.ends[store._key], sampled.edges[store._key])
            elif key == "edge_index":
                edge_index = edge_index_of(*sampled.ends[store._key])
                is_there = not isinstance(value, Tensor) or edge_index.device == value.device
                store[key] = edge_index if is_there else edge_index.to(value.device)
            else:
                ids = (sampled.nodes if slot.domain == "node" else sampled.edges)[store._key]
                store[key] = None if ids is None else _rows(slot, store._key, ids)


class Ahead(NamedTuple):
    """A batch that a thread filled before the loop asked for it.

    Attributes:
        form: the BatchForm that filled the batch.
        sampled: the nodes and edges of the batch.
        before: (value, version) of each slot of the form when the filling began.
    """

    form: BatchForm
    batch: Any
    sampled: SampledIds
    before: list[tuple[Any, tuple[int, ...] | None]]


def why_not_ahead(data: Any) -> str | None:
    """Return why batches of the data must not be filled by a background thread. None: they may be."""
    if not isinstance(data, (Data, HeteroData)):
        return "the rows come from stores or other parts"
    is_pygs = type(data) in (Data, HeteroData)
    if not is_pygs and not (isinstance(data, Batch) and type(data).__bases__ in ((Batch, Data), (Batch, HeteroData))):
        return f"{type(data).__name__} may have code of its own, which runs in the thread of the loop"
    if any("adj_t" in store for store in data.edge_stores):
        return "PyG slices adj_t, in the thread of the loop"
    return None


def _slots_of(place: int, store: Any) -> Iterator[_Slot]:
    """Yield a _Slot for each attribute of `store`, which is at position `place` in `data.stores`.

    The slot of an `adj_t` is the last: PyG makes it with the number of nodes in the batch, which must be known before.
    This slot fills in all attributes of edges.
    """
    has_nodes, has_edges, has_adj_t = hasattr(store, "is_node_attr"), hasattr(store, "is_edge_attr"), "adj_t" in store
    for key, value in store.items():
        if has_nodes and key == "num_nodes":
            yield _Slot(place, "node", key, value)
        elif has_nodes and store.is_node_attr(key):
            yield _slot_of_rows(place, "node", key, value, store)
        elif has_edges and (key == "edge_index" or store.is_edge_attr(key)):
            if key == "edge_index":
                may_be_ahead = not isinstance(value, Tensor) or value.device == _CPU
                yield _Slot(place, "edge", key, value, may_be_ahead=may_be_ahead)
            elif not has_adj_t:
                yield _slot_of_rows(place, "edge", key, value, store)
        elif key != "adj_t":
            yield _Slot(place, None, key, value)
    if has_adj_t:
        yield _Slot(place, "edge", "adj_t", store, may_be_ahead=False)


def _slot_of_rows(place: int, domain: str, key: str, value: Any, store: Any) -> _Slot:
    dim = store._parent().__cat_dim__(key, value, store)
    table = _table_of(key, value) if dim == 0 else None
    may_be_ahead = table is not None and isinstance(value, Tensor) and not value.is_inference()
    return _Slot(place, domain, key, value, dim, table, may_be_ahead)


def _table_of(key: str, value: Any) -> RowTable | None:
    """Return an attribute's value as our kernel reads it. None: the kernel cannot read it, so PyG must slice it."""
    if type(value) is not Tensor and not isinstance(value, np.ndarray):
        return None  # such as a TensorFrame, or a subclass with an indexing of its own
    if isinstance(value, Tensor) and value.requires_grad:
        return None
    try:
        rows = as_tensor("NeighborLoader", key, value)
    except (TypeError, ValueError):
        return None
    if rows.device != _CPU or rows.ndim == 0 or rows.is_conj() or rows.is_neg() or not has_adjacent_values(rows):
        return None
    return RowTable(rows)


def _rows(slot: _Slot, group: Any, ids: Tensor) -> Any:
    """Return the rows of the attribute `slot` for the nodes or edges `ids` of the type `group`."""
    value, table = slot.value, slot.table
    if table is not None and ids.device == _CPU and not getattr(value, "requires_grad", False):
        try:
            return take_rows(table.rows, table.bytes_now(), ids.contiguous(), num_threads())
        except IndexError as error:
            raise IndexError(
                f"NeighborLoader: found an id without a row in {slot.key}{of_type(group)} {list(value.shape)}: "
                f"{sentence(error)} The loader samples the edges that it was built with; build a new loader for other "
                "data."
            ) from error
    if isinstance(value, (list, tuple)):  # such as a name for each node, which PyG refuses
        return [value[place] for place in ids.tolist()]
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return value.take(ids.cpu().numpy(), axis=slot.dim)  # of strings or dates, say: there is no such tensor
        return index_select(value, ids.cpu(), dim=slot.dim)
    return index_select(value, ids.to(value.device), dim=slot.dim)


def _layout(values: Tensor) -> tuple[Any, ...]:
    return values.data_ptr(), values.dtype, values.shape, values.stride()


def _has_same_names(store: Any, other: Any) -> bool:
    """Return whether two stores have attributes of the same names, and the same values of names that begin with "_"."""
    apart, others = _private(store), _private(other)
    return (
        [*store._mapping] == [*other._mapping]
        and [*apart] == [*others]
        and all(map(operator.is_, apart.values(), others.values()))
    )


def _private(store: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(store).items() if name not in _KEPT_APART}


def _copied(data: Any) -> Any:
    """Return a shallow copy. The copy of a Batch has the class of a single graph, so that batch_size can be set."""
    batch = copy.copy(data)
    if isinstance(data, Batch):
        object.__setattr__(batch, "__class__", class_of_graphs(data))
    return batch
