"""Random walks and personalised PageRank over a graph in parts (docs/semantics.md, sections 4.11 and 4.12).

Each step of walks is one request to each part that owns nodes of the walks. In node2vec a second round asks which
sources have an edge to the node before; and where no draw decides, two more ask for whole rows and for their sources.
PageRank asks for whole rows alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.types import ends_of
from datapipes.distributed.asking_parts import Ask, here_or_off_loop
from datapipes.distributed.requests.steps import IF_FAR, IF_NEAR, OPEN, Steps, StepsRequest, WholeRowsRequest
from datapipes.graph.choice import UNIFORM
from datapipes.graph.ppr import PprPlan
from datapipes.graph.walks import WalkPlan


async def walks_over_parts(graph: Any, plan: WalkPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
    """Return the walks over `graph`, a DistGraph, without blocking the event loop while the parts answer."""
    num_walks, num_steps = len(seeds) * plan.walks_per_node, len(plan.steps)
    nodes = torch.full((num_walks, num_steps + 1), -1, dtype=graph.index_dtype)
    nodes[:, 0] = seeds.repeat_interleave(plan.walks_per_node)
    edge_ids = torch.full((num_walks, num_steps if plan.edge_ids else 0), -1)
    walkers = torch.arange(num_walks)
    for number in range(num_steps):
        request = _request(plan, number, keys[number], nodes, walkers)
        walkers, sources, ids = await _step(graph, request)
        nodes[walkers, number + 1] = sources.to(nodes.dtype)
        if plan.edge_ids:
            edge_ids[walkers, number] = ids
        if len(walkers) == 0:
            break
    shape = len(seeds), plan.walks_per_node
    return nodes.view(*shape, num_steps + 1), edge_ids.view(*shape, num_steps) if plan.edge_ids else None


def _request(plan: WalkPlan, number: int, key: int, nodes: Tensor, walkers: Tensor) -> StepsRequest:
    """Return the request for a step of some walks, as if one part owned all nodes."""
    p, q = (plan.p, plan.q) if number > 0 else (1.0, 1.0)
    before = nodes[walkers if (p, q) != (1.0, 1.0) else walkers[:0], number - 1]
    choice = None if plan.choice == UNIFORM else plan.choice
    numbers = plan.steps[number], number, key, plan.end_below(number)
    return StepsRequest(*numbers, p, q, plan.edge_ids, choice, nodes[walkers, number], walkers, before)


async def _step(graph: Any, request: StepsRequest) -> tuple[Tensor, Tensor, Tensor]:
    """Return the walks of a request that take a step, their sources, and the edge ids, empty if not wanted."""
    steps = await _asked(graph, request)
    unsure = ((steps.kinds == IF_NEAR) | (steps.kinds == IF_FAR)).nonzero().view(-1)
    may_take = torch.ones(len(steps.kinds), dtype=torch.bool)
    if len(unsure) > 0:
        before = request.before.repeat_interleave(steps.counts)[unsure]
        pairs = torch.stack((steps.sources[unsure], before), 1)
        is_near = (await graph.has_edges_async(pairs, request.edge_type)).counts > 0
        may_take[unsure] = is_near == (steps.kinds[unsure] == IF_NEAR)
    places = may_take.nonzero().view(-1)
    walks = torch.arange(len(steps.counts)).repeat_interleave(steps.counts)[places]
    is_first = walks.diff(prepend=torch.tensor([-1])) > 0
    walks, places = walks[is_first], places[is_first]  # the walks that do not end, and what each takes
    is_open = steps.kinds[places] == OPEN
    found = [(request.walkers[walks[~is_open]], steps, places[~is_open])]
    if bool(is_open.any()):
        found.append(await _by_rows(graph, request.of(walks[is_open])))
    walkers = torch.cat([of for of, _, _ in found])
    sources = torch.cat([steps.sources[at] for _, steps, at in found])
    ids = torch.cat([steps.edge_ids[at] if request.edge_ids else steps.edge_ids for _, steps, at in found])
    order = walkers.argsort()
    return walkers[order], sources[order], ids[order] if request.edge_ids else ids


async def _by_rows(graph: Any, request: StepsRequest) -> tuple[Tensor, Steps, Tensor]:
    """Return (walks, in-edges, the place of each walk's in-edge), for walks that only the whole row decides."""
    distinct, at = _distinct(request.ids)
    whole = WholeRowsRequest(request.edge_type, request.edge_ids, request.choice, distinct, distinct[:0])
    rows = await _asked(graph, whole)
    of_walks = _taken(rows, at)
    before = request.before.long().repeat_interleave(of_walks.counts)
    pairs, back = _distinct(torch.stack((of_walks.sources.long(), before), 1))
    near = ((await graph.has_edges_async(pairs, request.edge_type)).counts > 0).byte()[back]
    chosen = await here_or_off_loop(
        _core.chosen_in_rows,
        of_walks.counts.numpy(),
        of_walks.sources.long().numpy(),
        of_walks.sums.numpy(),
        near.numpy(),
        request.walkers.long().numpy(),
        request.all_before.numpy(),
        request.step,
    )
    return request.walkers, of_walks, torch.from_numpy(chosen)


async def ppr_over_parts(graph: Any, plan: PprPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor]:
    """Return the neighbors and scores of a PprPlan over `graph`, a DistGraph. Each round asks for the rows that it
    needs and has not seen, of all seeds at once.
    """
    pushes = _core.PprOverParts(seeds.long().numpy(), num_nodes=graph.num_nodes, **plan.options)
    while True:
        nodes, most = map(torch.from_numpy, await here_or_off_loop(pushes.wanted))
        if len(nodes) == 0:
            found, masses, _ = pushes.largest()
            ids, scores = plan.scored(found, masses)
            return ids.to(graph.index_dtype), scores
        request = WholeRowsRequest(None, False, None, nodes, most)
        by_part = await here_or_off_loop(graph._by_owner, nodes, None)
        answers = await graph._ask_all([Ask(part, request.of(at)) for part, at in by_part])
        for (_, at), rows in zip(by_part, answers, strict=True):
            await here_or_off_loop(pushes.give, nodes[at].numpy(), rows.counts.numpy(), rows.sources.long().numpy())


async def _asked(graph: Any, request: StepsRequest | WholeRowsRequest) -> Steps:
    """Ask the parts that own the ids of a request; return the answers as one, in the order of the ids."""
    by_part = await here_or_off_loop(graph._by_owner, request.ids, ends_of(request.edge_type)[1])
    answers = await graph._ask_all([Ask(part, request.of(at)) for part, at in by_part])
    if len(answers) == 1:
        only: Steps = answers[0]
        return only
    joined = Steps(*map(torch.cat, zip(*answers, strict=True)))
    return await here_or_off_loop(_taken, joined, torch.cat([at for _, at in by_part]).argsort())


def _distinct(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows, and for each row its place among them."""
    unique: Any = torch.unique
    distinct, places = unique(rows, dim=0, return_inverse=True)
    return distinct, places


def _taken(steps: Steps, places: Tensor) -> Steps:
    """Return the in-edges of the walks, or rows, at `places`; repeats allowed."""
    begins, counts = (steps.counts.cumsum(0) - steps.counts)[places], steps.counts[places]
    at = torch.arange(int(counts.sum())) + (begins - (counts.cumsum(0) - counts)).repeat_interleave(counts)
    return Steps(counts, *(values[at] if len(values) else values for values in steps[1:]))
