"""CPUCachedFeature: rows of a slower feature kept in memory; count_accesses counts the rows that a loader asks for.

A cache changes the speed of reads, never their values: rows have the bits of the feature. It keeps rows as the feature
stores them, so rows that are stored with fewer bits take fewer bytes here too. Only the process that makes a cache may
use it.
"""

from __future__ import annotations

import math
import os
import threading
from abc import abstractmethod
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_choice, check_index_tensor, check_int, shown
from datapipes.base.rows import byte_rows, new_rows, put_rows
from datapipes.base.sizes import check_memory, parse_size
from datapipes.base.threads import num_threads
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.features.feature import Feature, FeatureOver, check_out, note_cache, read_decoded
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureKey
from datapipes.features.sparse_feature import SparseFeature
from datapipes.minibatch.padding import NO_ID

__all__ = ["CPUCachedFeature", "count_accesses"]

POLICIES = ("sieve", "lru", "static")
_FILLED_BYTES = 2**24  # bytes of rows that are read at once to fill a static cache
_WHERE = "CPUCachedFeature"


class CachingFeature(FeatureOver):
    """Base of the caches: a feature that keeps rows of another feature, as that feature stores them.

    Only the process that made the cache may use it.
    """

    _max_bytes: int

    def __init__(self, feature: Feature) -> None:
        if not isinstance(feature, Feature):
            raise TypeError(
                f"{type(self).__name__}: feature must be a Feature, got {type(feature).__name__}. Wrap a tensor: "
                "dp.TensorFeature."
            )
        if isinstance(feature, SparseFeature):
            raise TypeError(
                f"{type(self).__name__}: feature is a SparseFeature; a cache keeps rows of equal size. Leave the cache "
                "out: sparse rows are small, and may be memory-mapped."
            )
        super().__init__(feature)
        self._row_bytes = math.prod(feature.shape) * feature._stored_dtype.itemsize
        self._owner = os.getpid()
        note_cache(self)

    def _refuse(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: a cache belongs to one process and cannot go to a worker. Leave the fetch behind "
            "the cut of the DataLoader, where it is by default, or give the workers the feature without a cache."
        )

    @property
    def max_bytes(self) -> int:
        """Bytes that the cache may take; fixed. For another size, build a new cache."""
        return self._max_bytes

    def update(self, ids: Tensor, values: Tensor) -> None:
        """Set rows of the feature that is cached, see Feature.update. This cache, and any other cache of that feature,
        drops these rows.
        """
        self.feature.update(ids, values)

    @abstractmethod
    def _forget(self, ids: Tensor) -> Tensor:
        """Drop the kept rows at `ids`, which have changed in the feature; more rows may be dropped. Return the ids
        whose rows `_keep` must read again.
        """

    def _keep(self, ids: Tensor) -> None:
        """Read the rows at `ids` from the feature again, and keep them. `ids` is what `_forget` returned. This base
        method does nothing.
        """

    def _decode(self, rows: Tensor) -> Tensor:
        return self.feature._decode(rows)

    @property
    def _stored_dtype(self) -> torch.dtype:
        return self.feature._stored_dtype

    def __getstate__(self) -> dict[str, Any]:
        self._refuse()


def check_room(where: str, max_bytes: int | str, of_row: int, of_ids: int = 0) -> int:
    """Return `max_bytes` as a number of bytes. Raise ValueError if a cache of that size has no room for one row.

    Args:
        of_row: bytes of one row.
        of_ids: bytes of the cache's table of all ids, for which there must be room too.
    """
    num_bytes = parse_size(where, "max_bytes", max_bytes)
    if num_bytes < of_row + of_ids:
        more = f", and the table of all ids takes {of_ids}" if of_ids else ""
        raise ValueError(
            f"{where}: max_bytes={shown(max_bytes)} is too small: a row takes {of_row} bytes{more}. Raise it to "
            f"{of_row + of_ids} or more."
        )
    return num_bytes


class CPUCachedFeature(CachingFeature):
    """A feature that keeps rows of another feature in memory, as many as fit. After an `update` of the other feature,
    this one returns the new rows too.

    Args:
        feature: the feature from which missing rows are read, such as a DiskFeature.
        max_bytes: memory for the kept rows and for the tables that find them: "4GB", or bytes as an int. The tables
            take 4 bytes for each row of the feature, 5 with "sieve", and 20 for each kept row.
        policy: which row is dropped for a new row. "sieve" or None: the oldest row that was not asked for since SIEVE
            last considered it. The new row replaces it only if the new row was asked for more often; otherwise the new
            row is not kept. "lru": the row whose last request is longest ago. "static": no row; `counts` decides which
            rows are kept.
        counts: for "static": int64 [count], how often each row is asked for, `count_accesses(loader)[key]`. The rows
            with the largest counts are read when the cache is built; of rows with equal counts, those with smaller ids.
        share_with: another CPUCachedFeature whose rows have the same number of bytes. This cache then keeps its rows in
            the memory of that cache, by its policy; leave out max_bytes, policy and counts.
    Raises:
        ValueError: max_bytes has no room for a row, or an argument does not fit the others.
        MemoryError: There is less memory than max_bytes.
    """

    def __init__(
        self,
        feature: Feature,
        max_bytes: int | str | None = None,
        policy: str | None = None,
        *,
        counts: Tensor | None = None,
        share_with: CPUCachedFeature | None = None,
    ) -> None:
        super().__init__(feature)
        self._counts = np.zeros(2, np.int64)
        self.reads_async = feature.reads_async
        self._changing, self._changes = threading.Lock(), 0  # how often rows were forgotten
        if share_with is not None:
            self._memory = self._memory_of(share_with, max_bytes, policy, counts)
        else:
            self._memory = self._new_memory(max_bytes, "sieve" if policy is None else policy, counts)
        self._max_bytes = self._memory.max_bytes
        self._first = self._memory.join(feature.count)
        if counts is not None:
            self._fill(counts)

    @property
    def policy(self) -> str:
        """The policy that says which row is dropped for a new row; fixed."""
        return self._memory.policy

    def _new_memory(self, max_bytes: Any, policy: str, counts: Any) -> _Memory:
        check_choice(_WHERE, "policy", policy, POLICIES)
        if (counts is None) is (policy == "static"):
            raise ValueError(
                f"{_WHERE}: policy={policy!r} with counts={'None' if counts is None else 'a tensor'}; a static cache "
                "needs counts, and no other policy takes them. Pass policy='static' with "
                "counts=dp.count_accesses(loader)[key], or leave out both."
            )
        if max_bytes is None:
            raise TypeError(f"{_WHERE}: max_bytes is missing. Pass a size, such as '4GB'.")
        return _Memory(self._row_bytes, parse_size(_WHERE, "max_bytes", max_bytes), policy)

    def _memory_of(self, other: Any, max_bytes: Any, policy: Any, counts: Any) -> _Memory:
        """Return the memory of the cache `other`, which this cache is to share. Raise ValueError if it cannot be
        shared.
        """
        if not isinstance(other, CPUCachedFeature) or not (max_bytes is policy is counts is None):
            raise ValueError(
                f"{_WHERE}: share_with must be a CPUCachedFeature, and max_bytes, policy and counts must be None, got "
                f"{type(other).__name__}, max_bytes={shown(max_bytes)}, policy={shown(policy)} and "
                f"counts={'None' if counts is None else 'a tensor'}. Pass only share_with, whose memory is shared."
            )
        if other.policy == "static":
            raise ValueError(f"{_WHERE}: a static cache takes no rows of other features. Pass max_bytes instead.")
        if other._row_bytes != self._row_bytes:
            raise ValueError(
                f"{_WHERE}: rows of {self._row_bytes} bytes cannot share a cache of rows of {other._row_bytes}. "
                "Pass max_bytes instead of share_with."
            )
        return other._memory

    def _fill(self, counts: Any) -> None:
        wanted = check_index_tensor(_WHERE, "counts", counts)
        if wanted.shape[0] != self.feature.count:
            raise ValueError(
                f"{_WHERE}: counts has {wanted.shape[0]} entries, the feature {self.feature.count} rows; one for each "
                "is needed. Count the accesses of this feature."
            )
        ids = _most_asked(wanted, self._memory.cache.slots)
        step = max(_FILLED_BYTES // max(self._row_bytes, 1), 1)
        for begin in range(0, ids.shape[0], step):
            some = ids[begin : begin + step]
            self._put(some, self.feature._read_stored(some), self._changes)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the feature's rows at `ids`, see Feature.read."""
        return read_decoded(_WHERE, self, ids, out)

    def _read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as the feature stores them."""
        if os.getpid() != self._owner:  # forked: another thread may have held the lock
            self._refuse()
        wanted = check_index_tensor(_WHERE, "ids", ids, is_kept=False)
        if out is not None:
            check_out(_WHERE, out, wanted.shape[0], self.shape, self._stored_dtype)
        rows = self._new_rows(wanted) if out is None else out
        if wanted.shape[0] == 0:
            return rows
        missing = self._memory.cache.take(
            wanted.numpy(), byte_rows(rows), count=self.count, first=self._first, num_threads=num_threads()
        )
        _core.add_to(self._counts, [wanted.shape[0] - len(missing), len(missing)])
        if len(missing) > 0:
            places = torch.from_numpy(missing)
            lacking, changes = wanted[places], self._changes
            read = self.feature._read_stored(lacking)
            put_rows(rows, places, read)
            if self._memory.policy != "static":
                self._put(lacking, read, changes)
        return rows

    def _put(self, ids: Tensor, rows: Tensor, changes: int) -> None:
        """Keep `rows`, the rows at `ids`. Do nothing if rows of the feature have changed since `rows` were read, since
        `rows` may then be old.

        Args:
            changes: the value of `_changes` before the read.
        """
        with self._changing:
            if changes == self._changes:
                self._memory.cache.put(ids.numpy(), byte_rows(rows.contiguous()), count=self.count, first=self._first)

    def _forget(self, ids: Tensor) -> Tensor:
        """Drop the rows at `ids`. A static cache returns the ids of the rows that it had kept, so that they are read
        again; other caches return no ids.
        """
        cache, table = self._memory.cache, {"count": self.count, "first": self._first}
        with self._changing:
            self._changes += 1
            kept = ids[:0]
            if self._memory.policy == "static":
                there = torch.ones_like(ids, dtype=torch.bool)
                there[torch.from_numpy(cache.take(ids.numpy(), byte_rows(self._new_rows(ids)), **table))] = False
                kept = ids[there]
            cache.forget(ids.numpy(), **table)
        return kept

    def _keep(self, ids: Tensor) -> None:
        if ids.shape[0] > 0:
            changes = self._changes
            self._put(ids, self.feature._read_stored(ids), changes)

    def _new_rows(self, ids: Tensor) -> Tensor:
        return new_rows(ids.shape[0], self.shape, self._stored_dtype)

    def stats(self) -> dict[str, int]:
        """Return counts: "hits" (rows found in the cache), "misses" (rows read from the feature), "cached" (rows kept
        now), "cache_bytes", and the counts of the feature.
        """
        hits, misses = self._counts.tolist()
        held = {"cached": self._memory.cache.held, "cache_bytes": self._memory.num_bytes}
        return {"hits": hits, "misses": misses, **held, **self.feature.stats()}

    def __repr__(self) -> str:
        return f"{_WHERE}({self.feature!r}, {self._memory.cache.slots} rows, {self.policy})"


class _Memory:
    """The memory of one cache, or of several caches that share it. It has room for as many rows as fit into
    `max_bytes`, but not for more rows than the features have.
    """

    def __init__(self, row_bytes: int, max_bytes: int, policy: str) -> None:
        self._row_bytes, self.max_bytes, self.policy = row_bytes, max_bytes, policy
        self._count = 0
        self.cache = _core.RowCache(1, row_bytes, policy, 0)

    def join(self, count: int) -> int:
        """Make room for one more feature, of `count` rows, in this memory. All kept rows are dropped.

        Return the offset of the feature: its id i is the id offset + i in this memory.
        """
        first, total = self._count, self._count + count
        of_slot = _core.RowCache.bytes_of_slot(self._row_bytes)
        of_ids = _core.RowCache.bytes_of_id(self.policy) * total
        check_room(_WHERE, self.max_bytes, of_slot, of_ids)
        slots = max(min((self.max_bytes - of_ids) // of_slot, total, 2**31 - 1), 1)
        needed = slots * of_slot + of_ids - self.num_bytes  # the present memory is freed first
        check_memory(_WHERE, f"a cache of {slots} rows", max(needed, 0), "Lower max_bytes.")
        self.cache = _core.RowCache(1, self._row_bytes, self.policy, total)
        self.cache = _core.RowCache(slots, self._row_bytes, self.policy, total)
        self._count = total
        return first

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache takes: the room for rows, and the tables."""
        of_ids = _core.RowCache.bytes_of_id(self.policy) * self._count
        return self.cache.slots * _core.RowCache.bytes_of_slot(self._row_bytes) + of_ids


def _most_asked(counts: Tensor, most: int) -> Tensor:
    """Return the ids with the largest counts, at most `most`, in ascending order of the ids. Of ids with equal counts,
    the smaller ids are taken. Ids with count 0 are left out.

    Avoids a sort of all ids, which would take several times the memory of the counts.
    """
    num_ids = counts.shape[0]
    least = 1 if most >= num_ids else max(int(counts.kthvalue(num_ids - most + 1).values), 1)
    above, equal = ((counts > least).nonzero().flatten(), (counts == least).nonzero().flatten())
    return torch.cat((above, equal[: most - above.shape[0]])).sort().values


def count_accesses(loader: Stage, epochs: int = 1) -> dict[FeatureKey, Tensor]:
    """Count how often a loader asks for each row of each feature that it fetches.

    Return {key: int64 [n]}: entry i says how often row i of the feature was asked for; n is the number of rows of the
    feature. For a partitioned graph, n is the number of rows in the whole graph, not in one part.

    Nothing is fetched: the minibatches of epochs 0, 1, ... are made, and their ids are counted. Pass the counts to a
    static CPUCachedFeature, or to the cache of a DistFeatureStore.

    Args:
        loader: a chain or a DataLoader, with a FeatureFetcher.
        epochs: number of epochs to count.
    Raises:
        ValueError: The loader has no FeatureFetcher.
    """
    check_int("count_accesses", "epochs", epochs, 1)
    fetchers = StageGraph(loader).find(FeatureFetcher)
    if not fetchers:
        raise ValueError("count_accesses: the chain has no fetch_feature. Pass a loader that fetches features.")
    behind: dict[Stage, list[FeatureFetcher]] = {}  # {source of a first fetch: all fetches behind it}
    for fetcher in fetchers:
        (source,) = StageGraph(fetcher).find(FeatureFetcher)[0].sources
        behind.setdefault(source, []).append(fetcher)
    counts: dict[FeatureKey, Tensor] = {}
    for source, readers in behind.items():
        for epoch in range(epochs):
            source.set_epoch(epoch)
            for minibatch in source:
                for fetcher in readers:
                    for *key, ids in fetcher._requests_of(minibatch):
                        _count(counts, fetcher, (key[0], key[1], key[2]), ids[ids != NO_ID])
    return counts


def _count(counts: dict[FeatureKey, Tensor], fetcher: FeatureFetcher, key: FeatureKey, ids: Tensor) -> None:
    if key not in counts:
        counts[key] = torch.zeros(fetcher.feature_store[key].count, dtype=torch.int64)
    counts[key].index_add_(0, ids.long(), torch.ones(ids.shape[0], dtype=torch.int64))
