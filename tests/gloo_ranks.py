"""Ranks of torch.distributed as processes: children of the fork server, which has torch, in one gloo group."""

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

BOUND_S = 60.0  # for all ranks to end
_CONTEXT = multiprocessing.get_context("forkserver")


def run_ranks(size: int, work: Callable[..., Any], arguments: Sequence[tuple]) -> list[Any]:
    """Call work(rank, *arguments[rank]) in a process for each rank; return what it returned or raised, or its exit
    code.

    `work` and what it returns are pickled.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        children, pipes = [], []
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe(duplex=False)
            given = (rank, size, folder, theirs, work, arguments[rank])
            child = _CONTEXT.Process(target=_run, args=given, daemon=True)
            child.start()
            theirs.close()
            stack.callback(child.kill)  # does nothing where it has ended
            children.append(child)
            pipes.append(ours)
        found = [_received(pipe, child) for pipe, child in zip(pipes, children, strict=True)]
        for child in children:
            child.join(BOUND_S)
        return found


def _received(pipe: Any, child: Any) -> Any:
    if not pipe.poll(BOUND_S):
        raise TimeoutError(f"a rank, process {child.pid}, is still at work after {BOUND_S} s")
    try:
        return pipe.recv()
    except EOFError:
        child.join(BOUND_S)
        return child.exitcode


def _run(rank: int, size: int, folder: str, pipe: Any, work: Callable[..., Any], arguments: tuple) -> None:
    import torch

    torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), size)
    with group(store, rank, size):
        try:
            found = work(rank, *arguments)
        except Exception as error:
            found = error
        pipe.send(found)


@contextmanager
def group(store: Any, rank: int, size: int) -> Iterator[None]:
    import torch

    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()
