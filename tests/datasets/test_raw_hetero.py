"""The checks of RawHeteroDataset, and the inverses of relations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from datapipes.datasets.opening import hetero_dataset_of
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems, inverse_of, labelled_items, with_inverses
from datapipes.graph import CSCGraph, HeteroCSCGraph

WRITES = ("author", "writes", "paper")
NONE = np.zeros(0, dtype=np.int64)


def papers(**changes: Any) -> RawHeteroDataset:
    """Two authors, three papers."""
    dataset = RawHeteroDataset(
        name="tiny",
        num_nodes={"author": 2, "paper": 3},
        edges={WRITES: np.array([[0, 1], [2, 0]])},
        node_features={("paper", "feat"): np.ones((3, 4))},
        edge_features={(WRITES, "year"): np.array([1999, 2001])},
        task="node_classification",
        split=labelled_items("paper", np.array([0, 1, -1]), [np.array([1]), NONE, np.array([0])]),
        class_names=("a", "b"),
    )
    return replace(dataset, **changes)


def links(**changes: Any) -> RawHeteroDataset:
    """Three nodes without types."""
    pairs = RawItems(np.array([[0, 1], [2, 2]]), labels=np.array([1, 0]))
    dataset = RawHeteroDataset(
        name="links",
        num_nodes={None: 3},
        edges={None: np.array([[0, 1], [2, 0]])},
        node_features={},
        edge_features={},
        task="link_prediction",
        split=({None: RawItems(pairs.seeds)}, {None: pairs}, {None: pairs}),
    )
    return replace(dataset, **changes)


def test_types_make_a_graph_heterogeneous():
    assert isinstance(hetero_dataset_of(papers()).graph, HeteroCSCGraph)
    assert isinstance(hetero_dataset_of(links()).graph, CSCGraph)


def test_an_inverse_has_the_same_edges_in_the_same_order():
    edges = {WRITES: np.array([[0, 1, 1], [2, 0, 1]])}
    both = with_inverses(edges)
    assert list(both) == [WRITES, ("paper", "rev_writes", "author")]
    assert both[inverse_of(WRITES)].tolist() == [[2, 0, 1], [0, 1, 1]]


def part_of(items: RawItems, of_type: Any = "paper") -> tuple[Any, Any, Any]:
    return ({of_type: items}, {of_type: items}, {of_type: items})


def test_what_a_raw_hetero_dataset_refuses(refuses):
    for changes in (
        {"task": "painting"},
        {"num_nodes": {"author": 2}},
        {"num_nodes": {"author": 2, "paper": -1}},
        {"num_nodes": {"author": 2, "paper": 3, None: 1}},
        {"num_nodes": {"author": 2, "paper": 3, "": 1}},
        {"edges": {("author", "paper"): np.zeros((2, 0), dtype=np.int64)}},
        {"edges": {WRITES: np.array([[0, 1], [2, 3]])}},
        {"edges": {WRITES: np.array([[0, 2], [2, 0]])}},
        {"edges": {WRITES: np.array([0, 2])}},
        {"node_features": {("paper", "feat"): np.ones((2, 4))}},
        {"node_features": {("book", "feat"): np.ones((2, 4))}},
        {"edge_features": {(WRITES, "year"): np.ones(3)}},
        {"edge_attributes": {(WRITES, "year"): np.ones(3)}},
        {"node_attributes": {("paper", "id"): np.ones(2)}},
        {"num_training_edges": {WRITES: 3}},
        {"num_training_edges": {("paper", "x", "paper"): 3}},
        {"node_names": {"paper": ("a", "b")}},
        {"split": ({}, {}, {"paper": RawItems(NONE, NONE)})},
        {"split": part_of(RawItems(NONE, NONE), "book")},
    ):
        refuses(ValueError, papers, **changes)
    for items in (
        RawItems(np.array([3]), np.array([0])),
        RawItems(np.array([[0]]), np.array([0])),
        RawItems(np.array([0]), np.array([2])),
        RawItems(np.array([0]), np.array([-1])),
        RawItems(np.array([0])),
        RawItems(np.array([0]), np.array([0, 1])),
        RawItems(np.array([0]), np.array([0]), timestamps=NONE),
    ):
        refuses(ValueError, papers, split=part_of(items))
    refuses(TypeError, papers, edges={WRITES: np.zeros((2, 2), dtype=np.int32)})
    refuses(TypeError, papers, node_features={("paper", "feat"): [1, 2, 3]})
    for pair_items, edge_type in (
        (RawItems(np.array([[0, 3]])), None),
        (RawItems(np.array([0, 1])), None),
        (RawItems(np.array([[0, 1]])), "paper"),
        (RawItems(np.array([[0, 1]]), np.array([2])), None),
    ):
        refuses(ValueError, links, split=part_of(pair_items, edge_type))
    refuses(ValueError, links, task="edge_regression")
    both = with_inverses({WRITES: np.array([[0, 1, 1], [2, 0, 1]])})
    refuses(DatasetFormatError, with_inverses, both)
