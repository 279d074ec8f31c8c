"""How many minibatches a second come from a server that runs the chain, against a worker process of the loader?

1,024 seeds, fanouts [15, 10, 5], node features (400 bytes a node on the benchmark graph). A local loader has 1 worker
process. A server, `datapipes serve GRAPH --chains` on this machine, makes the same minibatches in 1 worker process,
or in a thread of its own (--concurrency 1). Ids only; with features on the wire; and ids from the server with features
fetched on the trainer's side. Then 2 servers for 1 trainer, and 2 trainers (threads of one process) at 1 server, ids
only. Each side keeps its workers; one second per measurement, in alternation, median of 7. Stated beside: processor
time a minibatch of the trainer and of the server with its workers, bytes of a minibatch, and the time from asking an
idle server for one minibatch to having it, less the time of making it here.
Run: python benchmarks/serving.py --graph GRAPH
Result (2-core AMD EPYC VM, 1M nodes / 20M edges, --round-s 4 --repeats 3, commit c1dbc69):
ids (5.8 MB) local 104 minibatches/s, server with a worker process 87 (0.83), in a thread 91 (0.87), 2 servers 0.96, 2
trainers together 0.82. Features (90 MB) local 64, server with a worker 17.9 (0.28), in a thread 19.9 (0.31), ids from a
server and features fetched here 0.83. Processor time a minibatch: ids 4.6 ms of the trainer and 13 to 15 of the server,
features 38 to 41 and 54 to 57. Added latency of one minibatch 6.6 ms. With features two processors are the limit: of
126 ms for both sides at first, 42 were TCP's sends and receives, page faults of gRPC's fresh memory among them, 30
sampling and gathering, 9 copies in the trainer. What helped since: batches of 4 MiB instead of 1, 1.15 times as many
minibatches; freed memory that stays with the trainer, a tenth. No gain: larger HTTP/2 frames, read chunks, windows
without probes. In rounds of 1 s, where a server has just given its memory back, features are 0.22.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from common import alternate, load_graph, parser, report, timed
from distributed import line_of, process
from loader import Delivery

import datapipes as dp
from datapipes.distributed import PartitionClient, RemoteReceivingChannel, RemoteSource, connect

FANOUTS, BATCH_SIZE = [15, 10, 5], 1024
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=7)
    arguments.add_argument("--round-s", type=float, default=1.0, help="seconds of a measurement")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "graph"
        graph, rows = load_graph(args.graph)
        features = torch.from_numpy(rows)
        graph = dp.CSCGraph(graph.indptr, graph.indices, node_attributes={"feat": features})
        graph.save(folder)
        store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)})
        command = [sys.executable, "-m", "datapipes.cli", "serve", str(folder), "--chains", "--features", "feat"]
        command += ["--in-memory", "--concurrency", "1", "--max-workers", "1"]
        servers = [stack.enter_context(process(command)) for _ in range(2)]
        client = connect({rank: line_of(server).split()[1] for rank, server in enumerate(servers)})
        figures = measured(client, graph, store, [server.pid for server in servers], args)
        client.close()
    report(figures, args.json)


def measured(
    client: PartitionClient, graph: dp.CSCGraph, store: dp.FeatureStore, pids: list[int], args: argparse.Namespace
) -> dict[str, float | str]:
    def sampled(seed: int) -> dp.Stage:
        """A chain for each side: a producer has the workers that it was first asked for."""
        sampler = dp.ItemSampler(dp.ItemSet(graph.num_nodes), BATCH_SIZE, shuffle=True, seed=seed)
        return sampler.sample_neighbor(graph, FANOUTS)

    def fetched(pipe: dp.Stage) -> dp.Stage:
        return pipe.fetch_feature(store, node_feature_keys=["feat"])

    ids, whole = sampled(0), fetched(sampled(0))
    loaders = {
        "local, ids": dp.DataLoader(ids, num_workers=1),
        "server with a worker, ids": dp.DataLoader(remote(client, sampled(1), [0], num_workers=1)),
        "server, ids": dp.DataLoader(remote(client, sampled(2), [0])),
        "2 servers, ids": dp.DataLoader(remote(client, sampled(2), [0, 1])),
        "local, features": dp.DataLoader(whole, num_workers=1),
        "server with a worker, features": dp.DataLoader(remote(client, fetched(sampled(1)), [0], num_workers=1)),
        "server, features": dp.DataLoader(remote(client, fetched(sampled(2)), [0])),
        "server with a worker, features fetched here": dp.DataLoader(
            fetched(remote(client, sampled(1), [0], num_workers=1))
        ),
    }
    sides = {name: Counted(Delivery(loader, args.round_s), pids) for name, loader in loaders.items()}
    two = [dp.DataLoader(remote(client, ids, [0], rank=rank, world_size=2)) for rank in range(2)]
    rates = alternate(
        {**sides, "2 trainers, ids": Together([Delivery(loader, args.round_s) for loader in two])}, args.repeats
    )
    figures: dict[str, float | str] = {f"{name} (minibatches/s)": rate for name, rate in rates.items()}
    for name, rate in rates.items():
        local = "local, features" if "features" in name else "local, ids"
        if name != local:
            figures[f"{name}, ratio to local"] = rate / rates[local]
    for name, side in sides.items():
        figures[f"{name}: trainer (ms of processor time a minibatch)"] = side.own_ms
        figures[f"{name}: servers (ms of processor time a minibatch)"] = side.servers_ms
    figures |= alone(client, ids)
    for name, pipe in (("ids", ids), ("features", whole)):
        message = next(iter(pipe)).to_message()
        figures[f"bytes of a minibatch, {name}"] = sum(each.nbytes for each in message.values())
    for loader in [*loaders.values(), *two]:
        loader.close()
    return figures


def remote(
    client: PartitionClient, pipe: dp.Stage, ranks: list[int], num_workers: int = 0, **share: int
) -> RemoteSource:
    """The chain as servers make it."""
    producers = [client.create_producer(rank, pipe, num_workers=num_workers) for rank in ranks]
    return RemoteSource(pipe, RemoteReceivingChannel(ranks, producers, client=client, **share))


def alone(client: PartitionClient, pipe: dp.Stage) -> dict[str, float | str]:
    """The time of one minibatch from an idle server, and of making it here."""
    producer = client.create_producer(0, pipe)
    loader = dp.DataLoader(pipe)
    there = {"there": lambda i: 1 / timed(lambda: client.minibatch(0, producer, 7, i).result())[0]}
    here = {"here": lambda i: 1 / timed(lambda: loader.minibatch(7, i))[0]}
    rates = alternate({**there, **here}, 31)
    return {"added latency (ms)": 1000 / rates["there"] - 1000 / rates["here"]}


class Counted:
    """A side that counts the processor time of this process and of servers, with their workers, a minibatch."""

    def __init__(self, side: Delivery, pids: list[int]) -> None:
        self._side, self._pids = side, pids
        self.own_ms = self.servers_ms = 0.0

    def __call__(self, round_: int) -> float:
        own, theirs, began = time.process_time(), ticks_of(self._pids), time.perf_counter()
        rate = self._side(round_)
        count = rate * (time.perf_counter() - began)
        self.own_ms = 1000 * (time.process_time() - own) / count
        self.servers_ms = 1000 * TICK_S * (ticks_of(self._pids) - theirs) / count
        return rate


class Together:
    """Several sides at once, each in a thread; their rates are added."""

    def __init__(self, sides: list[Delivery]) -> None:
        self._sides = sides

    def __call__(self, round_: int) -> float:
        rates = [0.0] * len(self._sides)

        def run(number: int) -> None:
            rates[number] = self._sides[number](round_)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(len(rates))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(rates)


def ticks_of(pids: list[int]) -> int:
    """Clock ticks of processor time of these processes and of all that descend from them."""
    found, known = 0, {*pids}
    stats = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            stats[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    while more := {pid for pid, (parent, _) in stats.items() if parent in known} - known:
        known |= more
    for pid in known & stats.keys():
        found += stats[pid][1]
    return found


if __name__ == "__main__":
    main()
