"""Headers of npy files. What corrupt files do is in test_storage.py and tests/datasets/test_npz_datasets.py."""

import io

import numpy as np
import pytest

from datapipes.graph import npy


def file_of(array):
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    return file


@pytest.mark.parametrize("failures", [0, 1, 5])
def test_a_parser_that_another_thread_disturbed_is_asked_again(monkeypatch, failures):
    left = [failures]

    def disturbed(file):
        file.read(7)
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=48, after=45)")
        file.seek(-7, io.SEEK_CUR)
        return np.lib.format.read_array_header_1_0(file)

    monkeypatch.setitem(npy._READ_HEADER, (1, 0), disturbed)
    array = np.asfortranarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    file = file_of(array)
    assert npy.read_header(file) == ((2, 3), True, np.dtype(np.float32))
    assert np.frombuffer(file.read(), np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_a_parser_that_never_succeeds_raises(monkeypatch):
    def broken(file):
        raise SystemError("unknown opcode")

    monkeypatch.setitem(npy._READ_HEADER, (1, 0), broken)
    with pytest.raises(SystemError, match="unknown opcode"):
        npy.read_header(file_of(np.arange(3)))
