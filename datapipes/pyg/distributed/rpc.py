"""init_rpc, shutdown_rpc and ConcurrentEventLoop under PyG's names, for a DistNeighborSampler without a loader."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from datapipes.base.checks import check_int, shown
from datapipes.base.log import logger
from datapipes.distributed.tls import TLSConfig
from datapipes.pyg.distributed.meeting import Place, end_all, place_of
from datapipes.pyg.torch_geometric_names import DistContext, DistEdgeHeteroSamplerInput, DistRole

__all__ = ["ConcurrentEventLoop", "DistContext", "DistEdgeHeteroSamplerInput", "DistRole", "init_rpc", "shutdown_rpc"]

_places: dict[tuple[str, int], Place] = {}  # by group and rank
_waiting: list[weakref.ref[Any]] = []  # samplers that have not met the other ranks


def init_rpc(
    current_ctx: Any,
    master_addr: str,
    master_port: int | str,
    num_rpc_threads: int = 16,
    rpc_timeout: float = 240.0,
    rpc_worker_names: Any = None,
    *,
    tls: TLSConfig | None = None,
    insecure: bool = False,
) -> None:
    """Connect this process's samplers that have no loader with those of the other ranks. All ranks call this.

    A sampler that is built after this call meets the other ranks when it is built.

    Args:
        current_ctx: the DistContext of this process; only samplers with the same `group_name` are connected.
        master_addr, master_port, num_rpc_threads, rpc_timeout, tls, insecure: see DistLoader.
        rpc_worker_names: not used, as in PyG.
    Raises:
        The errors of DistLoader.
    """
    place = place_of("init_rpc", master_addr, master_port, num_rpc_threads, rpc_timeout, tls, insecure)
    _places[_member(check_context("init_rpc", current_ctx))] = place
    for sampler in [reference() for reference in _waiting]:
        if sampler is not None and _member(sampler.current_ctx) == _member(current_ctx):
            sampler.meet(place)


def check_context(where: str, context: Any, num_parts: int | None = None) -> DistContext:
    """Check `context`, the argument `current_ctx`, and return it. Its world_size must equal `num_parts`, if given.

    Raises:
        TypeError, ValueError: A value is not allowed; the message says what was found.
    """
    names = ("rank", "world_size", "group_name")
    if not all(hasattr(context, name) for name in names):
        raise TypeError(
            f"{where}: current_ctx must be a DistContext, got {shown(context)}. Make one: DistContext of "
            "datapipes.pyg.distributed or torch_geometric.distributed."
        )
    size = check_int(where, "world_size of current_ctx", context.world_size, 1)
    check_int(where, "rank of current_ctx", context.rank, 0, size - 1)
    if not isinstance(context.group_name, str):
        raise TypeError(
            f"{where}: group_name of current_ctx must be a str, got {shown(context.group_name)}. Pass a name."
        )
    if num_parts is not None and size != num_parts:
        raise ValueError(
            f"{where}: current_ctx has world_size {size}, but the graph is in {num_parts} parts; each rank has one "
            "part. Start as many ranks as there are parts, or partition the graph again."
        )
    return context


def meet_if_called(sampler: Any) -> None:
    """Let a new `sampler` meet the other ranks now, if `init_rpc` was called for its group.

    Otherwise remember the sampler; it meets them when `init_rpc` is called.
    """
    place = _places.get(_member(sampler.current_ctx))
    if place is not None:
        sampler.meet(place)
    else:
        _waiting[:] = [*(reference for reference in _waiting if reference() is not None), weakref.ref(sampler)]


def _member(context: Any) -> tuple[str, int]:
    return context.group_name, context.rank


def shutdown_rpc(id: str | None = None, graceful: bool = True, timeout: float = 240.0) -> None:
    """End the partition servers of this process. The signature is PyG's.

    Args:
        id: not used.
        graceful: wait until the other ranks are done.
        timeout: not used; the wait is bounded by the `rpc_timeout` with which the ranks met.
    """
    _places.clear()
    end_all(wait=graceful)


class ConcurrentEventLoop:
    """An asyncio event loop in a thread of its own. The thread ends when this object is collected.

    Args:
        concurrency: the most coroutines to run at once.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = check_int("ConcurrentEventLoop", "concurrency", concurrency, 1)
        self._free = threading.BoundedSemaphore(self._concurrency)
        self._loop: Any = None
        self._thread: threading.Thread | None = None
        self._stop: weakref.finalize[Any, Any] | None = None

    def start_loop(self) -> None:
        """Start the thread; may be called twice."""
        if self._thread is None:
            self._loop = loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_run, args=(loop,), name="datapipes-calls", daemon=True)
            self._stop = weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)
            self._stop.atexit = False
            self._thread.start()

    def shutdown_loop(self) -> None:
        """Wait for all coroutines, then end the thread."""
        if self._thread is not None and self._stop is not None:
            self.wait_all()
            self._stop()
            self._thread.join()

    def wait_all(self) -> None:
        """Wait until all coroutines have ended."""
        for _ in range(self._concurrency):
            self._free.acquire()
        self._free.release(self._concurrency)

    def add_task(self, coro: Coroutine[Any, Any, Any], callback: Callable[[Any], None] | None = None) -> None:
        """Start the coroutine `coro`, and return without waiting for its end.

        If `concurrency` coroutines run already, first wait until one of them has ended. `callback` gets the result; an
        error is logged.
        """

        def ended(future: Any) -> None:
            try:
                result = future.result()
                if callback is not None:
                    callback(result)
            except Exception as error:
                logger.error("ConcurrentEventLoop: %s: %s", type(error).__name__, error)
            finally:
                self._free.release()

        self._free.acquire()
        asyncio.run_coroutine_threadsafe(coro, self._loop).add_done_callback(ended)

    def run_task(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine `coro`, wait for its end, and return its result."""
        with self._free:
            return asyncio.run_coroutine_threadsafe(coro, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
