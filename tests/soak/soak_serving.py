"""Two servers that make minibatches under trainers that come and go: no growth, every minibatch the right one.

Each round starts three trainers, and kills them after a few seconds, in whatever they are doing: creating and
destroying producers, reading whole epochs, leaving one in the middle, letting answers wait, from one server or both,
with worker processes of the servers or without. Each minibatch must have the digest that this process has computed. In
"fuzz" a trainer sends malformed descriptions beside them; each answer must be one, or a typed error. Between rounds the
servers' memory, threads and descriptors are read: the last third of a run must not be above the first.
Run: PYTHONPATH=tests/support python tests/soak/soak_serving.py --minutes 10   (or make soak)
"""

from __future__ import annotations

import contextlib
import logging
import random
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from partition_servers import ServerProcess
from plain_clients import PlainClient, plain_graph
from soaking import FIRST, arguments, expect_a_clean_end, expect_no_growth, one_round, settled
from ticket_fuzz import TOLD, TicketFuzz

import datapipes as dp
from datapipes.base.log import logger
from datapipes.distributed import RemoteReceivingChannel, connect

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


TARGETS = {"join": [trains] * 3, "fuzz": [trains, trains, fuzzes]}


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
            total["minibatches"] += one_round(TARGETS[name], (given,), servers, rng_seed + len(states[0]))
            total["rounds"] += 1
            for server, found in zip(servers, states, strict=True):
                files = 0 if not found else min(each.files for each in found) + 4
                found.append(settled(server.pid, files, SETTLED_S))
        for number, (server, found) in enumerate(zip(servers, states, strict=True)):
            expect_no_growth(f"{name}: server {number}", found, IDLE[name])
            expect_a_clean_end(server)
    return total


def main() -> None:
    options = arguments(__doc__, minutes=10.0, kinds=[*TARGETS], default_kinds=["join"])
    for name in options.kinds:
        print(f"{name}: {dict(run(name, options.minutes, options.seed))}", flush=True)


if __name__ == "__main__":
    main()
