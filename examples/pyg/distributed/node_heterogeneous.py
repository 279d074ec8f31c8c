"""Train a GraphSAGE that `to_hetero` gives types on the papers of ACM in parts, a rank for each part.

Run: python examples/pyg/distributed/partition_graph.py acm_heco --num-parts 2
     torchrun --nproc-per-node 2 examples/pyg/distributed/node_heterogeneous.py
or, without torchrun, in one shell each, with `--rank 0` and `--rank 1`:
     python examples/pyg/distributed/node_heterogeneous.py --world-size 2 --master-addr 127.0.0.1 --rank 0

60 papers of each of 3 classes train. Authors and subjects have no features but a 1.
Result, seeds 0 to 2: test accuracy 0.8877 (0.8810 to 0.8920) with 1 rank, 0.8860 (0.8820 to 0.8900) with 2, 0.8820
(0.8760 to 0.8860) with 3; examples/pyg/to_hetero.py has 0.8937.
"""

import argparse

import torch
import torch.nn.functional as F
from ranks import Rank, arguments
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

from datapipes.pyg.distributed import DistNeighborLoader


class Model(torch.nn.Module):
    """GraphSAGE with types, of which each node type enters by a linear layer of its own."""

    def __init__(self, rank: Rank, channels: int, num_classes: int) -> None:
        super().__init__()
        types, _ = rank.metadata
        widths = {of: rank.features.get_tensor(group_name=of, attr_name="x").shape[1] for of in types}
        self.enter = torch.nn.ModuleDict({of: torch.nn.Linear(width, channels) for of, width in widths.items()})
        self.encoder = to_hetero(GraphSAGE(channels, channels, num_layers=2), rank.metadata, aggr="mean")
        self.classes = torch.nn.Linear(channels, num_classes)

    def forward(self, batch: HeteroData) -> Tensor:
        """Return the scores of the seeds."""
        x_dict = {of: F.dropout(linear(batch[of].x), 0.5, self.training) for of, linear in self.enter.items()}
        return self.classes(self.encoder(x_dict, batch.edge_index_dict)["paper"][: batch["paper"].batch_size])


def main() -> None:
    args = arguments(__doc__, epochs=8, batch_size=32)
    with Rank(args, "acm_heco") as rank:
        run(rank, args)


def run(rank: Rank, args: argparse.Namespace) -> None:
    seeds = rank.seeds("train")
    train_loader = DistNeighborLoader(
        num_neighbors=[10, 10],
        input_nodes=("paper", seeds),
        batch_size=rank.batch_size(seeds),
        shuffle=True,
        **rank.of_loader(),
    )
    test_loader = DistNeighborLoader(
        num_neighbors=[10, 10], input_nodes=("paper", rank.seeds("test")), batch_size=256, **rank.of_loader()
    )

    model = Model(rank, 64, int(rank.features.labels.max()) + 1)
    # Of authors and subjects only the first layer is used.
    model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)

    for epoch in range(1, args.epochs + 1):
        rank.print(f"epoch {epoch:2d}  loss {train(rank, model, optimizer, train_loader):.4f}")
    rank.print(f"test accuracy {test(rank, model.module, test_loader):.4f}")


def train(rank: Rank, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: DistNeighborLoader):
    """Train an epoch; return the mean loss of the seeds of all ranks."""
    model.train()
    total_loss = total_papers = 0.0
    for batch in rank.in_step(loader):
        optimizer.zero_grad()
        batch_size = batch["paper"].batch_size
        loss = F.cross_entropy(model(batch), batch["paper"].y[:batch_size])
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach()) * batch_size
        total_papers += batch_size
    total_loss, total_papers = rank.total(total_loss, total_papers)
    return total_loss / total_papers


@torch.no_grad()
def test(rank: Rank, model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the accuracy over the seeds of all ranks."""
    model.eval()
    right = total = 0
    for batch in loader:
        y = batch["paper"].y[: batch["paper"].batch_size]
        right += int((model(batch).argmax(dim=-1) == y).sum())
        total += len(y)
    right, total = rank.total(right, total)
    return right / total


if __name__ == "__main__":
    main()
