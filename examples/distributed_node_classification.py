"""Train GraphSAGE on a graph in parts: one rank for each part, DistributedDataParallel over the ranks.

Run: torchrun --nproc-per-node 2 examples/distributed_node_classification.py --root PARTS [--namebook FILE]

PARTS is a partition that `dp.distributed.Partitioner` or `datapipes partition` wrote, in as many parts as there are
ranks. Rank r reads part r from its files. The other parts are behind servers: `--namebook` names a JSON file
{"0": "host:port", ...}; without it every rank serves its own part and tells the others where, through the store of
torchrun. `examples/launch_local.py` does all of it on one machine.

The seeds of a rank are the training nodes of its part, so most of their neighborhoods are in its files. The ranks take
equally many steps in an epoch, as the one with the most training nodes; others begin their order again. A step has
`--batch-size` seeds over all ranks, as in examples/node_classification.py, and the test accuracy is comparable.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import Settings, labels_of, make_model, node_keys, scores, train_epoch

import datapipes as dp
from datapipes.distributed import DistFeatureStore, DistGraph, PartitionServer, publish_address


def main() -> None:
    args = parse_arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // (2 * world_size)))
    server = None
    try:
        if args.namebook is None:
            server = PartitionServer(args.root, rank)
            publish_address(rank, server.start())
        graph = DistGraph.connect(args.root, args.namebook or "torchrun", local_part=rank)
        if graph.facts.num_parts != world_size:
            raise ValueError(
                f"{args.root} has {graph.facts.num_parts} parts for {world_size} ranks. Start one for each."
            )
        train(args, rank, world_size, graph)
        dist.barrier()  # the others may still ask this rank's server
        graph.close()
    finally:
        if server is not None:
            server.stop()
    dist.destroy_process_group()


def train(args: argparse.Namespace, rank: int, world_size: int, graph: DistGraph) -> None:
    data = data_of(graph, DistFeatureStore(graph, cache_bytes=args.cache or 0))
    settings = dataclasses.replace(Settings(), **{name: getattr(args, name) for name in vars(Settings())})
    batch_size = max(settings.batch_size // world_size, 1)
    seeds = dp.DistributedItemSampler(data.train_set, batch_size, shuffle=True, seed=args.seed, local_items=True)
    if rank == 0:
        say(f"{graph}, {data.num_classes} classes, {len(seeds)} steps; {settings}")
    say(f"rank {rank}: {len(data.train_set)} training nodes of its own")

    torch.manual_seed(args.seed)  # equal first weights on all ranks
    model = make_model(data, settings)
    trained = DistributedDataParallel(model)
    torch.manual_seed(args.seed + rank)  # for dropout
    optimizer = torch.optim.AdamW(trained.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.learning_rate, total_steps=settings.epochs * len(seeds)
    )
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.averaging))
    best, best_validation = model, -1.0
    with dp.DataLoader(chain(data, seeds, settings.fanouts), num_workers=args.workers) as loader:
        if rank == 0:
            say(loader.explain())
        for epoch in range(settings.epochs):
            began = time.perf_counter()
            loss, accuracy = train_epoch(trained, loader, optimizer, schedule, f"epoch {epoch}")
            averaged.update_parameters(model)
            validation = evaluate(averaged.module, data, data.validation_set)
            if rank == 0:
                seconds = time.perf_counter() - began
                shown = f"loss {loss:.4f}  train {accuracy:.4f}  validation {validation:.4f}  {seconds:.1f} s"
                say(f"epoch {epoch:3d}  {shown}")
            if not validation < best_validation:  # equal on all ranks
                best, best_validation = copy.deepcopy(averaged.module), validation
        test_score = evaluate(best, data, data.test_set)
    say(f"rank {rank}: {data.features.stats()}")
    if rank == 0:
        say(f"test accuracy {test_score:.4f}")


def data_of(graph: DistGraph, features: DistFeatureStore) -> dp.datasets.Dataset:
    """Return the data set as this rank sees it: the whole graph and its features, the seeds of its own part.

    The partitioner has stored labels as the node attribute "y", -1 where there is none, and the sets of nodes as masks.
    """
    if graph.is_heterogeneous:
        raise ValueError("this example is for graphs without types; with types the chain is the same, with dicts.")
    sets = [graph.local_items(f"{name}_mask") for name in ("train", "val", "test")]
    if agreed(len(sets[0]), dist.ReduceOp.MIN) == 0:
        raise ValueError("a part has no training nodes. Partition in fewer parts, or with method='random'.")
    labels = graph.local_part.node_attributes_of()["y"]
    num_classes = agreed(int(labels.max()) + 1, dist.ReduceOp.MAX)
    names = tuple(map(str, range(num_classes)))
    return dp.datasets.Dataset("graph in parts", graph, features, *sets, num_classes, names)


def chain(data: dp.datasets.Dataset, seeds: dp.Stage, fanouts: tuple[int, ...]) -> dp.Stage:
    """Return the chain of examples/node_classification.py with its sampler over parts and its store over parts."""
    edge_keys = ["direction"] if ("edge", None, "direction") in data.features else None
    pipe = seeds.dist_sample_neighbor(data.graph, list(fanouts), return_edge_ids=edge_keys is not None)
    return pipe.fetch_feature(data.features, [node_keys(data)[None]], edge_keys)


@torch.no_grad()
def evaluate(model: torch.nn.Module, data: dp.datasets.Dataset, items: dp.ItemSet) -> float:
    """Return the accuracy over the items of all ranks; each looks at its own, with all neighbors."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    if len(items) > 0:
        with dp.DataLoader(chain(data, dp.ItemSampler(items, 8192), (-1,) * len(model.layers))) as loader:
            for minibatch in loader:
                labels = labels_of(minibatch)
                counts += torch.tensor([int((scores(model, minibatch).argmax(1) == labels).sum()), len(labels)])
    dist.all_reduce(counts)
    return float(counts[0]) / max(int(counts[1]), 1)


def agreed(number: int, how: dist.ReduceOp) -> int:
    """Return the largest, smallest or sum of a number over all ranks."""
    value: Tensor = torch.tensor(number)
    dist.all_reduce(value, how)
    return int(value)


def say(text: str) -> None:
    """Print in one write, also where Python's output is unbuffered: the ranks share their standard output."""
    print(f"{text}\n", end="", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="folder of the partition")
    parser.add_argument("--namebook", type=Path, help="JSON file with the address of the server of each part")
    parser.add_argument("--cache", help="memory for rows of other parts, such as 64MB; none by default")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    parser.add_argument("--workers", type=int, default=1, help="processes that sample and fetch; 0 does so in a thread")
    for field in dataclasses.fields(Settings):
        name = f"--{field.name.replace('_', '-')}"
        if field.name == "fanouts":
            parser.add_argument(name, type=int, nargs="+", default=field.default, help="the hop next to the seeds last")
        elif isinstance(field.default, bool):
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    args = parser.parse_args()
    args.fanouts = tuple(args.fanouts)
    return args


if __name__ == "__main__":
    main()
