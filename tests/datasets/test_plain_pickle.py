"""Reading pickles of plain data: no key is hashed, and time and memory stay in proportion to the file."""

import os
import pickle
import struct
from pathlib import Path

import pytest
from planetoid_files import PICKLED, py2, py2_array, py2_csr, py2_int, read_with, tiny_arrays, tiny_files, write

import datapipes as dp
from datapipes.datasets.pickled_arrays import read_pickle
from datapipes.datasets.planetoid import read_planetoid
from datapipes.datasets.raw import DatasetFormatError
from datapipes.ingest import plain_pickle
from datapipes.ingest.plain_pickle import Items

LONG = b"L" + b"9" * 4300 + b"L\n"  # as many digits as Python reads
CSR = b"cscipy.sparse.csr\ncsr_matrix\n)\x81"
ENCODE = b"c_codecs\nencode\nq\x00"


def long_int(number: int) -> bytes:
    return b"\x8a\x0c" + number.to_bytes(12, "little")


def colliding(count: int) -> bytes:
    """Return the items of a dict whose keys have one hash: Python's ints are hashed modulo 2**61 - 1."""
    return b"(" + b"".join(long_int(number * (2**61 - 1)) + b"]" for number in range(count)) + b"u"


def shared_tuples(depth: int) -> bytes:
    """Return a tuple of 2**depth leaves in few bytes."""
    return b")" + b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(depth))


def read(folder: Path, content: bytes) -> object:
    (folder / "file").write_bytes(py2(content))
    return read_pickle(folder / "file")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_back(tmp_path, protocol):
    plain = [1, -5, 2**40, -(2**70), True, None, "text", "ünï", (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[2], []]]
    (tmp_path / "file").write_bytes(pickle.dumps([*plain, {"a": [1], "b": 2}], protocol))
    *found, pairs = read_pickle(tmp_path / "file")
    assert found == plain
    assert isinstance(pairs, Items)
    assert pairs.pairs == [("a", [1]), ("b", 2)]


@pytest.mark.parametrize("make", [b"}", b"(d", b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R"])
@pytest.mark.parametrize("add", [b"]K\x01s]K\x02s", b"(]K\x01]K\x02u"])
def test_no_key_is_hashed(tmp_path, make, add):
    """A list has no hash, so a reader that hashed its keys would fail here."""
    found = read(tmp_path, make + add)
    assert isinstance(found, Items)
    assert found.pairs == [([], 1), ([], 2)]


@pytest.mark.parametrize("suffix", PICKLED)
@pytest.mark.parametrize("keys", [colliding(200), b"(" + shared_tuples(60) + b"]u", b"(]]u", b"(N]\x89]u"])
def test_keys_that_are_no_ids_and_no_short_text_are_refused(suffix, keys):
    for begin, end in ((b"}", b""), (CSR + b"}", b"b"), (py2_array(tiny_arrays()["y"]) + b"}", b"b")):
        with pytest.raises(DatasetFormatError):
            read_with(suffix, py2(begin + keys + end))


def test_the_fields_of_a_matrix_are_few_short_texts_each_once(refuses):
    for fields in (
        b"(X" + struct.pack("<i", 65) + b"a" * 65 + b"Nu",
        b"(U\x01aNU\x01aNu",
        b"(" + b"".join(b"X\x03\x00\x00\x00%03dN" % number for number in range(65)) + b"u",
        b"(K\x01Nu",
        b"(" + shared_tuples(60) + b"Nu",
        b"(" + LONG + b"Nu",
    ):
        refuses(DatasetFormatError, read_with, "x", py2(CSR + b"}" + fields + b"b"))


@pytest.mark.parametrize("suffix", PICKLED)
def test_a_tuple_used_again_and_again_is_not_written_into_the_message(suffix):
    for content in (shared_tuples(60), b"}" + shared_tuples(60) + b"]s", b"}K\x00" + shared_tuples(60) + b"s"):
        with pytest.raises(DatasetFormatError) as caught:
            read_with(suffix, py2(content))
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("field", ["_shape", "indptr", "indices", "data"])
@pytest.mark.parametrize(
    "value",
    [
        shared_tuples(60),
        LONG,
        LONG + py2_int(5) + b"\x86",
        py2_int(0) + LONG + b"\x86",
        b"]",
        b"}",
        py2_array(tiny_arrays()["y"][:0]).replace(py2_int(0) + py2_int(3) + b"t", py2_int(0) + LONG + b"t"),
        py2_array(tiny_arrays()["y"][:0]).replace(py2_int(0) + py2_int(3) + b"t", LONG + py2_int(0) + b"t"),
    ],
    ids=["shared", "int", "shape", "empty shape", "list", "dict", "empty array", "empty rows"],
)
def test_any_field_of_a_matrix_is_refused_by_name(field, value):
    with pytest.raises(DatasetFormatError, match=r"ind\.tiny\.x"):
        read_with("x", py2(py2_csr(tiny_arrays()["x"], **{field: value})))


def test_a_text_is_encoded_once_and_a_call_takes_few_arguments(tmp_path, refuses):
    text = b"X" + struct.pack("<i", 1000) + b"a" * 1000 + b"q\x01X\x06\x00\x00\x00latin1q\x02"
    once = read(tmp_path, ENCODE + text + b"]q\x03(h\x00h\x01h\x02\x86Re")
    assert once == [b"a" * 1000]
    again = b"h\x00h\x01h\x02\x86R" * 3
    refuses(DatasetFormatError, read, tmp_path, ENCODE + text + b"](" + again + b"e")
    for name in (b"numpy\ndtype", b"numpy.core.multiarray\n_reconstruct", b"_codecs\nencode"):
        refuses(DatasetFormatError, read, tmp_path, b"c" + name + b"\n(U\x02f8" + b"N" * 1000 + b"tR")


NOWHERE = [
    b"(" * 100_000,
    b"(" + b"}" * 100_000 + b"l",
    b"]" + b"q\x00" * 100_000,
    b"h\x00",
    b"]q\x05h\x04",
    b"g-1\n",
    b"p-1\n",
    CSR + b"}b" * 100_000,
    b"]" * 100_000 + b"a" * 99_999,
    b")" + b"\x85" * 100_000,
    b"K\x01K\x02K\x03s",
    *(b"](K\x01u", b"}(K\x01u", b"}(K\x01e", b"(K\x01d", b"K\x01K\x02\x93", b""),
    *(b"t", b"s", b"a", b"\x93", b"R", b"b", b"\x85"),  # instructions alone
]


@pytest.mark.parametrize("content", NOWHERE, ids=lambda content: repr(content[:20]))
def test_instructions_that_lead_nowhere_are_refused(content):
    for suffix in ("graph", "x", "y"):
        with pytest.raises(DatasetFormatError):
            read_with(suffix, py2(content))


# --- files that are no files


def test_what_is_no_regular_file_or_too_large_is_refused_before_it_is_read(tmp_path, monkeypatch, refuses):
    for suffix in ("x", "y", "graph"):
        path = write(tmp_path) / f"ind.tiny.{suffix}"
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            path.unlink()
            make(path)
            refuses(DatasetFormatError, read_planetoid, tmp_path)
        path.unlink()
    ids = write(tmp_path) / "ind.tiny.test.index"
    ids.unlink()
    os.mkfifo(ids)
    with pytest.raises(DatasetFormatError, match="is a FIFO"):
        read_planetoid(tmp_path)
    ids.unlink()
    with (write(tmp_path) / "ind.tiny.graph").open("wb") as file:
        file.write(tiny_files()["graph"])
        file.truncate(2**40)  # a hole
    refuses(DatasetFormatError, read_planetoid, tmp_path)
    folder = tmp_path / "npz"
    folder.mkdir()
    os.mkfifo(folder / "data.npz")
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("this would wait for ever"))
    for path in (folder, folder / "data.npz"):
        refuses(DatasetFormatError, dp.datasets.open, path)


def test_a_pickle_of_too_many_instructions_is_refused(tmp_path, monkeypatch, refuses):
    path = tmp_path / "a.pkl"
    path.write_bytes(b"\x80\x02" + b"}" * 30 + b".")
    monkeypatch.setattr(plain_pickle, "MAX_INSTRUCTIONS", 32)
    read_pickle(path)
    monkeypatch.setattr(plain_pickle, "MAX_INSTRUCTIONS", 31)
    refuses(DatasetFormatError, read_pickle, path)
