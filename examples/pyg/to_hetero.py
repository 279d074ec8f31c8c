"""Train a GraphSAGE that `to_hetero` gives types on the papers of ACM, their authors and subjects.

Run: python examples/pyg/to_hetero.py [--loader pyg]

60 papers of each of 3 classes train. The loader samples a HeteroData of three node types and four edge types, with the
seeds named by `input_nodes=("paper", mask)`. Authors and subjects have no features; `T.Constant` gives them a 1.
"""

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from pyg_data import acm, arguments, loader_options
from torch import Tensor
from torch_geometric.nn import SAGEConv, to_hetero

args = arguments(__doc__, epochs=8, data="acm_heco")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = T.Constant(node_types=["author", "subject"])(acm(args.data, split=2))
kwargs = {"num_neighbors": [10] * 2, "batch_size": 32, **loader_options(args)}
train_loader = NeighborLoader(data, input_nodes=("paper", data["paper"].train_mask), shuffle=True, **kwargs)
val_loader = NeighborLoader(data, input_nodes=("paper", data["paper"].val_mask), **kwargs)
test_loader = NeighborLoader(data, input_nodes=("paper", data["paper"].test_mask), **kwargs)


class SAGE(torch.nn.Module):
    def __init__(self, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden_channels)
        self.conv2 = SAGEConv((-1, -1), hidden_channels)
        self.lin = torch.nn.Linear(hidden_channels, out_channels)
        self.dropout = torch.nn.Dropout(0.5)  # `to_hetero` would keep `training=True` of a function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(self.dropout(x), edge_index).relu()
        return self.lin(x)


model = to_hetero(SAGE(64, int(data["paper"].y.max()) + 1), data.metadata(), aggr="mean")
with torch.no_grad():  # the widths of the inputs come from the first batch
    batch = next(iter(train_loader))
    model(batch.x_dict, batch.edge_index_dict)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)


def train() -> float:
    model.train()
    total_loss = total_papers = 0
    for batch in train_loader:
        optimizer.zero_grad()
        batch_size = batch["paper"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["paper"][:batch_size]
        loss = F.cross_entropy(out, batch["paper"].y[:batch_size])
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach()) * batch_size
        total_papers += batch_size
    return total_loss / total_papers


@torch.no_grad()
def test(loader: NeighborLoader) -> float:
    model.eval()
    right = total = 0
    for batch in loader:
        batch_size = batch["paper"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["paper"][:batch_size]
        right += int((out.argmax(dim=-1) == batch["paper"].y[:batch_size]).sum())
        total += batch_size
    return right / total


for epoch in range(1, args.epochs + 1):
    loss = train()
    print(f"epoch {epoch:2d}  loss {loss:.4f}  validation accuracy {test(val_loader):.4f}", flush=True)
print(f"test accuracy {test(test_loader):.4f}")
