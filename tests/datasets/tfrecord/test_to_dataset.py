"""Loaded tensors as a Dataset: the same minibatches as over a graph that was made of the same edges by hand."""

import pytest
import torch

import datapipes as dp
from datapipes.datasets import LoadedGraphTensors
from datapipes.datasets.tfrecord import loaded
from datapipes.partition import source

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
COUNTS = {"author": 12, "paper": 20}


def random(*shape, low=None, high=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(shape, generator=generator) if high is None else torch.randint(low, high, shape, generator=generator)
    )


def shuffled(count, seed=3):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def graph(**fields):
    names = ("node_features", "node_labels", "edge_features", "positive_label", "negative_label")
    given = {"node_ids": torch.arange(3), "edge_index": torch.tensor([[0, 1], [1, 2]]), **dict.fromkeys(names)}
    return LoadedGraphTensors(**{**given, **fields})


def digests(items, graph, features, **keys):
    chain = dp.ItemSampler(items, 4, shuffle=True, seed=1).sample_neighbor(graph, [3, 2], return_edge_ids=True)
    return [minibatch.digest() for minibatch in chain.fetch_feature(features, **keys)]


def test_a_graph_without_types_gives_the_minibatches_of_one_made_by_hand():
    rows, labels, order = random(20, 4), random(20, 1, low=-1, high=4), shuffled(20)
    edges, of_edges = random(2, 90, low=0, high=20), random(90, 2)
    data = graph(
        node_ids=order, node_features=rows[order], node_labels=labels[order], edge_index=edges, edge_features=of_edges
    ).to_dataset()
    labelled = (labels[:, 0] >= 0).nonzero().flatten()
    by_hand = (
        dp.ItemSet((labelled, labels[labelled, 0]), names=("seeds", "labels")),
        dp.CSCGraph.from_edge_index(edges, 20),
        dp.FeatureStore(
            {("node", None, "feat"): dp.TensorFeature(rows), ("edge", None, "feat"): dp.TensorFeature(of_edges)}
        ),
    )
    keys = {"node_feature_keys": ["feat"], "edge_feature_keys": ["feat"]}
    found = digests(data.train_set, data.graph, data.features, **keys)
    assert found == digests(*by_hand, **keys)
    assert len(found) > 2
    assert (data.task, data.num_classes, data.class_names) == ("node_classification", 4, ("0", "1", "2", "3"))
    assert len(data.validation_set) == len(data.test_set) == 0
    assert len(data.with_validation(0.5).validation_set) == round(len(labelled) / 2)


def test_a_graph_with_types_gives_the_minibatches_of_one_made_by_hand():
    rows = {kind: random(count, 3, seed=count) for kind, count in COUNTS.items()}
    orders = {kind: shuffled(count) for kind, count in COUNTS.items()}
    labels = random(20, 2, low=0, high=2)
    edges = {
        kind: torch.stack([random(60, low=0, high=COUNTS[kind[end]], seed=end) for end in (0, 2)])
        for kind in (WRITES, CITES)
    }
    of_edges = {CITES: random(60, 2)}
    data = graph(
        node_ids=orders,
        node_features={kind: rows[kind][order] for kind, order in orders.items()},
        node_labels={"paper": labels[orders["paper"]]},
        edge_index=edges,
        edge_features=of_edges,
    ).to_dataset()
    features = {("node", kind, "feat"): dp.TensorFeature(each) for kind, each in rows.items()}
    features["edge", CITES, "feat"] = dp.TensorFeature(of_edges[CITES])
    items = dp.HeteroItemSet({"paper": dp.ItemSet((torch.arange(20), labels), names=("seeds", "labels"))})
    by_hand = items, dp.HeteroCSCGraph.from_edge_index(edges, COUNTS), dp.FeatureStore(features)
    keys = {
        "node_feature_keys": {"author": ["feat"], "paper": ["feat"]},
        "edge_feature_keys": {CITES: ["feat"]},
    }
    found = digests(data.train_set, data.graph, data.features, **keys)
    assert found == digests(*by_hand, **keys)
    assert (data.task, data.num_classes, len(data.test_set)) == ("node_classification", 2, 0)


def test_rows_in_order_are_not_copied_and_others_come_into_shared_memory():
    rows, labels = random(3, 2), torch.tensor([[0], [1], [1]])
    in_order = graph(node_features=rows, node_labels=labels).to_dataset()
    assert in_order.features["node", None, "feat"].tensor.data_ptr() == rows.data_ptr()
    moved = graph(node_ids=torch.tensor([2, 0, 1]), node_features=rows, node_labels=labels).to_dataset()
    tensor = moved.features["node", None, "feat"].tensor
    assert torch.equal(tensor, rows[[1, 2, 0]])
    assert tensor.is_shared()
    assert moved.train_set.take(torch.arange(3))["labels"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_the_order_of_ids_is_told_piece_by_piece(monkeypatch, piece):
    monkeypatch.setattr(source, "_PIECE_BYTES", 8 * piece)
    assert loaded.row_order("here", torch.arange(3)) is None
    assert loaded.row_order("here", torch.empty(0, dtype=torch.int64)) is None
    assert loaded.row_order("here", torch.tensor([0, 2, 1])).tolist() == [0, 2, 1]


def test_weights_are_an_edge_attribute_in_the_order_of_the_graph():
    edges, weights = torch.tensor([[2, 1, 0], [1, 0, 0]]), torch.tensor([3.0, 2.0, 1.0])
    data = graph(edge_index=edges, edge_weights=weights).to_dataset()
    assert data.graph.edge_attributes["weight"].tolist() == [2.0, 1.0, 3.0]
    assert data.graph.edge_ids.tolist() == [1, 2, 0]
    typed = graph(
        node_ids={"n": torch.arange(3)}, edge_index={("n", "to", "n"): edges}, edge_weights={("n", "to", "n"): weights}
    )
    assert typed.to_dataset().graph.edge_attributes["n", "to", "n"]["weight"].tolist() == [2.0, 1.0, 3.0]


def rows_of(items):
    return {name: rows.tolist() for name, rows in items.take(torch.arange(len(items))).items()}


def test_pairs_with_and_without_negative_ones_are_the_seeds_where_nodes_have_no_labels():
    positive, negative = torch.tensor([[0, 1], [2, 0]]), torch.tensor([[1], [1]])
    both = graph(positive_label=positive, negative_label=negative).to_dataset()
    assert rows_of(both.train_set) == {"seeds": [[0, 2], [1, 0], [1, 1]], "labels": [1, 1, 0]}
    assert (both.task, len(both.test_set)) == ("link_prediction", 0)
    assert rows_of(graph(positive_label=positive).to_dataset().train_set) == {"seeds": [[0, 2], [1, 0]]}
    typed = graph(
        node_ids={kind: torch.arange(count) for kind, count in COUNTS.items()},
        edge_index={WRITES: torch.tensor([[0], [1]])},
        positive_label={WRITES: positive},
        negative_label={CITES: negative},
    ).to_dataset()
    assert {kind: rows_of(items) for kind, items in typed.train_set.item_sets.items()} == {
        WRITES: {"seeds": [[0, 2], [1, 0]], "labels": [1, 1]},
        CITES: {"seeds": [[1, 1]], "labels": [0]},
    }


def test_without_labels_the_seeds_are_all_nodes():
    data = graph().to_dataset("mine")
    assert (data.name, data.task, data.num_classes, len(data.features)) == ("mine", "all_nodes", 0, 0)
    assert rows_of(data.train_set) == {"seeds": [0, 1, 2]}
    typed = graph(
        node_ids={"author": torch.arange(2), "paper": torch.arange(3)}, edge_index={CITES: torch.empty(2, 0).long()}
    )
    assert len(typed.to_dataset().train_set) == 5


def test_floats_are_the_labels_of_a_regression():
    nan = float("nan")
    data = graph(node_labels=torch.tensor([[0.5, -1.0], [nan, 1.0], [2.0, 3.0]])).to_dataset()
    assert (data.task, data.num_classes) == ("node_regression", 0)
    assert rows_of(data.train_set) == {"seeds": [0, 2], "labels": [[0.5, -1.0], [2.0, 3.0]]}


def test_labels_as_edges_are_edges_of_the_data_set():
    loaded = graph(positive_label=torch.tensor([[0], [2]]))
    loaded.treat_labels_as_edges("in")
    data = loaded.to_dataset()
    assert [edge_type[1] for edge_type in data.graph.edge_types] == ["to", "to_gigl_positive"]
    relation = data.graph.relation(data.graph.edge_types[1])
    assert (relation.indptr.tolist(), relation.indices.tolist()) == ([0, 1, 1, 1], [2])


TYPED = {
    "node_ids": {"author": torch.arange(2)},
    "edge_index": {("author", "knows", "author"): torch.tensor([[0], [1]])},
}


def test_what_is_no_whole_graph_is_refused(refuses):
    for fields in (
        {"node_ids": torch.tensor([0, 1, 5])},
        {"node_ids": torch.tensor([0, -1, 2])},
        {"edge_index": torch.tensor([[0, 1], [1, 3]])},
        {"edge_index": torch.tensor([[-1, 1], [1, 2]])},
        {"positive_label": torch.tensor([[0], [9]])},
    ):
        refuses(IndexError, graph(**fields).to_dataset)
    pair = torch.tensor([[0], [0]])
    for fields in (
        {"node_ids": torch.tensor([2, 0, 2])},
        {"node_ids": None},
        {"edge_index": None},
        {"negative_label": pair},
        {"negative_label": torch.tensor([0, 9])},
        {"node_features": torch.ones(2, 1)},
        {**TYPED, "node_features": {"paper": torch.ones(2, 1)}},
        {**TYPED, "positive_label": {WRITES: pair}},
        {**TYPED, "edge_index": pair},
        {"node_labels": torch.tensor([[2**40], [0], [1]])},
        {
            "node_ids": {"author": torch.arange(1), "paper": torch.arange(1)},
            "edge_index": {WRITES: pair},
            "node_labels": {"author": torch.ones(1, 1), "paper": torch.ones(1, 1).long()},
        },
    ):
        refuses(ValueError, graph(**fields).to_dataset)
    share = graph()
    share._rank, share._num_ranks = 1, 4
    refuses(ValueError, share.to_dataset)
