"""Ranks of torch.distributed for the tests of loading: processes that do what the test orders."""

import datetime
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import torch.distributed

from datapipes.datasets import TFRecordLoadError
from datapipes.datasets.tfrecord.ranks import Ranks

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

    def tell(self, rank: int, word: str) -> None:
        self.pipes[rank].send(word)

    def answer(self, rank: int) -> Any:
        """Wait for what a rank returned, or for the error that it raised."""
        assert self.pipes[rank].poll(BOUND_S)
        return self.pipes[rank].recv()

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
    while True:
        try:
            what, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = what(pipe, *arguments)
        except Exception as error:
            answer = error
        pipe.send(answer)


def work(pipe: Connection, timeout_s: float) -> str:
    """Do as a rank that loads: look whether others have failed, until the test says "done" or "fail"."""
    with Ranks(timeout_s) as ranks:
        pipe.send("began")
        while not pipe.poll(0.05):
            ranks.go_on()
        if pipe.recv() == "fail":
            raise TFRecordLoadError("node could not be loaded", {"node": "its record 7 is broken"})
        ranks.agree()
    return "loaded"
