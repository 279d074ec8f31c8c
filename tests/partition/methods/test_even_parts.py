"""Evening of parts: the kernel equals its twin, what is uneven becomes even, and the cut stays short."""

import all_relations
import numpy as np
import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st

import datapipes as dp
from datapipes import _core
from datapipes.partition.methods import metis_parts
from datapipes.partition.methods.all_nodes import EVEN, AllNodes
from datapipes.partition.methods.assign import assign
from datapipes.partition.methods.even_parts import even_parts
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
    wanted, before, after = twin.even_parts(in_edges, [*measures, trained], parts.tolist(), num_parts)
    found = _core.even_parts(graph.topology(), parts, num_parts=num_parts, nodes=nodes, edges=edges, training=masks)
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


@pytest.mark.parametrize("name", all_relations.CORRUPT)
def test_a_corrupt_graph_raises(name):
    graph, message = all_relations.CORRUPT[name]
    parts = np.zeros(graph.num_nodes, np.uint8)
    with pytest.raises(ValueError, match=f"^Partitioner: .*{message}"):
        _core.even_parts(graph.topology(), parts, num_parts=2, nodes=True, edges=True, training=[None])


@pytest.mark.parametrize(
    ("parts", "num_parts", "training", "message"),
    [
        ([0, 1, 2], 2, [None], r"not in \[0, num_parts\)"),
        ([0, 1], 2, [None], "give the part of each node"),
        ([0, 0, 0], 0, [None], "at least 1"),
        ([0, 1, 1], 2, [], "for each node type"),
        ([0, 1, 1], 2, [np.zeros(2, np.uint8)], "an entry for each node of its type"),
    ],
)
def test_arguments_that_do_not_fit_raise(parts, num_parts, training, message):
    graph = dp.CSCGraph.from_edge_index(torch.tensor([[0, 1], [1, 2]]), 3)
    with pytest.raises(ValueError, match=message):
        _core.even_parts(
            graph.topology(), np.array(parts, np.uint8), num_parts=num_parts, nodes=True, edges=True, training=training
        )


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
@pytest.mark.parametrize("num_parts", [2, 5])
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
    shares, made = [], []

    def uneven(graph, nodes, parts, num_parts):
        number = len(made)
        made.append(parts)
        shares.append(dict(nodes.shares))
        excess = {"nodes": 0.0, "edges": worst[number], "train": 0.0}
        return metis_parts.Evened(excess, excess, 1000, 1600 if number == 4 else 1000)

    monkeypatch.setattr(metis_parts, "even_parts", uneven)
    nodes = AllNodes(Source(graph, {None: training}, (None,), (None,)), EVEN)
    parts, _ = metis_parts.metis_parts(graph, nodes, 2, recursive=False, rng_seed=0, progress=lambda *_: None)
    assert parts is made[1]  # the last is more even, and cuts 1.6 times as many edges
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


@pytest.mark.parametrize(
    "balance",
    [
        {},
        {"nodes": 0},
        {"weight": 1},
        {"nodes": -1},
        {"nodes": float("nan")},
        {"nodes": float("inf")},
        [1],
        {"edges": "1"},
        {"train": True},
    ],
    ids=str,
)
def test_wrong_shares_are_refused(tmp_path, balance):
    graph = all_relations.undirected_random(10, 20, rng_seed=1)
    with pytest.raises(ValueError, match=r"^Partitioner: balance is .*shares of 'nodes', 'edges', 'train'"):
        Partitioner(graph, 2, tmp_path / "p", method="fennel", balance=balance)


@pytest.mark.parametrize("method", ["random", "range"])
def test_methods_that_balance_nothing_refuse_shares(tmp_path, method):
    graph = all_relations.undirected_random(10, 20, rng_seed=1)
    with pytest.raises(ValueError, match=f"option of method='metis' and 'fennel', and the method is '{method}'"):
        Partitioner(graph, 2, tmp_path / "p", method=method, balance={"nodes": 1})
