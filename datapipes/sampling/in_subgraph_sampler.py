"""InSubgraphSampler: one hop that keeps every in-edge of the seeds; docs/semantics.md, section 4.4.

It draws nothing. It gives the minibatches of `sample_neighbor` with the fanouts [-1].
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.rng import RngKey
from datapipes.base.types import EdgeType, known_edge_type
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.sampling.core_call import CoreCall
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["InSubgraphSampler"]


@register_stage("sample_in_subgraph")
class InSubgraphSampler(Sampler):
    """Keep all in-edges of the seeds, one hop; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph or HeteroCSCGraph to take them from. The seeds of the latter have types (HeteroItemSet).
        edge_types: of a graph with types, the edge types whose in-edges are kept, as (src, rel, dst) or "src:rel:dst";
            None keeps those of all.
        return_edge_ids: fill `edge_ids` of the block, which edge features need.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, the in-edges need more memory than is left.
    """

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        *,
        edge_types: Iterable[EdgeType | str] | None = None,
        return_edge_ids: bool = False,
    ) -> None:
        fanouts = subgraph_fanouts(self.name, edge_types, graph)
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self._call = CoreCall(self.name, graph, self.edge_types, self.fanouts)

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the in-edges of `seeds`."""
        keys = [[0] * len(self.edge_types)]  # nothing is drawn
        return self._call(self.graph, seeds, keys, want_edge_ids=self.return_edge_ids, replace=False, only_new=False)

    def describe(self) -> dict[str, Any]:
        return describe_subgraph(self, super().describe())


def subgraph_fanouts(where: str, edge_types: Any, graph: Any) -> list[Fanout]:
    """Return the fanouts that keep all in-edges of the edge types that the user names, or of all for None.

    Raises:
        TypeError, ValueError: They are no edge types of the graph.
    """
    if edge_types is None or not isinstance(graph, Graph):  # what is no graph is refused by the Sampler
        return [-1]
    return [dict.fromkeys(_checked(where, edge_types, graph), -1)]


def describe_subgraph(sampler: Sampler, details: dict[str, Any]) -> dict[str, Any]:
    """Return what `sampler` shows: the edge types, if it does not keep those of all, in the place of the fanouts."""
    del details["fanouts"]
    some = {} if sampler.edge_types == sampler.graph.edge_types else {"edge_types": list(sampler.edge_types)}
    return {**some, **details}


def _checked(where: str, given: Any, graph: Graph) -> list[EdgeType]:
    """Return the edge types that the user names, each once, at least one."""
    if not graph.is_heterogeneous:
        raise TypeError(
            f"{where}: edge_types is {shown(given)}, but the graph has no edge types. Leave it out, or pass a "
            "HeteroCSCGraph."
        )
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise TypeError(
            f"{where}: edge_types must be None or a list of edge types, got {shown(given)}. Known are "
            f"{shown(list(graph.edge_types))}. Pass a list of some."
        )
    found = [known_edge_type(f"{where}, edge_types", of, graph.edge_types) for of in given]
    if not found or len(set(found)) < len(found):
        raise ValueError(
            f"{where}: edge_types must name at least one edge type and none twice, got {shown(found)}. Known are "
            f"{shown(list(graph.edge_types))}. Leave it out to keep the in-edges of all."
        )
    return found
