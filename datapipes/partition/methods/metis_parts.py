"""The method "metis": METIS cuts few edges and balances the combined weight of nodes (all_nodes.py).

The graph for METIS is undirected: both directions of each edge, no self-loops, no parallel edges. Parallel and opposite
edges become one edge. METIS runs in a process of its own (metis_child.py), which is started, watched and ended here.
The graph is in anonymous memory that METIS's process maps. Only the descriptor is sent, and this process has no copy
while METIS runs. At the end `even_parts` balances each measure of the weight (nodes, in-edges, training nodes) by
itself, as after Fennel.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipes import _core
from datapipes.base.errors import needed, sentence
from datapipes.base.progress import Progress
from datapipes.base.sizes import check_memory
from datapipes.graph.graph import Graph
from datapipes.partition.book import smallest_dtype
from datapipes.partition.methods.all_nodes import EVEN, STAGE, UNITS, AllNodes
from datapipes.partition.methods.metis_child import HEADER_BYTES
from datapipes.processes.endings import how_it_exited

__all__ = ["MetisError"]

EVEN_ENOUGH = 0.05  # up to this `Evened.worst` parts are even: none has more than 1.15 times the mean
MOST_RUNS = 5
MOST_CUT = 1.5  # times the smallest cut
MOST_WEIGHT = 2**30  # of all nodes together: METIS may count in int32

_REMEDY = "Use method='fennel', which needs few bytes a node, or a machine with more memory."


def require_pymetis() -> None:
    """Raise ModuleNotFoundError if pymetis is not installed; the message says what to install."""
    needed("pymetis", "partition", "Partitioner: method='metis'", "; or use method='fennel'")


def index_dtype() -> np.dtype[Any]:
    """Return the integer dtype of graphs that METIS reads without a copy; it depends on how METIS was built."""
    import pymetis

    if hasattr(pymetis, "zero_copy_dtype"):  # since pymetis 2025.2.1
        dtype: np.dtype[Any] = pymetis.zero_copy_dtype()
        return dtype
    two_nodes = pymetis.CSRAdjacency(np.array([0, 1, 2]), np.array([1, 0]))
    return np.asarray(pymetis.part_graph(2, two_nodes).vertex_part).dtype


def metis_parts(
    graph: Graph, nodes: AllNodes, num_parts: int, *, recursive: bool, rng_seed: int, progress: Progress
) -> tuple[NDArray[Any], int]:
    """Choose parts by METIS, and return (parts, peak).

    parts: the part of each node, indexed by its number in `nodes`, uint8 or int16. peak: the peak memory of METIS's
    process in bytes.

    METIS balances the combined weight; `even_parts` then balances each measure of the weight (nodes, in-edges, training
    nodes). If the largest part has more than 1.15 times the mean of a measure, METIS runs again, up to MOST_RUNS times
    in all. Each run has another seed, and larger shares of the uneven measures in the weight. Results with more than
    1.5 times the smallest cut are dropped, and the most even of the others is taken. If this result is still uneven, it
    is balanced once more.

    METIS runs in a process of its own, which ends with this call whatever happens. Call `require_pymetis` before this.

    Time O((nodes + edges) log num_parts).

    Raises:
        ValueError: The graph is corrupt, or too large for the integers of METIS.
        MemoryError: Too little memory is left for the undirected graph.
        MetisError: The process ended without a result.
    """
    weighted = nodes.combined.per_edge > 0 or nodes.combined.extra > 0
    memory = os.memfd_create("datapipes-metis", os.MFD_CLOEXEC)
    made: list[tuple[Evened, NDArray[Any]]] = []
    peak_bytes = 0
    try:
        undirected = _write_graph(memory, graph, nodes, weighted, progress)
        request: dict[str, Any] = {
            **undirected,
            "dtype": str(smallest_dtype(num_parts)).removeprefix("torch."),
            "num_parts": num_parts,
            "recursive": recursive,
        }
        for number in range(MOST_RUNS if weighted else 1):
            if weighted:
                _write_weights(memory, nodes, request)
            request["seed"] = _core.hop_key(rng_seed, 0, number, STAGE, 1, 0) % 2**31
            parts, peak = _parts_of(request, memory, progress)
            evened = even_parts(graph, nodes, parts, num_parts)
            made.append((evened, parts))
            peak_bytes = max(peak_bytes, peak)
            most_cut = MOST_CUT * min(run.cut_after for run, _ in made)
            best, chosen = min((run for run in made if run[0].cut_after <= most_cut), key=lambda run: run[0].worst)
            if best.worst <= EVEN_ENOUGH:
                break
            nodes.weigh({name: share * (1 + evened.before[name]) for name, share in nodes.shares.items()})
        even_at_last(graph, nodes, chosen, num_parts, best)
    finally:
        os.close(memory)
    return chosen, peak_bytes


def _parts_of(request: dict[str, Any], memory: int, progress: Progress) -> tuple[NDArray[Any], int]:
    """Run METIS once on the graph in the shared memory; return (parts, peak).

    parts: the part of each node, in the dtype that `request` names; peak: the peak memory of METIS's process in bytes.
    """
    os.pwrite(memory, bytes(HEADER_BYTES), 0)
    _run_metis(request, memory, progress)
    has_answer, peak_bytes = _mapped(memory, np.dtype(np.int64), 0, 2).tolist()
    if not has_answer:
        raise MetisError("Partitioner: METIS's process ended well and left no result. Run it again.")
    parts = _mapped(memory, np.dtype(request["dtype"]), request["parts_at"], request["num_nodes"])
    return parts.copy(), peak_bytes


def _write_graph(memory: int, graph: Graph, nodes: AllNodes, weighted: bool, progress: Progress) -> dict[str, Any]:
    """Write the undirected graph to the shared memory; return the fields of the request that say where its arrays are.

    Args:
        memory: descriptor of the memory.
        weighted: whether to leave room for the weights of the nodes.
    """
    progress("make the undirected graph", 0, 0)
    topology, index = graph.topology(), index_dtype()
    weights_at = HEADER_BYTES + (nodes.total + 1) * index.itemsize
    neighbors_at = weights_at + (nodes.total * index.itemsize if weighted else 0)
    _grow(memory, 0, neighbors_at)
    xadj = _mapped(memory, index, HEADER_BYTES, nodes.total + 1)
    entries = _core.count_neighbors(topology, xadj)
    _grow(memory, neighbors_at, entries * index.itemsize)
    entries = _core.fill_neighbors(topology, xadj, _mapped(memory, index, neighbors_at, entries))
    os.ftruncate(memory, neighbors_at + entries * index.itemsize)  # parallel edges have left room behind
    return {
        "num_nodes": nodes.total,
        "entries": entries,
        "index": index.name,
        "weighted": weighted,
        "weights_at": weights_at,
        "neighbors_at": neighbors_at,
        "parts_at": weights_at if weighted else HEADER_BYTES,  # overwrites what METIS has read, and no later run reads
    }


def as_metis_counts(weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `weights` scaled down to integers that METIS can add up: all nodes together weigh up to MOST_WEIGHT."""
    return weights // (UNITS // MOST_WEIGHT)


def _write_weights(memory: int, nodes: AllNodes, request: Mapping[str, Any]) -> None:
    """Write the weight of each node to the shared memory, at the position that `request` gives."""
    weights = _mapped(memory, np.dtype(request["index"]), request["weights_at"], nodes.total)
    for node_type in nodes.types:
        at = nodes.offsets[node_type]
        for some in nodes.weights(node_type):
            weights[at : at + len(some)] = as_metis_counts(some)
            at += len(some)


def _grow(memory: int, begin: int, num_bytes: int) -> None:
    """Reserve shared memory up to byte begin + num_bytes.

    A lack of memory then is an error here, not a signal later.
    """
    check_memory("Partitioner", "the undirected graph for METIS", num_bytes, _REMEDY)
    try:
        if num_bytes > 0:
            os.posix_fallocate(memory, begin, num_bytes)
    except OSError as error:
        raise MemoryError(
            f"Partitioner: the undirected graph for METIS needs {num_bytes} bytes: {sentence(error)} {_REMEDY}"
        ) from error


def _mapped(memory: int, dtype: np.dtype[Any], begin: int, count: int) -> NDArray[Any]:
    """Return an array of `count` values over the shared memory, from byte `begin` on; it keeps the memory mapped."""
    array: NDArray[Any] = np.ndarray(count, dtype, mmap.mmap(memory, 0), begin)
    return array


SCRIPT = Path(__file__).with_name("metis_child.py")
LOOK_S = 0.25  # seconds between two calls of `progress`
MOST_OUTPUT = 2000  # bytes of METIS's output in an error


class MetisError(RuntimeError):
    """The process in which METIS ran ended without a result. The message says how it ended, and has its last output."""


def _run_metis(request: Mapping[str, Any], memory: int, progress: Progress) -> None:
    """Run metis_child.py in a new process, send it `request`, and return when it has written the answer to the memory.

    If this call raises, KeyboardInterrupt included, the process has ended. The process also ends with this thread.

    Raises:
        MetisError: The process ended with another exit code than 0, or was killed.
    """
    if not sys.executable:
        raise MetisError("Partitioner: METIS needs a process of its own, and sys.executable names no Python. Set it.")
    with subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT)],  # -I: neither the current folder nor the environment adds modules
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(memory,),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's threads would have no work
        start_new_session=True,  # Ctrl-C reaches only the caller, which then ends METIS's process
    ) as process:
        try:
            # "" is the current folder; Python skips entries that are no str, such as a Path
            path = [folder for folder in sys.path if isinstance(folder, str) and folder]
            output = _output(process, {**request, "memory": memory, "parent": os.getpid(), "path": path}, progress)
        finally:
            process.kill()  # does nothing if the process has been waited for
            process.wait()
    if process.returncode != 0:
        text = output[-MOST_OUTPUT:].decode(errors="replace")
        last = " | ".join(line.strip() for line in text.splitlines() if line.strip())
        raise MetisError(
            f"Partitioner: METIS's process ended without a result: {how_it_exited(process.returncode)}. Its last "
            f"output: {last or 'none'}. Give it more memory, or use method='fennel', which needs little."
        )


def _output(process: subprocess.Popen[bytes], request: dict[str, Any], progress: Progress) -> bytes:
    """Send `request` to METIS's process, wait until the process ends, and return what it printed.

    Meanwhile `progress` is called every LOOK_S seconds.
    """
    began, left = time.monotonic(), json.dumps(request).encode()
    while True:
        try:
            return process.communicate(left, LOOK_S)[0]
        except subprocess.TimeoutExpired:
            left = b""  # a further call still sends the rest of the request
        seconds = int(time.monotonic() - began)
        progress(f"METIS, {seconds} s", seconds, 0)


# --- each measure by itself, with as few more cut edges as possible


class Evened(NamedTuple):
    """How uneven the parts are, and how many edges they cut, before and after a call of `even_parts`.

    Attributes:
        before, after: {measure: excess}. The excess is what the largest part has above 1.1 times the mean, divided by
            the mean; 0 if there is no excess. For the measure "nodes", the largest excess over all node types.
        cut_before, cut_after: number of edges whose ends are in different parts.
    """

    before: dict[str, float]
    after: dict[str, float]
    cut_before: int
    cut_after: int

    @property
    def worst(self) -> float:
        """How uneven the parts are after the call: the largest excess over 1.1 times the mean, of any measure."""
        return max(self.after.values())


def even_parts(graph: Graph, nodes: AllNodes, parts: NDArray[Any], num_parts: int, *, more_cut: int = 0) -> Evened:
    """Balance the parts in place: where a part has more than 1.1 times the mean of a measure, move nodes out of it.

    The measures are those that have a share in the combined weight (all_nodes.py): the nodes of each type by
    themselves, the in-edges, the training nodes. The number of cut edges grows by at most 15 % or `more_cut`, whichever
    is more, so a measure may stay uneven. csrc/partition/even_parts.h has all rules, time and memory.

    Source: Fiduccia, Mattheyses: A linear-time heuristic for improving network partitions, DAC 1982.

    Args:
        parts: the part of each node, indexed by its number in `nodes`; uint8 or int16, changed in place.
    Raises:
        ValueError: The graph is corrupt.
    """
    counted = nodes.shares.get("train", 0) > 0
    before, after, cut_before, cut_after = _core.even_parts(
        graph.topology(),
        parts,
        num_parts=num_parts,
        nodes=nodes.shares.get("nodes", 0) > 0,
        edges=nodes.shares.get("edges", 0) > 0,
        more_cut=more_cut,
        training=[mask if counted else None for mask in nodes.training_bytes()],
    )
    return Evened(dict(zip(EVEN, before, strict=True)), dict(zip(EVEN, after, strict=True)), cut_before, cut_after)


def even_at_last(graph: Graph, nodes: AllNodes, parts: NDArray[Any], num_parts: int, evened: Evened) -> None:
    """If `evened`, the result of `even_parts`, says that the parts are still uneven, balance them once more.

    This time the number of cut edges may grow by a third.
    """
    if evened.worst > EVEN_ENOUGH:
        even_parts(graph, nodes, parts, num_parts, more_cut=evened.cut_after // 3)
