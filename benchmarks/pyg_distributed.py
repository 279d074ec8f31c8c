"""Question: how many minibatches per second do two ranks of DistNeighborLoader make, next to the chain below it?

Method: The graph of make_graph.py is cut by METIS. Each rank is a process with one thread of torch: it has one part in
memory, and serves it to the other rank. Sides: "chain", `dist_sample_neighbor` and `fetch_feature` over the DistGraph
of the loader, as a user of this package would write it; "loader", DistNeighborLoader, whose batches are PyG's Data with
features; "loader, sync", the same with async_sampling=False. Fanouts [15, 10, 5], batches of 1,024 own nodes. Both
ranks measure the same side at the same time, one side after the other, and a round is the sum of both.
Run: python benchmarks/pyg_distributed.py --graph GRAPH
Result (2-core Intel Xeon VM, 1M nodes / 20M edges): commit 926a13d, quiet machine, medians of 3: chain 17.07
minibatches/s of both ranks, loader 17.48 (1.02 of the chain), without async 16.04 (0.94).
PyG 2.8 with the constructors mended, on another 2-core VM (AMD EPYC), one thread, the same graph, fanouts and batches:
its DistNeighborLoader gave each of two ranks 6.6 minibatches/s without async, so 13.2 of both, and with async 5.2
(concurrency 1) and 4.7 (concurrency 4); one epoch of 15 minibatches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from common import load_graph, parser, report
from distributed import BATCH_SIZE, FANOUTS, line_of, median, process, rounds

import datapipes as dp
from datapipes.distributed import Part, Partitioner

SIDES = ("chain", "loader", "loader, sync")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    arguments.add_argument("--parts", type=int, default=2, help="parts, and ranks")
    arguments.add_argument("--method", default="metis", help="how the graph is cut")
    arguments.add_argument("--round-s", type=float, default=3.0, help="seconds of a measurement")
    arguments.add_argument("--rank", help=argparse.SUPPRESS)  # what a rank's process is started with, JSON
    args = arguments.parse_args()
    if args.rank is not None:
        serve(**json.loads(args.rank))
        return
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "parts"
        graph, rows = load_graph(args.graph)
        graph = dp.CSCGraph(graph.indptr, graph.indices, node_attributes={"x": torch.from_numpy(rows)})
        Partitioner(graph, args.parts, root, method=args.method, layouts=("native",)).generate_partition()
        del graph, rows
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        given = {"root": str(root), "parts": args.parts, "round_s": args.round_s, "port": port}
        command = [sys.executable, __file__, "--rank"]
        ranks = [
            stack.enter_context(process([*command, json.dumps({**given, "rank": rank})])) for rank in range(args.parts)
        ]
        for running in ranks:
            line_of(running)  # "ready"
        found = rounds(ranks, [*SIDES], args.repeats)
    figures: dict[str, float | str] = {}
    for name in SIDES:
        figures[f"{name} (minibatches/s of all ranks)"] = median(found[name], "minibatches")
    chain = figures[f"{SIDES[0]} (minibatches/s of all ranks)"]
    for name in SIDES[1:]:
        figures[f"{name}, ratio to the chain"] = float(figures[f"{name} (minibatches/s of all ranks)"]) / float(chain)
    report(figures, args.json)


def serve(root: str, parts: int, round_s: float, port: int, rank: int) -> None:
    """Measure in this rank the side that each line of stdin names."""
    from datapipes.pyg.distributed import DistContext, DistNeighborLoader, LocalFeatureStore, LocalGraphStore

    torch.set_num_threads(1)
    part = Part.open(root, rank, verify=False, mmap=False)
    data = LocalFeatureStore.from_part(part), LocalGraphStore.from_part(part)
    context = DistContext(rank, rank, parts, parts, "benchmark")
    own = part.node_ids()

    def loader(**options: Any) -> Any:
        given = {"input_nodes": own, "batch_size": BATCH_SIZE, "shuffle": True, "seed": 1, **options}
        return DistNeighborLoader(data, FANOUTS[::-1], "127.0.0.1", port, context, **given)

    loaders = {"loader": loader(), "loader, sync": loader(async_sampling=False)}
    graph = loaders["loader"].dist_sampler.graph
    items = dp.DistributedItemSampler(
        dp.ItemSet(own),
        BATCH_SIZE,
        rank=rank,
        world_size=parts,
        local_items=True,
        num_steps=-(-len(own) // BATCH_SIZE),
        shuffle=True,
        seed=1,
    )
    sampled = items.dist_sample_neighbor(graph, FANOUTS, frontier="new")
    chain = sampled.fetch_feature(dp.distributed.DistFeatureStore(graph), node_feature_keys=["x"])
    print("ready", flush=True)
    for line in sys.stdin:
        side = line.strip()
        if side == "chain":
            with dp.DataLoader(chain) as running:
                answer = measured(running, round_s)
        else:
            answer = measured(loaders[side], round_s)
        print(json.dumps(answer), flush=True)


def measured(batches: Iterable[Any], round_s: float) -> dict[str, float]:
    stream = itertools.chain.from_iterable(itertools.repeat(batches))  # epoch after epoch
    for _ in range(10):  # until as many are in flight as can be
        next(stream)
    done, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < round_s:
        next(stream)
        done += 1
    return {"minibatches": done, "seconds": seconds}


if __name__ == "__main__":
    main()
