"""What the scripts of this folder share: data sets as PyG's Data and HeteroData, the command line, the area under ROC.

The scripts themselves are those of a user of PyG: only the import of the loader or sampler differs by `--loader`.
Each data set is a function of the folder where its files lie; the graph of Debian's packages is embedded.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
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
    parser.add_argument("--seed", type=int, default=0, help="of the weights, by torch.manual_seed")
    if data is not None:
        parser.add_argument("--data", type=Path, default=DATA / data, help="the folder with the files of the data set")
    return parser.parse_args()


def coauthor_cs(folder: Path) -> Data:
    """Return Coauthor CS: 18,333 authors, 15 fields, the words of their papers; 20 authors of each field train."""
    return _of_nodes(dp.datasets.open(folder, normalize_features=True))


def amazon_photo(folder: Path) -> Data:
    """Return Amazon Photo: 7,650 products, 8 categories, the words of their reviews; 20 of each category train."""
    return _of_nodes(dp.datasets.open(folder))


def cora(folder: Path) -> Data:
    """Return Cora: 2,708 papers, 7 topics; 20 papers of each topic train."""
    return _of_nodes(dp.datasets.open(folder))


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
