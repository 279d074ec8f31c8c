"""RowReader: reads rows of features of a partitioned graph from the local part, from the cache and from other parts. It
sends the requests, copies all rows to their positions in the result, and counts ids and bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_index_tensor, dtype_name
from datapipes.base.forms import RowForm
from datapipes.base.rows import byte_rows, new_rows, put_rows
from datapipes.base.threads import num_threads
from datapipes.distributed.asking_parts import Peers, all_or_failed, here_or_off_loop
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hot_rows import HotRows, HotTable
from datapipes.distributed.requests.rows import Rows, RowsRequest, TakeRows
from datapipes.features.feature_store import feature_text
from datapipes.partition.book import IdMap
from datapipes.partition.native.own_rows import OwnRows
from datapipes.processes.copies import zeros_together
from datapipes.processes.sharing import Together


class RowCounts:
    """Counters of what RowReaders have read: ids, requests and bytes. They are in memory shared with worker processes,
    so that one process sees the counts of all processes.
    """

    NAMES = ("own", "cached", "asked", "requests", "received_bytes")

    def __init__(self, counters: Iterable[Tensor] | None = None) -> None:
        (self._counters,) = zeros_together([((len(self.NAMES),), torch.int64)]) if counters is None else counters

    def add(self, **counts: int) -> None:
        """Add each number in `counts` to the counter of that name. Any thread and process may call this."""
        _core.add_to(self._counters.numpy(), [counts.get(name, 0) for name in self.NAMES])

    def so_far(self) -> dict[str, int]:
        """Return {name: count so far}."""
        return dict(zip(self.NAMES, self._counters.tolist(), strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return RowCounts, (Together([self._counters]),)


_NO_ROWS = OwnRows(torch.empty(0, dtype=torch.int64))


class Found(NamedTuple):
    """Those ids of a Split whose rows are in one place: the local part, the cache, or one other part.

    Attributes:
        places: int64 [n], ascending: the position of each of these ids among all ids of the Split.
        rows: [n], where to find the row of each id. In the local part and the cache: the index of the row in a table.
            In another part: the id itself.
    """

    places: Tensor
    rows: Tensor


class Split(NamedTuple):
    """The ids of one read, divided by where their rows are. Each id is in exactly one Found.

    Attributes:
        here: ids with rows in the local part's attributes.
        hot: ids with rows in the cache.
        away: {part: ids with rows in this other part}, in ascending order of the parts; a part without ids is left out.
    """

    here: Found
    hot: Found
    away: dict[int, Found]


class IdPlaces:
    """Finds where the rows of ids are: in the local part, in the cache, or in which other part. An IdPlaces is for one
    type of nodes or edges.

    Args:
        domain: "node" or "edge".
        type_: a node type or edge type; None in a graph without types.
        hot: the cached rows of the type; None if no rows are cached.
    Attributes:
        own_tables: {feature name: rows of the local part}.
    """

    def __init__(self, graph: DistGraph, domain: str, type_: Any, hot: HotTable | None) -> None:
        self.domain, self.type_, self.hot = domain, type_, hot
        owners: IdMap = graph.book.nodes(type_) if domain == "node" else graph.book.edges(type_)
        self._owners = _core.PartMap(owners.stored().numpy(), owners.num_parts, owners.num_ids)
        part = graph.local_part
        self._part, self._own = -1, _NO_ROWS
        self.own_tables: Mapping[str, Tensor] = {}
        if part is not None and domain == "node":
            self._part, self._own = part.part, part.own_nodes(type_)
            self.own_tables = part.node_attributes_of(type_)
        elif part is not None:
            self._part, self._own = part.part, part.own_edges(type_)
            self.own_tables = part.relation(type_).edge_attributes

    def split(self, text: str, ids: Tensor) -> Split:
        """Divide `ids`, int32 or int64 [n], by where their rows are. Time O(n).

        Raises:
            IndexError: An id is outside the graph; the message begins with `text` and names the first such id.
            ValueError: The partition book is damaged.
        """
        places, rows, bounds = _core.split_ids(
            text,
            self._owners,
            ids.numpy(),
            part=self._part,
            rank=self._own.rank,
            first=self._own.first or 0,
            hot=None if self.hot is None else self.hot.rank,
            num_threads=num_threads(),
        )
        all_places, all_rows = torch.from_numpy(places), torch.from_numpy(rows)

        def group(number: int) -> Found:
            some = slice(bounds[number], bounds[number + 1])
            return Found(all_places[some], all_rows[some])

        here = group(0)
        if self._own.rank is None and self._own.first is None:
            here = Found(here.places, self._own.rows(here.rows))
        elif self._own.order is not None:
            here = Found(here.places, self._own.in_order(here.rows.long()))
        away = {part: group(2 + part) for part in range(len(bounds) - 3) if bounds[2 + part] < bounds[3 + part]}
        return Split(here, group(1), away)


_NAME = "DistFeatureStore"


class Wanted(NamedTuple):
    """What to read: the rows of one feature at some ids.

    Attributes:
        places: finds where the rows of the feature's type are.
        name: name of the feature.
        form: dtype and shape of a row.
        ids: int32 or int64 [n].
        text: what errors call the feature.
        out: tensor for the rows, [n, *form.shape]; None for a new tensor.
    """

    places: IdPlaces
    name: str
    form: RowForm
    ids: Tensor
    text: str
    out: Tensor | None = None


class _Group(NamedTuple):
    """Features of one type that are read at the same ids, so that the ids are split only once."""

    places: IdPlaces
    split: Split
    members: list[int]  # indices into Reading.wanted


class Reading:
    """One read of rows of several features, in three steps. First `begin` sends a request to each other part that has
    some of the rows. Then `fill_here` copies the rows of the local part and of the cache to `outs`. Then `put` copies
    the rows of one answer to `outs`; call it for each answer for which `is_in_place` is False. After that `outs` are
    complete.

    These methods block. Any thread may call them, one at a time.

    Attributes:
        outs: a tensor of rows for each entry of `wanted`, in the same order.
        sent: {future of an answer: the part that was asked}.
    """

    def __init__(self, peers: Peers, wanted: Sequence[Wanted], counts: RowCounts) -> None:
        self.wanted, self.peers, self._counts = wanted, peers, counts
        # Not into a caller's tensor: after an error, when it must not change any more, rows may still arrive.
        self._on_arrival = all(feature.out is None for feature in wanted)
        self.outs: list[Tensor] = []
        self.sent: dict[Future[list[Tensor]], int] = {}
        self._groups: list[_Group] = []
        self._asked: dict[int, list[tuple[int, Tensor]]] = {}  # {part: [(index into wanted, places)]}

    def begin(self) -> None:
        """Find out where the rows are, and send the requests to other parts. Does not wait for answers.

        Raises:
            IndexError: An id is outside the graph; the message names the feature.
        """
        self._groups = self._grouped()
        requests: dict[int, list[Rows]] = {}
        for group in self._groups:
            names = tuple(self.wanted[number].name for number in group.members)
            for part, away in group.split.away.items():
                requests.setdefault(part, []).append(Rows(group.places.domain, group.places.type_, names, away.rows))
                self._asked.setdefault(part, []).extend((number, away.places) for number in group.members)
        self.outs = [
            new_rows(feature.ids.shape[0], feature.form.shape, feature.form.dtype)
            if feature.out is None
            else feature.out
            for feature in self.wanted
        ]
        try:
            for part in sorted(requests):
                request = RowsRequest(tuple(requests[part]), self._taking(part))
                self.sent[self.peers.ask(part, request)] = part
        except BaseException:
            self.cancel()
            raise
        splits = [group.split for group in self._groups]
        self._counts.add(
            own=sum(split.here.places.shape[0] for split in splits),
            cached=sum(split.hot.places.shape[0] for split in splits),
            asked=sum(away.places.shape[0] for split in splits for away in split.away.values()),
            requests=len(requests),
        )

    def _grouped(self) -> list[_Group]:
        members: dict[Any, list[int]] = {}
        for number, feature in enumerate(self.wanted):
            key = id(feature.places), feature.ids.dtype, feature.ids.data_ptr(), feature.ids.shape[0]
            members.setdefault(key, []).append(number)
        groups = []
        for numbers in members.values():
            first = self.wanted[numbers[0]]
            groups.append(_Group(first.places, first.places.split(first.text, first.ids), numbers))
        return groups

    def fill_here(self) -> None:
        """Copy the rows that are in this process, in the local part or in the cache, to `outs`."""
        for places, split, members in self._groups:
            for number in members:
                name, out = self.wanted[number].name, self.outs[number]
                if split.here.places.numel() > 0:
                    put_rows(out, split.here.places, places.own_tables[name], split.here.rows, num_threads())
                if places.hot is not None and split.hot.places.numel() > 0:
                    put_rows(out, split.hot.places, places.hot.tables[name], split.hot.rows, num_threads())

    def _taking(self, part: int) -> TakeRows | None:
        """Return a function that copies the rows of `part` to `outs` while its answer arrives. None: the rows must not
        be copied before the answer is complete, since some of `outs` are tensors of the caller.
        """
        if not self._on_arrival:
            return None
        targets = [(byte_rows(self.outs[number]), places.numpy()) for number, places in self._asked[part]]
        counts = self._counts

        def take(number: int, first: int, rows: Tensor) -> None:
            out, places = targets[number]
            count = rows.shape[0]
            _core.place_rows(rows.numpy(), None, places[first : first + count], out=out, num_threads=1)
            counts.add(received_bytes=rows.numel())

        return take

    def is_in_place(self, future: Future[list[Tensor]]) -> bool:
        """Return True if the rows of the answer in `future` were copied to `outs` while they arrived. Otherwise call
        `put`.
        """
        return self._on_arrival and len(future.result()) == 0

    def put(self, future: Future[list[Tensor]]) -> None:
        """Copy the rows of the answer in `future` to `outs`.

        Raises:
            ValueError: The answer has other rows than were asked for.
        """
        part, answer = self.sent[future], future.result()
        targets = self._asked[part]
        if len(answer) != len(targets):
            raise ValueError(
                f"{_NAME}: part {part} answered {len(answer)} tensors to a request for {len(targets)} features. Its "
                "server is of another version, or serves other data; start it anew."
            )
        for (number, places), rows in zip(targets, answer, strict=True):
            self._check(part, self.wanted[number], places.shape[0], rows)
            put_rows(self.outs[number], places, rows.contiguous(), None, num_threads())
        self._counts.add(received_bytes=sum(rows.nbytes for rows in answer))

    def cancel(self) -> None:
        """Cancel the requests that have no answer yet."""
        for future in self.sent:
            future.cancel()

    def _check(self, part: int, wanted: Wanted, count: int, rows: Any) -> None:
        shape = (count, *wanted.form.shape)
        if isinstance(rows, Tensor) and rows.dtype == wanted.form.dtype and tuple(rows.shape) == shape:
            return
        is_tensor = isinstance(rows, Tensor)
        form = f"{dtype_name(rows.dtype)} {list(rows.shape)}" if is_tensor else type(rows).__name__
        raise ValueError(
            f"{_NAME}: {wanted.text}: part {part} answered {form}, asked for was {dtype_name(wanted.form.dtype)} "
            f"{list(shape)}. Its server is of another version, or serves other data; start it anew."
        )


class RowReader:
    """Reads rows of features of a partitioned graph: from the local part, from a cache, and from the other parts.

    Several threads may use a RowReader at once. Worker processes map the cache instead of copying it.
    """

    def __init__(self, graph: DistGraph, hot: HotRows) -> None:
        self.graph, self.hot, self.counts = graph, hot, RowCounts()
        self._places: dict[tuple[str, Any, bool], IdPlaces] = {}

    def wanted(self, domain: str, type_: Any, name: str, ids: Any, out: Tensor | None = None) -> Wanted:
        """Return a Wanted, the input of `read`, for the rows `ids` of one feature. Only `ids` are checked here.

        Raises:
            TypeError, ValueError: `ids` are no ids; or the feature is of edges, and the partition has no edge map.
        """
        self.check_places(domain, type_, name)
        text = feature_text(domain, type_, name)
        hot = self.hot.tables.get(type_) if domain == "node" else None
        hot = None if hot is None or name not in hot.tables else hot
        key = domain, type_, hot is not None
        # Two threads that make an IdPlaces at once get the same one.
        places = self._places.get(key) or self._places.setdefault(key, IdPlaces(self.graph, domain, type_, hot))
        form = self.graph.facts.features[domain, type_, name]
        return Wanted(places, name, form, check_index_tensor(text, "ids", ids), text, out)

    def check_places(self, domain: str, type_: Any, name: str) -> None:
        """Raise ValueError if the feature is of edges, and the partition has no edge map. The map tells which part has
        an edge.
        """
        if domain == "edge" and not self.graph.book.has_edges:
            raise ValueError(
                f"{_NAME}: {feature_text(domain, type_, name)} cannot be read, since the partition has no edge map: "
                "which part has an edge is not known. Partition with Partitioner(..., edge_map=True)."
            )

    async def read(self, wanted: Sequence[Wanted]) -> list[Tensor]:
        """Coroutine that reads and returns the rows of each entry of `wanted`, in order. It does not block the event
        loop.
        """
        reading = Reading(self.graph.peers, wanted, self.counts)
        await here_or_off_loop(reading.begin)
        try:
            await here_or_off_loop(reading.fill_here)
            for future in await all_or_failed(reading.sent):  # `result` raises if the future has failed
                if not reading.is_in_place(future):
                    await here_or_off_loop(reading.put, future)
        finally:
            reading.cancel()
        return reading.outs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": {}}
