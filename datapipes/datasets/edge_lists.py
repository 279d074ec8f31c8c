"""Read lists of edges in text, as SNAP publishes them: "src dst", "src dst time" (CollegeMsg), "from,to,rating,time"
(Bitcoin OTC). Lines that begin with "#" or "%" are comments.

The meaning of further columns is never guessed. The caller states it, or a header with "src" and "dst" does, or the
name under which SNAP published the file.

With times, edges are sorted by time; edges of equal time keep the order of the file. The split follows the time: the
first `TRAIN_SHARE` of the edges train, the next `VALIDATION_SHARE` validate, the rest test. Edges of equal time are in
one part: a cut that falls among them moves behind them. Without times edges stay in the order of the file, and there is
no task.

Invariant: no edge is lost or merged; all parts together hold each edge once. Refused with `DatasetFormatError`: broken
rows, ids other than whole numbers from 0 on, ratings and times that are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType
from datapipes.datasets.raw import DatasetFormatError, as_float32, ids_of
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems
from datapipes.datasets.text import read_table, text_lines
from datapipes.ingest.arrow_files import is_number

TRAIN_SHARE, VALIDATION_SHARE = 0.7, 0.15
_EDGE_BYTES = 72  # memory of an edge besides its row in the table: id, feature, item, and its entries in two graphs
MAX_ID = 2**53  # a float64 does not hold every larger whole number

_SUFFIXES = (".txt", ".txt.gz", ".csv", ".csv.gz")
_ENDS = ("src", "dst")
_COLUMNS = (*_ENDS, "time", "rating", "weight")  # what columns may hold
_TIMED, _RATED = (*_ENDS, "time"), (*_ENDS, "rating", "time")
_PUBLISHED = {  # {how the name of a file of SNAP begins: its columns}
    **dict.fromkeys(("CollegeMsg", "sx-", "wiki-talk-temporal", "email-Eu-core-temporal"), _TIMED),
    "soc-sign-bitcoin": _RATED,
}
_REMEDY = "Correct the file: it must hold numbers alone, as many in each row."
_TURNED = (("to", "from"), ("target", "source"), ("destination", "source"))  # names of two columns, destination first


def read_edge_list(path: Path, columns: Sequence[str] | None = None) -> RawHeteroDataset:
    """Read a list of edges, compressed with gzip or not.

    Args:
        path: The file, or a folder with only one such file. A .csv file has commas between numbers, and may have a
            header; any other file has spaces or tabs.
        columns: The names of the columns, see check_columns. None: take them from the published name of the file, or
            from the header; two columns are source and destination.
    Returns:
        Nodes are numbered in ascending order of their ids in the file; the node attribute "id", int64 [num_nodes], has
        these ids. Edge features: "time" is int64, or float64 if a time has a fraction; "rating" and "weight" are
        float32. "time" and "weight" are also edge attributes.

        Without times the task is "all_nodes", without items. With times each seed has a time, and training edges are
        the first `num_training_edges` of the graph. The task is then link prediction without negatives; with ratings
        it is edge regression, and the ratings are the labels. Time O(n log n) for n edges.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken or hostile, or nothing says what its columns hold.
    """
    path = edge_list_in(path) or path
    delimiter = "," if ".csv" in path.name else " "
    names = _columns_of(path, delimiter, columns)
    table = read_table(path, columns=len(names), delimiter=delimiter, skip_header=True, comments=True, remedy=_REMEDY)
    check_memory(
        "datasets.open", f"the graph in {path.name}", len(table) * _EDGE_BYTES, "Use a machine with more memory."
    )
    if "time" in names:
        times = np.ascontiguousarray(table[:, names.index("time")])
        if (times[1:] < times[:-1]).any():
            table = table[np.argsort(times, kind="stable")]
        del times
    rows = dict(zip(names, table.T, strict=True))
    ends = np.stack([rows["src"], rows["dst"]], axis=1) if names[:2] != _ENDS else table[:, :2]
    ends = ids_of(path.name, ends, MAX_ID, "node", _REMEDY)
    if ends.dtype != np.int64 and (ends != np.floor(ends)).any():
        raise DatasetFormatError.of(path.name, f"the node {ends[ends != np.floor(ends)][0]}", "whole numbers", _REMEDY)
    ids = np.unique(ends).astype(np.int64, copy=False)
    pairs = np.searchsorted(ids, ends).astype(np.int64, copy=False)  # np.unique's inverse takes three times the memory
    values = {name: _values(path.name, name, rows[name]) for name in names if name not in _ENDS}
    parts, task, num_training = _parts(pairs, values)
    title = path.name
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        title = title.removesuffix(suffix)
    return RawHeteroDataset(
        name=title,
        num_nodes={None: len(ids)},
        edges={None: np.ascontiguousarray(pairs.T)},
        node_features={},
        edge_features={(None, name): numbers for name, numbers in values.items()},
        task=task,
        split=parts,
        node_attributes={(None, "id"): ids},
        edge_attributes={(None, name): numbers for name, numbers in values.items() if name != "rating"},
        num_training_edges=num_training,
    )


def check_columns(columns: Any) -> tuple[str, ...]:
    """Return `columns` as a tuple after a check that they can name the columns of a list of edges.

    Raises:
        ValueError: "src" or "dst" is missing, a name is unknown, or a name is there twice.
    """
    names = [] if isinstance(columns, str) or not isinstance(columns, Iterable) else [*columns]
    if not {*_ENDS} <= {*names} <= {*_COLUMNS} or len({*names}) < len(names):
        raise ValueError(
            f"datasets.open: columns must have 'src' and 'dst', and may have {[*_COLUMNS[2:]]}, each once, got "
            f"{shown(columns)}. Pass {_TIMED}, for example."
        )
    return tuple(names)


def _columns_of(path: Path, delimiter: str, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the columns of a file: those of `columns`, of its published layout, or of its header.

    Raises:
        DatasetFormatError: None of these says what the columns are, or the header contradicts another of them.
    """
    line = next((line for _, line in text_lines(path) if not line.startswith(("#", "%"))), "")
    cells = tuple(cell.strip(' "') for cell in (line.split(",") if delimiter == "," else line.split()))
    published = [layouts for start, layouts in _PUBLISHED.items() if path.name.startswith(start)]
    said = tuple(columns) if columns is not None else published[0] if published else None
    if {*_ENDS} <= {*cells} <= {*_COLUMNS}:
        if said not in (None, cells):
            fault = f"the names {shown([*cells])} above the numbers"
            by = "in columns" if columns is not None else "in the file of this name from SNAP"
            remedy = "Correct the names." if columns is not None else "Correct the names, or rename the file."
            raise DatasetFormatError.of(path.name, fault, f"{said}, as {by}", remedy)
        return check_columns(cells)
    if said is not None:
        return said
    has_names = any(any(map(str.isalpha, cell)) and not is_number(cell) for cell in cells)
    if len(cells) <= 2 and not (has_names and tuple(map(str.lower, cells)) in _TURNED):
        return _ENDS
    if has_names and delimiter == "," and len(cells) > 1:
        src, dst = cells[1::-1] if tuple(map(str.lower, cells[:2])) in _TURNED else cells[:2]
        remedy = f"Say what is where: columns={{'src': {src!r}, 'dst': {dst!r}}}, for example."
    elif len(cells) <= 4:
        layouts: dict[int, list[tuple[str, ...]]] = {
            2: [_ENDS, _ENDS[::-1]],
            3: [_TIMED, (*_ENDS, "weight")],
            4: [_RATED, (*_ENDS, "weight", "time")],
        }
        first, second = layouts[max(len(cells), 2)]
        remedy = f"Pass columns={first} or columns={second}, or write such names above."
    else:
        options = f"delimiter={delimiter!r}, " if delimiter == "," else ""
        options += "skiprows=1, " if has_names else ""
        remedy = f"Read it by: edges = numpy.loadtxt({str(path)!r}, int, {options}usecols=(0, 1)); "
        remedy += "graph = dp.CSCGraph.from_edge_index(edges.T.copy())."
    fault = f"{len(cells)} columns, {shown([*cells])}"
    raise DatasetFormatError.of(path.name, fault, "two columns, or names for all of them", remedy)


def _values(file: str, name: str, values: np.ndarray) -> np.ndarray:
    """Return a column in the dtype of the data set.

    "time" is int64 if all times are whole and not too large, else float64. Other columns are float32.
    """
    if name == "time":
        is_whole = (values == np.floor(values)).all() and (np.abs(values) < MAX_ID).all()
        return np.ascontiguousarray(values, np.int64 if is_whole else np.float64)
    return as_float32(file, f"a {name}", values, _REMEDY)


_Part = dict[EdgeType | None, RawItems]


def _parts(
    pairs: np.ndarray, values: Mapping[str, np.ndarray]
) -> tuple[tuple[_Part, _Part, _Part], str, dict[Any, int]]:
    """Split a list of edges by time; return (split, task, num_training_edges).

    Args:
        pairs: int64 [n, 2], the edges, sorted by time if there are times.
        values: {column name: values [n]}; only "time" and "rating" are used.
    Returns:
        split is (train, validation, test), each {None: items}. task is the name of the task, see Dataset.
        num_training_edges is {None: number of edges in train}. Without times, the parts have no items, and
        num_training_edges is {}.
    """
    if "time" not in values:
        none: _Part = {None: RawItems(np.zeros(0, np.int64))}
        return (none, none, none), "all_nodes", {}
    times, labels = values["time"], values.get("rating")
    cuts = np.searchsorted(times, times_of_cuts(times), side="right").tolist()
    parts: list[_Part] = [
        {None: RawItems(pairs[part], None if labels is None else labels[part], times[part])}
        for part in (slice(0, cuts[0]), slice(cuts[0], cuts[1]), slice(cuts[1], None))
    ]
    task = "link_prediction" if labels is None else "edge_regression"
    return (parts[0], parts[1], parts[2]), task, {None: cuts[0]}


def edge_list_in(path: Path) -> Path | None:
    """Return the only edge list at `path`, which is a file or a folder. None: there is no edge list, or several.

    Looks at file names only.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    lists = [file for file in files if file.name.endswith(_SUFFIXES)]
    return lists[0] if len(lists) == 1 else None


def times_of_cuts(times: np.ndarray) -> tuple[int, int]:
    """Return (last time of training, last time of validation) of the split by time; `times` [n] must ascend.

    Without times, return (-1, -1).
    """
    ends = (max(round(share * len(times)), 1) - 1 for share in (TRAIN_SHARE, TRAIN_SHARE + VALIDATION_SHARE))
    train, validation = (times[end] if len(times) else -1 for end in ends)
    return train, validation
