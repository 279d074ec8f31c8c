"""Threads of the kernels: how many they get, and that results do not depend on the number."""

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from at_once import at_once
from pipelines import BOUND_S, digests
from strategies import random_graph

import datapipes as dp
from datapipes import _core
from datapipes.base.threads import normal_policy, preempt_nobody

pytestmark = pytest.mark.alone

NUM_NODES = 20_000


@pytest.fixture
def torch_threads():
    """Set the number of torch's threads, and restore it afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def large_chain() -> dp.Stage:
    """A chain whose minibatches are large enough for several threads."""
    graph = dp.CSCGraph(*random_graph(NUM_NODES, 400_000, rng_seed=4))
    features = dp.TensorFeature(torch.arange(NUM_NODES * 40, dtype=torch.float32).reshape(NUM_NODES, 40))
    chain = dp.ItemSampler(dp.ItemSet(NUM_NODES), 2_000, shuffle=True, seed=5)
    chain = chain.sample_neighbor(graph, [10, 10], return_edge_ids=True)
    return chain.fetch_feature(dp.FeatureStore({("node", None, "feat"): features}), ["feat"])


def test_a_minibatch_is_the_same_for_any_number_of_threads(torch_threads):
    torch_threads(1)
    chain = large_chain()
    expected = digests(chain)  # of epoch 0
    minibatch = next(iter(chain))
    assert minibatch.blocks[0].num_edges > 2 * 16_384  # large enough for several threads
    assert minibatch.node_features["feat"].nbytes > 2**19
    for threads in (2, 7):
        torch_threads(threads)
        assert digests(large_chain()) == expected
        assert digests(dp.DataLoader(chain)) == expected


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_hop_is_the_same_for_any_number_of_threads(dtype):
    indptr, indices = random_graph(NUM_NODES, 400_000, rng_seed=6, dtype=dtype)
    seeds = np.random.default_rng(1).integers(0, NUM_NODES, 9_000)
    arguments = {"fanout": 6, "replace": False, "key": 8}
    expected = _core.sample_hop(indptr, indices, seeds, **arguments)
    for threads in (2, 5, 1_000):
        found = _core.sample_hop(indptr, indices, seeds, **arguments, num_threads=threads)
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_threads_that_sample_at_the_same_time_do_not_disturb_each_other(torch_threads):
    torch_threads(3)
    chain = large_chain()
    expected = digests(chain)
    loader = dp.DataLoader(chain)

    def replay(_: int) -> list[str]:
        return [loader.minibatch(0, index).digest() for index in range(len(chain))]

    assert at_once(replay, 4) == [expected] * 4


def test_a_number_of_threads_below_one_is_refused(refuses):
    table, ids = np.zeros((3, 4), dtype=np.uint8), np.zeros(1, dtype=np.int64)
    for threads in (0, -1):
        refuses(ValueError, _core.gather_rows, table, ids, num_threads=threads)
        options = {"fanout": 1, "replace": False, "key": 0, "num_threads": threads}
        refuses(ValueError, _core.sample_hop, ids, ids[:0], ids[:0], **options)


def _hop_of_many_seeds() -> bytes:
    indptr, indices = random_graph(NUM_NODES, 400_000, rng_seed=6)
    seeds = np.random.default_rng(1).integers(0, NUM_NODES, 9_000)
    found = _core.sample_hop(indptr, indices, seeds, fanout=6, replace=False, key=8, num_threads=3)
    return b"".join(array.tobytes() for array in found)


def _send_a_hop(sender) -> None:
    sender.send(_hop_of_many_seeds())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    expected = _hop_of_many_seeds()  # the parent's threads have started
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send_a_hop, args=(sender,), daemon=True)
    child.start()
    try:
        assert receiver.poll(BOUND_S)
        assert receiver.recv() == expected
        child.join(BOUND_S)
        assert child.exitcode == 0
    finally:
        child.kill()


# --- whom they preempt


POLICIES = f"""
import importlib.util, os, time
import numpy as np
spec = importlib.util.spec_from_file_location("_core", {_core.__file__!r})  # without torch, which takes seconds
_core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_core)

before = set(os.listdir("/proc/self/task"))
table = np.zeros((20_000, 400), dtype=np.uint8)
_core.gather_rows(table, np.zeros(20_000, dtype=np.int64), num_threads=3)
started = [int(thread) for thread in set(os.listdir("/proc/self/task")) - before]
ends, found = time.monotonic() + {BOUND_S / 2}, []
while found.count(os.SCHED_BATCH) < len(started) and time.monotonic() < ends:  # they may still be starting
    found = [os.sched_getscheduler(thread) for thread in started]
print(os.sched_getscheduler(0), *found)
"""


def test_the_helpers_of_a_kernel_preempt_nobody_and_its_caller_is_left_alone():
    child = subprocess.run([sys.executable, "-c", POLICIES], capture_output=True, text=True, timeout=BOUND_S)
    assert (child.stdout.split(), child.stderr) == ([str(os.SCHED_OTHER), *2 * [str(os.SCHED_BATCH)]], "")


def policies_in_a_thread(chosen: int) -> list[int]:
    """Return the policies of a thread that has chosen one and then preempts nobody: now; while it starts a process for
    others, and of that process; and afterwards.
    """
    found: list[int] = []

    def look() -> None:
        os.sched_setscheduler(0, chosen, os.sched_param(0))
        preempt_nobody()
        found.append(os.sched_getscheduler(0))
        with normal_policy():
            found.append(os.sched_getscheduler(0))
            command = [sys.executable, "-SEc", "import os; print(os.sched_getscheduler(0))"]
            found.append(int(subprocess.run(command, capture_output=True, check=True, timeout=BOUND_S).stdout))
        found.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(BOUND_S)
    return found


def test_a_thread_that_preempts_nobody_starts_what_others_use_with_the_normal_policy():
    assert policies_in_a_thread(os.SCHED_OTHER) == [os.SCHED_BATCH, os.SCHED_OTHER, os.SCHED_OTHER, os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_policy_that_the_user_has_chosen_stays():
    assert policies_in_a_thread(os.SCHED_IDLE) == [os.SCHED_IDLE] * 4


EXIT = f"""
import importlib.util, threading
spec = importlib.util.spec_from_file_location("_core", {_core.__file__!r})  # without torch, which takes seconds
_core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_core)

def work():
    while True:
        begun.set()
        _core.permutation_at(2**40, 1, 0, 2_000_000)

begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


def test_the_interpreter_may_exit_while_a_kernel_runs_in_a_daemon_thread():
    for _ in range(3):
        child = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=BOUND_S)
        assert (child.returncode, child.stderr) == (0, "")
