"""The hash over the hashes of pieces: the same however the bytes come and however many threads read the file."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused

from datapipes.base.threads import threads_of_kernels
from datapipes.partition.native import piece_hash
from datapipes.partition.native.piece_hash import PIECE, PieceHash, hash_of_bytes, hash_of_file


def slow(content: bytes, piece: int) -> str:
    pieces = [content[begin : begin + piece] for begin in range(0, len(content), piece)]
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in pieces)).hexdigest()


@given(st.binary(max_size=100), st.lists(st.integers(0, 20), max_size=10), st.sampled_from([1, 7, 16, 1000]))
def test_the_hash_does_not_depend_on_how_the_bytes_come(content, cuts, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_hash, "PIECE", piece)
        whole, begin = PieceHash(), 0
        for cut in cuts:
            whole.update(content[begin : begin + cut])
            begin += cut
        whole.update(memoryview(content[begin:]))
        assert (whole.size, whole.hexdigest()) == (len(content), slow(content, piece))
        assert hash_of_bytes(content) == slow(content, piece)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1234])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_has_the_hash_of_its_bytes(tmp_path, monkeypatch, size, threads):
    monkeypatch.setattr(piece_hash, "PIECE", 100)
    monkeypatch.setattr(piece_hash, "READ", 30)
    content = bytes(torch.arange(size).to(torch.uint8).tolist())
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file, threads_of_kernels(threads):
        assert hash_of_file(file.fileno(), size) == slow(content, 100)
        with refused(ValueError, stage="it ends", found=f"byte {size}", allowed=f"of {size + 150}", remedy=""):
            hash_of_file(file.fileno(), size + 150)


def test_the_format_is_fixed():
    assert PIECE == 2**24
    assert hash_of_bytes(b"") == hashlib.sha256(b"").hexdigest()
    assert hash_of_bytes(b"a") == "bf5d3affb73efd2ec6c36ad3112dd933efed63c4e1cbffcfa88e2759c144f2d8"
