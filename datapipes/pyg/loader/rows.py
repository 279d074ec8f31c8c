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
        rows: it as a tensor.
        bytes: its rows as bytes.
        tells: whether torch tells of its changes: it is no array, and no tensor of inference mode.
    """

    value: Any
    rows: Tensor
    bytes: RowTable
    tells: bool

    def taken(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids; IndexError for an id that has none."""
        return take_rows(self.rows, self.bytes.bytes_now(), ids.contiguous(), num_threads())

    def is_of(self, value: Any) -> bool:
        """Return whether it is of this attribute, whose memory may have been replaced (`value.data = ...`)."""
        if self.value is not value or not isinstance(value, Tensor):
            return self.value is value
        return value.data_ptr() == self.rows.data_ptr() and value.shape == self.rows.shape

    def version(self) -> tuple[int, int]:
        """Return what is another once torch has changed or moved the values."""
        return self.value._version, self.value.data_ptr()


class Fetched(NamedTuple):
    """Rows that were gathered before their batch was asked for, and the table and version that they are of."""

    table: _Table
    version: tuple[int, int]
    rows: Tensor


FetchedRows = dict[tuple[str, Any, str], Fetched]  # by "node" or "edge", type and name


class AttributeRows:
    """Takes rows of attributes; keeps what our kernel needs of each attribute until its value is another."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, Any, str], _Table] = {}  # by "node" or "edge", type and name

    def __getstate__(self) -> dict[str, Any]:
        return {"_tables": {}}  # they are views; a pickle would copy them

    def forget(self) -> None:
        """Look at all values anew."""
        self._tables = {}

    # --- ahead

    def find(self, data: Any) -> None:
        """Find what can be fetched ahead for the first batches; for later ones the batches before have found it."""
        for store in data.node_stores:
            for key, value in store.items():
                if store.is_node_attr(key):
                    self._table("node", store, key, value)
        for store in data.edge_stores:
            for key, value in store.items():
                if "adj_t" not in store and key != "edge_index" and store.is_edge_attr(key):
                    self._table("edge", store, key, value)

    def fetched(self, nodes: Mapping[Any, Any], edges: Mapping[Any, Any]) -> FetchedRows:
        """Return rows of tensors as they are now, for ids of nodes and of edges by type. A thread of ours calls it.

        PyG's own objects are not looked at, since the caller's thread may change them meanwhile: it has found the
        attributes when it made the batch before.
        """
        fetched: FetchedRows = {}
        for name, table in [*self._tables.items()]:
            domain, group, _ = name
            ids = (nodes if domain == "node" else edges).get(group)
            if ids is None or ids.device != _CPU or not table.tells or table.value.requires_grad:
                continue
            version = table.version()
            with suppress(IndexError):  # of data that is not the sampler's: the batch raises it
                fetched[name] = Fetched(table, version, table.taken(ids))
        return fetched

    def drop(self, unused: FetchedRows) -> None:
        """Fetch these no more: their batch had no such attributes."""
        for name in unused:
            self._tables.pop(name, None)

    # --- at the batch

    def slice_nodes(self, store: Any, to: Any, nodes: Tensor, fetched: FetchedRows) -> None:
        """Set what `to`, the store of a batch, has of the nodes; what it takes of `fetched` is taken out there."""
        for key, value in store.items():
            if key == "num_nodes":
                to.num_nodes = nodes.numel()
            elif store.is_node_attr(key):
                to[key] = self._rows("node", store, key, value, nodes, fetched)

    def slice_edges(self, store: Any, to: Any, row: Tensor, col: Tensor, ids: Any, fetched: FetchedRows) -> None:
        """Set the edges of `to`, and what it has of them; without their ids attributes of edges are None."""
        if "adj_t" in store:  # a SparseTensor, which PyG makes
            filter_edge_store_(store, to, row, col, ids)
            return
        for key, value in store.items():
            if key == "edge_index":
                edge_index, device = edge_index_of(row, col), value.device if isinstance(value, Tensor) else _CPU
                to.edge_index = edge_index if edge_index.device == device else edge_index.to(device)
            elif store.is_edge_attr(key):
                to[key] = None if ids is None else self._rows("edge", store, key, value, ids, fetched)

    def _rows(self, domain: str, store: Any, key: str, value: Any, ids: Tensor, fetched: FetchedRows) -> Any:
        if isinstance(value, (list, tuple)):  # such as a name for each node, which PyG refuses
            return [value[place] for place in ids.tolist()]
        dim = store._parent().__cat_dim__(key, value, store)
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            return value.take(ids.cpu().numpy(), axis=dim)  # of strings or dates, say: there is no such tensor
        table = self._table(domain, store, key, value) if ids.device == _CPU else None
        if table is None:
            return index_select(value, ids.cpu() if isinstance(value, np.ndarray) else ids.to(value.device), dim=dim)
        ahead = fetched.pop((domain, store._key, key), None)
        if ahead is not None and ahead.table is table and ahead.version == table.version():
            return ahead.rows
        try:
            return table.taken(ids)
        except IndexError as error:
            raise IndexError(
                f"NeighborLoader: found an id without a row in {key}{of_type(store._key)} {list(value.shape)}: "
                f"{error}. The loader samples the edges that it was built with; build a new loader for other data."
            ) from error

    def _table(self, domain: str, store: Any, key: str, value: Any) -> _Table | None:
        """Return an attribute for our kernel; None: PyG takes its rows."""
        if isinstance(value, Tensor) and value.requires_grad:
            return None
        kept = self._tables.get((domain, store._key, key))
        if kept is not None and kept.is_of(value):
            return kept
        if type(value) is not Tensor and not isinstance(value, np.ndarray):
            return None  # such as a TensorFrame, or a subclass with an indexing of its own
        try:
            rows = as_tensor("NeighborLoader", key, value)
        except (TypeError, ValueError):
            return None
        is_plain = rows.device == _CPU and rows.ndim > 0 and not rows.is_conj() and not rows.is_neg()
        if not is_plain or not has_adjacent_values(rows) or store._parent().__cat_dim__(key, value, store) != 0:
            return None
        tells = isinstance(value, Tensor) and not value.is_inference()
        table = self._tables[domain, store._key, key] = _Table(value, rows, RowTable(rows), tells)
        return table
