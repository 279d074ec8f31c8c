"""The cache of a DistFeatureStore: rows of nodes of other parts, in one memory that worker processes map.

It is filled once, when the store is made, and only read after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.rows import new_rows
from datapipes.base.sizes import check_memory
from datapipes.base.types import NodeType
from datapipes.distributed.hot_choice import Hot
from datapipes.processes.copies import ALIGNED, zeros_together
from datapipes.processes.sharing import Together

AT_ONCE = 2**26  # bytes of rows that are asked for at a time while the cache is filled

Read = Callable[[NodeType | None, Tensor, Mapping[str, Tensor]], Any]  # type, ids, {name: where the rows go}


class HotTable:
    """The cached rows of one node type.

    Attributes:
        tables: {name: [number of cached nodes, ...]}, by ascending id.
        rank: gives the row of an id, -1 where it is not cached.
    """

    def __init__(self, lines: Tensor, num_ids: int, tables: Mapping[str, Tensor]) -> None:
        self.tables = tables
        if lines.data_ptr() % ALIGNED != 0:  # it came by plain pickle, into memory of its own
            lines = new_rows(lines.shape[0], (), torch.uint8).copy_(lines)
        self.rank = _core.IdRank.over(lines.numpy(), num_ids)


class HotRows:
    """The cached rows of all node types.

    Attributes:
        tables: {node type: its rows}; a type without cached rows is not there.
        num_bytes: of the memory, with the index.
    """

    def __init__(self, shapes: list[tuple[NodeType | None, int, list[str]]], tensors: Sequence[Tensor]) -> None:
        self._shapes, self._tensors = shapes, [*tensors]
        self.num_bytes = sum(each.nbytes for each in tensors)
        rest = iter(tensors)
        self.tables = {
            of: HotTable(next(rest), num_ids, {name: next(rest) for name in names}) for of, num_ids, names in shapes
        }

    @classmethod
    def filled(cls, where: str, hot: Sequence[Hot], read: Read) -> HotRows:
        """Return a cache with the rows of these nodes, ids ascending; `read` reads them, some at a time.

        Raises:
            MemoryError: Too little memory is left.
            What `read` raises.
        """
        check_memory(where, "the cache", sum(each.num_bytes for each in hot), "Give fewer cache_bytes.")
        forms: list[tuple[tuple[int, ...], torch.dtype]] = []
        for each in hot:
            forms.append(((_core.IdRank.size_bytes(each.num_ids),), torch.uint8))
            forms += [((each.ids.shape[0], *form.shape), form.dtype) for form in each.forms.values()]
        tensors = zeros_together(forms) if forms else []
        lines = iter(tensors)
        for each in hot:
            _core.IdRank(each.ids.numpy(), each.num_ids).copy_lines(next(lines).numpy())
            outs = {name: next(lines) for name in each.forms}
            step = max(AT_ONCE // each.row_bytes, 1)
            for begin in range(0, each.ids.shape[0], step):
                some = slice(begin, begin + step)
                read(each.of, each.ids[some], {name: out[some] for name, out in outs.items()})
        return cls([(each.of, each.num_ids, [*each.forms]) for each in hot], tensors)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with all tensors together, so that they reach workers as one mapping."""
        return {"shapes": self._shapes, "tensors": Together(self._tensors)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = state["tensors"]
        tensors = given.tensors if isinstance(given, Together) else given  # copy.copy pickles nothing
        self.__init__(state["shapes"], tensors)  # type: ignore[misc]
