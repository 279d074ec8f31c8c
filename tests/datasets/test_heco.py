"""Reading ACM in the files of HeCo: a small one made here, the real one, and broken files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from datapipes.base import sizes
from datapipes.datasets.heco import HAS_SUBJECT, WRITES, is_heco, read_heco
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import inverse_of

SHARED = Path(os.environ.get("DATAPIPES_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


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
    for name, content in {**files, **{name.replace("__", "."): content for name, content in changes.items()}}.items():
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


def test_a_fourth_split_is_refused(tmp_path):
    with pytest.raises(IndexError, match="has no split 3; 0, 1 and 2"):
        read_heco(written(tmp_path), 3)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pa__txt": b"3 0\n"}, r"pa\.txt: found the paper 3"),
        ({"pa__txt": b"0 0\n0 2\n"}, r"pa\.txt: found 2 ids from 0 to 2 in the second column"),
        ({"pa__txt": b"0 -1\n"}, r"pa\.txt: found 1 ids from -1"),
        ({"ps__txt": b"0 99999999999999\n"}, r"ps\.txt: found 1 ids"),
        ({"ps__txt": b"0 0 0\n"}, r"ps\.txt: found rows of 3 numbers"),
        ({"ps__txt": b"0 a\n"}, r"ps\.txt: found the character 'a'"),
        ({"labels__npy": npy([1, 0.5, 1], "<f8")}, r"labels\.npy: found the class 0\.5"),
        ({"labels__npy": npy([1, np.nan, 1], "<f8")}, r"labels\.npy: found the class nan"),
        ({"labels__npy": npy([1, 1e30, 1], "<f8")}, r"labels\.npy: found the class 1e\+30"),
        ({"labels__npy": npy([1, 0, 1, 1])}, r"p_feat\.npz: found 3 rows"),
        ({"labels__npy": npy([1, 0])}, r"pa\.txt: found the paper 2"),
        ({"labels__npy": npy([[1, 0, 1]])}, r"labels\.npy: found int64\[1, 3\]"),
        ({"labels__npy": npy([1, 0, 1])[:-1]}, r"labels\.npy: found the array of int64\[3\] with 23 bytes"),
        ({"labels__npy": b"no array"}, r"labels\.npy: found the array broken"),
        ({"test_20__npy": npy([3])}, r"test_20\.npy: found the paper 3"),
        ({"test_20__npy": npy([0])}, r"test_20\.npy: found a paper that is twice"),
        ({"p_feat__npz": words(indices=np.array([0, 5, 1]))}, r"p_feat\.npz: found the matrix column 5"),
        ({"p_feat__npz": words(shape=np.array([3, 2**31 - 1]))}, r"p_feat\.npz: found features of shape"),
        ({"p_feat__npz": words(data=np.array([1.0, np.inf, 1]))}, r"p_feat\.npz: found array 'data' with infinite"),
        ({"p_feat__npz": words(data=np.array([1.0]))}, r"p_feat\.npz: found 1 numbers"),
        ({"p_feat__npz": words(data=np.array([{}, 1, 1], dtype=object))}, r"p_feat\.npz: found array 'data'"),
    ],
)
def test_broken_files_are_refused(tmp_path, changes, found):
    with pytest.raises(DatasetFormatError, match=f"{found}.*; expected "):
        read_heco(written(tmp_path, **changes))


def test_the_memory_that_dense_features_need_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 1)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (400, "the test"))
    found = r"p_feat\.npz, features of shape \[3, 100\], needs 1200 bytes; 400 are left"
    with pytest.raises(MemoryError, match=found):
        read_heco(written(tmp_path, p_feat__npz=words(shape=np.array([3, 100]))))


@pytest.mark.skipif(not (SHARED / "acm_heco").is_dir(), reason="the data set ACM is not on this machine")
def test_acm_has_the_counts_of_its_readme():
    raw = read_heco(SHARED / "acm_heco", 2)
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
