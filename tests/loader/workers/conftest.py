import gc
from collections.abc import Iterator

import pytest
from pipelines import wait_until
from worker_ways import worker_threads, workers


@pytest.fixture
def no_worker_stays() -> Iterator[None]:
    """Check that a test has ended its workers: none is alive, and none is a zombie."""
    yield
    gc.collect()
    wait_until(lambda: not workers())
    wait_until(lambda: not worker_threads())
