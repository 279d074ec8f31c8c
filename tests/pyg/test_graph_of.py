"""graph_of: the graph of all that PyG's loaders take, and what is refused."""

import copy
import warnings

import pytest
import torch
from pipelines import refused
from pyg_cases import CITES, WRITES, WRITTEN, Data, HeteroData, assert_same, pyg, random_data, random_hetero

import datapipes as dp
from datapipes import _core
from datapipes.pyg.graph_of import graph_of
from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader


def edges_of(graph, of=None):
    relation = graph.relation(of)
    ids = torch.arange(relation.num_edges) if relation.edge_ids is None else relation.edge_ids
    into = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
    columns = torch.stack((relation.indices.long(), into))
    return columns[:, torch.argsort(ids)]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_are_the_columns_and_indices_are_narrow(dtype):
    data = random_data(0)
    data.edge_index = data.edge_index.to(dtype)
    graph = graph_of(data, None, "edge_weight", False).graph
    assert graph.index_dtype == torch.int32
    assert torch.equal(edges_of(graph), data.edge_index.long())
    assert torch.equal(graph.edge_attributes["edge_weight"], data.edge_weight[graph.edge_ids])
    assert graph.node_attributes == {}  # batches are sliced from the data


@pytest.mark.parametrize("is_sorted", [False, True])
def test_nodes_that_exceed_the_memory_are_refused_before_they_are_counted(monkeypatch, is_sorted):
    monkeypatch.setattr(_core, "memory_left", lambda: (2**28, "the test"))
    with refused(MemoryError, stage="NeighborSampler", found="67108865 nodes", allowed="left", remedy="Ren"):
        NeighborLoader(Data(edge_index=torch.tensor([[2**26], [0]]), num_nodes=2**26 + 1), [1], is_sorted=is_sorted)


def test_sorted_columns_need_no_ids_and_are_checked():
    data = random_data(1)
    columns = pyg.utils.sort_edge_index(data.edge_index, sort_by_row=False)
    ready = Data(edge_index=columns, num_nodes=40)
    graph = graph_of(ready, None, None, True).graph
    assert graph.edge_ids is None
    assert torch.equal(edges_of(graph), columns)
    assert torch.equal(graph.indptr, graph_of(ready, None, None, False).graph.indptr)
    with pytest.raises(ValueError, match="is_sorted is True, but the destinations"):
        NeighborLoader(data, [1], is_sorted=True)


def test_in_edges_stand_by_time_as_pyg_has_them():
    data = random_data(2)
    for name in ("time", "edge_time"):
        found = graph_of(data, name, None, False)
        assert found.has_edge_time == (name == "edge_time")
        since = data.time[found.graph.indices.long()] if name == "time" else data.edge_time[found.graph.edge_ids]
        for node in range(40):
            begin, end = found.graph.indptr[node : node + 2].tolist()
            assert bool((since[begin:end].diff() >= 0).all())


def test_types_without_edges_or_numbers_are_there():
    data = random_hetero(3)
    graph = graph_of(data, None, None, False).graph
    assert graph.num_nodes == {"author": 22, "paper": 30, "venue": 3}
    assert graph.edge_types == (WRITES, CITES, WRITTEN)
    bare = HeteroData()
    bare["a", "to", "b"].edge_index = torch.tensor([[0, 4], [2, 1]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG: it cannot infer num_nodes
        assert graph_of(bare, None, None, False).graph.num_nodes == {"a": 5, "b": 3}


def test_weights_of_some_edge_types_leave_the_others_alike():
    data = random_hetero(4)
    del data[CITES].edge_weight
    graph = graph_of(data, None, "edge_weight", False).graph
    assert graph.relation(CITES).edge_attributes["edge_weight"].unique().tolist() == [1.0]


def test_weights_are_found_by_name_where_nodes_are_as_many_as_edges():
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]), w=torch.tensor([0.5, 1.0, 2.0]), num_nodes=3)
    assert graph_of(data, None, "w", False).graph.edge_attributes["w"].tolist() == [2.0, 0.5, 1.0]


def test_data_without_edges_and_isolated_nodes_give_their_seeds():
    empty = Data(x=torch.arange(6).float())
    for num_neighbors in ([], [2, 2]):
        batch = next(iter(NeighborLoader(empty, num_neighbors, batch_size=4)))
        assert batch.n_id.tolist() == [0, 1, 2, 3]
        assert batch.x.tolist() == [0, 1, 2, 3]
        assert "edge_index" not in batch
        assert batch.e_id.tolist() == []
    none = Data(edge_index=torch.empty(2, 0, dtype=torch.int64), num_nodes=6)
    batch = next(iter(NeighborLoader(none, [2], batch_size=6)))
    assert (batch.num_nodes, batch.num_edges, batch.num_sampled_nodes) == (6, 0, [6, 0])
    trees = HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 4}})
    batch = next(iter(NeighborLoader(trees, [], input_nodes="b", batch_size=2, disjoint=True)))
    assert batch["b"].batch.tolist() == [0, 1]
    with pytest.raises(IndexError, match=r"the seeds must be in \[0, 6\), got 9"):
        next(iter(NeighborLoader(empty, [], input_nodes=torch.tensor([9]))))


def data_with(edge_index):
    return Data(x=torch.zeros(5, 2), edge_index=edge_index)


def hetero_with(edge_index):
    return HeteroData({"a": {"x": torch.zeros(5, 2)}, ("a", "to", "a"): {"edge_index": edge_index}})


def stores_with(edge_index, layout="coo"):
    features, graph = pyg.testing.MyFeatureStore(), pyg.testing.MyGraphStore()
    features.put_tensor(torch.zeros(5, 2), group_name=None, attr_name="x", index=None)
    graph.put_edge_index(edge_index, edge_type=None, layout=layout, size=(5, 5))
    return features, graph


PAIRS = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4]])
OF_DATA = {
    "from_pyg": lambda edges: dp.CSCGraph.from_pyg(data_with(edges)),
    "from_pyg with types": lambda edges: dp.HeteroCSCGraph.from_pyg(hetero_with(edges)),
    "NeighborLoader": lambda edges: NeighborLoader(data_with(edges), [1]),
    "NeighborLoader with types": lambda edges: NeighborLoader(hetero_with(edges), [1], input_nodes="a"),
    "LinkNeighborLoader": lambda edges: LinkNeighborLoader(data_with(edges), [1]),
    "LinkNeighborLoader with types": lambda edges: LinkNeighborLoader(
        hetero_with(edges), [1], edge_label_index=("a", "to", "a")
    ),
}
OF_PAIRS = {
    **OF_DATA,
    "stores": lambda edges: NeighborLoader(stores_with(edges), [1], input_nodes=torch.arange(5)),
    "from_edge_index": lambda edges: dp.CSCGraph.from_edge_index(edges),
    "links": lambda edges: LinkNeighborLoader(data_with(PAIRS.T), [1], edge_label_index=edges),
    "links with types": lambda edges: LinkNeighborLoader(
        hetero_with(PAIRS.T), [1], edge_label_index=(("a", "to", "a"), edges)
    ),
}


@pytest.mark.parametrize("reads", OF_PAIRS.values(), ids=OF_PAIRS)
def test_pairs_of_ids_are_integers_in_two_rows(reads, refuses):
    refuses(ValueError, reads, PAIRS)
    refuses(ValueError, reads, torch.zeros(3, 40).long())
    refuses(ValueError, reads, torch.zeros(2, 3, 1).long())
    refuses(TypeError, reads, torch.tensor([[0.9, 1.9], [1.2, 2.7]]))
    refuses(TypeError, reads, PAIRS.T.numpy().astype("f8"))
    refuses(TypeError, reads, torch.ones(2, 4, dtype=torch.bool))
    refuses(TypeError, reads, "01")
    if reads in OF_DATA.values():
        refuses(TypeError, reads, PAIRS.T.tolist())
    else:
        reads(PAIRS.T.tolist())
    reads(PAIRS.T.numpy())


def test_a_store_may_have_its_edges_in_every_layout():
    by_source, by_destination = torch.tensor([0, 1, 2, 3, 4, 4]), torch.tensor([0, 0, 1, 2, 3, 4])
    layouts = {"coo": tuple(PAIRS.T), "csr": (by_source, PAIRS.T[1]), "csc": (PAIRS.T[0], by_destination)}
    for layout, ends in layouts.items():
        assert torch.equal(edges_of(graph_of(stores_with(ends, layout), None, None, False).graph), PAIRS.T)


@pytest.mark.parametrize("make", [data_with, hetero_with])
def test_an_array_of_edges_gives_the_batches_of_a_tensor(make):
    of = {} if make is data_with else {"input_nodes": "a"}
    batch, other = (next(iter(NeighborLoader(make(edges), [-1], **of))) for edges in (PAIRS.T, PAIRS.T.numpy()))
    assert_same(batch, other)


def test_weights_and_times_have_a_row_for_each_edge_or_node(refuses):
    for count in (159, 161, 40):
        data, hetero = random_data(6), random_hetero(6)
        data.w, data.edge_time, hetero[CITES].w = torch.rand(count), torch.arange(count), torch.rand(count)
        hetero[CITES].since, hetero["paper"].time = torch.arange(count), torch.arange(count)
        refuses(ValueError, NeighborLoader, data, [1], weight_attr="w")
        refuses(ValueError, NeighborLoader, hetero, [1], "paper", weight_attr="w")
        for name in ("since", "time"):
            refuses(ValueError, NeighborLoader, hetero, [1], "paper", time_attr=name)
        if count != 40:  # the number of nodes
            refuses(ValueError, NeighborLoader, data, [1], time_attr="edge_time")


def test_what_does_not_fit_is_refused_by_name(refuses):
    data, hetero = random_data(5), random_hetero(5)
    outside = copy.copy(data)
    outside.edge_index = data.edge_index + 30
    refuses(IndexError, NeighborLoader, outside, [1])
    other = copy.copy(hetero)
    other[WRITES].edge_index = hetero[WRITES].edge_index.flip(0)
    refuses(IndexError, NeighborLoader, other, [1], "paper")
    short, missing = torch.ones(39, dtype=torch.bool), torch.tensor([[0], [0]])
    refuses(ValueError, NeighborLoader, data, [1], short)
    refuses(ValueError, NeighborLoader, hetero, [1], ("paper", short))
    refuses(TypeError, NeighborLoader, data, [1], short.numpy())
    refuses(TypeError, NeighborLoader, data, [1], [True, False])
    refuses(ValueError, NeighborLoader, hetero, [1], "papers")
    refuses(ValueError, NeighborLoader, hetero, [1], ("papers", missing[0]))
    refuses(TypeError, NeighborLoader, hetero, [1])
    refuses(ValueError, LinkNeighborLoader, hetero, [1], (("paper", "x"), missing))
    refuses(TypeError, LinkNeighborLoader, hetero, [1], missing)
    refuses(ValueError, NeighborLoader, [data], [1])
    refuses(ValueError, NeighborLoader, 3, [1])
    both = copy.copy(hetero)
    both[WRITES].time = hetero[WRITES].edge_time
    refuses(ValueError, NeighborLoader, both, [1], "paper", time_attr="time")
    pair = torch.tensor([0, 1])
    for error, layout, ends in (
        (IndexError, "coo", torch.tensor([[0, 1], [1, 9]])),
        (IndexError, "coo", torch.tensor([[0, 9], [1, 2]])),
        (TypeError, "coo", (pair, torch.tensor([True, False]))),
        (TypeError, "csc", (torch.tensor([0.5]), torch.tensor([0, 0, 0, 0, 0, 1]))),
        (IndexError, "csr", (torch.tensor([0, 0, 0, 0, 0, 1]), torch.tensor([7]))),
    ):
        refuses(error, NeighborLoader, stores_with(ends, layout), [1], torch.arange(5))
    with pytest.raises(ValueError, match="rows have different lengths"):  # what torch says stands in it
        NeighborLoader(stores_with((pair, pair[:1]), "coo"), [1], torch.arange(5))
    no_stores = pyg.testing.MyFeatureStore(), pyg.testing.MyGraphStore()
    refuses(NotImplementedError, NeighborLoader, no_stores, [1], weight_attr="w")
    refuses(TypeError, NeighborLoader, Data(adj_t=torch.eye(3).to_sparse_coo(), num_nodes=3), [1])
