"""Predict links: negatives, exclusion of the seeds, and ranking, on four kinds of graphs.

* `debian` (embedded, the default): which package depends on which. ROC AUC against random pairs.
* the folder of ogbl-ddi: interactions of drugs, Hits@20 by OGB's rule against the negatives of its files.
* the folder of FB15k-237 (OpenKE's files): heads and tails of triples of 237 relations, filtered MRR over all entities.
* the folder of ACM (HeCo's files): papers for authors, a bipartite recommender, Recall@20 over all papers.

Every chain is: pairs, negatives, the neighborhood of both, without the seeds themselves. With `--parts K` the graph is
cut into parts behind servers of this process, and gives the same minibatches.

Run: python examples/link_prediction.py [--data PATH] [--seeds 3] [--parts 2]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from link_model import PLAIN, LinkModel, Settings
from torch import Tensor
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import datapipes as dp


@dataclass
class Task:
    """A graph without its validation and test links, and those.

    Attributes:
        split: item sets, and the graph that is sampled.
        features: {node type: rows [n, ...]}: bags of words, int and padded, or floats; nodes without get a vector each.
        reverses: {edge type: that of its reverses} of the edge types that are predicted; None without types.
        negatives: options of the negative sampler.
        shared: whether all nodes of a minibatch are negatives of each of its pairs, of both ends; for one node type.
        rank: returns the score of the validation or test set, given the model, the vectors of all nodes and the set.
    """

    name: str
    metric: str
    split: dp.LinkSplit
    features: dict[str, Tensor]
    reverses: dict[Any, Any] | None
    negatives: dict[str, Any]
    rank: Any
    settings: Settings
    shared: bool = False


# --- the chain


def chain(task: Task, graph: Any, seed: int) -> dp.Stage:
    """Return the chain of training: pairs, negatives, neighborhood, without the seeds, features."""
    settings = task.settings
    pipe = dp.ItemSampler(task.split.train_set, settings.batch_size, shuffle=True, seed=seed)
    pipe = pipe.sample_uniform_negative(graph, **task.negatives)
    pipe = pipe.sample_neighbor(graph, list(settings.fanouts))
    return fetched(task, pipe.exclude_seed_edges(True, task.reverses))


def fetched(task: Task, pipe: dp.Stage) -> dp.Stage:
    if not task.features:
        return pipe
    typed = task.reverses is not None
    rows = {("node", of if typed else None, "x"): dp.TensorFeature(each) for of, each in task.features.items()}
    return pipe.fetch_feature(dp.FeatureStore(rows), {of: ["x"] for of in task.features} if typed else ["x"])


def features_of(minibatch: dp.MiniBatch) -> dict[str, Tensor]:
    found = minibatch.node_features or {}
    return {key[0] if isinstance(key, tuple) else "node": rows for key, rows in found.items()}


def train_epoch(
    averaged: AveragedModel, model: LinkModel, task: Task, loader: dp.DataLoader, optimizer: torch.optim.Optimizer
) -> float:
    """Train an epoch; return the mean loss."""
    model.train()
    total, count = 0.0, 0
    for minibatch in loader:
        loss = loss_of(model, task, minibatch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        total, count = total + loss.item(), count + 1
    return total / count


def loss_of(model: LinkModel, task: Task, minibatch: dp.MiniBatch) -> Tensor:
    """Return the loss: of pairs, whether each is an edge; of rows, which of the nodes is the true one."""
    h = model(minibatch, features_of(minibatch))
    typed = isinstance(minibatch.seeds, dict)
    begins = dict(zip(h, np.cumsum([0, *map(len, h.values())]).tolist(), strict=False))
    every = torch.cat([*h.values()])  # all types in one table, so that all relations are scored at once
    rows, kinds = [], []
    for of, local in (minibatch.compacted_seeds if typed else {PLAIN: minibatch.compacted_seeds}).items():
        rows.append(local.long() + torch.tensor([begins[of[0]], *[begins[of[2]]] * (local.shape[1] - 1)]))
        kinds.append(torch.full((len(local),), model.relations[of]))
    seeds, of_relation = torch.cat(rows), torch.cat(kinds)
    if task.shared:
        every = F.dropout(every, model.dropout)
        relation = F.embedding(of_relation, model.of_relation[-1])
        heads, tails = seeds[:, 0], seeds[:, 1]
        loss = F.cross_entropy((F.embedding(heads, every) * relation) @ every.t(), tails)
        return loss + F.cross_entropy((F.embedding(tails, every) * relation) @ every.t(), heads)
    if seeds.shape[1] == 2:
        labels = torch.cat([*minibatch.labels.values()]) if typed else minibatch.labels
        scores = model.score(F.embedding(seeds[:, 0], every), F.embedding(seeds[:, 1], every), of_relation)
        return F.binary_cross_entropy_with_logits(scores, labels.float())
    scores = model.score(F.embedding(seeds[:, :1], every), F.embedding(seeds[:, 1:], every), of_relation[:, None])
    return F.cross_entropy(scores, torch.zeros(len(seeds), dtype=torch.int64))


@torch.no_grad()
def vectors_of_all(model: LinkModel, task: Task) -> dict[str, Tensor]:
    """Return the vectors of all nodes, from all of their neighbors, layer by layer as minibatches of nodes."""
    model.eval()
    graph, fanouts = task.split.graph, [-1] * len(task.settings.fanouts)
    items: Any = {of: dp.ItemSet(graph.num_nodes_of(of)) for of in graph.node_types}
    items = items[None] if None in items else dp.HeteroItemSet(items)
    found: dict[str, list[Tensor]] = {of: [] for of in model.types}
    for minibatch in fetched(task, dp.ItemSampler(items, 2**14).sample_neighbor(graph, fanouts)):
        local = minibatch.compacted_seeds
        h = model(minibatch, features_of(minibatch))
        for of, ids in (local if isinstance(local, dict) else {"node": local}).items():
            found[of].append(h[of][ids.long()])
    return {of: torch.cat(each) for of, each in found.items()}


@contextmanager
def in_parts(graph: Any, num_parts: int) -> Iterator[Any]:
    """Give the graph; with parts, a DistGraph over servers of this process."""
    if num_parts < 2:
        yield graph
        return
    with ExitStack() as stack:
        root = stack.enter_context(tempfile.TemporaryDirectory())
        dp.distributed.Partitioner(graph, num_parts, root, layouts=("native",)).generate_partition()
        servers = [stack.enter_context(dp.distributed.PartitionServer(root, part)) for part in range(num_parts)]
        namebook = {part: str(server.address) for part, server in enumerate(servers)}
        parts = dp.distributed.DistGraph.connect(root, namebook)
        stack.callback(parts.close)
        yield parts


def run(task: Task, seed: int, num_parts: int) -> tuple[float, float]:
    """Train with a seed; return the score of the test set at the epoch that was best in validation, and that one."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision(task.settings.precision)
    model = LinkModel(task.split.graph, task.features, task.settings)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(task.settings.averaging))
    optimizer = torch.optim.Adam(model.parameters(), lr=task.settings.learning_rate)
    best, test, began = -1.0, 0.0, time.monotonic()
    with in_parts(task.split.graph, num_parts) as graph, dp.DataLoader(chain(task, graph, seed)) as loader:
        for epoch in range(task.settings.epochs):
            loss = train_epoch(averaged, model, task, loader, optimizer)
            if (epoch + 1) % max(task.settings.epochs // 10, 1) == 0 or epoch + 1 == task.settings.epochs:
                vectors = vectors_of_all(averaged.module, task)
                validation = task.rank(averaged.module, vectors, task.split.validation_set)
                if validation > best:
                    best, test = validation, task.rank(averaged.module, vectors, task.split.test_set)
                spent = time.monotonic() - began
                print(f"epoch {epoch + 1:3}  loss {loss:.4f}  validation {validation:.4f}  {spent:.0f} s", flush=True)
    return test, best


# --- the four tasks


def debian() -> Task:
    data = dp.datasets.debian_packages()
    split = dp.random_link_split(data.graph, 0.05, 0.1, seed=0)
    words = data.features["node", None, "words"].read(torch.arange(data.graph.num_nodes))
    settings = Settings(batch_size=8192, epochs=5, decoder="mlp")

    def auc(model: LinkModel, vectors: dict[str, Tensor], items: dp.ItemSet) -> float:
        pipe = dp.ItemSampler(items, len(items)).sample_uniform_negative(data.graph, 1, strict=True)
        pairs = next(iter(pipe))
        scores = scores_of_pairs(model, vectors, pairs.seeds)
        ranks = scores.argsort().argsort().double() + 1
        count = int(pairs.labels.sum())
        return float(ranks[pairs.labels].sum() - count * (count + 1) / 2) / (count * (len(scores) - count))

    return Task("debian", "AUC", split, {"node": words}, None, {"negative_ratio": 1}, auc, settings)


def ogbl_ddi(path: Path) -> Task:
    data = dp.datasets.open(path)
    split = dp.LinkSplit(data.train_set, data.validation_set, data.test_set, data.graph)
    # All neighbors, as the published model reads.
    settings = Settings(256, (-1, -1), 2**14, 32, dropout=0.5, decoder="mlp", averaging=0.99, precision="medium")

    def hits(model: LinkModel, vectors: dict[str, Tensor], items: dp.ItemSet) -> float:
        pairs, labels = items[:]
        scores = torch.cat([scores_of_pairs(model, vectors, some) for some in pairs.split(2**15)])
        least = scores[labels == 0].topk(20).values[-1]
        return float((scores[labels == 1] > least).float().mean())

    # One pair in eight is an edge: negatives that may be edges would teach the model to doubt its best pairs.
    negatives = {"negative_ratio": 1, "corrupt": "both", "strict": True}
    return Task("ogbl-ddi", "Hits@20", split, {}, None, negatives, hits, settings)


def fb15k237(path: Path) -> Task:
    triples = {name: read_triples(path / f"{name}2id.txt.gz") for name in ("train", "valid", "test")}
    num_nodes = int(max(each[:, :2].max() for each in triples.values())) + 1
    num_relations = int(max(each[:, 2].max() for each in triples.values())) + 1
    types = [("entity", f"r{number:03}", "entity") for number in range(num_relations)]
    edges = triples["train"]
    edge_index = {of: edges[edges[:, 2] == number, :2].t().contiguous() for number, of in enumerate(types)}
    edge_index |= {back_of(of): each.flip(0) for of, each in edge_index.items()}
    graph = dp.HeteroCSCGraph.from_edge_index(edge_index, {"entity": num_nodes})
    sets = [by_relation(triples[name], types) for name in ("train", "valid", "test")]
    known: dict[tuple[int, int, bool], list[int]] = {}
    for head, tail, relation in torch.cat([*triples.values()]).tolist():
        known.setdefault((head, relation, True), []).append(tail)
        known.setdefault((tail, relation, False), []).append(head)
    numbers = {of: number for number, of in enumerate(types)}
    settings = Settings(200, (1,), batch_size=1024, epochs=8, learning_rate=6e-3, dropout=0.2)
    negatives = {"negative_ratio": 4, "form": "rows"}

    @torch.no_grad()
    def mrr(model: LinkModel, vectors: dict[str, Tensor], items: dp.HeteroItemSet) -> float:
        """Filtered: of the entities that make a true triple only the one that is asked for is ranked."""
        h, inverse = vectors["entity"], []
        for of, each in items.item_sets.items():
            relation = model.of_relation[-1, model.relations[of]]
            for pairs in each[:].split(256):
                for kept, asked in ((0, 1), (1, 0)):
                    scores = (h[pairs[:, kept]] * relation) @ h.t()
                    true = scores.gather(1, pairs[:, asked : asked + 1])
                    for row, node in enumerate(pairs[:, kept].tolist()):
                        scores[row, known[node, numbers[of], kept == 0]] = -torch.inf
                    better, equal = (scores > true).sum(1), (scores == true).sum(1)
                    inverse.append(1 / (1 + better + equal / 2))
        return float(torch.cat(inverse).mean())

    split = dp.LinkSplit(*sets, graph)
    return Task("fb15k-237", "MRR", split, {}, {of: back_of(of) for of in types}, negatives, mrr, settings, shared=True)


def back_of(edge_type: Any) -> Any:
    src, relation, dst = edge_type
    return dst, f"{relation}_back", src


def read_triples(path: Path) -> Tensor:
    """Return the triples of a file of OpenKE, int64 [n, 3]: head, tail, relation."""
    return torch.from_numpy(np.loadtxt(path, dtype=np.int64, skiprows=1))


def by_relation(triples: Tensor, types: list[Any]) -> dp.HeteroItemSet:
    pairs = {of: triples[triples[:, 2] == number, :2].contiguous() for number, of in enumerate(types)}
    return dp.HeteroItemSet({of: dp.ItemSet(each) for of, each in pairs.items() if len(each) > 0})


def acm(path: Path) -> Task:
    data = dp.datasets.open(path)
    writes, back = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
    split = dp.random_link_split(
        data.graph, 0.1, 0.2, seed=0, reverse_etypes_mapping={writes: back}, edge_types=[writes]
    )
    rows = data.features["node", "paper", "feat"].read(torch.arange(data.graph.num_nodes_of("paper")))
    settings = Settings(batch_size=1024, epochs=30, dropout=0.5, length=0.25)

    def recall(model: LinkModel, vectors: dict[str, Tensor], items: dp.HeteroItemSet) -> float:
        """The mean over authors of the share of their papers that are among the first 20."""
        scores = (vectors["author"] * model.of_relation[-1, model.relations[writes]]) @ vectors["paper"].t()
        known = [split.train_set] if items is split.validation_set else [split.train_set, split.validation_set]
        for each in known:  # links that are no answers any more
            scores[each.item_sets[writes][:][0].unbind(1)] = -torch.inf
        pairs = items.item_sets[writes][:][0]
        wanted = torch.zeros_like(scores, dtype=torch.bool)
        wanted[pairs[:, 0], pairs[:, 1]] = True
        found = wanted.gather(1, scores.topk(20, dim=1).indices).sum(1)
        authors = wanted.any(1)
        return float((found[authors] / wanted.sum(1)[authors]).mean())

    negatives = {"negative_ratio": 32, "form": "rows", "strict": True}
    return Task("acm", "Recall@20", split, {"paper": rows.float()}, {writes: back}, negatives, recall, settings)


@torch.no_grad()
def scores_of_pairs(model: LinkModel, vectors: dict[str, Tensor], pairs: Tensor) -> Tensor:
    none = torch.zeros(len(pairs), dtype=torch.int64)
    return model.score(vectors["node"][pairs[:, 0]], vectors["node"][pairs[:, 1]], none)


def task_of(path: str) -> Task:
    if path == "debian":
        return debian()
    folder = Path(path)
    if (folder / "train2id.txt.gz").is_file():
        return fb15k237(folder)
    return acm(folder) if (folder / "pa.txt").is_file() else ogbl_ddi(folder)


def main() -> None:
    args = parse_arguments()
    task = task_of(args.data)
    given = {"epochs": args.epochs, "batch_size": args.batch_size}
    settings = replace(task.settings, **{name: value for name, value in given.items() if value is not None})
    task = replace(task, settings=settings)
    print(f"{task.name}: {task.split.graph}, {len(task.split.train_set)} training links")
    tests = []
    for seed in range(args.seeds):
        test, validation = run(task, seed, args.parts)
        print(f"seed {seed}: validation {validation:.4f}, test {task.metric} {test:.4f}", flush=True)
        tests.append(test)
    print(f"test {task.metric} {np.mean(tests):.4f} +- {np.std(tests):.4f} over {len(tests)} seeds")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="debian", help="'debian', or the folder of ogbl-ddi, FB15k-237 or ACM")
    parser.add_argument("--seeds", type=int, default=1, help="seeds to train with, from 0 on")
    parser.add_argument("--parts", type=int, default=1, help="parts of the graph, behind servers of this process")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
