"""A child process: how the parent starts, watches and ends it, and how the child begins and ends with its parent.

multiprocessing reports the end of a process by a sentinel, one end of a pipe. It does so only when no process has the
other end of the pipe open any more. But children that the process has forked have it open, too. Under fork, so has a
sibling that another thread starts at the same moment. So a pidfd (a file descriptor of a process) is watched instead,
which reports the end of one process alone. Linux has pidfds since 5.3; elsewhere the sentinel, the exit status and the
state of the process are looked at in turn.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from datapipes.base.threads import normal_policy
from datapipes.processes.endings import runs
from datapipes.processes.start import Context, hold_standard_descriptors, no_interrupt

LOOK_S = 0.05  # seconds between two looks where there is no pidfd
PARENT_LOOK_S = 1.0  # seconds between two looks whether the parent runs, where there is no pidfd
COLLECT_S = 1.0  # seconds in which the fork server must tell how its child ended
_UNKNOWN = 255  # exit code of a process whose exit status was collected elsewhere
_CLONE = 1  # exit code of a clone
_ORPHAN = 3  # exit code of a process whose parent has ended

_C = TypeVar("_C", bound="ChildProcess")


# --- in the parent


class Watch:
    """Tells whether a process that multiprocessing has started runs, has ended, and how. `close` closes its pidfd."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._pid: int = process.pid
        self._pidfd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # no such call, forbidden, or no descriptor left
            self._pidfd = os.pidfd_open(self._pid)
        if self._sentinel_tells(0):  # it had ended before, so the pidfd may be of a newer process with its pid
            self.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended. This is known even if other code has collected its exit status."""
        return self.wait(0.0)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the process to end; return whether it has ended."""
        if self._pidfd is not None:
            return bool(connection.wait([self._pidfd], timeout))
        ends = time.monotonic() + timeout
        while True:
            left = max(ends - time.monotonic(), 0.0)
            if self._sentinel_tells(min(left, LOOK_S)) or self._process.exitcode is not None or not runs(self._pid):
                return True
            if left <= 0:
                return False

    def exit_code(self) -> int | None:
        """Return the exit code of the process, which must have ended.

        None: other code has collected the exit status.
        """
        if self._process.exitcode is None:
            self._sentinel_tells(COLLECT_S)  # a fork server collects its children itself, and then says how they ended
        code: int | None = self._process.exitcode
        return code

    def send(self, number: signal.Signals) -> None:
        """Send the signal `number` to the process, unless it has ended."""
        with contextlib.suppress(OSError):  # it has just ended, or may not be sent signals
            if not self.has_ended():
                os.kill(self._pid, number)

    def close(self) -> None:
        """Close the pidfd. May be called twice."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _sentinel_tells(self, timeout: float) -> bool:
        return bool(connection.wait([self._process.sentinel], timeout))


class ChildProcess:
    """A process that this process has started, such as a worker.

    Attributes:
        process: the Process of multiprocessing.
        pid: its process id.
        pipe: this side of the pipe between the two processes.
        watch: tells whether the process has ended, and how.
    """

    end_s = 1.0  # seconds that it may take to end by itself, and again after a signal

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.pid: int = process.pid
        self.pipe = pipe
        self.watch = Watch(process)
        self.process = process
        self._forgotten = False
        _existing.add(self)
        _leave_to_the_parent_after_a_fork()

    @property
    def ends_by_itself(self) -> bool:
        """Whether the process will end without a signal, because it was told to end or has done its work."""
        return True

    def has_ended(self) -> bool:
        """Return whether the process has ended, or was forgotten by `forget` or `leave`."""
        return self._forgotten or self.watch.has_ended()

    def leave(self) -> None:
        """Regard the process as ended, without touching it.

        Called after a fork, in the copy of this object in the new process.
        """
        if not self._forgotten:
            self._forgotten = True
            self.process._popen.returncode = _UNKNOWN

    def forget(self) -> None:
        """Close the pipe, wait up to `end_s` seconds for the process to end, and free the Process object and the pidfd.

        A second call does nothing.
        """
        if self._forgotten:
            return
        self.pipe.close()
        if self.watch.wait(self.end_s) and self.watch.exit_code() is None:
            self.process._popen.returncode = _UNKNOWN  # else multiprocessing believes for ever that the process runs
        self.watch.close()
        with contextlib.suppress(ValueError):  # it was killed, but has not ended yet: the system holds it up
            self.process.close()
        self._forgotten = True


_existing: weakref.WeakSet[ChildProcess] = weakref.WeakSet()  # started here and not forgotten


@functools.cache
def _leave_to_the_parent_after_a_fork() -> None:
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _leave_to_the_parent() -> None:
    """In a process that the user's code has forked from this one: regard all ChildProcesses as ended.

    They are children of the forked process's parent. So neither this package nor multiprocessing's exit handler, which
    ends daemons, ends them.
    """
    for child in [*_existing]:
        child.leave()


def begin(
    context: Context,
    name: str,
    main: Callable[[Any], None],
    start: Callable[[Connection], Any],
    child: Callable[[Any, Connection], _C],
) -> _C:
    """Start a process that calls `main`, with a pipe to this process; return the ChildProcess that `child` makes.

    Args:
        context: the context of multiprocessing.
        name: the name of the new process.
        main: function (argument) that the new process runs.
        start: function (the new process's end of the pipe) -> the argument of `main`.
        child: function (the Process, this process's end of the pipe) -> the ChildProcess.
    """
    hold_standard_descriptors()
    here, there = context.Pipe(duplex=True)
    begun: list[Any] = []

    def try_to_begin() -> Any:
        process = context.Process(target=main, args=(start(there),), name=name, daemon=True)  # type: ignore[attr-defined]
        begun.append(process)
        with no_interrupt(), normal_policy():  # a fork server that has ended is started anew
            process.start()
        return process

    try:
        try:
            process = try_to_begin()
        except (EOFError, ConnectionError):  # the fork server has ended; this starts another
            process = try_to_begin()
        return child(process, here)
    except BaseException:  # an interrupt, too
        here.close()
        if begun and begun[-1].pid is not None:
            begun[-1].kill()
        raise
    finally:
        there.close()


def end_all(children: Sequence[ChildProcess]) -> None:
    """End all `children`. Wait for those that end by themselves; send SIGTERM, then SIGKILL, to those that still run.

    At the end each child's pipe is closed and its object freed (`forget`).
    """
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        running = [child for child in children if not child.has_ended()]
        if number is not None:
            for child in running:
                child.watch.send(number)
        began = time.monotonic()
        for child in running:
            if number is not None or child.ends_by_itself:
                child.watch.wait(max(began + child.end_s - time.monotonic(), 0.0))
    for child in children:
        child.forget()


# --- in the child


def begin_as_child() -> None:
    """Prepare this process, which has just started, as a child: it ignores Ctrl-C, and ends with its parent.

    Ctrl-C is handled by the parent.
    """
    hold_standard_descriptors()  # the fork server may have none
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # no_interrupt blocked it during the start
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # after a fork the handler is the caller's
    signal.set_wakeup_fd(-1)
    end_with_parent()


def end_if_clone(pid: int) -> None:
    """End this process at once, without exit handlers, if its pid is not `pid`: then it is a clone of that process.

    A clone is a copy that the user's code has made by os.fork(), and that returned into this package. A clone of a
    worker would go on as the worker, send the worker's minibatches, and take its tasks. In a thread of this package a
    clone has no caller to return to. Do not call this where a stage runs in the consumer's thread: a clone then returns
    into the user's own code, and may go on.
    """
    if os.getpid() == pid:
        return
    message = (
        f"datapipes: a stage called os.fork() in process {pid} and returned in the child, too. The child, process "
        f"{os.getpid()}, ends here. End it by os._exit() in the stage.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, message.encode())  # not through sys.stderr: a thread of the parent may have held its lock
    os._exit(_CLONE)


def end_with_parent() -> None:
    """Start a thread that ends this process as soon as its parent has ended, whatever this process is doing."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    watched: list[int] = [parent.sentinel]
    look_s: float | None = PARENT_LOOK_S
    with contextlib.suppress(OSError, AttributeError):  # a forked sibling may hold the pipe of the sentinel open
        watched.append(os.pidfd_open(parent.pid))
        look_s = None
    if not parent.is_alive():
        os._exit(_ORPHAN)
    wait = functools.partial(_wait_for_end, parent.pid, watched, look_s)
    threading.Thread(target=wait, name="datapipes-parent", daemon=True).start()


def _wait_for_end(pid: int, watched: list[int], look_s: float | None) -> None:
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    while not poll.poll(None if look_s is None else 1000 * look_s) and runs(pid):
        pass
    os._exit(_ORPHAN)
