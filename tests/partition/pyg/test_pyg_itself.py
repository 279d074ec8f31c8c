"""PyG's Partitioner and stores against ours: we read what PyG wrote, and PyG reads what we wrote."""

import pytest
import torch
from partitions import source_of
from pyg_layout import same, written
from pyg_partitions import data_of, hetero_data_of, partitioned_by_pyg, pyg

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.pyg.pyg_read import PygFolder
from datapipes.partition.pyg.torch_file import load_plain
from datapipes.partition.source import Source

# PyG reads annotations in a way that Python 3.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning")


def by_edge_id(edges, edge_index):
    """Whether each edge joins what its column of `edge_index` joins."""
    return torch.equal(torch.stack([edges.row, edges.col]), edge_index[:, edges.edge_id])


@pytest.mark.parametrize("time", [None, "node", "edge"])
@pytest.mark.parametrize("num_parts", [2, 3])
def test_what_pyg_wrote_is_read(tmp_path, num_parts, time):
    data = data_of()
    if time:
        data.time = torch.arange(data.num_nodes if time == "node" else data.num_edges) % 7
    partitioned_by_pyg(data, num_parts, tmp_path)
    found = PygFolder(tmp_path)
    seen = []
    for part in range(num_parts):
        edges, nodes, features = (
            each[None] for each in (found.edges(part), found.node_features(part), found.edge_features(part))
        )
        assert by_edge_id(edges, data.edge_index)
        assert same(nodes.of_ids["x"], data.x[nodes.ids])
        assert same(features.of_ids["edge_attr"], data.edge_attr[features.ids])
        assert torch.equal(features.ids, edges.edge_id)
        assert nodes.of_all.keys() == ({"time"} if time == "node" else set())
        if time == "node":
            assert same(nodes.of_all["time"], data.time)
        if time == "edge":
            assert same(features.of_ids["edge_time"], data.time[features.ids])
        seen += edges.edge_id.tolist()
    assert sorted(seen) == list(range(data.num_edges))


@pytest.mark.parametrize("time", [None, "node", "edge"])
def test_what_pyg_wrote_of_types_is_read(tmp_path, time):
    data = hetero_data_of()
    for store in {"node": data.node_stores, "edge": data.edge_stores}.get(time, []):
        store.time = torch.arange(store.num_nodes if time == "node" else store.num_edges) % 7
    partitioned_by_pyg(data, 2, tmp_path)
    found = PygFolder(tmp_path)
    assert (list(found.meta.node_types), list(found.meta.edge_types)) == (data.node_types, data.edge_types)
    for part in range(2):
        for edge_type, edges in found.edges(part).items():
            assert by_edge_id(edges, data[edge_type].edge_index)
        for node_type, nodes in found.node_features(part).items():
            assert same(nodes.of_ids["x"], data[node_type].x[nodes.ids])
            assert time != "node" or same(nodes.of_all["time"], data[node_type].time)
        for edge_type, features in found.edge_features(part).items():
            assert same(features.of_ids["edge_attr"], data[edge_type].edge_attr[features.ids])
            assert time != "edge" or same(features.of_ids["edge_time"], data[edge_type].time[features.ids])


def test_times_without_features_have_the_order_of_the_graph(tmp_path):
    data = data_of()
    data.edge_attr, data.x, data.edge_time = None, None, torch.arange(data.num_edges) % 7
    partitioned_by_pyg(data, 2, tmp_path)
    features = PygFolder(tmp_path).edge_features(1)[None]
    assert same(features.of_ids["edge_time"], data.edge_time[features.ids])
    assert PygFolder(tmp_path).node_features(1)[None].of_ids == {}


# --- PyG reads ours


def stores_of(root, part):
    return pyg.LocalGraphStore.from_partition(str(root), part), pyg.LocalFeatureStore.from_partition(str(root), part)


@pytest.mark.parametrize("time", [None, "node", "edge"])
@pytest.mark.parametrize("num_parts", [1, 2, 3])
def test_pyg_reads_ours(tmp_path, num_parts, time):
    data = data_of()
    if time:
        data.time = torch.arange(data.num_nodes if time == "node" else data.num_edges) % 7
    owner = torch.arange(data.num_nodes) % num_parts
    graph = dp.CSCGraph.from_pyg(data)
    written(tmp_path, source_of(graph), PartitionBook(num_parts, owner), "time" if time == "node" else None)
    seen = []
    for part in range(num_parts):
        graph_store, store = stores_of(tmp_path, part)
        assert (graph_store.num_partitions, graph_store.partition_idx) == (num_parts, part)
        assert torch.equal(graph_store.node_pb, owner)
        assert torch.equal(graph_store.edge_pb, owner[data.edge_index[1]])
        edge_index, edge_id = graph_store.get_edge_index(None, "coo"), graph_store.get_edge_id(None, "coo")
        assert torch.equal(edge_index, data.edge_index[:, edge_id])
        assert bool((edge_index[1].diff() >= 0).all())
        if time:
            times = data.time[edge_index[0]] if time == "node" else data.time[edge_id]
            assert bool((times.diff()[edge_index[1].diff() == 0] >= 0).all())
        nodes = (owner == part).nonzero().flatten()
        for name, values in (("x", data.x), ("y", data.y)):
            found = store.get_tensor_from_global_id(group_name=None, attr_name=name, index=nodes.flip(0))
            assert same(found, values[nodes.flip(0)])
        found = store.get_tensor_from_global_id(group_name=(None, None), attr_name="edge_attr", index=edge_id)
        assert same(found, data.edge_attr[edge_id])
        assert store.has_edge_attr()
        if time == "node":
            assert same(store.get_tensor(group_name=None, attr_name="time"), data.time)
        if time == "edge":
            assert same(store.get_tensor(group_name=(None, None), attr_name="edge_time"), data.time[edge_id])
        seen += edge_id.tolist()
    assert sorted(seen) == list(range(data.num_edges))


@pytest.mark.parametrize("time", [None, "node", "edge"])
def test_pyg_reads_ours_of_types(tmp_path, time):
    data = hetero_data_of()
    for store in {"node": data.node_stores, "edge": data.edge_stores}.get(time, []):
        store.time = torch.arange(store.num_nodes if time == "node" else store.num_edges) % 7
    graph = dp.HeteroCSCGraph.from_pyg(data)
    source = Source(graph, {}, tuple(data.node_types), tuple(data.edge_types))
    owner = {each: torch.arange(data[each].num_nodes) % 2 for each in data.node_types}
    written(tmp_path, source, PartitionBook(2, owner))
    node_offset = {"paper": 0, "author": 40}
    before, edge_offset = 0, {}
    for edge_type in data.edge_types:
        edge_offset[edge_type], before = before, before + data[edge_type].num_edges
    for part in range(2):
        graph_store, store = stores_of(tmp_path, part)
        for edge_type in data.edge_types:
            edge_index = graph_store.get_edge_index(edge_type, "coo")
            edge_id = graph_store.get_edge_id(edge_type, "coo") - edge_offset[edge_type]
            assert torch.equal(edge_index, data[edge_type].edge_index[:, edge_id])
            assert torch.equal(graph_store.edge_pb[edge_type], owner[edge_type[2]][data[edge_type].edge_index[1]])
            found = store.get_tensor_from_global_id(group_name=edge_type, attr_name="edge_attr", index=edge_id)
            assert same(found, data[edge_type].edge_attr[edge_id])
            if time == "edge":
                assert same(store.get_tensor(edge_type, "edge_time"), data[edge_type].time[edge_id])
        for node_type in data.node_types:
            assert torch.equal(graph_store.node_pb[node_type], owner[node_type])
            nodes = (owner[node_type] == part).nonzero().flatten()
            index = nodes + node_offset[node_type]  # PyG's map of nodes counts over all types
            found = store.get_tensor_from_global_id(group_name=node_type, attr_name="x", index=index)
            assert same(found, data[node_type].x[nodes])
            assert time != "node" or same(store.get_tensor(node_type, "time"), data[node_type].time)


def test_pyg_opens_a_part_that_has_nothing_of_some_types(tmp_path):
    data = hetero_data_of()
    graph = dp.HeteroCSCGraph.from_pyg(data)
    owner = {"paper": torch.arange(40) % 2, "author": torch.zeros(30, dtype=torch.int64)}
    written(tmp_path, source_of(graph), PartitionBook(2, owner))
    graph_store, store = stores_of(tmp_path, 1)
    assert {each.group_name for each in store.get_all_tensor_attrs()} == {
        "paper",
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
    }
    assert graph_store.get_edge_index(("paper", "written by", "author"), "coo").shape == (2, 0)


@pytest.mark.parametrize("time", [None, "node", "edge"])
def test_files_of_ours_and_pygs_hold_the_same(tmp_path, time):
    """The same parts, written by PyG and by us: the same values under the same keys, whatever the order of ids."""
    data = hetero_data_of()
    for store in {"node": data.node_stores, "edge": data.edge_stores}.get(time, []):
        store.time = torch.arange(store.num_nodes if time == "node" else store.num_edges) % 7
    partitioned_by_pyg(data, 2, tmp_path / "theirs")
    book = PygFolder(tmp_path / "theirs").book
    graph = dp.HeteroCSCGraph.from_pyg(data)
    (tmp_path / "ours").mkdir()
    written(tmp_path / "ours", Source(graph, {}, tuple(data.node_types), tuple(data.edge_types)), book)
    assert (tmp_path / "ours/META.json").read_text() == (tmp_path / "theirs/META.json").read_text()
    roots = [tmp_path / "ours", tmp_path / "theirs"]
    ours, theirs = ({each.relative_to(root) for each in root.rglob("*")} for root in roots)
    assert ours == theirs
    for file in sorted(each for each in ours if each.suffix == ".pt" and len(each.parts) == 2 and "map" in str(each)):
        assert same(*(torch.load(tmp_path / of / file, weights_only=True) for of in ("ours", "theirs")))
    for part in range(2):
        for name in ("graph.pt", "node_feats.pt", "edge_feats.pt"):
            ours, theirs = (load_plain(root / f"part_{part}" / name) for root in roots)
            assert list(ours) == list(theirs)
            for key, of_type in ours.items():
                assert of_type.keys() == theirs[key].keys()
                for what, value in of_type.items():
                    expected = theirs[key][what]
                    if what == "size":
                        assert value == expected
                    elif what == "feats":  # we write all attributes
                        assert value.keys() >= expected.keys()
                    elif what == "time":
                        assert same(value, expected)
                    else:  # PyG's sort is not stable
                        assert same(value.sort().values, expected.sort().values)
