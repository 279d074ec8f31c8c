"""to_undirected, add_self_loops, remove_self_loops and degrees, against plain lists of edges."""

import pytest
import torch
from amounts import examples
from hetero_graphs import CITES, KNOWS, WRITES, full_library, id_dtypes, library, typed_edges
from hypothesis import given
from hypothesis import strategies as st

import datapipes as dp
from datapipes.base.types import ends_of

EDGES = torch.tensor([[0, 1, 2, 2, 0], [1, 0, 2, 0, 1]])  # 0-1 both ways and twice, a self-loop, and 2 -> 0


def weighted(edges, dtype=torch.int64):
    """A graph of typed edges whose edge attribute "w" is 10 times the edge id."""
    weights = {of: {"w": 10 * torch.arange(len(rows))} for of, rows in edges.edges.items()}
    return dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype), edges.num_nodes, edge_attributes=weights)


def rows_of(graph, of):
    """The edges of a type in the order of the graph: (source, destination, edge id told, w)."""
    relation = graph.relation(of)
    destinations = [v for v, count in enumerate(relation.indptr.diff().tolist()) for _ in range(count)]
    ids = relation.edge_attributes.get("original_id", relation.edge_ids)
    weights = relation.edge_attributes["w"]
    return [*zip(relation.indices.tolist(), destinations, ids.tolist(), weights.tolist(), strict=True)]


def in_order(rows):
    return sorted(rows, key=lambda row: row[1])  # stable, as the graph is


def turned(rows):
    return [(v, u, *more) for u, v, *more in rows]


def without_loops(rows):
    return [row for row in rows if row[0] != row[1]]


def first_of_each(rows):
    found = {}
    for row in rows:
        found.setdefault(row[:2], row)
    return [*found.values()]


@examples(200)
@given(edges=typed_edges(), dtype=id_dtypes, merge=st.booleans(), data=st.data())
def test_each_edge_has_its_reverse(edges, dtype, merge, data):
    graph = weighted(edges, dtype)
    names = {of: data.draw(st.sampled_from([f"new {of[1]}", None])) for of in graph.edge_types if of[0] != of[2]}
    names |= {of: "back" for of in graph.edge_types if of[0] == of[2] and of[1] == "t.u"}
    new = graph.to_undirected(names, merge=merge)
    assert new.index_dtype == graph.index_dtype
    expected = {}
    for of in graph.edge_types:
        rows, name = rows_of(graph, of), names.get(of, of[1])
        expected[of] = rows
        if name == of[1]:
            expected[of] = rows + turned(without_loops(rows))
        elif name is not None:
            expected[of[2], name, of[0]] = turned(rows)
        if merge and name is not None:
            for each in {of, (of[2], name, of[0])}:
                expected[each] = first_of_each(expected[each])
    assert {*new.edge_types} == {*expected}
    assert {of: rows_of(new, of) for of in expected} == {of: in_order(rows) for of, rows in expected.items()}


@examples(200)
@given(edges=typed_edges(), dtype=id_dtypes, chosen=st.none() | st.booleans())
def test_self_loops_are_added_and_removed(edges, dtype, chosen):
    graph = weighted(edges, dtype)
    loops = [of for of in graph.edge_types if of[0] == of[2]]
    given_types = None if chosen is None else loops[: len(loops) * chosen]
    touched = loops if given_types is None else given_types
    removed = graph.remove_self_loops(given_types)
    for of in graph.edge_types:
        rows = rows_of(graph, of)
        assert rows_of(removed, of) == (without_loops(rows) if of in touched else rows)
    if not touched:
        return
    added = graph.add_self_loops(given_types, fill_value=7)
    for of in graph.edge_types:
        rows = rows_of(graph, of)
        have = {u for u, v, *_ in rows if u == v}
        new = [(v, v, -1, 7) for v in range(edges.num_nodes[of[2]]) if v not in have and of in touched]
        assert rows_of(added, of) == in_order(rows + new)


@examples(100)
@given(edges=typed_edges(), dtype=id_dtypes)
def test_edges_are_turned_round(edges, dtype):
    graph = weighted(edges, dtype)
    new = graph.reversed()
    assert {*new.edge_types} == {(dst, rel, src) for src, rel, dst in graph.edge_types}
    for src, rel, dst in graph.edge_types:
        assert rows_of(new, (dst, rel, src)) == in_order(turned(rows_of(graph, (src, rel, dst))))
        assert new.reversed().validate().num_edges[src, rel, dst] == graph.num_edges[src, rel, dst]


@examples(100)
@given(edges=typed_edges(), dtype=id_dtypes)
def test_degrees_count_edges(edges, dtype):
    graph = weighted(edges, dtype)
    for of, rows in edges.edges.items():
        src, dst = ends_of(of)
        assert graph.in_degrees(of).tolist() == [sum(v == n for _, v in rows) for n in range(edges.num_nodes[dst])]
        assert graph.out_degrees(of).tolist() == [sum(u == n for u, _ in rows) for n in range(edges.num_nodes[src])]
        assert graph.in_degrees(of).dtype == graph.out_degrees(of).dtype == torch.int64


def test_a_graph_without_types_does_what_its_one_relation_does():
    given_edges = {"num_nodes": 4, "edge_attributes": {"w": 10 * torch.arange(5), "m": torch.ones(5, 2).bfloat16()}}
    plain = dp.CSCGraph.from_edge_index(EDGES, node_attributes={"x": torch.arange(4.0)}, **given_edges)
    of = ("a", "r", "a")
    typed = dp.HeteroCSCGraph.from_edge_index(
        {of: EDGES}, {"a": 4}, edge_attributes={of: given_edges["edge_attributes"]}
    )
    for change in (
        lambda graph: graph.to_undirected(),
        lambda graph: graph.to_undirected(merge=True),
        lambda graph: graph.add_self_loops(),
        lambda graph: graph.remove_self_loops(),
        lambda graph: graph.reversed(),
    ):
        ours, theirs = change(plain), change(typed)
        assert isinstance(ours, dp.CSCGraph)
        assert (ours.num_nodes, ours.edge_ids) == (4, None)
        assert torch.equal(ours.node_attributes["x"], torch.arange(4.0))
        assert rows_of(ours, None) == rows_of(theirs, of)
        assert torch.equal(ours.edge_attributes["m"], theirs.edge_attributes[of]["m"])
        assert torch.equal(ours.validate().in_degrees(), theirs.in_degrees(of))
        assert torch.equal(ours.out_degrees(), theirs.out_degrees(of))


def test_what_is_told_is_the_id_of_the_first_graph_and_reads_its_features():
    graph = dp.CSCGraph.from_edge_index(EDGES, 4)
    feature = torch.tensor([5.0, 6.0, 7.0, 8.0, 9.0])  # in the order of EDGES
    new = graph.remove_self_loops().to_undirected(merge=True).add_self_loops()
    rows = [*zip(new.indices.tolist(), new.edge_attributes["original_id"].tolist(), strict=True)]
    assert new.in_degrees().tolist() == [3, 2, 2, 1]
    #  0: 1 -> 0, 2 -> 0, itself       1: 0 -> 1, itself   2: the reverse of 2 -> 0, itself        3: itself
    assert rows == [(1, 1), (2, 3), (0, -1), (0, 0), (1, -1), (0, 3), (2, -1), (3, -1)]
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([2])), 1).sample_neighbor(
        graph.to_undirected(), [-1], return_edge_ids=True
    )
    features = feature[graph.to_undirected().edge_attributes["original_id"]]
    store = dp.FeatureStore({("edge", None, "w"): dp.TensorFeature(features)})
    (minibatch,) = pipe.fetch_feature(store, edge_feature_keys=["w"])
    assert minibatch.edge_features[0]["w"].tolist() == [7.0, 8.0]  # the self-loop, and the reverse of 2 -> 0


def test_a_relation_of_which_no_edge_changes_stays_with_its_ids():
    graph = full_library()
    new = graph.to_undirected({WRITES: "written by", "author:also writes:paper": None})
    assert ("paper", "written by", "author") in new.edge_types
    assert torch.equal(new.relation(WRITES).edge_ids, graph.relation(WRITES).edge_ids)
    assert new.relation(WRITES).edge_attributes.keys() == {"w"}
    back = new.relation(("paper", "written by", "author"))
    assert back.edge_attributes["original_id"].tolist() == [4, 3, 0, 1, 2]  # by author; of each, by paper
    assert back.edge_attributes["w"].dtype == torch.float16
    assert graph.remove_self_loops([CITES]).relation(KNOWS).edge_attributes == {}


def test_edges_that_are_not_there_are_told_apart_from_a_graph_that_is_corrupt():
    empty = dp.CSCGraph(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    assert empty.out_degrees().tolist() == empty.in_degrees().tolist() == []
    assert empty.to_undirected(merge=True).add_self_loops().num_edges == 0
    with pytest.raises(ValueError, match="graph: "):
        dp.CSCGraph(torch.tensor([0, 1]), torch.tensor([4])).out_degrees()


def test_what_edits_refuse(refuses):
    plain = dp.CSCGraph.from_edge_index(EDGES, edge_attributes={"w": torch.arange(5)})
    typed, two_types = library(), dp.HeteroCSCGraph.from_edge_index({WRITES: EDGES})
    refuses(ValueError, typed.to_undirected)
    refuses(ValueError, typed.to_undirected, {WRITES: "r", ("author", "also writes", "paper"): "r"})
    refuses(ValueError, plain.to_undirected, {"a:r:a": "s"})
    refuses(ValueError, typed.add_self_loops, [WRITES])
    refuses(ValueError, two_types.add_self_loops)
    refuses(ValueError, full_library().add_self_loops, fill_value={"w": 1})
    refuses(ValueError, plain.add_self_loops, fill_value="one")
    for edge_type in ("paper:cites:paper", CITES):
        refuses(TypeError, typed.add_self_loops, edge_type)
        refuses(TypeError, typed.remove_self_loops, edge_type)
