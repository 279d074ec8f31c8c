"""Train GraphSAGE by ray.train over a graph in parts, whose servers are actors; killed servers and workers come back.

Run: python examples/ray_train.py [--data debian | FOLDER] [--workers 2] [--parts 2] [--replicas 1] [--out FOLDER]

Starts Ray on this machine, or joins the cluster of `--address`. Partitions the graph into `--out`, starts a partition
server for each part or replica (RayServers), and trains with TorchTrainer: rank r of n takes the minibatches r, r + n,
... of each epoch. The loader's state stands in each checkpoint beside model and optimizer. So a worker that is killed
costs the steps since the last one, and the weights of the end are those of an undisturbed run, bit by bit; their hash
is printed. A server that is killed is started again by Ray, wherever there is room, and costs a pause.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
from graphsage import GraphSAGE, RowEncoder, WordEncoder
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn import functional as F
from training import node_keys, row_width, scores

import datapipes as dp
from datapipes.distributed import DistFeatureStore, DistGraph, Partitioner
from datapipes.distributed.ray import RayServers

FANOUTS, HIDDEN, LEARNING_RATE = [10, 10], 64, 4e-3


def train_worker(config: dict[str, Any]) -> None:
    """The work of one rank, from the last checkpoint on."""
    torch.set_num_threads(1)
    graph = DistGraph.connect(config["root"], config["servers"])
    items = dp.ItemSet(config["train"])  # seeds and labels
    pipe = dp.DistributedItemSampler(items, config["batch_size"], shuffle=True, seed=config["seed"])
    pipe = pipe.sample_neighbor(graph, FANOUTS).fetch_feature(DistFeatureStore(graph), [config["key"]])
    torch.manual_seed(config["seed"])  # equal first weights on all ranks
    encoder = (WordEncoder if config["key"] == "words" else RowEncoder)(config["width"], HIDDEN, 0.1)
    model = prepare_model(GraphSAGE(encoder, [HIDDEN] * len(FANOUTS) + [config["num_classes"]], 1, 0.5, True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    with dp.DataLoader(pipe, num_workers=config["loader_workers"]) as loader:
        parts = {"loader": loader, "model": model, "optimizer": optimizer}
        first, loss = 0, torch.zeros(())
        if (checkpoint := ray.train.get_checkpoint()) is not None:
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder) / "parts.pt")
            for name, part in parts.items():
                part.load_state_dict(saved[name])
            first = saved["loader"]["epoch"] + ("ended" in saved["loader"])
        for epoch in range(first, config["epochs"]):
            loader.set_epoch(epoch)
            model.train()
            for minibatch in loader:
                torch.manual_seed(epoch * len(loader) + minibatch.index)  # of dropout, by what the minibatch is
                loss = F.cross_entropy(scores(model, minibatch), minibatch.labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step = minibatch.index // ray.train.get_context().get_world_size()
                if step % config["every"] == config["every"] - 1:
                    report(parts, {"epoch": epoch, "step": step, "loss": float(loss.detach())})
            report(parts, {"epoch": epoch, "loss": float(loss.detach()), "weights": weights_hash(model)})
    graph.close()


def report(parts: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Tell Ray the metrics, from all ranks, and a checkpoint from rank 0: the loader's state belongs to the job."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if ray.train.get_context().get_world_rank() == 0:
            torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder) / "parts.pt")
            checkpoint = Checkpoint.from_directory(folder)
        ray.train.report(metrics, checkpoint=checkpoint)


def weights_hash(model: torch.nn.Module) -> str:
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    args = parse_arguments()
    data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data, split=args.split)
    if data.graph.is_heterogeneous:
        raise ValueError("this example is for graphs without types; with types the chain is the same, with dicts.")
    ray.init(address=args.address, num_cpus=args.num_cpus, include_dashboard=False if args.address is None else None)
    out = args.out.resolve()
    root = out / "parts"
    if not root.exists():
        Partitioner(data, args.parts, root).generate_partition()
    items = data.train_set.take(torch.arange(len(data.train_set)))
    with RayServers(root, replicas=args.replicas, actor_options={"num_cpus": 0.5}) as servers:
        key = node_keys(data)[None]
        config = {
            "root": str(root),
            "servers": servers,
            "train": (items["seeds"], items["labels"]),
            "key": key,
            "width": row_width(data),
            "num_classes": data.num_classes,
            "loader_workers": args.loader_workers,
            "epochs": args.epochs,
            "batch_size": args.batch_size,
            "seed": args.seed,
            "every": args.checkpoint_every,
        }
        trainer = TorchTrainer(
            train_worker,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=args.workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                name=args.name,
                storage_path=str(out / "runs"),
                failure_config=FailureConfig(max_failures=-1),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
            ),
        )
        done = trainer.fit()
    print(f"trained {args.epochs} epochs: loss {done.metrics['loss']:.4f}, weights {done.metrics['weights']}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder that datapipes.datasets.open reads")
    parser.add_argument("--split", type=int, default=0, help="number of the split in the files")
    parser.add_argument("--address", help="of a Ray cluster; by default Ray starts on this machine")
    parser.add_argument("--num-cpus", type=int, help="of a Ray that starts here")
    parser.add_argument("--out", type=Path, default=Path("ray_train"), help="folder of the parts and checkpoints")
    parser.add_argument("--name", default="run", help="of the run, whose checkpoints a later one goes on from")
    parser.add_argument("--parts", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=1, help="servers of each part")
    parser.add_argument("--workers", type=int, default=2, help="ranks that train")
    parser.add_argument("--loader-workers", type=int, default=0, help="processes of each rank that sample")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=512, help="of each rank")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
