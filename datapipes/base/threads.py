"""The number of threads that work on one minibatch: as many as torch uses, or a worker's share of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def num_threads() -> int:
    """Return the number of threads for a kernel that this thread calls."""
    count: int | None = getattr(_here, "count", None)
    return torch.get_num_threads() if count is None else count


def share_of(num_workers: int) -> int:
    """Return how many threads each of `num_workers` workers gets: an equal part of torch's threads, at least 1."""
    return max(torch.get_num_threads() // num_workers, 1)


@contextmanager
def threads_of_kernels(count: int) -> Iterator[None]:
    """Let the kernels that this thread calls use `count` threads. Torch's own setting would affect all threads."""
    before = getattr(_here, "count", None)
    _here.count = count
    try:
        yield
    finally:
        _here.count = before
