"""The stores as PyG's own types: PyG's code takes them, and gets the rows and edges of the whole graph."""

import warnings

import pytest
import torch
from scripts import run_script

import datapipes as dp
import datapipes.pyg.distributed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pytest.importorskip("torch_geometric", reason="the stores derive from PyG's: install the pyg extra")
    import torch_geometric.data
    import torch_geometric.distributed
    import torch_geometric.sampler
    from torch_geometric.data import EdgeAttr, TensorAttr
    from torch_geometric.loader.utils import filter_custom_hetero_store, filter_custom_store

from hetero_graphs import AGAIN, KNOWS, WRITES
from local_stores import LAYOUTS, book_of, partitioned, plain_graph, typed_graph
from pyg_layout import same
from pyg_partitions import data_of, hetero_data_of, partitioned_by_pyg

from datapipes.pyg.distributed import LocalFeatureStore, LocalGraphStore, Partitioner
from datapipes.pyg.loader import NeighborLoader

# PyG reads annotations in a way that Python 3.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning")


def test_the_stores_are_pygs_and_ours():
    assert isinstance(LocalFeatureStore(), torch_geometric.data.FeatureStore)
    assert isinstance(LocalFeatureStore(), dp.distributed.LocalFeatureStore)
    assert isinstance(LocalGraphStore(), torch_geometric.data.GraphStore)
    assert isinstance(LocalGraphStore(), dp.distributed.LocalGraphStore)
    assert Partitioner is dp.distributed.Partitioner


def test_views_of_features_work(tmp_path):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph))
    store = LocalFeatureStore.from_partition(tmp_path, 1)
    x = graph.node_attributes["paper"]["x"][[1, 3]]
    for found in (
        store["paper", "x", None],
        store["paper"].x,
        store["paper", "x"],
        store.view(group_name="paper").x,
        store.get_tensor("paper", "x"),
        store[TensorAttr("paper", "x", None)],
        store.multi_get_tensor([TensorAttr("paper", "x", None)])[0],
    ):
        assert same(found, x)
    assert same(store["paper", "x", torch.tensor([1])], x[[1]])
    assert store.get_tensor_size("paper", "x") == (2, 2)
    assert store.get_tensor("paper", "x", x.numpy()[:1, 0].astype("int64") * 0, convert_type=True).shape == (1, 2)
    store["paper", "z", None] = torch.arange(2)
    assert store["paper"].z.tolist() == [0, 1]
    assert store.update_tensor(torch.ones(2), "paper", "z")
    assert store["paper"].z.tolist() == [1, 1]
    del store["paper", "z"]
    with pytest.raises(KeyError, match=r"no tensor \('paper', 'z'\)"):
        store["paper"].z  # noqa: B018
    assert all(isinstance(each, TensorAttr) for each in store.get_all_tensor_attrs())
    assert store == store


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_parts", [1, 2])
def test_edges_in_every_layout_are_those_of_the_whole_graph(tmp_path, layout, num_parts):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph, num_parts), [layout])
    store = LocalGraphStore.from_partition(tmp_path, num_parts - 1)
    assert all(isinstance(each, EdgeAttr) for each in store.get_all_edge_attrs())
    row, col, perm = store.coo()
    colptr, by_col = store.csc()[1], store.csc()[0]
    rowptr, by_row, order = store.csr()
    for edge_type in graph.edge_types:
        expected = store[EdgeAttr(edge_type, "coo")]
        assert torch.equal(torch.stack([row[edge_type], col[edge_type]]), expected)
        assert perm[edge_type] is None
        num_src, num_dst = (graph.num_nodes_of(each) for each in (edge_type[0], edge_type[2]))
        assert colptr[edge_type].tolist() == [int((expected[1] < node).sum()) for node in range(num_dst + 1)]
        assert torch.equal(by_col[edge_type], expected[0])
        assert rowptr[edge_type].tolist() == [int((expected[0] < node).sum()) for node in range(num_src + 1)]
        assert torch.equal(by_row[edge_type], expected[1][order[edge_type]])
    assert row[AGAIN].shape == (0,)  # PyG's own csc() fails without edges
    store.csc([WRITES], store=True)
    assert torch.equal(store.get_edge_index(WRITES, "csc")[1], colptr[WRITES])
    assert list(store.csc([KNOWS])[0]) == [KNOWS]


def test_edges_without_types_in_every_layout(tmp_path):
    graph = plain_graph()
    partitioned(tmp_path, graph, book_of(graph, 1))
    store = LocalGraphStore.from_partition(tmp_path, 0)
    row, colptr, perm = store.csc()
    assert perm is None
    assert torch.equal(row, graph.indices)
    assert torch.equal(colptr, graph.indptr)
    store = LocalGraphStore()
    store.put_edge_index(torch.tensor([[2, 0], [1, 0]]), None, "coo", size=(3, 3))
    assert [each.tolist() for each in store.csc()] == [[0, 2], [0, 1, 2, 2], [1, 0]]  # not sorted: PyG sorts them


@pytest.mark.filterwarnings("ignore:Using 'NeighborSampler' without a 'pyg-lib' installation:UserWarning")
def test_pygs_sampler_takes_a_part(tmp_path):
    graph = typed_graph()
    partitioned(tmp_path, graph, book_of(graph, 1))
    stores = LocalFeatureStore.from_partition(tmp_path, 0), LocalGraphStore.from_partition(tmp_path, 0)
    sampler = torch_geometric.sampler.NeighborSampler(stores, num_neighbors=[-1], share_memory=False)
    for edge_type in graph.edge_types:
        key = "__".join(edge_type)
        assert torch.equal(sampler.colptr_dict[key], graph.relation(edge_type).indptr)
        assert torch.equal(sampler.row_dict[key], graph.relation(edge_type).indices)
    assert dict(sampler.num_nodes) == graph.num_nodes


def test_the_loader_takes_a_part_that_is_the_whole_graph(tmp_path):
    graph = typed_graph()
    for num_parts, root in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        root.mkdir()
        partitioned(root, graph, book_of(graph, num_parts))
    stores = [
        LocalFeatureStore.from_partition(tmp_path / "one", 0),
        LocalGraphStore.from_partition(tmp_path / "one", 0),
    ]
    batch = next(iter(NeighborLoader(stores, [-1], input_nodes="paper", batch_size=99)))
    for of in graph.edge_types:
        for name, values in graph.relation(of).edge_attributes.items():
            if batch[of].num_edges > 0:
                assert same(batch[of][name], values[batch[of].e_id])
    stores = [
        LocalFeatureStore.from_partition(tmp_path / "two", 0),
        LocalGraphStore.from_partition(tmp_path / "two", 0),
    ]
    with pytest.raises(ValueError, match=r"global ids differ .* is sampled by datapipes\.pyg\.distributed"):
        NeighborLoader(stores, [-1], input_nodes="paper")


def test_pygs_loader_code_gathers_rows(tmp_path):
    graph = dp.CSCGraph(*plain_graph().arrays()[:2], node_attributes=plain_graph().node_attributes)
    partitioned(tmp_path, graph, book_of(graph, 1))
    stores = LocalFeatureStore.from_partition(tmp_path, 0), LocalGraphStore.from_partition(tmp_path, 0)
    node, ends = torch.tensor([3, 0, 7]), torch.tensor([0, 1])
    data = filter_custom_store(*stores, node, ends, ends.flip(0), None)
    for name, values in graph.node_attributes.items():
        assert same(data[name], values[node])


def test_pygs_loader_code_gathers_rows_by_type(tmp_path):
    graph = typed_graph()
    graph = dp.HeteroCSCGraph(
        {key: (graph.relation(key).indptr, graph.relation(key).indices) for key in graph.edge_types},
        graph.num_nodes,
        node_attributes=graph.node_attributes,
    )
    partitioned(tmp_path, graph, book_of(graph, 1))
    stores = LocalFeatureStore.from_partition(tmp_path, 0), LocalGraphStore.from_partition(tmp_path, 0)
    nodes, none = {"paper": torch.tensor([2, 0]), "author": torch.tensor([1])}, torch.zeros(0, dtype=torch.int64)
    data = filter_custom_hetero_store(*stores, nodes, {WRITES: none}, {WRITES: none}, {WRITES: None})
    for node_type, ids in nodes.items():
        assert same(data[node_type].x, graph.node_attributes[node_type]["x"][ids])


@pytest.mark.parametrize("time", [None, "node"])
def test_over_a_folder_of_pyg_ours_hold_what_pygs_own_stores_hold(tmp_path, time):
    """Graphs without types and without edge features, which PyG's own stores can open."""
    data = data_of()
    del data.edge_attr
    if time is not None:
        data.time = torch.arange(60) % 7
    partitioned_by_pyg(data, 2, tmp_path)
    for part in range(2):
        both = datapipes.pyg.distributed, torch_geometric.distributed
        ours, theirs = (each.LocalGraphStore.from_partition(str(tmp_path), part) for each in both)
        assert torch.equal(ours.get_edge_index(None, "coo"), theirs.get_edge_index(None, "coo"))
        assert torch.equal(ours.get_edge_id(None, "coo"), theirs.get_edge_id(None, "coo"))
        assert ours.meta == theirs.meta
        assert torch.equal(ours.node_pb.long(), theirs.node_pb)
        for our_layout, their_layout in ((ours.csc(), theirs.csc()), (ours.coo(), theirs.coo())):
            assert all(a is b is None or torch.equal(a, b) for a, b in zip(our_layout, their_layout, strict=True))
        ours, theirs = (each.LocalFeatureStore.from_partition(str(tmp_path), part) for each in both)
        for attr in theirs.get_all_tensor_attrs():
            assert same(ours.get_tensor(attr), theirs.get_tensor(attr))
        ids = theirs.get_global_id(None)
        assert torch.equal(ours.get_global_id(None), ids)
        asked = {"group_name": None, "attr_name": "x", "index": ids.flip(0)}
        assert same(ours.get_tensor_from_global_id(**asked), theirs.get_tensor_from_global_id(**asked))


def test_rows_of_nodes_by_type_are_right_where_pygs_own_are_wrong(tmp_path):
    """PyG finds the part by an id within the type, and the row by an id over all types."""
    data = hetero_data_of()
    partitioned_by_pyg(data, 2, tmp_path)
    stores = [LocalFeatureStore.from_partition(tmp_path, part) for part in range(2)]
    for store in stores:
        for node_type in data.node_types:
            own = (store.node_feat_pb[node_type] == store.partition_idx).nonzero().flatten()
            assert same(store.lookup_features(own, True, node_type).wait(), data[node_type].x[own])
        for edge_type in data.edge_types:
            own = (store.edge_feat_pb[edge_type] == store.partition_idx).nonzero().flatten()
            assert same(store.lookup_features(own, False, edge_type).wait(), data[edge_type].edge_attr[own])


def test_pygs_layout_is_preferred(tmp_path):
    data = data_of()
    data.time = torch.arange(60) % 7
    graph = dp.CSCGraph.from_pyg(data)
    partitioned(tmp_path, graph, book_of(graph))
    store = LocalFeatureStore.from_partition(tmp_path, 0)
    assert store.get_tensor(None, "time").tolist() == data.time.tolist()
    edge_index = LocalGraphStore.from_partition(tmp_path, 0).get_edge_index(None, "coo")
    times = data.time[edge_index[0]]
    assert bool((times.diff()[edge_index[1].diff() == 0] >= 0).all())
    (tmp_path / "META.json").unlink()
    assert LocalFeatureStore.from_partition(tmp_path, 0).get_tensor(None, "time").shape == (30,)


def test_without_torch_geometric_the_extra_is_named():
    script = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch_geometric":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import datapipes.distributed
try:
    import datapipes.pyg.distributed
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    ended = run_script(script)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("torch_geometric datapipes.pyg needs torch_geometric, which is not")
    assert "pip install torch_geometric (in the extra [pyg] of" in ended.stdout
