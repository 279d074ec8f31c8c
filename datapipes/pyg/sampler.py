"""NeighborSampler: our sampling behind PyG's sampler interface, for our loaders, PyG's own, and Lightning's.

One call draws like the stage `sample_neighbor` or `temporal_sample_neighbor`, and returns a SamplerOutput.
"""

from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice, check_int, check_within, shown
from datapipes.base.errors import sentence
from datapipes.base.log import users_frame
from datapipes.base.rng import RngKey, check_seed
from datapipes.base.types import ends_of, of_type
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import Choice
from datapipes.graph.hops import Sampled, SeedTrees
from datapipes.pyg.graph_of import TimedGraph, graph_of, refuse_wrong_names, weight_name
from datapipes.pyg.links import LinkSeeds
from datapipes.pyg.sampled import sampler_output, seeds_alone
from datapipes.pyg.seeds_of_types import SeedsOfTypes
from datapipes.pyg.torch_geometric_names import (
    BaseSampler,
    NegativeSampling,
    NumNeighbors,
    SubgraphType,
    handed_on,
    node_sample,
)
from datapipes.sampling.fanouts import check_fanouts, sampled_edge_types
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.neighborhoods import Neighborhoods
from datapipes.sampling.node_values import NodeWeights
from datapipes.sampling.seed_ids import plain_seeds, seed_ids
from datapipes.sampling.temporal_neighbor_sampler import ByTime, refuse_last_of_draws

__all__ = ["NeighborSampler"]

_DECIDE_DRAWS = ("disjoint", "replace", "subgraph_type", "temporal_strategy", "time_window")  # beside num_neighbors
_NEGATIVES_HOP = 255  # in the random key, as the hop of negatives: no sampler has this many hops


def __getattr__(name: str) -> Any:
    return handed_on("torch_geometric.sampler", name)


class NeighborSampler(BaseSampler):  # type: ignore[misc]  # PyG comes without types
    """Sample neighborhoods for PyG's loaders: `NodeLoader(data, node_sampler=NeighborSampler(data, [10, 5]))`.

    Args:
        data: Data, HeteroData, a pair (FeatureStore, GraphStore), CSCGraph or HeteroCSCGraph. The edges are sorted
            once, here; batches are sliced by the loader.
        num_neighbors: in-edges drawn per node and hop; the first entry is the hop next to the seeds. -1 keeps all. In a
            graph with types, one list applies to every edge type; a dict {edge type: list} must have every edge type.
        subgraph_type: "directional", "bidirectional" or "induced", as in PyG.
        replace: draw with replacement; -1 still keeps each in-edge once.
        disjoint: True samples a tree for each seed. With `time_attr`, this is always done.
        temporal_strategy: "uniform" draws among in-edges at or before the time of the seed, "last" takes the latest.
        time_attr: the attribute of nodes, or of edges, that holds times, int64.
        time_window: (keyword only) with `time_attr`, draw only in-edges at most this much earlier than the seed.
        weight_attr: the edge attribute that holds weights, or {edge type: attribute}; edges of a type without weights
            are drawn uniformly. Weight 0 is never drawn, even with -1. With `time_attr`, among those in time.
        is_sorted: True says that the destinations in `edge_index` ascend. This is checked, and nothing is sorted.
        directed: False means subgraph_type="induced"; deprecated in PyG.
        seed: decides all draws of a call, together with the number of calls before it. None: each call takes a random
            number from torch's generator, as in PyG, so `torch.manual_seed` decides the draws, and workers of PyG's
            loaders draw differently. Our loaders pass the key of each minibatch instead.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or the edges do not fit; see sample_neighbor.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Any,
        subgraph_type: Any = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: Any = None,
        is_sorted: bool = False,
        *,
        directed: bool = True,
        time_window: int | None = None,
        seed: int | None = None,
    ) -> None:
        for name, flag in (("directed", directed), ("is_sorted", is_sorted)):
            check_bool("NeighborSampler", name, flag)
        if not directed:
            subgraph_type = "induced"
            text = "NeighborSampler: directed=False is deprecated; use subgraph_type='induced'"
            warnings.warn(text, stacklevel=users_frame()[0])
        self._set_options(
            subgraph_type, replace, disjoint, temporal_strategy, time_attr, weight_attr, time_window, seed
        )
        self._take(graph_of(data, time_attr, weight_attr, is_sorted), num_neighbors)

    def _set_options(
        self,
        subgraph_type: Any,
        replace: bool,
        disjoint: bool,
        temporal_strategy: str,
        time_attr: str | None,
        weight_attr: Any,
        time_window: int | None,
        seed: int | None,
    ) -> None:
        refuse_wrong_names(time_attr, weight_attr)
        self.time_attr, self.weight_attr = time_attr, weight_attr
        self.time_window = None if time_window is None else check_int("NeighborSampler", "time_window", time_window, 0)
        if time_window is not None and time_attr is None:
            raise ValueError(
                f"NeighborSampler: time_window is {time_window}, but time_attr is not given; a window needs times. "
                "Pass time_attr."
            )
        if not isinstance(subgraph_type, SubgraphType):
            forms = [form.value for form in SubgraphType]
            subgraph_type = SubgraphType(check_choice("NeighborSampler", "subgraph_type", subgraph_type, forms))
        self.subgraph_type, self.replace = subgraph_type, replace
        self.temporal_strategy = temporal_strategy
        self.disjoint = check_bool("NeighborSampler", "disjoint", disjoint)
        self.seed = None if seed is None else check_seed("NeighborSampler", seed)
        check_choice("NeighborSampler", "temporal_strategy", temporal_strategy, ("uniform", "last"))
        self._calls = 0
        self._weights: dict[str, tuple[Tensor, NodeWeights, int]] = {}

    def _take(self, timed: TimedGraph, num_neighbors: Any) -> None:
        """Use the graph and the times in `timed` for all later calls, with `num_neighbors`."""
        self.graph, self.node_time, self._has_edge_time = timed
        self.num_neighbors = num_neighbors

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Options that decide draws act on the next call, as in PyG."""
        super().__setattr__(name, bool(value) or self.is_temporal if name == "disjoint" else value)
        if name in _DECIDE_DRAWS and "_num_neighbors" in self.__dict__:
            self.num_neighbors = self._num_neighbors

    @property
    def num_neighbors(self) -> Any:
        """A NumNeighbors of PyG; may be set to any value that the constructor takes."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: Any) -> None:
        self._num_neighbors, by_type = fanouts_of(value, [*self.graph.edge_types] if self.is_hetero else None)
        values, default = self._num_neighbors.values, self._num_neighbors.default
        self._num_hops = len(next(iter(by_type.values()), default or values))  # by_type may be empty
        draws = any(map(any, by_type.values()))
        hops = reversed(range(self._num_hops if draws else 0))
        by_hop = [{edge_type: counts[hop] for edge_type, counts in by_type.items()} for hop in hops]
        fanouts = [hop if self.is_hetero else hop[None] for hop in by_hop]
        has_edges = draws or self.subgraph_type == SubgraphType.induced  # those among the seeds
        self.neighborhoods: Any = self._neighborhoods(fanouts) if has_edges else None

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has types."""
        return self.graph.is_heterogeneous  # type: ignore[no-any-return]

    @property
    def is_temporal(self) -> bool:
        """Whether in-edges are drawn by time."""
        return self.time_attr is not None

    @property
    def num_nodes(self) -> Any:
        """Number of nodes; with types {node type: number}."""
        return self.graph.num_nodes

    def sample_from_nodes(self, inputs: Any, *, rng: RngKey | None = None) -> Any:
        """Return the neighborhood of nodes, as SamplerOutput or HeteroSamplerOutput.

        Args:
            inputs: a NodeSamplerInput; or SeedsOfTypes, and then the metadata of the output are dicts by node type.
            rng: the random key; None: the constructor's `seed` decides the draws.
        """
        key = self._key() if rng is None else rng
        if not isinstance(inputs, SeedsOfTypes):
            return self._in_form(node_sample(inputs, lambda seeds, times: self._sample(seeds, times, key)))
        parts = inputs.by_type
        seeds, times, places = (
            {node_type: getattr(of_type, name) for node_type, of_type in parts.items()}
            for name in ("node", "time", "input_id")
        )
        has_times = all(values is not None for values in times.values())
        out = self._sample(seeds, times if has_times else None, key)
        out.metadata = (places, times)
        return self._in_form(out)

    def sample_from_edges(self, inputs: Any, neg_sampling: Any = None, *, rng: RngKey | None = None) -> Any:
        """Return the neighborhood of links and of their negatives, as SamplerOutput or HeteroSamplerOutput.

        Args:
            inputs: an EdgeSamplerInput.
            neg_sampling: a NegativeSampling of PyG, or None. Negatives are drawn by the random key.
            rng: the random key; None: the constructor's `seed` decides the draws.
        """
        key = self._key() if rng is None else rng
        negatives = None if neg_sampling is None else self._negatives(neg_sampling, inputs.input_type, key)
        node_time = self.node_time if self.is_hetero else self.node_time.get(None)
        with seeded(rng if draws_itself(negatives) else None):
            links = LinkSeeds(inputs, negatives, self.num_nodes, node_time, self.disjoint)
        return self._in_form(links.placed(self._sample(links.seeds, links.times, key)))

    def __repr__(self) -> str:
        names = ("time_attr", "time_window", "weight_attr")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        details = {"num_neighbors": self.num_neighbors.values, "subgraph_type": self.subgraph_type.value, **chosen}
        texts = [repr(self.graph), *(f"{name}={value!r}" for name, value in details.items())]
        return f"{type(self).__name__}({', '.join(texts)})"

    def fingerprint(self) -> Fingerprint:
        """Return {name: value} of what decides the draws. A saved state can be resumed only with an equal result."""
        drawn = {} if self.neighborhoods is None else self.neighborhoods.fingerprint()
        return {"graph_digest": self.graph.digest(), **drawn, "subgraph_type": self.subgraph_type.value}

    def _neighborhoods(self, fanouts: list[Any], disjoint: bool = False) -> Neighborhoods:
        where, weights = type(self).__name__, weight_name(self.weight_attr)
        fanouts = check_fanouts(where, fanouts, self.graph, least=0)
        choice = Choice() if weights is None else ByWeight(weights)
        if self.is_temporal:
            of_edges, of_nodes = (self.time_attr, None) if self._has_edge_time else (None, self.time_attr)
            choice = ByTime(of_edges, of_nodes, self.temporal_strategy, True, self.time_window, weights)
            refuse_last_of_draws(where, self.temporal_strategy, self.replace, weights)
        return Neighborhoods(
            where,
            self.graph,
            fanouts,
            sampled_edge_types(fanouts, self.graph),
            choice,
            return_edge_ids=True,
            replace=self.replace,
            frontier="new",
            disjoint=disjoint or self.disjoint,
            subgraph_type="induced" if self.subgraph_type == SubgraphType.induced else "directional",
        )

    def _key(self) -> RngKey:
        if self.seed is None:
            return RngKey(int(torch.randint(2**63 - 1, ())), 0, 0, 0)
        self._calls += 1
        worker = torch.utils.data.get_worker_info()  # in PyG's loaders; worker.seed differs by worker and epoch
        return RngKey((self.seed + (0 if worker is None else worker.seed)) % 2**64, 0, self._calls - 1, 0)

    def _sample(self, seeds: Any, times: Any, key: RngKey) -> Any:
        """Return PyG's output for `seeds`, [n] or with types {node type: [n]}, whose in-edges are drawn at `times`."""
        arguments = self._arguments(self.neighborhoods, seeds, times, key)
        return self._output(seeds, None if arguments is None else self.neighborhoods.sample(*arguments))

    def _output(self, seeds: Any, sampled: Sampled | None) -> Any:
        if sampled is None:
            return seeds_alone(seeds, self.graph, self._num_hops, self.disjoint)
        return sampler_output(sampled, self.graph, self.disjoint)

    def _arguments(
        self, neighborhoods: Neighborhoods | None, seeds: Any, times: Any, key: RngKey
    ) -> tuple[Any, RngKey, SeedTrees | None] | None:
        """Return (seeds, random key, trees) as arguments of `neighborhoods.sample`. None: there is nothing to draw."""
        if self.is_temporal and times is None:
            times = self._own_times(seeds)
        by_type = seeds if self.is_hetero else {None: seeds}
        if neighborhoods is not None and any(len(ids) > 0 for ids in by_type.values()):
            name = neighborhoods.plan.name
            ids = seed_ids(name, seeds, self.graph).ids if self.is_hetero else plain_seeds(name, seeds)
            return ids, key, neighborhoods.trees_of(seeds, times)
        for node_type, ids in by_type.items():
            name, count = f"the seeds{of_type(node_type)}", self.graph.num_nodes_of(node_type)
            check_within("NeighborSampler", name, ids, count, "Take the seeds from the same data.")
        return None

    def _own_times(self, seeds: Any) -> Any:
        """Return the seeds' times, from the node attribute `time_attr`. ValueError if a type has no such attribute."""
        by_type = seeds if self.is_hetero else {None: seeds}
        without = [node_type for node_type in by_type if node_type not in self.node_time]
        if without:
            raise ValueError(
                f"NeighborSampler: time_attr is {self.time_attr!r}, but the seeds{of_type(without[0])} have no times: "
                "neither input_time, nor that attribute of the nodes. Pass input_time."
            )
        times = {node_type: self.node_time[node_type][ids] for node_type, ids in by_type.items()}
        return times if self.is_hetero else times[None]

    def _negatives(self, negatives: Any, edge_type: Any, key: RngKey) -> Any:
        """Return KeyedNegatives that draw as `negatives` says, but by `key`. If a user's class draws itself, return
        `negatives`. The sums of weights are cached for later calls.
        """
        if draws_itself(negatives):
            return negatives
        sums = {}
        for end, node_type in zip(("src", "dst"), ends_of(edge_type), strict=True):
            weight = getattr(negatives, f"{end}_weight")
            if weight is None:
                continue
            kept = self._weights.get(end)
            if kept is None or kept[0] is not weight or kept[2] != weight._version:
                values = weight.cpu() if weight.is_floating_point() else weight.cpu().double()
                by_type = values if node_type is None else {node_type: values}
                made = NodeWeights("NegativeSampling", f"{end}_weight", self.graph, by_type)
                kept = self._weights[end] = (weight, made, weight._version)
            sums[end] = kept[1].sums(node_type)
        return KeyedNegatives(negatives, sums, key)

    def _in_form(self, out: Any) -> Any:
        return out.to_bidirectional() if self.subgraph_type == SubgraphType.bidirectional else out


def fanouts_of(num_neighbors: Any, edge_types: list[Any] | None) -> tuple[Any, dict[Any, list[int]]]:
    """Check `num_neighbors`; return (PyG's NumNeighbors, {edge type or None: [fanout of each hop]})."""
    is_made = isinstance(num_neighbors, NumNeighbors)
    values, default = (num_neighbors.values, num_neighbors.default) if is_made else (num_neighbors, None)
    lists = [*values.values()] if isinstance(values, Mapping) else [values]
    if not all(isinstance(hops, (list, tuple)) for hops in (lists if default is None else [*lists, default])):
        raise TypeError(
            "NeighborSampler: num_neighbors must be a list, or a dict from edge types to lists, got "
            f"{shown(num_neighbors)}. Give the in-edges per node, hop by hop; -1 for all."
        )
    try:
        made = NumNeighbors(values, default)  # anew: the given one may remember the edge types of another graph
        named = [key.to_tuple() for key in made.values] if isinstance(made.values, dict) else []
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"NeighborSampler: num_neighbors is {shown(num_neighbors)}, whose keys are no edge types (src, rel, dst): "
            f"{sentence(error)} The graph has the edge types {edge_types or []}. Use these as keys, or pass a list."
        ) from error
    if edge_types is None:
        if isinstance(made.values, dict):
            raise ValueError(
                f"NeighborSampler: num_neighbors is a dict, {shown(values)}, but there are no edge types. Pass a list."
            )
        return made, {None: made.get_values()}
    unknown = [edge_type for edge_type in named if edge_type not in edge_types]
    if unknown:
        raise ValueError(
            f"NeighborSampler: num_neighbors names the edge type {unknown[0]}; the edge types are {edge_types}. Use "
            "only these as keys, or pass a list."
        )
    return made, made.get_values(edge_types)


def draws_itself(negatives: Any) -> bool:
    """Return whether a NegativeSampling has a user's class that overrides `sample`; False for None."""
    return negatives is not None and type(negatives).sample not in (NegativeSampling.sample, KeyedNegatives.sample)


class KeyedNegatives(NegativeSampling):  # type: ignore[misc]  # PyG comes without types
    """A NegativeSampling whose draws are decided by a random key. Each call of `sample` draws other nodes.

    Args:
        negatives: the NegativeSampling whose mode and amount are used.
        sums: {"src" or "dst": sums of node weights}; an end without sums is drawn uniformly.
    """

    def __init__(self, negatives: Any, sums: dict[str, _core.RowSums], key: RngKey) -> None:
        super().__init__(negatives.mode, negatives.amount)
        self._sums, self._key, self._calls = sums, key, 0

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> Tensor:
        """Return random node ids [num_samples] in [0, num_nodes); `endpoint`, "src" or "dst", selects the weights."""
        assert num_nodes is not None
        if num_nodes == 0:
            raise ValueError("NegativeSampling: found 0 nodes at the end that is drawn; needed: 1 or more. Add nodes.")
        key = self._key.hop_key(_NEGATIVES_HOP, self._calls)
        self._calls += 1
        end = (num_nodes, self._sums.get(endpoint))
        drawn = _core.draw_negatives(key, np.arange(num_samples), first_try=0, num_tries=1, ends=[end])
        return torch.from_numpy(drawn[0])


@contextmanager
def seeded(key: RngKey | None) -> Iterator[None]:
    """Context manager: seed the generators of torch, NumPy and Python for the user's code; restore them at the end.

    Nothing is seeded if `key` is None, or outside of the main thread, since all threads share these generators.
    """
    if key is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    number = key.hop_key()
    before = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])
        random.setstate(before[2])
