"""How many threads work inside one minibatch: as many as torch uses; one where whole minibatches run side by side."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_here = threading.local()


def num_threads() -> int:
    """Return the number of threads for a kernel that this thread calls."""
    return 1 if getattr(_here, "one", False) else torch.get_num_threads()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Let the kernels that this thread calls use no others; torch's own setting would be changed for all threads."""
    before = getattr(_here, "one", False)
    _here.one = True
    try:
        yield
    finally:
        _here.one = before
