"""Evening of parts: the kernel equals its twin, what is uneven becomes even, and the cut stays short."""

import json

import all_relations
import numpy as np
import pytest
import torch
import twin
from amounts import ranked
from hypothesis import given
from hypothesis import strategies as st

import datapipes as dp
from datapipes import _core
from datapipes.partition.methods import metis_parts
from datapipes.partition.methods.all_nodes import EVEN, AllNodes
from datapipes.partition.methods.assign import assign
from datapipes.partition.methods.metis_parts import even_at_last, even_parts
from datapipes.partition.partitioner import Partitioner
from datapipes.partition.source import Source

MOST = 1.15


@given(all_relations.graphs(min_nodes=1), st.integers(1, 6), st.booleans(), st.booleans(), st.data())
def test_the_parts_are_those_of_the_twin(graph, num_parts, nodes, edges, data):
    in_edges = all_relations.in_edges_of(graph)
    masks, trained = data.draw(all_relations.training_of(graph))
    types = [kind for kind in graph.node_types for _ in range(graph.num_nodes_of(kind))]
    measures = [[kind == each for kind in types] for each in graph.node_types] if nodes else []
    measures += [[len(of_node) for of_node in in_edges]] if edges else []
    # Most nodes in one part, so that there is something to do.
    given_parts = data.draw(st.lists(st.integers(0, 2 * num_parts), min_size=len(types), max_size=len(types)))
    dtype = data.draw(st.sampled_from([np.uint8, np.int16]))
    parts = np.array([part if part < num_parts else 0 for part in given_parts], dtype)
    more_cut = data.draw(st.integers(0, 9))
    wanted, before, after = twin.even_parts(in_edges, [*measures, trained], parts.tolist(), num_parts, more_cut)
    options = {"nodes": nodes, "edges": edges, "more_cut": more_cut, "training": masks}
    found = _core.even_parts(graph.topology(), parts, num_parts=num_parts, **options)
    assert parts.tolist() == wanted
    assert found[2:] == (before, after)


def test_the_excess_told_is_that_of_the_most_uneven_part_and_type():
    ids = {"a": 8, "b": 4}
    graph = dp.HeteroCSCGraph.from_edge_index({("a", "to", "b"): torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])}, ids)
    source = Source(graph, {}, graph.node_types, graph.edge_types)
    parts = np.array([0] * 8 + [0, 0, 0, 1], np.uint8)
    evened = even_parts(graph, AllNodes(source, EVEN), parts, 2)
    assert evened.before == {"nodes": 1.0, "edges": 0.0, "train": 0.0}  # 8 of 4; all edges end at one node
    assert evened.after == {"nodes": 0.0, "edges": 0.0, "train": 0.0}
    assert (evened.cut_before, evened.cut_after) == (0, 0)
    assert np.bincount(parts[:8]).tolist() == [4, 4]
    assert set(parts[:4]) == {parts[8]}  # those with an edge stay with its end


def test_what_would_lengthen_the_cut_by_more_than_15_percent_stays():
    ends = torch.combinations(torch.arange(30)).T
    graph = dp.CSCGraph.from_edge_index(torch.cat((ends, ends.flip(0)), 1), 30)
    source = Source(graph, {}, (None,), (None,))
    parts = np.array([0] * 20 + [1] * 10, np.uint8)
    evened = even_parts(graph, AllNodes(source, {"nodes": 1}), parts, 2)
    assert evened.cut_before == 400
    assert evened.cut_after == 448  # 2 * 16 * 14: with 15 nodes each it would be 450
    assert np.bincount(parts).tolist() == [16, 14]  # 1.1 times the mean


def test_at_last_the_cut_may_grow_by_a_third_more():
    ends = torch.combinations(torch.arange(30)).T
    graph = dp.CSCGraph.from_edge_index(torch.cat((ends, ends.flip(0)), 1), 30)
    nodes = AllNodes(Source(graph, {}, (None,), (None,)), {"nodes": 1})
    parts = np.array([0] * 25 + [1] * 5, np.uint8)
    evened = even_parts(graph, nodes, parts, 2)
    assert (evened.cut_before, evened.cut_after) == (250, 250)  # 2 * 24 * 6 would be 288, above 1.15 * 250
    even_at_last(graph, nodes, parts, 2, evened)
    assert np.bincount(parts).tolist() == [23, 7]  # 322 edges; the next one would make it 352
    even_at_last(graph, nodes, parts, 2, evened._replace(after={"nodes": 0.05}))
    assert np.bincount(parts).tolist() == [23, 7]


def test_what_the_kernel_refuses(refuses):
    for graph in all_relations.CORRUPT:
        refuses(ValueError, kernel_on, graph, np.zeros(graph.num_nodes, np.uint8), 2, [None])
    graph = dp.CSCGraph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    for parts, num_parts, training in (
        ([0, 1, 2], 2, [None]),
        ([0, 1], 2, [None]),
        ([0, 0, 0], 0, [None]),
        ([0, 1, 1], 257, [None]),
        ([0, 1, 1], 2, []),
        ([0, 1, 1], 2, [np.zeros(2, np.uint8)]),
    ):
        refuses(ValueError, kernel_on, graph, np.array(parts, np.uint8), num_parts, training)


def kernel_on(graph, parts, num_parts: int, training):
    options = {"nodes": True, "edges": True, "more_cut": 0, "training": training}
    return _core.even_parts(graph.topology(), parts, num_parts=num_parts, **options)


def test_a_hub_that_may_not_move_is_not_counted_again_for_each_of_its_leaves():
    """That would be 10^10 edges."""
    count = 100_000
    hub, leaves = torch.zeros(count - 1, dtype=torch.int64), torch.arange(1, count)
    ends = torch.stack((hub, leaves))
    graph = dp.CSCGraph.from_edge_index(torch.cat((ends, ends.flip(0)), 1), count)
    parts = (np.arange(count) % 3 == 1).astype(np.uint8)
    before, after, cut_before, cut_after = kernel_on(graph, parts, 2, [None])
    assert after < before
    assert 0 <= cut_before + 15 * cut_before // 100 - cut_after < 2  # a leaf costs two edges


def test_a_thousand_parts_become_even():
    graph = hubs(100_000)
    parts = np.repeat(np.arange(1000), np.tile([130, 70], 500)).astype(np.int16)
    even_parts(graph, AllNodes(Source(graph, {}, (None,), (None,)), {"nodes": 1.0}), parts, 1000)
    assert np.bincount(parts).max() <= 111


# --- the methods


def hubs(num_nodes: int = 3000, rng_seed: int = 0) -> dp.CSCGraph:
    """A random graph where few nodes have most in-edges."""
    made = torch.Generator().manual_seed(rng_seed)
    ends = torch.rand(2, 10 * num_nodes, generator=made)
    return dp.CSCGraph.from_edge_index(torch.stack((ends[0], ends[1] ** 4)).mul(num_nodes).long(), num_nodes)


def largest(graph: dp.CSCGraph, training: torch.Tensor, balance, method: str, num_parts: int) -> dict[str, float]:
    """The largest part divided by the mean, of each measure."""
    source = Source(graph, {None: training}, (None,), (None,))
    options = {"recursive": False, "rng_seed": 0, "progress": lambda *_: None}
    book = assign(source, num_parts, method=method, balance=balance, **options)
    parts = book.nodes().dense().numpy()
    of_nodes = (np.ones(len(parts)), np.diff(graph.indptr.numpy()), training.numpy())
    found = [np.bincount(parts, values, num_parts).max() * num_parts / values.sum() for values in of_nodes]
    return dict(zip(EVEN, found, strict=True))


@pytest.mark.parametrize("method", ["metis", "fennel"])
@pytest.mark.parametrize("num_parts", ranked([5, 2], 1))
def test_nodes_edges_and_training_nodes_are_even_where_edges_lie_at_hubs(method, num_parts):
    if method == "metis":
        pytest.importorskip("pymetis", reason="needs pymetis")
    graph, training = hubs(), torch.arange(3000) < 300
    assert max(largest(graph, training, None, method, num_parts).values()) <= MOST
    only_nodes = largest(graph, training, {"nodes": np.float32(1), "edges": np.int64(0)}, method, num_parts)
    assert only_nodes["nodes"] <= MOST
    assert only_nodes["edges"] > MOST  # what has no share does not count
    assert largest(graph, training, {"edges": 2.5}, method, num_parts)["edges"] <= MOST


def test_metis_runs_again_while_a_measure_is_uneven_and_the_most_even_parts_win(monkeypatch):
    pytest.importorskip("pymetis", reason="needs pymetis")
    graph, training = hubs(), torch.arange(3000) < 300
    worst = [0.4, 0.2, 0.3, 0.2, 0.1]
    shares, made, spent = [], [], []

    def uneven(graph, nodes, parts, num_parts):
        number = len(made)
        made.append(parts)
        shares.append(dict(nodes.shares))
        excess = {"nodes": 0.0, "edges": worst[number], "train": 0.0}
        return metis_parts.Evened(excess, excess, 1000, 1600 if number == 4 else 1000)

    monkeypatch.setattr(metis_parts, "even_parts", uneven)
    monkeypatch.setattr(metis_parts, "even_at_last", lambda *given: spent.append(given[2:]))
    nodes = AllNodes(Source(graph, {None: training}, (None,), (None,)), EVEN)
    parts, _ = metis_parts.metis_parts(graph, nodes, 2, recursive=False, rng_seed=0, progress=lambda *_: None)
    assert parts is made[1]  # the last is more even, and cuts 1.6 times as many edges
    ((evened, _, of_run),) = spent
    assert evened is made[1]
    assert of_run.worst == 0.2
    assert [each["edges"] for each in shares] == pytest.approx(
        [1, 1.4, 1.4 * 1.2, 1.4 * 1.2 * 1.3, 1.4 * 1.2 * 1.3 * 1.2]
    )
    assert {each["nodes"] for each in shares} == {1.0}
    assert any((made[0] != each).any() for each in made[1:])
    worst[:] = [0.06, 0.05]
    made.clear()
    assert metis_parts.metis_parts(graph, nodes, 2, recursive=False, rng_seed=0, progress=lambda *_: None)[0] is made[1]
    assert len(made) == 2


@pytest.mark.parametrize("method", ["metis", "fennel"])
def test_each_part_has_a_node_of_each_type_that_has_as_many_as_parts(tmp_path, method):
    """A chain of communities of one type each: the smallest cut gives each part types of its own."""
    if method == "metis":
        pytest.importorskip("pymetis", reason="needs pymetis")
    edges = {}
    for kind in "abcd":
        ends = torch.combinations(torch.arange(12)).T
        edges[(kind, "to", kind)] = torch.cat((ends, ends.flip(0)), 1)
    graph = dp.HeteroCSCGraph.from_edge_index(edges, dict.fromkeys("abcd", 12))
    report = Partitioner(graph, 4, tmp_path / "p", method=method).generate_partition()
    for counts in report.nodes_by_type.values():
        assert min(counts) >= 1
    for part in range(4):
        found = torch.load(tmp_path / "p" / f"part_{part}" / "node_feats.pt", weights_only=False)
        assert sorted(found) == list("abcd")


def test_what_is_no_balance_is_refused(refuses, tmp_path):
    graph = all_relations.undirected_random(10, 20, rng_seed=1)
    numbers = (0, -1, float("nan"), float("inf"), 10**400)
    wrong = [{}, *({"nodes": number} for number in numbers), {"edges": "1"}, {"train": True}, [1]]
    for balance in (*wrong, {"nodes": 1, "training_nodes": 1}):
        refuses(ValueError, Partitioner, graph, 2, tmp_path / "p", method="fennel", balance=balance)
    for method in ("random", "range"):  # which balance nothing
        refuses(ValueError, Partitioner, graph, 2, tmp_path / "p", method=method, balance={"nodes": 1})


@pytest.mark.parametrize("dtype", ranked([np.int64, np.float16, np.int8, np.int32, np.uint64, np.float32], 2))
def test_shares_may_be_numbers_of_numpy(dtype):
    graph, training = hubs(), torch.arange(3000) < 300
    wanted = largest(graph, training, {"nodes": 100.0, "edges": 50.0}, "fennel", 3)
    assert largest(graph, training, {"nodes": dtype(100), "edges": dtype(50)}, "fennel", 3) == wanted
    assert largest(graph, training, {"nodes": 1e100, "edges": 5e99}, "fennel", 3) == pytest.approx(wanted, abs=0.02)


def test_the_partition_says_what_was_balanced(tmp_path):
    graph = all_relations.undirected_random(50, 200, rng_seed=1)
    for balance, wanted in (({"edges": np.float32(0.5)}, {"edges": 0.5}), (None, None)):
        Partitioner(graph, 2, tmp_path / "p", method="fennel", balance=balance).generate_partition()
        assert json.loads((tmp_path / "p" / "partition.json").read_text()).get("balance") == wanted
