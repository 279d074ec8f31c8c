"""What do producers take of a server's memory, against what they are counted at? And how long do small minibatches wait
beside a client that reads large ones slowly?

Memory: a server, `datapipes serve GRAPH --chains`, makes producers of one kind of description, COUNT of them, each of
another seed: ids (8 bytes a seed), ids and labels, a mask of which half is True, and float16 weights of all nodes; in
threads of the server, and one of ids in a worker process. The ratio is of what its processes hold more
(anonymous memory and memfds, after a first producer of the kind, with a minibatch of each) to the sum of "held_bytes".
Large blocks go back to the system when they are freed (MALLOC_MMAP_THRESHOLD_), or glibc would keep those of requests:
up to 64 MB for each of the server's threads, whatever producers there are.
Waiting: 8 connections of one client ask for minibatches of 144 MB and take a batch of 4 MiB in 0.7 s; another client of
this host asks for 10 seeds and their neighbors ([3, 2]), twice a second, for WAIT_S; the time from asking to having it.
Run: python benchmarks/server_limits.py
Result (2-core AMD EPYC VM, commit 75b2c82): taken to counted: ids 1.00 (32 MB a producer), ids and labels 1.01 (48),
mask 1.03 (16, in a request of 4), weights 1.04 (44, in a request of 8), ids in a worker process 0.98 (64). One
minibatch alone takes 3.6 ms; beside the slow client 5.3 ms, and 11 ms at most. Before small answers had bytes kept for
them, and before answers counted as what they have (commit e9b7d01), the longest wait was 46 s, until the slow client's
time was over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.flight as flight
import torch
from common import parser, report
from distributed import line_of, process

import datapipes as dp
from datapipes.distributed import PartitionClient, connect, describe_chain
from datapipes.distributed.partition_facts import greeting_from_message, hello_to_message
from datapipes.distributed.requests.chains import CreateRequest, MinibatchRequest, request_to_message
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.arrow_reading import from_batches
from datapipes.distributed.wire.envelope import Meant

NUM_NODES, WIDE = 4_000_000, 2**17  # of the graph for memory; float32 in a row of large minibatches
COUNT = 4  # producers of a kind; a client's share of tensors is 256 MiB
SLOW_CONNECTIONS, SLOW_S, LARGE = 8, 0.7, 288  # 288 rows of half a MB


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--wait-s", type=float, default=60.0, help="seconds of small minibatches")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    report({**memory(), **(waiting(args) if args.wait_s else {})}, args.json)


@contextlib.contextmanager
def served(graph: dp.CSCGraph, *options: str) -> Iterator[tuple[int, str]]:
    """A server of a graph: its process and its address."""
    with tempfile.TemporaryDirectory() as place:
        graph.save(folder := Path(place) / "graph")
        command = [sys.executable, "-m", "datapipes.cli", "serve", str(folder), "--chains", *options]
        with process(command) as server:
            yield server.pid, line_of(server).split()[1]


# --- memory


def memory() -> dict[str, float | str]:
    graph = dp.CSCGraph(torch.arange(NUM_NODES + 1), torch.arange(NUM_NODES).int())
    figures: dict[str, float | str] = {}
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(2**17)  # of the server
    for kind, num_workers in {"ids": 0, "ids and labels": 0, "mask": 0, "weights": 0, "ids in a worker": 1}.items():
        with served(graph, "--max-workers", "1") as (pid, address), connect({0: address}) as client:
            make(client, described(kind, graph, 0), num_workers, 32)  # each thread has what its kernels need
            taken, counted = settled(pid), held_bytes(client)
            count = 1 if num_workers else COUNT
            for seed in range(1, 1 + count):
                make(client, described(kind, graph, seed), num_workers)
            taken, counted = settled(pid) - taken, held_bytes(client) - counted
            figures[f"{kind}: counted (MB a producer)"] = counted / count / 1e6
            figures[f"{kind}: taken, ratio to counted"] = taken / counted
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    return figures


def make(client: PartitionClient, description: Message, num_workers: int, count: int = 1) -> None:
    """Create a producer and have it make minibatches."""
    producer = client.create_producer(0, description, num_workers=num_workers)
    for answer in [client.minibatch(0, producer, epoch, 0) for epoch in range(count)]:
        answer.result()


def described(kind: str, graph: dp.CSCGraph, seed: int) -> Message:
    ids = torch.arange(NUM_NODES)
    if kind == "weights":
        pairs = dp.ItemSampler(dp.ItemSet(torch.zeros(16, 2, dtype=torch.int64)), 4, seed=seed)
        return describe_chain(pairs.sample_uniform_negative(graph, 1, dst_weight=torch.ones(NUM_NODES).half()))
    values = {"mask": ids[::2], "ids and labels": (ids, ids.int())}.get(kind, ids)
    description = describe_chain(dp.ItemSampler(dp.ItemSet(values), 4, seed=seed).sample_neighbor(graph, [2]))
    if kind != "mask":
        return description
    arguments = description.header["stages"][0]["arguments"]  # describe_chain sends the ids of a mask
    arguments["item_set"] = {"item_set": [{"tensor": "mask"}, ["seeds"]]}
    return Message(description.header, {"mask": ids % 2 == 0})


def held_bytes(client: PartitionClient) -> int:
    return sum(each.get("held_bytes", 0) for each in client.statistics(0)["producers"])


def settled(pid: int) -> int:
    """The memory of a process, and the memfds that it and its children share, once what is freed has gone back."""
    found = []
    for _ in range(4):  # the server gives freed memory back after a second without a request
        time.sleep(1.5)
        children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        shared = sum(of_process(each, "Pss_Shmem:") for each in [pid, *children])
        found.append(of_process(pid, "Pss_Anon:") + shared)
    return min(found)


def of_process(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


# --- waiting


def waiting(args: argparse.Namespace) -> dict[str, float | str]:
    generator = torch.Generator().manual_seed(0)
    feat = {"feat": torch.zeros(LARGE, WIDE)}
    edges = torch.randint(LARGE, (2, 3000), generator=generator)
    graph = dp.CSCGraph.from_edge_index(edges, LARGE, node_attributes=feat)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(feat["feat"])})
    large = dp.ItemSampler(dp.ItemSet(LARGE), LARGE).fetch_feature(store, ["feat"])
    small = dp.ItemSampler(dp.ItemSet(LARGE), 10, shuffle=True).sample_neighbor(graph, [3, 2])
    with served(graph, "--features", "feat") as (_, address):
        with connect({0: address}) as client:
            alone = times(client, small, 20, pause_s=0.0)
        slow = Slow(address, large)
        with connect({0: address}, deadline=60.0) as client:
            beside = times(client, small, int(2 * args.wait_s), pause_s=0.5, most_s=args.wait_s)
        slow.stop()
    return {
        "alone (ms, median)": 1000 * statistics.median(alone),
        "beside a slow client (ms, median)": 1000 * statistics.median(beside),
        "beside a slow client (s, longest)": max(beside),
    }


def times(client: PartitionClient, pipe: dp.Stage, count: int, pause_s: float, most_s: float = 60.0) -> list[float]:
    """The seconds of minibatches that are asked for one after another."""
    producer, found, ends = client.create_producer(0, pipe), [], time.monotonic() + most_s
    for number in range(count):
        began = time.perf_counter()
        client.minibatch(0, producer, number, 0).result()
        found.append(time.perf_counter() - began)
        time.sleep(pause_s)
        if time.monotonic() > ends:
            break
    return found


class Slow:
    """A client whose connections take a batch now and then; made once all of them have begun to read."""

    def __init__(self, address: str, pipe: dp.Stage) -> None:
        self._address, self._pipe, self._stop, self._num_batches = address, pipe, threading.Event(), 0
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(SLOW_CONNECTIONS)]
        for thread in self._threads:
            thread.start()
        while self._num_batches < 4 * SLOW_CONNECTIONS:
            time.sleep(0.1)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _read(self, number: int) -> None:
        token, description = "s" * 32, describe_chain(self._pipe)
        with flight.connect(f"grpc+tcp://{self._address}") as client:
            _, facts = greeting_from_message("benchmark", answer(client, hello_to_message(Meant())))
            meant = Meant(0, facts.partition_id, facts.content_id)
            create = request_to_message(CreateRequest(token, description.header, None, 0), meant, description.tensors)
            producer = answer(client, create).header["producer"]
            for epoch in range(number, 10**6, SLOW_CONNECTIONS):
                with contextlib.suppress(flight.FlightError):  # refused, or its time is over
                    for _ in opened(client, request_to_message(MinibatchRequest(token, producer, epoch, 0), meant)):
                        self._num_batches += 1
                        if self._stop.wait(SLOW_S):
                            return


def opened(client: flight.FlightClient, request: Message) -> flight.FlightStreamReader:
    ticket = flight.Ticket(to_bytes("benchmark", request))
    return client.do_get(ticket, flight.FlightCallOptions(timeout=60.0))


def answer(client: flight.FlightClient, request: Message) -> Message:
    stream = opened(client, request)
    return from_batches("benchmark", stream.schema, (each.data for each in stream), 2**30)


if __name__ == "__main__":
    main()
