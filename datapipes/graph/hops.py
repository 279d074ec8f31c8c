"""The plan of sampling a minibatch's neighborhood (HopPlan), and the result (Sampled): all hops at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INDEX_DTYPES, check_index_tensor, shown
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.base.types import ends_of
from datapipes.graph.choice import Choice, Chosen
from datapipes.minibatch import Block


class Sampled(NamedTuple):
    """A sampled neighborhood, compacted to local ids. In a graph with types, each tensor or block is a dict by type.

    Attributes:
        nodes: ids [num_nodes], distinct, in order of first occurrence, so the seeds are first. With types, the dict has
            all node types.
        local_seeds: ids [num_seeds], the position of each seed in `nodes`. With types, the dict has the types of seeds.
        hops: one Block for each hop, from the seeds outwards. With types: {edge type: Block}, of the sampled edge
            types.
        groups: int64 [num_nodes], for each node the group of seeds from which it was found, if the seeds are in groups
            that share no nodes (one tree for each seed, or one group for each time). A node then occurs once in each
            group that found it. None: the seeds are in no such groups.
        bucket: the number of the bucket to whose sizes `nodes`, `hops` and `groups` are padded (docs/semantics.md,
            section 5.1; the groups of padding are 0); None: they are not padded.
    """

    nodes: Any
    local_seeds: Any
    hops: list[Any]
    groups: Any = None
    bucket: int | None = None


class SeedTrees(NamedTuple):
    """The groups of a minibatch's seeds. Groups share no sampled nodes; a group is one seed's tree, or all seeds of one
    time and one time window.

    Attributes:
        groups: int64 [n], the group of each seed, in the order of the ids that the sampler gets; with types {node type:
            groups}.
        streams: uint32 [num_groups], the number of the random stream from which each group draws.
        times: int64 [num_groups], the time of each group; None without times.
        rows: int64 [num_groups], for each tree the row of the minibatch's seeds to which it belongs; rows are counted
            over all types. None: tree i belongs to row i, or the groups are not trees.
        windows: int64 [num_groups], the time window of each group; None: seeds have no windows of their own.
    """

    groups: Any
    streams: NDArray[np.uint32]
    times: NDArray[np.int64] | None
    rows: Tensor | None
    windows: NDArray[np.int64] | None = None

    def core(self, types: Iterable[Any]) -> _core.Groups:
        """Return the groups as the C++ core takes them; `types` are the seeds' node types, in the core's order."""
        of_seeds = [self.groups[node_type] for node_type in types] if isinstance(self.groups, dict) else [self.groups]
        streams = self.streams if self.streams.any() else None  # groups by time all have stream 0
        count = len(self.streams)
        return _core.Groups(of_seeds, count=count, streams=streams, times=self.times, windows=self.windows)


def misfit(choice: Choice, times: Any, windows: Any) -> str | None:
    """Return what is wrong with rows that have `times` and time `windows`, or None; None: they fit the choice."""
    if (times is not None) != choice.of_times:
        have = "are drawn by time, but have no times" if choice.of_times else "have times, but are not drawn by time"
        return f"the rows {have}"
    if (windows is None) != (choice.window_field is None):
        return (
            f"the rows have {'no ' if windows is None else ''}time windows of their own, but the choice says otherwise"
        )
    return None


@dataclass(eq=False)
class HopPlan:
    """What a sampling stage draws: the arguments of `graph.hops` that are the same for all minibatches.

    Attributes:
        name: the stage's name, for errors.
        graph: the sampled Graph.
        edge_types: the sampled edge types, in sorted order.
        fanouts: for each hop, hop 0 (next to the seeds) first, the fanout of each edge type.
        choice: the policy for drawing in-edges.
        replace: draw with replacement.
        only_new: at each hop, draw only for the nodes that the hop before found (NeighborSampler's frontier="new").
        edge_ids: return the ids of the sampled edges.
        only_among: leave out edges whose sources are no seeds (with groups: no seeds of the same group).
        padding: the buckets to whose sizes the result is padded; only for a whole graph.
        chosen: the arrays from which `choice` draws: the result of `graph.choose`.
        node_numbers: the position of each node type in `graph.node_types`.
        edge_numbers, source_numbers: for each sampled edge type, its position in `graph.edge_types`, and the position
            of its source type in `graph.node_types`.
    Raises:
        The errors of `graph.choose`.
    """

    name: str
    graph: Any  # a Graph; typed Any, since graph.py imports this module
    edge_types: tuple[Any, ...]
    fanouts: list[list[int]]
    choice: Choice
    replace: bool
    only_new: bool
    edge_ids: bool
    only_among: bool = False
    padding: _core.Padding | None = None
    chosen: Any = field(init=False)
    node_numbers: dict[Any, int] = field(init=False)
    edge_numbers: list[int] = field(init=False)
    source_numbers: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.node_numbers = {node_type: number for number, node_type in enumerate(self.graph.node_types)}
        numbers = {edge_type: number for number, edge_type in enumerate(self.graph.edge_types)}
        self.edge_numbers = [numbers[edge_type] for edge_type in self.edge_types]
        self.source_numbers = [self.node_numbers[ends_of(edge_type)[0]] for edge_type in self.edge_types]
        self.chosen = self.graph.choose(self.name, self.choice, self.edge_types)

    def kept(self) -> Iterable[tuple[Any, Chosen]]:
        """Return (edge type, the arrays that were made for it)."""
        return self.chosen.items()  # type: ignore[no-any-return]

    def keyed(self, rng: RngKey) -> tuple[list[list[int]], Choice]:
        """Return (keys, choice) for a minibatch; see Choice.keyed. `rng` is the stage's random key at the minibatch."""
        return self.choice.keyed(rng, len(self.fanouts), self.edge_numbers, self.source_numbers)

    def drawn(
        self,
        topology: _core.Topology,
        seeds: Mapping[Any, Tensor],
        keys: list[list[int]],
        choice: Choice,
        trees: SeedTrees | None,
        num_seeds: Sequence[int],
    ) -> Sampled:
        """Return what LocalGraph.hops returns, by one call of the C++ core; `seeds` are the result of `checked`."""
        nodes, local_seeds, hops, groups, bucket = _core.sample_neighbors(
            topology,
            [(self.node_numbers[kind], ids.numpy().astype(np.int64, copy=False)) for kind, ids in seeds.items()],
            sampled=self.edge_numbers,
            fanouts=self.fanouts,
            keys=keys,
            replace=self.replace,
            only_new=self.only_new,
            want_edge_ids=self.edge_ids,
            only_among=self.only_among,
            num_threads=num_threads(),
            op=self.name,
            groups=None if trees is None else trees.core(seeds),
            choice=choice.kernel([chosen.argument() for chosen in self.chosen.values()]),
            padding=self.padding,
            num_seeds=[*num_seeds],
        )
        groups_of = None if trees is None else groups
        return sampled(self.graph, seeds, nodes, local_seeds, hops, groups_of, self.edge_types, bucket)

    def checked(self, graph: Any, seeds: Any, choice: Choice, trees: SeedTrees | None) -> Mapping[Any, Tensor]:
        """Check the arguments of `graph.hops`. Return the seeds as {node type: ids}; without types the type is None.

        Raises:
            TypeError: The seeds are no ids.
            ValueError: The plan belongs to another graph, or the keys to another choice; the seeds have an unknown
                type, or no times although the choice needs them; or values that the choice reads have changed.
        """
        if self.graph is not graph:
            raise ValueError(f"{self.name}: found the plan of another graph. Make a HopPlan for this one.")
        if choice is not self.choice and choice.reads != self.choice.reads:
            raise ValueError(
                f"{self.name}: the keys are for {choice}, the plan is for {self.choice}. Pass plan.keyed(rng)."
            )
        found = misfit(self.choice, trees and trees.times, trees and trees.windows)
        if found is not None:
            raise ValueError(f"{self.name}: {found}. Pass trees that have what the choice draws by, and nothing else.")
        graph._refuse_changes(self)
        typed = seeds if isinstance(seeds, Mapping) else {None: seeds}
        for node_type, ids in typed.items():
            if node_type not in self.node_numbers:
                raise ValueError(
                    f"{self.name}: found seeds of the type {shown(node_type)}, allowed are "
                    f"{shown([*self.node_numbers])}. Pass {{type: ids}}."
                )
            if not isinstance(ids, Tensor) or ids.dtype not in INDEX_DTYPES:  # stages have checked them: saves 2 us
                check_index_tensor(self.name, "seeds", ids)
        return typed


def sampled(
    graph: Any,
    seeds: Mapping[Any, Tensor],
    nodes: Any,
    local_seeds: Any,
    hops: Any,
    groups: Any,
    edge_types: Any,
    bucket: int | None = None,
) -> Sampled:
    """Return the arrays from a sampling kernel as a Sampled. The kernel gives them in the order of the types.

    Args:
        seeds: {node type: ids}, in the order in which the kernel got them.
        nodes: for each node type, the ids of the sampled nodes.
        local_seeds: for each type of `seeds`, the positions of the seeds in `nodes`.
        hops: for each hop and edge type: (indptr, indices, edge ids or None, number of sources).
        groups: for each node type, the group of each node; None without groups.
        edge_types: the sampled edge types.
        bucket: see Sampled.
    """
    nodes_by_type, seeds_by_type = _tensors(graph.node_types, nodes), _tensors(seeds, local_seeds)
    blocks = [{edge_type: _block(*arrays) for edge_type, arrays in zip(edge_types, hop, strict=True)} for hop in hops]
    groups_by_type = None if groups is None else _tensors(graph.node_types, groups)
    if graph.is_heterogeneous:
        return Sampled(nodes_by_type, seeds_by_type, blocks, groups_by_type, bucket)
    untyped_groups = groups_by_type and groups_by_type[None]
    return Sampled(nodes_by_type[None], seeds_by_type[None], [hop[None] for hop in blocks], untyped_groups, bucket)


def _block(indptr: Any, indices: Any, edge_ids: Any, num_src: int) -> Block:
    """Return a Block that shares the memory of arrays from a kernel."""
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src, ids)


def _tensors(types: Any, arrays: Any) -> dict[Any, Tensor]:
    return {type_: torch.from_numpy(array) for type_, array in zip(types, arrays, strict=True)}
