"""NeighborSampler: draws a number of in-edges for each node, hop by hop, and compacts the ids.

docs/semantics.md fixes the draws (sections 3 and 4) and the trees (4.5). In-edges are drawn uniformly, or by weights
(ByWeight, section 3.1). Running sums of the weights are made once for the rows of a graph or a part, by threads.
Memory: 9 bytes an edge, for a sum of each edge, and every eighth sum again; if some weight counts as 0, also 8 bytes a
node. The sums stay in memory even if the rows are mapped from files. Worker processes get the sums with the rows, so
all share one copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name, shown
from datapipes.base.forms import check_form, check_values
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import of_type
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import Attributed, Choice, Rows, by_text, rows_digest
from datapipes.graph.graph import Graph
from datapipes.graph.npy import to_numpy
from datapipes.processes.sharing import zeros_for_workers
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout

__all__ = ["NeighborSampler"]

DTYPES = (torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_EDGE = 9
_WEIGHTS = "weights"  # in errors about changes


@dataclass(frozen=True)
class ByWeight(Choice):
    """Draw in-edges by their weights; an in-edge of weight 0 is never drawn.

    Attributes:
        prob_name: the edge attribute with the weights, [num_edges] of bool (a mask), float16, bfloat16, float32 or
            float64; each weight is 0 or more.
    """

    prob_name: str

    by: ClassVar[str] = "weight"

    @property
    def reads(self) -> ByWeight:
        return self

    def check(self, where: str, graph: Attributed, edge_types: Sequence[Any], among: Any = None) -> None:
        forms = graph.forms()
        for edge_type in edge_types:
            names = [name for domain, type_, name in forms if (domain, type_) == ("edge", edge_type)]
            self._refuse_missing(where, names, edge_type, graph._anew)
            form = forms["edge", edge_type, self.prob_name]
            check_form(self._name(where, edge_type), form, DTYPES, "num_edges", anew=graph._anew)

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        return {_WEIGHTS: rows.edge_attributes.get(self.prob_name)}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        values, num_edges = rows.edge_attributes[self.prob_name], rows.indices.shape[0]
        check_values(self._name(where, edge_type), values, DTYPES, num_edges)
        num_bytes = BYTES_PER_EDGE * num_edges + 8 * rows.indptr.shape[0]
        remedy = "Sample without prob_name, or a smaller graph."
        check_memory(where, f"the sums of the weights {self.prob_name!r}{of_type(edge_type)}", num_bytes, remedy)
        made = _core.row_sums(
            rows.indptr.numpy(),
            to_numpy(values.detach().contiguous()).view("uint8"),
            dtype=dtype_name(values.dtype),
            what=f"{where}: the weight {self.prob_name!r}{of_type(edge_type)}",
            node_ids=None if rows.node_ids is None else rows.node_ids.numpy(),
            num_threads=num_threads(),
        )
        return [torch.from_numpy(array) for array in made if array is not None]

    def doubles(self, where: str, edge_type: Any, rows: Rows) -> Tensor:
        """Return the weights, float64 [num_edges], after the checks of `make`."""
        self.make(where, edge_type, rows)
        values = rows.edge_attributes[self.prob_name].detach()
        (doubles,) = zeros_for_workers([(tuple(values.shape), torch.float64)])
        return doubles.copy_(values)

    def argument(self, rows: Rows, made: list[Tensor]) -> _core.RowSums:
        return _core.RowSums(*(tensor.numpy() for tensor in made))

    def digests(self, rows: Rows, made: list[Tensor]) -> list[str]:
        values = rows.edge_attributes[self.prob_name].detach().contiguous()
        return [rows_digest(values, rows.indptr, node_ids=rows.node_ids)]

    def kernel(self, arguments: list[Any]) -> _core.Weights:
        return _core.Weights(arguments)

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        return {"weights_digest": by_text({key: values[0] for key, values in digests.items() if values})}

    def _refuse_missing(self, where: str, names: Collection[str], edge_type: Any, anew: str) -> None:
        if not isinstance(self.prob_name, str):
            raise TypeError(
                f"{where}: prob_name must be a str, the name of an edge attribute, got {shown(self.prob_name)}; the "
                f"edge attributes{of_type(edge_type)} are {shown(sorted(names))}. Pass a name."
            )
        if self.prob_name not in names:
            raise ValueError(
                f"{where}: prob_name is {shown(self.prob_name)}, but the edge attributes{of_type(edge_type)} are "
                f"{shown(sorted(names))}. Add {shown(self.prob_name)} to edge_attributes of the graph; equal weights, "
                f"such as ones, give each in-edge the same probability.{anew}"
            )

    def _name(self, where: str, edge_type: Any) -> str:
        return f"{where}: the weights {self.prob_name!r}{of_type(edge_type)}"


@register_stage("sample_neighbor")
class NeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, the seeds have types
            too (HeteroItemSet).
        fanouts: in-edges drawn per node, one entry a hop, from the input layer to the seeds: the last entry is the
            hop next to the seeds. -1 keeps all in-edges, 0 none. On a graph with types an int applies to every edge
            type; a dict {(src, rel, dst): int} gives each type its own number, and 0 to types that it does not name.
        replace: draw with replacement; -1 still keeps each in-edge once.
        prob_name: name of an edge attribute: the weights by which in-edges are drawn, or a mask (bool) of the in-edges
            that may be drawn. An in-edge of weight 0 is never drawn, not even with -1, so a node may get fewer
            in-edges, or none. On a graph with types, each sampled edge type needs the attribute. The weights are read
            when the stage is built, and kept as sums with the graph (9 bytes an edge); their digest is part of the
            state. If they are changed or replaced later, the stage raises ValueError; a change through NumPy is not
            noticed. None draws each in-edge with the same probability.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" draws in every hop for all nodes found so far (as GraphBolt and DGL do), "new" only for the
            nodes that the hop before found (as PyG does). "new" is meant for `minibatch.to_pyg()`: in outer blocks,
            older nodes then have no in-edges.
        disjoint: sample for each seed a tree that shares no node with other trees. `input_nodes` then has a node once
            for each of its trees, and `batch` has for each input node the row of `seeds` to which its tree belongs.
        subgraph_type: which edges the minibatch has. "directional": the edges of each hop. "induced": all edges of the
            sampled edge types among the found nodes, within a tree if there are trees; with weights, only edges of
            weights above 0. "bidirectional": the sampled edges and their reverses, each pair of nodes once. "induced"
            and "bidirectional" give one block for all layers of a model; its destinations are all its sources. For
            "induced", and for "bidirectional" with return_edge_ids, all in-edges of all nodes are read, which costs
            more than the sampling.
        reverse_etypes_mapping: for "bidirectional" on a graph with types, {edge type: type of its reverses}, as tuples
            or "src:rel:dst"; needed for each sampled type between two node types. A type from a node type to itself
            holds its own reverses, unless the mapping names another type. None means that a type has no reverses.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of its own
            result, whatever the size of the graph. Not allowed for a graph in memory.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect). Each error has a note
            with the stage, the minibatch and the part.
    Source: neighbor sampling as in GraphSAGE (Hamilton et al., 2017).
    """

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        prob_name: str | None = None,
        return_edge_ids: bool = False,
        frontier: str = "all",
        disjoint: bool = False,
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.prob_name = prob_name
        super().__init__(
            source,
            graph,
            fanouts,
            Choice() if prob_name is None else ByWeight(prob_name),
            return_edge_ids=return_edge_ids,
            replace=replace,
            frontier=frontier,
            disjoint=disjoint,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
            concurrency=concurrency,
        )

    def _describe_choice(self) -> dict[str, Any]:
        return {"prob_name": self.prob_name}
