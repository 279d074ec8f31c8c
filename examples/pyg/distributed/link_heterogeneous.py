"""Predict who wrote a paper, the links between authors and papers of ACM, in parts, a rank for each part.

Run: python examples/pyg/distributed/partition_graph.py acm_links --num-parts 2
     torchrun --nproc-per-node 2 examples/pyg/distributed/link_heterogeneous.py
or, without torchrun, in one shell each, with `--rank 0` and `--rank 1`:
     python examples/pyg/distributed/link_heterogeneous.py --world-size 2 --master-addr 127.0.0.1 --rank 0

Each rank trains on links to the papers that its part owns, with two drawn pairs for each. Authors and subjects have a
learned vector each, papers their words. Prints the area under the ROC curve, over the links of all ranks.
Result, seeds 0 to 2: test AUC 0.7139 (0.7127 to 0.7159) with 1 rank, 0.7176 (0.7163 to 0.7186) with 2, 0.7175 (0.7147
to 0.7196) with 3. examples/pyg/bipartite_links.py tests with all other links as edges, here with those of training.
"""

import argparse

import torch
import torch.nn.functional as F
from ranks import Rank, arguments, roc_auc
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

from datapipes.pyg.distributed import DistLinkNeighborLoader

LINK = ("author", "writes", "paper")


class Model(torch.nn.Module):
    def __init__(self, rank: Rank, channels: int) -> None:
        super().__init__()
        num_words = rank.features.get_tensor(group_name="paper", attr_name="x").shape[1]
        self.words = torch.nn.Linear(num_words, channels)
        counts = {of: len(rank.graph.node_pb[of]) for of in ("author", "subject")}
        self.vectors = torch.nn.ModuleDict({of: torch.nn.Embedding(count, channels) for of, count in counts.items()})
        self.encoder = to_hetero(GraphSAGE(channels, channels, num_layers=2), rank.metadata, aggr="sum")

    def forward(self, batch: HeteroData) -> Tensor:
        """Return the scores of the links."""
        x_dict = {of: vectors(batch[of].n_id) for of, vectors in self.vectors.items()}
        x_dict["paper"] = self.words(batch["paper"].x)
        h_dict = self.encoder(x_dict, batch.edge_index_dict)
        author, paper = batch[LINK].edge_label_index
        return (h_dict["author"][author] * h_dict["paper"][paper]).sum(dim=-1)


def main() -> None:
    args = arguments(__doc__, epochs=5, batch_size=256)
    with Rank(args, "acm_links") as rank:
        run(rank, args)


def run(rank: Rank, args: argparse.Namespace) -> None:
    seeds = rank.seeds("train")
    train_loader = DistLinkNeighborLoader(
        num_neighbors=[20, 10],
        edge_label_index=(LINK, seeds),
        neg_sampling={"mode": "binary", "amount": 2.0},
        batch_size=rank.batch_size(seeds),
        shuffle=True,
        **rank.of_loader(),
    )
    links = rank.seeds("test")
    test_loader = DistLinkNeighborLoader(
        num_neighbors=[20, 10],
        edge_label_index=(LINK, links[:2]),
        edge_label=links[2],
        batch_size=256,
        **rank.of_loader(),
    )

    # The last layer of subjects is not used.
    model = DistributedDataParallel(Model(rank, 64), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    for epoch in range(1, args.epochs + 1):
        rank.print(f"epoch {epoch:2d}  loss {train(rank, model, optimizer, train_loader):.4f}")
    rank.print(f"test AUC {test(rank, model.module, test_loader):.4f}")


def train(rank: Rank, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, loader: DistLinkNeighborLoader):
    """Train an epoch; return the mean loss of the links of all ranks."""
    model.train()
    total_loss = total_links = 0.0
    for batch in rank.in_step(loader):
        optimizer.zero_grad()
        labels = batch[LINK].edge_label.float()
        loss = F.binary_cross_entropy_with_logits(model(batch), labels)
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach()) * len(labels)
        total_links += len(labels)
    total_loss, total_links = rank.total(total_loss, total_links)
    return total_loss / total_links


@torch.no_grad()
def test(rank: Rank, model: torch.nn.Module, loader: DistLinkNeighborLoader) -> float:
    """Return the area under the ROC curve over the links of all ranks."""
    model.eval()
    found = [(model(batch), batch[LINK].edge_label) for batch in loader]
    scores, labels = (rank.joined(torch.cat(rows)) for rows in zip(*found, strict=True))
    return roc_auc(scores, labels)


if __name__ == "__main__":
    main()
