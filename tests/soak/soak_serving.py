"""Two servers that make minibatches under trainers that come and go: no growth, every minibatch the right one.

Each round starts three trainers, and kills them after a few seconds, in whatever they are doing: creating and
destroying producers, reading whole epochs, leaving one in the middle, letting answers wait, from one server or both,
with worker processes of the servers or without. Each minibatch must have the digest that this process has computed. In
"fuzz" a trainer sends malformed descriptions beside them; each answer must be one, or a typed error. Between rounds the
servers' memory, threads and descriptors are read: the last third of a run must not be above the first.
Run: PYTHONPATH=tests/support python tests/soak/soak_serving.py --minutes 10   (or make soak)
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from partition_servers import ServerProcess
from plain_clients import PlainClient, plain_graph
from server_state import FIRST, GROWTH, settled
from ticket_fuzz import TOLD, TicketFuzz

import datapipes as dp
from datapipes.base.log import logger
from datapipes.distributed import RemoteReceivingChannel, connect

KINDS = ["join", "fuzz"]
ROUND_S = 4.0
SEEDS, EPOCHS = 3, 2  # different chains, and their epochs
SETTLED_S = 3.0  # until the connections of killed trainers are gone; producers that are idle stay for ten minutes
IDLE = {"join": 32, "fuzz": 64}  # threads or descriptors of those


class Given(NamedTuple):
    """What a trainer knows.

    Attributes:
        digests: {seed of a chain: for each epoch the digests of its minibatches}.
    """

    namebook: dict[int, str]
    digests: dict[int, list[list[str]]]


def chain(graph: dp.CSCGraph, seed: int) -> dp.Stage:
    store = dp.FeatureStore({("node", None, "y"): dp.TensorFeature(graph.node_attributes["y"])})
    pipe = dp.ItemSampler(dp.ItemSet(60), 5, shuffle=True, seed=seed).sample_neighbor(graph, [3, 2])
    return pipe.fetch_feature(store, ["y"])


def trains(given: Given, rng_seed: int, told: Any) -> None:
    torch.set_num_threads(1)
    logger.setLevel(logging.ERROR)  # a producer has the workers that it was first asked for
    rng, graph = random.Random(rng_seed), plain_graph()
    while True:
        with connect(given.namebook) as client:
            seed = rng.randrange(SEEDS)
            ranks = rng.choice(([0], [1], [0, 1]))
            workers = rng.choice((0, 0, 1))
            producers = [client.create_producer(rank, chain(graph, seed), num_workers=workers) for rank in ranks]
            channel = RemoteReceivingChannel(ranks, producers, client=client, prefetch_size=rng.choice((1, 4, 16)))
            for _ in range(rng.randrange(4)):
                epoch, most = rng.randrange(EPOCHS), rng.choice((1, 5, 100))
                channel.reset(epoch)
                for place, message in enumerate(channel):
                    found = dp.MiniBatch.from_message(message)
                    assert found.digest() == given.digests[seed][epoch][found.index], (seed, epoch, found.index)
                    told.value += 1
                    if place == most:
                        break
            if rng.random() < 0.5:
                for rank, producer in zip(ranks, producers, strict=True):
                    client.destroy_producer(rank, producer)


def fuzzes(given: Given, rng_seed: int, told: Any) -> None:
    torch.set_num_threads(1)
    with PlainClient(given.namebook[rng_seed % 2]) as client:
        client.hello()
        fuzz = TicketFuzz(torch.arange(10), client.meant, rng_seed, chain(plain_graph(), 0))
        while True:
            with contextlib.suppress(*TOLD):
                client.ask_bytes(fuzz.next())
            told.value += 1


def one_round(targets: list[Any], servers: list[ServerProcess], given: Given, rng_seed: int) -> int:
    """Let trainers run for a while, kill them, and return how many minibatches they got."""
    context = multiprocessing.get_context("fork")  # this process has no connection of its own
    told = [context.Value("q", 0, lock=False) for _ in targets]
    trainers = [
        context.Process(target=target, args=(given, rng_seed * len(targets) + number, told[number]), daemon=True)
        for number, target in enumerate(targets)
    ]
    for each in trainers:
        each.start()
    ended = multiprocessing.connection.wait([each.sentinel for each in trainers], ROUND_S)
    for each in trainers:
        if each.is_alive():
            os.kill(each.pid, signal.SIGKILL)
        each.join()
    assert not ended, f"seed {rng_seed}: a trainer has met an error; see above"
    for server in servers:
        assert server.process.poll() is None, f"seed {rng_seed}: a server has ended; its log:\n{server.log}"
    return sum(each.value for each in told)


def run(name: str, minutes: float, rng_seed: int) -> Counter[str]:
    """Make rounds for so many minutes. AssertionError if anything goes wrong."""
    total, states = Counter[str](), [[], []]
    graph = plain_graph()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        graph.save(root := Path(place) / "graph")
        options = ["--chains", "--features", "y", "--max-workers", "1"]
        servers = [stack.enter_context(ServerProcess(root, None, *options)) for _ in range(2)]
        digests = {}
        for seed in range(SEEDS):
            pipe = chain(graph, seed)
            digests[seed] = [[each.digest() for each in pipe] for _ in range(EPOCHS)]
        given = Given({rank: server.address for rank, server in enumerate(servers)}, digests)
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until or len(states[0]) < 3 * FIRST:
            targets = [trains] * 3 if name == "join" else [trains, trains, fuzzes]
            total["minibatches"] += one_round(targets, servers, given, rng_seed + len(states[0]))
            total["rounds"] += 1
            for server, found in zip(servers, states, strict=True):
                files = 0 if not found else min(each.files for each in found) + 4
                found.append(settled(server.pid, files, SETTLED_S))
        third = len(states[0]) // 3
        for number, found in enumerate(states):
            for field in found[0]._fields:
                values = [getattr(state, field) for state in found]
                extreme = min if field == "num_bytes" else max  # as in soak_server.py
                first, last = extreme(values[FIRST - 1 : FIRST - 1 + third]), extreme(values[-third:])
                print(f"{name}: server {number}: {field} {first} first, {last} last")
                slack = GROWTH if field == "num_bytes" else IDLE[name]
                assert last <= first + slack, f"seed {rng_seed}: {field} has grown: {values}"
        for server in servers:
            assert "Traceback" not in server.log, server.log
            assert " has died" not in server.log, server.log
            assert server.stop() == 0, server.log
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS[:1], help="default: join")
    parser.add_argument(
        "--seed", type=int, default=random.SystemRandom().randrange(2**32), help="for the same trainers"
    )
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    for name in given.kinds:
        print(f"{name}: {dict(run(name, given.minutes, given.seed))}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
