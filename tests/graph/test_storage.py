"""A folder of unknown origin: what could make `CSCGraph.open` wait, or take endless time or memory, is an error.

test_hetero_storage.py does the same with a graph with types.
"""

import errno
import json
import os
import re
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import examples
from channels import descriptors_from_now
from hypothesis import given
from hypothesis import strategies as st
from pipelines import ended, refused
from scripts import run_script

import datapipes as dp
from datapipes.base import array_digest, sizes
from datapipes.base.checks import dtype_from_name
from datapipes.graph import arena
from datapipes.processes import mappings, sharing


def circle() -> dp.CSCGraph:
    return dp.CSCGraph.from_edge_index(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3, node_attributes={"x": torch.rand(3)})


@pytest.fixture
def folder(tmp_path) -> Path:
    circle().save(tmp_path / "graph")
    return tmp_path / "graph"


def header_of(folder: Path) -> dict:
    return json.loads((folder / "graph.json").read_text())


def write_header(folder: Path, header: dict | str) -> None:
    (folder / "graph.json").write_text(header if isinstance(header, str) else json.dumps(header))


# --- what is no regular file


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("name", ["graph.json", "arrays.npy"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(folder, name, kind, mmap):
    path = folder / name
    path.unlink()
    {"fifo": os.mkfifo, "device": lambda to: to.symlink_to("/dev/null"), "folder": Path.mkdir}[kind](path)
    found = {"fifo": "is a FIFO", "device": "is a device", "folder": "is a folder"}[kind]
    (error,) = ended(lambda: dp.CSCGraph.open(folder, mmap=mmap), path)
    with refused(ValueError, stage=r"CSCGraph\.open", found=f"{name} {found}", allowed="a regular file is needed"):
        raise error


# --- hostile headers


def test_however_many_arrays_are_mapped_the_maps_of_the_process_are_not_searched(folder, monkeypatch):
    def searched(address):
        raise AssertionError("the memory map was read")

    monkeypatch.setattr(sharing, "_path_at", searched)
    graph = dp.CSCGraph.open(folder)
    assert mappings.mapping_of(graph.indices)[1].file.path == str(folder / "arrays.npy")


def test_all_arrays_that_are_written_today_take_one_descriptor_and_one_mapping(folder):
    opened = descriptors_from_now()
    graph = dp.CSCGraph.open(folder)
    assert opened() <= 1
    arrays = [graph.indptr, graph.indices, graph.edge_ids, graph.node_attributes["x"]]
    assert {mappings.mapping_of(each)[1].file.path for each in arrays} == {str(folder / "arrays.npy")}
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.npy", "graph.json"]
    assert {each.data_ptr() % 64 for each in arrays} == {0}


def test_a_file_replaced_while_it_is_mapped_is_not_taken_for_the_mapped_one(folder, monkeypatch):
    class Replacing(np.memmap):
        def __new__(cls, file, *arguments):
            mapped = super().__new__(cls, file, *arguments)
            content = Path(file.name).read_bytes()
            Path(file.name).unlink()
            Path(file.name).write_bytes(content)
            return mapped

    monkeypatch.setattr(np, "memmap", Replacing)
    assert mappings.mapping_of(dp.CSCGraph.open(folder).indices) is None


BOMBS = {
    "deep": "[" * 2_000_000,
    "a long number": '{"format": "datapipes-csc-graph", "version": ' + "9" * 1_000_000 + "}",
    "a long float": '{"format": "datapipes-csc-graph", "version": ' + "9" * 1_000_000 + ".5}",
    "an infinite number": '{"format": "datapipes-csc-graph", "version": 1e999}',
    "no number": '{"format": "datapipes-csc-graph", "version": NaN}',
    "a long text": '{"format": "' + "9" * 1_000_000 + '", "version": 1}',
    "too long": '"' + "9" * 3_000_000 + '"',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_header_that_asks_for_time_or_memory_is_refused_in_few_words(folder, bomb):
    write_header(folder, BOMBS[bomb])
    with refused(ValueError, stage=r"CSCGraph\.open", found="not a valid header", allowed="") as caught:
        dp.CSCGraph.open(folder)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2**62, 2**62]},
        {"shape": [2**62, 0]},
        {"shape": [10**19]},
        {"shape": [10**30]},
        {"shape": [3.0]},
        {"shape": [True]},
        {"shape": "3"},
        {"shape": [1] * 65},
        {"shape": {"3": 3}},
        {"dtype": "_dynamo"},
        {"dtype": "x" * 100_000},
        {"kind": "x" * 100_000},
        {"kind": {"indices": 1}},
        {"name": ["x"] * 100_000},
    ],
    ids=lambda changes: str(changes)[:40],
)
@pytest.mark.parametrize("mmap", [True, False])
def test_any_entry_of_a_header_is_refused_in_few_words(folder, changes, mmap):
    header = header_of(folder)
    header["arrays"][1].update(changes)
    write_header(folder, header)
    with refused(
        ValueError, stage=r"CSCGraph\.open", found="valid header|cannot be read|not fit", allowed=""
    ) as caught:
        dp.CSCGraph.open(folder, mmap=mmap)
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"node_types": [[None, 2]]}, "do not fit graph.json"),
        ({"node_types": []}, "the types are .*, for a CSCGraph"),
        ({"node_types": [[None, 3], ["paper", 3]]}, "the types are .*, for a CSCGraph"),
        ({"node_types": [["paper", 3]]}, "the types are .*, for a CSCGraph"),
        ({"node_types": [["paper", 3]], "edge_types": [["paper", "cites", "paper", 3]]}, "for a CSCGraph"),
        ({"edge_types": []}, "the types are .*, for a CSCGraph"),
        ({"edge_types": [[None, None, None, 4]]}, "do not fit graph.json"),
        ({"edge_types": [[None, 3]]}, "must have 4 entries"),
        ({"edge_types": [[None, "cites", None, 3]]}, "found the edge type"),
        ({"edge_types": [["paper", "cites", "paper", 3]]}, "the types are .*, for a CSCGraph"),
        ({"arrays": []}, "names no indptr"),
        ({"num_bytes": 2**40}, "arrays.npy cannot be read"),
        ({"version": 1}, "version 1, allowed .* version 2"),
        ({"version": 3}, "version 3, allowed .* version 2"),
        ({"version": True}, "version True, allowed .* version 2"),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_refused(folder, changes, found):
    write_header(folder, {**header_of(folder), **changes})
    with pytest.raises(ValueError, match=rf"^CSCGraph\.open: .*({found})"):
        dp.CSCGraph.open(folder)


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{"file": "indices.npy"}, {"type": 1}, {"offset": 0}, {"offset": 8}, {"shape": [4]}, {"dtype": "float64"}],
)
def test_an_entry_that_does_not_fit_is_refused(folder, changes, mmap):
    header = header_of(folder)
    header["arrays"][1].update(changes)
    write_header(folder, header)
    with pytest.raises(ValueError, match=r"^CSCGraph\.open: .*(graph\.json|do not fit)"):
        dp.CSCGraph.open(folder, mmap=mmap)


extremes = st.sampled_from(
    [0, -1, 64, 2**31, 2**63, 10**19, 10**25, 1.5, True, None, "", "x", [], {}, [[]], [[None, 2]], "indices.npy"]
)


@examples(100)
@given(data=st.data())
def test_any_change_of_a_header_ends_in_an_error_or_in_the_graph(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "any_header"
    if not folder.exists():
        dp.CSCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]), 2).save(folder)
        (folder / "kept.json").write_text((folder / "graph.json").read_text())
    header = json.loads((folder / "kept.json").read_text())
    target = data.draw(st.sampled_from([header, *header["arrays"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(extremes)
    write_header(folder, header)
    with suppress(ValueError):
        assert dp.CSCGraph.open(folder, mmap=data.draw(st.booleans())).num_nodes == 2


def test_a_header_that_open_would_refuse_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "MOST_HEADER_BYTES", 600)
    graph = dp.CSCGraph(torch.tensor([0]), torch.zeros(0).long(), node_attributes={"x" * 500: torch.zeros(0)})
    with refused(ValueError, stage=r"CSCGraph\.save", found="3 arrays take", allowed="at most 600"):
        graph.save(tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


# --- hostile arrays


@pytest.mark.parametrize("text", [b"-" * 9000, b"(" * 9000, b"{'descr': " * 900, b"9" * 9000])
def test_the_header_of_an_array_is_no_program(folder, text):
    (folder / "arrays.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    with refused(ValueError, stage=r"CSCGraph\.open", found=r"arrays\.npy cannot be read .*: .+\. It", allowed=""):
        dp.CSCGraph.open(folder)


def test_a_lack_of_descriptors_is_not_taken_for_a_corrupt_file(folder, monkeypatch):
    def refuse(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    monkeypatch.setattr(arena, "open_regular", refuse)
    with pytest.raises(OSError, match=r"CSCGraph\.open: no descriptor is left .*ulimit -n") as caught:
        dp.CSCGraph.open(folder)
    assert caught.value.errno == errno.EMFILE


def test_more_nodes_than_memory_holds_are_refused_before_they_are_counted(monkeypatch):
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (2**30, "the test"))
    found, allowed = "140737488355329 nodes and 1 edges needs 112589990684", "1073741824 are left by the test"
    with refused(MemoryError, stage="from_edge_index", found=found, allowed=allowed, remedy="Renumber the ids"):
        dp.CSCGraph.from_edge_index(torch.tensor([[0], [2**47]]))


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


SAVES = pytest.mark.parametrize(
    ("with_types", "save"),
    [(False, dp.CSCGraph.save), (True, dp.HeteroCSCGraph.save)],
    ids=["without_types", "with_types"],
)


@pytest.mark.parametrize("mmap", [True, False])
@SAVES
def test_the_digests_in_a_folder_are_not_taken_again(tmp_path, with_types, save, mmap, monkeypatch):
    graph = graph_with_all(with_types)
    expected = graph.digest()
    save(graph, tmp_path / "graph")
    monkeypatch.setattr(array_digest, "array_digest", None)
    assert type(graph).open(tmp_path / "graph", mmap).digest() == expected


@SAVES
def test_one_changed_byte_of_any_array_is_found_by_validate_and_verify(tmp_path, with_types, save):
    graph = graph_with_all(with_types)
    save(graph, tmp_path / "graph")
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


@SAVES
def test_a_folder_without_digests_opens_with_a_note_and_is_hashed_anew(tmp_path, with_types, save, caplog):
    graph = graph_with_all(with_types)
    save(graph, tmp_path / "graph")
    header = header_of(tmp_path / "graph")
    for entry in header["arrays"]:
        del entry["digest"]
    write_header(tmp_path / "graph", header)
    with caplog.at_level("INFO", logger="datapipes"):
        opened = type(graph).open(tmp_path / "graph", verify=True)
    assert "was saved without digests of its arrays" in caplog.text
    assert opened.digest() == graph.digest()


@pytest.mark.parametrize("digest", ["", "0" * 31, "0" * 33, "G" * 32, 5, ["0" * 32]])
def test_a_digest_that_is_none_is_refused(folder, digest):
    header = header_of(folder)
    header["arrays"][0]["digest"] = digest
    write_header(folder, header)
    with refused(ValueError, stage=r"CSCGraph\.open", found="digest", allowed="32 hexadecimal digits"):
        dp.CSCGraph.open(folder)


def test_verify_skips_an_array_that_has_been_replaced(tmp_path):
    graph_with_all(False).save(tmp_path / "graph")
    graph = dp.CSCGraph.open(tmp_path / "graph")
    graph.edge_attributes["w"] = torch.rand(5)
    graph.node_attributes["x"].zero_()
    graph.validate()
