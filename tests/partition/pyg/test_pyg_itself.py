"""PyG's Partitioner and stores against ours: we read what PyG wrote, and PyG reads what we wrote."""

import numpy as np
import pytest
import torch
from partitions import source_of
from pyg_layout import same, written
from pyg_partitions import HeteroData, data_of, hetero_data_of, partitioned_by_pyg, pyg

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.pyg.pyg_read import PygFolder
from datapipes.partition.pyg.torch_file import load_plain
from datapipes.partition.source import Source

# PyG reads annotations in a way that Python 3.13 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Failing to pass a value to the 'type_params':DeprecationWarning")


def data_with(is_typed, time):
    """PyG's data, of which nodes or edges have times."""
    data = hetero_data_of() if is_typed else data_of()
    for store in {"node": data.node_stores, "edge": data.edge_stores}.get(time, []):
        store.time = torch.arange(store.num_nodes if time == "node" else store.num_edges) % 7
    return data


def stores_by_type(data):
    """What data has of each node type and of each edge type; None is the type where there are none."""
    stores = [{store._key: store for store in stores} for stores in (data.node_stores, data.edge_stores)]
    return stores if isinstance(data, HeteroData) else [{None: data}, {None: data}]


KINDS = [(False, 2), (False, 3), (True, 2)]  # whether there are types, and the number of parts


@pytest.mark.parametrize("time", [None, "node", "edge"])
@pytest.mark.parametrize(("is_typed", "num_parts"), KINDS)
def test_what_pyg_wrote_is_read(tmp_path, is_typed, num_parts, time):
    data = data_with(is_typed, time)
    of_nodes, of_edges = stores_by_type(data)
    partitioned_by_pyg(data, num_parts, tmp_path)
    folder = PygFolder(tmp_path)
    assert (list(folder.meta.node_types), list(folder.meta.edge_types)) == ([*of_nodes], [*of_edges])
    seen = {edge_type: [] for edge_type in of_edges}
    for part in range(num_parts):
        edges, features = folder.edges(part), folder.edge_features(part)
        for edge_type, store in of_edges.items():
            columns = store.edge_index[:, edges[edge_type].edge_id]
            assert torch.equal(torch.stack([edges[edge_type].row, edges[edge_type].col]), columns)
            seen[edge_type] += edges[edge_type].edge_id.tolist()
        for node_type, nodes in folder.node_features(part).items():
            assert same(nodes.of_ids["x"], of_nodes[node_type].x[nodes.ids])
            assert nodes.of_all.keys() == ({"time"} if time == "node" else set())
            assert time != "node" or same(nodes.of_all["time"], of_nodes[node_type].time)
        for edge_type, rows in features.items():
            assert torch.equal(rows.ids, edges[edge_type].edge_id)
            assert same(rows.of_ids["edge_attr"], of_edges[edge_type].edge_attr[rows.ids])
            assert time != "edge" or same(rows.of_ids["edge_time"], of_edges[edge_type].time[rows.ids])
    assert all(sorted(ids) == list(range(of_edges[edge_type].num_edges)) for edge_type, ids in seen.items())


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
@pytest.mark.parametrize(("is_typed", "num_parts"), [(False, 1), *KINDS])
def test_pyg_reads_ours(tmp_path, is_typed, num_parts, time):
    data = data_with(is_typed, time)
    of_nodes, of_edges = stores_by_type(data)
    owner = {node_type: torch.arange(store.num_nodes) % num_parts for node_type, store in of_nodes.items()}
    graph = (dp.HeteroCSCGraph if is_typed else dp.CSCGraph).from_pyg(data)
    book = PartitionBook(num_parts, owner if is_typed else owner[None])
    time_attr = "time" if time == "node" and not is_typed else None  # where none is named, PyG's name counts
    written(tmp_path, Source(graph, {}, tuple(of_nodes), tuple(of_edges)), book, time_attr)
    node_offset, edge_offset = offsets(of_nodes, "num_nodes"), offsets(of_edges, "num_edges")
    seen = {edge_type: [] for edge_type in of_edges}
    for part in range(num_parts):
        graph_store, store = stores_of(tmp_path, part)
        assert (graph_store.num_partitions, graph_store.partition_idx) == (num_parts, part)
        assert store.has_edge_attr()
        for edge_type, given in of_edges.items():
            group, dst = ((None, None), None) if edge_type is None else (edge_type, edge_type[2])
            edge_index, ids = graph_store.get_edge_index(edge_type, "coo"), graph_store.get_edge_id(edge_type, "coo")
            edge_id = ids - edge_offset[edge_type]
            assert torch.equal(edge_index, given.edge_index[:, edge_id])
            assert bool((edge_index[1].diff() >= 0).all())
            edge_pb = graph_store.edge_pb if edge_type is None else graph_store.edge_pb[edge_type]
            assert torch.equal(edge_pb, owner[dst][given.edge_index[1]])
            rows = store.get_tensor_from_global_id(group_name=group, attr_name="edge_attr", index=edge_id)
            assert same(rows, given.edge_attr[edge_id])
            if time == "edge":
                assert same(store.get_tensor(group_name=group, attr_name="edge_time"), given.time[edge_id])
            if time is not None:
                source = None if edge_type is None else edge_type[0]
                times = of_nodes[source].time[edge_index[0]] if time == "node" else given.time[edge_id]
                assert bool((times.diff()[edge_index[1].diff() == 0] >= 0).all())
            seen[edge_type] += edge_id.tolist()
        for node_type, given in of_nodes.items():
            node_pb = graph_store.node_pb if node_type is None else graph_store.node_pb[node_type]
            assert torch.equal(node_pb, owner[node_type])
            nodes = (owner[node_type] == part).nonzero().flatten().flip(0)
            index = nodes + node_offset[node_type]  # PyG's map of nodes counts over all types
            for name in ("x",) if is_typed else ("x", "y"):
                rows = store.get_tensor_from_global_id(group_name=node_type, attr_name=name, index=index)
                assert same(rows, given[name][nodes])
            if time == "node":
                assert same(store.get_tensor(group_name=node_type, attr_name="time"), given.time)
    assert all(sorted(ids) == list(range(of_edges[edge_type].num_edges)) for edge_type, ids in seen.items())


def offsets(stores, count):
    """The first number of each type where all types are numbered together."""
    counts = [getattr(store, count) for store in stores.values()]
    return dict(zip(stores, [0, *np.cumsum(counts)], strict=False))


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
    data = data_with(True, time)
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
