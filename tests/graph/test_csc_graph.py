"""CSCGraph: construction, converters, and saved folders, which are checked when they are opened."""

import itertools
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import graph_of, refused, small_graph
from strategies import csc_graphs

import datapipes as dp

COLUMNS = [[1, 2, 2], [], [0, 2]]  # with parallel edges, a self-loop and a node without in-edges


def in_edges(graph: dp.CSCGraph) -> list[list[int]]:
    indptr = graph.indptr.tolist()
    return [graph.indices[a:b].tolist() for a, b in itertools.pairwise(indptr)]


def attributes_of(num_nodes: int, num_edges: int) -> dict[str, dict[str, torch.Tensor]]:
    """Odd names, odd dtypes and zero-width rows."""
    return {
        "node_attributes": {
            "x/y ../z.npy": torch.arange(num_nodes * 2.0).reshape(num_nodes, 2).bfloat16(),
            "mask": torch.arange(num_nodes) % 2 == 0,
            "": torch.zeros(num_nodes, 0),
            "größe": torch.ones(num_nodes, dtype=torch.complex64),
        },
        "edge_attributes": {"w": torch.arange(num_edges).half(), "mask": torch.ones(num_edges).bool()},
    }


def full_graph() -> dp.CSCGraph:
    return graph_of(COLUMNS, edge_ids=torch.tensor([4, 0, 1, 2, 3]), **attributes_of(3, 5))


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


@pytest.mark.parametrize(
    ("change", "error", "found", "allowed"),
    [
        ({"indptr": [0, 5]}, TypeError, "indptr.*list", "a tensor or an array"),
        ({"indptr": torch.tensor([0.0, 5])}, TypeError, "indptr.*float32", "int32 or int64"),
        ({"indptr": torch.tensor([[0, 5]])}, ValueError, r"indptr.*\(1, 2\)", "1 dimension"),
        ({"indptr": torch.tensor([], dtype=torch.int64)}, ValueError, "indptr is empty", "num_nodes \\+ 1"),
        ({"indptr": torch.tensor([1, 5])}, ValueError, "from 1 to 5", "from 0 to the number of indices, 5"),
        ({"indptr": torch.tensor([0, 4])}, ValueError, "from 0 to 4", "from 0 to the number of indices, 5"),
        ({"indices": torch.ones(5)}, TypeError, "indices.*float32", "int32 or int64"),
        ({"indices": torch.arange(10)[::2]}, ValueError, "indices is not contiguous", "contiguous"),
        ({"indices": torch.ones(5, device="meta").long()}, ValueError, "on meta", "host memory"),
        ({"edge_ids": torch.arange(4)}, ValueError, "4 edge_ids for 5 edges", "one for each"),
        ({"edge_ids": torch.ones(5)}, TypeError, "edge_ids.*float32", "int32 or int64"),
        ({"node_attributes": {"x": torch.ones(4)}}, ValueError, r"node attribute 'x'.*\[4\]", "must be 1, one row"),
        ({"edge_attributes": {"w": torch.ones(4)}}, ValueError, r"edge attribute 'w'.*\[4\]", "must be 5, one row"),
        ({"edge_attributes": {"w": torch.tensor(1)}}, ValueError, r"edge attribute 'w'.*\[\]", "must be 5, one row"),
        ({"node_attributes": {3: torch.ones(1)}}, TypeError, "got 3", "must be str"),
        ({"node_attributes": {"x": ["a"]}}, TypeError, "'x'.*list", "a tensor or an array"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_are_refused(change, error, found, allowed):
    remedy = {"4 edge_ids for 5 edges": "or None for", "indptr is empty": r"has \[0\]"}.get(found, r"\. [A-Z]\w+")
    with refused(error, stage="CSCGraph", found=found, allowed=allowed, remedy=remedy):
        dp.CSCGraph(**{"indptr": torch.tensor([0, 5]), "indices": torch.zeros(5).long(), **change})


@pytest.mark.parametrize(
    ("indptr", "indices", "edge_ids", "found"),
    [
        ([0, 3, 2, 5], [0, 1, 2, 0, 1], None, "indptr"),
        ([0, 9, 3, 5], [0, 1, 2, 0, 1], None, "indptr"),
        ([0, -1, 3, 5], [0, 1, 2, 0, 1], None, "indptr"),
        ([0, 1, 3, 5], [0, 1, 3, 0, 1], None, r"3"),
        ([0, 1, 3, 5], [0, 1, -1, 0, 1], None, r"-1"),
        ([0, 1, 3, 5], [0, 1, 2, 0, 1], [0, 1, -7, 3, 4], r"edge_ids\[2\] is -7"),
    ],
)
def test_validate_reads_what_construction_does_not(indptr, indices, edge_ids, found):
    ids = None if edge_ids is None else torch.tensor(edge_ids)
    graph = dp.CSCGraph(torch.tensor(indptr), torch.tensor(indices), edge_ids=ids)
    with pytest.raises(ValueError, match=found):
        graph.validate()


@given(csc_graphs())
def test_a_sound_graph_is_valid(arrays):
    graph = dp.CSCGraph(*arrays)
    assert graph.validate() is graph


def test_the_index_dtype_changes_and_the_rest_is_shared():
    graph = full_graph()
    narrow = graph.with_index_dtype(torch.int32)
    assert (graph.indices.dtype, narrow.indices.dtype) == (torch.int64, torch.int32)
    assert in_edges(narrow) == in_edges(graph)
    assert narrow.digest() == graph.digest()
    assert narrow.indptr.data_ptr() == graph.indptr.data_ptr()
    assert narrow.node_attributes["mask"].data_ptr() == graph.node_attributes["mask"].data_ptr()
    assert narrow.with_index_dtype(torch.int64).indices.dtype == torch.int64
    with refused(ValueError, stage="graph", found="float32", allowed="torch.int32 or torch.int64"):
        graph.with_index_dtype(torch.float32)


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


def test_a_graph_pickles_and_shows_itself():
    graph = full_graph()
    graph.arrays()
    again = pickle.loads(pickle.dumps(graph))
    assert again.digest() == graph.digest()
    assert repr(again) == repr(graph)
    assert repr(graph_of(COLUMNS)) == "CSCGraph(3 nodes, 5 edges, int64)"


# --- from edges


@given(st.integers(0, 8), st.data())
def test_edges_become_columns_in_their_order_and_attributes_follow(num_nodes, data):
    nodes = st.integers(0, max(num_nodes - 1, 0))
    edges = data.draw(st.lists(st.tuples(nodes, nodes), max_size=20)) if num_nodes else []
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    names = torch.arange(len(edges))
    graph = dp.CSCGraph.from_edge_index(edge_index, num_nodes, edge_attributes={"name": names})
    indptr, indices, order = twin.coo_to_csc(*edge_index.tolist(), num_nodes)
    assert [graph.indptr.tolist(), graph.indices.tolist(), graph.edge_ids.tolist()] == [indptr, indices, order]
    assert graph.edge_attributes["name"].tolist() == order
    assert graph.validate().num_nodes == num_nodes


def test_edges_may_be_int32_arrays_transposed_or_empty():
    pairs = np.array([[1, 0], [2, 0], [0, 2]], dtype=np.int32)
    graph = dp.CSCGraph.from_edge_index(pairs.T)
    assert (in_edges(graph), graph.indices.dtype) == ([[1, 2], [], [0]], torch.int32)
    for same in (pairs.T.tolist(), tuple(torch.from_numpy(pairs.T)), [*pairs.T]):
        assert in_edges(dp.CSCGraph.from_edge_index(same)) == [[1, 2], [], [0]]
    for empty in (torch.empty(2, 0).long(), [[], []]):
        assert dp.CSCGraph.from_edge_index(empty).num_nodes == 0
    assert in_edges(dp.CSCGraph.from_edge_index(torch.empty(2, 0).long(), 2)) == [[], []]


@pytest.mark.parametrize(
    ("arguments", "error", "found"),
    [
        ({"edge_index": torch.ones(3, 2).long()}, ValueError, r"\[3, 2\]"),
        ({"edge_index": torch.ones(2, 3)}, TypeError, "float32"),
        ({"edge_index": torch.ones(2, 3, dtype=torch.bool)}, TypeError, "got bool"),
        ({"edge_index": [[1], [2.5]]}, TypeError, "float64"),
        ({"edge_index": [[1], [2, 3]]}, ValueError, "different lengths"),
        ({"edge_index": (torch.ones(1), torch.ones(2))}, ValueError, "different lengths"),
        ({"edge_index": "01"}, TypeError, "got str"),
        ({"edge_index": torch.tensor([[0], [3]]), "num_nodes": 3}, (ValueError, IndexError), "3"),
        ({"edge_index": torch.tensor([[3], [0]]), "num_nodes": 3}, (ValueError, IndexError), "3"),
        ({"edge_index": torch.tensor([[-1], [0]])}, (ValueError, IndexError), "-1"),
        ({"edge_index": torch.tensor([[0], [-1]]), "num_nodes": 3}, (ValueError, IndexError), "-1"),
        ({"edge_index": torch.tensor([[-2], [-2]])}, (ValueError, IndexError), "-"),
        ({"edge_index": torch.tensor([[0], [1]]), "num_nodes": -1}, ValueError, "-1"),
        ({"edge_index": torch.tensor([[0], [1]]), "num_nodes": 2.0}, TypeError, "2.0"),
        ({"edge_index": torch.tensor([[0], [1]]), "edge_attributes": {"w": torch.ones(2)}}, ValueError, "'w'"),
        ({"edge_index": torch.tensor([[0], [1]]), "node_attributes": {"x": torch.ones(3)}}, ValueError, "'x'"),
    ],
    ids=str,
)
def test_edges_that_do_not_fit_are_refused(arguments, error, found):
    with pytest.raises(error, match=found):
        dp.CSCGraph.from_edge_index(**arguments)


@pytest.mark.parametrize("make", ["coo_matrix", "csr_matrix", "csc_matrix", "coo_array", "csr_array"])
def test_a_scipy_entry_is_an_edge_with_a_weight(make):
    sparse = pytest.importorskip("scipy.sparse", reason="from_scipy takes a scipy matrix")
    entries = ([0.5, 1.5, 2.5], ([1, 2, 0], [0, 0, 2]))
    graph = dp.CSCGraph.from_scipy(getattr(sparse, make)(entries, shape=(3, 3)))
    assert in_edges(graph) == [[1, 2], [], [0]]
    assert graph.edge_attributes["weight"].tolist() == [0.5, 1.5, 2.5]


def test_parallel_entries_of_scipy_stay_parallel_and_other_shapes_are_refused():
    sparse = pytest.importorskip("scipy.sparse", reason="from_scipy takes a scipy matrix")
    graph = dp.CSCGraph.from_scipy(sparse.coo_matrix(([1, 2], ([1, 1], [0, 0])), shape=(2, 2)))
    assert in_edges(graph) == [[1, 1], []]
    assert graph.edge_attributes["weight"].tolist() == [1, 2]
    for wrong in (sparse.coo_matrix((2, 3)), np.eye(3), 3):
        with refused(ValueError, stage="from_scipy", found="got", allowed="square scipy sparse matrix"):
            dp.CSCGraph.from_scipy(wrong)


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


def test_networkx_multigraphs_attributes_and_empty_graphs_come_along():
    networkx = pytest.importorskip("networkx", reason="from_networkx takes a networkx graph")
    multi = networkx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    assert [sorted(column) for column in in_edges(dp.CSCGraph.from_networkx(multi))] == [[1, 1], [0, 0, 1]]
    networkx.set_node_attributes(multi, {0: 7, 1: 8}, "x")
    assert dp.CSCGraph.from_networkx(multi, node_attributes=("x",)).node_attributes["x"].tolist() == [7, 8]
    assert dp.CSCGraph.from_networkx(networkx.Graph()).num_nodes == 0
    with refused(ValueError, stage="from_networkx", found="5 of 5 edges lack", allowed="all must have it"):
        dp.CSCGraph.from_networkx(multi, edge_attributes=("w",))
    for name in ("node_attributes", "edge_attributes"):
        with refused(TypeError, stage="from_networkx", found=f"{name}.* got 'wxyz'", allowed=r"names.* Write \['wxyz'"):
            dp.CSCGraph.from_networkx(multi, **{name: "wxyz"})


def test_a_pyg_graph_brings_its_tensors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
        data = pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG Data")
    edge_index = torch.tensor([[1, 2, 0], [0, 0, 2]])
    given_data = data.Data(
        x=torch.ones(3, 2), edge_index=edge_index, edge_attr=torch.tensor([5, 6, 7]), y=torch.arange(3)
    )
    graph = dp.CSCGraph.from_pyg(given_data)
    assert in_edges(graph) == [[1, 2], [], [0]]
    assert sorted(graph.node_attributes) == ["x", "y"]
    assert graph.edge_attributes["edge_attr"].tolist() == [5, 6, 7]
    with refused(ValueError, stage="from_pyg", found="got Data without", allowed="needs a Data with edge_index"):
        dp.CSCGraph.from_pyg(data.Data(num_nodes=3))


def test_edges_by_type_are_told_of_the_hetero_graph():
    edges = {("a", "r", "b"): torch.tensor([[0], [1]])}
    with refused(
        TypeError, stage="from_edge_index", found="got a dict", allowed="a tensor", remedy=r"dp\.HeteroCSCGraph"
    ):
        dp.CSCGraph.from_edge_index(edges)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
        data = pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG Data")
    with refused(
        ValueError, stage="from_pyg", found="got HeteroData", allowed="a Data", remedy=r"dp\.HeteroCSCGraph\.from_pyg"
    ):
        dp.CSCGraph.from_pyg(data.HeteroData({"a": {"x": torch.ones(2, 1)}}))


# --- on disk


def expect_equal(found: dp.CSCGraph, expected: dp.CSCGraph) -> None:
    assert found.digest() == expected.digest()
    for kind in ("node_attributes", "edge_attributes"):
        ours, theirs = getattr(found, kind), getattr(expected, kind)
        assert list(ours) == list(theirs)
        for name in theirs:
            assert ours[name].dtype == theirs[name].dtype
            assert torch.equal(ours[name], theirs[name])
    for name in ("indptr", "indices", "edge_ids"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs))


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "build",
    [
        full_graph,
        lambda: small_graph(torch.int32),
        lambda: graph_of(COLUMNS),
        lambda: graph_of([]),
        lambda: graph_of([[], []], **attributes_of(2, 0)),
    ],
    ids=["full", "int32", "bare", "no_nodes", "no_edges"],
)
def test_a_graph_comes_back_from_disk_as_it_was(tmp_path, build, mmap):
    graph = build()
    graph.save(tmp_path / "deeper" / "folder")
    expect_equal(dp.CSCGraph.open(str(tmp_path / "deeper" / "folder"), mmap=mmap).validate(), graph)


def test_a_mapped_graph_is_not_changed_on_disk_by_writing_to_it(tmp_path):
    full_graph().save(tmp_path)
    dp.CSCGraph.open(tmp_path).indices.zero_()
    expect_equal(dp.CSCGraph.open(tmp_path), full_graph())


def test_a_mapped_graph_pickles(tmp_path):
    full_graph().save(tmp_path)
    pickled = pickle.dumps(dp.CSCGraph.open(tmp_path))
    expect_equal(pickle.loads(pickled), full_graph())
    assert len(pickled) < len(pickle.dumps(full_graph())) + 100  # not all bytes of the file for each array


def test_a_folder_that_holds_a_graph_is_not_overwritten(tmp_path):
    full_graph().save(tmp_path)
    with refused(FileExistsError, stage="CSCGraph.save", found="holds a graph already", allowed="not overwritten"):
        graph_of([[]]).save(tmp_path)
    expect_equal(dp.CSCGraph.open(tmp_path), full_graph())


def test_a_save_that_broke_off_is_no_graph(tmp_path):
    full_graph().save(tmp_path)
    (tmp_path / "graph.json").unlink()
    with refused(FileNotFoundError, stage="CSCGraph.open", found="does not exist", allowed="written by save"):
        dp.CSCGraph.open(tmp_path)
    full_graph().save(tmp_path)
    expect_equal(dp.CSCGraph.open(tmp_path), full_graph())


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".npy")


@pytest.mark.parametrize("mmap", [True, False])
def test_a_truncated_or_missing_file_is_refused_by_name(tmp_path, mmap):
    full_graph().save(tmp_path)
    for path in files_of(tmp_path):
        whole = path.read_bytes()
        for length in {0, 5, 20, len(whole) // 2, len(whole) - 1} - {len(whole)}:
            path.write_bytes(whole[:length])
            if whole != whole[:length]:
                with pytest.raises(ValueError, match=path.name):
                    dp.CSCGraph.open(tmp_path, mmap=mmap)
        path.unlink()
        with pytest.raises((ValueError, FileNotFoundError), match=path.name):
            dp.CSCGraph.open(tmp_path, mmap=mmap)
        path.write_bytes(whole)
    expect_equal(dp.CSCGraph.open(tmp_path, mmap=mmap), full_graph())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        "3",
        "null",
        '"text"',
        "{}",
        '{"format": "another"}',
        '{"format": "another", "version": 1, "arrays": []}',
        '{"format": "datapipes-csc-graph", "version": 2, "arrays": []}',
        '{"format": "datapipes-csc-graph", "version": 1, "arrays": 3}',
        '{"format": "datapipes-csc-graph", "version": 1, "arrays": [3]}',
        '{"format": "datapipes-csc-graph", "version": 1, "arrays": [{}]}',
        '{"format": "datapipes-csc-graph", "version": 1, "arrays": []}',
        '{"format": "datapipes-csc-graph", "version": 1, "num_nodes": 0, "num_edges": 0, "arrays": []}',
        '{"format": "datapipes-csc-graph", "version": 1, "num_nodes": 0, "num_edges": 0, "arrays": [3]}',
        '{"format": "datapipes-csc-graph", "version": 3, "arrays": []}',
        "[" * 100_000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
    ids=lambda text: text[:60],
)
def test_a_foreign_or_garbage_header_is_refused(tmp_path, text):
    full_graph().save(tmp_path)
    (tmp_path / "graph.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"CSCGraph\.open: .*graph\.json"):
        dp.CSCGraph.open(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    full_graph().save(folder)
    return folder


@pytest.mark.filterwarnings("ignore")  # NumPy warns about some of the headers that it then refuses
@examples(300)
@given(st.data(), st.booleans())
def test_flipped_bytes_end_in_an_error_or_in_another_graph(saved, data, mmap):
    path = data.draw(
        st.sampled_from([saved / "graph.json", *files_of(saved)]).map(lambda path: path.name), label="file"
    )
    whole = (saved / path).read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1), label="place")] = data.draw(
            st.integers(0, 255), label="byte"
        )
    (saved / path).write_bytes(content)
    try:
        graph = dp.CSCGraph.open(saved, mmap=mmap).validate()
        pipe = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 3).sample_neighbor(graph, [-1, -1], return_edge_ids=True)
        assert len(list(pipe)) == 1
    except (ValueError, FileNotFoundError):
        pass
    finally:
        (saved / path).write_bytes(whole)


@pytest.mark.parametrize("attributes", [5, "x", [("x", torch.zeros(3))]])
def test_attributes_of_an_edge_index_that_are_no_dict_are_refused(attributes):
    with refused(TypeError, stage="CSCGraph", found=type(attributes).__name__, allowed="a dict"):
        dp.CSCGraph.from_edge_index(torch.zeros(2, 1).long(), 3, node_attributes=attributes)


def test_a_graph_does_not_see_that_a_tensor_it_was_made_of_gets_other_memory():
    indptr, indices = torch.tensor([0, 2, 3]), torch.tensor([1, 0, 1])
    graph = dp.CSCGraph(indptr, indices)
    digest = graph.digest()
    indptr.data, indices.data = torch.tensor([0, 0, 0]), torch.tensor([0])
    assert (graph.indptr.tolist(), graph.indices.tolist(), graph.digest()) == ([0, 2, 3], [1, 0, 1], digest)
