"""InducedSubgraphSampler: all edges among given nodes, clusters or walks; docs/semantics.md, section 4.14.

It samples with subgraph_type="induced", by no hops. `measure_norms` counts how often it samples each node and edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.array_digest import version_of
from datapipes.base.checks import check_index_tensor, check_int, check_within
from datapipes.base.clock import NoClock
from datapipes.base.progress import working
from datapipes.base.rng import MAX_EPOCH
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.chain.stage_graph import StageGraph
from datapipes.graph.choice import UNIFORM, rows_digest
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.minibatch import MiniBatch
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.sampler import Sampler, nearest_before

__all__ = ["InducedSubgraphSampler", "SubgraphNorms", "measure_norms"]

BYTES_PER_NODE = 16  # that the order of nodes by cluster takes while it is computed


@register_stage("sample_induced_subgraph")
class InducedSubgraphSampler(ChoiceSampler):
    """Take all edges among nodes: the seeds, or the nodes of clusters or of walks. It draws nothing.

    Sets `blocks`, one Block whose destinations are all of its sources, `input_nodes` and `compacted_seeds`. If the
    seeds are clusters, or `sample_random_walk` before this stage has made walks (GraphSAINT), `seeds` become their
    nodes, each once, in ascending order, and `extra` is dropped; a model is trained on all nodes, and `fetch_feature`
    reads their labels.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph that has the edges.
        clusters: int64 [num_nodes], the cluster of each node of a graph without types, such as
            `distributed.find_parts` finds. Seeds are numbers of clusters, ItemSet(num_clusters): Cluster-GCN. Each
            number up to the largest must have a node.
        return_edge_ids: fill `edge_ids` of the block, which edge features need.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. See NeighborSampler.
    Raises:
        TypeError, ValueError: An argument is not allowed. While running, the minibatch has walks of types, or fields
            such as labels, which belong to clusters or walks and not to nodes.
        IndexError: While running, a seed is not a node of the graph, or not a cluster.
    Source: Cluster-GCN (Chiang et al., 2019); GraphSAINT (Zeng et al., 2020).
    """

    _least_hops = 0
    _fingerprinted = ()

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        *,
        clusters: Tensor | None = None,
        return_edge_ids: bool = False,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(
            source,
            graph,
            [],
            UNIFORM,
            return_edge_ids=return_edge_ids,
            subgraph_type="induced",
            concurrency=concurrency,
        )
        self.clusters = clusters
        if clusters is None:
            return
        if graph.is_heterogeneous:
            raise ValueError(
                f"{self.name}: clusters are of the nodes of a graph without types; found the node types "
                f"{[*graph.node_types]}. Leave clusters out, or sample another graph."
            )
        check_index_tensor(self.name, "clusters", clusters)
        if clusters.shape != (graph.num_nodes,):
            raise ValueError(
                f"{self.name}: clusters must have shape [{graph.num_nodes}], one cluster for each node, got "
                f"{[*clusters.shape]}. Pass the result of a partitioning method."
            )
        check_within(self.name, "clusters", clusters, len(clusters), "Number from 0 those that have nodes.")
        self._by_cluster = clusters.long().argsort(stable=True)
        self._counts = clusters.long().bincount()
        if not self._counts.all():
            empty = int((self._counts == 0).long().argmax())
            raise ValueError(
                f"{self.name}: clusters has no node of cluster {empty}, and the largest number is "
                f"{len(self._counts) - 1}. Number them anew: torch.unique(clusters, return_inverse=True)[1]."
            )
        self._ends, self._version = self._counts.cumsum(0), version_of(clusters)

    def seeds_of(self, minibatch: MiniBatch) -> tuple[Any, Callable[[Sampled], Sampled]]:
        if not self._makes_seeds(minibatch):
            return super().seeds_of(minibatch)
        others = [name for name in ("labels", "indexes", "timestamps") if getattr(minibatch, name) is not None]
        if others:
            raise ValueError(
                f"{self.name}: minibatch {minibatch.index} has {others} of its clusters or walks, but its seeds become "
                "nodes. Leave them out, and fetch those of nodes by fetch_feature."
            )
        return super().seeds_of(minibatch.replace(seeds=self._nodes_of(minibatch)))

    def filled(self, minibatch: MiniBatch, sampled: Sampled) -> MiniBatch:
        made = super().filled(minibatch, sampled)
        return made.replace(seeds=made.input_nodes, extra={}) if self._makes_seeds(minibatch) else made

    def _makes_seeds(self, minibatch: MiniBatch) -> bool:
        """Return whether the nodes that are sampled become the seeds."""
        return self.clusters is not None or "walks" in minibatch.extra

    def _nodes_of(self, minibatch: MiniBatch) -> Any:
        if self.clusters is not None:
            seeds = torch.unique(minibatch.seeds)
            check_within(self.name, "seeds", seeds, len(self._ends), "Take ItemSet(number of clusters).")
            self._refuse_change()
            ends, begins = self._ends[seeds].tolist(), (self._ends[seeds] - self._counts[seeds]).tolist()
            of_each = [self._by_cluster[begin:end] for begin, end in zip(begins, ends, strict=True)]
            return torch.cat(of_each).sort().values
        walks = minibatch.extra["walks"]
        if not isinstance(walks, Tensor):
            raise ValueError(
                f"{self.name}: minibatch {minibatch.index} has walks of types. Only walks over a graph without types "
                "have a subgraph: put sample_random_walk after this stage."
            )
        nodes = torch.unique(walks)
        return nodes[nodes >= 0]

    def _refuse_change(self) -> None:
        if self.clusters is not None and version_of(self.clusters) != self._version:
            raise ValueError(
                f"{self.name}: clusters was changed in place after the stage was built, which keeps the nodes of each "
                "cluster. Build the stage again."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_change()  # a worker would build the stage over the present values
        return super().__reduce__()

    def fingerprint(self) -> Fingerprint:
        self._refuse_change()
        of = {} if self.clusters is None else {"clusters": rows_digest(self.clusters.long().contiguous())}
        return {**super().fingerprint(), **of}

    def describe(self) -> dict[str, Any]:
        details = super().describe()
        for name in ("fanouts", "frontier", "subgraph_type"):
            del details[name]
        return {**({} if self.clusters is None else {"clusters": len(self._ends)}), **details}


class SubgraphNorms(NamedTuple):
    """How to weigh nodes and edges of subgraphs so that losses and sums are those of the whole graph, on average.

    Attributes:
        node_norm: float32 [num_nodes], the weight of each node in the loss of a minibatch that sums over its nodes.
        edge_norm: float32 [largest edge id + 1], by edge id, the weight of each edge when in-edges are summed.
    """

    node_norm: Tensor
    edge_norm: Tensor


def measure_norms(pipe: Stage, coverage: int = 50) -> SubgraphNorms:
    """Return GraphSAINT's normalisation for a chain that samples subgraphs of a graph without types.

    It counts in how many minibatches each node and each edge occurs. The minibatches are those of epoch 2^32 - 2, then
    of the epochs before it, so the result depends on the chain alone. Put it into features for `fetch_feature`.

    Args:
        pipe: a chain with `sample_induced_subgraph`, with return_edge_ids=True; stages after it do not run.
        coverage: minibatches are made until their nodes are this many times those of the graph.
    Raises:
        TypeError, ValueError: An argument is not allowed, or the chain has another sampler, or no minibatches.
    Source: GraphSAINT (Zeng et al., 2020). With C the counts of M minibatches of a graph with N nodes, a node has the
        norm M / (C * N), and an edge C of its destination / C of the edge, at most 10^4, or 0.1 if it never
        occurred; a node that never occurred has the C 0.1.
    """
    check_int("measure_norms", "coverage", coverage, 1)
    sampler = nearest_before(pipe, Sampler) if isinstance(pipe, Stage) else None
    if not isinstance(sampler, InducedSubgraphSampler) or not sampler.return_edge_ids or sampler.graph.is_heterogeneous:
        raise ValueError(
            f"measure_norms: pipe must be a chain whose sampler is sample_induced_subgraph over a graph without "
            f"types, with return_edge_ids=True, found {pipe if sampler is None else sampler!r}. Build it so."
        )
    graph: Any = sampler.graph
    of_nodes, of_edges = torch.zeros(graph.num_nodes), torch.zeros(graph.max_edge_id_of(None) + 1)
    into = torch.zeros(len(of_edges), dtype=torch.int64)
    num_nodes = minibatches = 0
    with working("measure_norms: making minibatches"):
        for minibatch in _minibatches_backwards(StageGraph(sampler)):
            nodes, (block,) = minibatch.input_nodes, minibatch.blocks
            of_nodes[nodes] += 1
            of_edges[block.edge_ids] += 1
            into[block.edge_ids] = nodes.long()[block.edge_index[1]]
            num_nodes, minibatches = num_nodes + len(nodes), minibatches + 1
            if num_nodes >= coverage * graph.num_nodes:
                break
    edge_norm = (of_nodes[into] / of_edges).clamp(max=1e4)
    edge_norm[of_edges == 0] = 0.1
    return SubgraphNorms(minibatches / of_nodes.clamp(min=0.1) / graph.num_nodes, edge_norm)


def _minibatches_backwards(graph: StageGraph[Stage]) -> Iterator[Any]:
    """Make the minibatches of epoch 2^32 - 2, then of the epochs before it, without end."""
    evaluator, start = Evaluator(Calls(graph.numbering, NoClock())), graph.seed_stage
    for epoch in range(MAX_EPOCH - 1, 0, -1):
        is_empty = True
        for index in range(start.num_steps * start.world_size):
            minibatch = evaluator.minibatch(graph, epoch, index)
            if minibatch is not None:  # not dropped by a stage
                is_empty = False
                yield minibatch
        if is_empty:
            raise ValueError(f"measure_norms: epoch {epoch} has no minibatches. Pass a chain that gives some.")
