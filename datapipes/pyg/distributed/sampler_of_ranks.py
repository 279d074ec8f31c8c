"""SamplerOfRanks: a sampler that meets the other ranks, each with its own part; DistNeighborSampler is built on it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import ServerUnavailable, add_note
from datapipes.base.rng import RngKey
from datapipes.distributed.dist_feature_store import DistFeatureStore
from datapipes.distributed.partition_client import PartitionClient
from datapipes.partition.native.part import Part
from datapipes.pyg.distributed.meeting import Meeting, Place, place_of
from datapipes.pyg.distributed.stores import LocalFeatureStore, LocalGraphStore
from datapipes.pyg.graph_of import TimedGraph
from datapipes.pyg.sampler import NeighborSampler, fanouts_of

_NAME = "DistNeighborSampler"


class SamplerOfRanks(NeighborSampler):
    """A NeighborSampler whose graph is that of all ranks, once they have met."""

    current_ctx: Any
    feature_store: Any
    graph_store: Any
    event_loop: Any
    channel: Any
    _given: Any  # num_neighbors
    _meeting: Any
    _leave: Any = None  # tells the meeting that this sampler needs it no more

    # --- the other ranks

    def init_sampler_instance(self) -> None:
        """Do nothing; PyG's scripts call it."""

    def register_sampler_rpc(self) -> None:
        """Do nothing; PyG's scripts call it."""

    def meet(self, place: Place | None = None) -> Meeting:
        """Return the meeting of the ranks, which this call begins on all of them if it has not begun.

        Raises:
            RankError: A rank has failed or did not come; it is named.
            ValueError, TypeError, IndexError: The stores do not fit each other, or those of other ranks, or the
                arguments; the message says what is wrong.
        """
        if self._meeting is not None:
            self._meeting.refuse_left()
        else:
            if place is None and self.current_ctx.world_size > 1:
                place = place_of(_NAME, None, None, timeout=180, num_threads=16, tls=None, insecure=False)
            elif place is None:
                place = Place("127.0.0.1", 1, 180.0, 16, None, False)
            meeting = Meeting(self.current_ctx, place, self._part)
            try:
                self._begin(meeting)
            except BaseException:
                meeting.use()
                meeting.leave()
                raise
            meeting.use()
            self._meeting, self._leave = meeting, weakref.finalize(self, meeting.leave)
            self._leave.atexit = False
        found: Meeting = self._meeting
        return found

    def _part(self, tell: Callable[[Any], list[Any]]) -> Part:
        part = Part.of_stores(self.graph_store, self.feature_store, time_attr=self.time_attr, tell=tell)
        edge_types = [of for of in part.edge_types if of is not None]
        fanouts_of(self._given, edge_types or None)  # refused before the ranks have met
        of_edges = {name for domain, _, name in part.forms() if domain == "edge"}
        if self.weight_attr is not None and (not isinstance(self.weight_attr, str) or self.weight_attr not in of_edges):
            raise ValueError(
                f"{_NAME}: weight_attr is {shown(self.weight_attr)}, and the attributes of edges are "
                f"{sorted(of_edges)}. Name one of them, or put it into the feature stores."
            )
        of_edges.discard(self.time_attr or "")
        if of_edges and part.num_parts > 1 and not part.book.has_edges:
            raise ValueError(
                f"{_NAME}: edges have features, {sorted(of_edges)}, and which part has an edge is not known. Set "
                "graph_store.edge_pb, or remove these features."
            )
        return part

    def _begin(self, meeting: Meeting) -> None:
        graph, name = meeting.graph, self.time_attr
        on_edges = name is not None and any(key[0] == "edge" and key[2] == name for key in graph.facts.features)
        times: dict[Any, Tensor] = {}
        if name is not None and not on_edges:
            for of in graph.node_types:
                if ("node", of, name) in graph.facts.features:
                    times[of] = self._times_of_all(graph, of, name)
        self._take(TimedGraph(graph, times, on_edges), self._given)
        self._features = DistFeatureStore(graph)
        if graph.facts.num_parts > 1 and isinstance(self.feature_store.client, (_Client, type(None))):
            self.feature_store.client = _Client(meeting.peers)  # also in the place of one whose meeting may be over

    def _times_of_all(self, graph: Any, of: Any, name: str) -> Tensor:
        """Return the time of each node of a type, of all parts."""
        count = graph.num_nodes_of(of)
        if (of, name) in self.feature_store._feat:
            known: Tensor = self.feature_store.get_tensor(of, name)
            if len(known) == count:  # as PyG's layout has it in each part
                return known
        found: Tensor = graph._node_times(name, torch.arange(count), of)
        return found

    @property
    def num_nodes(self) -> Any:
        """The number of nodes of the whole graph, with types by type."""
        found = self.graph.num_nodes
        return dict(found) if self.is_hetero else found

    @property
    def edge_permutation(self) -> None:
        """None: edge ids are those of the whole graph."""
        return None

    def _next_key(self, rng: RngKey | None) -> RngKey:
        if rng is not None:
            return rng
        context, self._calls = self.current_ctx, self._calls + 1
        # That of a loader's minibatch: no two ranks draw alike.
        return RngKey(self.seed or 0, 0, (self._calls - 1) * context.world_size + context.rank, 1)

    @contextmanager
    def _naming_rank(self) -> Iterator[None]:
        """Add to an error which rank a part is of."""
        try:
            yield
        except ServerUnavailable as error:
            if self._meeting is not None:
                ranks = ", ".join(
                    f"part {part} is rank {rank}'s" for part, rank in sorted(self._meeting.rank_of.items())
                )
                add_note(error, f"{ranks}, in the group {self.current_ctx.group_name!r}")
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker process: what it samples by, without the stores, which it has as a Part."""
        left = ("feature_store", "graph_store", "channel", "event_loop", "_leave")
        meeting = None if self._meeting is None else _Met(self._meeting.rank_of)
        return {**self.__dict__, **dict.fromkeys(left), "_meeting": meeting}


class _Client(PartitionClient):
    """What a feature store asks the other ranks by, unless the user gave it a client."""


class _Met:
    """What a worker process knows of a meeting."""

    def __init__(self, rank_of: dict[int, int]) -> None:
        self.rank_of = rank_of

    def refuse_left(self) -> None:
        """Do nothing: workers end with their loader."""


def stores_of(where: str, data: Any) -> tuple[LocalFeatureStore, LocalGraphStore]:
    """Return the two stores of `data`.

    Raises:
        TypeError: It is something else.
    """
    kinds = (LocalFeatureStore, LocalGraphStore)
    if isinstance(data, (list, tuple)) and len(data) == 2 and all(map(isinstance, data, kinds)):
        return data[0], data[1]
    found = (
        [f"{type(each).__module__}.{type(each).__name__}" for each in data]
        if isinstance(data, (list, tuple))
        else type(data)
    )
    raise TypeError(
        f"{where}: data must be (LocalFeatureStore, LocalGraphStore) of datapipes.pyg.distributed, got {shown(found)}. "
        "Load them with from_partition, or make them with from_data."
    )
