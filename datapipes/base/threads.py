"""Threads that make minibatches: how many threads their kernels use, how they are scheduled, and how they end.

Kernels use as many threads as torch, or a worker's share of them. A woken thread does not take the core of the thread
that wakes it. Threads are joined within a bounded time.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_here = threading.local()
_LAST_STEPS_S = 0.1


class EndingThread(threading.Thread):
    """A daemon thread that a finalizer may join.

    The garbage collector may run a finalizer while a lock of the module `threading` is held. A thread needs this lock
    for its last steps, so an ordinary `join` could wait for ever. Here `join` waits until `target` has returned, and
    then only a moment for the last steps.
    """

    def __init__(self, target: Callable[..., Any], args: Sequence[Any] = (), *, name: str) -> None:
        super().__init__(target=target, args=args, name=name, daemon=True)
        self._returned = threading.Event()

    def run(self) -> None:
        try:
            super().run()
        finally:
            self._returned.set()

    def join(self, timeout: float | None = None) -> None:
        if not self.is_alive() or self is threading.current_thread():
            super().join(timeout)  # which refuses a thread that was not started, and one that would wait for itself
        elif self._returned.wait(timeout):
            super().join(_LAST_STEPS_S)


def num_threads() -> int:
    """Return how many threads a kernel may use if this thread calls it."""
    count = share_here()
    return torch.get_num_threads() if count is None else count


def share_here() -> int | None:
    """Return the thread count that `threads_of_kernels` has set in this thread. None: kernels use as many as torch."""
    count: int | None = getattr(_here, "count", None)
    return count


def share_of(num_workers: int) -> int:
    """Return how many threads each of `num_workers` workers gets: an equal part of torch's threads, at least 1."""
    return max(torch.get_num_threads() // num_workers, 1)


def add_thread(threads: list[threading.Thread], name: str, main: Callable[[], None]) -> bool:
    """Start a daemon thread that calls `main`, and append it to `threads`; its name ends with its index in the list.

    Returns:
        Whether it was started. False: the process may start no more threads; those in the list must do the work.
    Raises:
        RuntimeError: No thread can be started, and the list is empty.
    """
    thread = EndingThread(main, name=f"{name}-{len(threads)}")
    try:
        thread.start()
    except RuntimeError:
        if not threads:
            raise
        return False
    threads.append(thread)
    return True


def preempt_nobody() -> None:
    """Let this thread preempt no other one when it wakes up (SCHED_BATCH). Its share of the processor stays the same.

    Threads that make minibatches ahead call this: the consumer wakes them when it takes a minibatch, and can go on at
    once. A policy that the user has chosen stays. Threads and processes that this thread starts inherit its policy.
    """
    with contextlib.suppress(OSError):  # some sandboxes refuse it; the thread then works as any other
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            _here.preempts_nobody = True


@contextmanager
def normal_policy() -> Iterator[None]:
    """Undo `preempt_nobody` in a with statement: to start a process that others use too, such as the fork server."""
    if not getattr(_here, "preempts_nobody", False):
        yield
        return
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def threads_of_kernels(count: int | None) -> Iterator[None]:
    """Let the kernels that this thread calls use `count` threads, or as many as torch uses if `count` is None.

    Torch's own setting would affect all threads.
    """
    before = share_here()
    _here.count = count
    try:
        yield
    finally:
        _here.count = before
