"""The checks of RawHeteroDataset, and the inverses of relations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

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
    with pytest.raises(DatasetFormatError, match="found author:writes:paper and paper:rev_writes:author"):
        with_inverses(both)


def part_of(items: RawItems, of_type: Any = "paper") -> tuple[Any, Any, Any]:
    return ({of_type: items}, {of_type: items}, {of_type: items})


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"task": "painting"}, "task is 'painting'"),
        ({"num_nodes": {"author": 2}}, "the destination of author:writes:paper is of the type paper"),
        ({"num_nodes": {"author": 2, "paper": -1}}, "paper has -1 nodes"),
        ({"num_nodes": {"author": 2, "paper": 3, None: 1}}, "a graph without types has None and nothing else"),
        ({"num_nodes": {"author": 2, "paper": 3, "": 1}}, "an empty name"),
        ({"edges": {("author", "paper"): np.zeros((2, 0), dtype=np.int64)}}, "must be three texts"),
        ({"edges": {WRITES: np.array([[0, 1], [2, 3]])}}, "destinations,: found 3, must be in [0, 3)"),
        ({"edges": {WRITES: np.array([[0, 2], [2, 0]])}}, "sources,: found 2, must be in [0, 2)"),
        ({"edges": {WRITES: np.array([0, 2])}}, "must be pairs"),
        ({"node_features": {("paper", "feat"): np.ones((2, 4))}}, "must be [3, ...]"),
        ({"node_features": {("book", "feat"): np.ones((2, 4))}}, "known are"),
        ({"edge_features": {(WRITES, "year"): np.ones(3)}}, "must be [2, ...]"),
        ({"edge_attributes": {(WRITES, "year"): np.ones(3)}}, "must be [2, ...]"),
        ({"node_attributes": {("paper", "id"): np.ones(2)}}, "must be [3, ...]"),
        ({"num_training_edges": {WRITES: 3}}, "must be in [0, 2]"),
        ({"num_training_edges": {("paper", "x", "paper"): 3}}, "known are"),
        ({"node_names": {"paper": ("a", "b")}}, "2 names for 3 nodes"),
        ({"split": ({}, {}, {"paper": RawItems(NONE, NONE)})}, "must be 3 parts of one set"),
        ({"split": part_of(RawItems(np.array([3]), np.array([0])))}, "found 3, must be in [0, 3)"),
        ({"split": part_of(RawItems(np.array([[0]]), np.array([0])))}, "must be [n] for nodes"),
        ({"split": part_of(RawItems(np.array([0]), np.array([2])))}, "found 2, must be in [0, 2)"),
        ({"split": part_of(RawItems(np.array([0]), np.array([-1])))}, "found -1, must be in [0, 2)"),
        ({"split": part_of(RawItems(np.array([0])))}, "the task node_classification needs them"),
        ({"split": part_of(RawItems(np.array([0]), np.array([0, 1])))}, "must be [1, ...]"),
        ({"split": part_of(RawItems(np.array([0]), np.array([0]), timestamps=NONE))}, "must be [1, ...]"),
        ({"split": part_of(RawItems(NONE, NONE), "book")}, "is of the type book"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, found):
    with pytest.raises(ValueError, match=re.escape(found)):
        papers(**changes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"split": part_of(RawItems(np.array([[0, 3]])), None)}, "destinations,: found 3"),
        ({"split": part_of(RawItems(np.array([0, 1])), None)}, "must be pairs"),
        ({"split": part_of(RawItems(np.array([[0, 1]])), "paper")}, "is of the type paper"),
        ({"split": part_of(RawItems(np.array([[0, 1]]), np.array([2])), None)}, "labels of None: found 2"),
        ({"task": "edge_regression"}, "labels of None are missing"),
    ],
)
def test_links_that_do_not_fit_are_refused(changes, found):
    with pytest.raises(ValueError, match=re.escape(found)):
        links(**changes)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"edges": {WRITES: np.zeros((2, 2), dtype=np.int32)}}, "found int32, must be an int64 array"),
        ({"node_features": {("paper", "feat"): [1, 2, 3]}}, "is a list, must be an array"),
    ],
)
def test_values_of_other_types_are_refused(changes, found):
    with pytest.raises(TypeError, match=found):
        papers(**changes)
