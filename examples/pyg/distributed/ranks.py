"""What the training scripts of this folder share: the command line, the ranks' group, a rank's part and its seeds.

torchrun tells each rank its number in the environment; `--rank` and the options beside it tell it without torchrun. On
several machines the loaders ask for TLS, or for DATAPIPES_INSECURE=1 where all machines are trusted.
"""

import argparse
import math
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from datapipes.pyg.distributed import DistContext, LocalFeatureStore, LocalGraphStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pyg_data import roc_auc

__all__ = ["Rank", "arguments", "hits_at", "roc_auc"]


def arguments(text: str, *, epochs: int, batch_size: int) -> argparse.Namespace:
    """Return the options that all scripts have."""
    given = os.environ
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("parts"), help="that of partition_graph.py")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch-size", type=int, default=batch_size, help="seeds of a step, of all ranks together")
    parser.add_argument("--workers", type=int, default=0, help="processes of each loader")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, by torch.manual_seed")
    parser.add_argument("--rank", type=int, default=given.get("RANK", 0))
    parser.add_argument("--world-size", type=int, default=given.get("WORLD_SIZE", 1), help="ranks, each with one part")
    parser.add_argument("--master-addr", default=given.get("MASTER_ADDR", "127.0.0.1"), help="the machine of rank 0")
    parser.add_argument(
        "--master-port", type=int, default=given.get("MASTER_PORT", 29500), help="that of the process group"
    )
    return parser.parse_args()


class Rank:
    """This process among the ranks: rank r has part r of the data set.

    Leave what is made in its `with` block to a function that ends there. A DistributedDataParallel that is freed after
    the process group may wait for ever, since it ends the group's threads without letting go of the GIL.
    """

    def __init__(self, args: argparse.Namespace, dataset: str) -> None:
        self.args, self.dataset, self.number, self.count = args, dataset, args.rank, args.world_size
        where = f"tcp://{args.master_addr}:{args.master_port}"
        dist.init_process_group("gloo", init_method=where, rank=self.number, world_size=self.count)
        torch.manual_seed(args.seed + self.number)  # DistributedDataParallel takes the weights of rank 0
        self.context = DistContext(self.number, self.number, self.count, self.count, f"train-{dataset}")
        root = str(args.root / f"{dataset}-partitions")
        self.graph = LocalGraphStore.from_partition(root, self.number)
        self.features = LocalFeatureStore.from_partition(root, self.number)
        labels = args.root / f"{dataset}-label" / "label.pt"
        if labels.exists():
            self.features.labels = torch.load(labels)

    def __enter__(self) -> "Rank":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:  # otherwise the others would wait
            dist.barrier()
            dist.destroy_process_group()

    @property
    def metadata(self) -> tuple[list[str], list[tuple[str, str, str]]]:
        """The node types and edge types, as `to_hetero` takes them."""
        return self.graph.meta["node_types"], [tuple(each) for each in self.graph.meta["edge_types"]]

    def seeds(self, name: str) -> Tensor:
        """Return the seeds of this part, of "train", "val" or "test"."""
        return torch.load(self.args.root / f"{self.dataset}-{name}-partitions" / f"partition{self.number}.pt")

    def of_loader(self) -> dict[str, Any]:
        """Return arguments of a loader. All meet at the port of the process group, whose store is there; in PyG each
        loader needs another one.
        """
        return {
            "data": (self.features, self.graph),
            "current_ctx": self.context,
            "master_addr": self.args.master_addr,
            "master_port": self.args.master_port,
            "num_workers": self.args.workers,
            "persistent_workers": self.args.workers > 0,
        }

    def batch_size(self, seeds: Tensor) -> int:
        """Return this rank's share of `--batch-size`: as its share of all seeds, so that all ranks take equal steps."""
        (count,) = self.total(seeds.shape[-1])
        return max(math.ceil(seeds.shape[-1] / math.ceil(count / self.args.batch_size)), 1)

    def in_step(self, loader: Any) -> Iterator[Any]:
        """Give as many minibatches as the rank with the fewest has: a step needs the gradients of all ranks.

        torch's `Join` would give all of them, but leaves the optimizer of a rank that is through behind the others.
        """
        least = torch.tensor(len(loader))
        dist.all_reduce(least, dist.ReduceOp.MIN)
        if least == 0:
            raise ValueError(f"a part of {self.dataset} has no seeds. Cut it into fewer parts.")
        return islice(loader, int(least))

    def total(self, *numbers: float) -> list[float]:
        """Return the sum of each number over all ranks."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def joined(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, which may have different numbers of them."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, rows)
        return torch.cat(found)

    def print(self, text: str) -> None:
        """Print a line, on rank 0 alone."""
        if self.number == 0:
            print(text, flush=True)


def hits_at(k: int, scores: Tensor, labels: Tensor) -> float:
    """Return the share of links that score above the k-th best of the pairs that are none."""
    return float((scores[labels == 1] > scores[labels == 0].topk(k).values[-1]).float().mean())
