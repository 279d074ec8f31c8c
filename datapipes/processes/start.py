"""How worker processes are started: by which start method of multiprocessing, and when a fork is refused."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.threads import normal_policy
from datapipes.processes.unforkable import why_not_to_fork

DESCRIPTORS = 16  # file descriptors that starting a process takes at most, for a moment

Context = multiprocessing.context.BaseContext


def hold_standard_descriptors() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed.

    Otherwise the next pipe or shared memory would get the descriptor 0, 1 or 2, and a child would print into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def context_of(method: str | Context | None) -> Context:
    """Return the context of multiprocessing for a start method; None means forkserver.

    A context is returned as it is.
    """
    if isinstance(method, Context):
        return method
    return multiprocessing.get_context(method or "forkserver")


def prepare_server(context: Context) -> None:
    """Start the helper processes of multiprocessing that `context` needs: the resource tracker and the fork server.

    A fork server that starts here imports the modules that all workers need. For the method fork, nothing is done.
    """
    if context.get_start_method() == "fork":
        return
    with normal_policy():
        resource_tracker.ensure_running()  # now, since a later start would unblock SIGINT
    if context.get_start_method() == "forkserver":
        wanted = list(getattr(forkserver._forkserver, "_preload_modules", ["__main__"]))
        annexes = [name for name in ("datapipes.datasets", "datapipes.distributed") if name in sys.modules]
        package = ("torch", "datapipes", *annexes, "datapipes.processes.preload")
        context.set_forkserver_preload([module for module in wanted if module not in package] + list(package))
        with no_interrupt(), normal_policy():
            forkserver.ensure_running()


def require_descriptors(where: str, remedy: str = "use fewer workers, or worker_method='thread'") -> None:
    """Raise OSError unless this process may open the DESCRIPTORS file descriptors that starting a process takes.

    Without them multiprocessing would fail midway, and could leave behind a process that it does not know. `remedy` is
    the last advice in the error.
    """
    opened: list[int] = []
    try:
        while len(opened) < DESCRIPTORS:
            opened.extend(os.pipe())
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise OSError(
            error.errno,
            f"{where}: it needs {DESCRIPTORS} file descriptors, and {len(opened)} are left (this process may open "
            f"{os.sysconf('SC_OPEN_MAX')}). Raise the limit (ulimit -n), {remedy}.",
        ) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Block SIGINT, the signal of Ctrl-C, in this thread within the `with` statement.

    A KeyboardInterrupt that is raised while a process forks is lost, and leaves a lock of logging taken. Ctrl-C would
    also end a new process that is still importing.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def refuse_unsafe_fork(context: Context) -> None:
    """Raise RuntimeError if `context` starts processes by fork, and this process must not be forked.

    unforkable.py says when a process must not be forked.
    """
    reason = why_not_to_fork() if context.get_start_method() == "fork" else None
    if reason is not None:
        raise RuntimeError(
            f"data_loader: multiprocessing_context is 'fork', but this process {reason.has}, which does not survive a "
            f"fork. Leave multiprocessing_context out (forkserver), or {reason.instead}."
        )


def check_context(method: Any) -> str | Context | None:
    """Return `method` if it is the name of a start method of this system, a context of multiprocessing, or None.

    Raises:
        ValueError: It is something else.
    """
    allowed = multiprocessing.get_all_start_methods()
    if method is None or isinstance(method, Context) or (isinstance(method, str) and method in allowed):
        return method
    raise ValueError(
        f"data_loader: multiprocessing_context must be None, one of {allowed} or a context of multiprocessing, got "
        f"{shown(method)}. Pass one of them."
    )
