"""The parts of training that the examples share, besides the models: pipeline, training epoch, evaluation.

A heterogeneous data set has the seeds of one node type, the target. Its minibatches have a dict where others have a
tensor; `target_of` says which of the two it is, and the rest is the same chain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from graphsage import GraphSAGE, RowEncoder, WordEncoder
from hetero_graphsage import HeteroGraphSAGE, NodeVectors, TypeVector
from torch import Tensor, nn
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
    own_map: bool = True  # False: one map for a node's own vector and its neighbors'; True in a heterogeneous graph
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
    target = target_of(data)
    if target in node_keys(data) and row_width(data, target) < FEW_NUMBERS:
        settings = replace(settings, feature_dropout=0.0)
    if target is not None:  # the neighbors are of other types, so no map is that of a node and its neighbors
        settings = replace(settings, own_map=True)
    steps_per_epoch = math.ceil(num_labels / settings.batch_size)
    return replace(settings, epochs=max(settings.epochs, math.ceil(min_steps / steps_per_epoch)))


def hops_for(data: dp.datasets.Dataset, fanout: int) -> int:
    """Return how many hops, 2 to MAX_HOPS, it takes until a hundred seeds see MIN_NODES nodes on average."""
    for hops in range(2, MAX_HOPS):
        one_by_one = dp.ItemSampler(data.train_set, batch_size=1, shuffle=True).sample_neighbor(
            data.graph, [fanout] * hops
        )
        nodes = [num_input_nodes(minibatch) for minibatch in itertools.islice(one_by_one, 100)]
        if sum(nodes) >= MIN_NODES * len(nodes):
            return hops
    return MAX_HOPS


def num_input_nodes(minibatch: dp.MiniBatch) -> int:
    """Return the number of input nodes of all types."""
    nodes = minibatch.input_nodes
    return sum(map(len, nodes.values())) if isinstance(nodes, dict) else len(nodes)


def target_of(data: dp.datasets.Dataset) -> str | None:
    """Return the node type of the seeds; None for a graph without types."""
    if not data.graph.is_heterogeneous:
        return None
    (target,) = data.train_set.types
    return target


def node_keys(data: dp.datasets.Dataset) -> dict[str | None, str]:
    """Return the node feature to train on, by node type; types without features are left out.

    Word ids are taken if there are some, since they are shorter than the bag.
    """
    found = {
        node_type: [name for name in ("words", "feat") if ("node", node_type, name) in data.features]
        for node_type in data.graph.node_types
    }
    return {node_type: names[0] for node_type, names in found.items() if names}


def row_width(data: dp.datasets.Dataset, node_type: str | None = None) -> int:
    """Return how many numbers a row of "feat" has."""
    return torch.Size(data.features["node", node_type, "feat"].shape).numel()


def with_stored_features(data: dp.datasets.Dataset, stored_as: str, width: int = 128) -> dp.datasets.Dataset:
    """Return `data` with float32 node features "feat" that are stored as `stored_as`, and no word ids.

    Rows of 0 and 1 come back the same however they are stored, so that nothing would be shown: words become rows of
    `width` numbers first.
    """
    if not any(key[::2] == ("node", "feat") for key in data.features):
        raise ValueError(f"stored_as: {data.name} has no node feature 'feat' to store as {stored_as}. Leave it out.")
    features = {key: feature for key, feature in data.features.items() if key[0] != "node"}
    for node_type in data.graph.node_types:
        if ("node", node_type, "feat") in data.features:
            feature = data.features["node", node_type, "feat"]
            rows = feature.read(torch.arange(feature.count))
            rows = rows.float() if rows.is_floating_point() else topics(rows.flatten(1), width)
            stored = None if stored_as == "float32" else stored_as
            features["node", node_type, "feat"] = dp.TensorFeature(rows, stored_as=stored)
    return replace(data, features=dp.FeatureStore(features))


def topics(bags: Tensor, width: int) -> Tensor:
    """Return float32 [n, width] for bags of words [n, num_words]: latent semantic analysis (Deerwester et al., 1990).

    Words are weighted by how rare they are, and rows mapped to the `width` directions in which they differ most; of
    fewer words than `width` there are only as many.
    """
    weights = torch.log(len(bags) / (1.0 + (bags != 0).sum(0)))
    pieces = [bags[begin : begin + 4096].float() * weights for begin in range(0, len(bags), 4096)]
    _, directions = torch.linalg.eigh(sum(piece.T @ piece for piece in pieces))
    return torch.cat([piece @ directions[:, -width:] for piece in pieces])


def has_direction(data: dp.datasets.Dataset) -> bool:
    """Return whether the edges have a direction, as in the embedded data."""
    return ("edge", None, "direction") in data.features


def pipeline(
    data: dp.datasets.Dataset,
    items: dp.ItemSet | dp.HeteroItemSet,
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
    keys = {node_type: [name] for node_type, name in node_keys(data).items()}
    return pipe.fetch_feature(data.features, node_feature_keys=keys.get(None, keys), edge_feature_keys=edge_keys)


def make_model(data: dp.datasets.Dataset, settings: Settings) -> GraphSAGE | HeteroGraphSAGE:
    """Return a new model for `data`; its weights depend on torch's global seed."""
    encoders = {node_type: make_encoder(data, settings, node_type) for node_type in data.graph.node_types}
    widths = [settings.hidden] * len(settings.fanouts) + [data.num_classes]
    target = target_of(data)
    if target is None:
        return GraphSAGE(encoders[None], widths, 2 if has_direction(data) else 1, settings.dropout, settings.own_map)
    if not settings.own_map:
        raise ValueError("make_model: own_map is False, must be True for a heterogeneous graph. Leave it out.")
    return HeteroGraphSAGE(encoders, widths, data.graph.edge_types, target, settings.dropout)


def make_encoder(data: dp.datasets.Dataset, settings: Settings, node_type: str | None) -> nn.Module:
    """Return a new encoder of the nodes of one type.

    Where no type has features, each node gets a vector to learn. Where one has, its features reach the other types.
    """
    keys = node_keys(data)
    key = keys.get(node_type)
    if key is None:
        return TypeVector(settings.hidden) if keys else NodeVectors(data.graph.num_nodes[node_type], settings.hidden)
    width = row_width(data, node_type)
    return (WordEncoder if key == "words" else RowEncoder)(width, settings.hidden, settings.feature_dropout)


def scores(model: GraphSAGE | HeteroGraphSAGE, minibatch: dp.MiniBatch) -> Tensor:
    """Return the model's scores [num_seeds, num_classes], one row per seed of the minibatch."""
    if isinstance(minibatch.input_nodes, dict):
        features = minibatch.input_nodes | {key[0]: rows for key, rows in (minibatch.node_features or {}).items()}
        return model(minibatch.blocks, features)[minibatch.compacted_seeds[model.target]]
    (features,) = minibatch.node_features.values()
    edge_features = minibatch.edge_features or [{}] * minibatch.num_layers
    directions = [given.get("direction") for given in edge_features]
    return model(minibatch.blocks, features, directions)[minibatch.compacted_seeds]


def labels_of(minibatch: dp.MiniBatch) -> Tensor:
    """Return the labels of the seeds, which are of one type."""
    if isinstance(minibatch.labels, dict):
        (labels,) = minibatch.labels.values()
        return labels
    return minibatch.labels


def train_epoch(
    model: GraphSAGE | HeteroGraphSAGE,
    loader: dp.DataLoader,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
    title: str = "train",
) -> tuple[float, float]:
    """Train on one epoch of `loader`; return its mean loss and accuracy."""
    model.train()
    loss_sum = correct = count = 0.0
    for minibatch in bar(loader, title):
        predicted, labels = scores(model, minibatch), labels_of(minibatch)
        loss = F.cross_entropy(predicted, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        loss_sum += float(loss.detach()) * len(labels)
        correct += int((predicted.argmax(1) == labels).sum())
        count += len(labels)
    return loss_sum / count, correct / count


@torch.no_grad()
def evaluate(
    model: GraphSAGE | HeteroGraphSAGE,
    data: dp.datasets.Dataset,
    items: dp.ItemSet | dp.HeteroItemSet,
    title: str = "evaluate",
    metric: str = "accuracy",
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
            labels.append(labels_of(minibatch))
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
