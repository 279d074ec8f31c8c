"""Which rank owns which nodes: a contiguous range of the ids of each type, as the Partitioner's method "range" cuts.

Ids are checked here: those of a type must be 0 to n - 1, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.datasets.tfrecord.over_ranks.exchange import Exchange
from datapipes.datasets.tfrecord.over_ranks.placement import Placement, column_of, placed_by_id
from datapipes.datasets.tfrecord.over_ranks.shard import TRAIN_MASK, Shard
from datapipes.partition.id_maps import RangeMap
from datapipes.partition.methods.all_nodes import CHUNK, combined_weight
from datapipes.partition.methods.range_parts import cut_by_weight, range_bounds, with_a_node_each


def owned_ranges(ranks: Exchange, shard: Shard, counts: Mapping[Any, int]) -> dict[Any, RangeMap]:
    """Return {node type: the range of each rank}: the map of `method="range"` for the graph of all shards.

    Args:
        counts: {node type: nodes of all ranks}.
    Raises:
        ValueError: Ids have gaps or repeats; or there are fewer nodes than ranks.
    """
    total = sum(counts.values())
    if total < ranks.size:
        raise ValueError(
            f"{ranks.where}: {total} nodes for {ranks.size} ranks; each part needs one. Use at most {total} ranks."
        )
    masks = {kind: _own_mask(ranks, shard, kind, count) for kind, count in counts.items()}
    trained = {kind: 0 if mask is None else int(mask.sum()) for kind, mask in masks.items()}
    of_ranks = ranks.gather([*trained.values()])
    base, extra = combined_weight(total, sum(map(sum, of_ranks)))
    numbers = {kind: number for number, kind in enumerate(counts)}

    def cut(kind: Any) -> NDArray[np.int64]:
        first = _even(counts[kind], ranks.size)
        weights = [base * size + extra * of[numbers[kind]] for size, of in zip(np.diff(first), of_ranks, strict=True)]
        given = _weights(masks[kind], int(np.diff(first)[ranks.rank]), base, extra)
        before, begin = int(sum(weights[: ranks.rank])), int(first[ranks.rank])
        bounds, _ = cut_by_weight(given, int(sum(weights)), ranks.size, before, begin)
        return with_a_node_each(np.max(ranks.gather(bounds.tolist()), axis=0), counts[kind])

    return {kind: RangeMap(bounds) for kind, bounds in range_bounds(counts, ranks.size, cut).items()}


def _even(count: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the offsets of ranges of even length, before the weights are known."""
    return np.array([count * rank // num_ranks for rank in range(num_ranks + 1)], dtype=np.int64)


def _own_mask(ranks: Exchange, shard: Shard, kind: Any, count: int) -> Tensor | None:
    """Return which nodes of this rank's even range are to be trained on; None if the type says nothing of it."""
    offsets = _even(count, ranks.size).tolist()
    _refuse_outside(ranks, shard.ids[kind], kind, count)
    placement = placed_by_id(ranks, shard.ids[kind], offsets)
    _refuse_gaps(ranks, placement, kind, offsets[ranks.rank], count)
    mask = shard.of_nodes[kind].get(TRAIN_MASK)
    if mask is None:
        return None
    return torch.cat([torch.empty(0, dtype=torch.bool), *placement.pieces(column_of(mask))])


def _refuse_outside(ranks: Exchange, ids: Tensor, kind: Any, count: int) -> None:
    outside = (ids < 0) | (ids >= count)
    if bool(outside.any()):
        place = int(outside.nonzero()[0])
        raise ValueError(
            f"{ranks.where}: {_node(kind, int(ids[place]))} of rank {ranks.rank} is outside; {_allowed(kind, count)}"
        )


def _refuse_gaps(ranks: Exchange, placement: Placement, kind: Any, offset: int, count: int) -> None:
    for first, times, places in placement.times_there():
        wrong = (times != 1).nonzero().flatten()
        if wrong.numel() > 0:
            place = int(wrong[0])
            there = [rank for rank, each in enumerate(places) if bool((each == place).any())]
            found = f"is there {int(times[place])} times, on the ranks {shown(there)}" if there else "is missing"
            raise ValueError(f"{ranks.where}: {_node(kind, offset + first + place)} {found}; {_allowed(kind, count)}")


def _node(kind: Any, node: int) -> str:
    return f"node {node}" if kind is None else f"node {node} of {shown(kind)}"


def _allowed(kind: Any, count: int) -> str:
    of = "" if kind is None else f" of {shown(kind)}"
    return f"the {count} nodes{of} of all ranks must have the ids 0 to {count - 1}, each once. Renumber them."


def _weights(mask: Tensor | None, count: int, base: int, extra: int) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, count, CHUNK):
        size = min(CHUNK, count - begin)
        if mask is None:
            yield np.full(size, base, dtype=np.int64)
        else:
            yield base + extra * mask[begin : begin + size].numpy().astype(np.int64)
