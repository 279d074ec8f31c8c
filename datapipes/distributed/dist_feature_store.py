"""DistFeatureStore: features of a partitioned graph. For each minibatch, one request is sent to each other part that
has some of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_int
from datapipes.base.sizes import parse_size
from datapipes.base.types import NodeType
from datapipes.distributed.asking_parts import run_here
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hot_rows import HotRows, choose_hot, hot_by_counts, hot_by_edges
from datapipes.distributed.row_reader import RowReader, Wanted
from datapipes.features.feature import Feature, check_out
from datapipes.features.feature_store import FeatureKey, FeatureRequest, FeatureStore, feature_text

__all__ = ["DistFeatureStore"]

_NAME = "DistFeatureStore"


class DistFeatureStore(FeatureStore):
    """The features of a partitioned graph: every attribute of nodes and edges that was partitioned, under its name.

    Rows of the local part are read from its mapped file, or from memory if the graph was connected with mmap=False.
    Rows that are neither there nor in the cache come over the network: for each minibatch, each part that has some of
    them gets one request, for all features and types that the FeatureFetcher reads; a request whose answer would be too
    large is sent in pieces. Rows have the same bits as in the whole graph. Edge features are read by edge id, which
    needs an edge map in the partition.

    Args:
        dist_graph: the partitioned graph that `DistGraph.connect` returned. A local part is needed if `cache_bytes` is
            above 0 and `cache_by` is None.
        cache_bytes: memory for a cache of rows of other parts, index included: a number of bytes, or a text such as
            "256MB"; 0 for no cache. The constructor reads the cached rows over the network. Worker processes map the
            same memory. Without `cache_by`, a node's score is the number of edges from it into the local part, divided
            by the bytes of its rows. The cache keeps the nodes with the highest scores, of all types, with all of their
            features.
        cache_by: counts of the accesses to each row, by which the cached rows are chosen: {(domain, type, name): int64
            [number of nodes]}. `count_accesses` returns them for a loader over a store without a cache. A node is
            cached with all of its features that have counts. The cache keeps the nodes with the most accesses per byte,
            where a node's accesses are the largest of its counts; on ties, nodes with smaller ids. Counts of edge
            features are ignored.
    Raises:
        TypeError, ValueError: `dist_graph` is no DistGraph. `cache_bytes` is no size, or too small for a single row.
            `cache_by` is given without `cache_bytes`, has no node feature, or does not have one count for each node. Or
            `cache_bytes` is above 0, but there is neither `cache_by` nor a local part.
        KeyError: `cache_by` has a feature that the graph lacks.
        MemoryError: Too little memory is left for the cache.
        The errors of the servers, while the cache is filled.
    """

    fetch_in_worker = True
    reads_async = True
    concurrency = 4  # fewer than for samplers: a minibatch's features take far more memory than its neighborhood

    def __init__(
        self,
        dist_graph: DistGraph,
        *,
        cache_bytes: int | str = 0,
        cache_by: Mapping[FeatureKey, Tensor] | None = None,
    ) -> None:
        if not isinstance(dist_graph, DistGraph):
            raise TypeError(
                f"{_NAME}: dist_graph must be a DistGraph, got {type(dist_graph).__name__}. Make one with "
                "DistGraph.connect."
            )
        size = parse_size(_NAME, "cache_bytes", cache_bytes) if isinstance(cache_bytes, str) else cache_bytes
        self.dist_graph, self.cache_bytes = dist_graph, check_int(_NAME, "cache_bytes", size, 0)
        if cache_by is not None and self.cache_bytes == 0:
            raise ValueError(
                f"{_NAME}: cache_by is given, and cache_bytes is 0, so there is no cache. Give it a size, such as "
                "'256MB'."
            )
        reader = RowReader(dist_graph, HotRows([], []))
        if self.cache_bytes > 0:
            reader = RowReader(dist_graph, _filled(reader, self.cache_bytes, cache_by))
        self._reader = reader
        super().__init__({key: DistFeature(reader, *key) for key in dist_graph.facts.features})

    def read_many(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """Return the rows of each request (domain, type, name, ids): a tensor [n, *shape] for each, in the order of
        `requests`. Rows in the local part or in the cache are read here. Each other part that has further rows gets one
        request; if its answer would be too large, the request is sent in pieces.

        Raises:
            KeyError: There is no such feature.
            IndexError: An id is outside the graph; the message names the feature and the id.
            ValueError: Edge features are asked for, and the partition has no edge map; or a server answers with other
                rows than were asked for.
            The errors of the servers, or ServerUnavailable.
        """
        return run_here(self.read_many_async(requests))

    async def read_many_async(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """Coroutine that returns what `read_many` returns, and does not block the event loop while rows are read."""
        return await self._reader.read(self._wanted(requests))

    def stats(self) -> dict[str, int]:
        """Return counts of the reads from this store so far, in this process and in its worker processes.

        Returns:
            {name: count}. An id counts once in a minibatch, even if several of its features are read.

            * "own": ids whose rows are in the local part.
            * "cached": ids whose rows are in the cache.
            * "asked": ids whose rows were requested from other parts.
            * "requests": requests to other parts.
            * "received_bytes": bytes of the rows that other parts sent.
            * "cache_bytes": bytes of the cache, index included. The reads that filled the cache are not counted.
        """
        return {**self._reader.counts.so_far(), "cache_bytes": self._reader.hot.num_bytes}

    def _wanted(self, requests: Sequence[FeatureRequest]) -> list[Wanted]:
        wanted = []
        for domain, type_, name, ids in requests:
            feature = self[domain, type_, name]
            assert isinstance(feature, DistFeature)
            wanted.append(self._reader.wanted(feature.domain, feature.type_, name, ids))
        return wanted

    def __repr__(self) -> str:
        cache = f", {self._reader.hot.num_bytes} bytes cached" if self.cache_bytes else ""
        return f"{_NAME}({len(self)} features of {self.dist_graph!r}{cache})"


def _filled(reader: RowReader, cache_bytes: int, counts: Mapping[FeatureKey, Tensor] | None) -> HotRows:
    """Make the cache of a DistFeatureStore, fill it with rows that `reader` reads from other parts, and return it.

    Args:
        cache_bytes: the most bytes of the cache, index included.
        counts: the store's `cache_by`: the most accessed rows are cached. None: the rows of the nodes from which the
            most edges lead into the local part.
    """
    facts, part = reader.graph.facts, reader.graph.local_part
    if counts is not None:
        hot = hot_by_counts(_NAME, facts, part, counts)
    elif part is not None:
        hot = hot_by_edges(facts, part)
    else:
        raise ValueError(
            f"{_NAME}: cache_bytes is {cache_bytes}, but the graph has no local part, whose edges would choose the "
            "rows to keep. Connect with local_part=..., give cache_by=..., or leave the cache out."
        )

    def read(node_type: NodeType | None, ids: Tensor, outs: Mapping[str, Tensor]) -> None:
        run_here(reader.read([reader.wanted("node", node_type, name, ids, out) for name, out in outs.items()]))

    return HotRows.filled(_NAME, choose_hot(_NAME, hot, cache_bytes), read)


class DistFeature(Feature):
    """One feature of a partitioned graph. To read several features with fewer requests, use the store's `read_many`.

    Attributes:
        domain: "node" or "edge".
        type_: a node type or edge type; None in a graph without types.
        name: name of the feature.
    """

    def __init__(self, reader: RowReader, domain: str, type_: Any, name: str) -> None:
        self._reader, self.domain, self.type_, self.name = reader, domain, type_, name
        self._form = reader.graph.facts.features[domain, type_, name]

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, [n, *shape]; see Feature.read.

        Rows in the local part or in the cache are read here. Each other part that has further rows gets one request; if
        its answer would be too large, the request is sent in pieces.

        Args:
            out: tensor to fill and return: [n, *shape] of the same dtype, contiguous, in host memory. An error may
                leave `out` partly filled.
        """
        wanted = self._reader.wanted(self.domain, self.type_, self.name, ids, out)
        if out is not None:
            check_out(wanted.text, out, wanted.ids.shape[0], self.shape, self.dtype)
        return run_here(self._reader.read([wanted]))[0]

    @property
    def count(self) -> int:
        """Number of rows in the whole graph: one for each node, or for each edge id.

        Raises:
            ValueError: This is an edge feature, and the partition has no edge map, which would tell how many edge ids
                there are.
        """
        graph = self._reader.graph
        if self.domain == "node":
            return graph.facts.num_nodes[self.type_]
        self._reader.check_places(self.domain, self.type_, self.name)
        return graph.book.edges(self.type_).num_ids

    @property
    def shape(self) -> tuple[int, ...]:
        return self._form.shape

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self._form.dtype
        return dtype

    def __repr__(self) -> str:
        form = f"{self._form.dtype} {[*self.shape]}"
        return f"DistFeature({feature_text(self.domain, self.type_, self.name)}, rows of {form})"
