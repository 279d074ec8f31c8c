"""Learn vectors of the papers of Cora from citations alone; then tell topics from them by logistic regression.

Run: python examples/pyg/unsupervised_sage.py [--loader pyg]

A LinkNeighborLoader without `edge_label_index` goes over all edges, each with one drawn pair of nodes
(`neg_sampling_ratio=1.0`). GraphSAGE learns to tell the two apart. The 140 training papers fit the regression.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, cora, loader_options, regression
from torch_geometric.nn import GraphSAGE

args = arguments(__doc__, epochs=5, data="cora")
if args.loader == "datapipes":
    from datapipes.pyg.loader import LinkNeighborLoader
else:
    from torch_geometric.loader import LinkNeighborLoader

torch.manual_seed(args.seed)
data = cora(args.data)
train_loader = LinkNeighborLoader(
    data,
    batch_size=512,
    shuffle=True,
    neg_sampling_ratio=1.0,
    num_neighbors=[5, 5],
    **loader_options(args),
)
model = GraphSAGE(data.num_features, hidden_channels=64, num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        h = model(batch.x, batch.edge_index)
        src, dst = batch.edge_label_index
        loss = F.binary_cross_entropy_with_logits((h[src] * h[dst]).sum(dim=-1), batch.edge_label)
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


def test() -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        h = model(data.x, data.edge_index)
    h = (h - h.mean(dim=0)) / (h.std(dim=0) + 1e-6)
    linear = regression(h[data.train_mask], data.y[data.train_mask])
    right = (linear(h).argmax(dim=-1) == data.y).float()
    return {name: float(right[data[f"{name}_mask"]].mean()) for name in ("val", "test")}


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)
accuracy = test()
print(f"validation accuracy {accuracy['val']:.4f}")
print(f"test accuracy {accuracy['test']:.4f}")
