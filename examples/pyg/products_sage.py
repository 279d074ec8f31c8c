"""Train a GraphSAGE of three layers on the products of Amazon Photo; test it layer by layer.

Run: python examples/pyg/products_sage.py [--loader pyg] [--workers 2]

As PyG's users do on ogbn-products: the split is of ids, minibatches of [15, 10, 5] neighbors train, and workers persist
from one epoch to the next. The test goes over all nodes once for each layer, with all neighbors.
"""

import torch
import torch.nn.functional as F
from pyg_data import amazon_photo, arguments, loader_options
from torch import Tensor
from torch_geometric.nn import SAGEConv

args = arguments(__doc__, epochs=20, data="amazon_photo")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = amazon_photo(args.data)
split_idx = {name: data[f"{name}_mask"].nonzero().flatten() for name in ("train", "val", "test")}

kwargs = loader_options(args)
train_loader = NeighborLoader(
    data, input_nodes=split_idx["train"], num_neighbors=[15, 10, 5], batch_size=32, shuffle=True, **kwargs
)
subgraph_loader = NeighborLoader(data, input_nodes=None, num_neighbors=[-1], batch_size=1024, **kwargs)


class SAGE(torch.nn.Module):
    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = torch.nn.ModuleList(map(SAGEConv, widths[:-1], widths[1:]))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = F.dropout(conv(x, edge_index).relu(), p=0.5, training=self.training)
        return self.convs[-1](x, edge_index)

    def inference(self, x_all: Tensor) -> Tensor:
        for conv in self.convs:
            xs = []
            for batch in subgraph_loader:
                x = conv(x_all[batch.n_id], batch.edge_index)[: batch.batch_size]
                xs.append(x if conv is self.convs[-1] else x.relu())
            x_all = torch.cat(xs)
        return x_all


model = SAGE(data.num_features, 128, int(data.y.max()) + 1, num_layers=3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


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


@torch.no_grad()
def test() -> dict[str, float]:
    model.eval()
    right = (model.inference(data.x).argmax(dim=-1) == data.y).float()
    return {name: float(right[ids].mean()) for name, ids in split_idx.items()}


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)
accuracy = test()
print(f"train accuracy {accuracy['train']:.4f}, validation accuracy {accuracy['val']:.4f}")
print(f"test accuracy {accuracy['test']:.4f}")
