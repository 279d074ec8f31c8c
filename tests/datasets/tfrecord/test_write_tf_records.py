"""write_tf_records: the bytes are those of the plain Python writer, and a folder is whole or not there."""

import gzip
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest
import slow_tfrecord as twin
import torch
from amounts import examples
from channels import BOUND_S, Child
from hypothesis import given
from hypothesis import strategies as st

from datapipes.datasets import write_tf_records
from datapipes.datasets.tfrecord import writing
from datapipes.datasets.tfrecord.writing import records_of

DTYPES = {np.float32: st.floats(width=32), np.int64: st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)}


@st.composite
def tables(draw):
    """Up to three columns of a few rows: keys of any length, any values, also NaN."""
    rows = draw(st.integers(1, 5))
    keys = draw(st.lists(st.text(max_size=3) | st.just("k" * 130), min_size=1, max_size=3, unique=True))
    columns = []
    for key in keys:
        dtype, width = draw(st.sampled_from([*DTYPES])), draw(st.sampled_from([1, 2, 40]))
        values = draw(st.lists(DTYPES[dtype], min_size=rows * width, max_size=rows * width))
        columns.append((key, np.array(values, dtype).reshape(rows, width)))
    return columns


@examples(40)
@given(tables())
def test_records_are_those_of_the_plain_writer(columns):
    slow = twin.records([{key: values[row] for key, values in columns} for row in range(len(columns[0][1]))])
    assert bytes(records_of([(key.encode(), values) for key, values in columns])) == slow


def contents(folder: Path) -> list[bytes]:
    files = sorted(folder.iterdir())
    return [gzip.decompress(each.read_bytes()) if each.suffix == ".gz" else each.read_bytes() for each in files]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("num_files", [1, 3, 8])
def test_rows_go_into_the_files_in_order(tmp_path, num_files, compress):
    ids, wide = torch.arange(7) * 1000 - 5, torch.arange(14.0).reshape(7, 2) / 3
    write_tf_records(tmp_path / "new", {"id": ids, "wide": wide}, num_files, compress)
    suffix = ".gz" if compress else ""
    names = [f"data-{number:05}-of-{num_files:05}.tfrecord{suffix}" for number in range(num_files)]
    assert sorted(os.listdir(tmp_path / "new")) == names
    written = contents(tmp_path / "new")
    rows = [{"id": [int(ids[row])], "wide": wide[row].tolist()} for row in range(7)]
    assert b"".join(written) == twin.records(rows)
    counts = [twin.scan_records(each, True)[0] for each in written]
    assert sum(counts) == 7
    assert max(counts) - min(counts) <= 1


def test_packed_files_of_equal_rows_are_equal(tmp_path):
    for name in ("a", "b"):
        write_tf_records(tmp_path / name, {"x": torch.arange(100)}, compress=True)
    files = [next(iter((tmp_path / name).iterdir())).read_bytes() for name in ("a", "b")]
    assert files[0] == files[1]


INTS = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("dtype", [*INTS, "float16", "bfloat16", "float64"])
def test_other_dtypes_are_written_as_int64_or_float32(tmp_path, dtype):
    values = torch.tensor([0, 1, 100]).to(getattr(torch, dtype))
    write_tf_records(tmp_path / "new", {"x": values})
    kind = float if values.is_floating_point() else int
    assert contents(tmp_path / "new") == [twin.records([{"x": [kind(value)]} for value in (0, 1, 100)])]


def test_more_rows_than_are_encoded_at_once(tmp_path):
    rows, width = 2500, 1000  # of four bytes
    values = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    write_tf_records(tmp_path / "new", {"x": values})
    (content,) = contents(tmp_path / "new")
    assert content == bytes(records_of([(b"x", values)]))


def test_columns_without_rows_make_files_without_records(tmp_path):
    write_tf_records(tmp_path / "new", {"x": torch.empty(0, dtype=torch.int64)}, 2)
    assert contents(tmp_path / "new") == [b"", b""]


def test_bad_arguments_are_refused_and_nothing_is_left(tmp_path, refuses):
    for columns in ([1], {}, {"x": torch.ones(2, dtype=torch.bool)}):
        refuses(TypeError, write_tf_records, tmp_path / "new", columns)
    for columns in (
        {"x": torch.ones(2, 2, 2)},
        {"x": torch.ones(2, 0)},
        {"x": torch.ones(2), "y": torch.ones(3)},
        {"x": np.array([2**63], np.uint64)},
        {"x": torch.tensor([1e39], dtype=torch.float64)},
    ):
        refuses(ValueError, write_tf_records, tmp_path / "new", columns)
    columns = {"x": torch.arange(3)}
    for num_files in (0, 100_000):
        refuses(ValueError, write_tf_records, tmp_path / "new", columns, num_files)
    refuses(TypeError, write_tf_records, tmp_path / "new", columns, compress=1)
    refuses(TypeError, write_tf_records, 5, columns)
    refuses(ValueError, write_tf_records, "gs://bucket/new", columns)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_holds_anything_is_refused(tmp_path, refuses):
    write_tf_records(tmp_path, {"x": torch.arange(3)}, 2)
    before = contents(tmp_path)
    refuses(FileExistsError, write_tf_records, tmp_path, {"x": torch.arange(5)}, 3)
    assert contents(tmp_path) == before


def write_with_little_room(folder: Path) -> None:
    """Write 8 MB where a file can have one: as on a disk that is full, a write then fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
    write_tf_records(folder, {"x": torch.zeros(10**5, 20)}, 2)


def test_on_a_full_disk_nothing_is_left(tmp_path):
    no_room = r"write_tf_records.*no room to write .*new.*Nothing at"
    with Child(write_with_little_room, tmp_path / "new") as child, pytest.raises(OSError, match=no_room):
        child.result()
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("is_there", [False, True])
def test_a_killed_writer_leaves_no_file_that_a_loader_would_take(tmp_path, is_there, monkeypatch):
    folder = tmp_path / "new"
    if is_there:
        folder.mkdir()
    real, calls = writing.records_of, []

    def killed_at_the_third(columns):
        calls.append(columns)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(columns)

    monkeypatch.setattr(writing, "records_of", killed_at_the_third)
    with Child(write_tf_records, folder, {"x": torch.arange(6)}, 3) as child:
        child.process.join(BOUND_S)
        assert child.process.exitcode == -signal.SIGKILL
    assert [*folder.glob("*")] == []
    monkeypatch.undo()
    write_tf_records(folder, {"x": torch.arange(6)}, 3)
    assert b"".join(contents(folder)) == twin.records([{"x": [i]} for i in range(6)])
    assert [*tmp_path.iterdir()] == [folder]
