"""HeteroCSCGraph: construction, its questions and answers, and converters."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from hetero_graphs import (
    AGAIN,
    CITES,
    KNOWS,
    WRITES,
    Edges,
    expect_equal,
    full_library,
    id_dtypes,
    in_edges,
    library,
    typed_edges,
)
from hypothesis import given
from pipelines import graph_of

import datapipes as dp
from datapipes.graph import graph as graph_module
from datapipes.graph import hetero_csc_graph
from datapipes.graph.graph import Graph

EDGES = torch.tensor([[0, 1, 1], [2, 0, 2]])


def columns_of(edges: Edges, key) -> tuple[list[list[int]], list[int]]:
    """The slow and obvious way: for each destination its sources in the order of the edges, and the edges' numbers."""
    columns, order = [[] for _ in range(edges.num_nodes[key[2]])], []
    for v, column in enumerate(columns):
        for number, (src, dst) in enumerate(edges.edges[key]):
            if dst == v:
                column.append(src)
                order.append(number)
    return columns, order


# --- construction, and what a graph answers


def test_a_graph_answers_by_type_in_sorted_order():
    graph = full_library()
    assert graph.is_heterogeneous
    assert graph.node_types == ("author", "paper", "venue")
    assert graph.edge_types == (AGAIN, KNOWS, WRITES, CITES)
    assert graph.num_nodes == {"author": 3, "paper": 4, "venue": 1}
    assert graph.num_edges == {AGAIN: 0, KNOWS: 1, WRITES: 5, CITES: 3}
    assert [graph.num_nodes_of(kind) for kind in graph.node_types] == [3, 4, 1]
    assert [graph.num_edges_of(key) for key in graph.edge_types] == [0, 1, 5, 3]
    assert [graph.max_edge_id_of(key) for key in graph.edge_types] == [-1, 0, 4, 9]
    assert in_edges(graph, WRITES) == in_edges(graph, "author:writes:paper") == [[0, 1], [], [2], [2, 0]]
    assert graph.index_dtype == torch.int64
    assert {key: sorted(names) for key, names in graph.edge_attributes.items()} == {
        KNOWS: [],
        CITES: [],
        WRITES: ["w"],
        AGAIN: ["w"],
    }
    assert sorted(graph.node_attributes) == ["author", "paper", "venue"]


def test_a_graph_without_types_answers_the_same_questions(refuses):
    graph = graph_of([[1, 2, 2], [], [0, 2]], edge_ids=torch.tensor([4, 0, 9, 2, 3]))
    assert not graph.is_heterogeneous
    assert (graph.node_types, graph.edge_types) == ((None,), (None,))
    assert (graph.num_nodes_of(None), graph.num_edges_of(None), graph.max_edge_id_of(None)) == (3, 5, 9)
    assert graph.relation(None) is graph
    assert graph.index_dtype == torch.int64
    assert isinstance(graph, Graph)
    assert isinstance(library(), Graph)
    for ask in (graph.num_nodes_of, graph.num_edges_of, graph.max_edge_id_of, graph.relation):
        refuses(ValueError, ask, "paper")


def test_arrays_are_viewed_and_texts_name_edge_types():
    indptr, indices = np.array([0, 2, 2]), np.array([1, 0], dtype=np.int32)
    graph = dp.HeteroCSCGraph({"a:r:b": (indptr, indices)}, {"a": 2, "b": 2})
    relation = graph.relation(("a", "r", "b"))
    assert relation.indices.data_ptr() == indices.ctypes.data
    assert relation.indptr.data_ptr() == indptr.ctypes.data
    assert (graph.index_dtype, relation.edge_ids) == (torch.int32, None)


def test_a_graph_may_have_no_edges_and_no_nodes():
    none = dp.HeteroCSCGraph({}, {})
    assert (none.node_types, none.edge_types, none.num_edges, none.index_dtype) == ((), (), {}, torch.int64)
    empty = dp.HeteroCSCGraph({("a", "r", "a"): (torch.tensor([0]), torch.zeros(0).int())}, {"a": 0})
    assert (empty.num_edges_of("a:r:a"), empty.max_edge_id_of("a:r:a")) == (0, -1)
    assert len({none.digest(), empty.digest()}) == 2


def test_what_type_is_not_known(refuses):
    graph = library()
    for ask in (graph.num_edges_of, graph.max_edge_id_of, graph.relation):
        refuses(ValueError, ask, "author:write:paper")
        refuses(ValueError, ask, ("author", "write", "paper"))
        refuses(TypeError, ask, None)
    refuses(ValueError, graph.num_nodes_of, "papr")


PAIR = (torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1]))
KEY = ("a", "r", "b")


def test_what_arrays_and_types_a_graph_refuses(refuses):
    def graph(**changes) -> dp.HeteroCSCGraph:
        return dp.HeteroCSCGraph(**{"relations": {KEY: PAIR}, "num_nodes": {"a": 3, "b": 2}, **changes})

    indptr, indices = PAIR
    refuses(ValueError, graph, num_nodes={"a": 3})
    refuses(ValueError, graph, num_nodes={"a": 3, "bb": 2})
    refuses(ValueError, graph, num_nodes={"b": 2})
    refuses(TypeError, graph, num_nodes=None)
    refuses(TypeError, graph, num_nodes=5)
    refuses(ValueError, graph, num_nodes={"a": 3, "b": 3})
    refuses(ValueError, graph, num_nodes={"a": 3, "b": 1})
    refuses(ValueError, graph, num_nodes={"a": -1, "b": 2})
    refuses(TypeError, graph, num_nodes={"a": 3.0, "b": 2})
    refuses(ValueError, graph, num_nodes={"a": 3, "b": 2, "": 1})
    refuses(TypeError, graph, num_nodes={"a": 3, "b": 2, 7: 1})
    refuses(TypeError, graph, relations=None)
    refuses(TypeError, graph, relations={KEY: indptr})
    refuses(TypeError, graph, relations={KEY: (indptr, indices, indices)})
    refuses(ValueError, graph, relations={("a", "", "b"): PAIR})
    refuses(ValueError, graph, relations={"a:r:b:c": PAIR})
    refuses(ValueError, graph, relations={KEY: PAIR, "a:r:b": PAIR})
    refuses(TypeError, graph, relations={KEY: (indptr, indices.float())})
    refuses(TypeError, graph, relations={KEY: (indptr.float(), indices)})
    refuses(ValueError, graph, relations={KEY: (indptr + 1, indices)})
    refuses(ValueError, graph, relations={KEY: (indptr, indices[:2])})
    refuses(ValueError, graph, relations={KEY: (indptr[:0], indices)})
    refuses(TypeError, graph, relations={KEY: PAIR, "a:s:b": (indptr, indices.int())})
    refuses(ValueError, graph, edge_ids={KEY: torch.arange(2)})
    refuses(ValueError, graph, edge_ids={"a:q:b": torch.arange(3)})
    refuses(TypeError, graph, edge_ids=torch.arange(3))
    refuses(ValueError, graph, edge_attributes={"a:q:b": {}})
    refuses(ValueError, graph, edge_attributes={KEY: {"w": torch.ones(2)}})
    refuses(TypeError, graph, edge_attributes={KEY: torch.ones(3)})
    refuses(ValueError, graph, edge_attributes={"w": torch.ones(3)})
    refuses(ValueError, graph, node_attributes={"bb": {}})
    refuses(ValueError, graph, node_attributes={"b": {"x": torch.ones(3)}})
    refuses(TypeError, graph, node_attributes={"b": {3: torch.ones(2)}})
    refuses(TypeError, graph, node_attributes=[1])


def test_there_are_at_most_as_many_edge_types_as_the_random_key_tells_apart(refuses, monkeypatch):
    assert hetero_csc_graph.MOST_EDGE_TYPES == 2**16
    monkeypatch.setattr(hetero_csc_graph, "MOST_EDGE_TYPES", 3)
    relations = {("a", str(number), "b"): PAIR for number in range(4)}
    refuses(ValueError, dp.HeteroCSCGraph, relations, {"a": 3, "b": 2})
    del relations["a", "3", "b"]
    assert len(dp.HeteroCSCGraph(relations, {"a": 3, "b": 2}).edge_types) == 3


def test_what_validate_refuses_and_construction_does_not(refuses):
    sound = (torch.zeros(6).long(), torch.zeros(0).long())
    for indptr, indices, edge_ids in (
        ([0, 2, 1, 3], [0, 1, 4], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 5, 1], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 1, -1], [0, 1, 2]),
        ([0, 1, 2, 3], [0, 1, 4], [3, -7, 0]),
    ):
        relations = {("a", "q", "a"): sound, KEY: (torch.tensor(indptr), torch.tensor(indices))}
        graph = dp.HeteroCSCGraph(relations, {"a": 5, "b": 3}, edge_ids={KEY: torch.tensor(edge_ids)})
        refuses(ValueError, graph.validate)


def test_a_sound_graph_is_valid_where_a_source_is_no_destination():
    graph = full_library()  # author 2 is a source of papers; there are only 3 authors for 4 papers
    assert graph.validate() is graph


def test_the_digest_is_that_of_types_and_topology():
    relations, counts = {KEY: PAIR, ("a", "s", "b"): PAIR}, {"a": 3, "b": 2}
    others = [
        library(),
        full_library(),  # has edge ids
        dp.HeteroCSCGraph(relations, counts),
        dp.HeteroCSCGraph({KEY: PAIR, ("a", "t", "b"): PAIR}, counts),
        dp.HeteroCSCGraph({KEY: PAIR}, counts),
        dp.HeteroCSCGraph(relations, {"a": 4, "b": 2}),
        dp.HeteroCSCGraph(relations, {**counts, "c": 0}),
        dp.HeteroCSCGraph({**relations, KEY: (PAIR[0], PAIR[1].flip(0))}, counts),
    ]
    assert len({graph.digest() for graph in others}) == len(others)
    turned = dp.HeteroCSCGraph(dict(reversed(relations.items())), dict(reversed(counts.items())))
    assert turned.digest() == others[2].digest()
    with_attributes = dp.HeteroCSCGraph(relations, counts, node_attributes={"a": {"x": torch.ones(3)}})
    assert with_attributes.digest() == others[2].digest()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_plain_pickle_holds_no_more_than_the_values(protocol):
    large = torch.arange(1_000_000)
    graph = dp.HeteroCSCGraph({KEY: (PAIR[0], large[5:8])}, {"a": 9, "b": 2}, node_attributes={"a": {"x": large[:9]}})
    data = pickle.dumps(graph, protocol)
    assert len(data) < 2000
    expect_equal(pickle.loads(data), graph)


# --- the arrays for the kernels


class Recorded:
    """Stands in for _core.Topology."""

    def __init__(self, node_types: list, relations: list) -> None:
        self.node_types, self.relations = node_types, relations


def test_the_kernels_are_given_types_and_relations_in_sorted_order_once(monkeypatch):
    monkeypatch.setattr(graph_module._core, "Topology", Recorded, raising=False)
    graph = full_library()
    found = graph.topology()
    assert graph.topology() is found
    assert found.node_types == [("author", 3), ("paper", 4), ("venue", 1)]
    rows = [(*ends, name, None if ids is None else ids.tolist()) for *ends, _, _, ids, name in found.relations]
    assert rows == [
        (0, 1, "author:also writes:paper", None),
        (0, 0, "author:knows:author", None),
        (0, 1, "author:writes:paper", [4, 0, 1, 2, 3]),
        (1, 1, "paper:cites:paper", [9, 8, 7]),
    ]
    assert all(indptr.dtype == np.int64 for _, _, indptr, *_ in found.relations)
    again = pickle.loads(pickle.dumps(graph))
    assert again.topology() is not found


def test_of_a_graph_without_types_the_kernels_are_given_one_type_and_one_relation(monkeypatch):
    monkeypatch.setattr(graph_module._core, "Topology", Recorded, raising=False)
    graph = graph_of([[1], [0, 1]])
    state = set(graph.__getstate__())
    found = graph.topology()
    assert found.node_types == [("", 2)]
    ((src, dst, indptr, indices, edge_ids, name),) = found.relations
    assert (src, dst, indptr.tolist(), indices.tolist(), edge_ids, name) == (0, 0, [0, 1, 3], [1, 0, 1], None, "")
    assert set(graph.__getstate__()) == state
    assert pickle.loads(pickle.dumps(graph)).digest() == graph.digest()


# --- from edges


@given(typed_edges(), id_dtypes)
def test_edges_become_columns_of_their_relation_in_their_order(edges, dtype):
    names = {key: {"name": torch.arange(len(rows))} for key, rows in edges.edges.items()}
    graph = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype), edges.num_nodes, edge_attributes=names)
    assert graph.node_types == tuple(sorted(edges.num_nodes))
    assert graph.edge_types == tuple(sorted(edges.edges))
    assert graph.index_dtype == (dtype if edges.edges else torch.int64)
    for key in edges.edges:
        columns, order = columns_of(edges, key)
        assert in_edges(graph, key) == columns
        assert graph.relation(key).edge_ids.tolist() == order == graph.edge_attributes[key]["name"].tolist()
    inferred = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype)).num_nodes
    ends = {}
    for (src, _, dst), rows in edges.edges.items():
        ends[src] = max([ends.get(src, 0), *(u + 1 for u, _ in rows)])
        ends[dst] = max([ends.get(dst, 0), *(v + 1 for _, v in rows)])
    assert inferred == ends


@given(typed_edges(max_types=1, max_relations=1))
def test_one_type_and_one_relation_are_the_graph_without_types(edges):
    (kind,) = edges.num_nodes
    for key in edges.edges:
        index, names = edges.edge_index()[key], {"name": torch.arange(len(edges.edges[key]))}
        plain = dp.CSCGraph.from_edge_index(index, edges.num_nodes[kind], edge_attributes=names).validate()
        typed = dp.HeteroCSCGraph.from_edge_index({key: index}, edges.num_nodes, edge_attributes={key: names})
        relation = typed.relation(key)
        for name in ("indptr", "indices", "edge_ids"):
            assert torch.equal(getattr(relation, name), getattr(plain, name))
        assert torch.equal(relation.edge_attributes["name"], plain.edge_attributes["name"])


def test_what_edges_are_refused(refuses):
    def graph(**changes) -> dp.HeteroCSCGraph:
        return dp.HeteroCSCGraph.from_edge_index(**{"edge_index": {KEY: EDGES}, **changes})

    refuses(TypeError, graph, edge_index=EDGES)
    refuses(ValueError, graph, edge_index={KEY: EDGES.t()})
    refuses(TypeError, graph, edge_index={KEY: EDGES.float()})
    refuses(ValueError, graph, edge_index={"a:r": EDGES})
    refuses(IndexError, graph, num_nodes={"a": 1, "b": 3})
    refuses(IndexError, graph, num_nodes={"a": 2, "b": 2})
    refuses(IndexError, graph, num_nodes={"a": 2, "b": 3}, edge_index={KEY: -EDGES})
    refuses(IndexError, graph, edge_index={KEY: -EDGES - 1})
    refuses(ValueError, graph, num_nodes={"a": -2})
    refuses(TypeError, graph, num_nodes=3)
    refuses(ValueError, graph, num_nodes={"a": 9, "bb": 9})
    refuses(ValueError, graph, num_nodes={"b": 9})
    refuses(ValueError, graph, num_nodes={})
    refuses(TypeError, graph, num_nodes={"a": 2, "b": None})
    refuses(ValueError, graph, edge_attributes={"a:q:b": {}})
    refuses(ValueError, graph, edge_attributes={KEY: {"w": torch.ones(2)}})
    refuses(TypeError, graph, edge_attributes={KEY: 3})
    refuses(ValueError, graph, node_attributes={"c": {}})
    refuses(TypeError, graph, edge_index={KEY: EDGES, "a:s:b": EDGES.int()})


def test_more_nodes_than_the_dtype_of_the_indices_holds_are_refused(refuses):
    narrow = {KEY: (PAIR[0], PAIR[1].int())}
    for num_nodes in ({"a": 2**31, "b": 2}, {"a": 3, "b": 2, "c": 2**40}):
        refuses(ValueError, dp.HeteroCSCGraph, narrow, num_nodes)
        dp.HeteroCSCGraph({KEY: PAIR}, num_nodes)
    dp.HeteroCSCGraph(narrow, {"a": 2**31 - 1, "b": 2})
    dp.HeteroCSCGraph({}, {"a": 2**40})
    refuses(ValueError, dp.HeteroCSCGraph.from_edge_index, {KEY: EDGES.int()}, {"a": 2**40, "b": 3})
    refuses(ValueError, dp.HeteroCSCGraph({KEY: PAIR}, {"a": 2**31, "b": 2}).with_index_dtype, torch.int32)


# --- from other libraries


def test_a_pyg_graph_brings_its_tensors(refuses):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
        data_module = pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG HeteroData")
        data = data_module.HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(3, 2), torch.arange(3)
    data["paper"].name = "not a tensor"
    data["author"].num_nodes = 5
    data["author", "writes", "paper"].edge_index = torch.tensor([[4, 0, 2], [2, 0, 2]])
    data["author", "writes", "paper"].edge_attr = torch.tensor([5, 6, 7])
    data["paper", "cites", "paper"].edge_index = torch.zeros(2, 0).long()
    graph = dp.HeteroCSCGraph.from_pyg(data)
    assert graph.num_nodes == {"author": 5, "paper": 3}
    assert in_edges(graph, WRITES) == [[0], [], [4, 2]]
    assert graph.edge_attributes[WRITES]["edge_attr"].tolist() == [6, 5, 7]
    assert graph.relation(WRITES).edge_ids.tolist() == [1, 0, 2]
    assert graph.num_edges_of(CITES) == 0
    assert sorted(graph.node_attributes["paper"]) == ["x", "y"]
    assert torch.equal(graph.node_attributes["paper"]["x"], data["paper"].x)
    data["author", "knows", "author"].other = torch.ones(2)
    refuses(ValueError, dp.HeteroCSCGraph.from_pyg, data)
    refuses(ValueError, dp.HeteroCSCGraph.from_pyg, data_module.Data(edge_index=EDGES))


def test_a_pyg_graph_without_node_tensors_has_the_nodes_that_its_edges_name():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG says that it cannot tell the number of nodes
        data_module = pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG HeteroData")
        data = data_module.HeteroData()
        data["a", "r", "b"].edge_index = EDGES
        graph = dp.HeteroCSCGraph.from_pyg(data)
    assert graph.num_nodes == {"a": 2, "b": 3}


def test_networkx_nodes_and_edges_name_their_types(refuses):
    networkx = pytest.importorskip("networkx", reason="from_networkx takes a networkx graph")
    graph = networkx.MultiDiGraph()
    for name, kind in [("A", "author"), ("P", "paper"), ("Q", "paper"), ("B", "author")]:
        graph.add_node(name, kind=kind, size=len(graph))
    for src, dst, rel, w in [
        ("B", "Q", "writes", 1),
        ("A", "Q", "writes", 2),
        ("B", "Q", "writes", 3),
        ("P", "P", "cites", 4),
    ]:
        graph.add_edge(src, dst, rel=rel, w=w)
    options = {"node_type": "kind", "edge_type": "rel"}
    attributes = {"node_attributes": {"paper": ("size",)}, "edge_attributes": {"author:writes:paper": ("w",)}}
    typed = dp.HeteroCSCGraph.from_networkx(graph, **options, **attributes)
    assert typed.num_nodes == {"author": 2, "paper": 2}
    assert in_edges(typed, WRITES) == [[], [0, 1, 1]]  # networkx lists the edges by their sources
    assert in_edges(typed, CITES) == [[0], []]
    assert typed.edge_attributes[WRITES]["w"].tolist() == [2, 1, 3]
    assert typed.node_attributes["paper"]["size"].tolist() == [1, 2]
    for name in options:
        refuses(ValueError, dp.HeteroCSCGraph.from_networkx, graph, **{**options, name: "type"})
    for name, names in attributes.items():
        wrong = {name: dict.fromkeys(names, "size")}
        refuses(TypeError, dp.HeteroCSCGraph.from_networkx, graph, **options, **wrong)
    unknown = {"author:cites:paper": ("w",)}
    refuses(ValueError, dp.HeteroCSCGraph.from_networkx, graph, **options, edge_attributes=unknown)


def test_an_undirected_networkx_edge_becomes_one_in_each_direction():
    networkx = pytest.importorskip("networkx", reason="from_networkx takes a networkx graph")
    graph = networkx.Graph()
    graph.add_nodes_from([("A", {"t": "a"}), ("B", {"t": "b"}), ("C", {"t": "a"})])
    graph.add_edges_from([("A", "B", {"t": "r"}), ("A", "C", {"t": "s"}), ("C", "C", {"t": "s"})])
    found = dp.HeteroCSCGraph.from_networkx(graph, node_type="t", edge_type="t")
    assert {key: in_edges(found, key) for key in found.edge_types} == {
        ("a", "r", "b"): [[0]],
        ("b", "r", "a"): [[0], []],
        ("a", "s", "a"): [[1], [0, 1]],  # the self-loop counts once
    }
    assert dp.HeteroCSCGraph.from_networkx(networkx.Graph(), node_type="t", edge_type="t").num_nodes == {}
