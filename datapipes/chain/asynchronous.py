"""Which stages are asynchronous, how many of their calls are in flight, and how they call synchronous functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from datapipes.base.checks import check_int
from datapipes.base.threads import share_here, threads_of_kernels
from datapipes.chain.loop_thread import error_of, threads_here
from datapipes.chain.stage_base import StageBase, is_async
from datapipes.chain.stage_graph import StageGraph

P = ParamSpec("P")
T = TypeVar("T")


def hides_own(stage: StageBase, base: type[StageBase], *names: str) -> bool:
    """Return whether `stage` has methods of its own that would never be called.

    This is so if its class overrides one of the methods `names` of `base`, but not `transform_async`: an asynchronous
    stage calls only the `transform_async` that it inherits from `base`. Such a stage is then run as a synchronous one.
    """
    kind = type(stage)
    own_async, *own_methods = (getattr(kind, name) is not getattr(base, name) for name in ("transform_async", *names))
    return any(own_methods) and not own_async


def async_window(graph: StageGraph[Any]) -> int:
    """Return how many minibatches the asynchronous stages of a graph keep in flight. 0: there are no such stages."""
    return max((concurrency_of(stage) for stage in graph if is_async(stage)), default=0)


def concurrency_of(stage: StageBase) -> int:
    """Return how many calls of an asynchronous stage may be in flight at once: its attribute `concurrency`."""
    return check_int(stage.name, "concurrency", getattr(stage, "concurrency", 1), 1)


async def off_loop(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `fn(*args, **kwargs)`, called in a thread beside the event loop, which goes on meanwhile.

    For kernels and other synchronous work of an asynchronous stage, short or long; kernels use as many threads as in
    the awaiting thread. A few calls run at a time, the others wait for their turn. If the awaiting task is cancelled,
    a call that has begun goes on and its result is dropped.

    Raises:
        RuntimeError: `fn` raised something that is no error (SystemExit, StopIteration, CancelledError).
        Any other error of `fn`.
    """
    call = partial(fn, *args, **kwargs)
    threads = threads_here()
    if threads is not None:
        result: T = await threads.submit(call)
        return result
    return await asyncio.to_thread(_with_share, share_here(), call)  # a caller's own event loop


def _with_share(kernel_threads: int | None, call: Callable[[], T]) -> T:
    with threads_of_kernels(kernel_threads):
        try:
            return call()
        except BaseException as raised:
            error = error_of(raised)
            if error is raised:
                raise
            raise error from raised
