"""DistNeighborSampler: PyG's sampler of the same name, over a graph whose parts are served by several ranks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor, check_int
from datapipes.base.codec import Message, join_key
from datapipes.base.rng import RngKey, check_seed
from datapipes.base.types import ends_of, of_type, type_in, values_of
from datapipes.chain.asynchronous import off_loop
from datapipes.channel import ChannelBase
from datapipes.pyg.distributed import rpc
from datapipes.pyg.distributed.sampler_of_ranks import SamplerOfRanks, stores_of
from datapipes.pyg.links import LinkSeeds
from datapipes.pyg.sampler import fanouts_of
from datapipes.pyg.torch_geometric_names import (
    DistEdgeHeteroSamplerInput,
    HeteroSamplerOutput,
    NodeSamplerInput,
    SamplerOutput,
)

__all__ = ["DistNeighborSampler"]

_NAME = "DistNeighborSampler"
_OPTIONS = {"seed": 0, "weight_attr": None, "time_window": None}  # our arguments, in PyG's **kwargs
_UNUSED = ("shuffle", "rpc_worker_names")  # of PyG's **kwargs; PyG does not use them either
_key: ContextVar[RngKey | None] = ContextVar("key", default=None)  # the key of a loader's minibatch


class DistNeighborSampler(SamplerOfRanks):
    """The DistNeighborSampler of torch_geometric.distributed: samples a graph whose parts several ranks serve.

    Edge ids in its outputs are ids of the whole graph. A sampler must first meet the samplers of the other ranks. A
    loader does this for its sampler. Without a loader, the ranks meet when `init_rpc` is called, or else at the first
    call of the sampler, at MASTER_ADDR and MASTER_PORT + 1 of the environment. All ranks must do this at the same time.

    Args:
        current_ctx: the DistContext of this process: its rank, and the number of ranks.
        data: (feature_store, graph_store) of the rank's own part.
        num_neighbors, replace, subgraph_type, disjoint, temporal_strategy, time_attr: see NeighborSampler.
        channel: a queue with a method `put`. `sample_from_nodes` and `sample_from_edges` put their outputs there
            instead of returning them, and put the error if a call fails. Or a datapipes.channel.ChannelBase, to which
            they send outputs as messages; see `to_message`.
        concurrency: with a channel, the most calls that run at once.
        device: the device of the results; None: host memory.
        shuffle, rpc_worker_names: not used, as in PyG.
        seed: (keyword only) the random seed. The draws of a call depend on it and on the number of earlier calls.
            Default 0.
        weight_attr: (keyword only) the edge attribute that holds weights.
        time_window: (keyword only) see NeighborSampler.
    Raises:
        TypeError, ValueError: An argument is not allowed.
    Attributes:
        graph: the DistGraph of all parts, once the ranks have met.
    """

    def __init__(
        self,
        current_ctx: Any,
        data: Any,
        num_neighbors: Any,
        channel: Any = None,
        replace: bool = False,
        subgraph_type: Any = "directional",
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        concurrency: int = 1,
        device: Any = None,
        **kwargs: Any,
    ) -> None:
        options = {name: kwargs.pop(name, value) for name, value in _OPTIONS.items()}
        unknown = [name for name in kwargs if name not in _UNUSED]
        if unknown:
            raise TypeError(
                f"{_NAME}: got an unknown argument {unknown[0]!r}; keyword arguments besides "
                f"PyG's are {[*_OPTIONS]}. Leave it out."
            )
        self.feature_store, self.graph_store = stores_of(_NAME, data)
        self.current_ctx = rpc.check_context(_NAME, current_ctx, self.graph_store.num_partitions)
        self.channel, self.device = channel, None if device is None else torch.device(device)
        self.concurrency = check_int(_NAME, "concurrency", concurrency, 1)
        self.event_loop: Any = None
        self._meeting: Any = None
        further = options["weight_attr"], options["time_window"], check_seed(_NAME, options["seed"])
        self._set_options(subgraph_type, replace, disjoint, temporal_strategy, time_attr, *further)
        edge_types = sorted({attr.edge_type for attr in self.graph_store.get_all_edge_attrs()} - {None})
        self._fanouts = fanouts_of(num_neighbors, edge_types or None)[0]
        rpc.meet_if_called(self)

    # --- PyG's calls

    def sample_from_nodes(self, inputs: Any, *, rng: RngKey | None = None, **kwargs: Any) -> Any:
        """Sample the neighborhood of nodes, with features and labels. Return the output, or put it on the channel.

        Args:
            inputs: a NodeSamplerInput.
            rng: the random key. None: the sampler numbers its calls and takes a new key for each.
            callback: (keyword only) called with the output after it was put on the channel.
        Returns:
            A SamplerOutput or HeteroSamplerOutput; None if there is a channel. The metadata of the output are
            (input_id, time, number of seeds, features "x", labels, "edge_attr"). The attribute `features` of the output
            has the rows of all features: {("node" or "edge", type, name): rows}.
        """
        return self._run(self.sampled(NodeSamplerInput.cast(inputs), None, self._next_key(rng)), kwargs)

    def sample_from_edges(
        self, inputs: Any, neg_sampling: Any = None, *, rng: RngKey | None = None, **kwargs: Any
    ) -> Any:
        """Sample the neighborhood of an EdgeSamplerInput and of its negatives; see sample_from_nodes for the rest."""
        return self._run(self.sampled(inputs, neg_sampling, self._next_key(rng)), kwargs)

    async def sampled(self, inputs: Any, neg_sampling: Any, key: RngKey) -> Any:
        """Sample the neighborhood of nodes or links by the random key `key`; return the output with all features."""
        _key.set(key)  # for this task alone
        self.meet()
        with self._naming_rank():
            if isinstance(inputs, NodeSamplerInput):
                out = await self.node_sample(inputs)
            else:
                node_time = self.node_time if self.is_hetero else self.node_time.get(None)
                out = await self.edge_sample(
                    inputs, self.node_sample, self.num_nodes, self.disjoint, node_time, neg_sampling
                )
            out = self._in_form(out)
            out.features, out.input_type = await self._read(out), inputs.input_type
        return out

    async def node_sample(self, inputs: Any) -> Any:
        """Sample the neighborhood of the nodes in `inputs`, and return the output, without features.

        Args:
            inputs: a NodeSamplerInput, or a DistEdgeHeteroSamplerInput, which has seeds of two node types.
        Returns:
            A SamplerOutput or HeteroSamplerOutput, with global ids of nodes and edges. For a NodeSamplerInput the
            metadata are (input_id, time, number of seeds).
        """
        self.meet()
        key = self._next_key(_key.get())
        if isinstance(inputs, DistEdgeHeteroSamplerInput) or hasattr(inputs, "node_dict"):
            return self._placed(await self._drawn(inputs.node_dict, inputs.time_dict, key))
        if self.is_hetero and inputs.input_type is None:
            raise ValueError(f"{_NAME}: input_type is None, but the graph has types. Name the type of the seeds.")
        seeds, times, node_type = inputs.node, inputs.time, inputs.input_type
        if self.is_hetero:
            seeds, times = {node_type: seeds}, None if times is None else {node_type: times}
        out = await self._drawn(seeds, times, key)
        out.metadata = (inputs.input_id, inputs.time, len(inputs.node))
        return self._placed(out)

    async def edge_sample(
        self,
        inputs: Any,
        sample_fn: Callable[..., Awaitable[Any]],
        num_nodes: Any,
        disjoint: bool,
        node_time: Any = None,
        neg_sampling: Any = None,
    ) -> Any:
        """Sample the neighborhood of the links in `inputs` and of their negatives; return the output without features.

        Args:
            inputs: an EdgeSamplerInput.
            sample_fn: the coroutine function that samples the ends of the links as seeds; usually `node_sample`.
            num_nodes: number of nodes of the whole graph; with types {type: number}.
            disjoint: whether each end of a link is a seed with a tree of its own.
            node_time: the times of all nodes; with types {type: times}. A negative is not later than its link. None: no
                times.
            neg_sampling: a NegativeSampling; None draws no negatives.
        """
        self.meet()
        key = self._next_key(_key.get())
        negatives = None if neg_sampling is None else self._negatives(neg_sampling, inputs.input_type, key)
        links = LinkSeeds(inputs, negatives, num_nodes, node_time, disjoint)
        before = _key.set(key)
        try:
            out = await sample_fn(self._seeds_of(inputs, links.seeds, links.times))
        finally:
            _key.reset(before)
        return self._placed(links.placed(out))

    async def sample_one_hop(
        self,
        srcs: Tensor,
        one_hop_num: int,
        seed_time: Tensor | None = None,
        src_batch: Tensor | None = None,
        edge_type: Any = None,
    ) -> Any:
        """Draw in-edges of each node in `srcs`, one hop only, and return them in the order of `srcs`, with global ids.

        Args:
            srcs: int64 [n], nodes of the destination type. For a node that occurs twice, in-edges are drawn twice.
            one_hop_num: in-edges for each node, -1 for all.
            seed_time: int64 [n], the time of each node, if the sampler has a `time_attr`.
            src_batch: int64 [n], the id of the tree to which each node belongs; its neighbors get the same id.
            edge_type: in a graph with types, the edge type to draw from.
        Returns:
            A SamplerOutput. `node`: the global ids of the neighbors, with repeats and without `srcs`. `edge`: the
            global ids of the edges. `batch`: the tree of each neighbor, or None without `src_batch`. The metadata are
            ([number of neighbors of each node],).
        """
        self.meet()
        edge_type = type_in(_NAME, "edge", edge_type, self.graph.edge_types)
        fanout = check_int(_NAME, "one_hop_num", one_hop_num, -1)
        src, dst = ends_of(edge_type)
        ids, key = check_index_tensor(_NAME, "srcs", srcs).long(), self._next_key(_key.get())
        seeds, times = ({dst: ids}, {dst: seed_time}) if self.is_hetero else (ids, seed_time)
        counts, node, edge = torch.zeros(len(ids), dtype=torch.int64), ids[:0], ids[:0]
        hop = {**dict.fromkeys(self.graph.edge_types, 0), edge_type: fanout} if self.is_hetero else fanout
        neighborhoods: Any = None if fanout == 0 else self._neighborhoods([hop], disjoint=True)
        arguments = self._arguments(neighborhoods, seeds, times, key)
        if arguments is not None:
            with self._naming_rank():
                sampled = await neighborhoods.sample_async(*arguments)
            block, nodes = sampled.hops[0], sampled.nodes
            block, nodes = (block[edge_type], nodes[src]) if self.is_hetero else (block, nodes)
            counts, node, edge = block.indptr.diff(), nodes[block.indices.long()].long(), block.edge_ids.long()
        batch = None if src_batch is None else torch.repeat_interleave(src_batch, counts)
        return self._placed(SamplerOutput(node, None, None, edge, batch, metadata=(counts.tolist(),)))

    def init_event_loop(self) -> None:
        """Start the event loop for the sampler's calls, unless it runs already. The first call does this, too."""
        if self.event_loop is None:
            self.event_loop = rpc.ConcurrentEventLoop(self.concurrency)
            self.event_loop.start_loop()

    # --- how

    def _run(self, work: Any, options: dict[str, Any]) -> Any:
        callback = options.pop("callback", None)
        if options:
            work.close()
            raise TypeError(
                f"{_NAME}: got an unknown argument {next(iter(options))!r}; only 'callback' is allowed. Leave it out."
            )
        self.init_event_loop()
        if self.channel is None:
            return self.with_metadata(self._placed(self.event_loop.run_task(work)))
        self.event_loop.add_task(self._put(work), callback=callback)
        return None

    async def _put(self, work: Any) -> Any:
        """Await `work`, a call of the sampler, and put its output on the channel. If it fails, put the error there and
        raise it: the reader must not wait forever.
        """
        try:
            out = await work
            _key.set(None)
            out = self.with_metadata(self._placed(out))
        except Exception as error:
            if isinstance(self.channel, ChannelBase):
                await off_loop(self.channel.send_error, error)
            else:
                self.channel.put(error)
            raise
        if isinstance(self.channel, ChannelBase):
            await off_loop(self.channel.send, to_message(out))
        else:
            self.channel.put(out)
        return out

    async def _drawn(self, seeds: Any, times: Any, key: RngKey) -> Any:
        if isinstance(seeds, dict):
            seeds = {node_type: check_index_tensor(_NAME, "seeds", ids).cpu() for node_type, ids in seeds.items()}
        else:
            seeds = check_index_tensor(_NAME, "seeds", seeds).cpu()
        arguments = self._arguments(self.neighborhoods, seeds, times, key)
        sampled = None if arguments is None else await self.neighborhoods.sample_async(*arguments)
        return await off_loop(self._output, seeds, sampled)

    def _placed(self, out: Any) -> Any:
        """Move the tensors of `out` to the sampler's device, and return `out`. For a call by a loader do nothing, since
        the loader moves the finished batch itself.
        """
        if self.device is not None and _key.get() is None:
            for name, value in vars(out).items():
                setattr(out, name, moved(value, self.device))
        return out

    def _seeds_of(self, inputs: Any, seeds: Any, times: Any) -> Any:
        if not isinstance(seeds, dict):
            return NodeSamplerInput(inputs.input_id, seeds, times)
        if len(seeds) > 1:
            return DistEdgeHeteroSamplerInput(inputs.input_id, seeds, times, inputs.input_type)
        ((node_type, ids),) = seeds.items()
        return NodeSamplerInput(inputs.input_id, ids, None if times is None else times[node_type], node_type)

    async def _read(self, out: Any) -> dict[tuple[str, Any, str], Tensor]:
        """Fetch the rows of all attributes of the nodes and edges in `out`, from all parts.

        Returns:
            {("node" or "edge", type, name): rows}. Edge attributes are left out if it is unknown which part owns an
            edge.
        """
        requests = []
        for domain, group, name in self.graph.facts.features:
            ids = values_of(out.node if domain == "node" else out.edge, group)
            is_known = domain == "node" or self.graph.facts.num_parts == 1 or self.graph.book.has_edges
            if ids is not None and is_known:
                requests.append((domain, group, name, ids.cpu()))
        rows = await self._features.read_many_async(requests)
        return {request[:3]: values for request, values in zip(requests, rows, strict=True)}

    def with_metadata(self, out: Any) -> Any:
        """Append (features "x", labels, "edge_attr") to the metadata of `out`, as in PyG, and return `out`."""
        rows = out.features
        nodes = {node_type: rows.get(("node", node_type, "x")) for node_type in self.graph.node_types}
        edges = {edge_type: rows.get(("edge", edge_type, "edge_attr")) for edge_type in self.graph.edge_types}
        labels: Any = labels_of(self.feature_store.labels, out, out.input_type, self.graph) or None
        if not self.is_hetero:
            nodes, edges, labels = nodes[None], edges[None], labels and labels[None]
        out.metadata = (*out.metadata, nodes, labels, edges)
        return out

    def __repr__(self) -> str:
        context = self.current_ctx
        return f"{_NAME}(rank {context.rank} of {context.world_size}, num_neighbors={self._fanouts.values!r})"


# --- labels for the outputs of a sampler over parts, and outputs as messages


def labels_of(labels: Any, out: Any, input_type: Any, graph: Any) -> dict[Any, Tensor]:
    """Return the labels of the sampled nodes or edges, {type: labels}; {} if `labels` is None.

    Args:
        labels: [num_nodes], or {type: [num_nodes]}, or the same for edges; or None.
        out: the sampler's output, with the ids of the sampled nodes and edges.
        input_type: in a graph with types, the type of the seeds. If `labels` is one tensor, it has labels of this type.
        graph: the graph of all parts.
    Raises:
        TypeError, ValueError: Labels are no tensors, have an unknown type, or do not cover the whole graph.
    """
    if labels is None:
        return {}
    by_type = labels if isinstance(labels, dict) and isinstance(out, HeteroSamplerOutput) else {input_type: labels}
    rows = {}
    for key, values in by_type.items():
        _refuse_labels(values, key, graph)
        ids = values_of(out.edge or {} if isinstance(key, tuple) else out.node, key)
        if ids is not None:
            rows[key] = values[ids.to(values.device)]
    return rows


def _refuse_labels(values: Any, key: Any, graph: Any) -> None:
    """Check the labels `values` of the node type or edge type `key`.

    Raises:
        TypeError: `values` is no tensor.
        ValueError: The graph has no such type, or `values` does not have one row for each of its nodes or edges.
    """
    name, is_edge = f"feature_store.labels{of_type(key)}", isinstance(key, tuple)
    types = graph.edge_types if is_edge else graph.node_types
    if key not in types:
        raise ValueError(f"{name}: there is no such type in the graph, which has {[*types]}. Name one of these.")
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}. Pass torch.as_tensor(labels).")
    count = graph.num_edges_of(key) if is_edge else graph.num_nodes_of(key)
    if values.ndim == 0 or len(values) != count:
        raise ValueError(
            f"{name} has the shape {list(values.shape)}, but the whole graph has {count} "
            f"{'edges' if is_edge else 'nodes'}{of_type(key)}. Give the labels of all, not of this part alone."
        )


def moved(value: Any, device: Any) -> Any:
    """Copy a tensor, or the tensors in a dict, list or tuple, to `device`; return other values as they are."""
    if isinstance(value, (list, tuple)) and any(isinstance(member, Tensor) for member in value):
        return type(value)(moved(member, device) for member in value)
    if isinstance(value, dict):
        return {key: moved(values, device) for key, values in value.items()}
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def to_message(out: Any) -> Message:
    """Return a sampler's output as a message for a ChannelBase: {name: int64 tensor}.

    The names are node, row, col, edge, batch, num_sampled_nodes and num_sampled_edges; fields that are None are left
    out. With types, the keys are `join_key(name, type)`.
    """
    message = {}
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges"):
        value = getattr(out, name)
        for key, ids in value.items() if isinstance(value, dict) else [(None, value)]:
            if ids is not None:
                full_name = name if key is None else join_key(name, key)
                message[full_name] = torch.as_tensor(ids, dtype=torch.int64).cpu()
    return message
