"""Read ACM in the files of HeCo: papers, their authors and their subjects.

The folder holds pairs of ids "paper author" in pa.txt and "paper subject" in ps.txt, the words of papers in p_feat.npz
(CSR as scipy saves it), the class of each paper in labels.npy, and three splits: {train,val,test}_{20,40,60}.npy, for
20, 40 and 60 labels of each class.

Invariant: nothing is unpickled; every id is a node of its type, and no author or subject is without a paper.
Refused with `DatasetFormatError`: files that are truncated, corrupt or hostile, or that do not fit each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datapipes.base.types import EdgeType
from datapipes.datasets.npz import NpzArrays, npy_array
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, content_of, dense_rows, ids_of
from datapipes.datasets.raw_hetero import RawHeteroDataset, labelled_items, with_inverses
from datapipes.datasets.text import read_table

PAPER, AUTHOR, SUBJECT = "paper", "author", "subject"
WRITES, HAS_SUBJECT = (AUTHOR, "writes", PAPER), (PAPER, "has_subject", SUBJECT)
PER_CLASS = (20, 40, 60)

_NEEDED = ("pa.txt", "ps.txt", "p_feat.npz", "labels.npy")


def is_heco(folder: Path) -> bool:
    """Return whether the folder holds the data set ACM, in the files of HeCo."""
    return folder.is_dir() and all((folder / file).exists() for file in _NEEDED)


def read_heco(folder: Path, split: int = 0, *, inverse_relations: bool | None = None) -> RawHeteroDataset:
    """Read the data set ACM, papers with their authors and subjects, from the files of HeCo.

    Args:
        folder: Holds the files.
        split: 0, 1 or 2: 20, 40 or 60 labels of each class for training.
        inverse_relations: True or None: add the inverse of each relation. False: do not.
    Returns:
        Node types are paper, author and subject; edge types are (author, writes, paper) and (paper, has_subject,
        subject). "feat" of papers is float32 [num_papers, num_words] with the values of the file, where each row has a
        sum of 1. Authors and subjects have no features. Each part of the split is ascending. Class names are numbers as
        text.
    Raises:
        FileNotFoundError: A file is missing.
        IndexError: There is no such split.
        DatasetFormatError: A file is broken or hostile, or the files do not fit each other.
    """
    if not 0 <= split < len(PER_CLASS):
        raise IndexError(
            f"datasets.open: {folder} has no split {split}; 0, 1 and 2 have {PER_CLASS} labels of each class. Pass one "
            "of these."
        )
    labels = _whole(folder / "labels.npy", MAX_CLASSES, "class")
    num_papers = len(labels)
    papers, authors = _pairs(folder / "pa.txt", num_papers)
    papers_of_subjects, subjects = _pairs(folder / "ps.txt", num_papers)
    edges: dict[EdgeType | None, np.ndarray] = {
        WRITES: np.stack([authors, papers]),
        HAS_SUBJECT: np.stack([papers_of_subjects, subjects]),
    }
    parts = [
        np.sort(_whole(folder / f"{part}_{PER_CLASS[split]}.npy", num_papers, "paper"))
        for part in ("train", "val", "test")
    ]
    together = np.concatenate(parts)
    if len(np.unique(together)) < len(together):
        fault = "a paper that is twice in the three files"
        raise DatasetFormatError.of(f"test_{PER_CLASS[split]}.npy", fault, "train, val and test disjoint")
    return RawHeteroDataset(
        name="acm",
        num_nodes={PAPER: num_papers, AUTHOR: _count(authors), SUBJECT: _count(subjects)},
        edges=with_inverses(edges) if inverse_relations is not False else edges,
        node_features={(PAPER, "feat"): _words(folder / "p_feat.npz", num_papers)},
        edge_features={},
        task="node_classification",
        split=labelled_items(PAPER, labels, parts),
        class_names=tuple(map(str, range(int(labels.max(initial=-1)) + 1))),
    )


def _whole(path: Path, limit: int, noun: str) -> np.ndarray:
    """Return the numbers of an npy file as int64 [n]; refuse any but whole numbers in [0, limit)."""
    array = npy_array(path.name, "the array", content_of(path))
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise DatasetFormatError.of(path.name, f"{array.dtype}{list(array.shape)}", "one dimension of whole numbers")
    wrong = ~((array >= 0) & (array < limit))  # negated, so that nan is wrong too
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        raise DatasetFormatError.of(path.name, f"the {noun} {array[wrong][0]}", f"whole numbers in [0, {limit})")
    return array.astype(np.int64)


def _pairs(path: Path, num_papers: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two columns of a file of pairs: (papers, authors or subjects), int64 [num_pairs] each.

    The ids in the second column must be 0 .. n - 1 without gaps.
    """
    table = read_table(path, columns=2, delimiter=" ", whole=True)
    papers = np.ascontiguousarray(ids_of(path.name, table[:, 0], num_papers, "paper"))
    others = np.ascontiguousarray(table[:, 1])
    distinct = np.unique(others)
    if others.size and (distinct[0] < 0 or len(distinct) != distinct[-1] + 1):
        fault = f"{len(distinct)} ids from {distinct[0]} to {distinct[-1]} in the second column"
        raise DatasetFormatError.of(path.name, fault, "ids from 0 on without gaps")
    return papers, others


def _count(ids: np.ndarray) -> int:
    return int(ids.max(initial=-1)) + 1


def _words(path: Path, num_papers: int) -> np.ndarray:
    rows, columns, values, shape = NpzArrays(path.name, content_of(path)).csr("")
    if shape[0] != num_papers:
        raise DatasetFormatError.of(path.name, f"{shape[0]} rows", f"one for each of {num_papers} labels")
    return dense_rows(path.name, rows, columns, values, shape, np.float32)
