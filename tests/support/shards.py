"""Graphs whose shards lie on several ranks; the slow equivalent of what the ranks write together; ranks as threads."""

import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import datapipes as dp
from datapipes.datasets import LoadedGraphTensors
from datapipes.datasets.tfrecord.loaded import FIELDS
from datapipes.datasets.tfrecord.to_partition import write_tensors
from datapipes.distributed import Partitioner
from datapipes.partition.across_ranks.exchange import Exchange

USER, ITEM, TAG = "user", "item", "tag"
BUYS, LIKES = (USER, "buys", ITEM), (USER, "likes", USER)
BOUND_S = 60.0  # of a wait for another rank
_NODE_FIELDS = ("node_ids", "node_features", "node_labels")
_LINK_FIELDS = ("positive_label", "negative_label")


def loaded(**fields: Any) -> LoadedGraphTensors:
    return LoadedGraphTensors(**{**dict.fromkeys(FIELDS), **fields})


def graph_without_types(num_nodes: int, num_edges: int, rng_seed: int = 0, *, kind: str = "all") -> LoadedGraphTensors:
    """As one rank loads it: ids in any order, self-loops and parallel edges. `kind` says what nodes and edges have."""
    made = torch.Generator().manual_seed(rng_seed)
    given = loaded(
        node_ids=torch.randperm(num_nodes, generator=made),
        edge_index=torch.randint(0, max(num_nodes, 1), (2, num_edges), generator=made),
    )
    if kind in ("all", "links"):
        given.node_features = torch.randn(num_nodes, 3, generator=made)
        given.edge_features = torch.randint(0, 99, (num_edges, 2), generator=made).to(torch.int16)
        given.edge_weights = torch.rand(num_edges, generator=made)
    if kind == "all":
        given.node_labels = torch.randint(-2, 3, (num_nodes, 1), generator=made)
    if kind == "tasks":
        given.node_labels = torch.randint(-1, 2, (num_nodes, 3), generator=made).float()
        given.node_labels[torch.rand(num_nodes, 3, generator=made) < 0.2] = torch.nan
    if kind == "links":
        given.positive_label = torch.randint(0, num_nodes, (2, 7), generator=made)
        given.negative_label = torch.randint(0, num_nodes, (2, 4), generator=made)
    return given


def graph_with_types(counts: Sequence[int], num_edges: Sequence[int], rng_seed: int = 0) -> LoadedGraphTensors:
    """Users have labels and features, items float16 features, tags nothing; users buy items and like users."""
    made = torch.Generator().manual_seed(rng_seed)
    users, items, _ = counts
    bought, liked = num_edges
    edges = {
        LIKES: torch.randint(0, max(users, 1), (2, liked), generator=made),
        BUYS: torch.stack([torch.randint(0, max(size, 1), (bought,), generator=made) for size in (users, items)]),
    }
    return loaded(
        node_ids={
            kind: torch.randperm(size, generator=made) for kind, size in zip((USER, ITEM, TAG), counts, strict=True)
        },
        node_features={USER: torch.randn(users, 3, generator=made), ITEM: torch.randn(items, 2, generator=made).half()},
        node_labels={USER: torch.randint(-1, 4, (users, 1), generator=made)},
        edge_index=edges,
        edge_weights={BUYS: torch.rand(bought, generator=made)},
        edge_features={BUYS: torch.randn(bought, 4, generator=made)},
    )


def cut(graph: LoadedGraphTensors, num_ranks: int, rng_seed: int = 0) -> list[LoadedGraphTensors]:
    """Shards of uneven sizes, in the order of the graph; the last rank of three and more has nothing."""
    made = np.random.default_rng(rng_seed)
    shards = [loaded() for _ in range(num_ranks)]
    of_nodes = {kind: _bounds(made, ids.shape[0], num_ranks) for kind, ids in graph.by_type("node_ids").items()}
    of_edges = {kind: _bounds(made, each.shape[1], num_ranks) for kind, each in graph.by_type("edge_index").items()}
    for name in FIELDS:
        if getattr(graph, name) is None:
            continue
        dim = 1 if name in ("edge_index", *_LINK_FIELDS) else 0
        bounds = of_nodes if name in _NODE_FIELDS else of_edges
        if name in _LINK_FIELDS:
            bounds = {kind: _bounds(made, each.shape[1], num_ranks) for kind, each in graph.by_type(name).items()}
        for rank, shard in enumerate(shards):
            found = {
                kind: rows.narrow(
                    dim, int(bounds[kind][rank]), int(bounds[kind][rank + 1] - bounds[kind][rank])
                ).clone()
                for kind, rows in graph.by_type(name).items()
            }
            setattr(shard, name, found.get(None, found))
    for rank, shard in enumerate(shards):
        shard._rank, shard._num_ranks = rank, num_ranks
    return shards


def _bounds(made: np.random.Generator, count: int, num_ranks: int) -> np.ndarray:
    filled = num_ranks - (num_ranks > 2)
    inner = np.sort(made.integers(0, count + 1, filled - 1))
    return np.concatenate(([0], inner, [count] * (num_ranks - filled + 1)))


# --- slow and obvious


def whole_dataset(graph: LoadedGraphTensors) -> dp.datasets.Dataset:
    """The data set of a graph that one rank has loaded, row by row."""
    of_nodes = {}
    for kind, ids in graph.by_type("node_ids").items():
        order = [ids.tolist().index(node) for node in range(ids.shape[0])]
        of_nodes[kind] = {
            name: graph.by_type(name)[kind][order] for name in _NODE_FIELDS[1:] if kind in graph.by_type(name)
        }
    edges = graph.by_type("edge_index")
    weights = {kind: {"weight": values} for kind, values in graph.by_type("edge_weights").items()}
    counts = {kind: ids.shape[0] for kind, ids in graph.by_type("node_ids").items()}
    if None in edges:
        found = dp.CSCGraph.from_edge_index(edges[None], counts[None], edge_attributes=weights.get(None))
    else:
        found = dp.HeteroCSCGraph.from_edge_index(edges, counts, edge_attributes=weights)
    features = {
        ("node", kind, "feat"): dp.TensorFeature(each["node_features"])
        for kind, each in of_nodes.items()
        if "node_features" in each
    }
    for kind, values in graph.by_type("edge_features").items():
        features["edge", kind, "feat"] = dp.TensorFeature(values)
    train = {kind: _labelled(each["node_labels"]) for kind, each in of_nodes.items() if "node_labels" in each}
    task = "node_classification"
    if not train and graph.positive_label is not None:
        pairs = torch.cat([graph.positive_label, graph.negative_label], dim=1).T
        train, task = {None: dp.ItemSet(pairs, names="seeds")}, "link_prediction"
    elif not train:
        train = {kind: dp.ItemSet(count) for kind, count in counts.items()}
    nothing = {kind: items.take(torch.arange(0)) for kind, items in train.items()}
    empty = {kind: dp.ItemSet(tuple(rows.values()), tuple(rows)) for kind, rows in nothing.items()}
    sets = [each[None] if None in each else dp.HeteroItemSet(each) for each in (train, empty, empty)]
    return dp.datasets.Dataset("whole", found, dp.FeatureStore(features), *sets, 0, (), task=task)


def _labelled(labels: Tensor) -> dp.ItemSet:
    has_label = math.isfinite if labels.is_floating_point() else lambda label: label >= 0
    ids = torch.tensor(
        [node for node, row in enumerate(labels.tolist()) if all(map(has_label, row))], dtype=torch.int64
    )
    rows = labels[ids]
    return dp.ItemSet((ids, rows[:, 0] if labels.shape[1] == 1 else rows), ("seeds", "labels"))


def write_whole(graph: LoadedGraphTensors, num_parts: int, root: Path) -> Any:
    """The partition of one process that has all of the graph."""
    return Partitioner(whole_dataset(graph), num_parts, root, method="range", layouts=("native",)).generate_partition()


def files_of(root: Path) -> dict[str, Any]:
    """The content of all files of a partition; partition.json without what differs from run to run."""
    found: dict[str, Any] = {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }
    manifest = json.loads(found["partition.json"])
    assert [manifest["report"].pop(name) is not None for name in ("seconds", "memory_bytes")] == [True, True]
    del manifest["hash"]
    return {**found, "partition.json": manifest, "order": [*manifest["files"]]}


# --- ranks as threads of this process: fast, and no rank can fail


class ThreadRanks(Exchange):
    """One of several threads that call the same."""

    def __init__(self, rank: int, size: int, barrier: threading.Barrier, sent: list) -> None:
        super().__init__("to_partition", BOUND_S)
        self.rank, self.size = rank, size
        self._barrier, self._sent = barrier, sent

    def vote(self) -> None:
        self._barrier.wait(BOUND_S)

    def to_each(self, messages: Sequence[Tensor]) -> list[Tensor]:
        self._sent[self.rank] = [message.clone() for message in messages]
        self.vote()
        found = [torch.cat(self._sent[rank][self.rank : self.rank + 1]) for rank in range(self.size)]
        self.vote()
        return found


def in_threads(shards: Sequence[LoadedGraphTensors], roots: Sequence[Path]) -> list[Any]:
    """What `write_tensors` returns or raises on each rank."""
    size = len(shards)
    barrier, sent = threading.Barrier(size), [None] * size
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            fields = {name: shards[rank].by_type(name) for name in FIELDS}
            results[rank] = write_tensors(ThreadRanks(rank, size, barrier, sent), fields, roots[rank])
            barrier.wait(BOUND_S)
        except Exception as error:
            results[rank] = error
            barrier.abort()

    _join([threading.Thread(target=run, args=(rank,)) for rank in range(size)])
    return results


def _join(threads: Sequence[threading.Thread]) -> None:
    for each in threads:
        each.start()
    for each in threads:
        each.join(BOUND_S)
