"""CSCGraph.build and HeteroCSCGraph.build: the graph of from_edge_index, to the bit, in bounded memory."""

import errno
import functools
import gzip
import os
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from killed_builds import files_of, kill_a_build
from pipelines import refused

import datapipes as dp
from datapipes.base import folder as folders
from datapipes.graph import storage
from datapipes.ingest import buckets, build

SMALL = 600  # bytes of memory, in which the edges of tests do not fit


def edges_of(num_nodes, num_edges, seed=0):
    """Return a random edge_index [2, num_edges]; node 0 has many edges."""
    random = np.random.default_rng(seed)
    return np.minimum(random.random((2, num_edges)) ** 3 * num_nodes, num_nodes - 1).astype(np.int64)


def in_memory(edges, num_nodes, dtype=torch.int32, **attributes):
    return dp.CSCGraph.from_edge_index(edges, num_nodes, **attributes).with_index_dtype(dtype)


def assert_saved_alike(folder, graph, tmp_path):
    """The folder is what the graph would save, to the byte."""
    saved = tmp_path / f"of {folder.name}"
    graph.save(saved)
    assert files_of(folder) == files_of(saved)
    assert sorted(each.name for each in folder.parent.iterdir() if each.name.startswith(".")) == []


# --- the same graph


@examples(300)
@given(
    num_nodes=st.sampled_from([1, 2, 5, 16, 17, 1000]),
    num_edges=st.integers(0, 60),
    seed=st.integers(0, 9),
    max_memory=st.sampled_from([SMALL, 5 * SMALL, 2**20]),
    dtype=st.sampled_from([torch.int32, torch.int64]),
    most_buckets=st.sampled_from([2, 4, 64]),
    few_nodes=st.sampled_from([1, 4096]),
)
def test_the_folder_is_that_of_the_build_in_memory(
    tmp_path_factory, num_nodes, num_edges, seed, max_memory, dtype, most_buckets, few_nodes
):
    tmp_path = tmp_path_factory.mktemp("built")
    edges, attributes = edges_of(num_nodes, num_edges, seed), {}
    attributes["edge_attributes"] = {
        "w": torch.rand(num_edges, 3),
        "b": torch.rand(num_edges).bfloat16(),
        "t": torch.rand(2, 3, num_edges).permute(2, 1, 0),
        "c": torch.rand(num_edges, dtype=torch.complex64).conj(),
        "none": torch.empty(num_edges, 0),
    }
    attributes["node_attributes"] = {"x": torch.rand(num_nodes, 2), "none": torch.empty(num_nodes, 0)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "_MOST_BUCKETS", most_buckets)
        patch.setattr(buckets, "_FEW_NODES", few_nodes)
        graph = dp.CSCGraph.build(
            edges, tmp_path / "g", num_nodes, index_dtype=dtype, edge_ids=True, max_memory=max_memory, **attributes
        )
    assert_saved_alike(tmp_path / "g", in_memory(edges, num_nodes, dtype, **attributes), tmp_path)
    graph.validate()


def test_without_ids_the_positions_are_the_ids(tmp_path):
    edges = edges_of(20, 100)
    weights = torch.rand(100)
    graph = dp.CSCGraph.build(edges, tmp_path / "g", 20, edge_attributes={"w": weights}, max_memory=SMALL)
    expected = in_memory(edges, 20, edge_attributes={"w": weights})
    assert graph.edge_ids is None
    assert graph.index_dtype == torch.int32
    assert torch.equal(graph.indptr, expected.indptr)
    assert torch.equal(graph.indices, expected.indices)
    assert torch.equal(graph.edge_attributes["w"], expected.edge_attributes["w"])


@pytest.mark.parametrize("max_memory", [SMALL, "1MB"])
def test_a_graph_with_types(tmp_path, max_memory):
    edges = {
        ("paper", "cites", "paper"): edges_of(30, 80),
        ("author", "writes", "paper"): edges_of(30, 50, 1) % 7,
        ("paper", "of", "author"): np.stack((edges_of(30, 40, 2)[0], edges_of(7, 40, 3)[1])),
        ("author", "knows", "author"): np.zeros((2, 0), np.int64),
    }
    of_edges = {"author:writes:paper": {"year": torch.arange(50)}, ("paper", "cites", "paper"): {}}
    arguments = {
        "node_attributes": {"paper": {"x": torch.rand(30, 2)}, "venue": {"y": torch.arange(3)}},
        "edge_attributes": of_edges,
    }
    counts = {"paper": 30, "author": 7, "venue": 3}
    dp.HeteroCSCGraph.build(edges, tmp_path / "g", counts, edge_ids=True, max_memory=max_memory, **arguments)
    expected = dp.HeteroCSCGraph.from_edge_index(edges, counts, **arguments).with_index_dtype(torch.int32)
    assert_saved_alike(tmp_path / "g", expected, tmp_path)


# --- what stands as edges


def _parquet(path, edges, weights, **names):
    import pyarrow
    import pyarrow.parquet

    columns = {names.get("src", "src"): edges[0], names.get("dst", "dst"): edges[1], "weight": weights}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=17)
    return path


def _text(path, edges, weights, header="", sign=","):
    lines = [sign.join(map(str, row)) for row in zip(*edges.tolist(), weights.tolist(), strict=True)]
    text = "".join(f"{line}\n" for line in ([header] if header else []) + lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def _npy(path, array):
    np.save(path, array)
    return path


def _raw(path, edges, dtype):
    edges.T.astype(dtype).tofile(path)
    return path


def _folder(path, edges, write):
    path.mkdir()
    (path / "_SUCCESS").touch()
    for number, begin in enumerate(range(0, edges.shape[1], 30)):
        write(path / f"part-{number}", edges[:, begin : begin + 30])
    return path


ENDS = {
    "array": lambda path, edges, _: edges,
    "tensor int32": lambda path, edges, _: torch.from_numpy(edges).int(),
    "columns": lambda path, edges, _: np.ascontiguousarray(edges.T),
    "unsigned": lambda path, edges, _: edges.astype(np.uint16),
    "pair": lambda path, edges, _: (edges[0], edges[1]),
    "pair of files": lambda path, edges, _: [str(_npy(path / f"{row}.npy", edges[row])) for row in (0, 1)],
    "npy": lambda path, edges, _: _npy(path / "e.npy", edges),
    "npy, Fortran": lambda path, edges, _: _npy(path / "e.npy", np.asfortranarray(edges)),
    "npy, columns": lambda path, edges, _: str(_npy(path / "e.npy", np.ascontiguousarray(edges.T))),
    "npy, columns, Fortran": lambda path, edges, _: _npy(path / "e.npy", np.asfortranarray(edges.T)),
    "folder of npy": lambda path, edges, _: _folder(path / "f", edges, lambda at, some: np.save(f"{at}.npy", some)),
    "int32": lambda path, edges, _: _raw(path / "e.int32", edges, np.int32),
    "int64": lambda path, edges, _: _raw(path / "e.int64", edges, np.int64),
    "chunks": lambda path, edges, _: (edges[:, begin : begin + 7] for begin in range(0, 100, 7)),
    "list of chunks": lambda path, edges, _: [edges[:, :60], edges[:, 60:61], edges[:, 61:]],
    "callable": lambda path, edges, _: lambda: iter([(edges[0, :40], edges[1, :40]), edges[:, 40:]]),
}
TABLES = {
    "parquet": _parquet,
    "csv": _text,
    "csv with a header": functools.partial(_text, header="src,dst,weight"),
}


@pytest.mark.parametrize("max_memory", [SMALL, "1MB"])
@pytest.mark.parametrize("form", ENDS)
def test_edges_of_each_form(tmp_path, form, max_memory):
    edges, weights = edges_of(40, 100), torch.rand(100)
    given = ENDS[form](tmp_path, edges, weights)
    attributes = (
        {} if "chunks" in form or form == "callable" else {"w": weights, "f": _npy(tmp_path / "w.npy", weights)}
    )
    dp.CSCGraph.build(given, tmp_path / "g", 40, edge_attributes=attributes, edge_ids=True, max_memory=max_memory)
    expected = in_memory(edges, 40, edge_attributes=dict.fromkeys(attributes, weights))
    assert_saved_alike(tmp_path / "g", expected, tmp_path)


@pytest.mark.parametrize("form", TABLES)
@pytest.mark.parametrize("name", ["edges", "folder"])
def test_edges_of_tables(tmp_path, form, name):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    edges, weights = edges_of(40, 100), torch.rand(100, dtype=torch.float64)
    suffix = form.split(",")[0].split(" ")[0]
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        for number, some in enumerate((slice(0, 70), slice(70, 100))):
            TABLES[form](path / f"{number}.{suffix}", edges[:, some], weights.numpy()[some])
    else:
        path = TABLES[form](tmp_path / f"edges.{suffix}", edges, weights.numpy())
    column = "f2" if form == "csv" else "weight"
    dp.CSCGraph.build(path, tmp_path / "g", 40, edge_attributes={"w": column}, edge_ids=True, max_memory=2000)
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40, edge_attributes={"w": weights}), tmp_path)


def test_ends_by_other_names_are_the_only_two_columns(tmp_path, refuses):
    pyarrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
    edges = edges_of(40, 100)
    path = tmp_path / "edges.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"from": edges[0], "to": edges[1]}), path)
    dp.CSCGraph.build(path, tmp_path / "g", 40, edge_ids=True)
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40), tmp_path)
    (tmp_path / "numbered.csv").write_text(",from,to\n0,1,2\n1,3,4\n")  # as pandas writes it
    refuses(ValueError, dp.CSCGraph.build, tmp_path / "numbered.csv", tmp_path / "h", 40)


@pytest.mark.parametrize(("suffix", "sign"), [("csv.gz", ","), ("tsv", "\t")])
def test_packed_and_tabbed_text(tmp_path, suffix, sign):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    edges = edges_of(40, 100)
    path = _text(tmp_path / f"edges.{suffix}", edges, np.ones(100), sign=sign)
    dp.CSCGraph.build(path, tmp_path / "g", 40, edge_ids=True)
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40), tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff1,2\n3,4\n",  # a byte order mark, as spreadsheets write it
        "\ufeffa,b\n1,2\n3,4\n",
        "1,2,1e-5\n3,4,2\n",
        '"1","2",nan\r\n3,4,2\r\n',
        "\u00e9,b\n1,2\n3,4\n",
        "1,e\n1,2\n3,4\n",
    ],
)
def test_a_first_line_of_numbers_is_an_edge_and_another_a_header(tmp_path, text):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    (tmp_path / "e.csv").write_bytes(text.encode())
    graph = dp.CSCGraph.build(tmp_path / "e.csv", tmp_path / "g", 5)
    assert graph.indptr.tolist() == [0, 0, 0, 1, 1, 2]
    assert graph.indices.tolist() == [1, 3]


def _parts(path, **parts):
    """Write a folder of parts: each bytes of a CSV file, or columns of a Parquet file."""
    path.mkdir(exist_ok=True)
    for name, part in parts.items():
        if isinstance(part, bytes):
            _bytes(path / f"{name}.csv", part)
        else:
            pyarrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
            pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(part), path / f"{name}.parquet")
    return path


def _ends(src, dst, dtype=np.int64, **more):
    return {"src": np.array(src, dtype), "dst": np.array(dst, dtype), **more}


PARTS = {  # and their edges
    "a header alone": ({"a": b"src,dst\n"}, []),
    "no bytes": ({"a": b""}, []),
    "a header and empty lines": ({"a": b"src,dst\r\n\r\n"}, []),
    "Parquet without rows": ({"a": _ends([], [])}, []),
    "Parquet without rows or types": ({"a": _ends([], [], float)}, []),
    "the first has no rows": ({"a": b"src,dst\n", "b": b"src,dst\n0,1\n"}, [(0, 1)]),
    "the first has no bytes": ({"a": b"", "b": b"src,dst\n0,1\n", "c": b""}, [(0, 1)]),
    "names in another order": ({"a": b"src,dst,w\n0,1,2\n", "b": b"dst,w,src\n3,5,2\n"}, [(0, 1), (2, 3)]),
    "names in quotes": ({"a": b'"src","dst"\n0,1\n', "b": b"src,dst\n2,3\n"}, [(0, 1), (2, 3)]),
    "no names": ({"a": b"0,1\n", "b": b"2,3\n"}, [(0, 1), (2, 3)]),
    "int32 and int64": ({"a": _ends([0], [1], np.int32), "b": _ends([2], [3])}, [(0, 1), (2, 3)]),
    "uint8 and int16": ({"a": _ends([0], [1], np.uint8), "b": _ends([2], [3], np.int16)}, [(0, 1), (2, 3)]),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_table(tmp_path, name):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    parts, edges = PARTS[name]
    dp.CSCGraph.build(_parts(tmp_path / "e", **parts), tmp_path / "g", 5, edge_ids=True)
    expected = np.array(edges, np.int64).reshape(-1, 2).T
    assert_saved_alike(tmp_path / "g", in_memory(np.ascontiguousarray(expected), 5), tmp_path)


def test_a_column_of_two_types_holds_the_values_of_both(tmp_path):
    parts = {"a": _ends([0], [1], w=np.array([2], np.int32)), "b": _ends([0], [2], w=np.array([2**40]))}
    folder = _parts(tmp_path / "e", **parts)
    graph = dp.CSCGraph.build(folder, tmp_path / "g", 5, edge_attributes={"w": "w"})
    assert graph.edge_attributes["w"].tolist() == [2, 2**40]
    _parts(folder, c=_ends([0], [3], w=np.array([0.5])))
    graph = dp.CSCGraph.build(folder, tmp_path / "h", 5, edge_attributes={"w": "w"})
    assert graph.edge_attributes["w"].tolist() == [2.0, 2.0**40, 0.5]


@pytest.mark.parametrize("edges", [np.zeros((2, 0)), torch.empty(2, 0), (np.array([]), np.array([])), "npy"])
def test_no_edges_may_have_any_dtype(tmp_path, edges):
    if isinstance(edges, str):
        edges = _npy(tmp_path / "e.npy", np.zeros((2, 0)))
    assert dp.CSCGraph.build(edges, tmp_path / "g", 5).num_edges == 0


def test_chunks_may_have_attributes(tmp_path, refuses):
    edges, weights = edges_of(40, 100), torch.rand(100, 2)
    chunks = [(edges[:, begin : begin + 33], {"w": weights[begin : begin + 33]}) for begin in range(0, 100, 33)]
    dp.CSCGraph.build(chunks, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40, edge_attributes={"w": weights}), tmp_path)
    refuses(ValueError, dp.CSCGraph.build, [*chunks, edges], tmp_path / "h", 40)


# --- a build that was killed


def kill(edges, root, times, of_build=None, **how):
    """Build in little memory, and be killed."""

    def work():
        build.LEAST_MEMORY, buckets._MOST_BUCKETS = 1, 4
        dp.CSCGraph.build(edges, root, 40, edge_ids=True, max_memory=SMALL, **(of_build or {}))

    kill_a_build(work, times, **how)


@pytest.mark.parametrize("writes", [1, 3, 5])
@pytest.mark.parametrize("form", ["npy", "array"])
def test_a_killed_build_goes_on(tmp_path, read, form, writes):
    edges = edges_of(40, 100)
    given = ENDS[form](tmp_path, edges, None)
    kill(given, tmp_path / "g", writes)
    assert not (tmp_path / "g").exists()
    dp.CSCGraph.build(given, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)
    assert sum(read) == 100 - 19 * writes  # 19 edges lie in files at each note
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40), tmp_path)


@pytest.mark.parametrize("values", [1, 5, 12])
def test_a_build_that_is_killed_while_it_sorts_reads_no_edge_again(tmp_path, read, values):
    edges = _npy(tmp_path / "e.npy", edges_of(40, 100))
    kill(edges, tmp_path / "g", values, of=build.ArenaWriter, name="put")
    dp.CSCGraph.build(edges, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)
    assert read == []
    assert_saved_alike(tmp_path / "g", in_memory(np.load(edges), 40), tmp_path)


ROWS = {"sources": 0, "destinations": 1}


@pytest.mark.parametrize("change", ["file", *ROWS, "memory", "nodes", "boot", "state", "short"])
def test_what_is_not_the_same_build_begins_anew(tmp_path, read, monkeypatch, change):
    edges = edges_of(40, 100)
    source = ENDS["pair of files" if change in ROWS else "npy"](tmp_path, edges, None)
    kill(source, tmp_path / "g", 3)
    hidden, num_nodes, memory = tmp_path / ".g.datapipes-new", 40, SMALL
    if change == "file":
        edges = np.ascontiguousarray(edges[::-1])
        _npy(source, edges)
    elif change in ROWS:
        edges[ROWS[change]] = edges[ROWS[change], ::-1]
        _npy(source[ROWS[change]], edges[ROWS[change]])
    elif change == "memory":
        memory = 2 * SMALL
    elif change == "nodes":
        num_nodes = 41
    elif change == "boot":
        monkeypatch.setattr(build, "_boot", lambda: "another")
    elif change == "state":
        (hidden / "state.json").write_text('{"version": 1, "boot"')
    else:
        os.truncate(hidden / "edges" / "0", 500)
    dp.CSCGraph.build(source, tmp_path / "g", num_nodes, edge_ids=True, max_memory=memory)
    assert sum(read) == 100
    assert_saved_alike(tmp_path / "g", in_memory(edges, num_nodes), tmp_path)


@pytest.mark.parametrize(
    ("of", "name", "times", "is_there"),
    [
        (os, "replace", 6, False),  # of graph.json
        (folders, "sync_files", 1, False),
        (os, "rename", 1, True),
        (folders, "_remove", 2, True),  # the lock is still there
        (storage, "load", 1, True),
    ],
)
def test_a_build_that_is_killed_near_its_end_is_complete_when_it_is_called_again(tmp_path, of, name, times, is_there):
    edges, root = _npy(tmp_path / "e.npy", edges_of(40, 100)), tmp_path / "g"
    x = {"x": torch.arange(40)}
    kill(edges, root, times, of_build={"node_attributes": x}, of=of, name=name)
    assert root.exists() is is_there
    dp.CSCGraph.build(edges, root, 40, edge_ids=True, max_memory=SMALL, node_attributes=x)
    assert_saved_alike(root, in_memory(np.load(edges), 40, node_attributes=x), tmp_path)
    before = root.stat().st_ino
    dp.CSCGraph.build(edges, root, 40, edge_ids=True, node_attributes=x)  # as often as one likes, in any memory
    assert root.stat().st_ino == before


@pytest.mark.parametrize("change", ["file", "nodes", "ids", "attribute", "name", "array"])
def test_a_graph_of_something_else_is_not_overwritten(tmp_path, change, refuses):
    edges, root = _npy(tmp_path / "e.npy", edges_of(40, 100)), tmp_path / "g"
    x = torch.arange(40)
    arguments = {"num_nodes": 40, "edge_ids": True, "node_attributes": {"x": x}}
    dp.CSCGraph.build(edges, root, **arguments)
    if change == "file":
        _npy(edges, edges_of(40, 100, 1))
    elif change == "array":
        edges = np.load(edges)  # nothing tells that these are the ones
    other = {
        "nodes": {"num_nodes": 41, "node_attributes": {"x": torch.arange(41)}},
        "ids": {"edge_ids": False},
        "attribute": {"node_attributes": {"x": x + 1}},
        "name": {"node_attributes": {"y": x}},
    }
    refuses(FileExistsError, dp.CSCGraph.build, edges, root, **{**arguments, **other.get(change, {})})


@pytest.mark.parametrize("writes", [2, 6])
@pytest.mark.parametrize("other", ["changed", "fewer", "more"])
def test_other_edges_than_those_of_the_killed_build_are_refused(tmp_path, other, writes, refuses):
    edges = edges_of(40, 100)
    kill(edges, tmp_path / "g", writes)
    if other == "changed":
        edges[0, 5] += 1
    edges = {"changed": edges, "fewer": edges[:, :30], "more": np.concatenate((edges, edges), 1)}[other]
    if other == "more" and writes == 2:  # the edges that were read are the same
        dp.CSCGraph.build(edges, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)
        assert_saved_alike(tmp_path / "g", in_memory(edges, 40), tmp_path)
        return
    with refuses(ValueError):
        dp.CSCGraph.build(edges, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)
    dp.CSCGraph.build(edges, tmp_path / "g", 40, edge_ids=True, max_memory=SMALL)  # nothing was left
    assert_saved_alike(tmp_path / "g", in_memory(edges, 40), tmp_path)


# --- what is refused


@pytest.mark.parametrize("free", [[0], [10_000, 10_000, 10_000, 200]], ids=["at once", "later"])
def test_a_full_disk_is_told_before_it_is_full(tmp_path, monkeypatch, free):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: usage(free.pop(0) if len(free) > 1 else free[0]))
    with refused(OSError, stage="CSCGraph.build", found=f"{free[-1]} are left", allowed="needed", remedy="Free") as got:
        dp.CSCGraph.build(iter([edges_of(40, 400)]), tmp_path / "g", 40, max_memory=SMALL)
    assert got.value.errno == errno.ENOSPC
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", [0, 99])
@pytest.mark.parametrize("row", [0, 1])
def test_an_end_that_is_no_node(tmp_path, row, place, refuses):
    edges = edges_of(40, 100)
    for end in (-1, 40, 2**40):
        edges[row, place] = end
        refuses(IndexError, dp.CSCGraph.build, edges, tmp_path / "g", 40, max_memory=SMALL)
    assert [*tmp_path.iterdir()] == []


def test_what_a_build_refuses(tmp_path, refuses):
    def build_here(edges=None, num_nodes=40, **arguments):
        return dp.CSCGraph.build(edges_of(40, 100) if edges is None else edges, tmp_path / "g", num_nodes, **arguments)

    of_type, chunk = {"a:r:b": np.array([[3], [3]])}, np.zeros((2, 3), int)
    refuses(IndexError, dp.HeteroCSCGraph.build, of_type, tmp_path / "g", {"a": 3, "b": 4})
    refuses(ValueError, dp.HeteroCSCGraph.build, of_type, tmp_path / "g", {"a": 3})
    for edges in (7, np.zeros((2, 3)), [chunk, None]):
        refuses(TypeError, build_here, edges)
    for edges in (np.zeros((3, 4), int), (np.zeros(3, int), np.zeros(4, int)), [chunk, np.zeros((3, 3), int)]):
        refuses(ValueError, build_here, edges)
    for arguments in (
        {"max_memory": "1 furlong"},
        {"max_memory": 0},
        {"index_dtype": "int8"},
        {"index_dtype": torch.float32},
        {"index_dtype": "int32", "num_nodes": 2**31},
        {"num_nodes": -1},
        {"edge_attributes": {"w": torch.rand(99)}},
        {"node_attributes": {"x": torch.rand(41)}},
    ):
        refuses(ValueError, build_here, **arguments)
    for arguments in ({"num_nodes": 2.0}, {"edge_ids": "yes"}, {"node_attributes": {3: torch.rand(40)}}):
        refuses(TypeError, build_here, **arguments)
    refuses(ValueError, build_here, [edges_of(5, 5)], edge_attributes={"w": torch.rand(5)})
    assert [*tmp_path.iterdir()] == []


def _bytes(path, content):
    path.write_bytes(content)
    return path


def test_files_that_hold_no_edges(tmp_path, refuses):
    path = tmp_path / "files"
    path.mkdir()
    build_here = functools.partial(dp.CSCGraph.build, folder=tmp_path / "g", num_nodes=5)
    refuses(FileNotFoundError, build_here, path / "none.npy")
    cut = _npy(path / "cut.npy", np.zeros((2, 9), int))
    os.truncate(cut, cut.stat().st_size - 1)
    mixed = path / "mixed"
    mixed.mkdir()
    for name in ("1.npy", "1.csv"):
        (mixed / name).touch()
    for file in (
        cut,
        _npy(path / "objects.npy", np.array([["a", 1]] * 2, object)),
        _bytes(path / "half.int32", b"1234567"),
        _bytes(path / "unknown.bin", b"1234"),
        mixed,
    ):
        refuses(ValueError, build_here, file)
    with pytest.raises(ValueError, match=r"is no .npy file"):
        build_here(_bytes(path / "e.npy", b"hello"))
    assert [file.name for file in tmp_path.iterdir()] == ["files"]


def test_tables_that_hold_no_edges(tmp_path, refuses):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    path = tmp_path / "files"
    path.mkdir()
    build_here = functools.partial(dp.CSCGraph.build, folder=tmp_path / "g", num_nodes=5)
    for name, content in (("hole", b"0,1\n,1\n"), ("nan", b"0,1\nnan,1\n"), ("one column", b"0\n1\n")):
        refuses(ValueError, build_here, _bytes(path / f"{name}.csv", content))
    refuses(TypeError, build_here, _bytes(path / "text.csv", b"0,1\nx,1\n"))
    for number, parts in enumerate(
        (
            {"a": b"src,dst\n0,1\n", "b": b"3,4\n"},
            {"a": b"0,1\n", "b": b"src,dst\n3,4\n"},
            {"a": b"0,1\n", "b": b"3,4,1\n"},
            {"a": b"src,dst\n0,1\n", "b": b"src,dst,w\n3,4,1\n"},
            {"a": _ends([0], [1]), "b": {"source": [0], "dst": [1]}},
        )
    ):
        refuses(ValueError, build_here, _parts(path / f"parts {number}", **parts))
    other_types = _parts(path / "types", a=_ends([0], [1]), b={"src": ["x"], "dst": [1]})
    for file, pattern in (
        (other_types, "has columns whose values differ in type: .*src.*string"),
        (_bytes(path / "e.parquet", b""), "is no whole table"),
    ):
        with pytest.raises(ValueError, match=pattern):
            build_here(file)
    table = _bytes(path / "e.csv", b"src,dst,name\n0,1,x\n")
    refuses(ValueError, build_here, table, edge_attributes={"w": "weight"})
    refuses(TypeError, build_here, table, edge_attributes={"w": "name"})
    assert [file.name for file in tmp_path.iterdir()] == ["files"]


def test_a_file_that_shrinks_while_it_is_read(tmp_path, monkeypatch, refuses):
    path = _npy(tmp_path / "e.npy", edges_of(40, 100))
    save = build._State.save

    def cut(self, *arguments):
        os.truncate(path, 200)
        return save(self, *arguments)

    monkeypatch.setattr(build._State, "save", cut)
    refuses(ValueError, dp.CSCGraph.build, path, tmp_path / "g", 40, max_memory=SMALL)
    assert [each.name for each in tmp_path.iterdir()] == ["e.npy"]


def test_a_folder_that_holds_something_and_one_that_is_being_written(tmp_path, refuses):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "mine").touch()
    refuses(FileExistsError, dp.CSCGraph.build, edges_of(5, 5), tmp_path / "g", 5)

    def chunks():
        yield edges_of(5, 5)
        refuses(BlockingIOError, dp.CSCGraph.build, edges_of(5, 5), tmp_path / "h", 5)
        yield edges_of(5, 5)

    dp.CSCGraph.build(chunks, tmp_path / "h", 5)


# --- memory


MEASURED = """
import gzip, resource, sys
import numpy as np
import datapipes as dp

folder, form, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
num_nodes = 100_000_003 if form == "nodes" else 1_000_003

def edges(count, size=2**18):
    for begin in range(0, count, size):
        ids = np.arange(begin, min(begin + size, count), dtype=np.int64)
        yield np.stack((ids * 7919 % 1_000_003, (ids * ids * 31 + ids // 7) % num_nodes))

def given(count, name):
    if form != "csv.gz":
        return edges(count)
    path = f"{folder}/{name}.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for chunk in edges(count):
            file.write(b"\\n".join(b"%d,%d" % pair for pair in zip(*chunk.tolist())) + b"\\n")
    return path

dp.CSCGraph.build(given(1000, "few"), folder + "/small", num_nodes, max_memory="16MB")
of = given(100_000 if form == "nodes" else 20_000_000 if form == "chunks" else 8_000_000, "many")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
dp.CSCGraph.build(of, folder + "/large", num_nodes, max_memory=allowed)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.full
@pytest.mark.parametrize("form", ["chunks", "csv.gz", "nodes"])
def test_the_memory_stays_within_what_is_allowed(tmp_path, form):
    allowed = 2**27
    run = [sys.executable, "-c", MEASURED, str(tmp_path), form, str(allowed)]
    found = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    # Edges take 2.5 times as much, and four times while they are sorted; the offsets of "nodes" take six times as much.
    assert int(found.stdout) < 1.1 * allowed
