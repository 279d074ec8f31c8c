"""Saved heterogeneous graphs: one file for all arrays, one mapping, and a reader that trusts neither file."""

import json
import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import examples
from channels import descriptors_from_now
from hetero_graphs import (
    WRITES,
    expect_equal,
    full_library,
    id_dtypes,
    library,
    many_relations,
    tensors_of,
    typed_edges,
)
from hypothesis import given
from hypothesis import strategies as st
from pipelines import ended, refused, small_graph

import datapipes as dp
from datapipes.base import sizes
from datapipes.graph import arena
from datapipes.processes import mappings

MMAP = pytest.mark.parametrize("mmap", [True, False])


@pytest.fixture
def folder(tmp_path) -> Path:
    full_library().save(tmp_path / "graph")
    return tmp_path / "graph"


def header_of(folder: Path) -> dict:
    return json.loads((folder / "graph.json").read_text())


def write_header(folder: Path, header: dict | str) -> None:
    (folder / "graph.json").write_text(header if isinstance(header, str) else json.dumps(header))


# --- what was saved comes back


@MMAP
@pytest.mark.parametrize(
    "build",
    [
        full_library,
        lambda: full_library(torch.int32),
        library,
        lambda: dp.HeteroCSCGraph({}, {}),
        lambda: dp.HeteroCSCGraph({("a", "r", "a"): (torch.tensor([0]), torch.zeros(0).long())}, {"a": 0, "b": 5}),
    ],
    ids=["full", "int32", "bare", "nothing", "no_edges"],
)
def test_a_graph_comes_back_from_disk_as_it_was(tmp_path, build, mmap):
    build().save(tmp_path / "deeper" / "folder")
    expect_equal(dp.HeteroCSCGraph.open(str(tmp_path / "deeper" / "folder"), mmap=mmap), build())


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


def test_all_arrays_of_many_relations_take_one_descriptor_and_one_mapping(tmp_path):
    graph = many_relations(150, 20)
    graph.save(tmp_path / "graph")
    opened = descriptors_from_now()
    again = dp.HeteroCSCGraph.open(tmp_path / "graph")
    assert opened() <= 1
    places = {file_of(tensor) for tensor in tensors_of(again).values()}
    assert places == {str(tmp_path / "graph" / "arrays.npy")}
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert maps.count(str(tmp_path)) == 1
    assert sorted(path.name for path in (tmp_path / "graph").iterdir()) == ["arrays.npy", "graph.json"]
    assert {tensor.data_ptr() % 64 for tensor in tensors_of(again).values() if tensor.numel()} == {0}
    expect_equal(again, graph)


def file_of(tensor: torch.Tensor) -> str:
    return mappings.mapping_of(tensor)[1].file.path


def test_a_mapped_graph_is_not_changed_on_disk_by_writing_to_it(folder):
    dp.HeteroCSCGraph.open(folder).relation(WRITES).indices.zero_()
    expect_equal(dp.HeteroCSCGraph.open(folder), full_library())


def test_a_folder_that_holds_a_graph_is_not_overwritten(folder):
    with refused(FileExistsError, stage=r"HeteroCSCGraph\.save", found="holds a graph already", allowed="not overwr"):
        library().save(folder)
    expect_equal(dp.HeteroCSCGraph.open(folder), full_library())


def test_a_save_that_broke_off_is_no_graph(folder):
    (folder / "graph.json").unlink()
    with refused(FileNotFoundError, stage=r"HeteroCSCGraph\.open", found="does not exist", allowed="written by save"):
        dp.HeteroCSCGraph.open(folder)
    library().save(folder)
    expect_equal(dp.HeteroCSCGraph.open(folder), library())


def test_a_header_that_open_would_refuse_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(arena, "MOST_HEADER_BYTES", 600)
    with refused(ValueError, stage=r"HeteroCSCGraph\.save", found="arrays take", allowed="at most 600"):
        full_library().save(tmp_path / "graph")
    assert not (tmp_path / "graph").exists()


@MMAP
def test_a_graph_of_the_other_class_is_named(tmp_path, folder, mmap):
    small_graph().save(tmp_path / "plain")
    found = r"holds a graph of the class HeteroCSCGraph"
    with refused(
        ValueError, stage=r"^CSCGraph\.open", found=found, allowed="reads its own", remedy=r"HeteroCSCGraph\.op"
    ):
        dp.CSCGraph.open(folder, mmap=mmap)
    found = r"holds a graph of the class CSCGraph"
    with refused(
        ValueError, stage=r"^HeteroCSCGraph\.open", found=found, allowed="reads its own", remedy=r"CSCGraph\.op"
    ):
        dp.HeteroCSCGraph.open(tmp_path / "plain", mmap=mmap)


# --- hostile folders


@MMAP
@pytest.mark.parametrize("name", ["graph.json", "arrays.npy"])
@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(folder, name, kind, mmap):
    path = folder / name
    path.unlink()
    {"fifo": os.mkfifo, "folder": Path.mkdir}[kind](path)
    (error,) = ended(lambda: dp.HeteroCSCGraph.open(folder, mmap=mmap), path)
    found = f"{name} is a {'FIFO' if kind == 'fifo' else 'folder'}"
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found=found, allowed="a regular file is needed"):
        raise error


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [4]},
        {"shape": [6]},
        {"shape": [2**62, 2**62]},
        {"shape": [2**62, 0]},
        {"shape": [-5]},
        {"shape": [3.0]},
        {"shape": "5"},
        {"shape": [1] * 65},
        {"dtype": "float64"},
        {"dtype": "int32"},
        {"dtype": "quint8"},
        {"dtype": "bits8"},
        {"dtype": "Tensor"},
        {"dtype": 3},
        {"kind": "nonsense"},
        {"kind": ["indices"]},
        {"kind": "indptr"},
        {"name": None},
        {"type": -1},
        {"type": 4},
        {"type": 2.0},
        {"type": "author"},
        {"type": 1},
        {"offset": -64},
        {"offset": 8},
        {"offset": 0},
        {"offset": 2**40},
        {"offset": 2**70},
        {"offset": None},
        {"offset": True},
    ],
    ids=str,
)
@MMAP
def test_an_entry_that_does_not_fit_is_refused_in_few_words(folder, changes, mmap):
    header = header_of(folder)
    entry = next(each for each in header["arrays"] if each["kind"] == "indices" and each["shape"] == [5])
    entry.update(changes)
    write_header(folder, header)
    with pytest.raises(ValueError, match=r"HeteroCSCGraph\.open: .*(graph\.json|arrays\.npy|do not fit)") as caught:
        dp.HeteroCSCGraph.open(folder, mmap=mmap)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"node_types": [["author", 3], ["paper", 4]]}, "number of a type|num_nodes for|'venue'"),
        ({"node_types": [["author", 3], ["paper", 5], ["venue", 1]]}, "do not fit|needs 6"),
        ({"node_types": [["author", 3], ["paper", 4], ["venue", 1], ["venue", 1]]}, "node_types has 'venue' twice"),
        ({"node_types": [["author", 3], ["paper", 4], ["", 1]]}, "found the node type ''"),
        ({"node_types": {"author": 3}}, "not a valid header"),
        ({"node_types": 3}, "not a valid header"),
        ({"edge_types": [["author", "writes", "paper"]]}, "not a valid header"),
        ({"edge_types": []}, "number of a type"),
        ({"edge_types": None}, "not a valid header"),
        ({"num_bytes": 10}, "must begin at a multiple of 64 and lie within 10 bytes"),
        ({"num_bytes": 2**40}, "arrays.npy cannot be read"),
        ({"num_bytes": -1}, "num_bytes"),
        ({"arrays": []}, "names no indptr of"),
        ({"arrays": 3}, "not a valid header"),
        ({"arrays": [3]}, "not a valid header"),
        ({"version": 2}, "version 2, allowed .* version 1"),
        ({"format": "another"}, "format 'another'"),
        ({"format": ["datapipes-csc-graph"]}, "format"),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_refused(folder, changes, found):
    write_header(folder, {**header_of(folder), **changes})
    with pytest.raises(ValueError, match=rf"HeteroCSCGraph\.open: .*({found})"):
        dp.HeteroCSCGraph.open(folder)


def test_more_nodes_than_the_dtype_of_the_indices_holds_are_refused(tmp_path):
    folder = tmp_path / "narrow"
    full_library().with_index_dtype(torch.int32).save(folder)
    write_header(folder, {**header_of(folder), "node_types": [["author", 3], ["paper", 4], ["venue", 2**40]]})
    found = r"do not fit graph\.json.*1099511627776 nodes"
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found=found, allowed="int32, which holds 2147483647"):
        dp.HeteroCSCGraph.open(folder)


def test_arrays_that_overlap_or_are_named_twice_are_refused(folder):
    header = header_of(folder)
    first, second = [each for each in header["arrays"] if each["type"] == 2 and each["shape"] == [5]][:2]
    num_bytes = header["num_bytes"] // 64 * 64 + 128
    again = {**first, "offset": num_bytes - 64}  # where no other array is
    write_header(folder, {**header, "num_bytes": num_bytes, "arrays": [*header["arrays"], again]})
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found="the array .* named more than once", allowed="valid"):
        dp.HeteroCSCGraph.open(folder)
    second["offset"] = first["offset"]
    write_header(folder, header)
    with refused(
        ValueError, stage=r"HeteroCSCGraph\.open", found=r"the arrays at bytes (\d+) and \1 overlap", allowed=""
    ):
        dp.HeteroCSCGraph.open(folder)


def test_an_array_that_begins_between_two_lines_is_refused(folder):
    header = header_of(folder)
    empty = next(each for each in header["arrays"] if each["shape"] == [0, 3])  # it overlaps nothing
    empty["offset"] = 8
    write_header(folder, header)
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found=r"at bytes \[8, 8\)", allowed="a multiple of 64"):
        dp.HeteroCSCGraph.open(folder)


def test_the_promised_numbers_of_edges_are_compared(folder):
    header = header_of(folder)
    header["edge_types"][2][3] = 4
    write_header(folder, header)
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found="do not fit graph.json", allowed=""):
        dp.HeteroCSCGraph.open(folder)


@MMAP
@pytest.mark.parametrize("change", [1, 64, -1, -64])
def test_a_file_that_is_longer_or_shorter_than_promised_is_refused(folder, change, mmap):
    path = folder / "arrays.npy"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * change if change > 0 else whole[:change])
    with refused(ValueError, stage=r"HeteroCSCGraph\.open", found=r"arrays\.npy .*bytes of values", allowed="needed"):
        dp.HeteroCSCGraph.open(folder, mmap=mmap)


@MMAP
@pytest.mark.parametrize("kind", ["npz", "other_dtype", "text", "unaligned", "missing"])
def test_a_file_that_holds_something_else_is_refused(folder, kind, mmap):
    path = folder / "arrays.npy"
    whole = np.load(path)
    path.unlink()
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
        expect_equal(dp.HeteroCSCGraph.open(folder, mmap=False), full_library())
        return
    with pytest.raises((ValueError, FileNotFoundError), match=r"HeteroCSCGraph\.open: .*arrays\.npy"):
        dp.HeteroCSCGraph.open(folder, mmap=mmap)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(folder, monkeypatch):
    path, length = folder / "arrays.npy", 2**40  # nearly all of it a hole
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (length,)})
        file.truncate(file.tell() + length)
    write_header(folder, {**header_of(folder), "num_bytes": length})
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (2**30, "the test"))
    found, allowed = "mmap=False needs 1099511627776 bytes", "1073741824 are left by the test"
    with refused(MemoryError, stage=r"HeteroCSCGraph\.open", found=found, allowed=allowed):
        dp.HeteroCSCGraph.open(folder, mmap=False)


extremes = st.sampled_from([0, -1, 64, 2**31, 2**63, 10**25, 1.5, True, None, "", "x", [], {}, [[]], [["a", 1]]])


@examples(150)
@given(data=st.data())
def test_any_change_of_a_header_ends_in_an_error_or_in_a_graph(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "any_hetero_header"
    if not folder.exists():
        full_library().save(folder)
        (folder / "kept.json").write_text((folder / "graph.json").read_text())
    header = json.loads((folder / "kept.json").read_text())
    target = data.draw(st.sampled_from([header, *header["arrays"]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(extremes)
    write_header(folder, header)
    with suppress(ValueError):
        graph = dp.HeteroCSCGraph.open(folder, mmap=data.draw(st.booleans()))
        assert graph.num_edges_of(WRITES) == 5


@pytest.mark.filterwarnings("ignore")  # NumPy warns about some of the headers that it then refuses
@examples(200)
@given(st.data(), st.booleans())
def test_flipped_bytes_end_in_an_error_or_in_another_graph(tmp_path_factory, data, mmap):
    folder = tmp_path_factory.getbasetemp() / "flipped_hetero"
    if not folder.exists():
        full_library().save(folder)
    path = folder / data.draw(st.sampled_from(["graph.json", "arrays.npy"]), label="file")
    whole = path.read_bytes()
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1), label="place")] = data.draw(st.integers(0, 255), label="by")
    path.write_bytes(content)
    try:
        dp.HeteroCSCGraph.open(folder, mmap=mmap).validate()
    except ValueError:
        pass
    finally:
        path.write_bytes(whole)


def test_as_many_node_types_as_a_header_has_room_for_are_read_again(tmp_path):
    num_nodes = {f"n{number}": number % 3 for number in range(70_000)}
    dp.HeteroCSCGraph({}, num_nodes).save(tmp_path / "graph")
    assert dp.HeteroCSCGraph.open(tmp_path / "graph").num_nodes == num_nodes
