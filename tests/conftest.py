"""Settings for every test: Hypothesis draws the same examples in every run and keeps no database; children of the fork
server have torch when they begin; loaders have threads though their minibatches are small; gc.collect looks only at
what tests have made lately; Ctrl-C is not ignored; without a GPU, Triton's interpreter runs its kernels. Temporary
files are in a folder of the run, which is gone afterwards.
"""

import gc
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from amounts import amount, slow_tests, spare
from hypothesis import HealthCheck, settings

pytest_plugins = ["refusals"]

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # it is read when kernels are defined

settings.register_profile(
    "default",
    max_examples=amount(100, 10),
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

# A shell starts what runs in its background with SIGINT ignored, and so would the processes be that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

multiprocessing.set_forkserver_preload(
    ["__main__", "torch", "datapipes", "datapipes.distributed", "datapipes.processes.preload"]
)


@pytest.hookimpl(tryfirst=True)  # before pytest takes a folder for tmp_path
def pytest_configure(config: pytest.Config) -> None:
    """Give this run, and all that it starts, a temporary folder of its own: processes that tests kill leave files."""
    if not hasattr(config, "workerinput"):  # those of xdist have the folder of the process that started them
        folder = tempfile.mkdtemp(prefix="datapipes-tests-")
        # Later than multiprocessing removes what it keeps there, whose priority is -100.
        multiprocessing.util.Finalize(None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
    from datapipes.loader import passes  # not before it is known whether Triton interprets

    passes.MOST_BYTES = -1  # minibatches of tests are small, those of users are not: threads make them


@pytest.hookimpl(tryfirst=True)  # before the tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-all` what is slow, and the combinations of parameters that bring no new value. Long tests
    come first: at the end of a run one process would work on them while the others have nothing left to do.
    """
    slow = slow_tests()
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
    for item in spare(items):
        item.add_marker(pytest.mark.full)
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """Give torch its number of threads back after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


_SLOW_S = 0.03  # of a collection, in which it visits some 200,000 objects
_began = 0.0
_is_slow = True


def _time_collections(phase: str, info: dict[str, int]) -> None:
    global _began, _is_slow
    if phase == "start":
        _began = time.thread_time()
    elif info["generation"] == 2 and time.thread_time() - _began > _SLOW_S:
        _is_slow = True


gc.callbacks.append(_time_collections)


def pytest_collection_finish() -> None:
    _set_apart()


def pytest_runtest_logstart() -> None:
    """Between two tests, set apart what tests have imported once it makes gc.collect slow: hundreds call that. And let
    the clients go that a test has left, or the next one could not fork.
    """
    unforkable = sys.modules.get("datapipes.processes.unforkable")
    if _is_slow:
        _set_apart()
    elif unforkable is not None and unforkable.why_not_to_fork() is not None:
        gc.collect()


def _set_apart() -> None:
    """Let no later gc.collect visit the objects that there are. Not while a thread of a stage runs: it may hold what a
    test has left behind, which would never be collected, and the thread would never end.
    """
    global _is_slow
    gc.collect()
    if any(thread.name.startswith("datapipes") for thread in threading.enumerate()):
        return  # before the next test
    gc.freeze()
    _is_slow = False
