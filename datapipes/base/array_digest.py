"""The digest of an array: it depends on every byte, and is the same on every machine at any number of threads.

An array is cut into pieces of whole rows, `rows_of_piece` each. Its digest is BLAKE2b over dtype, shape and the hashes
of the pieces, which csrc/digest/piece_hashes.h defines. A piece can be hashed without the rest of the array. Equal
digests mean equal data, unless the data was made to collide.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.base.codec import flat_bytes
from datapipes.base.threads import num_threads

PIECE_BYTES = 2**20
_BYTES_AT_ONCE = 2**26  # hashed between two calls of `stop`


class HashingStopped(Exception):  # not an error: the caller that passed `stop` catches it
    """Raised by array_digest when its argument `stop` returned True."""


def array_digest(
    values: Tensor,
    *,
    as_int64: bool = False,
    stop: Callable[[], bool] = lambda: False,
    hashes: list[NDArray[np.uint64]] | None = None,
) -> str:
    """Return the digest of an array, 32 hexadecimal digits. Strides and device do not matter. Time O(bytes).

    Args:
        values: of any dtype and shape.
        as_int64: hash int32 values as int64, so that ids of both dtypes have the same digest.
        stop: called before every 64 MiB, or before every row if a row is larger. If it returns True, HashingStopped is
            raised.
        hashes: a list to which the hashes of the pieces are appended. After HashingStopped, a call with the same list
            goes on where the stopped call has ended.
    """
    rows = values.unsqueeze(0) if values.ndim == 0 else values
    piece = rows_of_piece(tuple(rows.shape[1:]), torch.int64 if as_int64 else rows.dtype)
    hashes = [] if hashes is None else hashes
    if piece > 0:
        row_bytes = math.prod(rows.shape[1:]) * rows.element_size()
        step = piece * max(_BYTES_AT_ONCE // (piece * row_bytes), 1)
        for begin in range(step * len(hashes), rows.shape[0], step):
            if stop():
                raise HashingStopped
            hashes.append(hashes_of(rows[begin : begin + step], as_int64=as_int64))
    return digest_of_pieces(values.dtype, values.shape, hashes, as_int64=as_int64)


def rows_of_piece(row_shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return how many rows of this shape make a piece: as many as fit in 1 MiB, at least 1; 0 if a row has no bytes."""
    row_bytes = math.prod(row_shape) * dtype.itemsize
    return max(PIECE_BYTES // row_bytes, 1) if row_bytes > 0 else 0


def hashes_of(rows: Tensor, *, as_int64: bool = False) -> NDArray[np.uint64]:
    """Return the hash of each piece of `rows`. The first row begins a piece; the last piece may be shorter."""
    width = math.prod(rows.shape[1:])
    if as_int64 and rows.dtype == torch.int32:
        narrow = np.ascontiguousarray(rows.detach().cpu().numpy()).reshape(-1)  # copied by NumPy, see flat_bytes
        piece = rows_of_piece(rows.shape[1:], torch.int64) * width
        return _core.widened_piece_hashes(narrow, piece, num_threads=num_threads())
    piece = rows_of_piece(rows.shape[1:], rows.dtype) * width * rows.dtype.itemsize
    return _core.piece_hashes(flat_bytes(rows), piece, num_threads=num_threads())


def digest_of_pieces(
    dtype: torch.dtype, shape: Sequence[int], hashes: Sequence[NDArray[np.uint64]], *, as_int64: bool = False
) -> str:
    """Return the digest of an array, given the hashes of all its pieces in order."""
    digest = hashlib.blake2b(f"{'' if as_int64 else dtype_name(dtype)} {[*shape]};".encode(), digest_size=16)
    for piece_hashes in hashes:
        digest.update(piece_hashes.astype("<u8").tobytes())
    return digest.hexdigest()


class StreamedDigest:
    """Computes `array_digest` of an array that is given some rows at a time.

    Args:
        dtype: dtype of the array.
        row_shape: shape of one row.
        as_int64: see array_digest.
    """

    def __init__(self, dtype: torch.dtype, row_shape: Sequence[int], *, as_int64: bool = False) -> None:
        self._dtype, self._row_shape, self._as_int64 = dtype, tuple(row_shape), as_int64
        self._piece = rows_of_piece(self._row_shape, torch.int64 if as_int64 else dtype)
        self._rest: list[Tensor] = []  # the rows of the last piece, which is not whole yet
        self._hashes: list[NDArray[np.uint64]] = []
        self._count = 0

    def take(self, rows: Tensor) -> None:
        """Hash the next rows, [n, *row_shape]."""
        kept = self._count % self._piece if self._piece > 0 else 0  # rows in _rest
        self._count += rows.shape[0]
        if self._piece == 0 or rows.shape[0] == 0:
            return
        lacks = (self._piece - kept) % self._piece
        if kept > 0:
            self._rest.append(rows[:lacks].clone())
            if rows.shape[0] < lacks:
                return
            self._hashes.append(hashes_of(torch.cat(self._rest), as_int64=self._as_int64))
            self._rest = []
        whole = lacks + (rows.shape[0] - lacks) // self._piece * self._piece
        if whole > lacks:
            self._hashes.append(hashes_of(rows[lacks:whole], as_int64=self._as_int64))
        if whole < rows.shape[0]:
            self._rest.append(rows[whole:].clone())

    def digest(self) -> str:
        """Return the digest of all rows so far."""
        last = [hashes_of(torch.cat(self._rest), as_int64=self._as_int64)] if self._rest else []
        shape = (self._count, *self._row_shape)
        return digest_of_pieces(self._dtype, shape, [*self._hashes, *last], as_int64=self._as_int64)


def version_of(values: Tensor) -> int:
    """Return torch's version counter of `values`, which grows with each change in place that torch notices.

    0 for an inference tensor, which has no counter.
    """
    return 0 if values.is_inference() else values._version


@dataclass(slots=True)
class _Kept:
    values: Tensor
    version: int
    digest: str | None = None  # None: not computed yet
    is_used: bool = False  # whether an epoch has begun with `values` at `version`, or the digest was asked for
    hashes: list[NDArray[np.uint64]] = field(default_factory=list)  # of a digest whose computation was stopped

    def change(self, now: Tensor) -> str | None:
        """Return in words how the array has changed. None: it has not. `now` is the array that the owner has now."""
        if now is not self.values:
            return "replaced by another tensor"
        return "changed in place" if version_of(now) != self.version else None


class Hashed(ABC):
    """Base of graphs and item sets, whose data is named by the digests of their arrays. Each digest is computed once.

    Subclasses return the arrays in `_hashed_arrays`. `_note_arrays` remembers which arrays these are. If an array is
    replaced or changed in place after that, or after its digest was computed, `_array_digests` raises. torch's version
    counter shows changes in place; docs/errors.md lists the changes that it misses.

    There are no locks, so a fork may come at any time; two threads may both compute the same digest. A copy computes
    its digests anew: subclasses set `_kept` to None in the state of a copy.
    """

    _kept: dict[str, _Kept] | None = None  # the key is the array's name

    @abstractmethod
    def _hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return {name: (array, `as_int64` for array_digest)}, in a fixed order."""

    def _note_arrays(self) -> bool:
        """Remember the arrays as they are now. Return True if the digest of one of them is not computed yet."""
        return None in [kept.digest for kept in self._noted(self._hashed_arrays()).values()]

    def _array_digests(self, stop: Callable[[], bool] = lambda: False) -> dict[str, str]:
        """Return {name: digest} of all arrays; see array_digest for `stop`.

        Raises:
            ValueError: An array was replaced or changed after `_note_arrays`, or after its digest was computed.
        """
        arrays, digests = self._hashed_arrays(), {}
        for name, kept in self._noted(arrays).items():
            values, as_int64 = arrays[name]
            self._refuse_change(name, kept, values)
            if kept.digest is None:
                hashes = [*kept.hashes]
                try:
                    digest = array_digest(values, as_int64=as_int64, stop=stop, hashes=hashes)
                finally:
                    kept.hashes = hashes
                self._refuse_change(name, kept, values)
                kept.digest, kept.hashes = digest, []
            digests[name] = kept.digest
        return digests

    def _take_digests(self, digests: Sequence[str]) -> None:
        """Set digests that are known already, so that they are not computed.

        `digests` is in the order of `_hashed_arrays`. If an array changes before its digest is used, its digest is
        computed after all.
        """
        arrays = self._hashed_arrays().items()
        self._kept = {
            name: _Kept(values, version_of(values), digest)
            for (name, (values, _)), digest in zip(arrays, digests, strict=True)
        }

    def _noted(self, arrays: dict[str, tuple[Tensor, bool]]) -> dict[str, _Kept]:
        all_kept = self._kept
        if all_kept is None:
            all_kept = self._kept = {}  # another thread may set one too: each thread goes on with its own
        for name, (values, _) in arrays.items():
            kept = all_kept.get(name)
            if kept is None or (not kept.is_used and kept.change(values) is not None):
                kept = all_kept[name] = _Kept(values, version_of(values))
            kept.is_used = True
        return {name: all_kept[name] for name in arrays}

    def _refuse_change(self, name: str, kept: _Kept, now: Tensor) -> None:
        change = kept.change(now)
        if change is not None:
            kind = type(self).__name__
            raise ValueError(
                f"{kind}: {name} was {change} after an epoch had begun with it, or after its digest was computed. So a "
                f"state or a digest would name other data than was read before. Make a new {kind} after each change. "
                "A change of other tensors that share its memory counts too."
            )
