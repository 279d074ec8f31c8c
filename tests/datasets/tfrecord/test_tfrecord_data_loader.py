"""TFRecordDataLoader: the rows of any files on any ranks are those that were written, and the memory is shared."""

import gzip
import itertools
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import slow_tfrecord as twin
import torch
from amounts import examples
from channels import descriptors_from_now
from hypothesis import given
from hypothesis import strategies as st
from pipelines import BOUND_S
from record_files import columns, edge_info, edges, node_info, nodes, spec, write_file, write_files

from datapipes.base.threads import threads_of_kernels
from datapipes.datasets import LoadedEntityTensors, TFDatasetOptions, TFRecordDataLoader, write_tf_records
from datapipes.datasets.tfrecord.reading import Window
from datapipes.processes.sharing import pack

SIZES = [4, 0, 9, 1, 6]
WORLD_SIZES = [1, 2, 3, 7]  # the last has more ranks than files


def load(info, rank: int = 0, world_size: int = 1, **options) -> LoadedEntityTensors:
    return TFRecordDataLoader(rank, world_size).load_as_torch_tensors(info, TFDatasetOptions(**options))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of nodes and one of edges: plain files and packed ones, one of them without records."""
    made = tmp_path_factory.mktemp("nodes"), tmp_path_factory.mktemp("edges")
    for folder, rows in zip(made, (nodes(20), edges(20)), strict=True):
        write_files(folder, rows, SIZES, packed=[1, 2])
    return made


# --- what was written is loaded


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_ranks_together_have_what_was_written(folders, world_size):
    loaded = [load(node_info(folders[0]), rank, world_size) for rank in range(world_size)]
    written = nodes(20)
    assert torch.equal(torch.cat([each.ids for each in loaded]), torch.tensor(columns(written, ["node_id"])).flatten())
    features = torch.tensor(columns(written, ["one", "wide", "age"]), dtype=torch.float32)
    assert torch.equal(torch.cat([each.features for each in loaded]), features)
    assert torch.equal(torch.cat([each.labels for each in loaded]), torch.tensor(columns(written, ["y"])))

    loaded = [load(edge_info(folders[1]), rank, world_size) for rank in range(world_size)]
    written = edges(20)
    assert torch.equal(torch.cat([each.ids for each in loaded], 1), torch.tensor(columns(written, ["src", "dst"])).T)
    assert torch.equal(torch.cat([each.features for each in loaded]), torch.tensor(columns(written, ["weight"])))
    assert all(each.labels is None for each in loaded)
    assert all(row.is_contiguous() for each in loaded for row in each.ids)


@pytest.mark.parametrize("packed", [[], [0], [0, 1, 2]], ids=["plain", "mixed", "gz"])
def test_what_the_tfrecord_package_writes_is_loaded(tmp_path, packed):
    package = pytest.importorskip("tfrecord", reason="needs the package tfrecord: install the dev extra")
    kinds = {"node_id": "int", "wide": "float", "age": "int", "noise": "byte", "one": "float", "y": "int"}
    written = nodes(11)
    for number, part in enumerate((written[:5], written[5:6], written[6:])):
        name = tmp_path / f"x-{number}-of-3.tfrecord"
        writer = package.TFRecordWriter(str(name))
        for example in part:
            writer.write({key: (value[0] if key == "noise" else value, kinds[key]) for key, value in example.items()})
        writer.close()
        if number in packed:
            (tmp_path / f"{name.name}.gz").write_bytes(gzip.compress(name.read_bytes()))
            name.unlink()
    ids, features = loaded = load(node_info(tmp_path))
    assert (ids is loaded.ids, features is loaded.features) == (True, True)
    assert ids.tolist() == [row[0] for row in columns(written, ["node_id"])]
    assert torch.equal(features, torch.tensor(columns(written, ["one", "wide", "age"]), dtype=torch.float32))
    assert loaded.labels.tolist() == columns(written, ["y"])


def test_without_keys_there_are_no_features_and_no_labels(folders):
    loaded = load(node_info(folders[0], feature_keys=[], feature_dim=0, label_keys=[]))
    assert (loaded.features, loaded.labels) == (None, None)
    assert len(loaded.ids) == 20


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_a_rank_without_records_has_empty_tensors_of_the_same_form(tmp_path, world_size):
    write_files(tmp_path, nodes(0), [0, 0], packed=[1])
    for rank in range(world_size):
        loaded = load(node_info(tmp_path), rank, world_size)
        assert (loaded.ids.shape, loaded.ids.dtype) == ((0,), torch.int64)
        assert (loaded.features.shape, loaded.features.dtype) == ((0, 5), torch.float32)
        assert (loaded.labels.shape, loaded.labels.dtype) == ((0, 1), torch.int64)
        assert load(edge_info(tmp_path, feature_keys=[], feature_dim=0), rank, world_size).ids.shape == (2, 0)


def test_files_whose_name_does_not_match_are_left_out(tmp_path):
    write_files(tmp_path, nodes(6), [3, 3])
    (tmp_path / "other.tfrecord").write_bytes(b"no records")
    (tmp_path / "data-00000-of-00002.tfrecord.part").write_bytes(b"no records")
    (tmp_path / "folder").mkdir()
    assert len(load(node_info(tmp_path)).ids) == 6
    assert len(load(node_info(tmp_path, tfrecord_uri_pattern="data-00001")).ids) == 3


# --- kinds and dtypes

WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", [*WHOLE, "float16", "float32", "float64"])
def test_integers_are_loaded_in_any_dtype(folders, dtype):
    info = node_info(folders[0], feature_keys=["age"], feature_dim=1, feature_dtype=getattr(torch, dtype))
    features = load(info).features
    assert features.dtype == getattr(torch, dtype)
    assert features.tolist() == columns(nodes(20), ["age"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_are_rounded_to_the_dtype(folders, dtype):
    features = load(node_info(folders[0], feature_dtype=dtype)).features
    written = torch.tensor(columns(nodes(20), ["one", "wide", "age"]), dtype=torch.float32)
    assert torch.equal(features, written.to(dtype))


@pytest.mark.parametrize(
    ("keys", "dtype"), [(["y"], torch.int64), (["y", "age"], torch.int64), (["y", "wide"], torch.float32)]
)
def test_labels_are_integers_where_all_their_keys_are(folders, keys, dtype):
    labels = load(node_info(folders[0], feature_keys=["one"], feature_dim=1, label_keys=keys)).labels
    assert torch.equal(labels, torch.tensor(columns(nodes(20), keys), dtype=torch.float32).to(dtype))


def test_edges_may_have_labels(folders):
    loaded = load(edge_info(folders[1], feature_keys=[], feature_dim=0, label_keys=["weight"]))
    assert torch.equal(loaded.labels, torch.tensor(columns(edges(20), ["weight"])))


@pytest.mark.parametrize("packed", [False, True])
def test_a_default_value_stands_for_a_key_that_is_not_there(tmp_path, packed):
    write_file(tmp_path, 0, 1, [{"id": [5], "x": [1.5, 2.5]}, {"id": [6]}, {"x": [3.5, 4.5]}], packed=packed)
    of_id, of_x = spec("int64", default_value=-1), spec("float32", 2, default_value=[7, 8])
    loaded = load(node_info(tmp_path, feature_keys=["x"], feature_spec={"id": of_id, "x": of_x}, feature_dim=2,
                            entity_key="id", label_keys=[]))  # fmt: skip
    assert loaded.ids.tolist() == [5, 6, -1]
    assert loaded.features.tolist() == [[1.5, 2.5], [7, 8], [3.5, 4.5]]


# --- without a spec


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_without_a_spec_the_first_record_of_all_files_says_what_keys_hold(folders, world_size):
    for rank in range(world_size):
        with_spec = load(node_info(folders[0]), rank, world_size)
        without = load(node_info(folders[0], feature_spec=None), rank, world_size)
        for name in ("ids", "features", "labels"):
            expected = getattr(with_spec, name)
            assert torch.equal(getattr(without, name), expected)
            assert getattr(without, name).dtype == expected.dtype


def test_without_a_spec_files_without_records_are_passed_over(tmp_path):
    write_files(tmp_path, nodes(3), [0, 0, 3], packed=[1])
    assert torch.equal(load(node_info(tmp_path, feature_spec=None)).features, load(node_info(tmp_path)).features)


def test_without_a_spec_and_without_records_the_dim_is_that_of_the_info(tmp_path):
    write_files(tmp_path, [], [0])
    loaded = load(node_info(tmp_path, feature_spec=None))
    assert [*map(tuple, (loaded.ids.shape, loaded.features.shape, loaded.labels.shape))] == [(0,), (0, 5), (0, 1)]


def test_without_a_spec_unpacked_lists_and_long_first_records_are_read(tmp_path):
    wide = [float(i) for i in range(10**5)]  # more than the first window holds
    content = twin.record(twin.example({"node_id": [-1], "wide": wide, "y": [2**40, 3]}, packed=False))
    (tmp_path / "a-of-b.tfrecord").write_bytes(content)
    loaded = load(node_info(tmp_path, feature_spec=None, feature_keys=["wide"], feature_dim=10**5))
    assert loaded.ids.tolist() == [-1]
    assert loaded.features[0].tolist() == wide
    assert loaded.labels.tolist() == [[2**40, 3]]


def test_without_a_spec_a_first_record_that_does_not_fit_is_refused(tmp_path, refuses):
    without_spec = {"feature_spec": None, "feature_dim": 1}
    for values, fields in (
        ({}, {"feature_keys": ["q"]}),
        ({}, {"entity_key": "q"}),
        ({}, {"feature_keys": ["noise"]}),
        ({"one": []}, {}),
        ({}, {"entity_key": "wide", "feature_keys": ["one"]}),
        ({}, {}),
    ):
        write_files(tmp_path, [{**nodes(1)[0], **values}], [0, 1])
        refuses(ValueError, load, node_info(tmp_path, **without_spec, **fields))


# --- threads, pieces and order


@given(sizes=st.lists(st.integers(0, 7), min_size=1, max_size=5), buffer=st.sampled_from([150, 163, 400, 2**20]),
       num_threads=st.integers(1, 3), world_size=st.integers(1, 4))  # fmt: skip
@examples(25)
def test_pieces_and_threads_change_nothing(tmp_path_factory, sizes, buffer, num_threads, world_size):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder, nodes(sum(sizes)), sizes, packed=range(0, len(sizes), 2))
    options = {"use_interleave": False, "num_parallel_file_reads": num_threads, "file_buffer_size": buffer}
    loaded = [load(node_info(folder), rank, world_size, **options) for rank in range(world_size)]
    ids, wide = (columns(nodes(sum(sizes)), [key]) for key in ("node_id", "wide"))
    assert torch.cat([each.ids for each in loaded]).tolist() == [row[0] for row in ids]
    found = torch.cat([each.features for each in loaded])[:, 1:4]
    assert torch.equal(found, torch.tensor(wide, dtype=torch.float32).reshape(-1, 3))


@pytest.mark.parametrize("num_threads", [1, 3])
def test_many_pieces_of_large_files(tmp_path, num_threads):
    rows, width = 5000, 60  # four windows of rows in each of three files
    wide = torch.arange(rows * width, dtype=torch.float32).reshape(rows, width)
    write_tf_records(tmp_path / "new", {"node_id": torch.arange(rows) - 7, "wide": wide}, 3)
    info = node_info(tmp_path / "new", feature_keys=["wide"], feature_dim=width, feature_spec=None, label_keys=[])
    with threads_of_kernels(num_threads):
        ids, features = load(info)
    assert torch.equal(ids, torch.arange(rows) - 7)
    assert torch.equal(features, wide)


def test_rows_wider_than_the_small_arrays_are_loaded(tmp_path):
    wide = torch.arange(3 * 10**5, dtype=torch.float32).reshape(3, -1)
    write_tf_records(tmp_path / "new", {"node_id": torch.arange(3), "wide": wide}, compress=True)
    info = node_info(tmp_path / "new", feature_keys=["wide"], feature_dim=10**5, feature_spec=None, label_keys=[])
    assert torch.equal(load(info).features, wide)


def test_as_many_files_are_read_at_once_as_there_are_threads(tmp_path, monkeypatch):
    write_files(tmp_path, nodes(6), [2, 2, 2])
    all_there = threading.Barrier(3)
    real = Window.fill

    def fill(window):
        if threading.current_thread() is not threading.main_thread() and window.at == 0 and not len(window.content):
            all_there.wait(BOUND_S)  # a broken barrier fails the test
        return real(window)

    monkeypatch.setattr(Window, "fill", fill)
    assert len(load(node_info(tmp_path), use_interleave=False, num_parallel_file_reads=3).ids) == 6
    with threads_of_kernels(3):
        assert len(load(node_info(tmp_path)).ids) == 6


def test_progress_is_logged_each_so_many_records(tmp_path, caplog):
    write_files(tmp_path, nodes(20), [7, 7, 6])
    with caplog.at_level(logging.INFO, "datapipes"), threads_of_kernels(1):
        load(node_info(tmp_path), batch_size=2, log_every_n_batch=4)
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(": node: ")[2] for text in told] == [
        "14 of 20 records are read",
        "20 of 20 records are read",
    ]


# --- memory


def test_the_tensors_lie_in_memory_that_torch_and_our_handles_pass_on(folders):
    loaded = load(node_info(folders[0]))
    for tensor in (loaded.ids, loaded.features, loaded.labels):
        assert tensor.is_shared()
        packed = pack(tensor)
        assert len(packed.memories) == 1
        packed.unpack().zero_()
        assert not tensor.any(), "the handle names the same memory"


def test_descriptors_go_with_the_tensors(folders):
    opened = descriptors_from_now()
    loaded = load(node_info(folders[0]))
    assert opened() > 0
    del loaded
    assert opened() == 0


def test_a_result_larger_than_the_memory_is_refused(tmp_path):
    rows, width = 2**17, 2**24  # 8 TiB, most of it a default value
    write_tf_records(tmp_path / "new", {"node_id": torch.arange(rows)})
    of_x = {"x": spec("float32", width, default_value=0)}
    info = node_info(tmp_path / "new", feature_keys=["x"], feature_dim=width, label_keys=[], feature_spec=of_x)
    asked_for = f"node: {4 * rows * width} bytes of shared memory were asked for"
    with pytest.raises(MemoryError, match=rf"load_as_torch_tensors: {asked_for}, \d+ are left by"):
        load(info)


PEAK = """
import resource, sys
from record_files import node_info
from test_tfrecord_data_loader import load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

small, large, width = sys.argv[1:]
infos = [node_info(folder, feature_keys=["wide"], feature_dim=int(width), feature_spec=None, label_keys=[])
         for folder in (small, large)]
load(infos[0], use_interleave=False, num_parallel_file_reads=2)
before = peak()
loaded = load(infos[1], use_interleave=False, num_parallel_file_reads=2)
print(peak() - before, loaded.features.nbytes)
"""


@pytest.mark.full
def test_loading_takes_no_more_memory_than_the_result_and_a_little(tmp_path):
    rows, width = 60_000, 250  # 60 MB
    for name, count in (("small", 10), ("large", rows)):
        write_tf_records(tmp_path / name, {"node_id": torch.arange(count), "wide": torch.ones(count, width)}, 4)
    here = [os.path.dirname(__file__), os.path.dirname(twin.__file__)]
    child = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path / "small", tmp_path / "large", str(width)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(here)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0, child.stderr
    more, result = map(int, child.stdout.split())
    assert result == rows * width * 4
    assert more < 0.15 * result, "beside the shared memory, which holds the result and nothing else"


# --- arguments


def test_bad_arguments_are_refused(refuses):
    refuses(ValueError, TFRecordDataLoader, 2, 2)
    refuses(ValueError, TFRecordDataLoader, 0, 0)
    refuses(TypeError, TFRecordDataLoader, "0", 1)
    refuses(TypeError, TFRecordDataLoader(0, 1).load_as_torch_tensors, "x")
    refuses(TypeError, TFRecordDataLoader(0, 1).load_as_torch_tensors, node_info("x"), None)


def test_a_loader_tells_its_rank():
    loader = TFRecordDataLoader(np.int64(1), 3)
    assert (loader.rank, loader.world_size) == (1, 3)


def test_shares_are_neighbors_and_differ_by_one_file(tmp_path):
    for number in range(7):
        write_file(tmp_path, number, 7, [{"node_id": [number]}])
    info = node_info(tmp_path, feature_keys=[], feature_dim=0, label_keys=[])
    shares = [load(info, rank, 3).ids.tolist() for rank in range(3)]
    assert shares == [[0, 1, 2], [3, 4], [5, 6]]
    assert [*itertools.chain(*shares)] == [*range(7)]
