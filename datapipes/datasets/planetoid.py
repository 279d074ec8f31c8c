"""Read a Planetoid data set (Cora, CiteSeer, PubMed) from its eight files `ind.NAME.*`.

Seven of the files are Python 2 pickles, and a pickle is a program. Three layers keep it harmless:

- `_check_opcodes` reads the file first. It refuses every instruction that plain numbers, text, lists,
  dicts and arrays do not need.
- `_PlainUnpickler` knows seven globals and refuses any other by name.
- Each of these globals is replaced by a stand-in of this module, so not even the unpickling code of numpy
  or scipy runs. The stand-ins are checked, and only then turned into arrays.

Invariant: the file cannot choose code to run and cannot change an object. Memory stays in proportion to
the size of the file (features are made dense, at most `raw.MAX_FEATURE_BYTES`). Refused with
`DatasetFormatError`: truncated, corrupt or hostile files, and files that do not fit each other. Missing
files raise FileNotFoundError.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from datapipes.datasets.raw import (
    MAX_CLASSES,
    DatasetFormatError,
    RawDataset,
    both_directions,
    csr_ids,
    dense_rows,
    normalised,
)

NUM_VALIDATION = 500
MAX_TUPLES = 1024

_SUFFIXES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_PLAIN_OPCODES = """
    PROTO FRAME STOP MARK GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD NONE NEWTRUE NEWFALSE INT BININT BININT1
    BININT2 LONG LONG1 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE
    SHORT_BINUNICODE TUPLE EMPTY_TUPLE TUPLE1 TUPLE2 TUPLE3 LIST EMPTY_LIST APPEND APPENDS DICT EMPTY_DICT
    SETITEM SETITEMS PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET
"""
_OPCODES = frozenset(_PLAIN_OPCODES.split())
_TUPLES = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"})
_OPCODES_THAT_MAKE = """
    GLOBAL STACK_GLOBAL NEWOBJ REDUCE LONG LONG1 STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES
    BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE EMPTY_TUPLE LIST EMPTY_LIST DICT EMPTY_DICT
"""
_MAKERS = _TUPLES | frozenset(_OPCODES_THAT_MAKE.split())
_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"})


def read_planetoid(folder: Path) -> RawDataset:
    """Read the data set in a folder with the files `ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}`.

    Row i of allx and ally belongs to node i. Row i of tx and ty belongs to the node on line i of
    test.index. A node in neither (CiteSeer has 15) has features of zero, label -1 and the edges in graph,
    which has none for it.

    Args:
        folder: Holds the eight files of one NAME.
    Returns:
        "feat" is float32[num_nodes, num_words], each row scaled to a sum of 1, or all zero. Edges go in
        both directions, without repeats and self loops, sorted by (destination, source). The split is
        the standard one: train has the rows of y, validation the next 500 (fewer if allx ends before),
        test the ids of test.index in ascending order. Class names are numbers as text.
        O(num_nodes * num_words + num_edges log num_edges).
    Raises:
        FileNotFoundError: The folder has no such set, or lacks one of the files.
        DatasetFormatError: A file is truncated, corrupt or hostile, the files do not fit each other, or
            the folder holds several sets.
    Source: the files and the split are those of Yang et al., "Revisiting Semi-Supervised Learning with
        Graph Embeddings" (2016); rows are scaled as in Kipf and Welling (2017).
    """
    folder = Path(folder)
    paths = _find_files(folder)
    name = paths["graph"].name.split(".")[1]
    y, ty, ally = (_read_labels(paths[suffix]) for suffix in ("y", "ty", "ally"))
    test_ids = _read_test_ids(paths["test.index"])
    neighbours = _read_graph(paths["graph"])
    num_nodes = len(neighbours)
    if len(ally) + len(test_ids) > num_nodes or test_ids.max(initial=-1) >= num_nodes:
        raise DatasetFormatError.of(
            paths["test.index"].name,
            f"{len(test_ids)} test nodes up to {test_ids.max(initial=-1)} after {len(ally)} nodes of ally",
            f"a graph with enough nodes, it has {num_nodes}",
            "Take all eight files from the same place.",
        )
    if test_ids.min(initial=num_nodes) < len(ally):
        raise DatasetFormatError.of(
            paths["test.index"].name,
            f"test node {test_ids.min()}",
            f"ids after the {len(ally)} nodes of ally",
        )
    num_classes = _same_columns(paths, {"y": y, "ty": ty, "ally": ally})
    if len(y) > len(ally) or not np.array_equal(y, ally[: len(y)]):
        raise DatasetFormatError.of(paths["y"].name, "labels that differ", "the first rows of ally")
    labels = np.full(num_nodes, -1, dtype=np.int64)
    labels[: len(ally)] = _classes(ally)
    _check_rows(paths["ty"], len(ty), "test.index", len(test_ids))
    labels[test_ids] = _classes(ty)
    last_validation = min(len(y) + NUM_VALIDATION, len(ally))
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=_edges(paths["graph"], neighbours),
        node_features={"feat": _features(paths, len(y), len(ally), test_ids, num_nodes)},
        labels=labels,
        class_names=tuple(map(str, range(num_classes))),
        split=(np.arange(len(y)), np.arange(len(y), last_validation), np.sort(test_ids)),
    )


def _find_files(folder: Path) -> dict[str, Path]:
    names = sorted(path.name.split(".")[1] for path in folder.glob("ind.*.graph") if path.name.count(".") == 2)
    if not names:
        raise FileNotFoundError(
            f"read_planetoid: no file ind.NAME.graph in {folder}. Give the folder that holds the eight files "
            "of a Planetoid data set."
        )
    if len(names) > 1:
        raise DatasetFormatError.of(
            str(folder),
            f"the data sets {names}",
            "one data set in a folder",
            "Give each a folder of its own.",
        )
    paths = {suffix: folder / f"ind.{names[0]}.{suffix}" for suffix in _SUFFIXES}
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(f"read_planetoid: {folder} lacks {missing}. Fetch all eight files of the data set.")
    return paths


# The pickle machine.


def _read_pickle(path: Path) -> object:
    """Return the content of a pickle: numbers, text, tuples, lists, dicts, and the stand-ins below."""
    content = path.read_bytes()
    try:
        _check_opcodes(path.name, content)
        return _PlainUnpickler(path.name, content).load()
    except DatasetFormatError:
        raise
    except Exception as error:  # a corrupt stream can raise nearly anything; no other code runs in here
        raise DatasetFormatError.of(
            path.name,
            f"a broken pickle ({type(error).__name__}: {str(error)[:200]})",
            "a whole one, as published",
        ) from error


def _check_opcodes(file: str, content: bytes) -> None:
    """Refuse a pickle that could run code, or make the unpickler use time or memory out of proportion.

    Memo numbers are bounded, because the unpickler allocates that many places. The number of tuples is
    bounded, and a tuple must not be read back from the memo. So no tuple is deep or has more leaves than
    the file has bytes; hashing such a tuple as the key of a dict would never end. An object must be put in
    the memo right after it is made. Every pickler does so, and this walk then knows which places hold
    tuples.
    """
    num_tuples, last = 0, ""
    memo: set[int] = set()
    kept_tuples: set[int] = set()
    for opcode, argument, position in pickletools.genops(content):
        name = opcode.name
        if name not in _OPCODES:
            shown = "" if argument is None else f" {str(argument)[:80]!r}"
            raise DatasetFormatError.of(
                file,
                f"the pickle instruction {name}{shown} at byte {position}",
                "plain numbers, text, lists, dicts and arrays",
                "Do not trust this file; nothing of it was run.",
            )
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            place = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if not 0 <= place <= len(content) or last not in _MAKERS:
                raise DatasetFormatError.of(
                    file,
                    f"the memo number {place} after {last or 'nothing'} at byte {position}",
                    f"numbers up to {len(content)}, each after the object it is for",
                )
            memo.add(place)
            if last in _TUPLES:
                kept_tuples.add(place)
            else:
                kept_tuples.discard(place)
        elif name in ("GET", "BINGET", "LONG_BINGET") and int(argument or 0) in kept_tuples:
            raise DatasetFormatError.of(file, f"a tuple used twice at byte {position}", "each tuple once")
        num_tuples += name in _TUPLES
        if num_tuples > MAX_TUPLES:
            raise DatasetFormatError.of(file, f"more than {MAX_TUPLES} tuples", "a few for the shapes of arrays")
        if name != "FRAME":
            last = name


class _Dtype:
    """Stands for `numpy.dtype`; its state may set the byte order and nothing else."""

    __slots__ = ("byte_order", "spec")

    def __init__(self, spec: object, *flags: object) -> None:
        if not isinstance(spec, str) or spec not in _DTYPES:
            shown = spec[:20] if isinstance(spec, str) else type(spec).__name__
            raise ValueError(f"dtype {shown!r} is none of {sorted(_DTYPES)}")
        self.spec, self.byte_order = spec, "|"

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("the state of a dtype is not (version, byte order, ...)")
        if any(part is not None for part in state[2:5]):
            raise ValueError("the dtype has fields or a shape of its own")
        self.byte_order = "<" if state[1] == "=" else state[1]

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.spec)


class _Array:
    """Stands for `numpy.ndarray`; holds the unchecked state until `_array_of` checks it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Csr:
    """Stands for `scipy.sparse.csr_matrix`. `NEWOBJ` makes it, so the pickle must see a class here.

    A `BUILD` aimed at the class itself calls `__setstate__` without an instance, and fails.
    """

    __slots__ = ("state",)
    state: object

    def __new__(cls) -> _Csr:
        matrix = super().__new__(cls)
        matrix.state = None
        return matrix

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Global:
    """Stands for a function or class that a pickle names. It can be called but not changed."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __setstate__(self, state: object) -> None:
        raise ValueError(f"the file tries to change {self._name}")

    def __call__(self, *arguments: object) -> object:
        if self._name == "numpy.dtype":
            return _Dtype(*arguments)
        if self._name == "numpy._reconstruct" and arguments[:1] == (_NDARRAY,):
            return _Array()
        if self._name == "collections.defaultdict" and arguments in ((), (_LIST,)):
            return {}
        if self._name == "codecs.encode":
            text, encoding = arguments
            if isinstance(text, str) and encoding == "latin1":
                return text.encode("latin-1")
        raise ValueError(f"{self._name} called with {len(arguments)} arguments that no pickler passes")


_NDARRAY = _Global("numpy.ndarray")
_LIST = _Global("list")
_RECONSTRUCT = _Global("numpy._reconstruct")


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler that knows no globals except `_KNOWN`."""

    _KNOWN: ClassVar[dict[tuple[str, str], object]] = {
        ("numpy", "ndarray"): _NDARRAY,
        ("numpy", "dtype"): _Global("numpy.dtype"),
        ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
        ("scipy.sparse.csr", "csr_matrix"): _Csr,
        ("scipy.sparse._csr", "csr_matrix"): _Csr,
        ("collections", "defaultdict"): _Global("collections.defaultdict"),
        ("__builtin__", "list"): _LIST,
        ("builtins", "list"): _LIST,
        ("_codecs", "encode"): _Global("codecs.encode"),
    }

    def __init__(self, file: str, content: bytes) -> None:
        super().__init__(io.BytesIO(content), fix_imports=False, encoding="latin-1")
        self._file = file

    def find_class(self, module: str, name: str) -> Any:
        """Return the stand-in for a global, or refuse it."""
        if (module, name) not in self._KNOWN:
            known = sorted({".".join(key) for key in self._KNOWN})
            raise DatasetFormatError.of(
                self._file,
                f"a pickle that asks for the global {module}.{name}",
                f"none but {known}",
                "Do not trust this file; nothing of it was run.",
            )
        return self._KNOWN[module, name]


# From unpickled objects to arrays.


def _array_of(file: str, found: object, what: str) -> np.ndarray:
    """Return the array that a stand-in describes; it shares the bytes of the pickle."""
    if not isinstance(found, _Array):
        raise DatasetFormatError.of(file, f"{what} of {type(found).__name__.lstrip('_')}", "a numpy array")
    state = found.state
    if not isinstance(state, tuple) or len(state) != 5:
        found_parts = f"{what} without its five parts"
        raise DatasetFormatError.of(file, found_parts, "version, shape, dtype, order, bytes")
    _, shape, dtype, fortran, content = state
    if isinstance(content, str):
        try:
            content = content.encode("latin-1")
        except UnicodeEncodeError as error:
            raise DatasetFormatError.of(file, f"{what} with text for its bytes", "bytes") from error
    if (
        not isinstance(shape, tuple)
        or not all(type(length) is int and length >= 0 for length in shape)
        or not 1 <= len(shape) <= 2
        or not isinstance(dtype, _Dtype)
        or type(fortran) not in (bool, int)
        or not isinstance(content, bytes)
    ):
        expected = "one or two dimensions of numbers"
        raise DatasetFormatError.of(file, f"{what} that is no plain array", expected)
    plain = dtype.plain()
    if math.prod(shape) * plain.itemsize != len(content):
        disagreeing = f"{what} of shape {list(shape)} with {len(content)} bytes"
        raise DatasetFormatError.of(file, disagreeing, f"{plain.itemsize} bytes for each element")
    return np.frombuffer(content, dtype=plain).reshape(shape, order="F" if fortran else "C")


def _read_labels(path: Path) -> np.ndarray:
    """Return the checked one-hot rows of a y, ty or ally file."""
    one_hot = _array_of(path.name, _read_pickle(path), "labels")
    if one_hot.ndim != 2 or not 1 <= one_hot.shape[1] <= MAX_CLASSES:
        found = f"labels of shape {list(one_hot.shape)}"
        raise DatasetFormatError.of(path.name, found, f"a column for each class, 1 to {MAX_CLASSES}")
    if not np.isin(one_hot, (0, 1)).all() or (one_hot.astype(bool).sum(axis=1) > 1).any():
        raise DatasetFormatError.of(path.name, "labels that are not one-hot", "rows with at most a single 1")
    return one_hot


def _same_columns(paths: dict[str, Path], tables: dict[str, np.ndarray]) -> int:
    columns: dict[str, int] = {suffix: table.shape[1] for suffix, table in tables.items()}
    if len(set(columns.values())) > 1:
        suffix = next(suffix for suffix in columns if columns[suffix] != columns["ally"])
        raise DatasetFormatError.of(
            paths[suffix].name, f"{columns[suffix]} classes", f"as many as in ally, {columns['ally']}"
        )
    return columns["ally"]


def _classes(one_hot: np.ndarray) -> np.ndarray:
    """Return the class of each row, -1 for a row of zeros."""
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int64)


def _check_rows(path: Path, found: int, other: str, expected: int) -> None:
    if found != expected:
        as_many = f"as many as in {other}, {expected}"
        raise DatasetFormatError.of(path.name, f"{found} rows", as_many, "Take all eight files from one place.")


def _read_test_ids(path: Path) -> np.ndarray:
    try:
        ids = np.array([int(line) for line in path.read_bytes().decode("ascii").split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        found = f"text that is no node id ({str(error)[:200]})"
        raise DatasetFormatError.of(path.name, found, "one id on each line") from error
    if ids.min(initial=0) < 0 or len(np.unique(ids)) < len(ids):
        raise DatasetFormatError.of(path.name, "negative or repeated ids", "each test node once")
    return ids


def _read_graph(path: Path) -> dict[int, list[int]]:
    """Return the neighbour list of each node; the nodes are 0..n - 1, and so are all neighbours."""
    graph = _read_pickle(path)
    if not isinstance(graph, dict):
        raise DatasetFormatError.of(path.name, f"a thing {_shown(graph)}", "a dict of neighbour lists")
    num_nodes = len(graph)
    seen: set[int] = set()
    for node, neighbours in graph.items():
        if type(node) is not int or not 0 <= node < num_nodes:
            expected = f"each id in [0, {num_nodes}) once"
            raise DatasetFormatError.of(path.name, f"the node {_shown(node)}", expected)
        if type(neighbours) is not list or id(neighbours) in seen:
            found = f"node {node} with neighbours {_shown(neighbours)}"
            raise DatasetFormatError.of(path.name, found, "a list of its own")
        seen.add(id(neighbours))
        for neighbour in neighbours:
            if type(neighbour) is not int or not 0 <= neighbour < num_nodes:
                found = f"node {node} with the neighbour {_shown(neighbour)}"
                raise DatasetFormatError.of(path.name, found, f"ids in [0, {num_nodes})")
    return graph


def _shown(found: object) -> str:
    """Return text about an object for a message. Only numbers are shown; the text of others may be unbounded."""
    return str(found)[:80] if type(found) is int else f"of {type(found).__name__.lstrip('_')}"


def _edges(path: Path, neighbours: dict[int, list[int]]) -> np.ndarray:
    total = sum(map(len, neighbours.values()))
    destinations = np.repeat(
        np.fromiter(neighbours, dtype=np.int64, count=len(neighbours)),
        np.fromiter(map(len, neighbours.values()), dtype=np.int64, count=len(neighbours)),
    )
    sources = np.fromiter((u for listed in neighbours.values() for u in listed), dtype=np.int64, count=total)
    return both_directions(sources, destinations, len(neighbours))


def _features(paths: dict[str, Path], num_train: int, num_all: int, test_ids: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return the normalised features of all nodes: rows of allx, rows of tx at the test ids, else zeros."""
    tables = {suffix: _read_csr(paths[suffix]) for suffix in ("x", "allx", "tx")}
    columns = tables["allx"].shape[1]
    expected = {"x": ("y", num_train), "allx": ("ally", num_all), "tx": ("test.index", len(test_ids))}
    for suffix, (other, num_rows) in expected.items():
        _check_rows(paths[suffix], tables[suffix].shape[0], other, num_rows)
        if tables[suffix].shape[1] != columns:
            found = f"{tables[suffix].shape[1]} words"
            raise DatasetFormatError.of(paths[suffix].name, found, f"as many as in allx, {columns}")
    train, every, test = tables["x"], tables["allx"], tables["tx"]
    first = every.rows < num_train
    same = [
        np.array_equal(a, b[first])
        for a, b in ((train.rows, every.rows), (train.columns, every.columns), (train.values, every.values))
    ]
    if not all(same):
        raise DatasetFormatError.of(paths["x"].name, "features that differ", "the first rows of allx")
    rows = np.r_[every.rows, test_ids[test.rows]]
    values = normalised(rows, np.r_[every.values, test.values], num_nodes)
    return dense_rows(
        paths["allx"].name, rows, np.r_[every.columns, test.columns], values, (num_nodes, columns), np.float32
    )


@dataclass(frozen=True)
class _Entries:
    """The entries of a sparse matrix, by row."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]


def _read_csr(path: Path) -> _Entries:
    matrix = _read_pickle(path)
    state = matrix.state if isinstance(matrix, _Csr) else None
    if not isinstance(state, dict):
        raise DatasetFormatError.of(path.name, f"a {type(matrix).__name__.lstrip('_')}", "a scipy CSR matrix")
    shape = state.get("_shape", state.get("shape"))
    if (
        not isinstance(shape, tuple)
        or len(shape) != 2
        or not all(type(length) is int and length >= 0 for length in shape)
    ):
        raise DatasetFormatError.of(path.name, "a matrix without a shape", "the numbers of rows and columns")
    parts = (_array_of(path.name, state.get(key), key) for key in ("indptr", "indices", "data"))
    indptr, indices, values = parts
    rows = csr_ids(path.name, "matrix", indptr, indices, shape)
    if values.shape != indices.shape or not np.isfinite(values).all() or (values < 0).any():
        found = f"{values.size} values for {indices.size} entries, or a negative or missing one"
        raise DatasetFormatError.of(path.name, found, "one finite number, 0 or more, for each")
    return _Entries(rows, indices.astype(np.int64), values, shape)
