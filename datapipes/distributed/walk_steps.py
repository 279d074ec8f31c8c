"""WalkSteps: random walks over a graph in parts, without I/O (docs/semantics.md, section 4.11).

Each step is one request to each part that owns nodes of the walks; in node2vec a second round asks which sources have
an edge to the node before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.types import ends_of
from datapipes.distributed.asking_parts import Ask, here_or_off_loop
from datapipes.distributed.requests.steps import SURE, Steps, StepsRequest
from datapipes.graph.choice import UNIFORM
from datapipes.graph.graph import FoundEdges
from datapipes.graph.walks import WalkPlan


async def walks_over_parts(graph: Any, plan: WalkPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
    """Return the walks over `graph`, a DistGraph, without blocking the event loop while the parts answer."""
    walks = WalkSteps(plan, seeds, keys, graph.index_dtype)
    for number in range(len(plan.steps)):
        request = walks.request(number)
        if request.num_ids == 0:
            break
        by_part = await here_or_off_loop(graph._by_owner, request.ids, ends_of(request.edge_type)[1])
        answers = await graph._ask_all([Ask(part, request.of(at)) for part, at in by_part])
        steps = await here_or_off_loop(walks.merged, [at for _, at in by_part], answers)
        pairs = walks.unsure(request, steps)
        found = None if pairs is None else await graph.has_edges_async(pairs, request.edge_type)
        await here_or_off_loop(walks.take, request, steps, found)
    return walks.result()


class WalkSteps:
    """The walks of a minibatch while they are drawn.

    Args:
        plan, seeds, keys: the arguments of `DistGraph.walks`.
        dtype: dtype of the nodes in the result.
    """

    def __init__(self, plan: WalkPlan, seeds: Tensor, keys: list[int], dtype: torch.dtype) -> None:
        self._plan, self._keys = plan, keys
        self._shape, num_steps = (len(seeds), plan.walks_per_node), len(plan.steps)
        num_walks = len(seeds) * plan.walks_per_node
        self._nodes = torch.full((num_walks, num_steps + 1), -1, dtype=dtype)
        self._nodes[:, 0] = seeds.repeat_interleave(plan.walks_per_node)
        self._edge_ids = torch.full((num_walks, num_steps if plan.edge_ids else 0), -1, dtype=torch.int64)

    def request(self, number: int) -> StepsRequest:
        """Return the request for step `number` of the walks that have not ended, as if one part owned all nodes."""
        plan, nodes = self._plan, self._nodes
        walkers = (nodes[:, number] >= 0).nonzero().view(-1)
        ids = nodes[walkers, number]
        p, q = (plan.p, plan.q) if number > 0 else (1.0, 1.0)
        before = nodes[walkers, number - 1] if number > 0 else torch.full_like(ids, -1)
        choice = None if plan.choice == UNIFORM else plan.choice
        numbers = plan.steps[number], number, self._keys[number], plan.end_below
        return StepsRequest(*numbers, p, q, choice, ids, walkers, before)

    def merged(self, places: Sequence[Tensor], answers: Sequence[Steps]) -> Steps:
        """Return the answers of all parts as one; `places` are the positions of their walks in the request."""
        if len(answers) == 1:
            return answers[0]
        joined = Steps(*map(torch.cat, zip(*answers, strict=True)))
        order = torch.cat([*places]).argsort()
        begins = (joined.counts.cumsum(0) - joined.counts)[order]
        counts = joined.counts[order]
        ends = counts.cumsum(0)
        at = torch.arange(int(counts.sum())) + (begins - (ends - counts)).repeat_interleave(counts)
        sums = joined.sums[at] if joined.sums.numel() else joined.sums
        return Steps(counts, joined.sources[at], joined.edge_ids[at], joined.kinds[at], sums)

    def unsure(self, request: StepsRequest, steps: Steps) -> Tensor | None:
        """Return the pairs (source, node before) [m, 2] whose edges decide, in the order of `steps`; None: no such
        pairs.
        """
        self._at = (steps.kinds != SURE).nonzero().view(-1)
        if len(self._at) == 0:
            return None
        before = request.before.repeat_interleave(steps.counts)[self._at]
        return torch.stack((steps.sources[self._at], before), 1)

    def take(self, request: StepsRequest, steps: Steps, found: FoundEdges | None) -> None:
        """Take the step; `found` answers the pairs of `unsure`."""
        near = np.zeros(len(steps.sources), np.uint8)
        if found is not None:
            near[self._at.numpy()] = (found.counts > 0).numpy()
        chosen = torch.from_numpy(
            _core.chosen_steps(
                steps.counts.numpy(),
                steps.sources.numpy(),
                steps.kinds.numpy(),
                steps.sums.numpy() if steps.sums.numel() else None,
                near,
                request.walkers.numpy(),
                request.before.long().numpy(),
                request.step,
            )
        )
        goes_on = chosen >= 0
        walkers, at = request.walkers[goes_on], chosen[goes_on]
        self._nodes[walkers, request.number + 1] = steps.sources[at].to(self._nodes.dtype)
        if self._plan.edge_ids:
            self._edge_ids[walkers, request.number] = steps.edge_ids[at]

    def result(self) -> tuple[Tensor, Tensor | None]:
        """Return what `DistGraph.walks` returns."""
        edge_ids = self._edge_ids.view(*self._shape, self._edge_ids.shape[1]) if self._plan.edge_ids else None
        return self._nodes.view(*self._shape, self._nodes.shape[1]), edge_ids
