"""Kernels of the C++ core on NumPy arrays; the contracts stand in the headers under csrc/."""

from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

_I32 = NDArray[np.int32]
_I64 = NDArray[np.int64]
_Id = TypeVar("_Id", np.int32, np.int64)

STREAM_VERSION: int

def philox4x32(c0: int, c1: int, c2: int, c3: int, key: int) -> tuple[int, int, int, int]: ...
def hop_key(seed: int, epoch: int, batch: int, stage: int, hop: int, etype: int) -> int: ...
def bounded_draws(key: int, node: int, stream: int, ranges: _I64) -> _I64: ...
def permutation_at(num_items: int, key: int, first: int, count: int) -> _I64: ...
def sample_hop(
    indptr: _I64, indices: NDArray[_Id], seeds: _I64, *, fanout: int, replace: bool, key: int
) -> tuple[_I64, NDArray[_Id], _I64]: ...
def compact(ids: NDArray[_Id], *, num_nodes: int, direct_limit: int = ...) -> tuple[NDArray[_Id], NDArray[_Id]]: ...
def sample_neighbors(
    indptr: _I64,
    indices: NDArray[_Id],
    edge_ids: _I64 | None,
    seeds: _I64,
    *,
    fanouts: list[int],
    keys: list[int],
    replace: bool,
    only_new: bool,
    want_edge_ids: bool,
    direct_limit: int = ...,
) -> tuple[NDArray[_Id], NDArray[_Id], list[tuple[_I64, NDArray[_Id], _I64 | None, int]]]: ...
def gather_rows(table: NDArray[np.uint8], ids: _I32 | _I64) -> NDArray[np.uint8]: ...
@overload
def coo_to_csc(src: _I32, dst: _I32, num_nodes: int, *, partition_from: int = ...) -> tuple[_I64, _I32, _I64]: ...
@overload
def coo_to_csc(src: _I64, dst: _I64, num_nodes: int, *, partition_from: int = ...) -> tuple[_I64, _I64, _I64]: ...
def validate_csc(indptr: _I64, indices: _I32 | _I64) -> None: ...
