"""LocalGraphStore: PyG's methods, over both layouts; every edge is compared with the whole graph."""

import pickle

import pytest
import torch
from local_stores import LAYOUTS, book_of, partitioned, plain_graph, typed_graph

from datapipes.base.types import ends_of
from datapipes.distributed import LocalGraphStore, Part, PartitionBook


def edges_by_id(graph, edge_type):
    """{edge id: (source, destination)} of the whole graph."""
    relation = graph.relation(edge_type)
    dst = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
    ids = range(len(dst)) if relation.edge_ids is None else relation.edge_ids.tolist()
    return dict(zip(ids, zip(relation.indices.tolist(), dst.tolist(), strict=True), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [plain_graph, typed_graph])
@pytest.mark.parametrize("num_parts", [1, 3])
def test_the_parts_have_every_edge_once_with_its_id(tmp_path, make, layout, num_parts):
    graph = make()
    book = book_of(graph, num_parts)
    partitioned(tmp_path, graph, book, [layout])
    found = {edge_type: {} for edge_type in graph.edge_types}
    for part in range(num_parts):
        store = LocalGraphStore.from_partition(tmp_path, part)
        assert (store.num_partitions, store.partition_idx, store.is_sorted) == (num_parts, part, True)
        assert [each.edge_type for each in store.get_all_edge_attrs()] == list(graph.edge_types)
        for attr in store.get_all_edge_attrs():
            src, dst = ends_of(attr.edge_type)
            assert (attr.layout.value, attr.is_sorted) == ("coo", True)
            assert attr.size == (graph.num_nodes_of(src), graph.num_nodes_of(dst))
            edge_index, ids = store.get_edge_index(attr), store.get_edge_id(attr)
            assert edge_index.dtype == ids.dtype == torch.int64
            assert bool((edge_index[1].diff() >= 0).all())
            assert bool((book.nodes(dst).part_of(edge_index[1]) == part).all())
            assert store.get_edge_index(attr.edge_type, "coo") is edge_index
            found[attr.edge_type].update(zip(ids.tolist(), map(tuple, edge_index.T.tolist()), strict=True))
    assert found == {edge_type: edges_by_id(graph, edge_type) for edge_type in graph.edge_types}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_dict_that_pygs_scripts_read_holds_tensors(tmp_path, layout):
    partitioned(tmp_path, typed_graph(), book_of(typed_graph()), [layout])
    read, asked = (LocalGraphStore.from_partition(tmp_path, 1) for _ in range(2))
    for attr in asked.get_all_edge_attrs():
        assert torch.equal(read._edge_index[attr.edge_type, "coo"], asked.get_edge_index(attr))
        assert read.get_edge_index(attr) is read._edge_index[attr.edge_type, "coo"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_edges_of_a_node_keep_their_order(tmp_path, layout):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph), [layout])
    store = LocalGraphStore.from_partition(tmp_path, 1)
    own = torch.arange(12) % 2 == 1
    expected = graph.edge_ids[own.repeat_interleave(graph.indptr.diff())]
    assert store.get_edge_id(None, "coo").tolist() == expected.tolist()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("make", [plain_graph, typed_graph])
def test_owners_of_nodes_and_edges(tmp_path, make, layout):
    graph = make()
    book = book_of(graph, 3)
    partitioned(tmp_path, graph, book, [layout])
    store = LocalGraphStore.from_partition(tmp_path, 0)
    for node_type in graph.node_types:
        ids = torch.arange(graph.num_nodes_of(node_type)).flip(0)
        assert store.get_partition_ids_from_nids(ids, node_type).tolist() == (ids % 3).tolist()
        given = store.node_pb if node_type is None else store.node_pb[node_type]
        assert given[ids].tolist() == (ids % 3).tolist()
    for edge_type in graph.edge_types:
        ends = edges_by_id(graph, edge_type)
        ids = torch.tensor(list(ends), dtype=torch.int64)
        expected = [dst % 3 for _, dst in ends.values()]
        assert store.get_partition_ids_from_eids(ids, edge_type).tolist() == expected
        given = store.edge_pb if edge_type is None else store.edge_pb[edge_type]
        assert given[ids].tolist() == expected
    with pytest.raises(IndexError, match=r"node ids must be in \[0, .*got 99"):
        store.get_partition_ids_from_nids(torch.tensor([0, 99]), graph.node_types[0])
    with pytest.raises(ValueError, match=r"no node type 'papers'|must be None, got 'papers'"):
        store.get_partition_ids_from_nids(torch.tensor([0]), "papers")


def test_the_native_layout_is_preferred_and_a_folder_without_a_partition_is_refused(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph))
    (tmp_path / "part_1" / "graph.pt").unlink()
    assert LocalGraphStore.from_partition(tmp_path, 1).get_edge_index(None, "coo").shape[0] == 2
    (tmp_path / "partition.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"graph.pt does not exist"):
        LocalGraphStore.from_partition(tmp_path, 1)
    with pytest.raises(FileNotFoundError, match=r"LocalGraphStore: .*nowhere holds no partition; .*or META.json"):
        LocalGraphStore.from_partition(tmp_path / "nowhere", 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_that_is_none_and_edges_without_an_edge_map_are_refused(refuses, tmp_path, layout):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph), [layout], edge_map=layout == "pyg")
    for part in (-1, 2):
        refuses(ValueError, LocalGraphStore.from_partition, tmp_path, part)
    for no_number in ("0", True):
        refuses(TypeError, LocalGraphStore.from_partition, tmp_path, no_number)
    if layout == "native":
        store = LocalGraphStore.from_partition(tmp_path, 0)
        assert store.edge_pb is None
        refuses(ValueError, store.get_partition_ids_from_eids, torch.tensor([0]))


def test_a_store_of_an_open_part_shares_it(tmp_path):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph), ["native"])
    part = Part.open(tmp_path, 1)
    store = LocalGraphStore.from_part(part)
    edge_type = ("author", "writes", "paper")
    assert store.get_edge_id(edge_type, "coo").data_ptr() == part.relation(edge_type).edge_ids.data_ptr()
    assert store.meta == {
        "num_parts": 2,
        "node_types": ["author", "paper", "venue"],
        "edge_types": [list(each) for each in graph.edge_types],
        "node_offset": [0, 3, 7],
        "is_hetero": True,
        "is_sorted": True,
    }
    assert repr(store) == "LocalGraphStore(part 1 of 2, 4 edge types)"


def test_a_part_with_offsets_that_descend_is_an_error_when_edges_are_asked_for(tmp_path):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph), ["native"])
    part = Part.open(tmp_path, 0)
    edge_type = ("author", "writes", "paper")
    indptr = part.relation(edge_type).indptr  # mapped copy-on-write: the file stays as it is
    assert indptr.shape[0] > 2
    for value in (-1, -(2**63), 2**63 - 1):
        indptr[1] = value
        with pytest.raises(
            ValueError,
            match="LocalGraphStore: the part is corrupt: the edges of author:writes:paper to node",
        ):
            LocalGraphStore.from_part(part).get_edge_index(edge_type, "coo")
        with pytest.raises(ValueError, match="corrupt"):
            part.draw(part.node_ids("paper"), fanout=1, key=1, edge_type=edge_type)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_store_survives_pickling(tmp_path, layout):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph), [layout])
    store = LocalGraphStore.from_partition(tmp_path, 1)
    copy = pickle.loads(pickle.dumps(store))
    for attr in store.get_all_edge_attrs():
        key = (attr.edge_type, "coo")
        assert torch.equal(copy.get_edge_index(*key), store.get_edge_index(*key))
        assert torch.equal(copy.get_edge_id(*key), store.get_edge_id(*key))


# --- edges that the user puts

EDGES = torch.tensor([[3, 0, 2, 1, 0], [1, 2, 0, 1, 1]])
IDS = torch.tensor([10, 11, 12, 13, 14])
KNOWS, LIKES = ("a", "knows", "a"), ("a", "likes", "b")


def test_edges_are_put_got_and_removed():
    store = LocalGraphStore()
    pair = (torch.tensor([0, 1]), torch.tensor([0, 2]))
    assert store.put_edge_index(pair, edge_type=None, layout="coo", size=(3, 3))
    assert store.put_edge_index((torch.arange(2), torch.tensor([0, 1, 2])), (None, "csc"))
    assert store.put_edge_id(IDS[:2], None, "coo")
    assert store.get_edge_index(edge_type=None, layout="coo") is pair
    assert store.get_edge_id(None, "coo").tolist() == [10, 11]
    assert store.get_edge_id(None, "csc") is None
    assert [each.layout.value for each in store.get_all_edge_attrs()] == ["coo", "csc"]
    assert [each.is_sorted for each in store.get_all_edge_attrs()] == [False, True]
    assert store.meta == {"is_hetero": False}
    assert store.remove_edge_index(None, "coo")
    assert not store.remove_edge_index(None, "coo")
    assert store.remove_edge_id(None, "coo")
    assert not store.remove_edge_id(None, "coo")
    with pytest.raises(KeyError, match=r"no edges \(None, 'coo'\); the store has \[\(None, 'csc'\)\]"):
        store.get_edge_index(None, "coo")
    store.put_edge_index(EDGES, KNOWS, "coo")
    assert store.meta == {"is_hetero": True}


def test_edges_that_are_none_are_refused(refuses):
    store = LocalGraphStore()
    refuses(ValueError, store.put_edge_index, EDGES, None, "cos")
    refuses(ValueError, store.put_edge_index, EDGES, None, "csr", True)
    refuses(ValueError, store.put_edge_index, EDGES.T, None, "coo")
    refuses(TypeError, store.put_edge_index, EDGES.float(), None, "coo")
    refuses(ValueError, store.put_edge_index, (torch.arange(2), torch.arange(3)), None, "coo")
    refuses(TypeError, store.put_edge_id, IDS.float(), None, "coo")
    assert store.get_all_edge_attrs() == []


def test_from_data_sorts_by_destination_and_keeps_the_order_of_equal_ones():
    store = LocalGraphStore.from_data(IDS, EDGES, 4)
    assert store.get_edge_index(None, "coo").tolist() == [[2, 3, 1, 0, 0], [0, 1, 1, 1, 2]]
    assert store.get_edge_id(None, "coo").tolist() == [12, 10, 13, 14, 11]
    assert store.get_all_edge_attrs()[0].size == (4, 4)
    ascending = EDGES[:, torch.argsort(EDGES[1], stable=True)]
    store = LocalGraphStore.from_data(IDS, ascending, 4, is_sorted=True)
    assert store.get_edge_index(None, "coo").tolist() == ascending.tolist()
    assert store.get_edge_id(None, "coo").tolist() == IDS.tolist()


def test_from_hetero_data_has_the_edges_of_each_type(refuses):
    ids, edges = {KNOWS: IDS, LIKES: IDS + 5}, {KNOWS: EDGES, LIKES: EDGES.flip(1)}
    store = LocalGraphStore.from_hetero_data(ids, edges, {"a": 4, "b": 3})
    assert store.meta["is_hetero"]
    assert store.get_edge_index(LIKES, "coo").tolist() == [[2, 0, 1, 3, 0], [0, 1, 1, 1, 2]]
    assert store.get_edge_id(LIKES, "coo").tolist() == [17, 15, 16, 19, 18]
    assert [each.size for each in store.get_all_edge_attrs()] == [(4, 4), (4, 3)]
    refuses(KeyError, LocalGraphStore.from_hetero_data, {KNOWS: IDS}, edges, {"a": 4, "b": 3})
    refuses(KeyError, LocalGraphStore.from_hetero_data, ids, edges, {"a": 4})


def test_owners_that_the_user_sets(refuses):
    store = LocalGraphStore()
    assert (store.node_pb, store.edge_pb) == (None, None)
    refuses(ValueError, store.get_partition_ids_from_nids, torch.tensor([0]))
    refuses(ValueError, store.get_partition_ids_from_eids, torch.tensor([0]))
    store.node_pb, store.edge_pb = torch.tensor([0, 2, 1]), {KNOWS: torch.tensor([1, 0])}
    assert store.get_partition_ids_from_nids(torch.tensor([2, 1])).tolist() == [1, 2]
    assert store.get_partition_ids_from_eids(torch.tensor([0]), KNOWS).tolist() == [1]
    assert store.edge_pb[KNOWS].tolist() == [1, 0]
    store.node_pb = PartitionBook(2, torch.tensor([1, 0]))
    assert store.node_pb.tolist() == [1, 0]
    store.node_pb = None
    assert store.node_pb is None
    for part in (-1, 40000):
        refuses(ValueError, setattr, store, "node_pb", torch.tensor([0, part]))


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_edges_that_do_not_fit_are_refused(refuses, typed, is_sorted):
    right = {"edge_id": torch.arange(3), "edge_index": torch.tensor([[0, 1, 3], [0, 1, 2]]), "num_nodes": 4}
    for error, name, value in (
        (ValueError, "edge_id", torch.tensor([5, 6])),
        (ValueError, "edge_id", torch.arange(4)),
        (TypeError, "edge_id", [1, 2, 3]),
        (TypeError, "edge_id", torch.rand(3)),
        (IndexError, "edge_index", torch.tensor([[0, 4, 1], [0, 1, 2]])),
        (IndexError, "edge_index", torch.tensor([[0, 1, 1], [0, 1, -1]])),
        (TypeError, "edge_index", [[0, 1, 1], [0, 1, 2.5]]),
        (ValueError, "edge_index", torch.zeros(3, 3).long()),
        (TypeError, "edge_index", torch.zeros(2, 3)),
        (TypeError, "num_nodes", 2.5),
    ):
        changed, make = {**right, name: value}, LocalGraphStore.from_data
        if typed:
            make, kinds = LocalGraphStore.from_hetero_data, {"num_nodes": "a"}
            changed = {f"{key}_dict": {kinds.get(key, ("a", "r", "a")): rows} for key, rows in changed.items()}
        refuses(error, make, **changed, is_sorted=is_sorted)


def test_edges_that_are_said_to_be_sorted_must_be(refuses):
    edges = torch.tensor([[0, 1, 2], [0, 2, 1]])
    refuses(ValueError, LocalGraphStore.from_data, torch.arange(3), edges, 3, is_sorted=True)
    for given in (edges, edges.T.contiguous().T, (edges[0], edges[1]), edges.numpy(), edges.tolist()):
        store = LocalGraphStore.from_data(torch.arange(3), given, 3)
        assert store.get_edge_index(None, "coo").tolist() == [[0, 2, 1], [0, 1, 2]]
        assert store.get_edge_id(None, "coo").tolist() == [0, 2, 1]
