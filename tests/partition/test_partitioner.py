"""Partitioner: arguments, what it writes and returns, and what a failure leaves."""

import errno
import json
import multiprocessing
import resource

import pytest
import torch
from hetero_graphs import full_library, library
from partition_targets import graph_of_seed

import datapipes as dp
from datapipes.distributed import Partitioner, PartitionReport, find_parts
from datapipes.partition import partitioner as partitioner_module
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part

METHODS = ["metis", "random", "range", "fennel"]


def small(num_nodes=40, num_edges=200, **attributes):
    generator = torch.Generator().manual_seed(0)
    return dp.CSCGraph.from_edge_index(
        torch.randint(0, num_nodes, (2, num_edges), generator=generator), num_nodes, **attributes
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", [small(), library()], ids=["no types", "types"])
def test_each_method_writes_a_partition_that_opens(tmp_path, method, graph):
    report = Partitioner(graph, 3, tmp_path / "parts", method=method).generate_partition()
    assert isinstance(report, PartitionReport)
    book = open_book(tmp_path / "parts")
    parts = [Part.open(tmp_path / "parts", part) for part in range(3)]
    for node_type in graph.node_types:
        found = torch.cat([part.node_ids(node_type) for part in parts])
        assert sorted(found.tolist()) == list(range(graph.num_nodes_of(node_type)))
        for part in parts:
            assert book.get_partition_ids_from_nids(part.node_ids(node_type), node_type).eq(part.part).all()
    assert all(part.fingerprint == graph.digest() for part in parts)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", [small(), library()], ids=["no types", "types"])
def test_parts_are_found_without_being_written(tmp_path, method, graph):
    balance = {"nodes": 1.0} if method in ("metis", "fennel") else None
    Partitioner(graph, 3, tmp_path / "parts", method=method, balance=balance).generate_partition()
    book, found = open_book(tmp_path / "parts"), find_parts(graph, 3, method=method)
    for kind in graph.node_types:
        parts = found[kind] if graph.is_heterogeneous else found
        assert torch.equal(parts, book.get_partition_ids_from_nids(torch.arange(len(parts)), kind).long())
        assert parts.dtype == torch.int64


@pytest.mark.parametrize("layouts", [("native", "pyg"), ("pyg", "native"), ("native",), ["pyg"], "native"])
def test_only_the_layouts_that_are_named_are_written(tmp_path, layouts):
    Partitioner(small(), 2, tmp_path, method="range", layouts=layouts).generate_partition()
    assert layout_of(tmp_path) == ({layouts} if isinstance(layouts, str) else set(layouts))


@pytest.mark.parametrize(("arguments", "has"), [({}, False), ({"edge_map": True}, True)])
def test_the_edge_map_is_an_option_of_the_native_layout(tmp_path, arguments, has):
    Partitioner(small(), 2, tmp_path, method="range", layouts=("native",), **arguments).generate_partition()
    assert open_book(tmp_path).has_edges is has


@pytest.mark.parametrize(("arguments", "has"), [({}, True), ({"edge_map": False}, False), ({"edge_map": None}, True)])
def test_by_default_there_is_an_edge_map_where_edges_have_attributes(tmp_path, arguments, has):
    graph = small(edge_attributes={"w": torch.zeros(small().num_edges)})
    Partitioner(graph, 2, tmp_path, method="range", layouts=("native",), **arguments).generate_partition()
    assert open_book(tmp_path).has_edges is has


def test_with_pyg_s_layout_there_is_an_edge_map(tmp_path):
    Partitioner(small(), 2, tmp_path, method="range").generate_partition()
    assert open_book(tmp_path).has_edges


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_parts(tmp_path, method):
    for name, rng_seed in (("one", 3), ("two", 3), ("three", 4)):
        Partitioner(graph_of_seed(0), 3, tmp_path / name, method=method, rng_seed=rng_seed).generate_partition()
    one, two, three = (open_book(tmp_path / name).nodes().dense().tolist() for name in ("one", "two", "three"))
    assert one == two
    assert method == "range" or one != three


def test_the_report_has_what_the_run_took_and_is_kept(tmp_path):
    report = Partitioner(graph_of_seed(0), 2, tmp_path, method="random").generate_partition()
    assert set(report.seconds) == {"validate", "assign", "measure", "write pyg", "write native"}
    assert report.memory_bytes > 0
    kept = json.loads((tmp_path / "partition.json").read_text())["report"]
    assert PartitionReport.from_json(kept).edges == report.edges


def test_progress_is_told(tmp_path):
    told = []
    Partitioner(small(), 2, tmp_path, method="random", progress=lambda *given: told.append(given)).generate_partition()
    assert told
    assert all(isinstance(text, str) and done >= 0 and (total == 0 or done <= total) for text, done, total in told)


def test_an_error_of_progress_ends_the_run_and_leaves_nothing(tmp_path):
    def fail(text, done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        Partitioner(small(), 2, tmp_path / "parts", method="random", progress=fail).generate_partition()
    assert list(tmp_path.iterdir()) == []


def test_what_a_partitioner_refuses_when_it_is_built(refuses, tmp_path):
    graph = small(node_attributes={"x": torch.zeros(40, 2)})

    def build(num_parts=2, data=graph, **options):
        Partitioner(data, num_parts, tmp_path / "parts", **options)

    refuses(ValueError, build, 0)
    refuses(TypeError, build, True)
    refuses(ValueError, build, 41)
    refuses(ValueError, build, method="spectral")
    refuses(ValueError, build, method="random", recursive=True)
    refuses(TypeError, build, recursive=1)
    refuses(ValueError, build, node_time_attr="when")
    refuses(ValueError, build, node_time_attr="x")
    refuses(ValueError, build, rng_seed=-1)
    refuses(TypeError, build, rng_seed=0.5)
    refuses(ValueError, build, layouts=())
    refuses(ValueError, build, layouts=("native", "dgl"))
    refuses(TypeError, build, edge_map="yes")
    refuses(TypeError, build, data=[1, 2])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "thesis.txt").write_text("mine")
    refuses(FileExistsError, build)


def test_what_find_parts_refuses(refuses):
    refuses(TypeError, find_parts, "graph", 2)
    refuses(ValueError, find_parts, small(), 41)
    refuses(ValueError, find_parts, small(), 2, method="louvain")


def test_edge_ids_that_no_edge_map_can_have_need_the_native_layout(refuses, tmp_path):
    graph = full_library()  # its edges of one type have the ids 7, 8, 9
    refuses(ValueError, Partitioner(graph, 2, tmp_path / "parts", method="range").generate_partition)
    assert list(tmp_path.iterdir()) == []
    with refuses(ValueError):
        Partitioner(graph, 2, tmp_path / "p", method="range", layouts=("native",), edge_map=True).generate_partition()
    report = Partitioner(graph, 2, tmp_path / "parts", method="range", layouts=("native",)).generate_partition()
    assert layout_of(tmp_path / "parts") == {"native"}
    assert not open_book(tmp_path / "parts").has_edges
    assert any(graph.relation(each).edge_attributes for each in graph.edge_types)
    assert "not in the parts: the part of each edge, since edge ids are not 0 to" in str(report)


def test_a_corrupt_graph_is_refused(refuses, tmp_path):
    graph = dp.CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([0, 7]))
    refuses(ValueError, Partitioner(graph, 2, tmp_path / "parts").generate_partition)
    assert list(tmp_path.iterdir()) == []


def write_with_little_room(root, most_bytes, layouts, says):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    try:
        Partitioner(graph_of_seed(1), 2, root, method="random", layouts=layouts).generate_partition()
        says.send(None)
    except BaseException as error:
        says.send((type(error).__name__, getattr(error, "errno", None), str(error)))


@pytest.mark.parametrize("layouts", [("native",), ("pyg",)])
@pytest.mark.parametrize("most_bytes", [100, 100_000])
def test_a_disk_that_fills_up_while_it_is_written_leaves_the_older_partition(tmp_path, layouts, most_bytes):
    root = tmp_path / "parts"
    Partitioner(graph_of_seed(0), 2, root, method="random").generate_partition()
    hears, says = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("forkserver").Process(
        target=write_with_little_room, args=(root, most_bytes, layouts, says), daemon=True
    )
    process.start()
    assert hears.poll(60)
    name, code, text = hears.recv()
    process.join(60)
    assert (name, code) == ("OSError", errno.EFBIG)
    assert f"Nothing at {root} was changed" in text
    assert Part.open(root, 1).fingerprint == graph_of_seed(0).digest()
    assert list(tmp_path.iterdir()) == [root]


def test_ctrl_c_leaves_the_older_partition(tmp_path, monkeypatch):
    root = tmp_path / "parts"
    Partitioner(graph_of_seed(0), 2, root, method="random").generate_partition()

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(partitioner_module, "write_native", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Partitioner(graph_of_seed(1), 2, root, method="random").generate_partition()
    assert Part.open(root, 0).fingerprint == graph_of_seed(0).digest()
    assert list(tmp_path.iterdir()) == [root]
