"""Watching a process: an end is seen whoever holds the pipe of its sentinel, and is told once."""

import multiprocessing
import os
import signal
from pathlib import Path

import process_targets as targets
import pytest
from amounts import ranked
from channels import descriptors_from_now
from pipelines import BOUND_S, wait_until

from datapipes.processes.child import Watch
from datapipes.processes.endings import runs, why_it_stands_still


def started(method: str, target, *files) -> tuple:
    """Start a process that gets the names of files; return it and who watches it."""
    process = multiprocessing.get_context(method).Process(target=target, args=tuple(map(str, files)))
    process.start()
    return process, Watch(process)


def written(path: Path) -> list[int]:
    """Return the numbers that a process writes into the file `path`."""
    wait_until(path.exists)
    return [int(number) for number in path.read_text().split()]


@pytest.fixture
def go(tmp_path):
    """A file; the processes of a test wait until it exists."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


@pytest.fixture(params=[True, False], ids=["pidfd", "without"])
def has_pidfd(request, monkeypatch):
    if not request.param:
        monkeypatch.delattr(os, "pidfd_open")
    return request.param


@pytest.mark.parametrize("method", ranked(["fork", "forkserver", "spawn"], 2))
def test_an_end_is_seen_though_a_child_of_the_process_holds_its_sentinel(tmp_path, go, has_pidfd, method):
    process, watch = started(method, targets.fork_and_wait, tmp_path / "told", go)
    (child,) = written(tmp_path / "told")
    assert not watch.has_ended()
    assert not watch.wait(0.01)
    os.kill(process.pid, signal.SIGKILL)
    assert watch.wait(BOUND_S)
    assert watch.exit_code() == -signal.SIGKILL
    assert runs(child)
    watch.close()
    watch.close()
    process.close()
    go.touch()
    wait_until(lambda: not runs(child))


def test_an_end_is_seen_though_somebody_else_has_collected_it(go, has_pidfd):
    process, watch = started("fork", targets.hold_until, go)
    go.touch()
    os.waitpid(process.pid, 0)
    assert watch.wait(BOUND_S)
    assert watch.exit_code() is None
    watch.send(signal.SIGKILL)
    watch.close()
    process._popen.returncode = 0  # else multiprocessing lists it as running, for later tests too
    process.close()


def test_a_process_that_had_ended_before_is_told_at_once(go, has_pidfd):
    go.touch()
    process = multiprocessing.get_context("forkserver").Process(target=targets.hold_until, args=(str(go),))
    process.start()
    process.join(BOUND_S)
    watch = Watch(process)
    assert watch.has_ended()
    assert watch.exit_code() == 0


def test_a_watch_gives_its_descriptor_back(go):
    process = multiprocessing.get_context("fork").Process(target=targets.hold_until, args=(str(go),))
    process.start()
    opened = descriptors_from_now()
    watch = Watch(process)
    watch.send(signal.SIGTERM)
    assert watch.wait(BOUND_S)
    assert watch.exit_code() == -signal.SIGTERM
    watch.close()
    assert opened() == 0
    process.close()


def test_a_stopped_process_is_said_to_be_stopped(go):
    pid = os.fork()
    if pid == 0:
        targets.hold_until(str(go))
        os._exit(0)
    assert why_it_stands_still(pid) is None
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    assert f"is stopped by a signal (SIGSTOP, Ctrl-Z); `kill -CONT {pid}`" in why_it_stands_still(pid)
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: why_it_stands_still(pid) is None)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert why_it_stands_still(pid) is None
    assert not runs(pid)


def test_without_pidfd_a_process_ends_with_its_parent_though_a_sibling_holds_the_pipe(tmp_path, go):
    told = tmp_path / "told"
    parent = os.fork()
    if parent == 0:
        try:
            context = multiprocessing.get_context("fork")
            context.Process(target=targets.end_with_parent_without_pidfd, args=(str(told), str(go))).start()
            os.fork()  # this child holds the parent's end of the pipe
            targets.hold_until(str(go))
        finally:
            os._exit(0)
    (watched,) = written(told)
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: not runs(watched))  # while the parent is a zombie
    os.waitpid(parent, 0)
