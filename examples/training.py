"""The parts of training that the examples share, besides the model: pipeline, training epoch, evaluation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from graphsage import GraphSAGE, RowEncoder, WordEncoder
from torch import Tensor
from torch.nn import functional as F

import datapipes as dp

try:
    from tqdm import tqdm
except ImportError:  # progress bars are optional; the epochs are printed without them too
    tqdm = None


@dataclass(frozen=True)
class Settings:
    """Settings of training; the command line overrides any. `settings_for` gives the defaults."""

    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    hidden: int = 256
    epochs: int = 16
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    dropout: float = 0.5
    feature_dropout: float = 0.1
    own_map: bool = True  # False: one map for a node's own vector and its neighbors'
    averaging: float = 0.0  # of the weights after each epoch, a running mean with this share of the old is evaluated


MIN_STEPS = 600  # fewer steps of the optimizer leave a new model half trained
MIN_STEPS_FEW_LABELS = 240  # more do not help here
MIN_NODES = 30  # around a seed; a model that sees fewer makes little use of the graph
MAX_HOPS = 5
FEW_NUMBERS = 64  # in a row of features: none says what another says, so each is needed


def settings_for(data: dp.datasets.Dataset) -> Settings:
    """Return settings by what can be counted in `data`; no data set has settings of its own.

    A model learns few labels by heart, so it gets fewer units, layers and maps, more dropout and decay, small
    minibatches, and the mean of its weights over some epochs: a single epoch's weights are noisy.
    """
    num_labels = len(data.train_set)
    if num_labels >= 5000:
        hops, min_steps = hops_for(data, 10), MIN_STEPS
        # Dropout in each layer: with more layers less, so that as much gets through all of them.
        settings = Settings(fanouts=(10,) * hops, dropout=1 - (1 - Settings.dropout) ** (2 / hops))
    else:
        min_steps = MIN_STEPS_FEW_LABELS
        settings = Settings(
            batch_size=32,
            hidden=128,
            learning_rate=3e-3,
            weight_decay=1.0,
            dropout=0.7,
            feature_dropout=0.5,
            own_map=False,
            averaging=0.8,
        )
    if row_width(data) < FEW_NUMBERS:
        settings = replace(settings, feature_dropout=0.0)
    steps_per_epoch = math.ceil(num_labels / settings.batch_size)
    return replace(settings, epochs=max(settings.epochs, math.ceil(min_steps / steps_per_epoch)))


def hops_for(data: dp.datasets.Dataset, fanout: int) -> int:
    """Return how many hops, 2 to MAX_HOPS, it takes until a hundred seeds see MIN_NODES nodes on average."""
    for hops in range(2, MAX_HOPS):
        one_by_one = dp.ItemSampler(data.train_set, batch_size=1, shuffle=True).sample_neighbor(
            data.graph, [fanout] * hops
        )
        nodes = [len(minibatch.input_nodes) for minibatch in itertools.islice(one_by_one, 100)]
        if sum(nodes) >= MIN_NODES * len(nodes):
            return hops
    return MAX_HOPS


def node_key(data: dp.datasets.Dataset) -> str:
    """Return the node feature to train on: word ids if there are some, since they are shorter than the bag."""
    return "words" if ("node", None, "words") in data.features else "feat"


def row_width(data: dp.datasets.Dataset) -> int:
    """Return how many numbers a row of "feat" has."""
    return torch.Size(data.features["node", None, "feat"].shape).numel()


def has_direction(data: dp.datasets.Dataset) -> bool:
    """Return whether the edges have a direction, as in the embedded data."""
    return ("edge", None, "direction") in data.features


def pipeline(
    data: dp.datasets.Dataset,
    items: dp.ItemSet,
    fanouts: Iterable[int],
    batch_size: int,
    *,
    shuffle: bool,
    seed: int = 0,
) -> dp.Stage:
    """Return the chain of stages: seeds, their neighborhood, its features.

    Training and evaluation use the same chain with other arguments.
    """
    pipe = dp.ItemSampler(items, batch_size, shuffle=shuffle, seed=seed)
    pipe = pipe.sample_neighbor(data.graph, list(fanouts), return_edge_ids=has_direction(data))
    edge_keys = ["direction"] if has_direction(data) else None
    return pipe.fetch_feature(data.features, node_feature_keys=[node_key(data)], edge_feature_keys=edge_keys)


def make_model(data: dp.datasets.Dataset, settings: Settings) -> GraphSAGE:
    """Return a new model for `data`; its weights depend on torch's global seed."""
    key = node_key(data)
    if key == "words":
        num_words = data.features["node", None, "feat"].shape[0]
        encoder = WordEncoder(num_words, settings.hidden, settings.feature_dropout)
    else:
        encoder = RowEncoder(row_width(data), settings.hidden, settings.feature_dropout)
    widths = [settings.hidden] * len(settings.fanouts) + [data.num_classes]
    return GraphSAGE(encoder, widths, 2 if has_direction(data) else 1, settings.dropout, settings.own_map)


def scores(model: GraphSAGE, minibatch: dp.MiniBatch) -> Tensor:
    """Return the model's scores [num_seeds, num_classes], one row per seed of the minibatch."""
    (features,) = minibatch.node_features.values()
    edge_features = minibatch.edge_features or [{}] * minibatch.num_layers
    directions = [given.get("direction") for given in edge_features]
    return model(minibatch.blocks, features, directions)[minibatch.compacted_seeds]


def train_epoch(
    model: GraphSAGE,
    loader: dp.DataLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    title: str = "train",
) -> tuple[float, float]:
    """Train on one epoch of `loader`; return its mean loss and accuracy."""
    model.train()
    loss_sum = correct = count = 0.0
    for minibatch in bar(loader, title):
        predicted = scores(model, minibatch)
        loss = F.cross_entropy(predicted, minibatch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        loss_sum += float(loss.detach()) * len(minibatch.labels)
        correct += int((predicted.argmax(1) == minibatch.labels).sum())
        count += len(minibatch.labels)
    return loss_sum / count, correct / count


@torch.no_grad()
def evaluate(
    model: GraphSAGE, data: dp.datasets.Dataset, items: dp.ItemSet, title: str = "evaluate", metric: str = "accuracy"
) -> float:
    """Return the metric, a name in METRICS, on `items` with all neighbors: the chain of training with fanout -1.

    Neighborhoods overlap, so few large minibatches compute fewer nodes than many small ones.
    """
    model.eval()
    pipe = pipeline(data, items, [-1] * len(model.layers), 8192, shuffle=False)
    predicted, labels = [], []
    with dp.DataLoader(pipe) as loader:
        for minibatch in bar(loader, title):
            predicted.append(scores(model, minibatch))
            labels.append(minibatch.labels)
    return METRICS[metric](torch.cat(predicted), torch.cat(labels))


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Return the share of rows of `predicted`, [n, num_classes], whose highest score is that of the label."""
    return float((predicted.argmax(1) == labels).double().mean())


def roc_auc(predicted: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve: how likely a node of class 1 scores higher than one of class 0.

    This is the rank sum of Mann and Whitney. Equal scores share the mean of their ranks.
    """
    if predicted.shape[1] != 2:
        raise ValueError(f"roc_auc: there are {predicted.shape[1]} classes, must be 2. Use accuracy.")
    _, place, times = (predicted[:, 1] - predicted[:, 0]).unique(return_inverse=True, return_counts=True)
    last = times.cumsum(0).double()
    ranks = (last - (times - 1) / 2)[place]
    positive = labels == 1
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    return float(ranks[positive].sum() - num_positive * (num_positive + 1) / 2) / (num_positive * num_negative)


METRICS = {"accuracy": accuracy, "auc": roc_auc}


def bar(loader: dp.DataLoader, title: str) -> Iterator[dp.MiniBatch]:
    """Return the minibatches of one epoch, with a progress bar if tqdm is installed and the output is a terminal."""
    if tqdm is None:
        return iter(loader)
    return iter(tqdm(loader, desc=title, leave=False, disable=None, unit="minibatch"))
