"""Find the mines of a board by a GraphSAGE of three layers that leaves out, layer by layer, what no seed needs.

Run: python examples/pyg/hierarchical_sampling.py [--loader pyg]

A batch says how many nodes and edges each hop has added (`num_sampled_nodes`, `num_sampled_edges`), and has them in
that order. So the outermost hop is cut off after the first layer, the next after the second. The scores of the seeds
stay the same; the script compares them once. Prints the area under the ROC curve.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, loader_options, minesweeper, roc_auc
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

args = arguments(__doc__, epochs=10, data="minesweeper")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = minesweeper(args.data)
kwargs = {"num_neighbors": [8, 8, 4], **loader_options(args)}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, batch_size=128, shuffle=True, **kwargs)
val_loader = NeighborLoader(data, input_nodes=data.val_mask, batch_size=512, **kwargs)
test_loader = NeighborLoader(data, input_nodes=data.test_mask, batch_size=512, **kwargs)

model = GraphSAGE(data.num_features, 64, num_layers=3, out_channels=1, norm="batch_norm")
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)


def scores_of(batch: Data, trim: bool = True) -> Tensor:
    """Return the score of each seed."""
    hops = {}
    if trim:
        hops["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
        hops["num_sampled_edges_per_hop"] = batch.num_sampled_edges
    return model(batch.x, batch.edge_index, **hops)[: batch.batch_size, 0]


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(scores_of(batch), batch.y[: batch.batch_size].float())
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


@torch.no_grad()
def test(loader: NeighborLoader) -> float:
    model.eval()
    found = [(scores_of(batch), batch.y[: batch.batch_size]) for batch in loader]
    scores, labels = map(torch.cat, zip(*found, strict=True))
    return roc_auc(scores, labels)


for epoch in range(1, args.epochs + 1):
    loss = train()
    print(f"epoch {epoch:2d}  loss {loss:.4f}  validation AUC {test(val_loader):.4f}", flush=True)

batch = next(iter(test_loader))
with torch.no_grad():
    difference = scores_of(batch) - scores_of(batch, trim=False)
print(f"largest difference of a score without the cuts {float(difference.abs().max()):.1e}")
print(f"test AUC {test(test_loader):.4f}")
