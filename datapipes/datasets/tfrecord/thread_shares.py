"""How many threads each process gets that loads an entity beside others: in proportion to the bytes it has to read.

Equal shares would leave processors idle: labels are read in no time, and then the nodes would go on with a quarter of
the threads. Shares are rounded up, so there are at most as many threads too many as there are entities.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from statistics import mean

import torch

from datapipes.datasets.tfrecord.entity_task import EntityTask
from datapipes.datasets.tfrecord.files import files_of
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo

MOST_LOOKED_AT = 100  # files of an entity whose size is asked for; the others count as much on average


def thread_shares(tasks: Sequence[EntityTask]) -> list[int]:
    """Return the number of threads for each task, at least 1; equal ones where sizes cannot be told."""
    most = torch.get_num_threads()
    try:
        sizes = [sum(map(_num_bytes, task.infos.values())) for task in tasks]
    except (OSError, ValueError):  # its process will say what is wrong, or its loader reads no files
        sizes = [0]
    if sum(sizes) == 0:
        return [max(most // len(tasks), 1)] * len(tasks)
    return [max(math.ceil(most * size / sum(sizes)), 1) for size in sizes]


def _num_bytes(info: SerializedTFRecordInfo) -> float:
    files = files_of("thread_shares", info)
    return len(files) * mean(file.stat().st_size for file in islice(files, MOST_LOOKED_AT))
