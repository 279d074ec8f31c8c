"""A tiny made-up data set in Planetoid's files, pickled as by Python 2, so that they look like the published ones."""

import struct
import tempfile
from pathlib import Path

import numpy as np

from datapipes.datasets.planetoid import read_planetoid
from datapipes.datasets.raw import RawDataset

PICKLED = ("x", "tx", "allx", "y", "ty", "ally", "graph")
NUM_WORDS, NUM_CLASSES = 5, 3
TEST_IDS = [8, 6, 9]  # node 7 is a gap, as CiteSeer has them
NEIGHBOURS = {0: [1, 2, 2], 1: [0, 1], 2: [0], 3: [4], 4: [], 5: [6], 6: [5, 8], 7: [], 8: [6], 9: [0]}


# --- a pickler that writes protocol 2 like Python 2


def py2_int(number: int) -> bytes:
    return b"K" + bytes([number]) if 0 <= number < 256 else b"J" + struct.pack("<i", number)


def py2_str(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def py2_array(array: np.ndarray, dtype: bytes | None = None, shape: tuple[int, ...] | None = None) -> bytes:
    lengths = array.shape if shape is None else shape
    spec = dtype or array.dtype.str[1:].encode()
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    kind = (
        b"cnumpy\ndtype\n" + py2_str(spec) + b"K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    sides = b"(" + b"".join(map(py2_int, lengths)) + b"t"
    return made + b"(K\x01" + sides + kind + b"\x89" + py2_str(array.tobytes()) + b"tb"


def py2_csr(dense: np.ndarray, **instead: bytes) -> bytes:
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int32)
    state = {
        "format": py2_str(b"csr"),
        "_shape": py2_int(dense.shape[0]) + py2_int(dense.shape[1]) + b"\x86",
        "indptr": py2_array(indptr),
        "indices": py2_array(columns.astype(np.int32)),
        "maxprint": py2_int(50),
        "data": py2_array(dense[rows, columns].astype(np.float32)),
    } | instead
    items = b"".join(py2_str(key.encode()) + value for key, value in state.items())
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + items + b"ub"


def py2_graph(neighbours: dict[int, list[int]]) -> bytes:
    lists = (py2_int(node) + b"](" + b"".join(map(py2_int, near)) + b"e" for node, near in neighbours.items())
    return b"ccollections\ndefaultdict\nq\x01c__builtin__\nlist\n\x85R(" + b"".join(lists) + b"u"


def py2(content: bytes) -> bytes:
    return b"\x80\x02" + content + b"."


# --- the files of the set


def tiny_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    words = (rng.random((9, NUM_WORDS)) < 0.5).astype(np.float32) * 2
    words[:, 0] = 1
    one_hot = np.eye(NUM_CLASSES, dtype=np.int32)[rng.integers(0, NUM_CLASSES, 9)]
    return {
        "x": words[:3],
        "allx": words[:6],
        "tx": words[6:],
        "y": one_hot[:3],
        "ally": one_hot[:6],
        "ty": one_hot[6:],
    }


def tiny_files() -> dict[str, bytes]:
    files = {
        suffix: py2(py2_csr(array) if "x" in suffix else py2_array(array)) for suffix, array in tiny_arrays().items()
    }
    files["graph"] = py2(py2_graph(NEIGHBOURS))
    files["test.index"] = "".join(f"{node}\n" for node in TEST_IDS).encode()
    return files


def write(folder: Path, **instead: bytes) -> Path:
    """Write the tiny set with some files replaced; `index` replaces test.index."""
    if "index" in instead:
        instead["test.index"] = instead.pop("index")
    for suffix, content in (tiny_files() | instead).items():
        (folder / f"ind.tiny.{suffix}").write_bytes(content)
    return folder


def read_with(suffix: str, content: bytes) -> RawDataset:
    """Read the tiny set with one file replaced."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), **{suffix.removeprefix("test."): content})
        return read_planetoid(Path(folder))
