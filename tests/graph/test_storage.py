"""Saved graphs, with types and without: one file for all arrays, one mapping, and a reader that trusts neither file.

Of a folder of unknown origin, what could make `open` wait, or take endless time or memory, is an error.
"""

import copy
import errno
import json
import os
import pickle
import re
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import examples
from channels import descriptors_from_now
from hetero_graphs import (
    COLUMNS,
    expect_equal,
    full_graph,
    full_library,
    id_dtypes,
    library,
    many_relations,
    odd_attributes,
    tensors_of,
    typed_edges,
)
from hypothesis import given
from hypothesis import strategies as st
from pipelines import ended, graph_of, refused, small_graph
from scripts import run_script

import datapipes as dp
from datapipes.base import array_digest, sizes
from datapipes.base.checks import dtype_from_name
from datapipes.graph import arena
from datapipes.processes import mappings, sharing

MMAP = pytest.mark.parametrize("mmap", [True, False])


@pytest.fixture(scope="module", params=[full_graph, full_library], ids=["CSCGraph", "HeteroCSCGraph"])
def graph(request) -> dp.CSCGraph | dp.HeteroCSCGraph:
    """A graph of either class; no test changes it."""
    return request.param()


@pytest.fixture
def folder(tmp_path, graph) -> Path:
    graph.save(tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture
def plain(tmp_path) -> Path:
    """The folder of a graph without types, for what is read alike with types."""
    full_graph().save(tmp_path / "graph")
    return tmp_path / "graph"


@pytest.fixture
def typed(tmp_path) -> Path:
    full_library().save(tmp_path / "graph")
    return tmp_path / "graph"


def header_of(folder: Path) -> dict:
    return json.loads((folder / "graph.json").read_text())


def write_header(folder: Path, header: dict | str) -> None:
    (folder / "graph.json").write_text(header if isinstance(header, str) else json.dumps(header))


# --- what was saved comes back


BUILDS = {
    "full": full_graph,
    "int32": lambda: small_graph(torch.int32),
    "bare": lambda: graph_of(COLUMNS),
    "no_nodes": lambda: graph_of([]),
    "no_edges": lambda: graph_of([[], []], **odd_attributes(2, 0)),
    "full_types": full_library,
    "int32_types": lambda: full_library(torch.int32),
    "bare_types": library,
    "no_types": lambda: dp.HeteroCSCGraph({}, {}),
    "types_without_edges": lambda: dp.HeteroCSCGraph(
        {("a", "r", "a"): (torch.tensor([0]), torch.zeros(0).long())}, {"a": 0, "b": 5}
    ),
}


@MMAP
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_graph_comes_back_from_disk_as_it_was(tmp_path, build, mmap):
    graph, folder = build(), tmp_path / "deeper" / "folder"
    graph.save(folder)
    expect_equal(type(graph).open(str(folder), mmap=mmap).validate(), graph)


@examples(40)
@given(typed_edges(), id_dtypes, st.booleans())
def test_any_graph_comes_back(tmp_path_factory, edges, dtype, mmap):
    names = {key: {"n": torch.arange(len(rows))} for key, rows in edges.edges.items()}
    graph = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype), edges.num_nodes, edge_attributes=names)
    folder = tmp_path_factory.getbasetemp() / "any_hetero_graph"
    with suppress(FileNotFoundError):
        (folder / "graph.json").unlink()
    graph.save(folder)
    expect_equal(dp.HeteroCSCGraph.open(folder, mmap=mmap), graph)


def test_as_many_node_types_as_a_header_has_room_for_are_read_again(tmp_path):
    num_nodes = {f"n{number}": number % 3 for number in range(70_000)}
    dp.HeteroCSCGraph({}, num_nodes).save(tmp_path / "graph")
    assert dp.HeteroCSCGraph.open(tmp_path / "graph").num_nodes == num_nodes


@pytest.mark.parametrize("build", [full_graph, lambda: many_relations(150, 20)], ids=["plain", "many_relations"])
def test_all_arrays_take_one_descriptor_and_one_mapping(tmp_path, build):
    graph = build()
    graph.save(tmp_path / "graph")
    opened = descriptors_from_now()
    again = type(graph).open(tmp_path / "graph")
    assert opened() <= 1
    tensors = [tensor for tensor in tensors_of(again).values() if tensor.numel()]
    assert {file_of(tensor) for tensor in tensors} == {str(tmp_path / "graph" / "arrays.npy")}
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert maps.count(str(tmp_path)) == 1
    assert sorted(path.name for path in (tmp_path / "graph").iterdir()) == ["arrays.npy", "graph.json"]
    assert {tensor.data_ptr() % 64 for tensor in tensors} == {0}
    expect_equal(again, graph)


def file_of(tensor: torch.Tensor) -> str:
    return mappings.mapping_of(tensor)[1].file.path


def test_however_many_arrays_are_mapped_the_maps_of_the_process_are_not_searched(plain, monkeypatch):
    def searched(address):
        raise AssertionError("the memory map was read")

    monkeypatch.setattr(sharing, "_path_at", searched)
    assert file_of(dp.CSCGraph.open(plain).indices) == str(plain / "arrays.npy")


def test_a_file_replaced_while_it_is_mapped_is_not_taken_for_the_mapped_one(plain, monkeypatch):
    class Replacing(np.memmap):
        def __new__(cls, file, *arguments):
            mapped = super().__new__(cls, file, *arguments)
            content = Path(file.name).read_bytes()
            Path(file.name).unlink()
            Path(file.name).write_bytes(content)
            return mapped

    monkeypatch.setattr(np, "memmap", Replacing)
    assert mappings.mapping_of(dp.CSCGraph.open(plain).indices) is None


def test_a_mapped_graph_is_not_changed_on_disk_by_writing_to_it(graph, folder):
    opened = type(graph).open(folder)
    opened.relation(opened.edge_types[-1]).indices.zero_()
    expect_equal(type(graph).open(folder), graph)


def test_a_mapped_graph_pickles(graph, folder):
    pickled = pickle.dumps(type(graph).open(folder))
    expect_equal(pickle.loads(pickled), graph)
    assert len(pickled) < len(pickle.dumps(graph)) + 100  # not all bytes of the file for each array


def test_a_folder_that_holds_a_graph_is_not_overwritten(refuses, graph, folder):
    other = library() if graph.is_heterogeneous else graph_of([[]])
    refuses(FileExistsError, other.save, folder)
    expect_equal(type(graph).open(folder), graph)


def test_a_save_that_broke_off_is_no_graph(refuses, graph, folder):
    (folder / "graph.json").unlink()
    refuses(FileNotFoundError, type(graph).open, folder)
    graph.save(folder)
    expect_equal(type(graph).open(folder), graph)


def test_a_header_that_open_would_refuse_is_not_saved(refuses, graph, tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "MOST_HEADER_BYTES", 600)
    refuses(ValueError, graph.save, tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


@MMAP
def test_a_graph_of_the_other_class_is_named(refuses, graph, folder, mmap):
    other = dp.CSCGraph if graph.is_heterogeneous else dp.HeteroCSCGraph
    refuses(ValueError, other.open, folder, mmap=mmap)


# --- what is no file of ours


@MMAP
@pytest.mark.parametrize("name", ["graph.json", "arrays.npy"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(refuses, graph, folder, name, kind, mmap):
    path = folder / name
    path.unlink()
    {"fifo": os.mkfifo, "device": lambda to: to.symlink_to("/dev/null"), "folder": Path.mkdir}[kind](path)
    (error,) = ended(lambda: type(graph).open(folder, mmap=mmap), path)
    with refuses(ValueError):
        raise error


@MMAP
def test_a_truncated_or_missing_file_is_refused_by_name(graph, folder, mmap):
    path = folder / "arrays.npy"
    whole = path.read_bytes()
    for content in (*(whole[:length] for length in (0, 5, 20, len(whole) // 2, len(whole) - 1)), whole + b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=path.name):
            type(graph).open(folder, mmap=mmap)
    path.unlink()
    with pytest.raises((ValueError, FileNotFoundError), match=path.name):
        type(graph).open(folder, mmap=mmap)
    path.write_bytes(whole)
    expect_equal(type(graph).open(folder, mmap=mmap), graph)


@MMAP
@pytest.mark.parametrize("change", [1, 64, -1, -64])
def test_a_file_that_is_longer_or_shorter_than_promised_is_refused(refuses, graph, folder, change, mmap):
    path = folder / "arrays.npy"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * change if change > 0 else whole[:change])
    refuses(ValueError, type(graph).open, folder, mmap=mmap)


@MMAP
@pytest.mark.parametrize("kind", ["npz", "other_dtype", "text", "unaligned"])
def test_a_file_that_holds_something_else_is_refused(graph, folder, kind, mmap):
    path = folder / "arrays.npy"
    whole = np.load(path)
    if kind == "npz":
        with path.open("wb") as file:
            np.savez(file, whole)
    elif kind == "other_dtype":
        np.save(path, whole.view(np.int8))
    elif kind == "text":
        path.write_bytes(b"not an array at all")
    elif kind == "unaligned":
        text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({len(whole)},)}}\n".encode()
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + whole.tobytes())
    if kind == "unaligned" and not mmap:  # read into memory of our own
        expect_equal(type(graph).open(folder, mmap=False), graph)
        return
    with pytest.raises(ValueError, match=rf"^{type(graph).__name__}\.open: .*arrays\.npy"):
        type(graph).open(folder, mmap=mmap)


@pytest.mark.parametrize("text", [b"-" * 9000, b"(" * 9000, b"{'descr': " * 900, b"9" * 9000])
def test_the_header_of_an_array_is_no_program(plain, text):
    (plain / "arrays.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    with refused(ValueError, stage=r"CSCGraph\.open", found=r"arrays\.npy cannot be read .*: .+\. It", allowed=""):
        dp.CSCGraph.open(plain)


def test_a_lack_of_descriptors_is_not_taken_for_a_corrupt_file(plain, monkeypatch):
    def refuse(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(arena, "open_regular", refuse)
    with pytest.raises(OSError, match=r"CSCGraph\.open: no descriptor is left .*ulimit -n") as caught:
        dp.CSCGraph.open(plain)
    assert caught.value.errno == errno.EMFILE


# --- hostile headers


GARBAGE = {
    "empty": "",
    "no JSON": "nonsense",
    "a list": "[]",
    "an int": "3",
    "null": "null",
    "a text": '"text"',
    "an object": "{}",
    "another format": '{"format": "another"}',
    "no fields": '{"format": "datapipes-csc-graph", "version": 2, "arrays": []}',
    "no UTF-8": b"\xed\xa0\x80",
    "deep": "[" * 2_000_000,
    "a long number": '{"format": "datapipes-csc-graph", "version": ' + "9" * 1_000_000 + "}",
    "a long float": '{"format": "datapipes-csc-graph", "version": ' + "9" * 1_000_000 + ".5}",
    "an infinite number": '{"format": "datapipes-csc-graph", "version": 1e999}',
    "no number": '{"format": "datapipes-csc-graph", "version": NaN}',
    "a long text": '{"format": "' + "9" * 1_000_000 + '", "version": 1}',
    "too long": '"' + "9" * 3_000_000 + '"',
}


@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_header_is_refused_in_few_words(plain, content):
    (plain / "graph.json").write_bytes(content.encode() if isinstance(content, str) else content)
    found = r"json has \d+ bytes; at most" if content == GARBAGE["too long"] else r"json is not a valid header"
    with refused(ValueError, stage=r"^CSCGraph\.open", found=found, allowed="") as caught:
        dp.CSCGraph.open(plain)
    assert len(str(caught.value)) < 2000


WRONG_ENTRIES = {
    "shape": [[4], [6], [2**62, 2**62], [2**62, 0], [10**19], [10**30], [-5], [3.0], [True], "5", [1] * 65, {"3": 3}],
    "dtype": ["float64", "quint8", "bits8", "Tensor", "_dynamo", "x" * 100_000, 3],
    "kind": ["nonsense", "x" * 100_000, ["indices"], {"indices": 1}, "indptr"],
    "name": [None, ["x"] * 100_000],
    "file": ["indices.npy"],
    "type": [-1, 4, 2.0, "author", 1],
    "offset": [-64, 8, 0, 2**40, 2**70, None, True],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in WRONG_ENTRIES.items() for value in values],
    ids=lambda value: str(value)[:40],
)
@MMAP
def test_an_entry_that_does_not_fit_is_refused_in_few_words(graph, folder, field, value, mmap):
    header = header_of(folder)
    entry = next(entry for entry in header["arrays"] if entry["kind"] == "indices" and entry["shape"] == [5])
    entry[field] = value
    write_header(folder, header)
    stage, place = rf"^{type(graph).__name__}\.open", r"graph\.json|arrays\.npy|do not fit"
    with refused(ValueError, stage=stage, found=place, allowed="") as caught:
        type(graph).open(folder, mmap=mmap)
    assert len(str(caught.value)) < 2000


WRONG_HEADERS = {
    dp.CSCGraph: [
        {"node_types": [[None, 2]]},
        {"node_types": []},
        {"node_types": [[None, 3], ["paper", 3]]},
        {"node_types": [["paper", 3]], "edge_types": [["paper", "cites", "paper", 3]]},
        {"edge_types": []},
        {"edge_types": [[None, None, None, 4]]},
        {"edge_types": [[None, 3]]},
        {"edge_types": [[None, "cites", None, 3]]},
        {"arrays": []},
        {"num_bytes": 2**40},
        {"version": 1},
        {"version": True},
    ],
    dp.HeteroCSCGraph: [
        {"node_types": [["author", 3], ["paper", 4]]},
        {"node_types": [["author", 3], ["paper", 5], ["venue", 1]]},
        {"node_types": [["author", 3], ["paper", 4], ["venue", 1], ["venue", 1]]},
        {"node_types": [["author", 3], ["paper", 4], ["", 1]]},
        {"node_types": {"author": 3}},
        {"node_types": 3},
        {"edge_types": [["author", "writes", "paper"]]},
        {"edge_types": []},
        {"edge_types": None},
        {"num_bytes": 10},
        {"num_bytes": 2**40},
        {"num_bytes": -1},
        {"arrays": []},
        {"arrays": 3},
        {"arrays": [3]},
        {"version": 2},
        {"format": "another"},
        {"format": ["datapipes-csc-graph"]},
    ],
}


def test_what_fields_of_a_header_are_refused(refuses, graph, folder):
    header = header_of(folder)
    for changes in WRONG_HEADERS[type(graph)]:
        write_header(folder, {**header, **changes})
        refuses(ValueError, type(graph).open, folder)
    for digest in ("", "0" * 31, "0" * 33, "G" * 32, 5, ["0" * 32]):
        header["arrays"][0]["digest"] = digest
        write_header(folder, header)
        refuses(ValueError, type(graph).open, folder)


def test_what_is_refused_of_arrays_that_do_not_fit_each_other(refuses, typed):
    def refused_now(header: dict) -> None:
        write_header(typed, header)
        refuses(ValueError, dp.HeteroCSCGraph.open, typed)

    whole = header_of(typed)
    header = copy.deepcopy(whole)
    first, second = [entry for entry in header["arrays"] if entry["type"] == 2 and entry["shape"] == [5]][:2]
    num_bytes = header["num_bytes"] // 64 * 64 + 128
    again = {**first, "offset": num_bytes - 64}  # where no other array is
    refused_now({**header, "num_bytes": num_bytes, "arrays": [*header["arrays"], again]})
    second["offset"] = first["offset"]
    refused_now(header)
    header = copy.deepcopy(whole)
    empty = next(entry for entry in header["arrays"] if entry["shape"] == [0, 3])  # it overlaps nothing
    empty["offset"] = 8  # between two lines of 64 bytes
    refused_now(header)
    header = copy.deepcopy(whole)
    header["edge_types"][2][3] = 4  # one edge fewer than there are
    refused_now(header)
    header = copy.deepcopy(whole)
    indices = next(entry for entry in header["arrays"] if entry["kind"] == "indices" and entry["shape"] == [5])
    indices["dtype"] = "int32"  # those of the other relations are int64
    refused_now(header)


def test_more_nodes_than_the_dtype_of_the_indices_holds_are_refused(refuses, tmp_path):
    full_library().with_index_dtype(torch.int32).save(tmp_path)
    write_header(tmp_path, {**header_of(tmp_path), "node_types": [["author", 3], ["paper", 4], ["venue", 2**40]]})
    refuses(ValueError, dp.HeteroCSCGraph.open, tmp_path)


extremes = st.sampled_from(
    [0, -1, 64, 2**31, 2**63, 10**19, 10**25, 1.5, True, None, "", "x", [], {}, [[]], [[None, 2]], [["a", 1]]]
)


@examples(150)
@given(data=st.data())
def test_any_change_of_a_header_ends_in_an_error_or_in_the_graph(tmp_path_factory, graph, data):
    folder = tmp_path_factory.getbasetemp() / f"any_header_of_{type(graph).__name__}"
    if not folder.exists():
        graph.save(folder)
        (folder / "kept.json").write_text((folder / "graph.json").read_text())
    header = json.loads((folder / "kept.json").read_text())
    target = data.draw(st.sampled_from([header, *header["arrays"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(extremes)
    write_header(folder, header)
    with suppress(ValueError):
        opened = type(graph).open(folder, mmap=data.draw(st.booleans()))
        assert (opened.num_nodes, opened.num_edges) == (graph.num_nodes, graph.num_edges)


@pytest.mark.filterwarnings("ignore")  # NumPy warns about some of the headers that it then refuses
@examples(300)
@given(st.data(), st.booleans())
def test_flipped_bytes_end_in_an_error_or_in_another_graph(tmp_path_factory, graph, data, mmap):
    folder = tmp_path_factory.getbasetemp() / f"flipped_{type(graph).__name__}"
    if not folder.exists():
        graph.save(folder)
    path = folder / data.draw(st.sampled_from(["graph.json", "arrays.npy"]), label="file")
    whole = path.read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1), label="place")] = data.draw(st.integers(0, 255), label="by")
    path.write_bytes(content)
    try:
        opened = type(graph).open(folder, mmap=mmap).validate()
        if not opened.is_heterogeneous:
            pipe = dp.ItemSampler(dp.ItemSet(opened.num_nodes), 3)
            assert len(list(pipe.sample_neighbor(opened, [-1, -1], return_edge_ids=True))) == 1
    except ValueError:
        pass
    finally:
        path.write_bytes(whole)


# --- memory


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read_or_counted(refuses, typed, monkeypatch):
    path, length = typed / "arrays.npy", 2**40  # nearly all of it a hole
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (length,)})
        file.truncate(file.tell() + length)
    write_header(typed, {**header_of(typed), "num_bytes": length})
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (2**30, "the test"))
    refuses(MemoryError, dp.HeteroCSCGraph.open, typed, mmap=False)
    edges = torch.tensor([[0], [2**47]])
    refuses(MemoryError, dp.CSCGraph.from_edge_index, edges)
    refuses(MemoryError, dp.HeteroCSCGraph.from_edge_index, {("a", "r", "b"): edges})


LIMITED = """
import resource
from types import SimpleNamespace

import torch

import datapipes as dp

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
edges = lambda last: torch.tensor([[last], [0]])
dp.CSCGraph.from_edge_index(edges(1))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**27 + 2**26, resource.RLIM_INFINITY))
none = {"node_attrs": list, "edge_attrs": list, "node_stores": [], "edge_stores": []}
pyg = lambda last: SimpleNamespace(edge_index=edges(last), num_nodes=last + 1, **none)
typed = lambda last: {("a", "to", "a"): edges(last)}
makes = {
    "one": lambda last: dp.CSCGraph.from_edge_index(edges(last)),
    "pyg": lambda last: dp.CSCGraph.from_pyg(pyg(last)),
    "typed": lambda last: dp.HeteroCSCGraph.from_edge_index(typed(last)),
}
for name, make in makes.items():
    try:
        make(2**25)  # 256 MiB
    except MemoryError as error:
        print(f"{name}: {error}")
makes["one"](2**24)  # fits, and would not if it took 16 bytes a node
"""


def test_what_exceeds_the_limit_of_the_address_space_is_refused_and_what_fits_is_built():
    script = run_script(LIMITED)
    assert script.returncode == 0, script.stderr
    lines = script.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["one", "pyg", "typed"]
    for line in lines:
        assert re.search(r"from_edge_index.*33554433 nodes and 1 edges needs 2684\d+ bytes; \d+ are left by the ", line)
        assert "the limit of the address space (ulimit -v). Renumber the ids" in line


# --- digests of the arrays


TYPED = ("user", "reads", "paper")


def graph_with_all(with_types: bool) -> dp.CSCGraph | dp.HeteroCSCGraph:
    indptr, indices, edge_ids = torch.tensor([0, 2, 3, 5]), torch.tensor([0, 1, 1, 2, 0]), torch.tensor([4, 2, 0, 1, 3])
    of_nodes, of_edges = {"x": torch.rand(3, 2).half()}, {"w": torch.rand(5).bfloat16()}
    if not with_types:
        return dp.CSCGraph(indptr, indices, edge_ids=edge_ids, node_attributes=of_nodes, edge_attributes=of_edges)
    return dp.HeteroCSCGraph(
        {TYPED: (indptr, indices)},
        {"user": 3, "paper": 3},
        node_attributes={"paper": of_nodes},
        edge_attributes={TYPED: of_edges},
        edge_ids={TYPED: edge_ids},
    )


WITH_TYPES = pytest.mark.parametrize("with_types", [False, True])


@MMAP
@WITH_TYPES
def test_the_digests_in_a_folder_are_not_taken_again(tmp_path, with_types, mmap, monkeypatch):
    graph = graph_with_all(with_types)
    expected = graph.digest()
    graph.save(tmp_path / "graph")
    monkeypatch.setattr(array_digest, "array_digest", None)
    assert type(graph).open(tmp_path / "graph", mmap).digest() == expected


@WITH_TYPES
def test_one_changed_byte_of_any_array_is_found_by_validate_and_verify(tmp_path, with_types):
    graph = graph_with_all(with_types)
    graph.save(tmp_path / "graph")
    entries = header_of(tmp_path / "graph")["arrays"]
    assert len(entries) == 5
    kind = type(graph)
    kind.open(tmp_path / "graph", verify=True).validate()
    for entry in entries:
        path = tmp_path / "graph" / "arrays.npy"
        content = path.read_bytes()
        width = dtype_from_name("test", entry["dtype"]).itemsize
        begin = content.index(b"\n") + 1 + entry["offset"]
        at = begin + width  # of the second value, which leaves the graph valid
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        what = rf"{entry['kind'].removesuffix('s').split('_')[0]}.*does not match its digest in graph.json"
        with pytest.raises(ValueError, match=rf"^{kind.__name__}.open: {what}.*Copy the folder again"):
            kind.open(tmp_path / "graph", verify=True)
        with pytest.raises(ValueError, match=rf"^graph: {what}"):
            kind.open(tmp_path / "graph").validate()
        path.write_bytes(content)


@WITH_TYPES
def test_a_folder_without_digests_is_hashed_anew(tmp_path, with_types):
    graph = graph_with_all(with_types)
    graph.save(tmp_path / "graph")
    header = header_of(tmp_path / "graph")
    for entry in header["arrays"]:
        del entry["digest"]
    write_header(tmp_path / "graph", header)
    assert type(graph).open(tmp_path / "graph", verify=True).digest() == graph.digest()


def test_verify_skips_an_array_that_has_been_replaced(tmp_path):
    graph_with_all(False).save(tmp_path / "graph")
    graph = dp.CSCGraph.open(tmp_path / "graph")
    graph.edge_attributes["w"] = torch.rand(5)
    graph.node_attributes["x"].zero_()
    graph.validate()
