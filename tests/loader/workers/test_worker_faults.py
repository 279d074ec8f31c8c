"""When workers, their stages, the consumer or its process fail: nothing is lost, nothing hangs, nothing is left."""

import contextlib
import errno
import functools
import gc
import itertools
import multiprocessing
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import worker_stages as ws
from amounts import amount, ranked
from channels import damage_slots, descriptors_from_now, limited, lowest_free_descriptor
from pipelines import BOUND_S, digests, fetched, items, sampled, small_graph, small_store, wait_until, walked_and_ranked
from scripts import SUPPORT, ended
from worker_ways import WITHOUT_SERVER, digests_of_worker_chain, way, worker_threads, workers

import datapipes as dp
from datapipes.channel import MpChannel
from datapipes.loader.workers import process_pool
from datapipes.loader.workers.inbox import Inbox
from datapipes.loader.workers.workers import Workers

pytestmark = pytest.mark.usefixtures("no_worker_stays")
PROCESSES = ["fork", "forkserver"]


# --- errors of stages


@pytest.mark.parametrize("method", [*WITHOUT_SERVER, "forkserver"])
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("own", ws.OwnError, "wrong in the worker"),
        ("built_in", KeyError, "wrong in the worker"),
        ("picky", (ws.PickyError, dp.RemoteError), r"1, 2"),
    ],
)
def test_an_error_arrives_in_its_place_with_the_workers_traceback(method, kind, error, text):
    chain = sampled().transform(ws.fail_with(kind))
    with dp.DataLoader(chain, **way(method)) as loader:
        got = []
        with pytest.raises(error, match=text) as caught:
            got.extend(minibatch.index for minibatch in loader)
        assert got == [0, 1, 2]
        notes = "\n".join(getattr(caught.value, "__notes__", []))
        assert "in worker" in notes
        assert f"in stage 2 (transform), epoch 0, minibatch {ws.BAD}" in notes
        if method != "thread":
            assert kind.split("_")[0] in str(caught.value.__cause__)
            assert "worker_stages.py" in str(caught.value.__cause__)
        assert loader.state_dict()["next_index"] == 3
        got = [minibatch.index for minibatch in itertools.islice(loader, 3)]  # the next epoch, by the same workers
        assert got == [0, 1, 2]


def stop_at_start(worker: int) -> None:
    raise StopIteration("nothing left")


@pytest.mark.parametrize("method", [*WITHOUT_SERVER, "forkserver"])
@pytest.mark.parametrize(
    ("prepare", "error", "text"),
    [
        (ws.fail_at_start, ws.OwnError, r"worker \d does not want to"),
        (stop_at_start, RuntimeError, "worker_init_fn raised StopIteration: nothing left"),
    ],
)
def test_a_worker_that_cannot_be_prepared_says_why(method, prepare, error, text):
    loader = dp.DataLoader(sampled(), worker_init_fn=prepare, **way(method))
    with pytest.raises(error, match=text) as caught:
        list(loader)
    assert any("worker" in note for note in caught.value.__notes__)
    loader.close()


def sparse(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace(labels=torch.eye(len(minibatch.seeds)).to_sparse())


def large(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace(extra={"large": torch.ones(len(minibatch.seeds), 2**16)})


def leave_no_memory(worker: int) -> None:
    """Let this process make no more memory that others share, as a small /dev/shm does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    ("fn", "options", "error", "found"),
    [
        (sparse, {}, TypeError, "sparse"),
        (large, {"channel": "mp", "worker_init_fn": leave_no_memory}, OSError, "/dev/shm .* channel='shm'"),
    ],
    ids=["sparse", "no_memory"],
)
def test_what_a_channel_does_not_take_is_an_error_of_its_minibatch(fn, options, error, found):
    with dp.DataLoader(sampled().transform(fn), **way("fork"), **options) as loader:
        with pytest.raises(error, match=found) as caught:
            list(loader)
        if sys.version_info >= (3, 11):
            assert caught.value.__notes__ == ["in worker 0"]
        assert loader.stats()["workers"]["deaths"] == 0


class FullChannel(ws.QueueChannel):
    """A channel that has no room for minibatch 3, nor for its error."""

    def send(self, msg, **kwargs):
        if "#label" in msg and int(msg["#label"][5]) == ws.BAD:
            raise OSError("the disk is full")
        super().send(msg, **kwargs)


def test_an_error_of_sending_is_one_of_its_minibatch():
    loader = dp.DataLoader(sampled(), channel=FullChannel("fork"), **way("fork"))
    with loader, pytest.raises(OSError, match="the disk is full"):
        list(loader)


# --- deaths


def test_a_workers_signals_are_its_own():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with dp.DataLoader(sampled().transform(ws.tell_handler), **way("fork")) as loader:
            assert all(ws.noted(minibatch) for minibatch in loader)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_thread_that_listens_leaves_the_exit_status_to_the_dispatcher():
    """A status is told once: the log would not say what has killed the worker."""
    process = multiprocessing.get_context("fork").Process(target=signal.pause, daemon=True)
    process.start()
    inbox = Inbox()
    inbox.listen(MpChannel(), process)
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not inbox._threads[0].is_alive())  # it has seen the death
    assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    process.join()
    inbox.close()


LONG_CHAINS = {
    "synchronous": lambda num_items: fetched(sampled(items(num_items))),
    "asynchronous": ws.asynchronous_chain,
    "walks and ranks": lambda num_items: walked_and_ranked(items(num_items), small_graph()),
}


@pytest.mark.parametrize(("channel", "name"), [*itertools.product(["shm", "mp"], LONG_CHAINS)])
def test_any_kills_in_an_epoch_change_nothing(channel, name):
    choice, wanted = random.Random(4), amount(20, 5)
    chain = LONG_CHAINS[name](20 * wanted)
    loader = dp.DataLoader(chain, channel=channel, max_restarts=wanted, **way("fork"))
    got, kills = [], 0
    for minibatch in loader:
        got.append(minibatch.digest())
        # Both may be dead, or reaped meanwhile, while what they made is still in the channel: then at the next one.
        if kills < wanted and minibatch.index % 2 == 0 and (alive := workers()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(choice.choice(alive).pid, signal.SIGKILL)
                kills += 1
    assert kills == wanted
    assert got == digests(chain)
    loader.close()


@pytest.mark.parametrize("has_pidfd", [True, False], ids=["pidfd", "without"])
@pytest.mark.parametrize("channel", ["shm", "mp"])
def test_a_death_is_seen_though_a_child_of_the_worker_lives(tmp_path, monkeypatch, channel, has_pidfd):
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    mark, go = tmp_path / "mark", tmp_path / "go"
    chain = ws.DieWithAChild(sampled(), str(mark), str(go))
    try:
        with dp.DataLoader(chain, channel=channel, timeout=BOUND_S, **way("fork")) as loader:
            assert digests(loader) == digests(sampled())
        assert not ended(int(mark.read_text()))
        assert not workers()
    finally:
        go.touch()


def test_a_death_is_seen_though_a_process_that_was_forked_at_the_same_moment_lives(monkeypatch):
    copies, pipe = [], os.pipe

    def pipe_in_two_processes():
        ends = pipe()
        copies.append(os.dup(ends[1]))  # as a process has it that another thread forks between pipe() and close()
        return ends

    chain = sampled(items(40))
    monkeypatch.setattr(os, "pipe", pipe_in_two_processes)
    try:
        with dp.DataLoader(chain, overlap=False, timeout=BOUND_S, **way("fork")) as loader:
            got = [digests(loader)]
            for worker in workers():
                worker.kill()
            got += [digests(loader)]
            iterator = iter(loader)
            got += [[next(iterator).digest()]]
            workers()[0].kill()
            got[-1].extend(minibatch.digest() for minibatch in iterator)
        assert not workers()
    finally:
        for descriptor in copies:
            os.close(descriptor)
    assert got == [digests(chain) for _ in range(3)]


@pytest.mark.parametrize("method", PROCESSES)
@pytest.mark.parametrize("between_epochs", [True, False])
def test_a_worker_that_cannot_be_replaced_is_an_error_that_ends_the_others(method, between_epochs):
    chain = sampled(items(40))
    with dp.DataLoader(chain, overlap=False, timeout=BOUND_S, **way(method)) as loader:
        iterator = iter(loader)
        next(iterator)
        pids = [worker.pid for worker in workers()]
        os.kill(pids[0], signal.SIGKILL)
        wait_until(lambda: ended(pids[0]))
        told = r"worker \d cannot be started: it needs \d+ file descriptors, and \d+ are left.*ulimit -n"
        with limited(resource.RLIMIT_NOFILE, lowest_free_descriptor()), pytest.raises(OSError, match=told) as caught:
            list(loader if between_epochs else iterator)
        assert caught.value.errno == errno.EMFILE
        assert any("in place of worker" in note for note in caught.value.__notes__)
        assert all(ended(pid) for pid in pids)
        loader.set_epoch(0)
        assert digests(loader) == digests(chain)  # the next epoch starts new workers


def test_all_workers_killed_between_epochs_are_replaced_and_counted():
    with dp.DataLoader(ws.worker_chain(), max_restarts=0, **way("fork", 3)) as loader:
        first = digests(loader)
        for worker in workers():
            worker.kill()
            worker.join()
        assert [first, digests(loader)] == digests_of_worker_chain()[:2]
        assert loader.stats()["workers"]["deaths"] == 3


def test_a_death_that_has_ended_an_epoch_is_counted_once(tmp_path):
    chain = ws.DieOnce(sampled(), str(tmp_path / "mark"))
    with dp.DataLoader(chain, max_restarts=0, **way("fork", 1)) as loader:
        with pytest.raises(dp.PeerDied, match="1 workers died while they made minibatch 3"):
            list(loader)
        loader.set_epoch(0)
        assert digests(loader) == digests(sampled())
        assert loader.stats()["workers"]["deaths"] == 1


def write_number_and_die(worker: int, folder: str) -> None:
    ws.write_number(worker, folder)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_a_worker_that_has_died_before_its_first_epoch_began_has_died_while_it_started(
    tmp_path, monkeypatch, max_restarts
):
    begin = process_pool.ProcessPool.begin

    def begin_late(pool):
        wait_until(lambda: all(worker.has_ended() for worker in pool._workers))
        return begin(pool)

    monkeypatch.setattr(process_pool.ProcessPool, "begin", begin_late)
    prepare = functools.partial(write_number_and_die, folder=str(tmp_path))
    told = r"worker 0 \(pid \d+\) died while it started: it was killed by SIGKILL"
    loader = dp.DataLoader(sampled(), worker_init_fn=prepare, max_restarts=max_restarts, **way("fork", 1))
    with loader, pytest.raises(dp.PeerDied, match=told):
        list(loader)
    assert len([*tmp_path.iterdir()]) == 1 + max_restarts


def test_a_worker_that_reads_nothing_holds_up_no_new_epoch():
    chain = sampled(items(40)).transform(ws.grow)
    with dp.DataLoader(chain, shm_size="4MB", **way("fork", 1)) as loader:
        wanted = next(iter(loader)).digest()
        (worker,) = workers()
        os.kill(worker.pid, signal.SIGSTOP)
        for _ in range(400):  # more tasks than its pipe has room for
            loader.set_epoch(0)
            with contextlib.suppress(TimeoutError):
                vars(loader._plan.root)["timeout"] = 0.001
                next(iter(loader))
        os.kill(worker.pid, signal.SIGCONT)
        vars(loader._plan.root)["timeout"] = 60.0
        loader.set_epoch(0)
        assert next(iter(loader)).digest() == wanted


WAITS = {  # at this minibatch; of several in flight at once, at the oldest
    "one at a time": (2, lambda go: fetched(ws.Wait(sampled(), 2, go)), 2),
    "several at once": (0, lambda go: ws.PassOnAsync(ws.Wait(sampled(items(40)), 0, go)), 1),
}


@pytest.mark.parametrize("method", WITHOUT_SERVER)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("name", WAITS)
def test_a_timeout_names_the_worker_and_the_minibatch(tmp_path, method, overlap, name):
    index, chain, num_workers = WAITS[name]
    text = rf"minibatch {index} of epoch 0: worker .* has been making minibatch {index} of"
    options = way(method, num_workers, timeout=0.5, overlap=overlap)
    with dp.DataLoader(chain(str(tmp_path / "go")), **options) as loader:
        with pytest.raises(TimeoutError, match=text):
            list(loader)
        (tmp_path / "go").touch()


def test_a_timeout_names_the_stage_after_the_cut(tmp_path):
    chain = ws.Wait(fetched(), 2, str(tmp_path / "go"))
    told = r"^data_loader: .* Stage 3 \(wait\) has been at minibatch 2 of epoch 0 for"
    with dp.DataLoader(chain, timeout=0.5, **way("fork")) as loader:
        iterator, error = iter(loader), ""
        for _ in range(int(BOUND_S)):  # on a busy machine the earlier minibatches take longer, too
            try:
                next(iterator)
            except TimeoutError as late:
                error = str(late)
                if re.match(told, error):
                    break
        assert re.match(told, error)
        (tmp_path / "go").touch()


def test_a_timeout_while_the_workers_start_says_so(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(process_pool, "prepare_server", lambda context: go.wait(BOUND_S))
    with dp.DataLoader(fetched(), timeout=0.3, **way("fork")) as loader:
        iterator = iter(loader)
        with pytest.raises(TimeoutError, match="Its workers are being started"):
            next(iterator)
        go.set()
        vars(loader._plan.root)["timeout"] = None


class RestlessChannel(ws.QueueChannel):
    """A channel whose first message cannot be read."""

    failed = False

    def recv(self, **kwargs):
        message = super().recv(**kwargs)
        if not self.failed:
            self.failed = True
            raise OSError("the line is noisy")
        return message


def test_an_error_of_a_channel_ends_the_epoch_and_not_the_loader():
    with dp.DataLoader(sampled(), channel=RestlessChannel("fork"), **way("fork")) as loader:
        with pytest.raises(OSError, match="noisy"):
            list(loader)
        loader.set_epoch(0)
        assert digests(loader) == digests(sampled())


@pytest.mark.parametrize("method", PROCESSES)
def test_a_death_is_seen_where_somebody_else_waits_for_all_children(method):
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with dp.DataLoader(sampled(items(40)), overlap=False, **way(method)) as loader:
            iterator = iter(loader)
            got = [next(iterator).digest()]
            os.kill(loader._plan.root._running.pool._workers[1].pid, signal.SIGKILL)
            got.extend(minibatch.digest() for minibatch in iterator)
        assert got == digests(sampled(items(40)))
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("channel", [lambda: dp.ShmChannel(64, "4MB"), lambda: ws.QueueChannel("fork"), dp.MpChannel])
def test_a_channel_of_the_users_own_forgets_an_epoch_that_was_left(channel):
    with dp.DataLoader(sampled(), channel=channel(), persistent_workers=False, **way("fork")) as loader:
        for _ in range(3):
            next(iter(loader))
        loader.set_epoch(0)
        assert digests(loader) == digests(sampled())


def test_workers_of_workers_are_refused(refuses):
    with dp.DataLoader(ws.Nested(sampled()), **way("fork", 1)) as loader:
        refuses(RuntimeError, list, loader)


# --- the consumer


@pytest.mark.parametrize("method", WITHOUT_SERVER)
@pytest.mark.parametrize("overlap", [True, False])
def test_an_epoch_that_is_left_does_not_reach_into_the_next(method, overlap):
    with dp.DataLoader(ws.worker_chain(), overlap=overlap, **way(method)) as loader:
        for epoch in range(ws.EPOCHS):
            assert next(iter(loader)).digest() == digests_of_worker_chain()[epoch][0]
        loader.set_epoch(1)
        assert digests(loader) == digests_of_worker_chain()[1]


@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_an_error_in_the_consumer_leaves_nothing(method):
    opened = descriptors_from_now()
    with contextlib.suppress(ZeroDivisionError), dp.DataLoader(ws.worker_chain(), **way(method)) as loader:
        for minibatch in loader:
            raise ZeroDivisionError(minibatch.index)
    del loader, minibatch
    gc.collect()
    assert opened() == 0


@pytest.mark.parametrize("channel", ["shm", "mp"])
def test_a_loader_that_is_dropped_ends_its_workers(channel):
    warm = dp.DataLoader(sampled(), channel=channel, **way("fork"))
    list(warm)
    warm.close()
    del warm
    wait_until(lambda: not worker_threads())
    opened = descriptors_from_now()
    loader = dp.DataLoader(sampled(), channel=channel, **way("fork"))
    next(iter(loader))
    assert len(workers()) == 2
    del loader
    wait_until(lambda: not workers())
    wait_until(lambda: not worker_threads())
    gc.collect()
    assert opened() == 0


def test_a_consumer_that_never_reads_on_leaves_nothing():
    loader = dp.DataLoader(sampled(items(4000)).transform(ws.grow), shm_size="2MB", **way("fork"))
    next(iter(loader))
    held = loader.stats()["channel"]["used_bytes"]
    assert held <= 2 * 2**20
    loader.close()


@pytest.mark.parametrize("channel", ["shm", "mp"])
@pytest.mark.parametrize("overlap", [True, False])
def test_closing_gives_all_memory_back_though_the_iterator_is_kept(channel, overlap):
    dp.MpChannel().close()  # the first one starts the tracker of multiprocessing, whose pipe stays open
    opened = descriptors_from_now()
    gc.disable()  # the collector would hide reference cycles
    try:
        loader = dp.DataLoader(sampled(items(400)), channel=channel, overlap=overlap, **way("fork"))
        iterator = iter(loader)
        next(iterator)
        loader.close()
        assert opened() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("num_items", [12, 400])
def test_threads_end_with_asynchronous_minibatches_in_flight(num_items):
    loader = dp.DataLoader(ws.SlowIsAsync(sampled(items(num_items))), **way("thread"))
    next(iter(loader))
    threads = [each for each in threading.enumerate() if each.name.startswith(("datapipes-worker", "datapipes-async"))]
    loader.close()
    assert len(threads) >= 2
    assert not [thread for thread in threads if thread.is_alive()]


def test_closing_what_stands_on_a_loader_ends_its_workers():
    loader = dp.DataLoader(sampled(), **way("fork"))
    with loader.copy_to("cpu") as pipe:
        list(pipe)
        assert len(workers()) == 2
    assert not workers()
    loader.set_epoch(0)
    assert digests(loader) == digests(sampled())
    loader.close()


def test_after_close_there_are_no_more_epochs(refuses):
    loader = dp.DataLoader(sampled(), **way("fork"))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    refuses(RuntimeError, iter, loader)
    refuses(RuntimeError, next, iterator)
    assert loader.state_dict()["next_index"] == 1


def test_a_forked_child_is_told_that_the_workers_are_its_parents():
    with dp.DataLoader(sampled(), overlap=False, **way("fork")) as loader:
        iterator = iter(loader)
        next(iterator)
        pid = os.fork()
        if pid == 0:
            try:
                next(iterator)
            except RuntimeError as error:
                multiprocessing.util._exit_function()  # as at sys.exit()
                loader.close()
                os._exit(5 if "another process" in str(error) else 6)
            finally:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        assert [minibatch.index for minibatch in iterator] == [1, 2, 3, 4, 5]
        assert loader.stats()["workers"]["deaths"] == 0


def printed(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    os.write(1, b"to stdout\n")
    os.write(2, b"to stderr\n")
    assert [os.readlink(f"/proc/self/fd/{number}") for number in range(3)] == 3 * [os.devnull]
    return minibatch


def test_workers_of_a_process_without_stdin_stdout_and_stderr_have_dev_null_there():
    expected_here, pid = digests(items()), os.fork()
    if pid == 0:
        try:
            os.closerange(0, 3)
            with dp.DataLoader(items().transform(printed), overlap=False, **way("fork"), timeout=5.0) as loader:
                os._exit(5 if digests(loader) == expected_here else 6)
        finally:
            os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


# --- the end of the process


SCRIPT = """
import os, signal, sys, threading
sys.path.insert(0, {tests!r})
import datapipes as dp
import worker_stages as ws
from pipelines import items, sampled
from multiprocessing import active_children

def main():
    chain = sampled(items(400000)).transform(ws.as_it_is)
    loaders = [dp.DataLoader(chain, 2, multiprocessing_context={method!r}, overlap=overlap) for overlap in {overlaps}]
    iterators = [iter(loader) for loader in loaders]
    for iterator in iterators:
        next(iterator)
    print(*[child.pid for child in active_children()], flush=True)
    {then}

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def a_program(method: str, then: str, overlaps: tuple[bool, ...] = (True,)):
    """Start a process that begins an epoch of a loader for each of `overlaps`; yield it and the pids of its workers."""
    script = SCRIPT.format(tests=SUPPORT, method=method, then=then, overlaps=overlaps)
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; exec(sys.stdin.read())"]
        if method == "fork"
        else [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        try:
            if method == "fork":
                program.stdin.write(script)
            program.stdin.close()
            pids = [int(pid) for pid in program.stdout.readline().split()]
            assert len(pids) == 2 * len(overlaps), program.stderr.read()
            yield program, pids
            for pid in pids:
                wait_until(lambda pid=pid: ended(pid))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ranked(PROCESSES, 1))
def test_workers_end_when_their_parent_is_killed(method):
    with a_program(method, "signal.pause()") as (program, _):
        program.kill()
        program.wait(BOUND_S)


@pytest.mark.parametrize("method", ranked(PROCESSES, 1))
def test_workers_end_with_the_interpreter(method):
    with a_program(method, "globals()['kept'] = loaders, iterators", (True, False)) as (program, _):
        assert program.wait(BOUND_S) == 0
        assert program.stderr.read() == ""


@pytest.mark.full
def test_other_processes_of_the_server_see_ctrl_c():
    then = (
        "import multiprocessing; process = multiprocessing.get_context('forkserver').Process(target=ws.print_held); "
        "process.start(); process.join()"
    )
    with a_program("forkserver", then) as (program, _):
        assert program.stdout.readline() == "set()\n"
        assert program.wait(BOUND_S) == 0


READ_UNTIL_INTERRUPTED = """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, iterator in enumerate(iterators, 1):
        try:
            print("reads", flush=True)
            for minibatch in iterator: pass
        except KeyboardInterrupt:
            if number == len(iterators): raise
"""


@pytest.mark.parametrize("method", ranked(PROCESSES, 1))
def test_ctrl_c_reaches_the_consumer_and_ends_the_workers(method):
    with a_program(method, READ_UNTIL_INTERRUPTED, (True, False)) as (program, _):
        for _ in range(2):
            assert program.stdout.readline() == "reads\n"
            os.killpg(program.pid, signal.SIGINT)
        assert program.wait(BOUND_S) in (1, -signal.SIGINT, 130)
        assert program.stderr.read().rstrip().endswith("KeyboardInterrupt")


# --- refused when the loader is built


@pytest.mark.parametrize("method", ["forkserver", "spawn", None])
def test_what_cannot_be_pickled_is_refused_by_name(method):
    chain = sampled().transform(lambda minibatch: minibatch)
    wrong = ((chain, None, r"stage 2 \(transform\)"), (sampled(), lambda worker: None, "worker_init_fn"))
    for chain, init, named in wrong:
        with pytest.raises(TypeError, match=f"data_loader: {named} .*pickled.*lambda.* Define"):
            dp.DataLoader(chain, 2, multiprocessing_context=method, worker_init_fn=init)
        dp.DataLoader(chain, 2, multiprocessing_context="fork", worker_init_fn=init)
        dp.DataLoader(chain, 2, worker_method="thread", worker_init_fn=init)
    dp.DataLoader(fetched().transform(lambda minibatch: minibatch), 2)  # what stands after the cut need not be pickled


@pytest.mark.parametrize("make", [socket.socket, dp.MpChannel, lambda: np.array([lambda: 0], dtype=object)])
def test_what_only_a_fork_passes_on_is_refused_when_the_loader_is_built(make):
    value = make()
    with pytest.raises(TypeError, match=r"stage 2 \(transform\).*pickled"):
        dp.DataLoader(sampled().transform(functools.partial(ws.as_it_is, value)), 2)
    if hasattr(value, "close"):
        value.close()


def test_what_cannot_stand_before_the_cut_is_refused(refuses):
    refuses(ValueError, dp.DataLoader, fetched(sampled().prefetch()), 2)
    refuses(ValueError, dp.DataLoader, fetched(dp.DataLoader(sampled(), 0).transform(ws.double)), 2)
    refuses(ValueError, dp.DataLoader, dp.DataLoader(dp.DataLoader(sampled())), 2)
    first = sampled()
    joined = dp.MiniBatchTransformer([first.fetch_feature(small_store(), ["feat"]), first], ws.take_both)
    refuses(ValueError, dp.DataLoader, joined, 2)
    with dp.DataLoader(joined, cut="end", **way("fork")) as loader:
        assert digests(loader) == digests(joined)


def test_a_graph_that_uses_cuda_is_not_forked(monkeypatch, refuses):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    refuses(RuntimeError, dp.DataLoader, sampled(), **way("fork"))


@pytest.mark.usefixtures("one_gpu")
def test_what_worker_processes_cannot_do_with_a_gpu_is_refused(refuses):
    chain = sampled().copy_to("cuda")
    behind = fetched(chain)
    for cut_behind, cut in ((chain, "end"), (behind, "end"), (behind, dp.FeatureFetcher)):
        refuses(ValueError, dp.DataLoader, cut_behind, 2, cut=cut)
    dp.DataLoader(chain, 2, cut="end", worker_method="thread")
    in_workers = dp.stages.StageGraph(dp.DataLoader(chain, 2).rewritten().find(Workers)[0])
    assert not in_workers.find(dp.CopyTo)  # the default cut is before it
    for options in ({"num_workers": 2}, way("thread"), {}):
        refuses(ValueError, dp.DataLoader, behind, **options)  # the features are not page-locked


# --- a channel whose memory somebody has overwritten


@pytest.mark.parametrize("persistent", [True, False])
def test_a_loader_whose_channel_is_damaged_closes_in_silence(persistent):
    loader = dp.DataLoader(sampled(items(200)), shm_size="1MB", persistent_workers=persistent, **way("fork"))
    next(iter(loader))
    damage_slots(*loader._plan.root._running.pool._channel._shared.memory)
    loader.close()
    assert workers() == []
