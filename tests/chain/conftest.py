"""Tests of this folder look at the threads of the process: those that epochs of earlier tests have left end first."""

import gc
import threading
import time

import pytest

OF_EPOCHS = ("datapipes-async", "datapipes-digests", "datapipes-prefetch")
_BOUND_S = 5.0


@pytest.fixture(autouse=True)
def no_thread_is_left():
    left = [thread for thread in threading.enumerate() if thread.name.startswith(OF_EPOCHS)]
    if left:
        gc.unfreeze()
        gc.collect()  # an epoch that was not read to its end goes on until it is collected
    ends = time.monotonic() + _BOUND_S
    for thread in left:  # what a longer fixture holds may go on
        thread.join(max(0.0, ends - time.monotonic()))
