"""The rows of the attributes of a Data or HeteroData, as `filter_fn` of PyG's loaders takes them.

Rows of tensors in host memory are gathered by our kernel, into memory recycled from earlier batches; every other value
by PyG. Rows of tensors may be gathered before the batch is asked for; where a tensor has changed since, they are
gathered anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor
from datapipes.base.rows import RowTable, has_adjacent_values, take_rows
from datapipes.base.threads import num_threads
from datapipes.base.types import of_type
from datapipes.pyg.sampled import edge_index_of
from datapipes.pyg.torch_geometric_names import filter_edge_store_, index_select

_CPU = torch.device("cpu")


class _Table(NamedTuple):
    """An attribute whose rows our kernel gathers.

    Attributes:
        value: the attribute.
        rows: the same values as a plain tensor.
        bytes: its rows as bytes.
        tells_of_changes: whether torch counts changes of the value; not those of an array, or in inference mode.
    """

    value: Any
    rows: Tensor
    bytes: RowTable
    tells_of_changes: bool

    def taken(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids; IndexError for an id that has none."""
        return take_rows(self.rows, self.bytes.bytes_now(), ids.contiguous(), num_threads())

    def still_holds(self, value: Any) -> bool:
        """Return whether these are the rows of `value`, which may be the same tensor over other memory."""
        if self.value is not value or not isinstance(value, Tensor):
            return self.value is value
        return _layout(value) == _layout(self.rows)

    def version(self) -> tuple[int, int]:
        """Return a pair that differs once torch has changed the values or moved them."""
        return self.value._version, self.value.data_ptr()


class _Ahead(NamedTuple):
    """Rows that were gathered before their batch was asked for, and the table and its version then."""

    table: _Table
    version: tuple[int, int]
    rows: Tensor


RowsAhead = dict[tuple[str, Any, str], _Ahead]  # by "node" or "edge", type and name


class AttributeRows:
    """What our kernel needs of the attributes that the batch before had, so that the next one need not look again."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, Any, str], _Table] = {}  # by "node" or "edge", type and name

    def __getstate__(self) -> dict[str, Any]:
        return {"_tables": {}}  # they are views; a pickle would copy them

    def forget(self) -> None:
        """Look at all attributes anew."""
        self._tables = {}

    def find(self, data: Any) -> None:
        """Find the attributes of which the first batches can have rows ahead."""
        found = self.of_batch({})
        for store in data.node_stores:
            for key, value in store.items():
                if store.is_node_attr(key):
                    found.table("node", store, key, value)
        for store in data.edge_stores:
            for key, value in store.items():
                if "adj_t" not in store and key != "edge_index" and store.is_edge_attr(key):
                    found.table("edge", store, key, value)
        found.keep()

    def ahead(self, nodes: Mapping[Any, Any], edges: Mapping[Any, Any]) -> RowsAhead:
        """Return rows of tensors as they are now, for ids of nodes and of edges by type. A thread of ours calls it.

        PyG's own objects are not looked at, since the caller's thread may change them meanwhile: it has found the
        attributes when it made the batch before.
        """
        ahead: RowsAhead = {}
        for name, table in self._tables.copy().items():
            domain, group, _ = name
            ids = (nodes if domain == "node" else edges).get(group)
            if ids is None or ids.device != _CPU or not table.tells_of_changes or table.value.requires_grad:
                continue
            version = table.version()
            with suppress(IndexError):  # of data that is not the sampler's: the batch raises it
                ahead[name] = _Ahead(table, version, table.taken(ids))
        return ahead

    def of_batch(self, ahead: RowsAhead) -> BatchRows:
        """Return what takes the rows of one batch, some of which were gathered before."""
        return BatchRows(self, ahead)


class BatchRows:
    """Takes the rows of the attributes for one batch."""

    def __init__(self, owner: AttributeRows, ahead: RowsAhead) -> None:
        self._owner, self._before, self._ahead = owner, owner._tables, ahead
        self._used: dict[tuple[str, Any, str], _Table] = {}

    def keep(self) -> None:
        """Keep the tables for the next batch, of the attributes that this one had: a deleted one is let go."""
        self._owner._tables = self._used

    def slice_nodes(self, store: Any, to: Any, nodes: Tensor) -> None:
        """Set what `to`, the store of a batch, has of the nodes."""
        for key, value in store.items():
            if key == "num_nodes":
                to.num_nodes = nodes.numel()
            elif store.is_node_attr(key):
                to[key] = self._rows("node", store, key, value, nodes)

    def slice_edges(self, store: Any, to: Any, row: Tensor, col: Tensor, ids: Any) -> None:
        """Set the edges of `to`, and what it has of them; without their ids attributes of edges are None."""
        if "adj_t" in store:  # a SparseTensor, which PyG makes
            filter_edge_store_(store, to, row, col, ids)
            return
        for key, value in store.items():
            if key == "edge_index":
                edge_index, device = edge_index_of(row, col), value.device if isinstance(value, Tensor) else _CPU
                to.edge_index = edge_index if edge_index.device == device else edge_index.to(device)
            elif store.is_edge_attr(key):
                to[key] = None if ids is None else self._rows("edge", store, key, value, ids)

    def _rows(self, domain: str, store: Any, key: str, value: Any, ids: Tensor) -> Any:
        if isinstance(value, (list, tuple)):  # such as a name for each node, which PyG refuses
            return [value[place] for place in ids.tolist()]
        dim = store._parent().__cat_dim__(key, value, store)
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            return value.take(ids.cpu().numpy(), axis=dim)  # of strings or dates, say: there is no such tensor
        table = self.table(domain, store, key, value) if ids.device == _CPU else None
        if table is None:
            return index_select(value, ids.cpu() if isinstance(value, np.ndarray) else ids.to(value.device), dim=dim)
        ahead = self._ahead.get((domain, store._key, key))
        if ahead is not None and ahead.table is table and ahead.version == table.version():
            return ahead.rows
        try:
            return table.taken(ids)
        except IndexError as error:
            raise IndexError(
                f"NeighborLoader: found an id without a row in {key}{of_type(store._key)} {list(value.shape)}: "
                f"{error}. The loader samples the edges that it was built with; build a new loader for other data."
            ) from error

    def table(self, domain: str, store: Any, key: str, value: Any) -> _Table | None:
        """Return an attribute for our kernel; None: PyG takes its rows."""
        if isinstance(value, Tensor) and value.requires_grad:
            return None
        name = domain, store._key, key
        table = self._before.get(name)
        if table is None or not table.still_holds(value):
            table = _table_of(store, key, value)
        if table is not None:
            self._used[name] = table
        return table


def _table_of(store: Any, key: str, value: Any) -> _Table | None:
    if type(value) is not Tensor and not isinstance(value, np.ndarray):
        return None  # such as a TensorFrame, or a subclass with an indexing of its own
    try:
        rows = as_tensor("NeighborLoader", key, value)
    except (TypeError, ValueError):
        return None
    is_plain = rows.device == _CPU and rows.ndim > 0 and not rows.is_conj() and not rows.is_neg()
    if not is_plain or not has_adjacent_values(rows) or store._parent().__cat_dim__(key, value, store) != 0:
        return None
    return _Table(value, rows, RowTable(rows), isinstance(value, Tensor) and not value.is_inference())


def _layout(values: Tensor) -> tuple[Any, ...]:
    return values.data_ptr(), values.dtype, values.shape, values.stride()
