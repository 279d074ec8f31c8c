"""The plain Python twin of links: slow, obvious, written from docs/semantics.md, section 4.7."""

import math
from collections.abc import Collection, Sequence
from typing import Any

from twin import Stream, sums_of, weighted_draw

MOST_TRIES = 1024
COLUMNS = {"src": [0], "dst": [1], "both": [0, 1]}


def positive_of(count: int, ratio: float) -> list[int]:
    """The row of the positive of each negative."""
    number = math.ceil(ratio * count)
    return [j * count // number for j in range(number)]


def negatives(
    pairs: Sequence[Sequence[int]],
    ratio: float,
    key: int,
    num_nodes: tuple[int, int],
    *,
    corrupt: str = "dst",
    weights: tuple[Any, Any] = (None, None),
    edges: Collection[tuple[int, int]] | None = None,
    since: tuple[Any, Any] = (None, None),
    times: Sequence[int] | None = None,
) -> list[list[int]]:
    """Section 4.7: a negative for each slot. `edges` are given where none of them may be returned (strict)."""
    found = []
    for slot, row in enumerate(positive_of(len(pairs), ratio)):
        stream, positive = Stream(key, 0, slot), list(pairs[row])
        for _ in range(MOST_TRIES):
            pair = list(positive)
            for column in COLUMNS[corrupt]:
                if weights[column] is None:
                    pair[column] = stream.bounded(num_nodes[column])
                else:
                    pair[column] = weighted_draw(sums_of(weights[column]), stream)
            exists = times is None or all(
                since[column] is None or since[column][pair[column]] <= times[row] for column in COLUMNS[corrupt]
            )
            if exists and is_new(pair, positive, edges):
                break
        else:
            pair = list(positive)
            for column in COLUMNS[corrupt]:
                if since[column] is not None:
                    pair[column] = min(range(num_nodes[column]), key=lambda v, c=column: (since[c][v], v))
            has_times = any(since[column] is not None for column in COLUMNS[corrupt])
            if not has_times or not is_new(pair, positive, edges):
                raise ValueError(f"no negative for {positive}")
        found.append(pair)
    return found


def is_new(pair: list[int], positive: list[int], edges: Collection[tuple[int, int]] | None) -> bool:
    return edges is None or (tuple(pair) not in edges and pair != positive)
