"""Files that are damaged, missing, changed, or hold something else: every error names entity, file and record."""

import gzip
import os
import re
from pathlib import Path

import pytest
import slow_tfrecord as twin
import torch
from channels import descriptors_from_now
from pipelines import BOUND_S, refused
from record_files import before_parsing, edge_info, edges, node_info, nodes, spec, write_file, write_files

from datapipes.datasets import DatasetFormatError, TFDatasetOptions, TFRecordDataLoader, write_tf_records
from datapipes.datasets.tfrecord.reading import Reader, Window

WHERE = "load_as_torch_tensors: node: "


def load(info, **options):
    return TFRecordDataLoader(0, 1).load_as_torch_tensors(info, TFDatasetOptions(**options))


def wrong(refuses, folder: Path, **changes) -> None:
    """Refuse nodes of a folder, whichever thread finds what is wrong."""
    for num_threads in (1, 3):
        options = {"use_interleave": False, "num_parallel_file_reads": num_threads}
        refuses(DatasetFormatError, load, node_info(folder, **changes), **options)


def with_content(folder: Path, change, *, packed: bool = False) -> None:
    """Write three files of four nodes; `change` gets the records of the second and returns its content."""
    written = nodes(12)
    write_files(folder, written, [4, 4, 4])
    content = change([twin.record(twin.example(each)) for each in written[4:8]])
    path = folder / "data-00001-of-00003.tfrecord"
    if packed:
        path.unlink()
        path = folder / f"{path.name}.gz"
        content = gzip.compress(content)
    path.write_bytes(content)


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


# --- damaged files


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_ends_inside_a_record_or_has_a_wrong_crc(tmp_path, packed, refuses):
    for left in (1, 11, 12, 50):
        with_content(tmp_path, lambda records, left=left: b"".join(records[:2]) + records[2][:left], packed=packed)
        wrong(refuses, tmp_path)
    for at in (3, 12, 40, -5, -1):
        with_content(
            tmp_path,
            lambda records, at=at: b"".join([*records[:2], flipped(records[2], at), records[3]]),
            packed=packed,
        )
        wrong(refuses, tmp_path)


def test_data_that_is_no_example_and_a_file_of_something_else(tmp_path, refuses):
    with_content(tmp_path, lambda records: b"".join([*records[:2], twin.record(b"\x0a\x7f")]))
    wrong(refuses, tmp_path)
    with_content(tmp_path, lambda records: b"a file of something else, longer than a head")
    wrong(refuses, tmp_path)


BROKEN = {
    "ends too early": (lambda packed: packed[:-9], "its gzip data ends too early"),
    "ends before its checksum": (lambda packed: packed[:-1], "its gzip data ends too early"),
    "wrong checksum": (lambda packed: flipped(packed, -5), "its gzip data is broken .*incorrect data check"),
    "no gzip": (lambda packed: b"records as they are", "its gzip data is broken .*incorrect header check"),
    "rest of something else": (lambda packed: packed + b"x", "its gzip data is broken|its gzip data ends too early"),
}


@pytest.mark.parametrize(("change", "told"), BROKEN.values(), ids=BROKEN)
def test_broken_gzip(tmp_path, change, told):
    file = write_file(tmp_path, 0, 1, nodes(4))
    packed = tmp_path / f"{file.name}.gz"
    packed.write_bytes(change(gzip.compress(file.read_bytes())))
    file.unlink()
    with refused(DatasetFormatError, stage=WHERE, found=told, allowed=rf"{re.escape(str(packed))}, record \d"):
        load(node_info(tmp_path))


# --- good files of unusual form


@pytest.mark.parametrize("content", [b"", gzip.compress(b"", mtime=0), gzip.compress(b"", mtime=0) * 2])
def test_packed_files_without_records(tmp_path, content, caplog):
    write_file(tmp_path, 0, 2, nodes(3))
    assert len(load(node_info(tmp_path)).ids) == 3
    assert caplog.records == []
    (tmp_path / "data-00001-of-00002.tfrecord.gz").write_bytes(content)
    assert len(load(node_info(tmp_path)).ids) == 3
    (told,) = [each.getMessage() for each in caplog.records]
    assert told.endswith("1 of 2 files to load have no records, such as 'data-00001-of-00002.tfrecord.gz'")


def test_zeros_after_gzip_are_skipped(tmp_path):
    content = twin.records(nodes(3))
    padded = gzip.compress(content[:10]) + bytes(512) + gzip.compress(content[10:]) + bytes(2**18)
    (tmp_path / "data-00000-of-00001.tfrecord.gz").write_bytes(padded)
    assert len(load(node_info(tmp_path)).ids) == 3


def test_a_tail_of_zeros_without_end_is_refused(tmp_path, refuses):
    file = tmp_path / "data-00000-of-00001.tfrecord.gz"
    file.write_bytes(gzip.compress(twin.records(nodes(3))))
    os.truncate(file, 2**40)  # a hole, which takes no room on the disk
    refuses(DatasetFormatError, load, node_info(tmp_path))


def test_much_from_a_little_gzip_is_unpacked_piece_by_piece(tmp_path):
    rows, width = 40, 10**5  # 16 MB of zeros in 16 kB
    write_tf_records(tmp_path / "new", {"node_id": torch.arange(rows), "x": torch.zeros(rows, width)}, compress=True)
    info = node_info(tmp_path / "new", feature_keys=["x"], feature_dim=width, feature_spec=None, label_keys=[])
    assert torch.equal(load(info).ids, torch.arange(rows))


# --- records that do not hold what is asked for


def with_example(folder: Path, **change) -> None:
    """Write three files of four nodes; the record 2 of the second is another; a value None leaves the key out."""
    written = nodes(12)
    written[6] = {key: value for key, value in {**written[6], **change}.items() if value is not None}
    write_files(folder, written, [4, 4, 4])


def test_a_record_that_does_not_hold_what_is_asked_for(tmp_path, refuses):
    for change in (
        {"wide": None},
        {"node_id": None},
        {"y": None},
        {"wide": []},
        {"wide": [1.0, 2.0]},
        {"node_id": [1, 2]},
        {"age": [1.0]},
        {"one": [b"x"]},
        {"age": [2**24 + 1]},
    ):
        with_example(tmp_path, **change)
        wrong(refuses, tmp_path)


def test_a_number_that_the_dtype_cannot_hold(tmp_path, refuses):
    for value, dtype in ((300, torch.uint8), (-1, torch.uint64), (2**40, torch.int32), (2049, torch.float16)):
        with_example(tmp_path, age=[value])
        wrong(refuses, tmp_path, feature_keys=["age"], feature_dim=1, feature_dtype=dtype)
    with_example(tmp_path, one=[7e4])
    wrong(refuses, tmp_path, feature_dtype=torch.float16)


def test_a_feature_of_another_length_in_record_12345(tmp_path, refuses):
    count, place = 20_000, 12_345
    columns = {"node_id": torch.arange(count), "wide": torch.ones(count, 3)}
    write_tf_records(tmp_path / "new", columns)
    file = tmp_path / "new" / "data-00000-of-00001.tfrecord"
    content = file.read_bytes()
    begin = 0
    for _ in range(place):
        begin += twin.record_length(content[begin : begin + 12])
    end = begin + twin.record_length(content[begin : begin + 12])
    other = twin.record(twin.example({"node_id": [place], "wide": [1.0, 2.0, 3.0, 4.0]}))
    file.write_bytes(content[:begin] + other + content[end:])
    info = {"feature_keys": ["wide"], "feature_dim": 3, "feature_spec": None, "label_keys": []}
    refuses(DatasetFormatError, load, node_info(tmp_path / "new", **info))


def test_an_edge_is_named_as_one(tmp_path, refuses):
    write_files(tmp_path, [*edges(3), {"src": [1], "weight": [1.0]}], [4])
    refuses(DatasetFormatError, load, edge_info(tmp_path))


# --- long records


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_longer_than_the_buffer_is_refused_by_name(tmp_path, packed, refuses):
    long = {**nodes(1)[0], "noise": [bytes(3000)]}
    write_file(tmp_path, 0, 1, [*nodes(2), long, *nodes(1)], packed=packed)
    length = len(twin.record(twin.example(long)))
    assert len(load(node_info(tmp_path), file_buffer_size=length).ids) == 4
    refuses(DatasetFormatError, load, node_info(tmp_path), file_buffer_size=length - 1)


def test_a_length_that_is_made_up_takes_no_memory(tmp_path, refuses):
    made_up = (2**40).to_bytes(8, "little")
    head = made_up + twin.masked(twin.crc32c(made_up)).to_bytes(4, "little")
    (tmp_path / "data-00000-of-00001.tfrecord").write_bytes(head + bytes(1000))
    refuses(DatasetFormatError, load, node_info(tmp_path), file_buffer_size=2**50)


# --- files and folders


def test_a_folder_without_files_to_load(tmp_path, refuses):
    refuses(FileNotFoundError, load, node_info(tmp_path))
    refuses(FileNotFoundError, load, node_info(tmp_path / "missing"))
    for number in range(9):
        (tmp_path / f"part-{number}.parquet").write_bytes(b"")
    refuses(FileNotFoundError, load, node_info(tmp_path))
    refuses(NotADirectoryError, load, node_info(tmp_path / "part-0.parquet"))


def test_a_file_that_cannot_be_read(tmp_path, refuses):
    write_file(tmp_path, 0, 2, nodes(3))
    path = tmp_path / "data-00001-of-00002.tfrecord"
    path.mkdir()
    refuses(DatasetFormatError, load, node_info(tmp_path))
    path.rmdir()
    for make, error in (
        (os.mkfifo, DatasetFormatError),
        (lambda path: path.symlink_to("gone"), FileNotFoundError),
        (lambda path: path.symlink_to(path), OSError),
    ):
        make(path)
        refuses(error, load, node_info(tmp_path))
        path.unlink()


# --- files that change between counting and reading


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("before", "after"), [(3, 4), (3, 2), (1, 0)])
def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, before, after, packed, refuses):
    write_files(tmp_path, nodes(before + 4), [2, before, 2], packed=[1] if packed else [])
    before_parsing(monkeypatch, lambda: write_file(tmp_path, 1, 3, nodes(after), packed=packed))
    refuses(DatasetFormatError, load, node_info(tmp_path))


def test_a_file_that_goes_meanwhile(tmp_path, monkeypatch, refuses):
    write_files(tmp_path, nodes(4), [2, 2])
    before_parsing(monkeypatch, (tmp_path / "data-00001-of-00002.tfrecord").unlink)
    refuses(FileNotFoundError, load, node_info(tmp_path))


# --- the first error ends the others


def test_at_an_error_the_other_threads_stop(tmp_path, monkeypatch, refuses):
    write_tf_records(tmp_path / "new", {"node_id": torch.arange(200), "x": torch.ones(200, 5000)})  # many windows
    bad = tmp_path / "new" / "data-00001-of-00002.tfrecord"
    bad.write_bytes(twin.record(twin.example({"node_id": [1]})))
    info = node_info(tmp_path / "new", feature_keys=["x"], feature_dim=5000, label_keys=[],
                     feature_spec={"x": spec("float32", 5000)})  # fmt: skip
    later_windows = []
    real_parse, real_fill = Reader.parse, Window.fill

    def parse(self, *arguments):
        def fill(window):
            if window.at > 0:  # of the good file
                later_windows.append(window.at)
                assert self._stopped.wait(BOUND_S), "the error of the other thread has stopped this one"
            return real_fill(window)

        monkeypatch.setattr(Window, "fill", fill)
        real_parse(self, *arguments)

    monkeypatch.setattr(Reader, "parse", parse)
    refuses(DatasetFormatError, load, info, use_interleave=False, num_parallel_file_reads=2)
    assert len(later_windows) <= 1


@pytest.mark.parametrize("num_threads", [1, 3])
def test_with_the_error_the_memory_of_the_result_goes(tmp_path, num_threads):
    with_example(tmp_path, wide=None)
    opened = descriptors_from_now()
    with pytest.raises(DatasetFormatError) as caught:
        load(node_info(tmp_path), use_interleave=False, num_parallel_file_reads=num_threads)
    del caught  # or its traceback keeps the tensors
    assert opened() == 0
