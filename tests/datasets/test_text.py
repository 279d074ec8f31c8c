"""Text of unknown origin: pieces of whole lines, tables, and files that are broken, packed bombs or no tables."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st

from datapipes.base import sizes
from datapipes.datasets import text
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.text import read_table, text_chunks, text_lines


def written(folder: Path, content: bytes, name: str = "table.csv.gz") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("chunk_bytes", [1, 3, 1000])
@pytest.mark.parametrize("content", [b"", b"\n", b"one\ntwo\n", b"one\n\ntwo", b"a\r\nbb\r\nccc"])
def test_pieces_are_whole_lines_and_together_the_file(tmp_path, monkeypatch, name, chunk_bytes, content):
    monkeypatch.setattr(text, "CHUNK_BYTES", chunk_bytes)
    path = written(tmp_path, content, name)
    pieces = list(text_chunks(path))
    assert b"".join(pieces) == content
    assert all(piece.endswith(b"\n") for piece in pieces[:-1])
    kept = [(i + 1, line.strip()) for i, line in enumerate(content.decode().split("\n")) if line.strip()]
    assert list(text_lines(path)) == kept


def test_a_gzip_of_several_members_is_read_whole(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"1,2\n") + gzip.compress(b"3,4\n"))
    assert read_table(path).tolist() == [[1, 2], [3, 4]]


@examples(50)
@given(rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 9)), min_size=1, max_size=6))
def test_a_table_of_whole_numbers_comes_out_as_written(tmp_path_factory, rows):
    path = written(tmp_path_factory.mktemp("t"), "\n".join(f"{a},{b}" for a, b in rows).encode())
    table = read_table(path, columns=2, rows=len(rows), whole=True)
    assert table.dtype == np.int64
    assert table.tolist() == [list(row) for row in rows]


def test_one_fraction_makes_all_numbers_float64(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 4)  # pieces of both kinds
    table = read_table(written(tmp_path, b"1,2\n3,4.5\n-1e3,6\n"))
    assert table.dtype == np.float64
    assert table.tolist() == [[1, 2], [3, 4.5], [-1000, 6]]


def test_spaces_and_tabs_and_a_header(tmp_path):
    assert read_table(written(tmp_path, b"1 2\n3\t4\n", "a.txt"), delimiter=" ").tolist() == [[1, 2], [3, 4]]
    assert read_table(written(tmp_path, b"from,to\n1,2\n", "a.csv"), skip_header=True).tolist() == [[1, 2]]


def test_an_empty_table_has_the_columns_asked_for(tmp_path):
    assert read_table(written(tmp_path, b"\n"), columns=3).shape == (0, 3)


def test_what_is_no_such_table_is_refused(tmp_path, refuses):
    for content, arguments in (
        (b"1,2\nx,3\n", {}),
        (b"1,2\n3,4\n", {"columns": 3}),
        (b"1,2\n3,4\n", {"rows": 1}),
        (b"1,2\n3,4\n", {"rows": 3}),
        (b"1,2.5\n", {"whole": True}),
        (b"1,nan\n", {}),
        (b"1,1e999\n", {}),
        (b"1,\xff\n", {}),
        (b"1,\x00\n", {}),
    ):
        refuses(DatasetFormatError, read_table, written(tmp_path, content), **arguments)
    for content in (b"1,2\n3\n", b"1,99999999999999999999\n", b"1,2,\n", b"1-1,2\n"):
        with pytest.raises(DatasetFormatError, match=r"table\.csv\.gz: found a broken row .*; expected "):
            read_table(written(tmp_path, content))
    os.mkfifo(tmp_path / "a.csv.gz")
    refuses(DatasetFormatError, read_table, tmp_path / "a.csv.gz")  # without waiting
    refuses(DatasetFormatError, list, text_lines(written(tmp_path, b"a\n\xff\n")))


def test_missing_numbers_are_nan_where_allowed(tmp_path):
    assert np.isnan(read_table(written(tmp_path, b"nan\n1\n"), missing=True)[0, 0])


PACKED = gzip.compress(b"".join(b"%d,%d\n" % (i, i * i) for i in range(2000)))


@pytest.mark.parametrize("size", range(97, len(PACKED), 97))
def test_a_file_that_breaks_off_is_refused(tmp_path, size):
    (tmp_path / "a.csv.gz").write_bytes(PACKED[:size])
    with pytest.raises(DatasetFormatError, match="broken gzip"):
        read_table(tmp_path / "a.csv.gz")


@examples(60)
@given(place=st.integers(0, len(PACKED) - 1), value=st.integers(0, 255))
def test_a_changed_byte_is_refused_or_changes_no_number(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("t") / "a.csv.gz"
    path.write_bytes(PACKED[:place] + bytes([value]) + PACKED[place + 1 :])
    try:
        table = read_table(path)
    except DatasetFormatError:
        return
    assert table[:, 1].tolist() == [i * i for i in range(2000)]  # the byte was of the header


@pytest.mark.parametrize(
    ("piece", "arguments"),
    [
        (b"0" * 2**22, {}),
        ((b"\0" * 1023 + b"\n") * 2**12, {}),
        (b"1,2\n" * 2**20, {"rows": 10}),
        (b"\n" * 2**22, {}),
    ],
    ids=["a line", "zeros", "rows", "empty lines"],
)
def test_a_bomb_is_refused_in_little_memory(tmp_path, monkeypatch, refuses, piece, arguments):
    monkeypatch.setattr(text, "MAX_UNPACKED_BYTES", 2**26)
    monkeypatch.setattr(text, "CHUNK_BYTES", 2**16)  # tracemalloc makes numpy's parser slow
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(piece) * 2**10)  # 4 GiB
    tracemalloc.start()
    try:
        refuses(DatasetFormatError, read_table, path, **arguments)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_the_memory_and_the_size_of_a_table_are_looked_at_as_it_grows(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(text, "CHUNK_BYTES", 4)  # a row a piece
    path = written(tmp_path, b"1,2\n" * 100)
    with monkeypatch.context() as patch:
        patch.setattr(text, "MAX_TABLE_BYTES", 64)
        refuses(DatasetFormatError, read_table, path)
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (100, "the test"))
    refuses(MemoryError, read_table, path)  # at the fourth row, not at the last
    assert len(read_table(written(tmp_path, b"1,2\n" * 3))) == 3


def test_lines_are_not_all_in_memory_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "CHUNK_BYTES", 2**17)
    path = written(tmp_path, b"a\n" * 2**17)
    tracemalloc.start()
    try:
        assert sum(1 for _ in text_lines(path)) == 2**17
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**17  # a list of the lines of one piece would take 20
    finally:
        tracemalloc.stop()
