"""Predict the research group of the persons of AIFB over 90 edge types, by HeteroConv on batches cut layer by layer.

Run: python examples/pyg/hierarchical_hetero.py [--loader pyg]

The entities have no features but a learned vector each, taken by `n_id`. `trim_to_layer` reads
`num_sampled_nodes_dict` and `num_sampled_edges_dict`, which have a number for each hop of each type. An edge type of
which a batch has no edge is in the batch too, with none.
36 persons are tested, so one of them is 0.0278.
"""

import torch
import torch.nn.functional as F
from pyg_data import aifb, arguments, loader_options
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.typing import EdgeType
from torch_geometric.utils import trim_to_layer

args = arguments(__doc__, epochs=8, data="aifb")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

torch.manual_seed(args.seed)
data = aifb(args.data)
persons = data["entity"]
kwargs = {"num_neighbors": [10, 5], "batch_size": 20, **loader_options(args)}
train_loader = NeighborLoader(data, input_nodes=("entity", persons.train_mask), shuffle=True, **kwargs)
test_loader = NeighborLoader(data, input_nodes=("entity", persons.test_mask), **kwargs)


class Layer(torch.nn.Module):
    """Adds up what each edge type gives to a node, and what the node itself does.

    Source: R-GCN (Schlichtkrull et al., 2018).
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.itself = torch.nn.Linear(channels, channels)
        kinds = {kind: SAGEConv(channels, channels, root_weight=False, bias=False) for kind in data.edge_types}
        self.neighbors = HeteroConv(kinds, aggr="sum")

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[EdgeType, Tensor]) -> dict[str, Tensor]:
        sums = self.neighbors(x_dict, edge_index_dict)
        return {"entity": (self.itself(x_dict["entity"]) + sums["entity"]).relu()}


class Model(torch.nn.Module):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.vectors = torch.nn.Embedding(persons.num_nodes, channels)
        self.layers = torch.nn.ModuleList([Layer(channels), Layer(channels)])
        self.classify = torch.nn.Linear(channels, out_channels)

    def forward(self, batch: HeteroData) -> Tensor:
        x_dict, edge_index_dict = {"entity": self.vectors(batch["entity"].n_id)}, batch.edge_index_dict
        for number, layer in enumerate(self.layers):
            x_dict, edge_index_dict, _ = trim_to_layer(
                number, batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict, x_dict, edge_index_dict
            )
            x_dict = layer(x_dict, edge_index_dict)
        return self.classify(x_dict["entity"][: batch["entity"].batch_size])


model = Model(32, int(persons.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def train() -> float:
    model.train()
    total_loss = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch["entity"].y[: batch["entity"].batch_size])
        loss.backward()
        optimizer.step()
        total_loss += float(loss.detach())
    return total_loss / len(train_loader)


@torch.no_grad()
def test(loader: NeighborLoader) -> float:
    model.eval()
    right = total = 0
    for batch in loader:
        batch_size = batch["entity"].batch_size
        right += int((model(batch).argmax(dim=-1) == batch["entity"].y[:batch_size]).sum())
        total += batch_size
    return right / total


for epoch in range(1, args.epochs + 1):
    print(f"epoch {epoch:2d}  loss {train():.4f}", flush=True)
print(f"test accuracy {test(test_loader):.4f}")
