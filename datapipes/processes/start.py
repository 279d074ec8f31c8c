"""How worker processes are started: in which context, by which server, and when a fork is refused."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

import torch

from datapipes.base.checks import shown

Context = multiprocessing.context.BaseContext


def context_of(method: str | Context | None) -> Context:
    """Return the context in which workers are started: a given one, or that of a start method (None: forkserver)."""
    if isinstance(method, Context):
        return method
    return multiprocessing.get_context(method or "forkserver")


def prepare_server(context: Context) -> None:
    """Start the helper processes of multiprocessing. A fork server that starts here imports what all workers need."""
    if context.get_start_method() == "fork":
        return
    resource_tracker.ensure_running()  # now: to start it later would unblock SIGINT
    if context.get_start_method() == "forkserver":
        wanted = list(getattr(forkserver._forkserver, "_preload_modules", ["__main__"]))
        own = ("torch", "datapipes", "datapipes.processes.preload")
        context.set_forkserver_preload([module for module in wanted if module not in own] + list(own))
        with no_interrupt():
            forkserver.ensure_running()


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Block SIGINT for a while.

    A KeyboardInterrupt that is raised while a process forks is lost and leaves a lock of logging taken. Ctrl-C would
    also end a process that still imports.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def refuse_unsafe_fork(context: Context) -> None:
    """Raise RuntimeError if a process that uses CUDA would be forked: its children would crash when they use CUDA."""
    if context.get_start_method() == "fork" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RuntimeError(
            "data_loader: multiprocessing_context is 'fork', but this process has initialised CUDA, which does not "
            "survive a fork. Leave multiprocessing_context out (forkserver), or iterate before CUDA is used."
        )


def check_context(method: Any) -> str | Context | None:
    """Return a start method of this system, a context, or None."""
    allowed = multiprocessing.get_all_start_methods()
    if method is None or isinstance(method, Context) or (isinstance(method, str) and method in allowed):
        return method
    raise ValueError(
        f"data_loader: multiprocessing_context must be None, one of {allowed} or a context of multiprocessing, got "
        f"{shown(method)}. Pass one of them."
    )
