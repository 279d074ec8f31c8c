"""write_pyg: PyG's layout, compared with what the slow equivalents say of each part."""

import json

import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from partitions import attributes_of, books, graphs, parts_of, slow_positions, source_of
from pyg_layout import BOOK, renamed, same, small, typed, written
from scripts import SUPPORT, run_script

import datapipes as dp
from datapipes.distributed import PartitionBook, Partitioner
from datapipes.partition import partitioner as partitioner_module
from datapipes.partition import row_chunks
from datapipes.partition.pyg import pyg_write
from datapipes.partition.pyg.pyg_write import write_pyg
from datapipes.partition.source import Source

IDS2 = torch.arange(2)


def load(path):
    return torch.load(path, weights_only=True)


def files_of(root, part):
    return [load(root / f"part_{part}" / name) for name in ("graph.pt", "node_feats.pt", "edge_feats.pt")]


def by_type(found, is_hetero):
    return found if is_hetero else {None: found}


@examples(40)
@given(st.data())
def test_every_file_holds_what_the_graph_says(tmp_path_factory, data):
    graph = renamed(data.draw(graphs()))
    book = data.draw(books(graph))
    is_hetero = graph.is_heterogeneous
    node_types, edge_types = (list(reversed(each)) for each in (graph.node_types, graph.edge_types))
    root = written(tmp_path_factory.mktemp("pyg"), Source(graph, {}, tuple(node_types), tuple(edge_types)), book)
    offsets, before = {}, 0
    for node_type in node_types:
        offsets[node_type], before = before, before + graph.num_nodes_of(node_type)
    edge_offsets, before = {}, 0
    for edge_type in edge_types:
        edge_offsets[edge_type], before = before, before + graph.num_edges_of(edge_type)
    meta = json.loads((root / "META.json").read_text())
    assert meta == {
        "num_parts": book.num_parts,
        "node_types": node_types if is_hetero else None,
        "edge_types": [list(each) for each in edge_types] if is_hetero else None,
        "node_offset": list(offsets.values()) if is_hetero else None,
        "is_hetero": is_hetero,
        "is_sorted": True,
    }
    for node_type in node_types:
        found = load(root / f"node_map/{node_type}.pt" if is_hetero else root / "node_map.pt")
        assert same(found, torch.tensor(parts_of(book, node_type), dtype=torch.int64))
    edge_maps = {
        each: load(root / f"edge_map/{'__'.join(each)}.pt" if is_hetero else root / "edge_map.pt")
        for each in edge_types
    }
    for part in range(book.num_parts):
        of_edges, of_nodes, of_features = files_of(root, part)
        for edge_type, found in by_type(of_edges, is_hetero).items():
            relation = graph.relation(edge_type)
            src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
            places = torch.tensor(slow_positions(graph, book, edge_type, part), dtype=torch.int64)
            ids = places if relation.edge_ids is None else relation.edge_ids[places]
            assert same(found["edge_id"], ids + edge_offsets[edge_type])
            assert same(found["row"], relation.indices[places].long())
            assert same(found["col"], torch.searchsorted(relation.indptr, places, right=True) - 1)
            assert found["size"] == (graph.num_nodes_of(src), graph.num_nodes_of(dst))
            assert bool((edge_maps[edge_type][ids] == part).all())
            features = by_type(of_features, is_hetero).get(edge_type)
            if len(places) == 0:
                assert not features
                continue
            assert same(features["global_id"], ids)
            assert features.keys() == {"global_id", "feats"}
            assert features["feats"].keys() == relation.edge_attributes.keys()
            for name, values in relation.edge_attributes.items():
                assert same(features["feats"][name], values[places])
        assert set(by_type(of_edges, is_hetero)) == set(edge_types)
        for node_type in node_types:
            own = torch.tensor([i for i, each in enumerate(parts_of(book, node_type)) if each == part]).long()
            found = by_type(of_nodes, is_hetero).get(node_type)
            if is_hetero and len(own) == 0:
                assert found is None
                continue
            assert found.keys() == ({"global_id", "id", "feats"} if is_hetero else {"global_id", "feats"})
            assert same(found["global_id"], own + offsets[node_type])
            assert not is_hetero or same(found["id"], own)
            assert found["feats"].keys() == graph.node_attributes_of(node_type).keys()
            for name, values in graph.node_attributes_of(node_type).items():
                assert same(found["feats"][name], values[own])
    assert {type(each) for part in range(book.num_parts) for each in files_of(root, part)} == {dict}
    assert {each.name for each in root.iterdir()} >= {"META.json"}
    assert not [each for each in root.rglob("*") if each.name.startswith("tmp")]


def slow_order(graph, book, part, times):
    """The positions of a part's edges by (destination, time), edge by edge."""
    dst = torch.searchsorted(graph.indptr, torch.arange(graph.num_edges), right=True) - 1
    return sorted(slow_positions(graph, book, None, part), key=lambda at: (int(dst[at]), float(times[at]), at))


@pytest.mark.parametrize("most", [1, 3, 7, 2**20])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float64])
@pytest.mark.parametrize("level", ["given", "node", "edge_time", "time", "both"])
def test_times_order_the_in_edges_of_a_node(tmp_path, monkeypatch, level, dtype, most):
    monkeypatch.setattr(row_chunks, "MOST_EDGES", most)
    monkeypatch.setattr(pyg_write, "MOST_EDGES", most)
    made = torch.Generator().manual_seed(3)
    of_nodes, of_edges = torch.randint(3, (6,), generator=made).to(dtype), torch.randint(3, (30,), generator=made)
    of_edges = of_edges.to(dtype)
    nodes = {"given": {"when": of_nodes}, "node": {"time": of_nodes}, "both": {"time": of_nodes}}.get(level, {})
    edges = {"given": {"edge_time": of_edges}, "both": {"edge_time": of_edges, "time": of_edges + 1}}.get(level, {})
    edges = {level: of_edges} if level in ("edge_time", "time") else edges
    graph = small(node_attributes=nodes, edge_attributes={**edges, "edge_attr": torch.arange(30)})
    root = written(tmp_path, source_of(graph), BOOK, "when" if level == "given" else None)
    by_source = level in ("given", "node")
    times = of_nodes[graph.indices] if by_source else of_edges
    stored = torch.int64 if dtype == torch.int32 else dtype
    for part in range(2):
        order = slow_order(graph, BOOK, part, times)
        of_graph, node_feats, edge_feats = files_of(root, part)
        assert of_graph["edge_id"].tolist() == edge_feats["global_id"].tolist() == order
        assert of_graph["row"].tolist() == graph.indices[order].tolist()
        assert edge_feats["feats"]["edge_attr"].tolist() == order
        if by_source:
            assert "edge_time" not in edge_feats
        else:
            assert same(edge_feats["edge_time"], of_edges[order].to(stored))
        if nodes:
            assert same(node_feats["time"], of_nodes.to(stored))
        assert "time" not in node_feats["feats"]
        assert list(node_feats["feats"]) == (["when"] if level == "given" else [])
        others = {"edge_time": [], "time": ["time"], "both": ["time"], "given": ["edge_time"], "node": []}[level]
        assert list(edge_feats["feats"]) == [*others, "edge_attr"]


def test_attributes_called_time_that_are_no_times_are_features(tmp_path):
    nodes, edges = torch.rand(6, 2), torch.rand(30) > 0.5
    graph = small(node_attributes={"time": nodes}, edge_attributes={"edge_time": edges})
    root = written(tmp_path, source_of(graph), BOOK)
    of_graph, node_feats, edge_feats = files_of(root, 0)
    places = slow_positions(graph, BOOK, None, 0)
    assert of_graph["edge_id"].tolist() == places
    assert same(node_feats["feats"]["time"], nodes[[0, 2, 3]])
    assert same(edge_feats["feats"]["edge_time"], edges[places])
    assert node_feats.keys() == edge_feats.keys() == {"global_id", "feats"}


def test_a_graph_without_attributes_and_a_part_without_nodes(tmp_path):
    graph = small()
    root = written(tmp_path, source_of(graph), PartitionBook(3, torch.zeros(6, dtype=torch.int64)))
    of_graph, node_feats, edge_feats = files_of(root, 2)
    assert of_graph["edge_id"].shape == of_graph["row"].shape == (0,)
    assert (node_feats["feats"], edge_feats) == ({}, {})
    assert files_of(root, 0)[2] == {}
    assert (root / "part_0" / "graph.pt").stat().st_size < 3 * 30 * 8 + 3000  # a storage for each array, and no more


def test_files_hold_no_more_than_their_values(tmp_path):
    whole = torch.zeros(2, 6, 500)
    graph = small(node_attributes={"x": whole[1], "time": torch.zeros(1000, 6, dtype=torch.int64)[5]})
    root = written(tmp_path, source_of(graph), BOOK)
    assert (root / "part_0" / "node_feats.pt").stat().st_size < 3 * 500 * 4 + 5000


def test_progress_is_told_the_part_and_the_edges(tmp_path):
    told = []
    write_pyg(tmp_path, source_of(small()), BOOK, node_time_attr=None, progress=lambda *values: told.append(values))
    assert [each[0] for each in told] == ["write part 0 for PyG"] * 2 + ["write part 1 for PyG"] * 2
    assert [each[1:] for each in told] == [(0, 30), (10, 30), (10, 30), (30, 30)]


# --- what the layout cannot hold


def refused(folder, graph, said, node_time_attr=None):
    book = PartitionBook(2, {each: torch.arange(graph.num_nodes_of(each)) % 2 for each in graph.node_types})
    with pytest.raises(ValueError, match=said):
        written(folder, source_of(graph), book, node_time_attr)
    assert list(folder.iterdir()) == []


def test_types_that_make_no_name_of_a_file_are_refused(tmp_path):
    how = r".*layouts=\('native',\)"
    refused(tmp_path, typed(("a/b", "r", "c")), "the type 'a/b' makes no name of a file; it may have no '/'" + how)
    refused(tmp_path, typed(("a", "r\0", "c")), r"the type \('a', 'r\\x00', 'c'\) makes no name of a file" + how)
    refused(tmp_path, typed(("ä" * 127, "r", "c")), "at most 252 bytes" + how)
    refused(tmp_path, typed(("\ud800", "r", "c")), "makes no name of a file" + how)
    twice = typed(("a__b", "c", "d"), ("a", "b__c", "d"))
    refused(tmp_path, twice, "both make the file 'a__b__c__d.pt'; each type needs one of its own" + how)


def test_names_that_look_like_paths_stay_in_the_folder(tmp_path):
    graph = typed(("..", ".", ".."))
    written(tmp_path, source_of(graph), PartitionBook(2, {"..": torch.arange(2)}))
    assert {each.name for each in tmp_path.iterdir()} == {"META.json", "node_map", "edge_map", "part_0", "part_1"}
    assert [each.name for each in (tmp_path / "node_map").iterdir()] == ["...pt"]


def test_edge_ids_that_are_not_all_columns_are_refused(tmp_path):
    ids = torch.arange(30)
    for wrong, found in ((ids + 1, "the id 30"), (ids.clone().fill_(7), "an id that is there twice")):
        refused(tmp_path, small(edge_ids=wrong), rf"found {found} .*each of 0 to 29 once.*layouts=\('native',\)")


def test_times_that_are_none_are_refused(tmp_path):
    x = {"x": torch.rand(6, 2)}
    refused(tmp_path, small(node_attributes=x), r"node_time_attr 'when' is no node attribute .*it has \['x'\]", "when")
    refused(tmp_path, small(node_attributes=x), r"'x' is float32 \[6, 2\]; times are", "x")
    both = {"when": torch.arange(6), "time": torch.arange(6)}
    refused(tmp_path, small(node_attributes=both), "have the attribute 'time' beside 'when'", "when")


def test_an_edge_attribute_that_times_would_replace_is_refused(tmp_path):
    beside = {"edge_time": torch.rand(30, 2), "time": torch.arange(30)}
    refused(tmp_path, small(edge_attributes=beside), r"edges have the attribute 'edge_time' beside 'time'.*Rename it")
    graph = typed(("a", "r", "b"), edge_attributes={("a", "r", "b"): {"edge_time": torch.rand(2, 2), "time": IDS2}})
    refused(tmp_path, graph, "the edges of a:r:b have the attribute 'edge_time' beside 'time'")


def test_times_that_int64_cannot_hold_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pyg_write, "MOST_EDGES", 4)
    late = torch.tensor([1, 2, 3, 4, 5, -1]).view(torch.uint64)
    said = r"{} is uint64 and has a time of 2\^63 or more; .*stored as int64"
    refused(tmp_path, small(node_attributes={"time": late}), said.format("the node attribute 'time'"))
    refused(tmp_path, small(node_attributes={"when": late}), said.format("the node attribute 'when'"), "when")
    edges = small(edge_attributes={"time": late.repeat(5)})
    refused(tmp_path, edges, said.format("the edge attribute 'time'"))
    fits = torch.tensor([1, 2, 3, 4, 5, 2**63 - 1])
    root = written(tmp_path, source_of(small(node_attributes={"time": fits.view(torch.uint64)})), BOOK)
    assert same(files_of(root, 0)[1]["time"], fits)


@pytest.mark.parametrize("layouts", [("pyg",), ("native",)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.complex64])
def test_times_that_cannot_be_compared_are_refused_when_a_partitioner_is_made(tmp_path, layouts, dtype):
    graph = small(node_attributes={"when": torch.zeros(6).to(dtype)})
    with pytest.raises(ValueError, match=r"times are integers or floats \[num_nodes\], floats of 16 bits or more"):
        Partitioner(graph, 2, tmp_path / "parts", node_time_attr="when", layouts=layouts)


def test_small_floats_called_time_are_features(tmp_path):
    graph = small(edge_attributes={"time": torch.zeros(30).to(torch.float8_e5m2)})
    found = files_of(written(tmp_path, source_of(graph), BOOK), 0)[2]
    assert (found.keys(), found["feats"].keys()) == ({"global_id", "feats"}, {"time"})


def test_attributes_of_all_dtypes_are_kept(tmp_path):
    graph = small(node_attributes=attributes_of(6, 0))
    found = files_of(written(tmp_path, source_of(graph), BOOK), 1)[1]["feats"]
    assert all(same(found[name], values[[1, 4, 5]]) for name, values in graph.node_attributes.items() if name in found)
    assert {"x", "mask", "across"} <= found.keys()


def test_a_disk_that_is_full_is_an_oserror_wherever_it_fills_up(tmp_path):
    """graph.pt is larger than each array in it, so at some limits torch.save fails, which says nothing of the disk."""
    script = f"""
import errno, resource, signal, sys
from pathlib import Path
import torch
sys.path.insert(0, {SUPPORT!r})
from pyg_layout import small, source_of, written
import datapipes as dp
from datapipes.distributed import Partitioner, PartitionBook
from datapipes.partition import partitioner as partitioner_module
import datapipes as dp
edges = torch.randint(9, (2, 4000), generator=torch.Generator().manual_seed(0))
graph = dp.CSCGraph.from_edge_index(edges, 9)
for number, most in enumerate((100, 10_000, 20_000, 33_000, 40_000, 50_000)):
    folder = Path({str(tmp_path)!r}) / str(number)
    folder.mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        written(folder, source_of(graph), PartitionBook(2, torch.arange(9) % 2))
        raise SystemExit(f"written with files of at most {{most}} bytes")
    except OSError as error:
        assert error.errno == errno.EFBIG, error
"""
    ended = run_script(script)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("make", [lambda: typed(("a/b", "r", "c")), lambda: typed(("a", "r", "b" * 300))])
def test_a_partitioner_refuses_what_the_layout_cannot_hold_when_it_is_made(tmp_path, make):
    with pytest.raises(ValueError, match="makes no name of a file"):
        Partitioner(make(), 2, tmp_path / "parts")
    Partitioner(make(), 2, tmp_path / "parts", method="range", layouts=("native",)).generate_partition()


def test_edge_ids_that_do_not_fit_are_refused_before_the_parts_are_made(tmp_path, monkeypatch):
    monkeypatch.setattr(partitioner_module, "make_assignment", lambda *_, **__: pytest.fail("parts were made"))
    with pytest.raises(ValueError, match="an id that is there twice among the edge ids"):
        Partitioner(small(edge_ids=torch.zeros(30, dtype=torch.int64)), 2, tmp_path / "parts").generate_partition()


@pytest.mark.parametrize(
    ("times", "node_time_attr"),
    [({}, None), ({"time": torch.arange(3000)}, None), ({"year": torch.arange(3000, dtype=torch.int16)}, "year")],
)
@pytest.mark.parametrize("num_parts", [1, 4, 16])
def test_the_bytes_that_are_asked_for_are_about_those_that_are_written(tmp_path, num_parts, times, node_time_attr):
    made = torch.Generator().manual_seed(0)
    x = {"x": torch.rand(3000, 10), **times}
    graph = dp.CSCGraph.from_edge_index(torch.randint(3000, (2, 30_000), generator=made), 3000, node_attributes=x)
    book = PartitionBook(num_parts, torch.arange(3000) % num_parts)
    values = sum(each.nbytes for each in x.values())
    asked = pyg_write.pyg_bytes(source_of(graph), num_parts, values, node_time_attr)
    root = written(tmp_path, source_of(graph), book, node_time_attr)
    files = sum(each.stat().st_size for each in root.rglob("*.pt"))
    largest = max(each.stat().st_size for each in (root / "part_0").iterdir())
    assert files + largest / 2 < asked < 1.2 * (files + 2 * largest)
