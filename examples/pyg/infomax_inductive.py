"""Learn vectors of the papers of CiteSeer by Deep Graph Infomax; then tell topics from them by logistic regression.

Run: python examples/pyg/infomax_inductive.py [--loader pyg]

Without labels, over all nodes: PyG's DeepGraphInfomax learns to tell a batch from the same batch with its words dealt
out anew. A second loader, unshuffled, gives the vector of each paper. The 120 training papers fit the regression.
"""

import torch
from pyg_data import arguments, citeseer, loader_options, regression
from torch import Tensor
from torch_geometric.nn import DeepGraphInfomax, SAGEConv

args = arguments(__doc__, epochs=5, data="citeseer")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = citeseer(args.data)
kwargs = {"num_neighbors": [10, 10], **loader_options(args)}
train_loader = NeighborLoader(data, batch_size=256, shuffle=True, **kwargs)
test_loader = NeighborLoader(data, batch_size=512, **kwargs)


class Encoder(torch.nn.Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(in_channels, channels), SAGEConv(channels, channels)])
        self.activations = torch.nn.ModuleList([torch.nn.PReLU(channels), torch.nn.PReLU(channels)])

    def forward(self, x: Tensor, edge_index: Tensor, batch_size: int) -> Tensor:
        for conv, activation in zip(self.convs, self.activations, strict=True):
            x = activation(conv(x, edge_index))
        return x[:batch_size]


def corruption(x: Tensor, edge_index: Tensor, batch_size: int) -> tuple[Tensor, Tensor, int]:
    return x[torch.randperm(len(x))], edge_index, batch_size


def summary(z: Tensor, *_: object) -> Tensor:
    return z.mean(dim=0).sigmoid()


model = DeepGraphInfomax(128, Encoder(data.num_features, 128), summary, corruption)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        loss = model.loss(*model(batch.x, batch.edge_index, batch.batch_size))
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


def test() -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        h = torch.cat([model.encoder(batch.x, batch.edge_index, batch.batch_size) for batch in test_loader])
    h = (h - h.mean(dim=0)) / (h.std(dim=0) + 1e-6)
    linear = regression(h[data.train_mask], data.y[data.train_mask])
    right = (linear(h).argmax(dim=-1) == data.y).float()
    return {name: float(right[data[f"{name}_mask"]].mean()) for name in ("val", "test")}


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)
accuracy = test()
print(f"validation accuracy {accuracy['val']:.4f}")
print(f"test accuracy {accuracy['test']:.4f}")
