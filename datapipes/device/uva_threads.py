"""How many threads of a GPU one gather of a chain may take; set by its FeatureFetcher around the reads of this thread.

Nothing process-wide is set: two chains with other caps may read at the same time, each in its own thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__: list[str] = []

MAX_UVA_THREADS = 10240  # by default: as many as five SMs hold, though they spread over more; they fill the link

_here = threading.local()


def limit() -> int:
    """Return how many GPU threads a gather from host memory may take in this thread."""
    return int(getattr(_here, "limit", MAX_UVA_THREADS))


@contextmanager
def limited_to(max_uva_threads: int) -> Iterator[None]:
    """Give the gathers of this thread at most so many GPU threads, but one warp at least; contexts may be nested."""
    before = limit()
    _here.limit = max_uva_threads
    try:
        yield
    finally:
        _here.limit = before
