"""Train PyG's GraphSAGE on the packages of Debian, and infer all of them by `model.inference(loader)`.

Run: python examples/pyg/inference.py [--loader pyg]

`inference` goes over all nodes once for each layer, by a loader of one hop with all neighbors, and asserts that this is
a NeighborLoader of PyG. The same weights on the whole graph at once give the same scores but for rounding.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, debian_packages, loader_options
from torch import Tensor
from torch_geometric.nn import GraphSAGE

args = arguments(__doc__, epochs=3, data=None)
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = debian_packages()
kwargs = loader_options(args)
train_loader = NeighborLoader(
    data, num_neighbors=[10, 5], input_nodes=data.train_mask, batch_size=512, shuffle=True, **kwargs
)
subgraph_loader = NeighborLoader(data, num_neighbors=[-1], batch_size=4096, **kwargs)

model = GraphSAGE(data.num_features, 128, num_layers=2, out_channels=int(data.y.max()) + 1, dropout=0.2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


def accuracy(scores: Tensor) -> float:
    return float((scores.argmax(dim=-1) == data.y)[data.test_mask].float().mean())


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)

model.eval()
with torch.no_grad():
    whole = model(data.x, data.edge_index)
layered = model.inference(subgraph_loader)
print(f"largest difference of a score {float((layered - whole).abs().max()):.1e}")
print(f"test accuracy of the whole graph at once {accuracy(whole):.4f}")
print(f"test accuracy {accuracy(layered):.4f}")
