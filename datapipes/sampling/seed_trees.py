"""The trees of a minibatch: which group of nodes each seed belongs to, and what a group draws with.

A group is a tree, or all seeds of one time where there are no trees (docs/semantics.md, sections 4.5 and 4.6). Nodes of
different groups are never one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.types import type_text
from datapipes.graph.hops import SeedTrees
from datapipes.sampling.seed_ids import seed_columns

MOST_TREES = 2**32  # the stream of the random key has room for so many

_I64 = NDArray[np.int64]


def seed_trees(where: str, seeds: Any, timestamps: Any, *, disjoint: bool, has_times: bool) -> SeedTrees:
    """Return the groups of the seeds of a minibatch, which the sampler has checked.

    Args:
        seeds: ids [n] or [n, k]; with types {node or edge type: ids}.
        timestamps: a time for each row of the seeds, in the form of `seeds`; read only if `has_times`.
        disjoint: each seed is a group of its own. Else all seeds of a time are one.
    Raises:
        TypeError, ValueError: The times do not belong to the seeds; the message says what was found.
    """
    parts: list[tuple[Any, Tensor]] = sorted(seeds.items()) if isinstance(seeds, dict) else [(None, seeds)]
    times = _times_of_rows(where, parts, timestamps, isinstance(seeds, dict)) if has_times else None
    columns = [int(ids.shape[1]) if ids.ndim == 2 else 1 for _, ids in parts]
    row_of_tree = _rows(parts, columns)
    if len(row_of_tree) > MOST_TREES:
        raise ValueError(
            f"{where}: found {len(row_of_tree)} seeds; a minibatch has at most {MOST_TREES} trees. Use smaller "
            "minibatches."
        )
    numbers = np.arange(len(row_of_tree))
    if disjoint:
        rows = None if all(count == 1 for count in columns) else torch.from_numpy(row_of_tree)
        trees = SeedTrees(None, numbers.astype(np.uint32), None if times is None else times[row_of_tree], rows)
    else:
        assert times is not None
        distinct, group_of_row = np.unique(times, return_inverse=True)
        numbers = group_of_row.astype(np.int64, copy=False)[row_of_tree]
        trees = SeedTrees(None, np.zeros(len(distinct), dtype=np.uint32), distinct, None)
    return trees._replace(groups=_aligned(parts, columns, numbers))


def _rows(parts: list[tuple[Any, Tensor]], columns: list[int]) -> _I64:
    """Return the row of each seed, counted over all types."""
    counts = [int(ids.shape[0]) for _, ids in parts]
    return np.repeat(np.arange(sum(counts)), np.repeat(columns, counts))


def _aligned(parts: list[tuple[Any, Tensor]], columns: list[int], numbers: _I64) -> Any:
    """Return the number of each seed, in the order in which the sampler is given the ids."""
    if parts[0][0] is None:
        return numbers
    found: dict[Any, list[_I64]] = {}
    begin = 0
    for (key, ids), count in zip(parts, columns, strict=True):
        of_key = numbers[begin : begin + ids.numel()]
        begin += ids.numel()
        for column, node_type in seed_columns(key):
            found.setdefault(node_type, []).append(of_key if column is None else of_key.reshape(-1, count)[:, column])
    return {
        node_type: np.ascontiguousarray(each[0]) if len(each) == 1 else np.concatenate(each)
        for node_type, each in found.items()
    }


def _times_of_rows(where: str, parts: list[tuple[Any, Tensor]], timestamps: Any, has_types: bool) -> _I64:
    """Return the time of each row of the seeds, over all types."""
    if timestamps is None:
        raise ValueError(
            f"{where}: found seeds without timestamps; each row of the seeds needs a time. Name one item "
            "'timestamps' in the ItemSet."
        )
    if isinstance(timestamps, dict) != has_types:
        wanted = "a dict by type, as the seeds are" if has_types else "a tensor, since the seeds have no types"
        raise TypeError(
            f"{where}: timestamps must be {wanted}, got {type(timestamps).__name__}. Give both in the same form."
        )
    if not has_types:
        return _checked(where, "timestamps", timestamps, parts[0][1])
    missing = [key for key, _ in parts if key not in timestamps]
    if missing or len(timestamps) > len(parts):
        found = shown(sorted(map(type_text, timestamps)))
        wanted = shown([type_text(key) for key, _ in parts])
        raise ValueError(
            f"{where}: timestamps have the types {found}, the seeds {wanted}; both must have the same. Name an item "
            "'timestamps' in each ItemSet."
        )
    return np.concatenate([_checked(where, f"timestamps of {shown(key)}", timestamps[key], ids) for key, ids in parts])


def _checked(where: str, name: str, times: Any, seeds: Tensor) -> _I64:
    if not isinstance(times, Tensor):
        raise TypeError(f"{where}: {name} must be a tensor, got {type(times).__name__}. Convert it.")
    if times.dtype != torch.int64:
        raise TypeError(
            f"{where}: {name} must be int64, got {dtype_name(times.dtype)}. Convert them to the "
            "unit of the graph's times."
        )
    if times.ndim != 1 or times.shape[0] != seeds.shape[0]:
        raise ValueError(
            f"{where}: {name} must have shape [{seeds.shape[0]}], a time for each row of the seeds, got "
            f"{list(times.shape)}. Give one time for each row."
        )
    if times.device.type != "cpu":
        raise ValueError(
            f"{where}: {name} must be in host memory, found them on {times.device}. Put copy_to after this stage."
        )
    return times.numpy()
