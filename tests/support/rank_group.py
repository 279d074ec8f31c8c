"""Ranks of torch.distributed: children of the fork server that do what the test orders."""

import contextlib
import datetime
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch

from datapipes.datasets import TFRecordLoadError
from datapipes.processes.ranks import Ranks

BOUND_S = 60
_CONTEXT = multiprocessing.get_context("forkserver")


class RankGroup:
    """Processes with a gloo group; rank 0 holds the store, as without torchrun, unless `own_store` is False: then this
    process does, as torchrun's agent would.
    """

    def __init__(self, count: int, *, own_store: bool = True) -> None:
        self._store = (
            None if own_store else torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        )
        self.processes: list[Any] = []
        self.pipes: list[Connection] = []
        port = 0 if self._store is None else self._store.port
        for rank in range(count):
            here, there = _CONTEXT.Pipe(duplex=True)
            # Not daemonic: a rank starts processes of its own.
            process = _CONTEXT.Process(target=_rank, args=(rank, count, port, there))
            process.start()
            there.close()
            self.processes.append(process)
            self.pipes.append(here)
            if port == 0:
                port = self.answer(0)

    def order(self, ranks: Sequence[int], what: Any, *arguments: Any) -> None:
        """Let ranks call `what(*arguments)`."""
        for rank in ranks:
            self.pipes[rank].send((what, arguments))

    def tell(self, rank: int, word: str | None) -> None:
        self.pipes[rank].send(word)

    def answer(self, rank: int) -> Any:
        """Wait for what a rank returned, or for the error that it raised, or for its exit code."""
        assert self.pipes[rank].poll(BOUND_S), f"rank {rank} is still at work after {BOUND_S} s"
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):  # the latter with an order unread
            self.processes[rank].join(BOUND_S)
            return self.processes[rank].exitcode

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join(BOUND_S)

    def __enter__(self) -> "RankGroup":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        for pipe in self.pipes:
            pipe.close()  # a rank that waits for orders ends
        for process in reversed(self.processes):
            process.join(5 if error is None else 0)
            process.kill()
            process.join(BOUND_S)


def _rank(rank: int, count: int, port: int, pipe: Connection) -> None:
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=port == 0, wait_for_workers=False)
    if port == 0:
        pipe.send(store.port)
    bound = datetime.timedelta(seconds=BOUND_S)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=bound)
    with contextlib.suppress(EOFError):
        while (order := pipe.recv()) is not None:
            what, arguments = order
            try:
                answer = what(pipe, *arguments)
            except Exception as error:
                answer = error
            pipe.send(answer)
    torch.distributed.destroy_process_group()


def run_ranks(
    work: Callable[..., Any], arguments: Sequence[tuple], *, first_holds_store: bool = False, stopped: int | None = None
) -> list[Any]:
    """Call work(rank, *arguments[rank]) on each rank; return what it returned or raised, or its exit code.

    Args:
        work: is pickled, and what it returns; it may end its process.
        stopped: a rank that stops itself; it is killed when the others have ended.
    """
    with RankGroup(len(arguments), own_store=first_holds_store) as group:
        for rank, given in enumerate(arguments):
            group.order([rank], _in_one_thread, work, rank, *given)
            group.tell(rank, None)  # it ends when it has answered
        found = {rank: group.answer(rank) for rank in range(len(arguments)) if rank != stopped}
        if stopped is not None:
            group.kill(stopped)
            found[stopped] = group.answer(stopped)
    return [found[rank] for rank in range(len(arguments))]


def _in_one_thread(pipe: Connection, what: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(1)
    return what(*arguments)


def work(pipe: Connection, timeout_s: float) -> str:
    """Do as a rank that loads: look whether others have failed, until the test says "done" or "fail"."""
    with Ranks("work", timeout_s, failed="failed to load", absent="has not begun this load") as ranks:
        pipe.send("began")
        while not pipe.poll(0.05):
            ranks.go_on()
        if pipe.recv() == "fail":
            raise TFRecordLoadError("node could not be loaded", {"node": "its record 7 is broken"})
    return "loaded"
