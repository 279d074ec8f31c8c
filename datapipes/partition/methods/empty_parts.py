"""Parts that a method left empty get a node each."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 2**17  # nodes that are counted at once: bincount makes int64 of them


def fill_empty_parts(parts: NDArray[Any], num_parts: int) -> None:
    """Give each part without nodes one, in place.

    In ascending order, each empty part takes the last node of the part that has the most nodes then; of equal parts,
    of the first. So with num_parts nodes or more no part is empty, and nothing changes where none was.

    Args:
        parts: integers [num_nodes], each in [0, num_parts); num_nodes >= num_parts.
    O(num_nodes); 16 bytes a node if there is something to do.
    """
    counts = np.zeros(num_parts, dtype=np.int64)
    for first in range(0, len(parts), CHUNK):
        counts += np.bincount(parts[first : first + CHUNK], minlength=num_parts)
    empty = np.flatnonzero(counts == 0)
    if len(empty) == 0:
        return
    nodes = np.argsort(parts, kind="stable")  # those of a part are successive and ascend
    ends = np.cumsum(counts)
    largest = [(-int(count), part) for part, count in enumerate(counts)]
    heapq.heapify(largest)
    for part in empty.tolist():
        count, giver = largest[0]
        ends[giver] -= 1
        parts[nodes[ends[giver]]] = part
        heapq.heapreplace(largest, (count + 1, giver))
