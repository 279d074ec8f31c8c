"""Train PyG's SGFormer, whose attention is within the tree of each seed, on the papers of Cora.

Run: python examples/pyg/sgformer_trees.py [--loader pyg]

As PyG's users do on ogbn-products: `disjoint=True` gives each seed a tree of its own, so a paper that two seeds reach
is in the batch twice. `batch.batch` says in whose tree a node is; SGFormer attends over the nodes of one tree, and its
convolutions go along the edges.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, cora, loader_options
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn.models import SGFormer

args = arguments(__doc__, epochs=10, data="cora")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = cora(args.data)
kwargs = {"num_neighbors": [10, 5], "disjoint": True, **loader_options(args)}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, batch_size=32, shuffle=True, **kwargs)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, batch_size=256, **kwargs)

model = SGFormer(data.num_features, 64, int(data.y.max()) + 1, trans_num_layers=1, gnn_num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)


def scores_of(batch: Data) -> Tensor:
    """Return the scores of the seeds, the roots of the trees."""
    return model(batch.x, batch.edge_index, batch.batch)[: batch.batch_size]


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(scores_of(batch), batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


@torch.no_grad()
def test(loader: NeighborLoader) -> float:
    model.eval()
    right = total = 0
    for batch in loader:
        right += int((scores_of(batch).argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
        total += batch.batch_size
    return right / total


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)
print(f"test accuracy {test(test_loader):.4f}")
