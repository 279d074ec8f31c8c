"""WalkPlan: what a stage of random walks draws, the same for all minibatches. docs/semantics.md, section 4.11."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import of_type
from datapipes.graph.choice import UNIFORM, Choice, Chosen, Rows

MOST_BIAS = 2.0**64  # of p and q, and of 1 / p and 1 / q
MOST_WALKS = 2**32  # in a minibatch: the limit of the random key's stream


@dataclass(frozen=True)
class SortedSources(Choice):
    """The sources of each node's in-edges in ascending order, in which node2vec looks up whether an edge exists. They
    take no memory if the graph has them in this order. They draw nothing.
    """

    @property
    def reads(self) -> SortedSources:
        return self

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        return {"in-edges": rows.indices}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        what = f"the in-edges{of_type(edge_type)} in the order of their sources"
        check_memory(where, what, rows.indices.nbytes, "Leave out p and q, or sample a smaller graph.")
        made = _core.sorted_sources(rows.indptr.numpy(), rows.indices.numpy(), num_threads=num_threads())
        ascending = torch.from_numpy(made)
        return [] if torch.equal(ascending, rows.indices) else [ascending]

    def argument(self, rows: Rows, made: list[Tensor]) -> Any:
        return (made[0] if made else rows.indices).numpy()


@dataclass(eq=False)
class WalkPlan:
    """What a stage of random walks draws: the arguments of `graph.walks` that are the same for all minibatches.

    Attributes:
        name: the stage's name, for errors.
        graph: the Graph.
        steps: the edge type of each step; None without types.
        walks_per_node, p, q, restart_prob: see RandomWalkSampler.
        traversal: a walk may end by `restart_prob` before each multiple of so many steps, but for step 0; 0: before
            every step.
        choice: how in-edges are drawn: uniformly or by weights.
        edge_ids: return the ids of the edges.
        chosen: the arrays from which `choice` draws: the result of `graph.choose`.
        sources: for node2vec the result of `graph.choose` for SortedSources, else {}.
        edge_types: the edge types of the steps, each once, in sorted order.
        step_numbers: the position of each step's edge type in `graph.edge_types`.
    """

    name: str
    graph: Any
    steps: Sequence[Any]
    walks_per_node: int = 1
    p: float = 1.0
    q: float = 1.0
    restart_prob: float = 0.0
    choice: Choice = UNIFORM
    edge_ids: bool = False
    traversal: int = 0
    chosen: Any = field(init=False)
    sources: Any = field(init=False)
    edge_types: tuple[Any, ...] = field(init=False)
    step_numbers: list[int] = field(init=False)

    def __post_init__(self) -> None:
        numbers = {edge_type: number for number, edge_type in enumerate(self.graph.edge_types)}
        self.step_numbers = [numbers[edge_type] for edge_type in self.steps]
        self.edge_types = tuple(self.graph.edge_types[number] for number in sorted({*self.step_numbers}))
        self.chosen = self.graph.choose(self.name, self.choice, self.edge_types)
        looks_back = (self.p, self.q) != (1.0, 1.0) and len(self.steps) > 1 and not self.graph._in_parts
        self.sources = self.graph.choose(self.name, SortedSources(), self.edge_types) if looks_back else {}

    def kept(self) -> Iterable[tuple[Any, Chosen]]:
        """Return (edge type, the arrays that were made for it)."""
        return itertools.chain(self.chosen.items(), self.sources.items())

    def keys(self, rng: RngKey, hop: int = 0) -> list[int]:
        """Return the random key of each step, uint64. `rng` is the stage's random key at the minibatch."""
        keys = {number: rng.hop_key(hop, number) for number in {*self.step_numbers}}
        return [keys[number] for number in self.step_numbers]

    def refuse_other(self, graph: Any) -> None:
        """Raise ValueError if this is the plan of another graph, or values that it reads have changed."""
        if self.graph is not graph:
            raise ValueError(f"{self.name}: found the plan of another graph. Make a WalkPlan for this one.")
        graph._refuse_changes(self)

    def drawn(self, topology: _core.Topology, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
        """Return the walks over a whole graph, by one call of the C++ core."""
        nodes, edge_ids = _core.random_walks(
            topology,
            seeds.numpy().astype(np.int64, copy=False),
            steps=[*zip(self.step_numbers, keys, map(self.end_below, range(len(keys))), strict=True)],
            sums=[self.chosen[edge_type].argument() for edge_type in self.steps] if self.chosen else None,
            walks_per_node=self.walks_per_node,
            p=self.p,
            q=self.q,
            sorted=next((chosen.argument() for chosen in self.sources.values()), None),
            want_edge_ids=self.edge_ids,
            num_threads=num_threads(),
            op=self.name,
        )
        shape, steps = (len(seeds), self.walks_per_node), len(self.steps)
        ids = None if edge_ids is None else torch.from_numpy(edge_ids).view(*shape, steps)
        return torch.from_numpy(nodes).view(*shape, steps + 1), ids

    def end_below(self, step: int) -> int:
        """Return the number below which a word ends a walk before a step; 0 if no word is drawn."""
        may_end = self.traversal == 0 or (step > 0 and step % self.traversal == 0)
        return int(self.restart_prob * 2**32) if may_end else 0
