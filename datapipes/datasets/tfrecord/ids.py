"""The ids of nodes that were loaded: whether they number the nodes, and rows in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.processes.torch_memory import shared_empty

PIECE = 2**22  # ids that are compared at once, so that the memory for it stays small

_REMEDY = "Number the nodes from 0 on, without gaps, when the records are written."


def row_order(where: str, ids: Tensor) -> Tensor | None:
    """Return the row of each id: int64 [n], row[i] is the place of id i in `ids`; None if ids are 0 .. n - 1 in order.

    Raises:
        ValueError: An id is outside, missing or there twice; the message names the first.
    """
    count = len(ids)
    if all(
        torch.equal(ids[begin : begin + PIECE], torch.arange(begin, min(begin + PIECE, count)))
        for begin in range(0, count, PIECE)
    ):
        return None
    outside = ids[(ids < 0) | (ids >= count)]
    if len(outside) > 0:
        raise ValueError(
            f"{where}: found the id {int(outside[0])} among {count} ids; they must be 0 .. {count - 1}, each once. "
            f"{_REMEDY}"
        )
    rows = torch.full((count,), -1)
    rows[ids] = torch.arange(count)
    missing = (rows < 0).nonzero()
    if len(missing) > 0:
        times = torch.bincount(ids, minlength=count)
        double = int((times > 1).nonzero()[0])
        raise ValueError(
            f"{where}: found the id {double} {int(times[double])} times, and the id {int(missing[0])} not at all; all "
            f"of 0 .. {count - 1} must be there once. {_REMEDY}"
        )
    return rows


def rows_in_order(where: str, tensor: Tensor, count: int | None, order: Tensor | None) -> Tensor:
    """Return the rows of nodes in the order of their ids, in shared memory; `tensor` itself if they are so already.

    Args:
        count: number of nodes; None if there is no such type.
        order: of `row_order`.
    Raises:
        ValueError: There is not one row for each node.
    """
    if count is None or tensor.ndim == 0 or len(tensor) != count:
        found = "a type without node_ids" if count is None else f"shape {list(tensor.shape)} for {count} nodes"
        raise ValueError(f"{where}: found {found}; one row for each of the node_ids is needed. Load both together.")
    if order is None:
        return tensor
    return torch.index_select(tensor, 0, order, out=shared_empty(tuple(tensor.shape), tensor.dtype, where))


def check_pairs(where: str, pairs: Tensor, ends: tuple[Any, Any], counts: Mapping[Any, int]) -> None:
    """Refuse pairs [2, E], sources in row 0 and destinations in row 1, whose ends are no nodes of their types.

    Raises:
        ValueError: The message names the first edge that is wrong.
    """
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise ValueError(f"{where}: found shape {list(pairs.shape)}; [2, number of edges] is needed. Transpose it?")
    for row, kind in zip(pairs, ends, strict=True):
        of = "" if kind is None else f" of {kind!r}"
        if kind not in counts:
            raise ValueError(f"{where}: there are no node_ids{of}; known are {shown(sorted(counts))}. Load these too.")
        if len(row) == 0 or (int(row.min()) >= 0 and int(row.max()) < counts[kind]):
            continue
        edge = int(((row < 0) | (row >= counts[kind])).nonzero()[0])
        raise ValueError(
            f"{where}: edge {edge} is {int(pairs[0, edge])} -> {int(pairs[1, edge])}, and there is no node "
            f"{int(row[edge])}{of}; they are 0 .. {counts[kind] - 1}. Write a record for it, or leave the edge out."
        )
