"""SubgraphForm: the edges among the nodes that a sampler found, in place of the hops that found them.

What they are is fixed by docs/semantics.md, section 4.9.

"induced" has all edges among the nodes, "bidirectional" the sampled ones and their reverses. Both give one Block whose
destinations are all of its sources, which a model uses in each layer. The edges among the nodes are drawn by the same
choice, one hop of all in-edges, so groups (trees, times), weights and graphs in parts need nothing of their own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of, type_text
from datapipes.graph.choice import Keyed
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.minibatch import Block

__all__: list[str] = []

FORMS = ("directional", "bidirectional", "induced")


@dataclass(frozen=True)
class SubgraphForm:
    """A form other than that of the hops.

    Attributes:
        name: of the stage, for errors.
        form: "bidirectional" or "induced".
        edge_types: those that the form has, sorted: those that are sampled, and where their reverses go.
        reverses: {edge type that is sampled: that of its reverses}, without types that have none; None for "induced".
        plan: one hop of all in-edges of all edge types; None where it is not needed.
    """

    name: str
    form: str
    edge_types: tuple[Any, ...]
    reverses: Mapping[Any, Any] | None
    plan: HopPlan | None

    @classmethod
    def of(cls, form: str, graph: Graph, plan: HopPlan, reverses: Mapping[Any, Any] | None) -> SubgraphForm:
        """Return the form of what a plan samples.

        Raises:
            What `graph.choose` raises for edge types that hold reverses.
        """
        edge_types = plan.edge_types
        if reverses is not None:
            edge_types = tuple(sorted({*edge_types, *reverses.values()}, key=lambda of: of or ()))
        all_of = None
        if form == "induced" or plan.edge_ids:
            given: Any = (plan.name, graph, edge_types, [[-1] * len(edge_types)], plan.choice)
            all_of = HopPlan.of(*given, replace=False, only_new=False, edge_ids=plan.edge_ids)
        return cls(plan.name, form, edge_types, reverses, all_of)

    def asks(self, found: Sampled, rng: RngKey, trees: SeedTrees | None) -> tuple[HopPlan, Any, Keyed, Any] | None:
        """Return what `graph.hops` is asked for the edges among the nodes; None if they are not needed."""
        if self.plan is None:
            return None
        nodes, groups = found.nodes, found.groups
        if isinstance(nodes, dict):  # seeds of a type without nodes would be none
            nodes = {of: ids for of, ids in nodes.items() if ids.shape[0] > 0}
            groups = None if groups is None else {of: groups[of] for of in nodes}
        if trees is None:
            return self.plan, nodes, self.plan.keyed(rng), None
        of_nodes = {of: each.numpy() for of, each in groups.items()} if isinstance(groups, dict) else groups.numpy()
        return self.plan, nodes, self.plan.keyed(rng), trees._replace(groups=of_nodes)

    def made(self, found: Sampled, among: Sampled | None) -> Sampled:
        """Return the nodes that were found with the edges of this form.

        Args:
            among: all in-edges of the nodes; None if they were not needed.
        Raises:
            ValueError: A reverse is no edge of the graph, but edge ids are asked for.
        """
        nodes = found.nodes if isinstance(found.nodes, dict) else {None: found.nodes}
        known: dict[Any, Block] = {}
        if among is not None:
            hop = among.hops[0] if isinstance(found.nodes, dict) else {None: among.hops[0]}
            known = {of: _among(block, *_sizes(nodes, of)) for of, block in hop.items()}
        if self.form == "bidirectional":
            hops = [hop if isinstance(found.nodes, dict) else {None: hop} for hop in found.hops]
            known = {of: self._both(of, nodes, hops, known.get(of)) for of in self.edge_types}
        return found._replace(hops=[known if isinstance(found.nodes, dict) else known[None]])

    def _both(self, of: Any, nodes: Mapping[Any, Tensor], hops: list[Any], known: Block | None) -> Block:
        """Return the edges of a type that were sampled, and the reverses that go there, each once."""
        assert self.reverses is not None
        size = _sizes(nodes, of)
        sampled = [hop[of].edge_index for hop in hops if of in hop]
        reversed_ = [hop[other].edge_index.flip(0) for hop in hops for other, to in self.reverses.items() if to == of]
        pairs = torch.cat([*sampled, *reversed_, torch.empty(2, 0, dtype=torch.int64)], 1)
        wanted = torch.ones(pairs.shape[1], dtype=torch.bool)
        dtype = hops[0][next(iter(hops[0]))].indices.dtype
        if known is None:
            (indptr, indices), _ = _merged(pairs, wanted, None, size)
            return Block(indptr, indices.to(dtype), size[0])
        assert known.edge_ids is not None
        count = known.edge_ids.shape[0]
        ids = torch.cat([known.edge_ids, *[hop[of].edge_ids for hop in hops if of in hop]])
        into = torch.cat([known.edge_index[1], *[each[1] for each in sampled]])
        # An edge may be drawn in one tree and not in another; its destination tells the tree.
        numbers = torch.from_numpy(np.unique(ids.numpy(), return_inverse=True)[1].reshape(-1))
        drawn = numbers * size[1] + into
        was_sampled = torch.isin(drawn[:count], drawn[count:])
        candidates = torch.cat((known.edge_index[:, was_sampled], known.edge_index[:, ~was_sampled]), 1)
        of_candidates = torch.cat((known.edge_ids[was_sampled], known.edge_ids[~was_sampled]))
        (indptr, indices), edge_ids = _merged(
            torch.cat((candidates, pairs), 1),
            torch.cat((torch.zeros(candidates.shape[1], dtype=torch.bool), wanted)),
            torch.cat((of_candidates, torch.full((pairs.shape[1],), -1))),
            size,
        )
        assert edge_ids is not None
        missing = (edge_ids < 0).nonzero()
        if missing.numel() > 0:
            self._refuse(of, nodes, Block(indptr, indices, size[0]).edge_index[:, int(missing[0])])
        return Block(indptr, indices.to(dtype), size[0], edge_ids)

    def _refuse(self, of: Any, nodes: Mapping[Any, Tensor], pair: Tensor) -> None:
        src, dst = ends_of(of)
        source, destination = int(nodes[src][pair[0]]), int(nodes[dst][pair[1]])
        what = "" if of is None else f" of {type_text(of)}"
        raise ValueError(
            f"{self.name}: the reverse ({source}, {destination}){what} of a sampled edge is no edge of the graph that "
            "can be drawn, so it has no edge id, which return_edge_ids asks for. Add the reverses to the graph "
            "(graph.to_undirected), or leave return_edge_ids out."
        )


def _sizes(nodes: Mapping[Any, Tensor], of: Any) -> tuple[int, int]:
    src, dst = ends_of(of)
    return int(nodes[src].shape[0]), int(nodes[dst].shape[0])


def _among(block: Block, num_src: int, num_dst: int) -> Block:
    """Return a hop of all nodes without the edges that come from others; those are numbered behind."""
    keep = block.indices < num_src
    before = torch.cat((torch.zeros(1, dtype=torch.int64), keep.cumsum(0)))
    edge_ids = None if block.edge_ids is None else block.edge_ids[keep]
    return Block(before[block.indptr[: num_dst + 1]], block.indices[keep], num_src, edge_ids)


def _merged(
    pairs: Tensor, wanted: Tensor, ids: Tensor | None, size: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return (indptr, indices) of the pairs of which one is wanted, each once, by destination and then by source; and
    the id of the first of each.
    """
    most = max(*size, 1)
    by_source = _grouped(pairs.flip(0), most)
    order = by_source[_grouped(pairs[:, by_source], most)]  # stable, so by both
    sources, destinations = pairs[:, order]
    is_first = torch.ones(order.shape[0], dtype=torch.bool)
    is_first[1:] = (sources[1:] != sources[:-1]) | (destinations[1:] != destinations[:-1])
    place = is_first.cumsum(0) - 1
    count = int(place[-1]) + 1 if place.shape[0] > 0 else 0
    is_wanted = torch.zeros(count, dtype=torch.bool)
    is_wanted[place[wanted[order]]] = True
    chosen = is_first.nonzero().flatten()[is_wanted]
    indptr = torch.zeros(size[1] + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(destinations[chosen], minlength=size[1]).cumsum(0)
    return (indptr, sources[chosen]), None if ids is None else ids[order[chosen]]


def _grouped(pairs: Tensor, num_nodes: int) -> Tensor:
    """Return the order of pairs by destination; those of one keep their order."""
    sources, destinations = pairs.contiguous().numpy()
    return torch.from_numpy(_core.coo_to_csc(sources, destinations, num_nodes)[2])
