"""TensorStore: tensors by group and name, and their rows by global id; what LocalFeatureStore is built on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, shown
from datapipes.base.rows import bits_of, byte_rows, has_adjacent_values, take_rows
from datapipes.partition.stores.local_store import TensorAttr, no_such

_NAME = "LocalFeatureStore"
_LOOKED_UP = "get_tensor_from_global_id"


class TensorStore:
    """Tensors by group and name. In a group with ids, global_id[i] is the id of row i in every tensor of the group."""

    _tensor_attr_cls: Any = TensorAttr
    partition_idx: int
    part: Any

    def __init__(self) -> None:
        super().__init__()
        self._feat: dict[tuple[Any, Any], Tensor] = {}
        self.of_all: set[tuple[Any, Any]] = set()  # tensors with a row for each node of the graph: PyG's times
        self._rows: dict[Any, IdRows] = {}

    @staticmethod
    def key(attr: Any) -> tuple[Any, Any]:
        """Return the key of a tensor: (group, name)."""
        return attr.group_name, attr.attr_name

    # --- global ids

    def put_global_id(self, global_id: Tensor, group_name: Any) -> bool:
        """Keep the id of each row of a group, int32 or int64 [n]; each id once, in any order."""
        self.part = None
        self._rows[group_name] = IdRows(f"{_NAME}, group {shown(group_name)}", global_id)
        return True

    def get_global_id(self, group_name: Any) -> Tensor | None:
        """Return the id of each row of a group, or None if there are none."""
        rows = self._rows.get(group_name)
        return None if rows is None else rows.ids

    def remove_global_id(self, group_name: Any) -> bool:
        """Forget the ids of a group; return whether there were any."""
        self.part = None
        return self._rows.pop(group_name, None) is not None

    # --- tensors

    def put_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Keep a tensor or array [n, ...] under the fields of a TensorAttr: group_name, attr_name.

        Raises:
            ValueError: A field is not given, or an index is.
        """
        return self._put_tensor(tensor, self._full_attr(*args, **kwargs))

    def get_tensor(self, *args: Any, convert_type: bool = False, **kwargs: Any) -> Any:
        """Return a tensor, or its rows `index`: numbers of rows, not global ids.

        Args:
            convert_type: return an array if the index is one.
        Raises:
            KeyError: There is no such tensor; the message says which there are.
        """
        attr = self._full_attr(*args, **kwargs)
        tensor = self._get_tensor(attr)
        return tensor.numpy() if convert_type and isinstance(attr.index, np.ndarray) else tensor

    def remove_tensor(self, *args: Any, **kwargs: Any) -> bool:
        """Forget a tensor; return whether there was one."""
        return self._remove_tensor(self._full_attr(*args, **kwargs))

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Put a tensor in the place of another one, if there is one."""
        attr = self._full_attr(*args, **kwargs)
        self._remove_tensor(attr)
        return self._put_tensor(tensor, attr)

    def get_tensor_size(self, *args: Any, **kwargs: Any) -> tuple[int, ...] | None:
        """Return the shape of a tensor, or None if there is none."""
        return self._get_tensor_size(self._tensor_attr_cls.cast(*args, **kwargs))

    def get_all_tensor_attrs(self) -> list[Any]:
        """Return a TensorAttr for each tensor that is there."""
        return [self._tensor_attr_cls(*key) for key in self._feat]

    def has_edge_attr(self) -> bool:
        """Return whether edges of any type have the attribute "edge_attr"."""
        return any(isinstance(group, tuple) and name == "edge_attr" for group, name in self._feat)

    def _full_attr(self, *args: Any, **kwargs: Any) -> Any:
        attr = self._tensor_attr_cls.cast(*args, **kwargs)
        if not attr.is_fully_specified():
            raise ValueError(f"{_NAME}: found {shown(attr)}; group_name and attr_name are needed. Give both.")
        return attr

    def _put_tensor(self, tensor: Any, attr: Any) -> bool:
        if attr.index is not None:
            raise ValueError(
                f"{_NAME}: found an index for a tensor that is put; only whole ones are. Leave the index out."
            )
        values = as_tensor(_NAME, shown(self.key(attr)), tensor)
        if values.ndim == 0:
            raise ValueError(
                f"{_NAME}: {shown(self.key(attr))} must be [n, ...], got a single value. Give a row for each id."
            )
        self.part, self._feat[self.key(attr)] = None, values
        self.of_all.discard(self.key(attr))
        return True

    def _get_tensor(self, attr: Any) -> Tensor:
        tensor = self._feat.get(self.key(attr))
        if tensor is None:
            raise no_such(_NAME, "tensor", self.key(attr), self._feat)
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
        """Return the rows of global ids: `index` is int32 or int64 [n], in any order, with repeats.

        Raises:
            KeyError: There is no such tensor; the message says which there are.
            IndexError: This part does not have an id; the message names the first one.
            ValueError: There is no index, or the group has no global ids, or as many as the tensor has rows.
        """
        attr = self._full_attr(*args, **kwargs)
        if attr.index is None:
            raise ValueError(f"{_LOOKED_UP}: {shown(self.key(attr))} needs an index. Give the global ids.")
        return self._rows_of_ids(self.key(attr), check_index_tensor(_LOOKED_UP, "index", attr.index).long())

    def _rows_of_ids(self, key: tuple[Any, Any], ids: Tensor) -> Tensor:
        tensor = self._get_tensor(self._tensor_attr_cls(*key))
        if key in self.of_all:
            rows, is_there = ids, (ids >= 0) & (ids < tensor.shape[0])
        else:
            id_rows = self._rows.get(key[0])
            if id_rows is None or id_rows.ids.shape[0] != tensor.shape[0]:
                count = "none" if id_rows is None else str(id_rows.ids.shape[0])
                raise ValueError(
                    f"{_LOOKED_UP}: {shown(key)} has {tensor.shape[0]} rows, and its group {count} global ids; as many "
                    "are needed. Call put_global_id."
                )
            rows, is_there = id_rows.rows_of(ids)
        if not bool(is_there.all()):
            missing = int(ids[int((~is_there).nonzero()[0])])
            raise IndexError(
                f"{_LOOKED_UP}: part {self.partition_idx} does not have the id {missing} of {shown(key[0])}. Ask the "
                "part that owns it, or use lookup_features."
            )
        if has_adjacent_values(tensor) and not (tensor.is_conj() or tensor.is_neg()):
            return take_rows(tensor, byte_rows(tensor), rows)
        return bits_of(tensor)[rows].view(tensor.dtype)


class IdRows:
    """The rows of ids, found by bisection: no map over all ids of the graph.

    Args:
        where: for messages.
        ids: int32 or int64 [num_rows], the id of each row. If they do not ascend, they are sorted once when the first
            row is asked for, which takes 16 bytes for each.
    """

    def __init__(self, where: str, ids: Tensor) -> None:
        self.ids = check_index_tensor(where, "global_id", ids)
        self._where = where
        self._found: tuple[Tensor, Tensor | None] | None = None  # set at once: several threads may ask

    def rows_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows int64 [n], found bool [n]) for ids int64 [n]; the row of an id that is not there is any number.

        Raises:
            ValueError: Two rows have the same id.
        """
        if (by_id := self._found) is None:
            by_id = self._found = self._ascending()
        ascending, order = by_id
        places = torch.searchsorted(ascending, ids).clamp(max=max(0, ascending.shape[0] - 1))
        if ascending.shape[0] == 0:
            return places, torch.zeros_like(ids, dtype=torch.bool)
        return (places if order is None else order[places]), ascending[places] == ids

    def _ascending(self) -> tuple[Tensor, Tensor | None]:
        ids, order = self.ids, None
        if bool((ids[1:] < ids[:-1]).any()):
            ids, order = torch.sort(ids)
        repeated = ids[1:] == ids[:-1]
        if bool(repeated.any()):
            raise ValueError(
                f"{self._where}: the id {int(ids[int(repeated.nonzero()[0])])} is there twice, so its row is not "
                "known; each id may be there once. Put other global ids."
            )
        return ids.long(), order
