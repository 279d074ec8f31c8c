"""Zip archives of unknown origin: false sizes, many members, other ways of packing."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from datapipes.base import sizes
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.raw import DatasetFormatError
from datapipes.ingest import torch_archive


def packed(num_members: int = 1, method: int = zipfile.ZIP_DEFLATED, size: int = 2) -> bytes:
    array = io.BytesIO()
    np.save(array, np.zeros(size, dtype=np.int64))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for i in range(num_members):
            archive.writestr(f"{i}.npy", array.getvalue())
    return stream.getvalue()


@pytest.mark.parametrize("method", torch_archive.PACKINGS)
def test_members_come_out_as_written(method):
    arrays = NpzArrays("a.npz", packed(3, method))
    assert [arrays.get(key).tolist() for key in sorted(arrays.keys)] == [[0, 0]] * 3


def test_a_member_is_unpacked_up_to_the_size_that_it_states():
    content = packed(size=2**21)  # 16 MiB, a bomb in 16 KiB
    size = struct.pack("<I", 8 * 2**21 + 128)
    assert content.count(size) == 2  # before the member and in the directory
    content = content.replace(size, struct.pack("<I", 200))
    arrays = NpzArrays("a.npz", content)
    tracemalloc.start()
    try:
        with pytest.raises(DatasetFormatError, match=r"a\.npz: found array '0' broken"):
            arrays.get("0")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


def test_what_an_archive_may_not_have(monkeypatch, refuses):
    refuses(DatasetFormatError, NpzArrays("a.npz", packed(method=zipfile.ZIP_BZIP2)).get, "0")
    monkeypatch.setattr(torch_archive, "MAX_MEMBERS", 3)
    assert len(NpzArrays("a.npz", packed(3)).keys) == 3
    refuses(DatasetFormatError, NpzArrays, "a.npz", packed(4))
    arrays = NpzArrays("a.npz", packed(size=100))
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (1000, "the test"))
    refuses(MemoryError, arrays.get, "0")
