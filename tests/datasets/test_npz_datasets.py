"""Reading npz data sets: the three layouts, the real files, broken files, and the checks of RawDataset."""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from amounts import examples
from changed_bytes import CHANGES, changed
from hypothesis import given
from hypothesis import strategies as st
from published import published

import datapipes as dp
from datapipes.datasets import Dataset, npz, raw
from datapipes.datasets.npz import read_npz
from datapipes.datasets.raw import DatasetFormatError, RawDataset, both_directions, component_of, simple_edges


def benchmark_arrays() -> dict[str, np.ndarray]:
    """Four nodes; edges 0-1 (both ways), 1-2 (one way), 3-3 (a loop); features of 3 words."""
    return {
        "adj_data": np.ones(4, dtype=np.uint8),
        "adj_indices": np.array([1, 0, 2, 3], dtype=np.int32),
        "adj_indptr": np.array([0, 1, 3, 3, 4], dtype=np.int32),
        "adj_shape": np.array([4, 4]),
        "attr_data": np.array([1, 3, 2, 5], dtype=np.float32),
        "attr_indices": np.array([0, 2, 1, 1], dtype=np.int32),
        "attr_indptr": np.array([0, 2, 3, 3, 4], dtype=np.int32),
        "attr_shape": np.array([4, 3]),
        "labels": np.array([0, 1, 1, 0]),
        "class_names": np.array(["red", "green"]),
    }


def heterophilous_arrays() -> dict[str, np.ndarray]:
    masks = np.arange(12).reshape(2, 6) % 3
    return {
        "node_features": np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2),
        "node_labels": np.array([0, 1, 2, 0, 1, 2]),
        "edges": np.array([[0, 1], [2, 1], [4, 5]]),
        "train_masks": masks == [[0], [1]],
        "val_masks": masks == [[1], [2]],
        "test_masks": masks == [[2], [0]],
    }


def debian_arrays() -> dict[str, np.ndarray]:
    return {
        "edge_package__depends__package": np.array([[0, 1, 0], [1, 2, 1]], dtype=np.int32),
        "edge_package__conflicts__package": np.array([[0], [2]], dtype=np.int32),
        "package_feat_indptr": np.array([0, 2, 2, 3], dtype=np.int32),
        "package_feat_indices": np.array([1, 0, 1], dtype=np.int16),
        "package_feat_vocab": np.array(["game", "tool"]),
        "package_label": np.array([1, 0, 1], dtype=np.int16),
        "label_names": np.array(["admin", "games"]),
        "package_split": np.array([2, 0, 1], dtype=np.int8),
        "num_nodes_package": np.array(3),
    }


LAYOUTS = {
    "gnn-benchmark": benchmark_arrays,
    "heterophilous-graphs": heterophilous_arrays,
    "Debian packages": debian_arrays,
}


def packed(arrays: dict[str, np.ndarray], compressed: bool = False) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


def read(content: bytes | dict[str, np.ndarray], split: int = 0) -> RawDataset:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.npz"
        path.write_bytes(content if isinstance(content, bytes) else packed(content))
        return read_npz(path, split)


# What the readers return.


def test_the_benchmark_layout_gives_both_directions_and_the_features_of_the_file():
    dataset = read(benchmark_arrays())
    assert dataset.name == "tiny"
    assert dataset.num_nodes == 4
    assert dataset.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert dataset.node_features["feat"].tolist() == [[1, 0, 3], [0, 2, 0], [0, 0, 0], [0, 5, 0]]
    assert dataset.node_features["feat"].dtype == np.float32
    assert dataset.labels.tolist() == [0, 1, 1, 0]
    assert dataset.class_names == ("red", "green")
    assert dataset.split is None


def test_classes_without_names_are_numbers():
    arrays = benchmark_arrays()
    del arrays["class_names"]
    assert read(arrays).class_names == ("0", "1")


@pytest.mark.parametrize("split", [0, 1])
def test_the_heterophilous_layout_gives_the_split_asked_for(split):
    dataset, arrays = read(heterophilous_arrays(), split), heterophilous_arrays()
    assert dataset.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2], [5, 4], [4, 5]]
    assert np.array_equal(dataset.node_features["feat"], arrays["node_features"])
    for ids, masks in zip(dataset.split, ("train_masks", "val_masks", "test_masks"), strict=True):
        assert ids.tolist() == np.flatnonzero(arrays[masks][split]).tolist()


def test_the_debian_layout_gives_packages_words_and_depends_in_both_directions():
    dataset = read(debian_arrays())
    assert dataset.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert dataset.node_features["feat"].tolist() == [[1, 1], [0, 0], [0, 1]]
    assert dataset.node_features["feat"].dtype == np.uint8
    assert dataset.class_names == ("admin", "games")
    assert [ids.tolist() for ids in dataset.split] == [[1], [2], [0]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compressed", [False, True])
def test_byte_order_and_compression_change_nothing(layout, order, compressed):
    arrays = LAYOUTS[layout]()
    other = {key: array.astype(array.dtype.newbyteorder(order)) for key, array in arrays.items()}
    this, that = read(arrays), read(packed(other, compressed))
    assert np.array_equal(this.edge_index, that.edge_index)
    assert np.array_equal(this.node_features["feat"], that.node_features["feat"])
    assert that.node_features["feat"].dtype.isnative
    assert this.class_names == that.class_names


def test_a_layout_without_a_split_takes_any_number():
    assert read(LAYOUTS["gnn-benchmark"](), 7).split is None


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_edges", "feat_shape", "dtype", "num_classes", "split"),
    [
        ("amazon_photo", 7650, 2 * 119_081, (7650, 745), np.float32, 8, None),
        ("coauthor_cs", 18333, 2 * 81_894, (18333, 6805), np.float32, 15, None),
        ("minesweeper", 10000, 2 * 39_402, (10000, 7), np.float32, 2, (5000, 2500, 2500)),
        ("debian_bookworm", 63436, 544_168, (63436, 2235), np.uint8, 58, (38740, 12094, 12602)),
    ],
)
def test_the_published_files_have_the_published_counts(
    name, num_nodes, num_edges, feat_shape, dtype, num_classes, split
):
    dataset = read_npz(published(f"{name}/{name}.npz"), normalize_features=split is None)
    feat = dataset.node_features["feat"]
    assert dataset.num_nodes == num_nodes
    assert dataset.edge_index.shape == (2, num_edges)
    assert feat.shape == feat_shape
    assert feat.dtype == dtype
    assert len(dataset.class_names) == num_classes
    assert (dataset.split and tuple(map(len, dataset.split))) == split
    if split is None:
        norms = feat.sum(axis=1)
        assert np.allclose(norms[norms > 0], 1, atol=1e-5)


# Files that do not fit.

UNFIT = {
    "gnn-benchmark": {
        "adj_indptr": [[0, 3, 1, 3, 4], [0, 1, 2, 2, 3], [1, 1, 3, 3, 4], [0, 1, 4], [0.0, 1, 3, 3, 4]],
        "adj_indices": [[1, 0, 4, 3], [1, 0, -1, 3]],
        "attr_indices": [[0, 3, 1, 1], np.array([0, 2**64 - 1, 1, 1], dtype=np.uint64)],
        "adj_data": [[1.0, 1, 1]],
        "attr_data": [[1.0, 1, 1], [1, np.nan, 2, 5], ["1", "3", "2", "5"], [1, 1e300, 2, 5]],
        "adj_shape": [[4, 5], [4, 4, 4]],
        "attr_shape": [[4, 2**62], [4, 2**31 - 1]],
        "labels": [[0, 1, 1], [0.0, 1, 1, 0], [0, 2, 1, 0], [0, -2, 1, 0]],
        "class_names": [[1, 2]],
    },
    "heterophilous-graphs": {
        "edges": [[[0, 1, 2]], [[0, 6]], [[0, -6]], [[0.0, 1.0]]],
        "val_masks": [[[0, 1], [2, 3]], np.zeros((2, 5), dtype=bool), np.ones((2, 6), dtype=bool)],
        "node_labels": [[0] * 7, [2**40] * 6],
        "node_features": [np.full((6, 2), 1e300), np.zeros(6)],
    },
    "Debian packages": {
        "num_nodes_package": [-1, [3]],
        "edge_package__depends__package": [[[0], [3]]],
        "package_feat_indices": [[1, 0, 2]],
        "package_label": [[1, 2, 0]],
        "package_split": [[0, 1, 3], [0, 1]],
    },
}


def test_arrays_that_do_not_fit_are_refused(refuses):
    for layout, arrays in UNFIT.items():
        for key, instead in arrays.items():
            for values in instead:
                refuses(DatasetFormatError, read, LAYOUTS[layout]() | {key: np.array(values)})
    of_three_nodes = {"attr_shape": np.array([3, 3]), "attr_indptr": np.array([0, 2, 3, 4])}
    refuses(DatasetFormatError, read, benchmark_arrays() | of_three_nodes)
    of_five_nodes = {f"{part}_masks": np.zeros((1, 5), dtype=bool) for part in ("train", "val", "test")}
    refuses(DatasetFormatError, read, heterophilous_arrays() | of_five_nodes)
    for layout, split in (("heterophilous-graphs", 2), ("heterophilous-graphs", -1), ("Debian packages", 1)):
        refuses(IndexError, read, LAYOUTS[layout](), split)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_lacks_an_array_is_of_no_known_layout(layout):
    arrays = LAYOUTS[layout]()
    needed = [key for key in arrays if key not in ("class_names", "edge_package__conflicts__package")]
    for key in needed:
        fewer = {other: array for other, array in arrays.items() if other != key}
        arrays_and_layouts = (
            rf"{re.escape(str(sorted(fewer)))}.*gnn-benchmark with .*heterophilous-graphs with .*Debian"
        )
        with pytest.raises(DatasetFormatError, match=arrays_and_layouts):
            read(fewer)


def test_a_missing_file_is_not_called_corrupt(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz")


# Truncated, damaged and hostile archives.


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_archive_is_refused(layout, compressed):
    whole = packed(LAYOUTS[layout](), compressed)
    for length in (*range(0, len(whole), 97), len(whole) - 1):
        with pytest.raises(DatasetFormatError, match=r"tiny\.npz"):
            read(whole[:length])


@examples(300)
@given(st.sampled_from(sorted(LAYOUTS)), st.booleans(), CHANGES)
def test_an_archive_with_changed_bytes_is_refused_or_still_valid(layout, compressed, changes):
    try:
        dataset = read(changed(packed(LAYOUTS[layout](), compressed), changes))
    except DatasetFormatError:
        return
    assert dataset.num_nodes in (3, 4, 6)


def of_members(members: dict[str, bytes]) -> bytes:
    """Return an archive of these files; its checksums are right."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


@examples(300)
@given(st.sampled_from([(layout, key) for layout, arrays in LAYOUTS.items() for key in arrays()]), CHANGES)
def test_an_array_with_changed_bytes_is_refused_or_still_valid(chosen, changes):
    layout, key = chosen
    members = {}
    for name, array in LAYOUTS[layout]().items():
        member = io.BytesIO()
        np.save(member, array)
        members[f"{name}.npy"] = changed(member.getvalue(), changes if name == key else [])
    try:
        dataset = read(of_members(members))
    except DatasetFormatError:
        return
    assert dataset.num_nodes in (3, 4, 6)


class Harm:
    """Its pickle is a call that writes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"echo harm > '{self.marker}'",)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_of_objects_is_refused_and_nothing_of_it_runs(tmp_path, layout):
    marker = tmp_path / "marker"
    harm = np.empty(3, dtype=object)
    harm[:] = [Harm(marker)] * 3
    for key in LAYOUTS[layout]():
        if key == "edge_package__conflicts__package":
            continue  # never read
        with pytest.raises(DatasetFormatError, match=f"array '{key}' of object"):
            read(LAYOUTS[layout]() | {key: harm})
    assert not marker.exists()


def test_a_bare_pickle_in_place_of_an_archive_or_an_array_is_refused_and_does_not_run(tmp_path):
    marker = tmp_path / "marker"
    content = pickle.dumps(Harm(marker))
    for harm in (content, of_members({f"{name}.npy": content for name in heterophilous_arrays()})):
        with pytest.raises(DatasetFormatError, match="broken"):
            read(harm)
    assert not marker.exists()


def test_what_would_take_too_much_memory_is_refused_without_allocating(monkeypatch, refuses):
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 1048576), }"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)
    refuses(DatasetFormatError, read, of_members({f"{name}.npy": member for name in heterophilous_arrays()}))
    refuses(DatasetFormatError, read, of_members({"labels.npy": b"", "labels": b""}))  # two arrays of one name
    with monkeypatch.context() as patch:
        patch.setattr(raw, "MAX_FEATURE_BYTES", 40)
        refuses(DatasetFormatError, read, benchmark_arrays())
    monkeypatch.setattr(npz, "MAX_FILE_BYTES", 1000)
    refuses(DatasetFormatError, read, packed(benchmark_arrays() | {"adj_data": np.zeros(2000)}, compressed=True))


# The rules that the readers share.


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
    )
)
def test_edges_in_both_directions_equal_the_plain_reference(graph):
    num_nodes, pairs = graph
    sources, destinations = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    simple = sorted({(v, u) for u, v in pairs if u != v})
    both = sorted({*simple, *((u, v) for v, u in simple)})
    assert simple_edges(sources, destinations, num_nodes).T.tolist() == [[u, v] for v, u in simple]
    assert both_directions(sources, destinations, num_nodes).T.tolist() == [[u, v] for v, u in both]


@given(
    st.integers(0, 12).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.tuples(*[st.integers(0, max(n - 1, 0))] * 2), max_size=n))
    )
)
def test_the_largest_component_equals_the_plain_reference(graph):
    num_nodes, pairs = graph
    reference = networkx.Graph(pairs)
    reference.add_nodes_from(range(num_nodes))
    components = [sorted(nodes) for nodes in networkx.connected_components(reference)]
    expected = min(components, key=lambda nodes: (-len(nodes), nodes[0]), default=[])
    edge_index = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    inside = [number for number, (u, _) in enumerate(pairs) if u in expected]
    part = component_of(
        RawDataset(
            name="tiny",
            num_nodes=num_nodes,
            edge_index=edge_index,
            node_features={"feat": np.arange(num_nodes)},
            labels=np.arange(num_nodes),
            class_names=tuple(map(str, range(num_nodes))),
            split=tuple(np.arange(start, num_nodes, 3) for start in range(3)),
            edge_features={"number": np.arange(len(pairs))},
        )
    )
    assert part.num_nodes == len(expected)
    assert part.node_features["feat"].tolist() == part.labels.tolist() == expected
    assert part.edge_features["number"].tolist() == inside
    old_ids = np.array(expected, dtype=np.int64)
    assert old_ids[part.edge_index].tolist() == edge_index[:, inside].tolist()
    for start, ids in enumerate(part.split):
        assert old_ids[ids].tolist() == [node for node in expected if node % 3 == start]


def test_the_component_of_a_long_path_in_any_order_is_the_whole_path():
    order = np.random.default_rng(0).permutation(5000)
    for path in (np.arange(5000), order):
        ends = np.stack([path[:-1], path[1:]])
        assert (raw._components(ends, 5000) == 0).all()


# What `datasets.open` makes of them.


def opened(folder: Path, arrays: dict[str, np.ndarray], **arguments) -> Dataset:
    (folder / "tiny.npz").write_bytes(packed(arrays))
    return dp.datasets.open(folder / "tiny.npz", **arguments)


def rows_of(data: Dataset) -> list[list[float]]:
    return data.features["node", None, "feat"].read(torch.arange(data.graph.num_nodes)).tolist()


def test_features_are_those_of_the_file_unless_normalize_features_says_otherwise(tmp_path):
    data = opened(tmp_path, benchmark_arrays())
    assert rows_of(data) == [[1, 0, 3], [0, 2, 0], [0, 0, 0], [0, 5, 0]]
    assert "normalize_features=False, largest_component=False" in repr(data)
    data = opened(tmp_path, benchmark_arrays(), normalize_features=True)
    assert rows_of(data) == [[0.25, 0, 0.75], [0, 1, 0], [0, 0, 0], [0, 1, 0]]
    assert "normalize_features=True, largest_component=False" in repr(data)


def test_rows_with_negative_numbers_are_divided_by_the_sum_of_absolute_values(tmp_path):
    arrays = benchmark_arrays() | {"attr_data": np.array([-1, 3, 2, -5], dtype=np.float32)}
    data = opened(tmp_path, arrays, normalize_features=True)
    assert rows_of(data) == [[-0.25, 0, 0.75], [0, 1, 0], [0, 0, 0], [0, -1, 0]]


def test_the_largest_component_is_numbered_from_0_in_the_old_order(tmp_path):
    arrays = benchmark_arrays() | {"adj_indices": np.array([3, 1, 2, 3], dtype=np.int32)}  # 0-3, 1-2, 1-1, 3-3
    arrays["adj_indices"][2] = 3  # 1-3 in the place of 1-2
    data = opened(tmp_path, arrays, largest_component=True)  # nodes 0, 1, 3
    assert data.graph.num_nodes == 3
    assert data.graph.indptr.tolist() == [0, 1, 2, 4]
    assert data.graph.indices.tolist() == [2, 2, 0, 1]
    assert rows_of(data) == [[1, 0, 3], [0, 2, 0], [0, 5, 0]]
    seeds, labels = data.train_set.take(torch.arange(len(data.train_set))).values()
    assert dict(zip(seeds.tolist(), labels.tolist(), strict=True)) == {0: 0, 1: 1, 2: 0}
    assert "normalize_features=False, largest_component=True" in repr(data)


@pytest.mark.parametrize("split", [0, 1])
def test_a_split_of_the_file_loses_the_nodes_outside_the_largest_component(tmp_path, split):
    arrays = heterophilous_arrays()  # edges 0-1, 2-1, 4-5: the component is 0, 1, 2
    data = opened(tmp_path, arrays, split=split, largest_component=True)
    assert data.graph.num_nodes == 3
    for items, masks in zip(
        (data.train_set, data.validation_set, data.test_set), ("train_masks", "val_masks", "test_masks"), strict=True
    ):
        seeds, labels = items.take(torch.arange(len(items))).values()
        assert seeds.tolist() == np.flatnonzero(arrays[masks][split][:3]).tolist()
        assert labels.tolist() == arrays["node_labels"][seeds.numpy()].tolist()


def test_what_open_refuses_of_features_and_components(tmp_path, refuses):
    for layout in ("heterophilous-graphs", "Debian packages"):  # whose features are no bags of counted words
        opened(tmp_path, LAYOUTS[layout](), normalize_features=False)
        refuses(ValueError, opened, tmp_path, LAYOUTS[layout](), normalize_features=True)
    refuses(TypeError, opened, tmp_path, benchmark_arrays(), normalize_features="no")
    refuses(TypeError, opened, tmp_path, benchmark_arrays(), largest_component="no")


@pytest.mark.parametrize(("largest_component", "num_nodes"), [(False, 7650), (True, 7487)])
def test_the_largest_component_of_amazon_photo_has_the_published_size(largest_component, num_nodes):
    assert dp.datasets.open(published("amazon_photo"), largest_component=largest_component).graph.num_nodes == num_nodes


def tiny_dataset() -> RawDataset:
    return RawDataset(
        name="tiny",
        num_nodes=3,
        edge_index=np.array([[0, 1], [1, 2]]),
        node_features={"feat": np.zeros((3, 2))},
        labels=np.array([0, -1, 1]),
        class_names=("a", "b"),
        split=(np.array([0]), np.array([1]), np.array([2])),
    )


def test_what_a_raw_dataset_refuses(refuses):
    train, validation, test = np.array([0]), np.array([1]), np.array([2])
    for instead in (
        {"num_nodes": -1},
        {"edge_index": np.array([[0], [1], [2]])},
        {"edge_index": np.array([[0], [3]])},
        {"edge_index": np.array([[0], [-1]])},
        {"node_features": {"feat": np.zeros((2, 2))}},
        {"node_features": {"feat": np.zeros(())}},
        {"labels": np.array([0, 1])},
        {"labels": np.array([0, 1, 2])},
        {"split": (train, validation)},
        {"split": (train, validation, np.array([3]))},
        {"split": (train, validation, train)},
        {"split": (train, np.array([[1]]), test)},
    ):
        refuses(ValueError, replace, tiny_dataset(), **instead)
    for instead in (
        {"edge_index": [[0], [1]]},
        {"edge_index": np.zeros((2, 2))},
        {"node_features": {"feat": [0, 0, 0]}},
        {"labels": np.array([0, 1, 0], dtype=np.int32)},
    ):
        refuses(TypeError, replace, tiny_dataset(), **instead)
