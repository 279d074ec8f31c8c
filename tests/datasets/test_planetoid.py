"""Reading Planetoid files: real, made-up, broken and hostile ones."""

from __future__ import annotations

import copyreg
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from amounts import examples
from changed_bytes import CHANGES, changed
from hypothesis import given
from hypothesis import strategies as st
from planetoid_files import (
    NEIGHBOURS,
    NUM_WORDS,
    PICKLED,
    TEST_IDS,
    py2,
    py2_array,
    py2_csr,
    py2_graph,
    py2_int,
    read_with,
    tiny_arrays,
    tiny_files,
    write,
)
from published import published

import datapipes as dp
from datapipes.datasets.planetoid import read_planetoid
from datapipes.datasets.raw import DatasetFormatError

# What the reader returns.


def test_rows_of_tx_go_to_the_nodes_of_test_index_in_file_order(tmp_path):
    dataset, arrays = read_planetoid(write(tmp_path)), tiny_arrays()
    feat = dataset.node_features["feat"]
    assert dataset.name == "tiny"
    assert feat.dtype == np.float32
    for row, node in enumerate(TEST_IDS):
        np.testing.assert_allclose(feat[node], arrays["tx"][row] / arrays["tx"][row].sum(), rtol=1e-6)
        assert dataset.labels[node] == arrays["ty"][row].argmax()
    np.testing.assert_allclose(feat[:6], arrays["allx"] / arrays["allx"].sum(1, keepdims=True), rtol=1e-6)
    assert dataset.labels[:6].tolist() == arrays["ally"].argmax(1).tolist()


def test_a_gap_node_has_no_features_no_label_and_no_edges(tmp_path):
    dataset = read_planetoid(write(tmp_path))
    assert not dataset.node_features["feat"][7].any()
    assert dataset.labels[7] == -1
    assert 7 not in dataset.edge_index


def test_edges_go_both_ways_once_without_self_loops_sorted_by_destination(tmp_path):
    edges = read_planetoid(write(tmp_path)).edge_index
    pairs = {(u, v) for u, near in NEIGHBOURS.items() for v in near if u != v}
    both = pairs | {(v, u) for u, v in pairs}
    assert edges.T.tolist() == [[u, v] for v, u in sorted((v, u) for u, v in both)]


def test_the_split_is_the_rows_of_y_then_validation_then_the_sorted_test_ids(tmp_path):
    split = read_planetoid(write(tmp_path)).split
    assert [ids.tolist() for ids in split] == [[0, 1, 2], [3, 4, 5], [6, 8, 9]]


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_files_pickled_again_by_python_3_read_the_same(tmp_path, protocol):
    sparse = pytest.importorskip("scipy.sparse", reason="scipy makes the matrices of this test")
    files = {
        suffix: pickle.dumps(sparse.csr_matrix(array) if "x" in suffix else array, protocol)
        for suffix, array in tiny_arrays().items()
    }
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new = read_planetoid(write(tmp_path / "new", graph=pickle.dumps(NEIGHBOURS, protocol), **files))
    old = read_planetoid(write(tmp_path / "old"))
    assert np.array_equal(new.edge_index, old.edge_index)
    assert np.array_equal(new.node_features["feat"], old.node_features["feat"])
    assert np.array_equal(new.labels, old.labels)


def test_open_reads_the_words_as_in_the_files_unless_they_are_to_be_normalised(tmp_path):
    arrays = tiny_arrays()
    expected = np.zeros((10, NUM_WORDS), dtype=np.float32)
    expected[:6], expected[TEST_IDS] = arrays["allx"], arrays["tx"]
    folder = write(tmp_path)
    for normalize, sums in ((False, 1), (True, np.maximum(expected.sum(1, keepdims=True), 1))):
        data = dp.datasets.open(folder, normalize_features=normalize)
        feat = data.features["node", None, "feat"].read(torch.arange(10))
        np.testing.assert_allclose(feat, expected / sums, rtol=1e-6)
        assert f"normalize_features={normalize}" in repr(data)


def test_a_planetoid_split_loses_the_nodes_outside_the_largest_component(tmp_path):
    data = dp.datasets.open(write(tmp_path), largest_component=True)  # nodes 0, 1, 2, 9
    labels = np.r_[tiny_arrays()["ally"][:3].argmax(1), tiny_arrays()["ty"][TEST_IDS.index(9)].argmax()]
    assert data.graph.num_nodes == 4
    found = [
        items.take(torch.arange(len(items))).values() for items in (data.train_set, data.validation_set, data.test_set)
    ]
    assert [seeds.tolist() for seeds, _ in found] == [[0, 1, 2], [], [3]]
    assert torch.cat([labels for _, labels in found]).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "feat_shape", "nonzeros", "split", "gaps"),
    [
        ("cora", 2708, 5278, (2708, 1433), 49216, (140, 500, 1000), 0),
        ("citeseer", 3327, 4552, (3327, 3703), 105165, (120, 500, 1000), 15),
    ],
)
def test_the_published_files_have_the_published_counts(name, num_nodes, num_edges, feat_shape, nonzeros, split, gaps):
    dataset = read_planetoid(published(name))
    feat = dataset.node_features["feat"]
    assert dataset.num_nodes == num_nodes
    assert dataset.edge_index.shape == (2, 2 * num_edges)
    assert feat.shape == feat_shape
    assert np.count_nonzero(feat) == nonzeros
    sums = feat.sum(axis=1)
    assert np.allclose(sums[sums > 0], 1, atol=1e-5)
    assert tuple(map(len, dataset.split)) == split
    assert np.count_nonzero(dataset.labels < 0) == gaps
    assert not (dataset.labels[np.concatenate(dataset.split)] < 0).any()


# Files that do not fit.


X, Y, TX, TY, ALLX, ALLY = (tiny_arrays()[suffix] for suffix in ("x", "y", "tx", "ty", "allx", "ally"))
UNFIT_IDS = [b"8\n8\n9\n", b"8\n6\n99\n", b"8\n5\n9\n", b"8\n6\n"]
UNFIT = {
    "y": [py2_array(ALLY[3:].copy())],
    "ty": [
        py2_array(TY * 2),
        py2_array(np.ones((3, 3), np.int32)),
        py2_array(TY[:, :2].copy()),
        py2_array(np.zeros((3, 0), np.int32)),
        py2_array(np.zeros((0, 3)), shape=(2**31 - 1, 0)),
        py2_array(TY, shape=(2**30, 2**30)),
        py2_array(np.zeros((3, 3), np.int64), dtype=b"O8"),
        py2_array(np.zeros((3, 3), np.int64), dtype=b"V8"),
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",  # never filled
    ],
    "x": [py2_csr(ALLX[3:])],
    "tx": [
        py2_csr(TX[:, :3]),
        py2_csr(TX, _shape=py2_int(3) + py2_int(2) + b"\x86"),
        py2_csr(TX, indptr=py2_array(np.array([0, 4, 2, 9]))),
        py2_csr(TX, indptr=py2_array(np.array([0]))),
        py2_csr(TX, data=b"N"),
        py2_csr(-TX),
        py2_csr(np.where(TX > 0, np.inf, 0)),
        py2_array(TX),
        b"cscipy.sparse.csr\ncsr_matrix\n)\x81",  # never filled
    ],
    "graph": [
        b"]",
        py2_graph(NEIGHBOURS | {99: []}),
        py2_graph({0: []}),
        py2_graph(NEIGHBOURS | {4: [10]}),
        py2_graph({}) + b"(K\x00](U\x01aeu",  # a neighbour that is text
        b"}(K\x00]q\x01K\x01h\x01u",  # one list for two nodes
        b"}(K\x00]K\x00]u",  # a node twice
    ],
}


def test_files_that_do_not_fit_are_refused_by_name(tmp_path, refuses):
    for content in UNFIT_IDS:
        refuses(DatasetFormatError, read_with, "index", content)
    for suffix, contents in UNFIT.items():
        for content in contents:
            refuses(DatasetFormatError, read_with, suffix, py2(content))
    for text in (b"six", b"9" * 30):
        with pytest.raises(DatasetFormatError, match=r"ind\.tiny\.test\.index: found text that is no node id"):
            read_with("index", b"8\n%s\n9\n" % text)
    for suffix in (*PICKLED, "test.index"):
        (write(tmp_path) / f"ind.tiny.{suffix}").unlink()
        refuses(FileNotFoundError, read_planetoid, tmp_path)
    (write(tmp_path) / "ind.other.graph").write_bytes(b"")
    refuses(DatasetFormatError, read_planetoid, tmp_path)


# Truncated and damaged files.


@pytest.mark.parametrize("suffix", [*PICKLED, "test.index"])
def test_a_truncated_file_is_refused_or_still_valid(suffix):
    whole = tiny_files()[suffix]
    for length in sorted({*range(0, len(whole), 97), *range(min(len(whole), 60)), len(whole) - 1}):
        try:
            dataset = read_with(suffix, whole[:length])
        except DatasetFormatError:
            pass
        else:
            assert suffix == "test.index", f"{length} of {len(whole)} bytes of a pickle were taken"
            assert dataset.num_nodes == len(NEIGHBOURS)


@examples(300)
@given(st.sampled_from([*PICKLED, "test.index"]), CHANGES)
def test_a_file_with_changed_bytes_is_refused_or_still_valid(suffix, changes):
    try:
        dataset = read_with(suffix, changed(tiny_files()[suffix], changes))
    except DatasetFormatError:
        return
    assert dataset.num_nodes <= len(NEIGHBOURS)


@examples(200)
@given(st.sampled_from(PICKLED), st.binary(max_size=60))
def test_any_bytes_in_place_of_a_pickle_are_refused(suffix, content):
    with pytest.raises(DatasetFormatError):
        read_with(suffix, content)


# Hostile files. Each would write a file, or call `harm`, if it ran.

harmed: list[object] = []


def harm(*arguments: object) -> object:
    harmed.append(arguments)
    return {}


class Reduced:
    """Its pickle is a call of any function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


def harmful(marker: Path) -> list[object]:
    """Objects whose pickles write `marker` when pickle.loads reads them."""
    shell, code = f"echo harm > '{marker}'", f"open({str(marker)!r}, 'w').close()"
    array = np.empty(1, dtype=object)
    array[0] = Reduced(os.system, shell)
    return [
        Reduced(os.system, shell),
        Reduced(eval, code),
        Reduced(exec, code),
        Reduced(harm, "reduce"),
        {0: [Reduced(os.system, shell)], 1: []},
        [((Reduced(eval, code),),)],
        Reduced(map, eval, [code]),
        Reduced(getattr, Reduced(__import__, "os"), "system"),
        Reduced(dict, {0: Reduced(eval, code)}),
        Reduced(np.load, str(marker), "r", True),
        array,
    ]


@pytest.mark.parametrize("suffix", PICKLED)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_that_calls_is_refused_and_nothing_runs(tmp_path, protocol, suffix):
    marker = tmp_path / "marker"
    harmed.clear()
    for thing in harmful(marker):
        with pytest.raises(DatasetFormatError, match=f"ind.tiny.{suffix}"):
            read_with(suffix, pickle.dumps(thing, protocol))
    assert not marker.exists()
    assert harmed == []


def test_the_harm_of_these_tests_is_real(tmp_path):
    marker = tmp_path / "marker"
    for thing in harmful(marker)[:3]:
        pickle.loads(pickle.dumps(thing))
        assert marker.exists()
        marker.unlink()


def test_globals_and_instructions_that_are_not_needed_are_refused_before_anything_is_loaded(refuses):
    for module, name in (
        (b"os", b"system"),
        (b"__builtin__", b"eval"),
        (b"numpy", b"load"),
        (b"numpy.core.multiarray", b"scalar"),
        (b"functools", b"partial"),
        (b"copyreg", b"_reconstructor"),
        (b"collections", b"OrderedDict"),
    ):
        refuses(DatasetFormatError, read_with, "graph", py2(b"c" + module + b"\n" + name + b"\n)R"))
    for name in (b"list.__class__", b"list.__init__.__globals__"):
        dotted = b"\x80\x04\x8c\x08builtins\x8c" + bytes([len(name)]) + name + b"\x93)R."
        refuses(DatasetFormatError, read_with, "graph", dotted)
    for content in (
        b"(S'echo harm'\nios\nsystem\n.",
        b"(c__builtin__\nlist\nS'echo harm'\no.",
        b"\x80\x02\x82\x01)R.",
        b"Phere\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02]2.",
        b"\x80\x05\x97.",
        b"\x80\x04cnumpy\ndtype\n)}\x92.",
    ):
        refuses(DatasetFormatError, read_with, "graph", content)


def test_the_registry_of_pickle_extensions_is_not_consulted():
    copyreg.add_extension(__name__, "harm", 0x7FFF0001)
    try:
        harmed.clear()
        content = b"\x80\x02\x84" + struct.pack("<i", 0x7FFF0001) + b")R."
        assert pickle.loads(content) == {}  # pickle.loads calls it, and keeps it in pickle's cache
        harmed.clear()
        with pytest.raises(DatasetFormatError, match="EXT4"):
            read_with("graph", content)
        assert harmed == []
    finally:
        copyreg.remove_extension(__name__, "harm", 0x7FFF0001)


KNOWN = [
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\n_reconstruct\n",
    b"cscipy.sparse.csr\ncsr_matrix\n",
    b"ccollections\ndefaultdict\n",
    b"c__builtin__\nlist\n",
    b"c_codecs\nencode\n",
]
STATES = [b"}U\x08harmless", b"N}U\x08__call__", b"N}U\x0c__defaults__", b"N}U\x05_name"]
CALLS = [b")R", b"K\x01\x85R", b"U\x04rot13U\x05rot13\x86R", b")\x81", b"K\x01\x85\x81", b")Rb"]


@pytest.mark.parametrize("known", KNOWN)
def test_what_stands_for_a_global_cannot_be_changed_nor_called_in_another_way(tmp_path, known):
    for state in STATES:
        end = b"K\x01s" if state.startswith(b"}") else b"K\x01s\x86"
        with pytest.raises(DatasetFormatError):
            read_with("graph", py2(known + state + end + b"b"))
    read_planetoid(write(tmp_path))
    for call in CALLS:
        for suffix in PICKLED:
            if known.startswith(b"ccollections") and call == b")R" and suffix == "graph":
                continue  # an empty graph: refused for its size
            with pytest.raises(DatasetFormatError):
                read_with(suffix, py2(known + call))
