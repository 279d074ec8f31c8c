"""Neighborhoods: samples the neighborhoods of seeds by a Choice, the rule by which in-edges are drawn.

This package's sampling stages are Neighborhoods with a source; the sampler of PyG's loaders has a Neighborhoods and
needs no stage. The graph runs the hops: a whole graph in one call of the C++ core, a graph in parts by asking its
parts, hop by hop. The draws for a node depend only on the random key and the node's in-edges, so both graphs give the
same bits. docs/semantics.md, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from datapipes.base.checks import check_bool, check_choice
from datapipes.base.codec import join_key
from datapipes.base.rng import RngKey
from datapipes.chain.asynchronous import off_loop
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.reverses import checked_mapping, refuse_mapping, reverses_of
from datapipes.sampling.fanouts import fingerprint_of_hops
from datapipes.sampling.seed_ids import seed_trees
from datapipes.sampling.subgraph_form import FORMS, SubgraphForm

__all__: list[str] = []


class Neighborhoods:
    """Samples the neighborhoods of seeds, in a graph in memory or a graph in parts.

    Seeds may form groups that share no nodes: one for each seed (`disjoint=True`), or one for each distinct
    time and time window.

    Args:
        where: the name of the caller in errors.
        fanouts: the result of `check_fanouts`.
        edge_types: the sampled edge types, the result of `sampled_edge_types`.
        negative_end: see `seed_ids`.
    Attributes:
        choice: the rule by which in-edges are drawn.
        replace, frontier, disjoint, subgraph_type, reverse_etypes_mapping: see the stage NeighborSampler.
        edge_types: the edge types of the result, in sorted order.
        plan: the HopPlan, for `graph.hops`.
    """

    _fingerprinted: tuple[str, ...] = ("replace", "frontier")  # always in the fingerprint; `disjoint` only if True
    # attributes that a stage refuses to change, see StageBase.__setattr__
    _fixed = frozenset({"replace", "frontier", "disjoint", "subgraph_type", "reverse_etypes_mapping"})

    def __init__(
        self,
        where: str,
        graph: Graph,
        fanouts: list[Any],
        edge_types: tuple[Any, ...],
        choice: Choice,
        *,
        return_edge_ids: bool,
        replace: bool = False,
        frontier: str = "all",
        disjoint: bool = False,
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        negative_end: str = "dst",
    ) -> None:
        self.graph, self.fanouts, self.return_edge_ids = graph, fanouts, return_edge_ids
        self.choice, self._negative_end = choice, negative_end
        self.replace = check_bool(where, "replace", replace)
        self.frontier = check_choice(where, "frontier", frontier, ("all", "new"))
        self.disjoint = check_bool(where, "disjoint", disjoint)
        self.edge_types = edge_types
        by_hop = [  # hop 0 first
            [fanout[edge_type] if isinstance(fanout, dict) else fanout for edge_type in edge_types]
            for fanout in reversed(fanouts)
        ]
        options: dict[str, Any] = {"replace": self.replace, "only_new": frontier == "new", "edge_ids": return_edge_ids}
        self.plan = HopPlan(where, graph, edge_types, by_hop, choice, **options)
        self.subgraph_type = check_choice(where, "subgraph_type", subgraph_type, FORMS)
        self.reverse_etypes_mapping = reverse_etypes_mapping
        self._form: SubgraphForm | None = None
        if subgraph_type == "directional":
            refuse_mapping(where, reverse_etypes_mapping, "subgraph_type is 'directional'")
        else:
            self._form = SubgraphForm(subgraph_type, self.plan, self._reverses())
            self.edge_types = self._form.edge_types

    def _reverses(self) -> dict[Any, Any] | None:
        """Return {sampled edge type: type of its reverses}; None if the subgraph type adds no reverses."""
        where, mapping = self.plan.name, self.reverse_etypes_mapping
        if self.subgraph_type == "induced":
            refuse_mapping(where, mapping, "subgraph_type is 'induced', which adds no reverses")
            return None
        mapping = checked_mapping(where, mapping, self.graph.edge_types)
        backs: dict[Any, Any] = reverses_of(where, self.plan.edge_types, mapping)
        return backs

    def trees_of(self, seeds: Any, timestamps: Any, windows: Any = None) -> SeedTrees | None:
        """Return the groups of the seeds, which share no nodes. None: all seeds are in one group.

        Args:
            seeds: ids [n] or [n, k], already checked; with types {node or edge type: ids}.
            timestamps: a time for each row of the seeds; a dict if `seeds` is one.
            windows: a time window for each row, likewise; read only if the choice has a `window_field`.
        """
        has_times = self.choice.of_times
        if not (self.disjoint or has_times):
            return None
        return seed_trees(
            self.plan.name,
            seeds,
            timestamps,
            windows,
            disjoint=self.disjoint,
            has_times=has_times,
            window_field=self.choice.window_field,
            negative_end=self._negative_end,
        )

    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds`; with `trees`, groups of seeds share no nodes.

        Raises:
            ValueError: The rule of drawing (`choice`) needs times, and the seeds have none. Or values that it reads
                were changed.
        """
        sampled = self.graph.hops(self.plan, seeds, *self.plan.keyed(rng), trees)
        if self._form is None:
            return sampled
        question = self._form.question(sampled, rng, trees)
        return self._form.made(sampled, None if question is None else self.graph.hops(*question))

    async def sample_async(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the result of `sample`; over a graph in parts, do not block the event loop."""
        graph: Any = self.graph
        if not graph._in_parts:
            return self.sample(seeds, rng, trees)
        sampled: Sampled = await graph.hops_async(self.plan, seeds, *self.plan.keyed(rng), trees)
        if self._form is None:
            return sampled
        question = self._form.question(sampled, rng, trees)
        among = None if question is None else await graph.hops_async(*question)
        return await off_loop(self._form.made, sampled, among)

    def _batch_of(self, sampled: Sampled, trees: SeedTrees | None) -> Any:
        """Return for each sampled node the row of the seeds to which its tree belongs, [num_nodes]; with types {node
        type: rows}. None: there are no trees.
        """
        if trees is None or not self.disjoint:
            return None
        rows, groups = trees.rows, sampled.groups
        if rows is None:
            return groups
        if isinstance(groups, dict):
            return {node_type: torch.index_select(rows, 0, numbers) for node_type, numbers in groups.items()}
        return torch.index_select(rows, 0, groups)

    def fingerprint(self) -> Fingerprint:
        drawn = {name: getattr(self, name) for name in self._fingerprinted}
        if self.disjoint:
            drawn["disjoint"] = True
        if self._form is not None:
            drawn["subgraph_type"] = self.subgraph_type
        if self._form is not None and self._form.reverses is not None and self.graph.is_heterogeneous:
            drawn["reverses"] = {join_key(one): join_key(back) for one, back in self._form.reverses.items()}
        of_hops = fingerprint_of_hops(self.graph, self.fanouts, self.return_edge_ids)
        return {**of_hops, **drawn, **self.choice.fingerprint(self.graph._choice_digests(self.plan))}
