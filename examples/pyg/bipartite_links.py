"""Predict who wrote a paper: links between the authors and papers of ACM, with drawn pairs as negatives.

Run: python examples/pyg/bipartite_links.py [--loader pyg]

`T.RandomLinkSplit` holds back a tenth of the links to validate and a tenth to test. In training the loader draws two
negatives for each link; those of validation and test are fixed, so their loaders draw none. An encoder by `to_hetero`
makes vectors of authors, papers and subjects, and a link scores the product of its ends' vectors. Authors and subjects
have a learned vector each. Prints the area under the ROC curve.
"""

import torch
import torch.nn.functional as F
import torch_geometric.transforms as T
from pyg_data import acm, arguments, loader_options, roc_auc
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import GraphSAGE, to_hetero

args = arguments(__doc__, epochs=5, data="acm_heco")
if args.loader == "datapipes":
    from datapipes.pyg.loader import LinkNeighborLoader
else:
    from torch_geometric.loader import LinkNeighborLoader

seed_everything(args.seed)  # the split draws its negatives from more generators than torch's
link_type, reverse_type = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
data = acm(args.data)
train_data, val_data, test_data = T.RandomLinkSplit(
    num_val=0.1,
    num_test=0.1,
    disjoint_train_ratio=0.3,  # a link either passes messages or is a seed
    neg_sampling_ratio=2.0,
    add_negative_train_samples=False,
    edge_types=link_type,
    rev_edge_types=reverse_type,
)(data)


def loader_of(part: HeteroData, **kwargs) -> LinkNeighborLoader:
    links, labels = (link_type, part[link_type].edge_label_index), part[link_type].edge_label
    kwargs |= {"batch_size": 256, **loader_options(args)}
    return LinkNeighborLoader(part, num_neighbors=[20, 10], edge_label_index=links, edge_label=labels, **kwargs)


train_loader = loader_of(train_data, neg_sampling={"mode": "binary", "amount": 2.0}, shuffle=True)
val_loader, test_loader = loader_of(val_data), loader_of(test_data)


class Model(torch.nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.words = torch.nn.Linear(data["paper"].num_features, channels)
        self.vectors = torch.nn.ModuleDict(
            {kind: torch.nn.Embedding(data[kind].num_nodes, channels) for kind in ("author", "subject")}
        )
        self.encoder = to_hetero(GraphSAGE(channels, channels, num_layers=2), data.metadata(), aggr="sum")

    def forward(self, batch: HeteroData) -> Tensor:
        x_dict = {kind: vectors(batch[kind].n_id) for kind, vectors in self.vectors.items()}
        x_dict["paper"] = self.words(batch["paper"].x)
        h_dict = self.encoder(x_dict, batch.edge_index_dict)
        author, paper = batch[link_type].edge_label_index
        return (h_dict["author"][author] * h_dict["paper"][paper]).sum(dim=-1)


model = Model(64)
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)


@torch.no_grad()
def test(loader: LinkNeighborLoader) -> float:
    model.eval()
    found = [(model(batch), batch[link_type].edge_label) for batch in loader]
    scores, labels = map(torch.cat, zip(*found, strict=True))
    return roc_auc(scores, labels)


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(batch), batch[link_type].edge_label)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch:2d}  validation AUC {test(val_loader):.4f}", flush=True)
print(f"test AUC {test(test_loader):.4f}")
