"""Kill servers of minibatches, trainers and the network between them: every minibatch comes once, with its bits.

Two servers have one graph. One is behind a proxy, which cuts its connections or swallows what goes through; the other
is in a network namespace, whose link is taken down. A trainer in a process of its own reads epoch after epoch from
both, and keeps its state with each minibatch; it is killed too, and another one goes on from the state. "kills": one of
these happens at a time, at random, and ends after a while; a typed error that names a server is allowed, within the
deadline and a little. "stops": one of two trainers is stopped for a minute, with answers of 8 MB on their way; the
other one must go on as fast as before, and the stopped one must go on with the right minibatches.
Without the right to make a namespace both servers are behind proxies, and it says so.
Run: PYTHONPATH=tests/support python tests/soak/soak_serving_kills.py --kills 100   (or make soak)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import multiprocessing
import os
import random
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from partition_servers import ServerProcess
from plain_clients import plain_graph
from proxy import Proxy
from soaking import GROWTH, arguments, settled

import datapipes as dp
from datapipes.base.log import logger
from datapipes.distributed import RemoteReceivingChannel, RemoteSource, connect

DEADLINE_S = 20.0
BOUND_S = DEADLINE_S + 10.0  # from asking for a minibatch to it, or to an error
OUTAGE_S = (0.1, 4.0)  # of the network
STOPPED_S = 60.0
SLOWER = 1.5  # a minibatch may take so many times as long while another trainer is stopped


# --- the network


@contextlib.contextmanager
def namespace() -> Iterator[tuple[str, str, Callable[[str], None]] | None]:
    """A network namespace: its name, an address in it, and what sets its link "up" or "down". None where it may not be
    made.
    """
    name, place = (
        f"dp{os.getpid()}",
        os.getpid() % 2**14 * 4,
    )  # four addresses for each process: one may be left by another
    here, there = (f"10.213.{(place + i) // 256}.{(place + i) % 256}" for i in (1, 2))
    within = ["ip", "netns", "exec", name]

    def run(*command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)

    try:
        run("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no network namespace: {error}", flush=True)
        yield None
        return
    try:
        run("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        run("ip", "addr", "add", f"{here}/30", "dev", f"{name}a")
        run("ip", "link", "set", f"{name}a", "up")
        run(*within, "ip", "addr", "add", f"{there}/30", "dev", f"{name}b")
        run(*within, "ip", "link", "set", f"{name}b", "up")
        run(*within, "ip", "link", "set", "lo", "up")
        yield name, there, lambda state: run("ip", "link", "set", f"{name}a", state)
    finally:
        run("ip", "netns", "del", name)


class Place(NamedTuple):
    """A server, where trainers reach it, and what disturbs the way there for some seconds, by name."""

    server: ServerProcess
    address: str
    ways: dict[str, Callable[[float], None]]


def behind_proxy(stack: contextlib.ExitStack, server: ServerProcess) -> Place:
    proxy = stack.enter_context(Proxy(server.address))

    def hole(seconds: float) -> None:
        proxy.tell("hole on")
        time.sleep(seconds)
        proxy.tell("hole off")

    return Place(server, proxy.address, {"connections cut": lambda _: proxy.tell("cut"), "network silent": hole})


def places(stack: contextlib.ExitStack, root: Path) -> list[Place]:
    """Two servers of the same graph."""
    options = ["--chains", "--features", "x", "--max-workers", "1"]
    found = [behind_proxy(stack, stack.enter_context(ServerProcess(root, None, *options)))]
    made = stack.enter_context(namespace())
    if made is None:
        return [*found, behind_proxy(stack, stack.enter_context(ServerProcess(root, None, *options)))]
    name, address, link = made
    within = ["ip", "netns", "exec", name]
    server = ServerProcess(root, None, *options, "--insecure", address=f"{address}:0", within=within)
    stack.enter_context(server)

    def down(seconds: float) -> None:
        link("down")
        time.sleep(seconds)
        link("up")

    return [*found, Place(server, server.address, {"link down": down})]


# --- trainers


class Told(NamedTuple):
    """What a trainer has written last.

    Attributes:
        state: of its loader, as JSON.
        digests: of the minibatches that it got, in their order.
        errors: typed ones that it met.
        longest_s: the longest time from asking for a minibatch.
    """

    state: Any = None
    digests: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    longest_s: float = 0.0

    def write(self, path: Path) -> None:
        (fresh := path.with_suffix(".new")).write_text(json.dumps(self), encoding="utf-8")
        fresh.replace(path)

    @classmethod
    def read(cls, path: Path) -> Told:
        if not path.exists():
            return cls()
        state, digests, errors, longest_s = json.loads(path.read_text(encoding="utf-8"))
        return cls(state, tuple(digests), tuple(errors), longest_s)


def chain(graph: dp.CSCGraph, batch_size: int) -> dp.Stage:
    store = dp.FeatureStore({("node", None, "x"): dp.TensorFeature(graph.node_attributes["x"])})
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), batch_size, shuffle=True, seed=1)
    return items.sample_neighbor(graph, [4, 4]).fetch_feature(store, ["x"])


def trains(namebook: dict[int, str], batch_size: int, workers: int, path: Path) -> None:
    """Read epoch after epoch, from the state that another trainer has left."""
    torch.set_num_threads(1)
    logger.setLevel(logging.ERROR)
    pipe, told = chain(big_graph(batch_size), batch_size), Told.read(path)
    with connect(namebook, insecure=True, deadline=DEADLINE_S) as client:
        while True:
            producers = []
            began = time.monotonic()
            try:
                for rank in namebook:  # each request has the whole deadline
                    producers.append(client.create_producer(rank, pipe, num_workers=workers))
                    began = time.monotonic()
                channel = RemoteReceivingChannel([*namebook], producers, client=client)
                with dp.DataLoader(RemoteSource(pipe, channel)) as loader:
                    if told.state is not None:
                        loader.load_state_dict(told.state)
                    while True:
                        for minibatch in loader:
                            longest = max(told.longest_s, time.monotonic() - began)
                            digests = (*told.digests, minibatch.digest())
                            told = told._replace(state=loader.state_dict(), digests=digests, longest_s=longest)
                            told.write(path)
                            time.sleep(0.01)  # or an epoch would be over before anything happens
                            began = time.monotonic()
            except dp.ServerUnavailable as error:
                longest = max(told.longest_s, time.monotonic() - began)
                told = told._replace(errors=(*told.errors, str(error)), longest_s=longest)
                told.write(path)


def big_graph(batch_size: int) -> dp.CSCGraph:
    """A graph whose minibatches take a kilobyte for each seed, or for large ones, 8 MB in all."""
    graph = plain_graph(2000, 20_000)
    width = 8 if batch_size < 100 else 1024
    rows = torch.arange(graph.num_nodes * width, dtype=torch.float32).reshape(graph.num_nodes, width)
    return dp.CSCGraph(graph.indptr, graph.indices, node_attributes={"x": rows})


class Trainer:
    """A process that trains, and what it has written."""

    def __init__(self, namebook: dict[int, str], batch_size: int, workers: int, path: Path) -> None:
        self.arguments, self.path = (namebook, batch_size, workers, path), path
        self.process: Any = None
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("fork")  # this process has no connection of its own
        self.process = context.Process(target=trains, args=self.arguments, daemon=True)
        self.process.start()

    def kill(self) -> None:
        assert self.process.is_alive(), "a trainer has ended; see above"
        self.process.kill()
        self.process.join()

    @property
    def told(self) -> Told:
        return Told.read(self.path)

    def waits_for(self, count: int) -> float:
        """Wait until it has so many minibatches more; return the seconds it took."""
        began, wanted = time.monotonic(), len(self.told.digests) + count
        while len(self.told.digests) < wanted:
            assert time.monotonic() < began + 2 * BOUND_S, f"stands still after {self.told.errors}"
            assert self.process.is_alive(), "a trainer has ended; see above"
            time.sleep(0.02)
        return time.monotonic() - began

    def check(self, digests: list[list[str]], stopped_s: float = 0.0) -> None:
        """Compare all that it got with what the chain gives here, epoch after epoch."""
        told = self.told
        expected = [each for epoch in digests for each in epoch][: len(told.digests)]
        assert [*told.digests] == expected, "a minibatch was lost, doubled or another one"
        assert all(re.search(r"server [01]\b", error) for error in told.errors), told.errors
        assert told.longest_s < BOUND_S + stopped_s, f"a minibatch took {told.longest_s:.1f} s"


def epochs(batch_size: int, count: int) -> list[list[str]]:
    """The digests of the first epochs, made here."""
    pipe = chain(big_graph(batch_size), batch_size)
    return [[each.digest() for each in pipe] for _ in range(count)]


# --- the kinds


def kills(options: argparse.Namespace) -> Counter[str]:
    rng, counts = random.Random(options.seed), Counter[str]()
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        batch_size = 5
        big_graph(batch_size).save(root := Path(folder) / "graph")
        found = places(stack, root)
        namebook = {rank: place.address for rank, place in enumerate(found)}
        trainer = Trainer(namebook, batch_size, rng.randrange(2), Path(folder) / "told")
        stack.callback(trainer.process.kill)
        trainer.waits_for(20)
        before = [settled(each.server.pid, 0, 1.0) for each in found]
        while counts.total() < options.kills and time.monotonic() < until:
            place = rng.choice(found)
            ways: dict[str, Callable[[float], None]] = {
                "server killed": lambda _, place=place: place.server.restart() and None,
                "trainer killed": lambda _: (trainer.kill(), trainer.start())[0],
                **place.ways,
            }
            what = rng.choice([*ways])
            ways[what](rng.uniform(*OUTAGE_S))
            counts[what] += 1
            trainer.waits_for(rng.randrange(1, 30))
        trainer.kill()
        told = trainer.told
        trainer.check(epochs(batch_size, 1 + len(told.digests) // len(epochs(batch_size, 1)[0])))
        for place, first in zip(found, before, strict=True):
            last = settled(place.server.pid, first.files)
            assert last.num_bytes <= first.num_bytes + GROWTH, (first, last)
            assert last.files <= first.files + 8, (first, last)
            assert "Traceback" not in place.server.log, place.server.log
        counts["minibatches, all equal"] = len(told.digests)
        counts["typed errors"] = len(told.errors)
        print(f"kills: the longest wait for a minibatch or an error was {told.longest_s:.1f} s", flush=True)
    return counts


def stops(_: argparse.Namespace) -> Counter[str]:
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        batch_size = 1000
        big_graph(batch_size).save(root := Path(folder) / "graph")
        options = ["--chains", "--features", "x", "--max-workers", "1"]
        server = stack.enter_context(ServerProcess(root, None, *options))
        reads, is_stopped = (
            Trainer({0: server.address}, batch_size, number, Path(folder) / f"told {number}") for number in range(2)
        )
        for each in (reads, is_stopped):
            stack.callback(each.process.kill)
            each.waits_for(10)

        def seconds() -> float:
            """Of 10 minibatches of the one that reads."""
            return statistics.median(reads.waits_for(10) for _ in range(5))

        os.kill(is_stopped.process.pid, signal.SIGSTOP)
        alone = []
        until = time.monotonic() + STOPPED_S
        while time.monotonic() < until:
            alone.append(seconds())
        os.kill(is_stopped.process.pid, signal.SIGCONT)
        is_stopped.waits_for(10)
        is_stopped.kill()
        before = seconds()
        slowest, usual = max(alone), statistics.median(alone)
        print(
            f"stops: 10 minibatches took {before:.3f} s of one trainer alone; beside one that was stopped for "
            f"{STOPPED_S:g} s {usual:.3f} s (median), {slowest:.3f} s at most",
            flush=True,
        )
        assert usual < SLOWER * before, "a trainer that is stopped delays another one"
        reads.kill()
        for each, stopped_s in ((reads, 0.0), (is_stopped, STOPPED_S)):
            count = len(each.told.digests)
            each.check(epochs(batch_size, 1 + count // len(epochs(batch_size, 1)[0])), stopped_s)
        assert "Traceback" not in server.log, server.log
        return Counter({"minibatches, all equal": len(reads.told.digests) + len(is_stopped.told.digests)})


def main() -> None:
    kinds = {"kills": kills, "stops": stops}
    options = arguments(__doc__, minutes=20.0, kinds=[*kinds], kills=100)
    for name in options.kinds:
        print(f"{name}: {dict(kinds[name](options))}", flush=True)


if __name__ == "__main__":
    main()
