"""Ranks of torch.distributed as processes: children of the fork server, which has torch, in one gloo group."""

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

BOUND_S = 60.0  # for all ranks to end
_CONTEXT = multiprocessing.get_context("forkserver")


def run_ranks(
    work: Callable[..., Any], arguments: Sequence[tuple], *, first_holds_store: bool = False, stopped: int | None = None
) -> list[Any]:
    """Call work(rank, *arguments[rank]) in a process for each rank; return what it returned or raised, or its exit
    code.

    Args:
        work: is pickled, and what it returns; it may end its process.
        stopped: a rank that stops itself; it is killed when the others have ended.
        first_holds_store: the store of torch.distributed ends with rank 0; else with this process, as under torchrun.
    """
    size = len(arguments)
    with contextlib.ExitStack() as stack:
        store = None if first_holds_store else _tcp_store(0, is_master=True)
        ports = None if store is None else store.port
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        children, pipes = [], []
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            stack.callback(ours.close)
            given = (rank, size, ports or os.path.join(folder, "port"), theirs, work, arguments[rank])
            child = _CONTEXT.Process(target=_run, args=given, daemon=True)
            child.start()
            theirs.close()
            stack.callback(_end, child)
            children.append(child)
            pipes.append(ours)
        others = [rank for rank in range(size) if rank != stopped]
        found = {rank: _received(pipes[rank], children[rank]) for rank in others}
        if stopped is not None:
            children[stopped].kill()
            found[stopped] = _received(pipes[stopped], children[stopped])
        return [found[rank] for rank in range(size)]


def _end(child: Any) -> None:
    child.join(BOUND_S)
    child.kill()  # does nothing where it has ended
    child.join()


def _received(pipe: Any, child: Any) -> Any:
    if not pipe.poll(BOUND_S):
        raise TimeoutError(f"a rank, process {child.pid}, is still at work after {BOUND_S} s")
    try:
        return pipe.recv()
    except EOFError:
        child.join(BOUND_S)
        return child.exitcode


def _tcp_store(port: int, *, is_master: bool) -> Any:
    import torch

    return torch.distributed.TCPStore("127.0.0.1", port, None, is_master, wait_for_workers=False)


def _run(rank: int, size: int, port: int | str, pipe: Any, work: Callable[..., Any], arguments: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    store = _tcp_store(0, is_master=True) if rank == 0 and isinstance(port, str) else None
    if isinstance(port, str):
        shared = torch.distributed.FileStore(port, size)
        if store is not None:
            shared.set("port", str(store.port))
        port = int(shared.get("port"))
    store = store or _tcp_store(port, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        try:
            found = work(rank, *arguments)
        except Exception as error:
            found = error
        pipe.send(found)
    finally:
        torch.distributed.destroy_process_group()
