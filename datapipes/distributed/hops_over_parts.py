"""HopsOverParts: what one minibatch asks of the parts, hop by hop, and what it makes of their answers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.types import ends_of
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.wire.requests import Draw, Drawn, DrawRequest
from datapipes.minibatch import Block
from datapipes.sampling.sampler import Sampled


class Ask(NamedTuple):
    """What one part is asked."""

    part: int
    request: DrawRequest


class HopsOverParts:
    """The hops of one minibatch over a graph in parts; it asks nobody itself.

    `start` numbers the seeds and returns what hop 0 asks of the parts, `advance` takes the answers of a hop and returns
    what the next one asks. When nothing is left to ask, `sampled` has the neighborhood.

    Args:
        edge_types: those that are drawn from, in sorted order.
        fanouts, keys: of each hop, hop 0 first: one for each edge type.
    """

    def __init__(
        self,
        graph: DistGraph,
        edge_types: tuple[Any, ...],
        fanouts: list[list[int]],
        keys: list[list[int]],
        *,
        replace: bool,
        only_new: bool,
        edge_ids: bool,
    ) -> None:
        self._graph, self._edge_types = graph, edge_types
        self._fanouts, self._keys = fanouts, keys
        self._replace, self._only_new, self._edge_ids = replace, only_new, edge_ids
        kind = _core.NumberingInt32 if graph.index_dtype == torch.int32 else _core.NumberingInt64
        self._numberings = {of: kind(graph.num_nodes_of(of), direct_limit=0) for of in graph.node_types}
        self._drawn = dict.fromkeys(graph.node_types, 0)  # nodes whose in-edges an earlier hop has drawn
        self._hops: list[dict[Any, Block]] = []

    def start(self, seeds: dict[Any, Tensor]) -> list[Ask]:
        self._local_seeds = {}
        for of, ids in seeds.items():
            outside = ids[(ids < 0) | (ids >= self._graph.num_nodes_of(of))]
            if outside.numel() > 0:
                raise IndexError(
                    f"dist_sample_neighbor: node id must be in [0, {self._graph.num_nodes_of(of)}), got "
                    f"{int(outside[0])}. Check the ids against the number of nodes."
                )
            self._local_seeds[of] = torch.from_numpy(
                self._numberings[of].number(ids.to(self._graph.index_dtype).numpy())
            )
        return self._ask()

    def advance(self, answers: list[list[Drawn]]) -> list[Ask]:
        hop = len(self._hops)
        by_type: dict[Any, dict[int, Drawn]] = {of: {} for of in self._edge_types}
        for ask, answer in zip(self._asked, answers, strict=True):
            for draw, drawn in zip(ask.request.draws, answer, strict=True):
                by_type[draw.edge_type][ask.part] = drawn
        blocks = {}
        for of in self._edge_types:
            src, dst = ends_of(of)
            num_dst = self._counts[dst]
            indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
            owners = self._owners.get(dst)
            neighbors = torch.zeros(0, dtype=self._graph.index_dtype)
            edge_ids = torch.zeros(0, dtype=torch.int64)
            if by_type[of]:
                first = self._first[dst]
                degrees = torch.zeros(num_dst, dtype=torch.int64)
                for part, drawn in by_type[of].items():
                    degrees[first:][owners == part] = drawn.indptr.diff()
                indptr[1:] = degrees.cumsum(0)
                neighbors, edge_ids = neighbors.new_zeros(int(indptr[-1])), edge_ids.new_zeros(int(indptr[-1]))
                owner_of_pick = torch.repeat_interleave(owners, degrees[first:])
                for part, drawn in by_type[of].items():
                    neighbors[owner_of_pick == part] = drawn.neighbors
                    if self._edge_ids:
                        edge_ids[owner_of_pick == part] = drawn.edge_ids
            local = torch.from_numpy(self._numberings[src].number(neighbors.numpy()))
            blocks[of] = (indptr, local, edge_ids if self._edge_ids else None)
        counts = {of: len(numbering.nodes()) for of, numbering in self._numberings.items()}
        self._hops.append({of: Block(i, l, counts[ends_of(of)[0]], e) for of, (i, l, e) in blocks.items()})
        self._drawn = self._counts
        return self._ask() if hop + 1 < len(self._fanouts) else []

    def sampled(self) -> Sampled:
        nodes = {of: torch.from_numpy(numbering.nodes()) for of, numbering in self._numberings.items()}
        if self._graph.is_heterogeneous:
            return Sampled(nodes, self._local_seeds, self._hops)
        return Sampled(nodes[None], self._local_seeds[None], [hop[None] for hop in self._hops])

    def _ask(self) -> list[Ask]:
        hop = len(self._hops)
        nodes = {of: torch.from_numpy(numbering.nodes()) for of, numbering in self._numberings.items()}
        self._counts = {of: len(ids) for of, ids in nodes.items()}
        self._first = dict(self._drawn) if self._only_new else dict.fromkeys(nodes, 0)
        draws = [
            Draw(of, fanout, key)
            for of, fanout, key in zip(self._edge_types, self._fanouts[hop], self._keys[hop], strict=True)
            if fanout != 0
        ]
        wanted = {dst: nodes[dst][self._first[dst] :] for dst in {ends_of(draw.edge_type)[1] for draw in draws}}
        self._owners = {dst: self._graph.book.nodes(dst).part_of(ids) for dst, ids in wanted.items()}
        self._asked = []
        for part in range(self._graph.facts.num_parts):
            ids = {dst: wanted[dst][owners == part] for dst, owners in self._owners.items()}
            ids = {dst: own for dst, own in ids.items() if len(own) > 0}
            own = tuple(draw for draw in draws if ends_of(draw.edge_type)[1] in ids)
            if own:
                self._asked.append(Ask(part, DrawRequest(ids, own, self._replace, self._edge_ids)))
        if not self._asked:
            return self.advance([])
        return self._asked
