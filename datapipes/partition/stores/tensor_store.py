"""TensorStore: tensors by group and name, and their rows by global id; the base of LocalFeatureStore."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, shown
from datapipes.base.rows import bits_of, byte_rows, has_adjacent_values, take_rows
from datapipes.partition.native.own_rows import OwnRows
from datapipes.partition.stores.local_store import StoreOfPart, TensorAttr, no_such

_NAME = "LocalFeatureStore"
_LOOKED_UP = "get_tensor_from_global_id"


class TensorStore(StoreOfPart):
    """Tensors by group and name. In a group with ids, global_id[i] is the id of row i in every tensor of the group."""

    _tensor_attr_cls: Any = TensorAttr

    def __init__(self) -> None:
        super().__init__()
        self._feat: dict[tuple[Any, Any], Tensor] = {}
        self.of_all: set[tuple[Any, Any]] = set()  # tensors with a row for each node of the graph: PyG's times
        self._ids: dict[Any, Tensor] = {}
        self._rows: dict[Any, OwnRows] = {}  # made when they are first asked for

    @staticmethod
    def key(attr: Any) -> tuple[Any, Any]:
        """Return the key under which a tensor is kept: (group, name)."""
        return attr.group_name, attr.attr_name

    # --- global ids

    def put_global_id(self, global_id: Tensor, group_name: Any) -> bool:
        """Store the id of each row of a group, int32 or int64 [n]; each id once, in any order."""
        self.part = None
        where = f"{_NAME}, group {shown(group_name)}"
        self._ids[group_name] = check_index_tensor(where, "global_id", global_id)
        self._rows.pop(group_name, None)
        return True

    def get_global_id(self, group_name: Any) -> Tensor | None:
        """Return the id of each row of a group, or None if there are none."""
        return self._ids.get(group_name)

    def remove_global_id(self, group_name: Any) -> bool:
        """Remove the ids of a group; return whether there were any."""
        self.part = None
        self._rows.pop(group_name, None)
        return self._ids.pop(group_name, None) is not None

    # --- tensors

    def put_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Store a tensor or array [n, ...] under the fields of a TensorAttr: group_name, attr_name.

        Raises:
            ValueError: A field is not given, or an index is.
        """
        return self._put_tensor(tensor, self._full_attr(*args, **kwargs))

    def get_tensor(self, *args: Any, convert_type: bool = False, **kwargs: Any) -> Any:
        """Return a tensor, or its rows at `index`, which are row numbers and not global ids.

        Args:
            convert_type: return an array if the index is an array.
        Raises:
            KeyError: There is no such tensor; the message says which there are.
        """
        attr = self._full_attr(*args, **kwargs)
        tensor = self._get_tensor(attr)
        return tensor.numpy() if convert_type and isinstance(attr.index, np.ndarray) else tensor

    def remove_tensor(self, *args: Any, **kwargs: Any) -> bool:
        """Remove a tensor; return whether there was one."""
        return self._remove_tensor(self._full_attr(*args, **kwargs))

    def update_tensor(self, tensor: Any, *args: Any, **kwargs: Any) -> bool:
        """Put a tensor; it replaces the one with the same group and name, if there is one."""
        return self.put_tensor(tensor, *args, **kwargs)

    def get_tensor_size(self, *args: Any, **kwargs: Any) -> tuple[int, ...] | None:
        """Return the shape of a tensor, or None if there is none."""
        return self._get_tensor_size(self._tensor_attr_cls.cast(*args, **kwargs))

    def get_all_tensor_attrs(self) -> list[Any]:
        """Return a TensorAttr for each tensor in the store."""
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
        """Return the rows of the global ids `index`, int32 or int64 [n], in any order, with repeats.

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
                count = "none" if known_ids is None else str(known_ids.shape[0])
                raise ValueError(
                    f"{_LOOKED_UP}: {shown(key)} has {tensor.shape[0]} rows, and its group {count} global ids; as many "
                    "are needed. Call put_global_id."
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
        """Return the OwnRows of a group. Several threads may call this at once, and get equal results.

        Raises:
            ValueError: Two rows have the same id.
        """
        if group in self._rows:
            return self._rows[group]
        ids = self._ids[group].long()
        rows = OwnRows(ids)
        if rows.num_ids < rows.num_rows:
            ascending = ids.sort().values
            raise ValueError(
                f"{_NAME}, group {shown(group)}: the id {int(ascending[1:][ascending[1:] == ascending[:-1]][0])} is "
                "there twice, so its row is not known; each id may be there once. Put other global ids."
            )
        return self._rows.setdefault(group, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": {}}
