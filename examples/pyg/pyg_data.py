"""What the scripts of this folder share: data sets as PyG's Data and HeteroData, the command line, the area under ROC.

The scripts themselves are those of a user of PyG: only the import of the loader or sampler differs by `--loader`.
docs/migrate/pyg.md says which of PyG's own examples each is written after, and what it reaches with either loader.
Each data set is a function of the folder where its files lie; the graph of Debian's packages is embedded.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import datapipes as dp

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


def arguments(text: str, *, epochs: int, data: str | None) -> argparse.Namespace:
    """Return the options that all scripts have; `data` is the name of a folder in shared/data, None if embedded."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--loader", choices=("datapipes", "pyg"), default="datapipes", help="whose loader is imported")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--workers", type=int, default=0, help="processes of each loader")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and draws")
    if data is not None:
        parser.add_argument("--data", type=Path, default=DATA / data, help="the folder with the files of the data set")
    return parser.parse_args()


def loader_options(args: argparse.Namespace) -> dict[str, object]:
    """Return arguments of a loader, ours or PyG's: its workers, and a generator of the seed for order and draws."""
    generator = torch.Generator().manual_seed(args.seed)
    return {"num_workers": args.workers, "persistent_workers": args.workers > 0, "generator": generator}


def coauthor_cs(folder: Path) -> Data:
    """Return Coauthor CS: 18,333 authors, 15 fields, the words of their papers; 20 authors of each field train."""
    return _of_nodes(dp.datasets.open(folder, normalize_features=True))


def amazon_photo(folder: Path) -> Data:
    """Return Amazon Photo: 7,650 products, 8 categories, the words of their reviews; 20 of each category train."""
    return _of_nodes(dp.datasets.open(folder))


def cora(folder: Path) -> Data:
    """Return Cora: 2,708 papers, 7 topics; 20 papers of each topic train."""
    return _of_nodes(dp.datasets.open(folder))


def citeseer(folder: Path) -> Data:
    """Return CiteSeer: 3,327 papers, 6 topics; 20 papers of each topic train."""
    return _of_nodes(dp.datasets.open(folder))


def minesweeper(folder: Path) -> Data:
    """Return Minesweeper: 10,000 squares of a board; the fifth that has mines is to be found. Half of all train.

    `x` says of half of the squares how many of the eight around them have mines.
    """
    return _of_nodes(dp.datasets.open(folder))


def aifb(folder: Path) -> HeteroData:
    """Return AIFB: 8,283 entities of one type without features, 90 edge types, the reverse ones included.

    The groups of 176 persons are to be predicted, of 4 groups; 140 of them train.
    """
    dataset = dp.datasets.open(folder)
    data = HeteroData()
    data["entity"].num_nodes = dataset.graph.num_nodes_of("entity")
    _set_task(data["entity"], dataset, "entity")
    for kind in dataset.graph.edge_types:
        name = re.sub(r"\W+", "_", kind[1])  # HeteroConv takes no dots, and no "___"
        data["entity", name, "entity"].edge_index = _edge_index(dataset.graph.relation(kind))
    return data


def acm(folder: Path, split: int = 0) -> HeteroData:
    """Return ACM: 4,019 papers with words, of 3 classes, their authors and subjects, with the reverse edge types.

    Authors and subjects have no features.

    Args:
        split: 0, 1, 2 for 20, 40, 60 training papers of each class.
    """
    dataset = dp.datasets.open(folder, split=split)
    data = HeteroData()
    for kind in dataset.graph.node_types:
        data[kind].num_nodes = dataset.graph.num_nodes_of(kind)
    data["paper"].x = (dataset.features["node", "paper", "feat"].tensor > 0).float()  # 1 for each of its words
    _set_task(data["paper"], dataset, "paper")
    for kind in dataset.graph.edge_types:
        data[kind].edge_index = _edge_index(dataset.graph.relation(kind))
    return data


def college_messages(folder: Path) -> Data:
    """Return CollegeMsg: 59,835 messages between 1,899 students, in the order of their `time`, in seconds."""
    dataset = dp.datasets.open(folder)
    parts = [
        items.take(torch.arange(len(items))) for items in (dataset.train_set, dataset.validation_set, dataset.test_set)
    ]
    messages, time = (torch.cat([part[name] for part in parts]) for name in ("seeds", "timestamps"))
    return Data(edge_index=messages.T.contiguous(), time=time, num_nodes=dataset.graph.num_nodes)


def bitcoin_ratings(folder: Path) -> Data:
    """Return Bitcoin OTC: 35,592 ratings of 5,881 traders by each other, in the order of their `time`, in seconds.

    `edge_attr` has the rating, from -1 for fraud to 1 for full trust.
    """
    dataset = dp.datasets.open(folder)
    ratings = Data(edge_index=_edge_index(dataset.graph), num_nodes=dataset.graph.num_nodes)
    ratings.edge_attr = dataset.features["edge", None, "rating"].tensor.unsqueeze(-1) / 10
    ratings.time = dataset.graph.edge_attributes["time"].long()
    return ratings.sort_by_time()


def debian_packages(width: int = 128) -> Data:
    """Return the packages of Debian 12 by their dependencies, in both directions; 58 sections are to be predicted.

    `x` has `width` topics of the words of the description: latent semantic analysis (Deerwester et al., 1990).
    """
    dataset = dp.datasets.debian_packages()
    words = dataset.features["node", None, "words"].tensor.long()  # padded with the number of words
    num_packages, num_words = dataset.features["node", None, "feat"].tensor.shape
    rarity = torch.log(num_packages / (1.0 + words.flatten().bincount(minlength=num_words + 1)))
    is_word = words < num_words
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), is_word.sum(1).cumsum(0)])
    bags = torch.sparse_csr_tensor(offsets, words[is_word], rarity[words[is_word]], (num_packages, num_words))
    _, directions = torch.linalg.eigh((bags.transpose(0, 1).to_sparse_csr() @ bags).to_dense())
    topics = bags @ directions[:, -width:]
    return _of_nodes(dataset, topics / topics.std())


def roc_auc(scores: Tensor, labels: Tensor) -> float:
    """Return the share of pairs (a positive, a negative) whose scores have the right order; a tie counts half."""
    positive, negative = scores[labels == 1], scores[labels == 0].sort().values
    below, not_above = torch.searchsorted(negative, positive), torch.searchsorted(negative, positive, right=True)
    return float((below + not_above).double().mean() / (2 * len(negative)))


def regression(h: Tensor, y: Tensor, weight_decay: float = 1e-3) -> torch.nn.Linear:
    """Return a logistic regression of the topics `y` on the vectors `h`."""
    linear = torch.nn.Linear(h.shape[1], int(y.max()) + 1)
    lbfgs = torch.optim.LBFGS(linear.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        lbfgs.zero_grad()
        loss = F.cross_entropy(linear(h), y) + weight_decay * linear.weight.square().sum()
        loss.backward()
        return loss

    lbfgs.step(closure)
    return linear


def _of_nodes(dataset: dp.datasets.Dataset, x: Tensor | None = None) -> Data:
    x = dataset.features["node", None, "feat"].tensor if x is None else x
    data = Data(x=x, edge_index=_edge_index(dataset.graph))
    _set_task(data, dataset, None)
    return data


def _set_task(store, dataset: dp.datasets.Dataset, kind: str | None) -> None:
    """Set `y`, -1 for a node without a label, and the three masks."""
    num_nodes = dataset.graph.num_nodes_of(kind)
    store.y = torch.full((num_nodes,), -1)
    parts = {"train_mask": dataset.train_set, "val_mask": dataset.validation_set, "test_mask": dataset.test_set}
    for name, items in parts.items():
        items = items if kind is None else items.item_sets[kind]
        found = items.take(torch.arange(len(items)))
        store.y[found["seeds"]] = found["labels"]
        store[name] = torch.zeros(num_nodes, dtype=torch.bool)
        store[name][found["seeds"]] = True


def _edge_index(graph: dp.CSCGraph) -> Tensor:
    destinations = torch.repeat_interleave(torch.arange(len(graph.indptr) - 1), graph.indptr.diff())
    return torch.stack([graph.indices.long(), destinations])
