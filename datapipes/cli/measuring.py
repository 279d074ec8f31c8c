"""The measurements of `datapipes bench`: kernels beside limits of the machine, and the chain with other options.

The sides of a comparison are measured one after another, in rounds, and the median is taken. So other load on the
machine affects all sides alike. A side that needs more memory than is free is left out, and a text on this side is
added to the list `left`.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from datapipes import _core
from datapipes.base.clock import disk_bytes_of_this_thread
from datapipes.base.progress import Progress
from datapipes.base.sizes import check_memory
from datapipes.channel import ShmChannel
from datapipes.datasets.ondisk_graph import AnyGraph
from datapipes.features import FeatureFetcher, FeatureStore, TensorFeature
from datapipes.graph.saved import open_graph
from datapipes.loader import DataLoader
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.message import by_type
from datapipes.processes.child import ChildProcess, begin, begin_as_child, end_all
from datapipes.processes.main_module import refuse_repetition
from datapipes.processes.start import context_of, prepare_server
from datapipes.sampling import NeighborSampler
from datapipes.seeds import HeteroItemSet, ItemSampler, ItemSet

ROUNDS = 5
BUFFER_BYTES = 2**30  # far more than most caches hold
READS = 2**19  # random lines per call
MINIBATCHES = 8  # minibatches whose rows the gathers read again and again
MESSAGES = 8  # messages that are sent before the receiver answers
ANSWER_S = 60.0
PAGE = 4096

BASE = "num_workers=0"
# Further options to try, of the graph and of its features.
IN_MEMORY, INT32 = "mmap=False", "int32 neighbors"
STORED = {"stored_as='float16'": "float16", "stored_as='int8'": "int8"}

Side = Callable[[], float]  # measures once; returns the amount of work per second
Work = Callable[[], float]  # does some work; returns its amount


class Setting(NamedTuple):
    """What `bench` makes its chains of: graph, seeds, node features, batch size and fanouts."""

    graph: AnyGraph
    items: ItemSet | HeteroItemSet
    features: Mapping[tuple[str, Any, str], TensorFeature]
    batch_size: int
    fanouts: list[int]

    def sampled(self) -> NeighborSampler:
        """Return a new chain that ends in the sampler."""
        return NeighborSampler(ItemSampler(self.items, self.batch_size, shuffle=True, seed=0), self.graph, self.fanouts)

    def fetched(self) -> FeatureFetcher:
        """Return a new chain that ends in the FeatureFetcher."""
        store = FeatureStore(self.features)
        names = {kind: store.names("node", kind) for kind in store.types("node")}
        return FeatureFetcher(self.sampled(), store, names.get(None, names))

    def num_edges(self) -> int:
        """Return the number of edges of all types."""
        return sum(map(self.graph.num_edges_of, self.graph.edge_types))


def features_of(graph: AnyGraph) -> dict[tuple[str, Any, str], TensorFeature]:
    """Return the node attributes that can be features, which are floats with two or more dimensions."""
    every = ((kind, *named) for kind in graph.node_types for named in graph.node_attributes_of(kind).items())
    return {("node", kind, name): TensorFeature(x) for kind, name, x in every if x.is_floating_point() and x.ndim > 1}


def variants(setting: Setting, path: Path | None, left: list[str]) -> dict[str, Setting]:
    """Return the settings to compare, {name: setting}: first the given `setting`, then some with other options.

    A name states the options. A setting that cannot be made is left out, and noted in `left`.

    Args:
        path: the folder of the graph if its arrays are mapped; None if they are in memory. If mapped arrays fit into
            memory, all settings but the given one have them in memory.
    """
    graph, settings = setting.graph, {BASE: setting}
    makers: dict[str, Callable[[Setting], Setting]] = {} if path is None else {IN_MEMORY: partial(_read, path=path)}
    if graph.index_dtype == torch.int64 and max(map(graph.num_nodes_of, graph.node_types)) < 2**31:
        makers[INT32] = _with_int32
    if any(feature.dtype == torch.float32 for feature in setting.features.values()):
        makers |= {how: partial(_stored_as, dtype=dtype) for how, dtype in STORED.items()}
    for option, make in makers.items():
        before = BASE if f"{BASE}, {IN_MEMORY}" not in settings else f"{BASE}, {IN_MEMORY}"
        try:
            settings[f"{before}, {option}"] = make(settings[before])
        except (MemoryError, ValueError) as error:  # the values of a feature may be too large
            left.append(f"{option}: {error}")
    return settings


def _read(setting: Setting, path: Path) -> Setting:
    graph = open_graph(path, mmap=False)
    return setting._replace(graph=graph, features=features_of(graph) or setting.features)


def _with_int32(setting: Setting) -> Setting:
    check_memory("bench", "a copy of the neighbors", 4 * setting.num_edges(), "Use a machine with more.")
    return setting._replace(graph=setting.graph.with_index_dtype(torch.int32))


def _stored_as(setting: Setting, dtype: str) -> Setting:
    floats = {key: feature for key, feature in setting.features.items() if feature.dtype == torch.float32}
    stored = {key: TensorFeature(feature.tensor, stored_as=dtype) for key, feature in floats.items()}
    return setting._replace(features={**setting.features, **stored})


class Made(NamedTuple):
    """The first minibatches of a setting.

    Attributes:
        minibatches: the minibatches, without features.
        counts: {what is counted: its mean over the minibatches}.
        cost: the minibatches were made twice, on one thread. "first_seconds" and "first_disk_bytes" are the time that
            the first run took and the bytes it read from disks; "again_seconds" and "again_disk_bytes" those of the
            second.
    """

    minibatches: list[MiniBatch]
    counts: dict[str, float]
    cost: dict[str, float]

    @classmethod
    def of(cls, setting: Setting) -> Made:
        """Make the first minibatches of `setting` twice, with features, and measure both times.

        The Made keeps the minibatches without features.
        """
        cost = {}
        for when in ("first", "again"):
            with threads(1), setting.fetched() as fetcher:
                before, began = disk_bytes_of_this_thread(), time.perf_counter()
                kept = [minibatch.replace(node_features=None) for minibatch in islice(fetcher, MINIBATCHES)]
                cost[f"{when}_seconds"] = time.perf_counter() - began
                cost[f"{when}_disk_bytes"] = disk_bytes_of_this_thread() - before
        blocks = [*chain.from_iterable(map(_blocks, kept))]
        totals = {
            "edges": sum(block.num_edges for block in blocks),
            "destinations": sum(block.num_dst for block in blocks),
            "input_nodes": sum(len(ids) for minibatch in kept for ids in by_type(minibatch.input_nodes).values()),
            "feature_bytes": sum(map(fetcher.bytes_for, kept)),
            "message_bytes": sum(tensor.nbytes for minibatch in kept for tensor in minibatch.to_message().values()),
        }
        return cls(kept, {name: total / len(kept) for name, total in totals.items()}, cost)


def _blocks(minibatch: MiniBatch) -> list[Any]:
    return [block for hop in minibatch.blocks or () for block in by_type(hop).values()]


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch and the kernels use `count` threads until the with statement ends."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rate(work: Work, seconds: float) -> float:
    """Call `work` again and again for `seconds`; return the amount of work per second. A first call is not measured."""
    work()
    done, began = 0.0, time.perf_counter()
    while True:
        done += work()
        if (spent := time.perf_counter() - began) >= seconds:
            return done / spent


def alternate(sides: Mapping[str, Side], kind: str, progress: Progress, left: list[str]) -> dict[str, list[float]]:
    """Measure all `sides`, {name: function that returns a rate}, in ROUNDS rounds.

    Return {name: its rate in each round}. A side that needs too much memory is left out, and noted in `left`. If it is
    the first side, MemoryError is raised, since the others are compared with the first.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number, name in enumerate([*sides] * ROUNDS):
        progress(f"measuring {kind}", number, ROUNDS * len(sides))
        try:
            if name in taken:
                taken[name].append(sides[name]())
        except MemoryError as error:
            if number % len(sides) == 0:
                raise
            left.append(f"{name}: {error}")
            del taken[name]
    return taken


# --- kernels


def kernels(
    settings: Mapping[str, Setting], made: Made, seconds: float, progress: Progress, left: list[str]
) -> dict[str, float]:
    """Measure the kernels, and their limits on this machine; return {name: rate}.

    A rate is the number of bytes, lines, edges or hops in a second. Names end in " 1" for one thread, and in " all" for
    torch's number of threads, if it is more than one.
    """
    plain = settings[BASE]
    size = max(min(BUFFER_BYTES, _core.memory_left()[0] // 4), 2**20) // 128 * 128
    memory = torch.from_numpy(np.ones(size, dtype=np.uint8))

    def copy(count: float) -> Work:
        count = min(max(int(count), 1), size // 2)
        source, target = memory[:count], memory[size // 2 : size // 2 + count]
        return lambda: target.copy_(source).nbytes

    def lines(count: int) -> Work:
        drawn = np.random.default_rng(0).integers(0, max(min(count, size) // 64, 1), READS, dtype=np.uint32)
        return lambda: READS + 0 * _core.read_lines(memory.numpy(), drawn, num_threads=torch.get_num_threads())

    def side(work: Work, count: int = 1) -> float:
        with threads(count):
            return rate(work, seconds / ROUNDS)

    rows = [(minibatch, plain.fetched().bytes_for(minibatch)) for minibatch in made.minibatches]
    of_graph = lines(plain.num_edges() * plain.graph.index_dtype.itemsize)
    works = {"memcpy": copy(size), "lines": lines(size), "lines of the graph": of_graph, "sampling": sampling(plain)}
    works |= {"memcpy of rows": copy(made.counts["feature_bytes"]), "index_select": _index_select(plain, rows)}
    works |= {"gather": gathering(plain, rows)}
    for how, dtype in STORED.items():
        works |= {f"gather {dtype}": gathering(other, rows) for name, other in settings.items() if name.endswith(how)}
    sides: dict[str, Side] = {f"{name} 1": partial(side, work) for name, work in works.items()}
    if (count := torch.get_num_threads()) > 1:
        sides |= {f"{name} all": partial(side, work, count) for name, work in works.items()}
    message = made.minibatches[0].to_message()
    message_bytes = sum(tensor.nbytes for tensor in message.values())
    with ShmChannel(2 * MESSAGES, 2**20 + 4 * message_bytes) as channel, _receiver(channel) as exchange:
        sides["memcpy of a message 1"] = partial(side, copy(message_bytes))
        sides["channel 1"] = partial(side, lambda: exchange(message, MESSAGES) * message_bytes)
        sides["hops 1"] = partial(side, lambda: exchange(message, 0) + 1)
        taken = alternate(sides, "kernels", progress, left)
    return {name: statistics.median(rates) for name, rates in taken.items()}


def sampling(setting: Setting) -> Work:
    """Return a function that samples the next minibatch, and returns its edges."""
    minibatches = chain.from_iterable(repeat(setting.sampled()))  # each repetition is the next epoch
    return lambda: sum(block.num_edges for block in _blocks(next(minibatches)))


def gathering(setting: Setting, rows: list[tuple[MiniBatch, int]]) -> Work:
    """Return a function that fetches the features of the next of the minibatches in `rows`, over and over again.

    It returns the bytes that were fetched: the number beside the minibatch in `rows`, which does not depend on
    `stored_as`.
    """
    fetcher, again = setting.fetched(), cycle(rows)

    def gather() -> float:
        minibatch, num_bytes = next(again)
        fetcher.transform(minibatch)
        return num_bytes

    return gather


def _index_select(setting: Setting, rows: list[tuple[MiniBatch, int]]) -> Work:
    """Return a function that gathers the same rows as `_gather`, but by torch.index_select into existing memory."""
    nodes = [by_type(minibatch.input_nodes) for minibatch, _ in rows]
    tables: list[Any] = [(kind, feature.tensor) for (_, kind, _), feature in setting.features.items()]
    outs = [table.new_zeros(max(len(ids[kind]) for ids in nodes), *table.shape[1:]) for kind, table in tables]
    again = cycle(zip(nodes, rows, strict=True))

    def select() -> float:
        ids, (_, num_bytes) = next(again)
        for (kind, table), out in zip(tables, outs, strict=True):
            torch.index_select(table, 0, ids[kind], out=out[: len(ids[kind])])
        return num_bytes

    return select


@contextlib.contextmanager
def _receiver(channel: ShmChannel) -> Iterator[Callable[[dict[str, torch.Tensor], int], int]]:
    """Start a receiving process, and give a function (message, count).

    The function sends the message `count` times, and waits until all are read. The process ends with the with
    statement.
    """
    context = context_of(None)
    refuse_repetition(is_building=False, where="bench", what="the command", remedy="run it from a shell.")
    prepare_server(context)
    child = begin(context, "datapipes-bench", _receive, lambda there: (there, channel), ChildProcess)

    def exchange(message: dict[str, torch.Tensor], count: int) -> int:
        child.pipe.send(count)
        for _ in range(count):
            channel.send(message, ANSWER_S)
        if not child.pipe.poll(ANSWER_S):
            raise TimeoutError(
                f"the receiving process has not answered within {ANSWER_S:.0f} s. Run the command again."
            )
        with contextlib.suppress(EOFError):
            return int(child.pipe.recv())
        raise RuntimeError("the receiving process has ended; its messages above say why. Run the command again.")

    try:
        exchange({}, 0)  # from here on the channel reports the death of the process
        yield exchange
    finally:
        child.pipe.close()
        end_all([child])


def _receive(start: Any) -> None:
    """Run the receiving process until the pipe is closed.

    It reads a count from the pipe, receives so many messages, reads each page of them, and answers with the count.
    """
    pipe, channel = start
    begin_as_child()
    with contextlib.suppress(EOFError):
        while True:
            for _ in range(count := pipe.recv()):
                for tensor in channel.recv(ANSWER_S).values():
                    tensor.reshape(-1).view(torch.uint8)[::PAGE].sum()
            pipe.send(count)


# --- the chain


def deliver(setting: Setting, seconds: float, bottlenecks: dict[str, Any], name: str, **options: Any) -> float:
    """Start a new loader, and return how many minibatches a second it delivers once it runs.

    `bottlenecks[name]` is set to what bounds the loader, None if nothing was found.
    """
    with DataLoader(setting.fetched(), **options) as loader:
        minibatches = chain.from_iterable(repeat(loader))
        for _ in range(2 + 2 * loader.options.num_workers):
            next(minibatches)
        delivered = rate(lambda: 1.0 if next(minibatches) else 0.0, seconds)
        bottlenecks[name] = loader.stats().found
        return delivered
