"""Stages, functions and a channel for the tests of workers. A worker that is not forked imports this module."""

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pipelines import as_it_is, item_set, items, keep_most, sampled, small_graph, small_store
from typed_pipelines import typed_fetched, typed_sampled

import datapipes as dp
from datapipes.chain.asynchronous import off_loop

__all__ = ["as_it_is"]
BAD = 3  # the minibatch at which stages fail
EPOCHS = 3


def worker_chain() -> dp.Stage:
    """A chain with every kind of stage before and after the cut."""
    return sampled().transform(keep_most).fetch_feature(small_store(), ["feat"], ["weight"]).transform(double)


def typed_worker_chain() -> dp.Stage:
    """The same over a graph with types."""
    return typed_fetched(typed_sampled().transform(keep_most)).transform(double)


def link_worker_chain() -> dp.Stage:
    """Links: negatives by weight that are no edges, all edges among the nodes, without the seeds."""
    graph, weights = small_graph(), torch.arange(1.0, 41.0)
    pipe = dp.ItemSampler(dp.ItemSet.of_edges(graph, edge_ids=torch.arange(22) * 9), 4, shuffle=True, seed=5)
    pipe = pipe.sample_uniform_negative(graph, 1.5, strict=True, dst_weight=weights)
    pipe = pipe.sample_neighbor(graph, [2, 2], subgraph_type="induced").exclude_seed_edges()
    return pipe.transform(keep_most).fetch_feature(small_store(), ["feat"]).transform(double)


def double(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.replace(node_features={name: 2 * rows for name, rows in minibatch.node_features.items()})


def note(minibatch: dp.MiniBatch, *values: int) -> dp.MiniBatch:
    """Store `values` in `timestamps`, once for each seed."""
    return minibatch.replace(timestamps=torch.tensor([values] * len(minibatch.seeds)))


def noted(minibatch: dp.MiniBatch) -> int:
    """Return the first value that `note` has stored."""
    return int(minibatch.timestamps[0, 0])


def tell_process(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Store the pid of the process and the number of the thread in `timestamps`."""
    return note(minibatch, os.getpid(), threading.get_ident())


def tell_priority(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Store the niceness of the process in `timestamps`."""
    return note(minibatch, os.getpriority(os.PRIO_PROCESS, 0))


def print_held() -> None:
    """Print the signals that this process blocks."""
    print(signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True)


def tell_handler(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Store in `timestamps` whether SIGTERM has its default handler."""
    return note(minibatch, signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


def tell_private_memory(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Store in `timestamps` how many bytes only this process has mapped."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return note(minibatch, private)


def made_by(minibatches) -> set[int]:
    return {noted(minibatch) for minibatch in minibatches}


def grow(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Make every minibatch but the first large: 600 kB that depend on its index, in two tensors of different dtypes."""
    if minibatch.index == 0:
        return minibatch
    values = torch.arange(75_000) * (minibatch.index + 1)
    num_seeds, num_nodes = len(minibatch.seeds), len(minibatch.input_nodes)
    big = (values % 251).byte().repeat(8)[: 600_000 // num_nodes * num_nodes].reshape(num_nodes, -1)
    return minibatch.replace(
        timestamps=values.reshape(num_seeds, -1), node_features={"big": big, "none": torch.empty(num_nodes, 0)}
    )


class OwnError(RuntimeError):
    """An error type that is not built in."""


class PickyError(Exception):
    """An error whose constructor takes more than one text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class HostileError(Exception):
    """An error that cannot be made of its text: that asks the interpreter to exit."""

    def __init__(self, *texts: str) -> None:
        super().__init__(*texts)
        if len(texts) == 1:
            raise SystemExit("made again")


class Raises(dp.MiniBatchTransformer):
    """Raises an error of class `kind` at minibatch BAD."""

    def __init__(self, source: dp.Stage, kind: type[BaseException], *args: str) -> None:
        super().__init__(source)
        self.kind, self.args = kind, args

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD:
            raise self.kind(*self.args)
        return minibatch


class RaisesAsync(Raises):
    """Does so in an asynchronous stage."""

    concurrency = 2

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        await asyncio.sleep(0)
        return Raises.transform(self, minibatch)


def fail_with(kind: str):
    return {"own": own_error, "built_in": built_in_error, "picky": picky_error, "exit": system_exit}[kind]


def own_error(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    if minibatch.index == BAD:
        raise OwnError("wrong in the worker")
    return minibatch


def built_in_error(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    if minibatch.index == BAD:
        raise KeyError("wrong in the worker")
    return minibatch


def picky_error(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    if minibatch.index == BAD:
        raise PickyError(1, 2)
    return minibatch


def system_exit(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    if minibatch.index == BAD:
        raise SystemExit("wrong in the worker")
    return minibatch


class DieOnce(dp.MiniBatchTransformer):
    """Kills its process at minibatch BAD unless the file `mark` exists already."""

    def __init__(self, source: dp.Stage, mark: str) -> None:
        super().__init__(source)
        self.mark = Path(mark)

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return minibatch


class DieOnceTogether(DieOnce):
    """Does so once three minibatches from BAD on are in flight in its process."""

    concurrency = 3

    def __init__(self, source: dp.Stage, mark: str) -> None:
        super().__init__(source, mark)
        self.here = 0

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index < BAD or self.mark.exists():
            return minibatch
        self.here += 1
        while self.here < self.concurrency:  # ends when the process is killed
            await asyncio.sleep(0.001)
        return self.transform(minibatch.replace(index=BAD))


class DieWithAChild(dp.MiniBatchTransformer):
    """Kills its process at minibatch BAD, once, after it has forked a child, which waits until the file `go` exists and
    holds every pipe of its parent. Writes the child's pid into the file `mark`.
    """

    def __init__(self, source: dp.Stage, mark: str, go: str) -> None:
        super().__init__(source)
        self.mark, self.go = Path(mark), Path(go)

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD and not self.mark.exists():
            pid = os.fork()
            if pid == 0:
                wait_for(self.go)
                os._exit(0)
            self.mark.write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return minibatch


class ForkAndGoOn(dp.MiniBatchTransformer):
    """Forks at minibatch BAD and goes on in both processes; writes the child's pid into a file of the folder."""

    def __init__(self, source: dp.Stage, folder: str) -> None:
        super().__init__(source)
        self.folder = Path(folder)

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD:
            fork_and_go_on(0, str(self.folder))
        return minibatch


class ForkAndGoOnAsync(ForkAndGoOn):
    """Does so in an asynchronous stage, which waits after that."""

    concurrency = 2

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD:
            fork_and_go_on(0, str(self.folder))
        await asyncio.sleep(0)
        return minibatch


def fork_and_go_on(worker: int, folder: str) -> None:
    """Fork, and return in both processes; the parent writes the child's pid and its own into a file of the folder."""
    pid = os.fork()
    if pid != 0:
        (Path(folder) / str(pid)).write_text(str(os.getpid()))


def wait_for(file: Path) -> None:
    """Wait until `file` exists, at most a minute."""
    ends = time.monotonic() + 60
    while not file.exists() and time.monotonic() < ends:
        threading.Event().wait(0.01)


class Wait(dp.MiniBatchTransformer):
    """Waits at one minibatch until a file exists, at most a minute."""

    def __init__(self, source: dp.Stage, index: int, file: str) -> None:
        super().__init__(source)
        self.index = index
        self.file = Path(file)

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == self.index:
            wait_for(self.file)
        return minibatch


class PassOnAsync(dp.MiniBatchTransformer):
    """An asynchronous stage that changes nothing."""

    concurrency = 4

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        await asyncio.sleep(0)
        return minibatch


class NeverAnswers(PassOnAsync):
    """Waits for ever, at every minibatch but the first."""

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index > 0:
            await asyncio.Event().wait()
        return minibatch


class SlowIsAsync(dp.MiniBatchTransformer):
    """An asynchronous stage whose later minibatches are ready first."""

    concurrency = 4

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        for _ in range(20 - minibatch.index):
            await asyncio.sleep(0)
        return note(minibatch, minibatch.index)


class MyItems(dp.ItemSampler):
    """A subclass of ItemSampler."""


class MyFetcher(dp.FeatureFetcher):
    """A subclass of FeatureFetcher."""


class RemoteStore(dp.FeatureStore):
    """A store that is read in the workers."""

    fetch_in_worker = True


class RemoteAsyncStore(RemoteStore):
    """A store that is read in the workers, with several minibatches in flight; later ones are read first."""

    reads_async = True
    concurrency = 4

    async def read_many_async(self, requests: Sequence[Any]) -> list[torch.Tensor]:
        for _ in range(int(requests[0][3][0]) % 7):
            await asyncio.sleep(0)
        return await off_loop(self.read_many, requests)


def asynchronous_chain(num_items: int = 22) -> dp.Stage:
    """A chain with synchronous and asynchronous stages, of which all stand before the cut."""
    chain = PassOnAsync(sampled(items(num_items)).transform(keep_most))
    return chain.fetch_feature(RemoteAsyncStore(dict(small_store())), ["feat"], ["weight"])


class QueueChannel(dp.stages.ChannelBase):
    """A minimal channel: two methods that send NumPy arrays through a queue of multiprocessing."""

    def __init__(self, method: str = "forkserver") -> None:
        self._queue = multiprocessing.get_context(method).Queue()

    def send(self, msg: dict[str, torch.Tensor], **kwargs: Any) -> None:
        self._queue.put({key: value.numpy() for key, value in msg.items()})

    def recv(self, **kwargs: Any) -> dict[str, torch.Tensor]:
        return {key: torch.from_numpy(np.array(value)) for key, value in self._queue.get().items()}


def write_number(worker: int, folder: str) -> None:
    (Path(folder) / f"{worker}-{os.getpid()}").touch()


def fail_at_start(worker: int) -> None:
    raise OwnError(f"worker {worker} does not want to")


class Nested(dp.MiniBatchTransformer):
    """Uses a loader with workers of its own."""

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return next(iter(dp.DataLoader(sampled(), 1, multiprocessing_context="fork", overlap=False)))


def as_subclasses() -> dp.Stage:
    return MyFetcher(sampled(MyItems(item_set(), 4, shuffle=True, seed=5)), small_store(), ["feat"])


def joined() -> dp.Stage:
    """Two ItemSamplers in one chain."""
    first = sampled(dp.ItemSampler(item_set(), 4, shuffle=True, seed=5))
    second = sampled(dp.ItemSampler(item_set(), 4, shuffle=False, seed=5), small_graph())
    return dp.MiniBatchTransformer([first, second], take_both).fetch_feature(small_store(), ["feat"])


def take_both(first: dp.MiniBatch, second: dp.MiniBatch) -> dp.MiniBatch:
    return first.replace(timestamps=second.seeds + second.input_nodes.sum())
