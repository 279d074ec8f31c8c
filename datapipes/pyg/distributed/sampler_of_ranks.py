"""SamplerOfRanks: the base of DistNeighborSampler, a sampler that connects to the samplers of the other ranks.

Each rank has one part of the graph, given as two stores. The stores are also a GraphStore and a FeatureStore of PyG, so
PyG's own code accepts them.
"""

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
from datapipes.partition.partitioner import Partitioner
from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore as _LocalFeatureStore
from datapipes.partition.stores.local_graph_store import LocalGraphStore as _LocalGraphStore
from datapipes.pyg.distributed.meeting import Meeting, Place, place_of
from datapipes.pyg.graph_of import TimedGraph
from datapipes.pyg.sampler import NeighborSampler, fanouts_of
from datapipes.pyg.torch_geometric_names import EdgeAttr, EdgeLayout, FeatureStore, GraphStore, LocalTensorAttr

__all__ = ["LocalFeatureStore", "LocalGraphStore", "LocalTensorAttr", "Partitioner"]

_NAME = "DistNeighborSampler"


class SamplerOfRanks(NeighborSampler):
    """A NeighborSampler that samples the graph of all ranks. Before it can sample, it must `meet` the other ranks."""

    current_ctx: Any
    feature_store: Any
    graph_store: Any
    event_loop: Any
    channel: Any
    _fanouts: Any  # num_neighbors
    _meeting: Any
    _leave: Any = None  # ends this sampler's use of the meeting

    # --- the other ranks

    def init_sampler_instance(self) -> None:
        """Do nothing. The method exists because PyG's scripts call it."""

    def register_sampler_rpc(self) -> None:
        """Do nothing. The method exists because PyG's scripts call it."""

    def meet(self, place: Place | None = None) -> Meeting:
        """Return the Meeting that connects this rank with the others. The first call waits until all ranks have called.

        Args:
            place: where the ranks meet. None: as the environment says.
        Raises:
            RankError: A rank has failed or did not come; the error names the rank.
            ValueError, TypeError, IndexError: The stores do not fit each other, the stores of other ranks, or the
                arguments; the message says what is wrong.
            RuntimeError: The loader that met the other ranks was closed.
        """
        if self._meeting is not None:
            self._meeting.refuse_left()
        else:
            if place is None:
                is_alone = self.current_ctx.world_size == 1
                others = 16, 180.0, None, False
                place = Place("127.0.0.1", 1, *others) if is_alone else place_of(_NAME, None, None, *others)
            meeting = Meeting(self.current_ctx, place, self._part)
            meeting.use()
            try:
                self._begin(meeting)
            except BaseException:
                meeting.leave()
                raise
            self._meeting, self._leave = meeting, weakref.finalize(self, meeting.leave)
            self._leave.atexit = False
        return self._meeting  # type: ignore[no-any-return]

    def _part(self, tell: Callable[[Any], list[Any]]) -> Part:
        part = Part.of_stores(self.graph_store, self.feature_store, time_attr=self.time_attr, tell=tell)
        edge_types = [edge_type for edge_type in part.edge_types if edge_type is not None]
        fanouts_of(self._fanouts, edge_types or None)  # refused before the ranks have met
        of_edges = {name for domain, _, name in part.forms() if domain == "edge"}
        if self.weight_attr is not None and (not isinstance(self.weight_attr, str) or self.weight_attr not in of_edges):
            raise ValueError(
                f"{_NAME}: weight_attr is {shown(self.weight_attr)}, but the edge attributes in the feature stores are "
                f"{sorted(of_edges)}. Put the weights into the feature stores, and name that attribute."
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
            for node_type in graph.node_types:
                if ("node", node_type, name) in graph.facts.features:
                    times[node_type] = self._times_of_all(graph, node_type, name)
        self._take(TimedGraph(graph, times, on_edges), self._fanouts)
        self._features = DistFeatureStore(graph)
        if graph.facts.num_parts > 1 and isinstance(self.feature_store.client, (_Client, type(None))):
            self.feature_store.client = _Client(meeting.peers)  # replaces the client of an earlier meeting, too

    def _times_of_all(self, graph: Any, node_type: Any, name: str) -> Tensor:
        """Return the times of all nodes of a type, in the whole graph and not in this rank's part only.

        Args:
            name: the node attribute that holds the times.
        """
        count = graph.num_nodes_of(node_type)
        if (node_type, name) in self.feature_store._feat:
            times: Tensor = self.feature_store.get_tensor(node_type, name)
            if len(times) == count:  # in PyG's layout each part has all times
                return times
        return graph._node_times(name, torch.arange(count), node_type)  # type: ignore[no-any-return]

    @property
    def num_nodes(self) -> Any:
        """Number of nodes of the whole graph; with types {node type: number}."""
        return dict(self.graph.num_nodes) if self.is_hetero else self.graph.num_nodes

    @property
    def edge_permutation(self) -> None:
        """None: PyG's loaders need not translate the sampled edge ids, since these are global ids already."""
        return None

    def _next_key(self, rng: RngKey | None) -> RngKey:
        if rng is not None:
            return rng
        context, self._calls = self.current_ctx, self._calls + 1
        # Calls are numbered like the minibatches of a loader, so no two ranks draw alike.
        return RngKey(self.seed or 0, 0, (self._calls - 1) * context.world_size + context.rank, 1)

    @contextmanager
    def _naming_rank(self) -> Iterator[None]:
        """Context manager: if ServerUnavailable is raised inside, add a note to it that lists the rank of each part."""
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
        """Return the state to pickle for a worker process, without the stores: the worker's graph has the part."""
        left = ("feature_store", "graph_store", "channel", "event_loop", "_leave")
        meeting = None if self._meeting is None else _Met(self._meeting.rank_of)
        return {**self.__dict__, **dict.fromkeys(left), "_meeting": meeting}


class _Client(PartitionClient):
    """The client through which a feature store reads rows of other parts, when the user has set no client.

    This class tells it apart from the user's own client: only a `_Client` is replaced at a later meeting.
    """


class _Met:
    """Stands for the Meeting in a worker process: has only the ranks of the parts, for error messages."""

    def __init__(self, rank_of: dict[int, int]) -> None:
        self.rank_of = rank_of

    def refuse_left(self) -> None:
        """Do nothing, unlike Meeting.refuse_left: a worker process ends before its loader leaves the meeting."""


class LocalFeatureStore(_LocalFeatureStore, FeatureStore):  # type: ignore[misc]
    """`datapipes.distributed.LocalFeatureStore` that is also a PyG FeatureStore, so that `store["paper"].x` works.

    A folder may have a partition in PyG's format and in this package's own. `from_partition` then reads PyG's: it has
    the times of all nodes, and the order of edges that PyG's temporal samplers need.
    """

    _layouts = ("pyg", "native")

    def __init__(self, client: FeatureClient | None = None) -> None:
        super().__init__(client)
        self.__dict__["_tensor_attr_cls"] = LocalTensorAttr


class LocalGraphStore(_LocalGraphStore, GraphStore):  # type: ignore[misc]
    """`datapipes.distributed.LocalGraphStore` that is also a PyG GraphStore, so that `coo()`, `csr()` and `csc()` work.

    A folder may have a partition in PyG's format and in this package's own. `from_partition` then reads PyG's.
    """

    _layouts = ("pyg", "native")

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_edge_attr_cls"] = EdgeAttr

    def _edge_to_layout(self, attr: Any, layout: Any, store: bool = False) -> tuple[Any, Any, Any]:
        """Return the edges of a store in the wanted `layout`, as PyG's method of this name does.

        PyG's method has a fault: with types, its offsets end at the last destination that has an edge, so it fails if
        there are no edges. Here the offsets have an entry for each node.
        """
        if attr.layout is not EdgeLayout.COO or layout is not EdgeLayout.CSC or not attr.is_sorted or attr.size is None:
            return super()._edge_to_layout(attr, layout, store)  # type: ignore[no-any-return]
        row, col = self.get_edge_index(attr)
        offsets = torch.searchsorted(col, torch.arange(attr.size[1] + 1))
        if store:
            self.put_edge_index((row, offsets), EdgeAttr(attr.edge_type, EdgeLayout.CSC, True, attr.size))
        return row, offsets, None


def stores_of(where: str, data: Any) -> tuple[LocalFeatureStore, LocalGraphStore]:
    """Check `data`, a loader's argument, and return it as (feature_store, graph_store).

    Raises:
        TypeError: `data` is not a LocalFeatureStore and a LocalGraphStore.
    """
    kinds = (LocalFeatureStore, LocalGraphStore)
    if isinstance(data, (list, tuple)) and len(data) == 2 and all(map(isinstance, data, kinds)):
        return data[0], data[1]
    kind: Any = type(data)
    if isinstance(data, (list, tuple)):
        kind = [f"{type(store).__module__}.{type(store).__name__}" for store in data]
    raise TypeError(
        f"{where}: data must be (LocalFeatureStore, LocalGraphStore) of datapipes.pyg.distributed, got {shown(kind)}. "
        "Load them with from_partition, or make them with from_data."
    )
