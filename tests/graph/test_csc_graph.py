"""CSCGraph: construction and converters; and what graphs of both classes do alike."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from hetero_graphs import COLUMNS, expect_equal, full_graph, full_library, in_edges, tensors_of
from hypothesis import given
from pipelines import graph_of
from strategies import csc_graphs

import datapipes as dp

of_both_classes = pytest.mark.parametrize("build", [full_graph, full_library], ids=["plain", "types"])


# --- construction


def test_tensors_arrays_and_mapped_files_are_viewed(tmp_path):
    indptr, indices = np.array([0, 3, 3, 5]), np.array([1, 2, 2, 0, 2], dtype=np.int32)
    np.save(tmp_path / "indices.npy", indices)
    indices.setflags(write=False)
    mapped = np.load(tmp_path / "indices.npy", mmap_mode="r")
    for given_indices in (torch.from_numpy(indices.copy()), indices, mapped):
        graph = dp.CSCGraph(indptr, given_indices)
        assert in_edges(graph) == COLUMNS
        assert (graph.num_nodes, graph.num_edges, graph.indices.dtype) == (3, 5, torch.int32)
        pointer = getattr(given_indices, "data_ptr", None)
        assert graph.indices.data_ptr() == (pointer() if pointer else given_indices.ctypes.data)
    assert dp.CSCGraph(indptr.astype(np.int32), indices).indptr.dtype == torch.int64


def test_a_graph_may_have_no_nodes_and_no_edges():
    graph = dp.CSCGraph(torch.tensor([0]), torch.tensor([], dtype=torch.int64)).validate()
    assert (graph.num_nodes, graph.num_edges) == (0, 0)
    assert dp.CSCGraph(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int32)).num_nodes == 1


def test_what_arrays_a_graph_refuses(refuses):
    def graph(**changes) -> dp.CSCGraph:
        return dp.CSCGraph(**{"indptr": torch.tensor([0, 5]), "indices": torch.zeros(5).long(), **changes})

    refuses(TypeError, graph, indptr=[0, 5])
    refuses(TypeError, graph, indptr=torch.tensor([0.0, 5]))
    refuses(ValueError, graph, indptr=torch.tensor([[0, 5]]))
    refuses(ValueError, graph, indptr=torch.tensor([], dtype=torch.int64))
    refuses(ValueError, graph, indptr=torch.tensor([1, 5]))
    refuses(ValueError, graph, indptr=torch.tensor([0, 4]))
    refuses(TypeError, graph, indices=torch.ones(5))
    refuses(ValueError, graph, indices=torch.arange(10)[::2])
    refuses(ValueError, graph, indices=torch.ones(5, device="meta").long())
    refuses(ValueError, graph, edge_ids=torch.arange(4))
    refuses(TypeError, graph, edge_ids=torch.ones(5))
    refuses(ValueError, graph, node_attributes={"x": torch.ones(4)})
    refuses(ValueError, graph, edge_attributes={"w": torch.ones(4)})
    refuses(ValueError, graph, edge_attributes={"w": torch.tensor(1)})
    refuses(TypeError, graph, node_attributes={3: torch.ones(1)})
    refuses(TypeError, graph, node_attributes={"x": ["a"]})
    for attributes in (5, "x", [("x", torch.zeros(3))]):
        refuses(TypeError, graph, node_attributes=attributes)


def test_what_validate_refuses_and_construction_does_not(refuses):
    for indptr, indices, edge_ids in (
        ([0, 3, 2, 5], [0, 1, 2, 0, 1], None),
        ([0, 9, 3, 5], [0, 1, 2, 0, 1], None),
        ([0, -1, 3, 5], [0, 1, 2, 0, 1], None),
        ([0, 1, 3, 5], [0, 1, 3, 0, 1], None),
        ([0, 1, 3, 5], [0, 1, -1, 0, 1], None),
        ([0, 1, 3, 5], [0, 1, 2, 0, 1], torch.tensor([0, 1, -7, 3, 4])),
    ):
        refuses(ValueError, dp.CSCGraph(torch.tensor(indptr), torch.tensor(indices), edge_ids=edge_ids).validate)


@given(csc_graphs())
def test_a_sound_graph_is_valid(arrays):
    graph = dp.CSCGraph(*arrays)
    assert graph.validate() is graph


@of_both_classes
def test_the_index_dtype_changes_and_the_rest_is_shared(refuses, build):
    graph = build()
    narrow = graph.with_index_dtype(torch.int32)
    assert {narrow.relation(edge_type).indices.dtype for edge_type in narrow.edge_types} == {torch.int32}
    assert narrow.digest() == graph.digest()
    ours, theirs = tensors_of(narrow), tensors_of(graph)
    kept = {place for place in theirs if place[0] != "indices"}
    assert [place for place in kept if ours[place].data_ptr() != theirs[place].data_ptr()] == []
    expect_equal(narrow.with_index_dtype(torch.int64), graph)
    refuses(ValueError, graph.with_index_dtype, torch.float32)


def test_the_digest_is_the_topologys():
    graph = full_graph()
    assert graph.digest() == graph_of(COLUMNS, edge_ids=graph.edge_ids).digest()
    others = [graph_of(COLUMNS), graph_of([[1, 2, 1], [], [0, 2]]), graph_of([[1, 2], [2], [0, 2]])]
    others.append(graph_of([*COLUMNS, []]))
    assert len({graph.digest(), *(other.digest() for other in others)}) == 5


@pytest.mark.parametrize("columns", [[], [[]], [[], []], [[0]]], ids=str)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_the_smallest_graphs_have_a_digest(columns, dtype):
    graph = graph_of(columns).with_index_dtype(dtype)
    again = dp.CSCGraph.from_edge_index(
        torch.stack((graph.indices, torch.repeat_interleave(graph.indptr.diff()).to(dtype))), graph.num_nodes
    )
    assert len(graph.digest()) == len(again.digest()) == 32


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
@of_both_classes
def test_a_graph_pickles_and_copies(build, copied):
    graph = build()
    largest = [graph.max_edge_id_of(edge_type) for edge_type in graph.edge_types]
    graph.topology()
    again = copied(copied(graph))
    expect_equal(again, graph)
    assert repr(again) == repr(graph)
    assert [again.max_edge_id_of(edge_type) for edge_type in graph.edge_types] == largest


@of_both_classes
def test_what_a_process_has_found_in_the_arrays_is_not_pickled_with_them(build):
    graph = build()
    before = pickle.dumps(graph)
    graph.max_edge_id_of(graph.edge_types[-1])
    graph.topology()
    assert pickle.dumps(graph) == before


def test_a_graph_shows_itself():
    assert repr(graph_of(COLUMNS)) == "CSCGraph(3 nodes, 5 edges, int64)"
    assert repr(full_library()) == "HeteroCSCGraph(3 node types, 4 edge types, 8 nodes, 9 edges, int64)"


# --- from edges


def test_edges_may_be_int32_arrays_transposed_or_empty():
    pairs = np.array([[1, 0], [2, 0], [0, 2]], dtype=np.int32)
    graph = dp.CSCGraph.from_edge_index(pairs.T)
    assert (in_edges(graph), graph.indices.dtype) == ([[1, 2], [], [0]], torch.int32)
    for same in (pairs.T.tolist(), tuple(torch.from_numpy(pairs.T)), [*pairs.T]):
        assert in_edges(dp.CSCGraph.from_edge_index(same)) == [[1, 2], [], [0]]
    for empty in (torch.empty(2, 0).long(), [[], []]):
        assert dp.CSCGraph.from_edge_index(empty).num_nodes == 0
    assert in_edges(dp.CSCGraph.from_edge_index(torch.empty(2, 0).long(), 2)) == [[], []]


def test_what_edges_are_refused(refuses):
    from_edge_index, edge = dp.CSCGraph.from_edge_index, torch.tensor([[0], [1]])
    refuses(ValueError, from_edge_index, torch.ones(3, 2).long())
    refuses(TypeError, from_edge_index, torch.ones(2, 3))
    refuses(TypeError, from_edge_index, torch.ones(2, 3, dtype=torch.bool))
    refuses(TypeError, from_edge_index, [[1], [2.5]])
    for rows in ([[1], [2, 3]], (torch.ones(1), torch.ones(2))):
        with pytest.raises(ValueError, match="whose rows have different lengths or kinds"):
            from_edge_index(rows)
    refuses(TypeError, from_edge_index, "01")
    for ends in ([[0], [3]], [[3], [0]], [[0], [-1]], [[-1], [0]]):
        refuses(IndexError, from_edge_index, torch.tensor(ends), 3)
    for ends in ([[-1], [0]], [[-2], [-2]]):
        refuses(IndexError, from_edge_index, torch.tensor(ends))
    refuses(ValueError, from_edge_index, edge, -1)
    refuses(TypeError, from_edge_index, edge, 2.0)
    refuses(ValueError, from_edge_index, edge, edge_attributes={"w": torch.ones(2)})
    refuses(ValueError, from_edge_index, edge, node_attributes={"x": torch.ones(3)})
    refuses(TypeError, from_edge_index, {("a", "r", "b"): edge})


@pytest.mark.parametrize("make", ["coo_matrix", "csr_matrix", "csc_matrix", "coo_array", "csr_array"])
def test_a_scipy_entry_is_an_edge_with_a_weight(make):
    sparse = pytest.importorskip("scipy.sparse", reason="from_scipy takes a scipy matrix")
    entries = ([0.5, 1.5, 2.5], ([1, 2, 0], [0, 0, 2]))
    graph = dp.CSCGraph.from_scipy(getattr(sparse, make)(entries, shape=(3, 3)))
    assert in_edges(graph) == [[1, 2], [], [0]]
    assert graph.edge_attributes["weight"].tolist() == [0.5, 1.5, 2.5]


def test_parallel_entries_of_scipy_stay_parallel_and_other_shapes_are_refused(refuses):
    sparse = pytest.importorskip("scipy.sparse", reason="from_scipy takes a scipy matrix")
    graph = dp.CSCGraph.from_scipy(sparse.coo_matrix(([1, 2], ([1, 1], [0, 0])), shape=(2, 2)))
    assert in_edges(graph) == [[1, 1], []]
    assert graph.edge_attributes["weight"].tolist() == [1, 2]
    for wrong in (sparse.coo_matrix((2, 3)), np.eye(3), 3):
        refuses(ValueError, dp.CSCGraph.from_scipy, wrong)


def test_networkx_edges_go_one_way_where_directed_and_both_ways_where_not():
    networkx = pytest.importorskip("networkx", reason="from_networkx takes a networkx graph")
    edges = [("a", "b", {"w": 1.0}), ("c", "b", {"w": 2.0}), ("b", "b", {"w": 3.0})]
    directed, undirected = networkx.DiGraph(edges), networkx.Graph(edges)
    graph = dp.CSCGraph.from_networkx(directed, edge_attributes=("w",))
    assert in_edges(graph) == [[], [0, 2, 1] if list(directed) == ["a", "c", "b"] else [0, 1, 2], []]
    assert sorted(graph.edge_attributes["w"].tolist()) == [1, 2, 3]
    both = dp.CSCGraph.from_networkx(undirected, edge_attributes=("w",))
    assert [sorted(column) for column in in_edges(both)] == [[1], [0, 1, 2], [1]]  # the self-loop counts once
    ends = [v for v, column in enumerate(in_edges(both)) for _ in column]
    by_edge = {frozenset((u, v)): set() for u, v in zip(both.indices.tolist(), ends, strict=True)}
    for u, v, w in zip(both.indices.tolist(), ends, both.edge_attributes["w"].tolist(), strict=True):
        by_edge[frozenset((u, v))].add(w)
    assert all(len(weights) == 1 for weights in by_edge.values())  # both directions have the same weight


def test_networkx_multigraphs_attributes_and_empty_graphs_come_along(refuses):
    networkx = pytest.importorskip("networkx", reason="from_networkx takes a networkx graph")
    multi = networkx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    assert [sorted(column) for column in in_edges(dp.CSCGraph.from_networkx(multi))] == [[1, 1], [0, 0, 1]]
    networkx.set_node_attributes(multi, {0: 7, 1: 8}, "x")
    assert dp.CSCGraph.from_networkx(multi, node_attributes=("x",)).node_attributes["x"].tolist() == [7, 8]
    assert dp.CSCGraph.from_networkx(networkx.Graph()).num_nodes == 0
    refuses(ValueError, dp.CSCGraph.from_networkx, multi, edge_attributes=("w",))
    refuses(TypeError, dp.CSCGraph.from_networkx, multi, edge_attributes="wxyz")
    refuses(TypeError, dp.CSCGraph.from_networkx, multi, node_attributes="wxyz")


def test_a_pyg_graph_brings_its_tensors(refuses):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
        data = pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG Data")
    edge_index = torch.tensor([[1, 2, 0], [0, 0, 2]])
    graph = dp.CSCGraph.from_pyg(
        data.Data(x=torch.ones(3, 2), edge_index=edge_index, edge_attr=torch.tensor([5, 6, 7]), y=torch.arange(3))
    )
    assert in_edges(graph) == [[1, 2], [], [0]]
    assert sorted(graph.node_attributes) == ["x", "y"]
    assert graph.edge_attributes["edge_attr"].tolist() == [5, 6, 7]
    refuses(ValueError, dp.CSCGraph.from_pyg, data.Data(num_nodes=3))
    refuses(ValueError, dp.CSCGraph.from_pyg, data.HeteroData({"a": {"x": torch.ones(2, 1)}}))


def test_a_graph_does_not_see_that_a_tensor_it_was_made_of_gets_other_memory():
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1])
    graph = dp.CSCGraph(indptr, indices)
    digest = graph.digest()
    indptr.data, indices.data = torch.tensor([0, 0, 0]), torch.tensor([0])
    assert (graph.indptr.tolist(), graph.indices.tolist(), graph.digest()) == ([0, 2, 3], [1, 0, 1], digest)
