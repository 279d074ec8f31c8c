"""How fast do TFRecords become tensors in shared memory, and how much memory does that take?

Node records have an id and one key of 100 floats, edge records two ids; both lie in --files files each, written here
unless --root has them. Sides, in alternation, median of --repeats: nodes and edges by TFRecordDataLoader in one
thread; the same files read with CRC32C alone, in one thread (the limit of this run); the graph by
load_torch_tensors_from_tf_record, in sequence and in parallel, with the start of the children. Rates are bytes of the
files per second; the files are in the page cache. Peak: anonymous memory of this process and of all that it started,
pages that several have counted once, and the shared memory of the system, every 10 ms, above what there was before; its
ratio is to the bytes of the result.
Where the `tfrecord` package or TensorFlow is installed, each reads two of the node files, and two of the edge files,
record by record or in batches of 10,000 as its documentation shows.
Run: python benchmarks/tfrecord.py --nodes 5000000 --edges 20000000
Result (2-core AMD EPYC VM, commit 26ecb4b; 2,263 MB of nodes, 1,023 MB of edges, 64 files each; a result of 2.36 GB):
nodes 1,010 MB/s and edges 815 MB/s on one core; CRC32C alone 5,576 and 3,541 (ratios 0.18 and 0.23: three quarters of a
load of nodes are the system's, which reads the files and makes the pages of the result). The graph in sequence 3.7 s,
in parallel 2.85 s; peak 1.01 x the result in both. The `tfrecord` package: 31.6 and 4.4 MB/s, so 32 and 183 times
slower. Writing: 300 and 51 MB/s. TensorFlow was not installed.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import alternate, parser, report, timed

from datapipes import _core, datasets

WIDTH = 100  # floats of a node
LOOK_S = 0.01
BUFFER = 2**18  # bytes read at once by the side that only checks
PEER_FILES = 2
INT, FLOATS = SimpleNamespace(shape=(), dtype="int64"), SimpleNamespace(shape=(WIDTH,), dtype="float32")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=3)
    arguments.add_argument("--root", type=Path, help="folder to keep the files in; a temporary one by default")
    arguments.add_argument("--nodes", type=int, default=500_000)
    arguments.add_argument("--edges", type=int, default=2_000_000)
    arguments.add_argument("--files", type=int, default=64, help="files of the nodes, and of the edges")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(args.root or Path(folder), args), args.json)


def measure(root: Path, args: Any) -> dict[str, float | str]:
    written = write(root, args.nodes, args.edges, args.files)
    nodes, edges = infos(root)
    sizes = {name: num_bytes(files_of(root / name)) for name in ("nodes", "edges")}
    loader = datasets.TFRecordDataLoader(0, 1)
    sides: dict[str, Callable[[int], float]] = {}
    for name, info in (("nodes", nodes), ("edges", edges)):
        sides[f"{name}, one core"] = rate(sizes[name], lambda info=info: loader.load_as_torch_tensors(info))
        sides[f"{name}, CRC32C alone"] = rate(sizes[name], lambda name=name: check(files_of(root / name)))
    peaks: dict[str, list[float]] = {}
    for name, parallel in (("in sequence", False), ("in parallel", True)):
        load = graph_load(nodes, edges, parallel, peaks.setdefault(name, []))
        sides[f"graph, {name}"] = rate(sum(sizes.values()), load)
    rates = alternate(sides, args.repeats, warm_ups=1)
    figures: dict[str, float | str] = {f"files of {name} (MB)": size / 1e6 for name, size in sizes.items()} | written
    figures |= {f"{name} (MB/s)": value / 1e6 for name, value in rates.items()}
    for name in sizes:
        figures[f"{name}, ratio to CRC32C alone"] = rates[f"{name}, one core"] / rates[f"{name}, CRC32C alone"]
    for name, found in peaks.items():
        figures[f"graph, {name} (s)"] = sum(sizes.values()) / rates[f"graph, {name}"]
        figures[f"graph, {name}, peak memory, ratio to the result"] = statistics.median(found)
    with without_this_folder():
        for peer, read in PEERS.items():
            if find_spec(peer) is None:
                figures[peer] = "not installed"
                continue
            for name in sizes:
                files = files_of(root / name)[:PEER_FILES]
                read(files[:1], name)  # imports what it needs
                seconds, count = timed(lambda files=files, name=name, read=read: read(files, name))
                assert count > 0
                figures[f"{name}, {peer} (MB/s)"] = (peer_rate := num_bytes(files) / seconds) / 1e6
                figures[f"{name}, ratio to {peer}"] = rates[f"{name}, one core"] / peer_rate
    return figures


def write(root: Path, num_nodes: int, num_edges: int, num_files: int) -> dict[str, float]:
    """Write the files that are not there; return the MB/s of writing."""
    generator = torch.Generator().manual_seed(0)
    figures = {}
    if not files_of(root / "nodes"):
        columns = {"id": torch.arange(num_nodes), "feat": torch.randn(num_nodes, WIDTH, generator=generator)}
        seconds, _ = timed(lambda: datasets.write_tf_records(root / "nodes", columns, num_files=num_files))
        figures["write nodes (MB/s)"] = num_bytes(files_of(root / "nodes")) / seconds / 1e6
    if not files_of(root / "edges"):
        ends = torch.randint(num_nodes, (2, num_edges), generator=generator)
        columns = {"src": ends[0], "dst": ends[1]}
        seconds, _ = timed(lambda: datasets.write_tf_records(root / "edges", columns, num_files=num_files))
        figures["write edges (MB/s)"] = num_bytes(files_of(root / "edges")) / seconds / 1e6
    return figures


def infos(root: Path) -> tuple[datasets.SerializedTFRecordInfo, datasets.SerializedTFRecordInfo]:
    nodes = datasets.SerializedTFRecordInfo(root / "nodes", ["feat"], {"id": INT, "feat": FLOATS}, WIDTH, "id")
    edges = datasets.SerializedTFRecordInfo(root / "edges", [], {"src": INT, "dst": INT}, 0, ("src", "dst"))
    return nodes, edges


def graph_load(nodes: Any, edges: Any, parallel: bool, peaks: list[float]) -> Callable[[], Any]:
    """Return a call that loads the graph, and adds its peak, as a ratio to the result, to `peaks`."""

    def load() -> None:
        with peak_of_all() as peak:
            loaded = datasets.load_torch_tensors_from_tf_record(
                datasets.TFRecordDataLoader(0, 1), datasets.SerializedGraphMetadata(nodes, edges), parallel
            )
        result = sum(each.nbytes for each in (loaded.node_ids, loaded.node_features, loaded.edge_index))
        peaks.append(peak() / result)

    return load


def check(files: Sequence[Path]) -> None:
    """Read files as the loader does, and check each record's CRC32C."""
    room = memoryview(bytearray(BUFFER))
    for path in files:
        begin = 0
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(room[begin:]):
                _, used, problem = _core.scan_records(room[: begin + count], True)
                assert not problem, problem
                rest = room[used : begin + count]
                begin = len(rest)
                room[:begin] = rest


# --- peers


@contextmanager
def without_this_folder() -> Iterator[None]:
    """Let `import tfrecord` find the package and not this file."""
    folder = str(Path(__file__).parent)
    sys.path.remove(folder)
    try:
        yield
    finally:
        sys.path.insert(0, folder)


def read_by_tfrecord(files: Sequence[Path], name: str) -> int:
    from tfrecord.torch.dataset import TFRecordDataset

    kinds = {"id": "int", "feat": "float"} if name == "nodes" else {"src": "int", "dst": "int"}
    return sum(1 for path in files for _ in TFRecordDataset(str(path), None, kinds))


def read_by_tensorflow(files: Sequence[Path], name: str) -> int:
    import tensorflow as tf

    number = tf.io.FixedLenFeature([], tf.int64)
    spec = {"id": number, "feat": tf.io.FixedLenFeature([WIDTH], tf.float32)}
    spec = spec if name == "nodes" else {"src": number, "dst": number}
    records = tf.data.TFRecordDataset([str(path) for path in files]).batch(10_000)
    parsed = records.map(lambda each: tf.io.parse_example(each, spec)).prefetch(1)
    return sum(len(batch["id" if name == "nodes" else "src"]) for batch in parsed)


PEERS: dict[str, Callable[[Sequence[Path], str], int]] = {
    "tfrecord": read_by_tfrecord,
    "tensorflow": read_by_tensorflow,
}


# --- helpers


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tfrecord"))


def num_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def rate(size: int, work: Callable[[], Any]) -> Callable[[int], float]:
    return lambda _: size / timed(work)[0]


@contextmanager
def peak_of_all() -> Iterator[Callable[[], int]]:
    """Give a function that returns the most memory that the block took, of this process, its children, and shared."""
    before, most, ended = memory_of_all(), [0], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            most[0] = max(most[0], memory_of_all() - before)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        thread.join()


def memory_of_all() -> int:
    """Return the anonymous memory of this process and all that it started, and the shared memory of the system."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    shared = next(1024 * int(line.split()[1]) for line in lines if line.startswith("Shmem:"))
    return shared + sum(anonymous_bytes(pid) for pid in tree())


def tree() -> list[str]:
    """Return the ids of this process and of all that it and they started."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[folder.name] = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[1]
            except OSError:
                continue
    found = [str(os.getpid())]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def anonymous_bytes(pid: str) -> int:
    """Return the anonymous memory of a process; a page that several have counts in shares."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))


if __name__ == "__main__":
    main()
