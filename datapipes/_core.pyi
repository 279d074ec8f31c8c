"""Kernels of the C++ core on NumPy arrays; the contracts are in the headers under csrc/."""

import mmap
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Buffer

_I32 = NDArray[np.int32]
_I64 = NDArray[np.int64]
_Id = TypeVar("_Id", np.int32, np.int64)

STREAM_VERSION: int

def philox4x32(c0: int, c1: int, c2: int, c3: int, key: int) -> tuple[int, int, int, int]: ...
def hop_key(seed: int, epoch: int, batch: int, stage: int, hop: int, etype: int) -> int: ...
def bounded_draws(key: int, node: int, stream: int, ranges: _I64) -> _I64: ...
def permutation_at(num_items: int, key: int, first: int, count: int) -> _I64: ...

# Returns (indptr, neighbors, positions). The positions are edge ids if `edge_ids` is given, None if not `want_places`.
def sample_hop(
    indptr: _I64,
    indices: NDArray[_Id],
    seeds: _I64,
    *,
    fanout: int,
    replace: bool,
    key: int,
    node_ids: _I64 | None = None,
    num_sources: int | None = None,
    seed_ids: _I64 | None = None,
    edge_ids: _I64 | None = None,
    want_places: bool = True,
    num_threads: int = 1,
    streams: NDArray[np.uint32] | None = None,
    times: _I64 | None = None,
    choice: Choice | None = None,  # None: draw uniformly; a Choice of one relation
) -> tuple[_I64, NDArray[_Id], Any]: ...
def compact(ids: NDArray[_Id], *, num_nodes: int, direct_limit: int = ...) -> tuple[NDArray[_Id], NDArray[_Id]]: ...

class NumberingInt32:
    def __init__(self, num_nodes: int, *, direct_limit: int = ...) -> None: ...
    def number(self, ids: _I32) -> _I32: ...
    def nodes(self) -> _I32: ...

class NumberingInt64:
    def __init__(self, num_nodes: int, *, direct_limit: int = ...) -> None: ...
    def number(self, ids: _I64) -> _I64: ...
    def nodes(self) -> _I64: ...

class RowSums:
    def __init__(
        self, sums: NDArray[np.float64], coarse: NDArray[np.float64], drawable: _I64 | None = None
    ) -> None: ...

def row_sums(
    indptr: _I64,
    values: NDArray[np.uint8],
    *,
    dtype: str,
    what: str = ...,
    node_ids: _I64 | None = None,
    num_threads: int = 1,
) -> tuple[NDArray[np.float64], NDArray[np.float64], _I64 | None]: ...
def draw_items(key: int, num_items: int, weights: RowSums | None, first: int, count: int) -> _I64: ...
def order_items(key: int, num_items: int, weights: RowSums, count: int) -> _I64: ...

class Topology:
    def __init__(
        self,
        node_types: list[tuple[str, int] | tuple[str, int, int]],
        relations: list[tuple[int, int, _I64, _I32 | _I64, _I64 | None, str]],
    ) -> None: ...

# node type, rows, ids, streams, times, windows
_RowsOfType = tuple[int, _I64, _I64, NDArray[np.uint32] | None, _I64 | None, _I64 | None]

def sample_hops(
    graph: Topology,
    *,
    rows: list[_RowsOfType],
    draws: list[tuple[int, int, int]],  # relation, fanout, key
    replace: bool,
    want_edge_ids: bool,
    choice: Choice | None = None,
    num_threads: int = 1,
) -> tuple[_I64, NDArray[Any], Any]: ...

_Block = tuple[_I64, NDArray[Any], _I64 | None, int]

class Groups:
    def __init__(
        self,
        of_seeds: list[_I64],
        *,
        count: int,
        streams: NDArray[np.uint32] | None = None,
        times: _I64 | None = None,
        windows: _I64 | None = None,
    ) -> None: ...

_Coarse = tuple[NDArray[np.int16], int, int]  # of fill_coarse_times: the coarse times, low, shift
_Times = tuple[_I64, _I64 | None, NDArray[np.uint8], _Coarse | None]  # latest, earliest (None: equal), sorted_rows, ...

class EdgeTimes:
    def __init__(
        self,
        relations: list[_Times | None],
        *,
        last: bool = False,
        inclusive: bool = False,
        window: int | None = None,
        weights: list[NDArray[np.float64]] = ...,
    ) -> None: ...

class Weights:
    def __init__(self, relations: Sequence[RowSums | None]) -> None: ...  # one for each sampled relation

class Layers:
    def __init__(
        self,
        *,
        dependency: int,
        until_next: int,
        next_keys: list[list[int]],
        offset_keys: list[list[int]],
        weights: Sequence[RowSums | None] = ...,  # one for each sampled relation; empty: without weights
    ) -> None: ...

Choice = EdgeTimes | Weights | Layers  # for type checkers only

class Padding:
    def __init__(self, buckets: list[tuple[list[int], list[list[int]], list[list[int]]]]) -> None: ...

def sample_neighbors(
    graph: Topology,
    seeds: list[tuple[int, _I64]],
    *,
    sampled: list[int],
    fanouts: list[list[int]],
    keys: list[list[int]],
    replace: bool,
    only_new: bool,
    want_edge_ids: bool,
    only_among: bool = False,
    direct_limit: int = ...,
    num_threads: int = 1,
    op: str = "sample_neighbor",
    groups: Groups | None = None,
    choice: Choice | None = None,
    padding: Padding | None = None,
    num_seeds: list[int] = ...,
) -> tuple[list[NDArray[Any]], list[NDArray[Any]], list[list[_Block]], list[_I64], int | None]: ...
def random_walks(
    graph: Topology,
    seeds: _I64,
    *,
    steps: list[tuple[int, int, int]],
    sums: list[RowSums | None] | None = None,
    walks_per_node: int = 1,
    p: float = 1.0,
    q: float = 1.0,
    sorted: NDArray[Any] | None = None,
    want_edge_ids: bool = False,
    num_threads: int = 1,
    op: str = "sample_random_walk",
) -> tuple[NDArray[Any], _I64 | None]: ...

class WalkStep:
    def __init__(self, key: int, number: int, end_below: int = 0, p: float = 1.0, q: float = 1.0) -> None: ...

def draw_steps(
    indptr: _I64,
    indices: NDArray[Any],
    edge_ids: _I64 | None,
    num_sources: int,
    rows: _I64,
    walkers: _I64,
    before: _I64,
    step: WalkStep,
    sums: RowSums | None = None,
    op: str = "sample_random_walk",
) -> tuple[_I64, NDArray[Any], _I64, NDArray[np.uint8], NDArray[np.float64]]: ...
def whole_rows(
    indptr: _I64,
    indices: NDArray[Any],
    edge_ids: _I64 | None,
    num_sources: int,
    rows: _I64,
    sums: RowSums | None = None,
    most: _I64 | None = None,
    op: str = "sample_random_walk",
) -> tuple[_I64, NDArray[Any], _I64, NDArray[np.uint8], NDArray[np.float64]]: ...
def chosen_in_rows(
    counts: _I64,
    sources: _I64,
    sums: NDArray[np.float64],
    near: NDArray[np.uint8],
    walkers: _I64,
    before: _I64,
    step: WalkStep,
) -> _I64: ...
def ppr(
    graph: Topology, seeds: _I64, *, keep: int, eps: int, count: int, num_threads: int = 1, op: str = "sample_ppr"
) -> tuple[NDArray[Any], NDArray[np.uint64], int]: ...

class PprOverParts:
    def __init__(self, seeds: _I64, *, num_nodes: int, keep: int, eps: int, count: int) -> None: ...
    def wanted(self) -> tuple[_I64, _I64]: ...
    def give(self, nodes: _I64, degrees: _I64, sources: _I64) -> None: ...
    def largest(self) -> tuple[_I64, NDArray[np.uint64], int]: ...

def sorted_sources(indptr: _I64, indices: NDArray[Any], *, num_threads: int = 1) -> NDArray[Any]: ...

class GraphInParts:
    def __init__(
        self,
        num_parts: int,
        node_types: list[tuple[str, int, NDArray[Any]]],
        relations: list[tuple[int, int, str]],
        op: str,
    ) -> None: ...

# node type; ids, and their streams, times and windows
_Rows = tuple[int, NDArray[Any], NDArray[np.uint32] | None, _I64 | None, _I64 | None]
_Ask = tuple[int, list[_Rows], list[int]]  # part; rows; places in `sampled`

class HopsOverParts:
    def __init__(
        self,
        graph: GraphInParts,
        *,
        sampled: list[int],
        fanouts: list[list[int]],
        replace: bool,
        only_new: bool,
        want_edge_ids: bool,
        narrow: bool,
        only_among: bool = False,
        groups: Groups | None = None,
    ) -> None: ...
    def start(self, seeds: list[tuple[int, _I64]]) -> tuple[list[NDArray[Any]], list[_Ask]]: ...
    def advance(
        self, answers: list[tuple[_I64, NDArray[Any], _I64 | None]]
    ) -> tuple[list[_Block], list[_Ask] | None]: ...
    def finish(self) -> tuple[list[NDArray[Any]], list[_I64]]: ...

def gather_rows(
    table: NDArray[np.uint8], ids: _I32 | _I64, *, out: NDArray[np.uint8] | None = None, num_threads: int = 1
) -> NDArray[np.uint8]: ...
def gather_decoded(
    table: NDArray[np.uint8],
    ids: _I32 | _I64,
    *,
    stored_as: str,
    scale: NDArray[np.float32] | None = None,
    out: NDArray[np.uint8] | None = None,
    num_threads: int = 1,
) -> NDArray[np.uint8]: ...
def place_rows(
    table: NDArray[np.uint8],
    rows: _I32 | _I64 | None,
    places: _I64,
    *,
    out: NDArray[np.uint8],
    num_threads: int = 1,
) -> None: ...
def new_rows(num_rows: int, row_bytes: int) -> NDArray[np.uint8]: ...
@overload
def coo_to_csc(
    src: _I32,
    dst: _I32,
    num_nodes: int,
    *,
    num_sources: int | None = None,
    partition_from: int = ...,
    spare_bytes: int | None = None,
) -> tuple[_I64, _I32, _I64]: ...
@overload
def coo_to_csc(
    src: _I64,
    dst: _I64,
    num_nodes: int,
    *,
    num_sources: int | None = None,
    partition_from: int = ...,
    spare_bytes: int | None = None,
) -> tuple[_I64, _I64, _I64]: ...
@overload
def csc_to_coo(hops: list[tuple[_I64, _I32]], edge_ids: list[_I64]) -> tuple[_I64, _I64]: ...
@overload
def csc_to_coo(hops: list[tuple[_I64, _I64]], edge_ids: list[_I64]) -> tuple[_I64, _I64]: ...
@overload
def pad_block(
    indptr: _I64,
    indices: _I32,
    edge_ids: _I64 | None,
    to: tuple[list[int], list[int]],
    from_: tuple[list[int], list[int]],
    num_edges: int,
    *,
    num_threads: int = 1,
) -> tuple[_I64, _I32, _I64 | None]: ...
@overload
def pad_block(
    indptr: _I64,
    indices: _I64,
    edge_ids: _I64 | None,
    to: tuple[list[int], list[int]],
    from_: tuple[list[int], list[int]],
    num_edges: int,
    *,
    num_threads: int = 1,
) -> tuple[_I64, _I64, _I64 | None]: ...
@overload
def pad_values(values: _I32, layers: tuple[list[int], list[int]], padding: int) -> _I32: ...
@overload
def pad_values(values: _I64, layers: tuple[list[int], list[int]], padding: int) -> _I64: ...
def validate_csc(indptr: _I64, indices: _I32 | _I64, *, num_sources: int | None = None) -> None: ...
def fill_source_times(indices: _I32 | _I64, of_nodes: _I64, out: _I64, *, num_threads: int = 1) -> None: ...
def find_sorted_rows(
    indptr: _I64, latest: _I64, sorted: NDArray[np.uint8], *, earliest: _I64 | None = None, num_threads: int = 1
) -> None: ...

COARSE_PADDING: int

def fill_coarse_times(times: _I64, coarse: NDArray[np.int16], *, num_threads: int = 1) -> tuple[int, int]: ...
def find_edges(
    indptr: _I64, indices: _I32 | _I64, rows: _I64, sources: _I64, *, num_sources: int
) -> tuple[_I64, _I64]: ...  # for each pair: how many edges, the position of the first

class ExcludedEdges:
    @overload
    def __init__(self, sources: _I64, destinations: _I64) -> None: ...
    @overload
    def __init__(self, ids: _I64) -> None: ...
    def without(
        self,
        indptr: _I64,
        indices: NDArray[_Id],
        edge_ids: _I64 | None,
        src_nodes: NDArray[_Id],
        dst_nodes: NDArray[_Id],
    ) -> tuple[_I64, NDArray[_Id], _I64 | None] | None: ...

def corrupt_pairs(key: int, positives: _I64, number: int, ends: list[tuple[int, RowSums | None]]) -> _I64: ...
def draw_negatives(
    key: int, slots: _I64, *, first_try: int, num_tries: int, ends: list[tuple[int, RowSums | None]]
) -> list[_I64]: ...
def piece_hashes(values: NDArray[np.uint8], piece_bytes: int, *, num_threads: int = 1) -> NDArray[np.uint64]: ...
def widened_piece_hashes(values: _I32, piece_values: int, *, num_threads: int = 1) -> NDArray[np.uint64]: ...
def rows_digest(
    indptr: _I64 | None, values: NDArray[Any], *, node_ids: _I64 | None = None, num_threads: int = 1
) -> tuple[int, int]: ...
@overload
def count_neighbors(graph: Topology, xadj: _I32) -> int: ...
@overload
def count_neighbors(graph: Topology, xadj: _I64) -> int: ...
@overload
def fill_neighbors(graph: Topology, xadj: _I32, adjncy: _I32) -> int: ...
@overload
def fill_neighbors(graph: Topology, xadj: _I64, adjncy: _I64) -> int: ...
def even_parts(
    graph: Topology,
    parts: NDArray[np.uint8] | NDArray[np.int16],
    *,
    num_parts: int,
    nodes: bool,
    edges: bool,
    more_cut: int,
    training: list[NDArray[np.uint8] | None],
) -> tuple[tuple[float, float, float], tuple[float, float, float], int, int]: ...

class Fennel:
    def __init__(
        self,
        graph: Topology,
        *,
        num_parts: int,
        key: int,
        base: int,
        per_edge: int,
        extra: int,
        training: list[NDArray[np.uint8] | None],
    ) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def limit(self) -> int: ...
    def visit(self, first: int, count: int) -> None: ...
    def end_pass(self) -> int: ...
    def parts(self) -> NDArray[np.uint8] | NDArray[np.uint16]: ...

class IdRank:
    def __init__(self, ids: _I64, num_ids: int, *, any_order: bool = False) -> None: ...
    @staticmethod
    def over(lines: NDArray[np.uint8], num_ids: int) -> IdRank: ...
    @staticmethod
    def size_bytes(num_ids: int) -> int: ...
    @property
    def num_rows(self) -> int: ...
    def copy_lines(self, out: NDArray[np.uint8]) -> None: ...
    def rows(self, ids: _I32 | _I64, *, num_threads: int = 1) -> _I64: ...

class PartMap:
    def __init__(self, parts: NDArray[np.uint8] | NDArray[np.int16] | _I64, num_parts: int, num_ids: int) -> None: ...

def split_ids(
    op: str,
    owners: PartMap,
    ids: NDArray[_Id],
    *,
    part: int = -1,
    rank: IdRank | None = None,
    first: int = 0,
    hot: IdRank | None = None,
    num_threads: int = 1,
) -> tuple[_I64, NDArray[_Id], list[int]]: ...
def pool_stats() -> dict[str, int]: ...
def pool_trim() -> None: ...
def add_to(counters: _I64, amounts: list[int]) -> None: ...
def read_lines(memory: NDArray[np.uint8], lines: NDArray[np.uint32], *, num_threads: int = 1) -> int: ...
def send_futex_hops(word: mmap.mmap, hops: int, pace_s: float) -> list[float]: ...
def receive_futex_hops(word: mmap.mmap, hops: int, had: int = 0) -> list[float]: ...
def memory_left(root: str = "") -> tuple[int, str]: ...
def limit_hops(bytes: int) -> int: ...  # bounds minibatches that this thread samples; returns the previous bound
def crc32c(data: Buffer, crc: int = 0) -> int: ...
def record_length(data: Buffer) -> int: ...  # with framing; -1: `data` has fewer than 12 bytes
def scan_records(data: Buffer, check_data: bool) -> tuple[int, int, str]: ...  # records, bytes, problem

# key, "int64" or "float32", number of values, default value or values; None: the key must be there
_Column = tuple[bytes, str, int, float | Sequence[float] | None]

class ExampleParser:
    def __init__(self, columns: Sequence[_Column]) -> None: ...
    def parse(self, data: Buffer, targets: Sequence[NDArray[Any]], first_row: int) -> tuple[int, int, str]: ...

class SharedMemory:
    @staticmethod
    def create(num_bytes: int, who: str, huge_pages: bool = False) -> SharedMemory: ...
    @staticmethod
    def attach(descriptor: int) -> SharedMemory: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def descriptor(self) -> int: ...
    def use_huge_pages(self) -> None: ...

class ShmQueue:
    @staticmethod
    def create(capacity: int, data_bytes: int) -> ShmQueue: ...
    @staticmethod
    def attach(descriptor: int) -> ShmQueue: ...
    def send(
        self,
        kind: int,
        epoch: int,
        message: dict[str, Tensor],
        to_dlpack: Callable[[Tensor], object],
        plain: Callable[[Any, Any, int], tuple[Tensor, str]],
        timeout: float | None,
    ) -> bool: ...
    def recv(
        self,
        timeout: float | None,
        from_dlpack: Callable[[object], Tensor],
        as_dtype: Callable[[Tensor, str], Tensor],
    ) -> dict[str, Tensor] | tuple[int, int, dict[str, Tensor]]: ...
    def reset(self, epoch: int | None) -> int: ...
    def close(self) -> None: ...
    def leave(self, by_exit: bool) -> None: ...
    def join(self, inherited: bool) -> None: ...
    def size(self) -> int: ...
    def stats(self) -> dict[str, float]: ...
    @property
    def epoch(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def data_bytes(self) -> int: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def memory(self) -> tuple[int, int]: ...
    def release_in_two_steps(self, on: bool) -> None: ...
    def dropped_slots(self) -> list[int]: ...
    def let_go(self, slots: list[int]) -> None: ...

# disk/
def read_rows(
    descriptor: int,
    ids: _I32 | _I64,
    *,
    begin: int,
    num_rows: int,
    row_bytes: int,
    block: int,
    direct: bool,
    depth: int,
    out: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.uint8], int, int]: ...

# cache/
class RowCache:
    slots: int
    row_bytes: int
    held: int
    def __init__(self, slots: int, row_bytes: int, policy: str, num_ids: int) -> None: ...
    @staticmethod
    def bytes_of_slot(row_bytes: int) -> int: ...
    @staticmethod
    def bytes_of_id(policy: str) -> int: ...
    def take(
        self, ids: _I32 | _I64, out: NDArray[np.uint8], *, count: int, first: int = 0, num_threads: int = 1
    ) -> _I64: ...
    def put(self, ids: _I32 | _I64, rows: NDArray[np.uint8], *, count: int, first: int = 0) -> None: ...
    def forget(self, ids: _I32 | _I64, *, count: int, first: int = 0) -> None: ...

# tables/
class IdNumbers:
    count: int
    def __init__(self, kind: str, seed: int) -> None: ...
    def number(self, columns: list[tuple[NDArray[np.uint8] | _I64 | None, ...]], *, add: bool) -> _I64: ...
    def ids(self, begin: int, end: int) -> tuple[NDArray[np.uint8] | _I64, ...]: ...
