"""Tests of this folder look at the threads of the process: those that epochs of earlier tests have left end first."""

import gc
import threading

import pytest
from pipelines import BOUND_S

OF_EPOCHS = ("datapipes-async", "datapipes-digests", "datapipes-prefetch")


@pytest.fixture(autouse=True)
def no_thread_is_left():
    left = [thread for thread in threading.enumerate() if thread.name.startswith(OF_EPOCHS)]
    if left:
        gc.collect()  # an epoch that was not read to its end goes on until it is collected
    for thread in left:
        thread.join(BOUND_S)
