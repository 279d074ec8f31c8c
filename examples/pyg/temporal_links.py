"""Predict who writes to whom next in CollegeMsg, from the messages before.

Run: python examples/pyg/temporal_links.py [--loader pyg]

The first 70 % of the messages train, 15 % validate, the rest test. The loader grows a tree of the latest messages for
each end of a link, and draws as many pairs of students as negatives. Edges of the very time of a seed are sampled too,
so that time is one second before the message. A student has a random vector: its product with the mean of the other's
neighbors tells whether the two have written before. Prints the area under the ROC curve. Most students drawn as
negatives have long fallen silent: the age of the sender's last message alone gives 0.967. `--loader pyg` needs pyg-lib;
on torch-sparse PyG has no times of edges, and raises ImportError.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, college_messages, loader_options, roc_auc
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MLP, SimpleConv, TransformerConv

args = arguments(__doc__, epochs=2, data="collegemsg")
if args.loader == "datapipes":
    from datapipes.pyg.loader import LinkNeighborLoader
else:
    from torch_geometric.loader import LinkNeighborLoader

torch.manual_seed(args.seed)
messages = college_messages(args.data)
num_messages = messages.num_edges
data = Data(  # a message is an edge to its receiver and one to its sender
    x=torch.randn(messages.num_nodes, 64) / 8,
    edge_index=torch.cat([messages.edge_index, messages.edge_index.flip(0)], dim=1),
    time=messages.time.repeat(2),
)

kwargs = {"time_attr": "time", "temporal_strategy": "last", "neg_sampling": "binary", "batch_size": 512}
kwargs |= loader_options(args)


def loader_of(first: float, last: float, shuffle: bool = False) -> LinkNeighborLoader:
    part = slice(int(first * num_messages), int(last * num_messages))
    links, times = messages.edge_index[:, part], messages.time[part] - 1
    return LinkNeighborLoader(
        data, num_neighbors=[10, 5], edge_label_index=links, edge_label_time=times, shuffle=shuffle, **kwargs
    )


train_loader = loader_of(0, 0.7, shuffle=True)
val_loader, test_loader = loader_of(0.7, 0.85), loader_of(0.85, 1)


class Model(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mean = SimpleConv(aggr="mean")
        self.conv1 = TransformerConv(data.num_features, channels, edge_dim=1)
        self.conv2 = TransformerConv(channels, channels, edge_dim=1)
        self.score = MLP([2 * channels + 2, channels, 1], norm=None)

    def forward(self, batch: Data) -> Tensor:
        # `batch.batch` is the number of the link that a node is in a tree of; negatives come after the links
        link_time = batch.edge_label_time[batch.batch[batch.edge_index[1]]]
        age = ((link_time - batch.time).float() / 86_400).log1p().unsqueeze(-1)
        h = self.conv1(batch.x, batch.edge_index, age).relu()
        h = self.conv2(h, batch.edge_index, age).relu()
        mean = self.mean(batch.x, batch.edge_index)
        src, dst = batch.edge_label_index
        contact = torch.stack([(mean[src] * batch.x[dst]).sum(dim=-1), (batch.x[src] * mean[dst]).sum(dim=-1)], dim=-1)
        return self.score(torch.cat([h[src], h[dst], contact], dim=-1)).squeeze(-1)


model = Model(64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


@torch.no_grad()
def test(loader: LinkNeighborLoader) -> float:
    model.eval()
    found = [(model(batch), batch.edge_label) for batch in loader]
    scores, labels = map(torch.cat, zip(*found, strict=True))
    return roc_auc(scores, labels)


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch.edge_label)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch:2d}  validation AUC {test(val_loader):.4f}", flush=True)
print(f"test AUC {test(test_loader):.4f}")
