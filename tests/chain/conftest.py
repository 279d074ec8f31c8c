"""Tests of this folder look at the threads of the process: those that epochs of earlier tests have left end first."""

import gc
import threading
import time

import pytest

OF_EPOCHS = ("datapipes-async", "datapipes-digests", "datapipes-prefetch")
_MOMENT_S = 0.2  # for a thread whose epoch was collected to end
_BOUND_S = 5.0


@pytest.fixture(autouse=True)
def no_thread_is_left():
    if _left():
        gc.collect()  # an epoch that was not read to its end goes on until it is collected
        _join(_MOMENT_S)
    if _left():
        gc.unfreeze()  # what is set apart may hold the epoch; to visit all of it takes long
        gc.collect()
        _join(_BOUND_S)  # what a longer fixture holds may go on


def _left() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(OF_EPOCHS)]


def _join(bound_s: float) -> None:
    ends = time.monotonic() + bound_s
    for thread in _left():
        thread.join(max(0.0, ends - time.monotonic()))
