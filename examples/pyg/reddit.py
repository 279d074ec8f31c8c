"""Train GraphSAGE on the authors of Coauthor CS; test it layer by layer, over the whole neighborhood.

Run: python examples/pyg/reddit.py [--loader pyg]

As PyG's users do on Reddit: minibatches of [25, 10] neighbors train. For the test a second loader, of a copy of the
data without features, gives all neighbors of each node; each layer goes over all nodes before the next begins.
"""

import copy

import torch
import torch.nn.functional as F
from pyg_data import arguments, coauthor_cs, loader_options
from torch import Tensor
from torch_geometric.nn import SAGEConv

args = arguments(__doc__, epochs=5, data="coauthor_cs")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = coauthor_cs(args.data)
kwargs = {"batch_size": 64, **loader_options(args)}
train_loader = NeighborLoader(data, input_nodes=data.train_mask, num_neighbors=[25, 10], shuffle=True, **kwargs)

kwargs["batch_size"] = 512
subgraph_loader = NeighborLoader(copy.copy(data), input_nodes=None, num_neighbors=[-1], shuffle=False, **kwargs)
del subgraph_loader.data.x, subgraph_loader.data.y  # its batches need only the edges and the ids of their nodes
subgraph_loader.data.num_nodes = data.num_nodes
subgraph_loader.data.n_id = torch.arange(data.num_nodes)


class SAGE(torch.nn.Module):
    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList(
            [SAGEConv(in_channels, hidden_channels), SAGEConv(hidden_channels, out_channels)]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = F.relu(self.convs[0](x, edge_index))
        return self.convs[1](F.dropout(x, p=0.5, training=self.training), edge_index)

    @torch.no_grad()
    def inference(self, x_all: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            outputs = []
            for batch in subgraph_loader:
                x = conv(x_all[batch.n_id], batch.edge_index)[: batch.batch_size]
                outputs.append(F.relu(x) if i == 0 else x)
            x_all = torch.cat(outputs)
        return x_all


model = SAGE(data.num_features, 256, int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train() -> float:
    model.train()
    total_loss = total_nodes = 0
    for batch in train_loader:
        optimizer.zero_grad()
        y = batch.y[: batch.batch_size]
        y_hat = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(y_hat, y)
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach()) * batch.batch_size
        total_nodes += batch.batch_size
    return total_loss / total_nodes


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)

model.eval()
right = model.inference(data.x).argmax(dim=-1) == data.y
print(f"validation accuracy {float(right[data.val_mask].float().mean()):.4f}")
print(f"test accuracy {float(right[data.test_mask].float().mean()):.4f}")
