"""The number of threads that work on one minibatch: as many as torch uses, or a worker's share of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def num_threads() -> int:
    """Return the number of threads for a kernel that this thread calls."""
    count = share_here()
    return torch.get_num_threads() if count is None else count


def share_here() -> int | None:
    """Return the number that this thread was given for its kernels; None for as many as torch uses."""
    count: int | None = getattr(_here, "count", None)
    return count


def share_of(num_workers: int) -> int:
    """Return how many threads each of `num_workers` workers gets: an equal part of torch's threads, at least 1."""
    return max(torch.get_num_threads() // num_workers, 1)


@contextmanager
def threads_of_kernels(count: int | None) -> Iterator[None]:
    """Let the kernels that this thread calls use `count` threads, or as many as torch uses if it is None.

    Torch's own setting would affect all threads.
    """
    before = share_here()
    _here.count = count
    try:
        yield
    finally:
        _here.count = before
