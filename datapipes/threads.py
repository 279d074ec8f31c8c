"""How many threads a kernel may use: `torch.get_num_threads()`, or the share given to the calling thread.

What a kernel gives never depends on it. A process that works beside others (a worker) gives its threads a share of 1.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

MOST_THREADS = 256  # that the pool of the C++ core starts

_share = threading.local()


def kernel_threads() -> int:
    """Return the number of threads for a kernel that is called now, in this thread."""
    given: int | None = getattr(_share, "threads", None)
    return torch.get_num_threads() if given is None else given


@contextlib.contextmanager
def thread_share(threads: int) -> Iterator[None]:
    """Let kernels called by this thread use `threads` threads, 1 or more, while the block runs."""
    before = getattr(_share, "threads", None)
    _share.threads = threads
    try:
        yield
    finally:
        _share.threads = before
