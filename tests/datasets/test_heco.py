"""Reading ACM in the files of HeCo: a small one made here, the real one, and broken files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from published import published

from datapipes.base import sizes
from datapipes.datasets.heco import HAS_SUBJECT, WRITES, is_heco, read_heco
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import inverse_of


def npy(values: object, dtype: str = "<i8") -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array(values, dtype=dtype))
    return stream.getvalue()


def words(**changes: object) -> bytes:
    arrays = {
        "indptr": np.array([0, 2, 2, 3], dtype=np.int32),
        "indices": np.array([0, 4, 1], dtype=np.int32),
        "data": np.array([1.0, 1, 1]),
        "shape": np.array([3, 5]),
        "format": np.array(b"csr"),
    }
    stream = io.BytesIO()
    np.savez(stream, **{**arrays, **changes})
    return stream.getvalue()


def written(folder: Path, **changes: bytes) -> Path:
    files = {
        "pa.txt": b"0\t1\n0\t0\n2\t1\n",
        "ps.txt": b"0 0\n1 0\n2 1\n",
        "p_feat.npz": words(),
        "labels.npy": npy([1, 0, 1], "<f8"),
    }
    for i, count in enumerate((20, 40, 60)):
        for j, part in enumerate(("train", "val", "test")):
            files[f"{part}_{count}.npy"] = npy([(i + j) % 3])
    for name, content in {**files, **changes}.items():
        (folder / name).write_bytes(content)
    assert is_heco(folder)
    return folder


def test_papers_authors_and_subjects_with_inverses(tmp_path):
    raw = read_heco(written(tmp_path))
    assert raw.num_nodes == {"paper": 3, "author": 2, "subject": 2}
    assert raw.edges[WRITES].T.tolist() == [[1, 0], [0, 0], [1, 2]]
    assert raw.edges[HAS_SUBJECT].T.tolist() == [[0, 0], [1, 0], [2, 1]]
    for edge_type in (WRITES, HAS_SUBJECT):
        assert np.array_equal(raw.edges[inverse_of(edge_type)], raw.edges[edge_type][::-1])
    assert raw.node_features["paper", "feat"].tolist() == [[1, 0, 0, 0, 1], [0] * 5, [0, 1, 0, 0, 0]]
    assert raw.class_names == ("0", "1")
    assert set(read_heco(tmp_path, inverse_relations=False).edges) == {WRITES, HAS_SUBJECT}


@pytest.mark.parametrize("split", [0, 1, 2])
def test_each_split_has_its_files(tmp_path, split):
    raw = read_heco(written(tmp_path), split)
    ids = [part["paper"].seeds.tolist() for part in raw.split]
    assert ids == [[split % 3], [(split + 1) % 3], [(split + 2) % 3]]
    assert [part["paper"].labels.tolist() for part in raw.split] == [[[1, 0, 1][i[0]]] for i in ids]


BROKEN = {
    "pa.txt": [b"3 0\n", b"0 0\n0 2\n", b"0 -1\n"],
    "ps.txt": [b"0 0 0\n", b"0 a\n"],
    "labels.npy": [
        npy([1, 0.5, 1], "<f8"),
        npy([1, np.nan, 1], "<f8"),
        npy([1, 0, 1, 1]),
        npy([1, 0]),
        npy([[1, 0, 1]]),
    ],
    "test_20.npy": [npy([3]), npy([0])],
    "p_feat.npz": [words(indices=np.array([0, 5, 1])), words(shape=np.array([3, 2**31 - 1]))],
}


def test_what_read_heco_refuses(tmp_path, refuses):
    for file, contents in BROKEN.items():
        for content in contents:
            refuses(DatasetFormatError, read_heco, written(tmp_path, **{file: content}))
    refuses(IndexError, read_heco, written(tmp_path), 3)


def test_the_memory_that_dense_features_need_is_looked_at(tmp_path, monkeypatch, refuses):
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (400, "the test"))
    refuses(MemoryError, read_heco, written(tmp_path, **{"p_feat.npz": words(shape=np.array([3, 100]))}))


def test_acm_has_the_counts_of_its_readme():
    raw = read_heco(published("acm_heco"), 2)
    assert raw.num_nodes == {"paper": 4019, "author": 7167, "subject": 60}
    assert {kind: ends.shape[1] for kind, ends in raw.edges.items()} == {
        **dict.fromkeys((WRITES, inverse_of(WRITES)), 13_407),
        **dict.fromkeys((HAS_SUBJECT, inverse_of(HAS_SUBJECT)), 4019),
    }
    feat = raw.node_features["paper", "feat"]
    assert feat.shape == (4019, 1902)
    assert int((feat != 0).sum()) == 340_377
    sums = feat.sum(axis=1, dtype=np.float64)
    assert np.allclose(sums, 1, atol=1e-5)  # in the file each row is scaled to a sum of 1
    train, validation, test = (part["paper"] for part in raw.split)
    assert np.bincount(train.labels).tolist() == [60, 60, 60]
    assert (len(validation.seeds), len(test.seeds)) == (1000, 1000)
    assert len(raw.class_names) == 3
