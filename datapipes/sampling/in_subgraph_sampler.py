"""InSubgraphSampler: one hop that keeps every in-edge of the seeds; docs/semantics.md, section 4.4.

It draws nothing. It gives the minibatches of `sample_neighbor` with the fanouts [-1].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datapipes.base.types import EdgeType, listed_edge_types
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout

__all__ = ["InSubgraphSampler"]


@register_stage("sample_in_subgraph")
class InSubgraphSampler(ChoiceSampler):
    """Keep all in-edges of the seeds, one hop; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph that has the in-edges. If the graph has types, the seeds have
            types too (HeteroItemSet).
        edge_types: for a graph with types, the edge types whose in-edges are kept, as (src, rel, dst) or "src:rel:dst";
            None keeps all.
        return_edge_ids: fill `edge_ids` of the block, which edge features need.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of its own
            result, whatever the size of the graph. Not allowed for a graph in memory.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, the in-edges need more memory than is left.
    """

    _fingerprinted = ()  # nothing is drawn, and there is one hop

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        *,
        edge_types: Iterable[EdgeType | str] | None = None,
        return_edge_ids: bool = False,
        concurrency: int | None = None,
    ) -> None:
        fanouts: list[Fanout] = [-1]
        if edge_types is not None and isinstance(graph, Graph):  # the Sampler refuses other objects
            fanouts = [dict.fromkeys(listed_edge_types(self.name, edge_types, graph.edge_types), -1)]
        super().__init__(source, graph, fanouts, Choice(), return_edge_ids=return_edge_ids, concurrency=concurrency)

    def describe(self) -> dict[str, Any]:
        """Return the arguments to show in `explain()`. In place of the fanouts there are the edge types, unless all are
        kept.
        """
        details = super().describe()
        for name in ("fanouts", "frontier"):
            del details[name]
        some = {} if self.edge_types == self.graph.edge_types else {"edge_types": list(self.edge_types)}
        return {**some, **details}
