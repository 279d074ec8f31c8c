"""How worker processes are started: with which context, by which server, and what cannot reach them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from typing import Any

import torch

Context = multiprocessing.context.BaseContext


def context_of(method: str | Context | None) -> Context:
    """Return the context in which workers are started: a start method, a context, or None for the default."""
    if isinstance(method, Context):
        return method
    return multiprocessing.get_context(method or "forkserver")


def prepare_server(context: Context) -> None:
    """Start what multiprocessing needs for new processes, and let the server that they are forked from, if it is still
    to start, import what all workers need.
    """
    if context.get_start_method() == "fork":
        return
    resource_tracker.ensure_running()  # now: it would lift the hold on Ctrl-C
    if context.get_start_method() == "forkserver":
        wanted = list(getattr(forkserver._forkserver, "_preload_modules", ["__main__"]))
        own = ("torch", "datapipes", "datapipes.processes.preload")
        context.set_forkserver_preload([module for module in wanted if module not in own] + list(own))
        with no_interrupt():
            forkserver.ensure_running()


@contextmanager
def no_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait: raised while a process forks, it would be lost, and leave a lock of logging taken; and it would
    end a process that still imports.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def refuse_unsafe_fork(context: Context) -> None:
    """Refuse to fork a process that has begun to use CUDA: its children could do nothing with it but crash."""
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
        f"{method!r}. Pass one of them."
    )
