"""Sort edges by destination in bounded memory: first into buckets of successive destinations, then each bucket.

The edges of a bucket stay in the order in which they were added. So a bucket that is read and sorted stably by
destination gives successive edges of the graph. A bucket that is too large for memory is cut into buckets again. The
edges of a single node need no sort.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.folder import check_space
from datapipes.base.rows import byte_rows, take_rows
from datapipes.graph.checks import MAX_NODES
from datapipes.graph.npy import to_numpy
from datapipes.ingest.edge_chunks import Column

_MOST_BUCKETS = 256  # the write streams of so many buckets fit the cache
_BUFFER_BYTES = 2**20  # of writes; most pieces are smaller
_NODE_BYTES, _FEW_NODES = 24, 4096  # of a bucket: bytes for each node (offset, degree, position); nodes that always fit
_SORT_BYTES = 24  # memory of the kernel for each edge, besides its ends: the order, and the bucket being sorted


class SortedEdges(NamedTuple):
    """The in-edges of successive nodes, as `Buckets.sorted` yields them.

    The edges of one node may be in several SortedEdges; only the first of the several has the degree of the node.

    Attributes:
        degrees: int64 [n], the number of in-edges of each node.
        columns: {name: values of the edges}.
    """

    degrees: Tensor
    columns: dict[str, Tensor]


class Buckets:
    """Edges that are grouped into buckets by destination; a bucket is a range of destinations.

    Edges are added in memory. When memory is full, all of them are written to a file.

    Args:
        file: where edges are written; file and folder are made at the first write.
        num_nodes: destinations are in [0, num_nodes).
        columns: {name: Column} of the values of an edge; "indices", the sources, must be among them.
        most_bytes: when the edges in memory take `most_bytes` or more, they are written to the file.

    Attributes:
        counts: int64 [num_buckets], the number of edges in each bucket.
        held_bytes: the bytes of the edges in memory.

    Each write appends a run to the file: the offsets of the buckets in the run, int64 [num_buckets + 1], then each
    column, bucket after bucket.
    """

    def __init__(self, file: Path, num_nodes: int, columns: Mapping[str, Column], most_bytes: int) -> None:
        self.file, self.num_nodes, self.columns = file, num_nodes, dict(columns)
        self._shift = max((max(num_nodes - 1, 0)).bit_length() - (_MOST_BUCKETS.bit_length() - 1), 0)
        self.num_buckets = (max(num_nodes - 1, 0) >> self._shift) + 1
        self._all = {"dst": Column(torch.int32 if self._shift < 31 else torch.int64, ()), **self.columns}
        self.edge_bytes = sum(column.row_bytes for column in self._all.values())
        self.counts = np.zeros(self.num_buckets, np.int64)
        self._most_bytes, self.held_bytes = most_bytes, 0
        self._held: list[tuple[NDArray[np.int64], dict[str, Tensor]]] = []
        self._runs: list[tuple[int, NDArray[np.int64]]] = []  # (first byte in the file, offsets of the buckets)
        self._end = 0  # of the last run: a position in the file

    @property
    def is_written(self) -> bool:
        """Whether some edges are in the file."""
        return len(self._runs) > 0

    def add(self, dst: NDArray[Any], columns: Mapping[str, Tensor], first: int = 0) -> bool:
        """Add edges behind those that were added before. Return True if after this call all edges are in the file.

        Args:
            dst: the destinations.
            columns: {name: values of the edges}, all columns, or all but "edge_ids".
            first: the id of the first of these edges, used if "edge_ids" is missing; ids then count up.
        """
        src = columns["indices"].numpy()
        bucket = (dst >> self._shift).astype(src.dtype, copy=False)
        # Sources were checked before, so the kernel gets the largest bound, which refuses none.
        indptr, indices, order = _core.coo_to_csc(src, bucket, self.num_buckets, num_sources=_most_sources(src))
        within = torch.from_numpy((dst & ((1 << self._shift) - 1)).astype(_numpy_of(self._all["dst"]), copy=False))
        places = torch.from_numpy(order)
        others = {name: values for name, values in columns.items() if name != "indices"}
        grouped = {
            name: take_rows(values, byte_rows(values), places) for name, values in {"dst": within, **others}.items()
        }
        grouped["indices"] = torch.from_numpy(indices)
        if "edge_ids" in self.columns and "edge_ids" not in columns:
            grouped["edge_ids"] = places.add_(first)
        self._held.append((indptr, grouped))
        self.counts += np.diff(indptr)
        self.held_bytes += len(dst) * self.edge_bytes
        if self.held_bytes < self._most_bytes:
            return False
        self.write()
        return True

    def write(self) -> None:
        """Write all edges that are in memory to the file, as one run."""
        if not self._held:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        check_space(self.file.parent, self.held_bytes)
        indptr = np.sum([indptr for indptr, _ in self._held], axis=0)
        with self.file.open("r+b" if self.is_written else "wb", _BUFFER_BYTES) as file:
            file.seek(self._end)
            file.write(indptr.data)
            for name in self._all:
                held = [(begins, to_numpy(grouped[name])) for begins, grouped in self._held]
                pieces = (
                    values[begins[bucket] : begins[bucket + 1]]
                    for bucket in range(self.num_buckets)
                    for begins, values in held
                )
                file.writelines(piece.data for piece in pieces if piece.nbytes > 0)
        self._add_run(indptr)
        self._held, self.held_bytes = [], 0

    def _add_run(self, indptr: NDArray[np.int64]) -> None:
        self._runs.append((self._end, indptr))
        self._end += indptr.nbytes + int(indptr[-1]) * self.edge_bytes

    def take_written(self, num_edges: int) -> None:
        """Use the first `num_edges` edges in the file, written by a killed process. Later writes overwrite the rest.

        Raises:
            OSError, ValueError: The file does not have these edges.
        """
        if num_edges == 0:
            return
        with self.file.open("rb") as file:
            size, count = os.fstat(file.fileno()).st_size, 0
            while count < num_edges:
                file.seek(self._end)
                indptr = np.fromfile(file, np.int64, self.num_buckets + 1)
                if len(indptr) <= self.num_buckets or indptr[0] != 0 or not 0 < indptr[-1] == indptr.max():
                    raise ValueError(f"{self.file} has no run at byte {self._end}")
                self._add_run(indptr)
                self.counts += np.diff(indptr)
                count += int(indptr[-1])
        if count != num_edges or self._end > size or self.counts.min() < 0:
            raise ValueError(f"{self.file} has {count} edges in {size} bytes; {num_edges} in {self._end} were written")

    def sorted(self, most_bytes: int) -> Iterator[SortedEdges]:
        """Yield all edges by ascending destination.

        The in-edges of a node keep the order in which they were added. The file is not removed.

        Args:
            most_bytes: the most bytes of memory for sorting a bucket.
        """
        spent = self.edge_bytes + 2 * self.columns["indices"].row_bytes + _SORT_BYTES
        spent += sum(column.row_bytes for name, column in self.columns.items() if name != "indices")
        most_nodes = max(most_bytes // 4 // _NODE_BYTES, _FEW_NODES)
        for bucket, count in enumerate(self.counts.tolist()):
            first = bucket << self._shift
            num_nodes = min(1 << self._shift, self.num_nodes - first)
            most_edges = max((most_bytes - _NODE_BYTES * min(num_nodes, most_nodes)) // spent, 1)
            if count <= most_edges and num_nodes <= most_nodes:
                yield self._sorted_bucket(bucket, num_nodes)
            elif num_nodes == 1:
                yield from self._of_one_node(bucket, count, most_edges)
            else:
                file = self.file.with_name(f"{self.file.name}.{bucket}")
                parts = Buckets(file, num_nodes, self.columns, most_bytes // 4)
                step = max(most_edges // 4, 1)
                for begin in range(0, count, step):
                    read = self._read(bucket, begin, min(begin + step, count))
                    parts.add(read.pop("dst").numpy(), read)
                parts.write()
                yield from parts.sorted(most_bytes)
                file.unlink(missing_ok=True)  # no file if there were no edges

    def _sorted_bucket(self, bucket: int, num_nodes: int) -> SortedEdges:
        read = self._read(bucket, 0, int(self.counts[bucket]))
        dst, src = read.pop("dst").numpy(), read.pop("indices").numpy()
        if dst.dtype != src.dtype:
            dst = dst.astype(src.dtype)
        indptr, indices, order = _core.coo_to_csc(src, dst, num_nodes, num_sources=_most_sources(src))
        places = torch.from_numpy(order)
        columns = {name: take_rows(values, byte_rows(values), places) for name, values in read.items()}
        return SortedEdges(torch.from_numpy(np.diff(indptr)), {"indices": torch.from_numpy(indices), **columns})

    def _of_one_node(self, bucket: int, count: int, most: int) -> Iterator[SortedEdges]:
        degrees = torch.tensor([count])
        for begin in range(0, count, most):
            read = self._read(bucket, begin, min(begin + most, count))
            read.pop("dst")
            yield SortedEdges(degrees, read)
            degrees = degrees[:0]

    def _read(self, bucket: int, begin: int, end: int) -> dict[str, Tensor]:
        """Return the edges [begin, end) of a bucket as {name: values}.

        The columns include "dst", the destinations, counted from the first node of the bucket.
        """
        sizes = {name: ((end - begin, *column.shape), column.dtype) for name, column in self._all.items()}
        edges = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in sizes.items()}
        with self.file.open("rb") if self._runs else contextlib.nullcontext() as file:
            before = 0
            for offset, indptr in self._runs:
                first, last = max(begin - before, 0), min(end - before, int(indptr[bucket + 1] - indptr[bucket]))
                if first < last:
                    place = offset + indptr.nbytes
                    for name, column in self._all.items():
                        rows = edges[name][before + first - begin : before + last - begin]
                        _read_into(file, rows, place + (int(indptr[bucket]) + first) * column.row_bytes)
                        place += int(indptr[-1]) * column.row_bytes
                before += int(indptr[bucket + 1] - indptr[bucket])
        for indptr, grouped in self._held:
            count = int(indptr[bucket + 1] - indptr[bucket])
            first, last = max(begin - before, 0), min(end - before, count)
            if first < last:
                held = slice(int(indptr[bucket]) + first, int(indptr[bucket]) + last)
                for name, values in grouped.items():
                    edges[name][before + first - begin : before + last - begin] = values[held]
            before += count
        return edges


def _most_sources(src: NDArray[Any]) -> int:
    return min(int(np.iinfo(src.dtype).max), MAX_NODES)


def _numpy_of(column: Column) -> Any:
    return torch.empty(0, dtype=column.dtype).numpy().dtype


def _read_into(file: Any, rows: Tensor, place: int) -> None:
    values = to_numpy(rows)
    file.seek(place)
    if file.readinto(values.data) < values.nbytes:
        raise OSError(f"{file.name} has become shorter. Something has changed it; begin anew.")
