"""SubgraphForm: replaces the sampled hops by one subgraph, with edges among the nodes that were found.

docs/semantics.md, section 4.9, fixes these edges.

"induced" has all edges among the nodes, "bidirectional" the sampled edges and their reverses. Both give one Block whose
destinations are all of its sources, which a model uses in each layer. The edges among the nodes come from one more hop
of all in-edges that has only edges among its seeds, drawn by the sampler's own choice (its rule of drawing). So groups
(trees, times), weights and graphs in parts need no code of their own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of, of_type
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.minibatch import Block

__all__: list[str] = []

FORMS = ("directional", "bidirectional", "induced")


class SubgraphForm:
    """Replaces the sampled hops by one Block (one for each edge type): the result for subgraph_type "bidirectional" or
    "induced".

    Args:
        form: "bidirectional" or "induced".
        reverses: {sampled edge type: type of its reverses}, without types that have no reverses; None for "induced".
    Attributes:
        edge_types: the edge types of the result, sorted: the sampled types, and the types of their reverses.
        plan: a HopPlan of one hop that draws all in-edges of these types; None if it is not needed.
    Raises:
        The errors of `graph.choose` for edge types that hold reverses.
    """

    def __init__(self, form: str, plan: HopPlan, reverses: Mapping[Any, Any] | None) -> None:
        self.name, self.form, self.reverses = plan.name, form, reverses
        self.edge_types = plan.edge_types
        self.plan: HopPlan | None = None
        if reverses is not None:
            both = {*plan.edge_types, *reverses.values()}
            self.edge_types = tuple(sorted(both, key=lambda edge_type: edge_type or ()))
        if form == "induced" or plan.edge_ids:
            everything: dict[str, Any] = {"edge_types": self.edge_types, "fanouts": [[-1] * len(self.edge_types)]}
            self.plan = replace(plan, **everything, replace=False, only_new=False, only_among=True)

    def question(self, sampled: Sampled, rng: RngKey, trees: SeedTrees | None) -> tuple[Any, ...] | None:
        """Return the arguments for `graph.hops` with which it returns all edges among the sampled nodes. None: these
        edges are not needed.
        """
        if self.plan is None:
            return None
        nodes, groups = sampled.nodes, sampled.groups
        if isinstance(nodes, dict):  # a type without nodes has nothing to sample from
            nodes = {node_type: ids for node_type, ids in nodes.items() if ids.shape[0] > 0}
        if trees is not None:
            is_typed = isinstance(nodes, dict)
            numbers = {node_type: groups[node_type].numpy() for node_type in nodes} if is_typed else groups.numpy()
            trees = trees._replace(groups=numbers)
        return self.plan, nodes, *self.plan.keyed(rng), trees

    def made(self, sampled: Sampled, among: Sampled | None) -> Sampled:
        """Return `sampled` with one Block (with types, one for each edge type) in place of its hops. It has the edges
        of the subgraph type.

        Args:
            among: what `graph.hops` returned for the arguments from `question`; None if `question` returned None.
        Raises:
            ValueError: A reverse is no edge of the graph, but edge ids are asked for.
        """
        is_typed = isinstance(sampled.nodes, dict)
        nodes = sampled.nodes if is_typed else {None: sampled.nodes}
        blocks: dict[Any, Block] = {}
        if among is not None:
            blocks = among.hops[0] if is_typed else {None: among.hops[0]}
        if self.form == "bidirectional":
            hops = [hop if is_typed else {None: hop} for hop in sampled.hops]
            blocks = {one: self._both(one, nodes, hops, blocks.get(one)) for one in self.edge_types}
        return sampled._replace(hops=[blocks if is_typed else blocks[None]])

    def _both(self, edge_type: Any, nodes: Mapping[Any, Tensor], hops: list[Any], among: Block | None) -> Block:
        """Return the Block of an edge type: its sampled edges, and the reverses that have this type, each pair once.

        Args:
            among: the Block of all edges of the type among the nodes; None if no edge ids are asked for.
        """
        assert self.reverses is not None
        size = _sizes(nodes, edge_type)
        sampled = [hop[edge_type].edge_index for hop in hops if edge_type in hop]
        types = [one for one, back in self.reverses.items() if back == edge_type]
        reversed_ = [hop[one].edge_index.flip(0) for hop in hops for one in types]
        pairs = torch.cat([*sampled, *reversed_, torch.empty(2, 0, dtype=torch.int64)], 1)
        wanted = torch.ones(pairs.shape[1], dtype=torch.bool)
        dtype = hops[0][next(iter(hops[0]))].indices.dtype
        if among is None:
            (indptr, indices), _ = _merged(pairs, wanted, None, size)
            return Block(indptr, indices.to(dtype), size[0])
        assert among.edge_ids is not None
        count = among.edge_ids.shape[0]
        ids = torch.cat([among.edge_ids, *[hop[edge_type].edge_ids for hop in hops if edge_type in hop]])
        into = torch.cat([among.edge_index[1], *[edge_index[1] for edge_index in sampled]])
        # An edge may be drawn in one tree and not in another; its destination tells the tree.
        numbers = torch.from_numpy(np.unique(ids.numpy(), return_inverse=True)[1].reshape(-1))
        drawn = numbers * size[1] + into
        was_sampled = torch.isin(drawn[:count], drawn[count:])
        candidates = torch.cat((among.edge_index[:, was_sampled], among.edge_index[:, ~was_sampled]), 1)
        of_candidates = torch.cat((among.edge_ids[was_sampled], among.edge_ids[~was_sampled]))
        (indptr, indices), edge_ids = _merged(
            torch.cat((candidates, pairs), 1),
            torch.cat((torch.zeros(candidates.shape[1], dtype=torch.bool), wanted)),
            torch.cat((of_candidates, torch.full((pairs.shape[1],), -1))),
            size,
        )
        assert edge_ids is not None
        missing = (edge_ids < 0).nonzero()
        if missing.numel() > 0:
            self._refuse(edge_type, nodes, Block(indptr, indices, size[0]).edge_index[:, int(missing[0])])
        return Block(indptr, indices.to(dtype), size[0], edge_ids)

    def _refuse(self, edge_type: Any, nodes: Mapping[Any, Tensor], pair: Tensor) -> None:
        src, dst = ends_of(edge_type)
        source, destination = int(nodes[src][pair[0]]), int(nodes[dst][pair[1]])
        raise ValueError(
            f"{self.name}: the reverse ({source}, {destination}){of_type(edge_type)} of a sampled edge is no edge of "
            "the graph that can be drawn, so it has no edge id, which return_edge_ids asks for. Add the reverses to "
            "the graph (graph.to_undirected), or leave return_edge_ids out."
        )


def _sizes(nodes: Mapping[Any, Tensor], edge_type: Any) -> tuple[int, int]:
    src, dst = ends_of(edge_type)
    return int(nodes[src].shape[0]), int(nodes[dst].shape[0])


def _merged(
    pairs: Tensor, wanted: Tensor, ids: Tensor | None, size: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor], Tensor | None]:
    """Return ((indptr, indices), ids): the distinct pairs as a CSC, sorted by destination, then by source.

    A pair that occurs several times is kept once. A pair is left out unless `wanted` is True for at least one of its
    occurrences.

    Args:
        pairs: int64 [2, n], sources in row 0 and destinations in row 1.
        wanted: bool [n].
        ids: [n], edge ids; the returned ids have for each pair the id of its first occurrence. None: the returned ids
            are None.
        size: (number of sources, number of destinations).
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
    """Return the permutation, int64 [n], that sorts pairs by destination. Equal destinations keep their order."""
    sources, destinations = pairs.contiguous().numpy()
    return torch.from_numpy(_core.coo_to_csc(sources, destinations, num_nodes)[2])
