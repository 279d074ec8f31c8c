"""The methods of partitioning: their arguments, what each promises about its parts, the combined weight of nodes."""

import hashlib
import sys

import all_relations
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_graph

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.methods import all_nodes
from datapipes.partition.methods import assign as assign_module
from datapipes.partition.methods.all_nodes import EVEN, UNITS, AllNodes, combined_weight
from datapipes.partition.methods.assign import BY_ID, METHODS, assign, fill_empty_parts, make_assignment
from datapipes.partition.source import Source

HERE = [method for method in METHODS if method != "metis"]  # in this process; test_metis.py has the other


def edgeless(counts: int | dict[str, int]) -> dp.CSCGraph | dp.HeteroCSCGraph:
    if isinstance(counts, int):
        return dp.CSCGraph(torch.zeros(counts + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    return dp.HeteroCSCGraph({}, counts)


def parts_of(graph, num_parts: int, method: str, *, training=None, rng_seed: int = 0, **options) -> PartitionBook:
    source = Source(graph, training or {}, graph.node_types, graph.edge_types)
    options = {"recursive": False, "progress": lambda *_: None, **options}
    return assign(source, num_parts, method=method, rng_seed=rng_seed, **options)


@st.composite
def sources(draw) -> Source:
    """Nodes of one or several types, some of them for training; 1 or more in all."""
    graph = draw(all_relations.graphs(min_nodes=1))
    training = {}
    for node_type in graph.node_types:
        if draw(st.booleans()):
            count = graph.num_nodes_of(node_type)
            mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
            training[node_type] = torch.tensor(mask, dtype=torch.bool)
    return Source(graph, training, graph.node_types, graph.edge_types)


def counts_by_part(book: PartitionBook, masks=None) -> np.ndarray:
    """The nodes of each part; with masks only those."""
    total = np.zeros(book.num_parts, dtype=np.int64)
    for node_type in book.node_types:
        parts = book.nodes(node_type).dense().numpy()
        chosen = slice(None) if masks is None else masks[node_type].numpy() if node_type in masks else slice(0)
        total += np.bincount(parts[chosen], minlength=book.num_parts)
    return total


# --- arguments


@pytest.mark.parametrize("method", METHODS)
def test_what_each_method_refuses(method, refuses):
    for graph in (edgeless(10), edgeless({"a": 7, "b": 3})):
        for num_parts in (0, -1, 2**15 + 1, 11):
            refuses(ValueError, parts_of, graph, num_parts, method)
        for no_number in (True, 2.0):
            refuses(TypeError, parts_of, graph, no_number, method)
    refuses(ValueError, parts_of, edgeless(0), 1, method)
    if method != "metis":
        refuses(ValueError, parts_of, edgeless(4), 2, method, recursive=True)


def test_what_all_methods_refuse(monkeypatch, refuses):
    for method in ("METIS", "", None, 3, "hash"):
        refuses(ValueError, parts_of, edgeless(4), 2, method)
    for no_bool in (0, 1, None, "yes"):
        refuses(TypeError, parts_of, edgeless(4), 2, "metis", recursive=no_bool)
    for rng_seed in (-1, 2**64):
        refuses(ValueError, parts_of, edgeless(4), 2, "random", rng_seed=rng_seed)
    for no_seed in (True, 1.0):
        refuses(TypeError, parts_of, edgeless(4), 2, "random", rng_seed=no_seed)
    monkeypatch.setitem(sys.modules, "pymetis", None)  # import pymetis then raises ModuleNotFoundError
    refuses(ModuleNotFoundError, parts_of, edgeless(4), 2, "metis")
    assert parts_of(edgeless(4), 1, "metis").num_parts == 1  # which needs no METIS


# --- every method


@given(sources(), st.sampled_from(HERE), st.integers(1, 8), st.integers(0, 2**64 - 1))
def test_every_node_has_a_part_and_no_part_is_empty(source, method, num_parts, rng_seed):
    total = sum(map(source.graph.num_nodes_of, source.graph.node_types))
    num_parts = min(num_parts, total)
    options = {"method": method, "recursive": False, "rng_seed": rng_seed, "progress": lambda *_: None}
    book, child_peak_bytes = make_assignment(source, num_parts, **options)
    assert child_peak_bytes == 0
    assert not book.has_edges
    assert book.node_types == source.graph.node_types
    for node_type in book.node_types:
        assert book.nodes(node_type).num_ids == source.graph.num_nodes_of(node_type)
        assert book.nodes(node_type).num_parts == num_parts
    counts = counts_by_part(book)
    assert counts.sum() == total
    assert counts.min() > 0
    again = assign(source, num_parts, **options)
    for node_type in book.node_types:
        assert torch.equal(again.nodes(node_type).dense(), book.nodes(node_type).dense())


@pytest.mark.parametrize("method", METHODS)
def test_a_mask_of_training_nodes_may_be_a_view(method):
    if method == "metis":
        pytest.importorskip("pymetis")
    graph = all_relations.undirected_random(60, 300, rng_seed=1)
    splits = torch.arange(180).reshape(60, 3) % 7 == 0  # such masks come of PyG's data sets with several splits
    for view in (splits[:, 1], torch.tensor([True]).expand(60)):
        found, expected = (
            parts_of(graph, 3, method, training={None: mask}).nodes().dense() for mask in (view, view.clone())
        )
        assert torch.equal(found, expected)


@pytest.mark.parametrize("method", HERE)
def test_more_than_256_parts_are_possible(method):
    book = parts_of(all_relations.undirected_random(700, 3000, 1), 400, method)
    assert counts_by_part(book).min() > 0


@pytest.mark.parametrize("method", METHODS)
def test_one_part_has_all_nodes(method):
    book = parts_of(edgeless({"a": 2, "b": 0}), 1, method)
    assert [book.nodes(node_type).dense().tolist() for node_type in ("a", "b")] == [[0, 0], []]


@pytest.mark.parametrize(("method", "digest"), [("random", "e702ed32535fb893"), ("fennel", "f538d07a634d0cb2")])
def test_parts_are_the_same_on_every_machine(method, digest):
    graph = all_relations.plain(random_graph(3000, 30_000, rng_seed=1))
    parts = parts_of(graph, 5, method, training={None: torch.arange(3000) % 7 == 0}, rng_seed=7).nodes().dense()
    assert hashlib.blake2b(parts.numpy().tobytes(), digest_size=8).hexdigest() == digest


# --- random


@given(sources(), st.integers(1, 8))
def test_random_parts_differ_by_one_node_and_by_one_training_node(source, num_parts):
    num_parts = min(num_parts, sum(map(source.graph.num_nodes_of, source.graph.node_types)))
    book = assign(source, num_parts, method="random", recursive=False, rng_seed=3, progress=lambda *_: None)
    for masks in (None, source.training_nodes):
        counts = counts_by_part(book, masks)
        assert counts.max() - counts.min() <= 1
    for node_type in book.node_types:
        counts = np.bincount(book.nodes(node_type).dense(), minlength=num_parts)
        assert counts.max() - counts.min() <= 2


def test_random_parts_depend_on_the_seed_and_are_no_pattern():
    first, again, other = (parts_of(edgeless(1000), 2, "random", rng_seed=seed).nodes().dense() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert 400 < int((first != other).sum()) < 600
    assert 400 < int((first[1:] != first[:-1]).sum()) < 600


def test_types_of_equal_size_get_different_random_parts():
    book = parts_of(edgeless({"a": 500, "b": 500}), 2, "random")
    assert 150 < int((book.nodes("a").dense() != book.nodes("b").dense()).sum()) < 350


def test_random_parts_do_not_depend_on_how_many_nodes_are_dealt_at_once(monkeypatch):
    training = {None: torch.arange(70_000) % 3 == 0}
    whole = parts_of(edgeless(70_000), 3, "random", training=training).nodes().dense()
    monkeypatch.setattr(assign_module, "DEALT", 999)
    assert torch.equal(parts_of(edgeless(70_000), 3, "random", training=training).nodes().dense(), whole)


# --- range


@given(sources(), st.integers(1, 8))
def test_ranges_are_cut_where_their_share_of_the_weight_is_reached(source, num_parts):
    nodes = AllNodes(source, BY_ID)
    num_parts = min(num_parts, nodes.total)
    book = assign(source, num_parts, method="range", recursive=False, rng_seed=0, progress=lambda *_: None)
    for node_type in book.node_types:
        parts = book.nodes(node_type).dense().tolist()
        assert parts == sorted(parts)
        if nodes.counts[node_type] < num_parts:
            assert len(set(parts)) == len(parts)
            continue
        assert set(parts) == set(range(num_parts))
        weights = [int(weight) for some in nodes.weights(node_type) for weight in some]
        wanted = []
        for part in range(num_parts):  # the first node before which the share lies, that leaves a node for each part
            share = next(v for v in range(len(weights) + 1) if sum(weights[:v]) * num_parts >= sum(weights) * part)
            after = wanted[-1] + 1 if wanted else 0
            wanted.append(min(max(share, after), len(weights) - num_parts + part))
        assert [parts.index(part) for part in range(num_parts)] == wanted


def test_ranges_balance_training_nodes_and_all_nodes_together():
    training = {None: torch.arange(1000) < 100}
    book = parts_of(edgeless(1000), 2, "range", training=training)
    # A training node weighs 11, any other 1: the first half of the weight is that of 91 nodes.
    assert book.nodes().stored().tolist() == [0, 91, 1000]


def test_ranges_do_not_depend_on_how_many_nodes_are_weighed_at_once(monkeypatch):
    training = {None: torch.arange(1000) % 7 == 0}
    whole = parts_of(edgeless(1000), 7, "range", training=training).nodes().stored()
    monkeypatch.setattr(all_nodes, "CHUNK", 13)
    assert torch.equal(parts_of(edgeless(1000), 7, "range", training=training).nodes().stored(), whole)


def test_types_with_fewer_nodes_than_parts_fill_all_parts_together():
    book = parts_of(edgeless({"a": 3, "b": 2, "c": 4}), 4, "range")
    assert [book.nodes(node_type).dense().tolist() for node_type in "abc"] == [[0, 1, 2], [0, 3], [0, 1, 2, 3]]


# --- the combined weight


shares = st.one_of(st.just(0), st.floats(0.01, 100))
totals = st.tuples(st.integers(1, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))


@given(st.tuples(shares, shares, shares), totals)
def test_each_measure_has_its_share_of_the_weight_of_all_nodes(given, totals):
    combined = combined_weight(dict(zip(EVEN, given, strict=True)), totals)
    counted = [share if total > 0 else 0 for share, total in zip(given, totals, strict=True)]
    if not any(counted):
        assert combined == (1, 0, 0)
        return
    for each, share, total in zip(combined, counted, totals, strict=True):
        assert abs(each * total - UNITS * share / sum(counted)) <= total / 2 + 1e-9 * UNITS
    assert sum(each * total for each, total in zip(combined, totals, strict=True)) < 2**52


def test_the_weight_of_an_example_is_the_one_of_the_docs():
    base, per_edge, extra = combined_weight(EVEN, (1000, 20_000, 100))
    assert base == pytest.approx(20 * per_edge) == pytest.approx(extra / 10)
    assert combined_weight(EVEN, (1000, 0, 0)) == combined_weight({"nodes": 3}, (1000, 5, 5))


@given(sources())
def test_a_node_weighs_what_it_has_of_each_measure(source):
    nodes = AllNodes(source, EVEN)
    base, per_edge, extra = nodes.combined
    in_edges = all_relations.in_edges_of(source.graph)
    trained = [
        bool(source.training_nodes[kind][v]) if kind in source.training_nodes else False
        for kind in nodes.types
        for v in range(nodes.counts[kind])
    ]
    wanted = [base + per_edge * len(of) + extra * each for of, each in zip(in_edges, trained, strict=True)]
    assert [int(weight) for kind in nodes.types for some in nodes.weights(kind) for weight in some] == wanted


# --- empty parts


@given(st.integers(1, 12), st.lists(st.integers(0, 11), min_size=12, max_size=40))
def test_each_empty_part_takes_a_node_of_the_largest(num_parts, parts):
    parts = [part % num_parts for part in parts]
    wanted = list(parts)
    for part in range(num_parts):
        if part not in parts:
            largest = max(range(num_parts), key=lambda p: (wanted.count(p), -p))
            wanted[max(v for v, p in enumerate(wanted) if p == largest)] = part
    found = np.array(parts, dtype=np.uint8)
    fill_empty_parts(found, num_parts)
    assert found.tolist() == wanted
    assert set(wanted) == set(range(num_parts))
