"""Predict which traders of Bitcoin OTC will be distrusted, from the ratings that came before.

Run: python examples/pyg/signed_links.py [--loader pyg]

Every rating is a seed with a label, 1 if it is below 0, and a time: its trees hold only earlier ratings. No pairs are
drawn. The ratings themselves are `edge_attr`, a row for each edge, and the traders have no features. The first 0.7 of
the ratings train, the last 0.15 test. Prints the area under the ROC curve. `--loader pyg` needs pyg-lib: torch-sparse
does not sample by times of edges.
"""

import torch
import torch.nn.functional as F
from pyg_data import arguments, bitcoin_ratings, loader_options, roc_auc
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import MLP, GINEConv

args = arguments(__doc__, epochs=4, data="bitcoin_otc")
if args.loader == "datapipes":
    from datapipes.pyg.loader import LinkNeighborLoader
else:
    from torch_geometric.loader import LinkNeighborLoader

torch.manual_seed(args.seed)
ratings = bitcoin_ratings(args.data)
count = ratings.num_edges
is_reverse = torch.arange(2 * count) >= count
data = Data(  # a rating is an edge to the trader who is rated and one back, told apart by the second column
    num_nodes=ratings.num_nodes,
    edge_index=torch.cat([ratings.edge_index, ratings.edge_index.flip(0)], dim=1),
    edge_attr=torch.cat([ratings.edge_attr.repeat(2, 1), is_reverse.float().unsqueeze(-1)], dim=1),
    time=ratings.time.repeat(2),
)

kwargs = {"num_neighbors": [15, 10], "time_attr": "time", "temporal_strategy": "last", "batch_size": 256}
kwargs |= loader_options(args)


def loader_of(first: float, last: float, shuffle: bool = False) -> LinkNeighborLoader:
    part = slice(int(first * count), int(last * count))
    return LinkNeighborLoader(
        data,
        edge_label_index=ratings.edge_index[:, part],
        edge_label=(ratings.edge_attr[part, 0] < 0).float(),
        edge_label_time=ratings.time[part] - 1,
        shuffle=shuffle,
        **kwargs,
    )


train_loader = loader_of(0, 0.7, shuffle=True)
val_loader, test_loader = loader_of(0.7, 0.85), loader_of(0.85, 1)


class Model(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.start = torch.nn.Parameter(torch.randn(channels) / 8)  # the vector of every trader
        self.conv1 = GINEConv(MLP([channels, channels, channels], norm=None), edge_dim=2)
        self.conv2 = GINEConv(MLP([channels, channels, channels], norm=None), edge_dim=2)
        self.score = MLP([2 * channels, channels, 1], norm=None)

    def forward(self, batch: Data) -> Tensor:
        h = self.start.expand(batch.num_nodes, -1)
        h = self.conv1(h, batch.edge_index, batch.edge_attr).relu()
        h = self.conv2(h, batch.edge_index, batch.edge_attr).relu()
        rater, rated = batch.edge_label_index
        return self.score(torch.cat([h[rater], h[rated]], dim=-1)).squeeze(-1)


model = Model(32)
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
