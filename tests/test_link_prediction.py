"""examples/link_prediction.py over small graphs: it learns what can be learned, and the same over parts."""

from types import ModuleType

import pytest
import torch
from amounts import ranked
from example_data import EXAMPLES

import datapipes as dp

FEEDS, FED = ("a", "feeds", "b"), ("b", "fed by", "a")


@pytest.fixture
def example(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    import link_prediction

    return link_prediction


def communities(num_nodes: int = 90, groups: int = 3, degree: int = 12) -> torch.Tensor:
    """Edges within groups, [2, n]."""
    generator = torch.Generator().manual_seed(1)
    sources = torch.arange(num_nodes).repeat(degree)
    steps = torch.randint(1, num_nodes // groups, (len(sources),), generator=generator) * groups
    return torch.stack((sources, (sources + steps) % num_nodes))


def plain_task(example: ModuleType):
    graph = dp.CSCGraph.from_edge_index(communities(), 90).to_undirected(merge=True)
    split = dp.random_link_split(graph, 0.1, 0.2, seed=0)

    def accuracy(model, vectors, items) -> float:
        pairs = next(iter(dp.ItemSampler(items, len(items)).sample_uniform_negative(graph, 1, strict=True)))
        return float(((example.scores_of_pairs(model, vectors, pairs.seeds) > 0) == pairs.labels).float().mean())

    settings = example.Settings(width=16, fanouts=(5, 5), batch_size=64, epochs=3, learning_rate=0.03, decoder="mlp")
    return example.Task("plain", "accuracy", split, {}, None, {"negative_ratio": 1}, accuracy, settings)


def typed_task(example: ModuleType):
    graph = dp.HeteroCSCGraph.from_edge_index({FEEDS: communities()}, {"a": 90, "b": 90})
    graph = graph.to_undirected({FEEDS: "fed by"}, merge=True)
    split = dp.random_link_split(graph, 0.1, 0.2, seed=0, reverse_etypes_mapping={FEEDS: FED})

    def share(model, vectors, items) -> float:
        pairs = items.item_sets[FEEDS][:][0]
        scores = (vectors["a"] * model.of_relation[-1, model.relations[FEEDS]]) @ vectors["b"].t()
        return float((scores[pairs[:, 0]].argmax(1) % 3 == pairs[:, 0] % 3).float().mean())

    negatives = {"negative_ratio": 8, "form": "rows", "strict": True}
    settings = example.Settings(width=16, fanouts=(5,), batch_size=64, epochs=3, learning_rate=0.03)
    features = {"b": torch.eye(90)}
    return example.Task("typed", "share", split, features, {FEEDS: FED}, negatives, share, settings)


def shared_task(example: ModuleType):
    near, back = ("a", "near", "a"), ("a", "near_back", "a")
    graph = dp.HeteroCSCGraph.from_edge_index({near: communities()}, {"a": 90})
    graph = graph.to_undirected({near: "near_back"}, merge=True)
    split = dp.random_link_split(graph, 0.1, 0.2, seed=0, reverse_etypes_mapping={near: back})

    def share(model, vectors, items) -> float:
        pairs, h = items.item_sets[near][:][0], vectors["a"]
        scores = [(h[pairs[:, kept]] * model.of_relation[-1, model.relations[near]]) @ h.t() for kept in (0, 1)]
        return float((torch.stack(scores).argmax(2) % 3 == pairs.t() % 3).float().mean())

    negatives = {"negative_ratio": 2, "form": "rows"}
    settings = example.Settings(width=16, fanouts=(1,), batch_size=64, epochs=3, learning_rate=0.03)
    return example.Task("shared", "share", split, {}, {near: back}, negatives, share, settings, shared=True)


@pytest.mark.parametrize("make", ranked([plain_task, typed_task, shared_task], 1))
def test_a_model_learns_the_groups_and_the_same_over_parts(example, make, capsys):
    score, validation = example.run(make(example), 0, 1)
    assert score > 0.7  # by chance 0.5 and 0.33
    assert validation > 0.7
    assert capsys.readouterr().out.count("epoch") == 3
    assert example.run(make(example), 0, 2) == (score, validation)


def test_triples_are_read_as_openke_writes_them(example, tmp_path):
    (tmp_path / "train2id.txt").write_text("2\n5 1 0\n2 3 1\n", encoding="utf-8")
    triples = example.read_triples(tmp_path / "train2id.txt")
    assert triples.tolist() == [[5, 1, 0], [2, 3, 1]]
    sets = example.by_relation(triples, [("entity", "r0", "entity"), ("entity", "r1", "entity")])
    assert {of: items[:].tolist() for of, items in sets.item_sets.items()} == {
        ("entity", "r0", "entity"): [[5, 1]],
        ("entity", "r1", "entity"): [[2, 3]],
    }
