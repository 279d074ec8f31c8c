"""EdgesRequest: asks a part whether pairs of nodes are edges. The part must own the destinations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes.base.records import OptionalEdgeType
from datapipes.base.types import ends_of
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import Forms, GoOn, Request
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.graph.graph import FoundEdges, edges_in_rows
from datapipes.partition.native.part import Part


@dataclass(frozen=True)
class EdgesRequest(Request[FoundEdges]):
    """Ask a part whether pairs of nodes are edges. The answer is a FoundEdges, which has the number of edges and the id
    of the first one for each pair.

    Attributes:
        destinations: int32 or int64 [n], nodes that the part owns; repeats allowed.
        sources: int32 or int64 [n].
    """

    kind, things = "edges", "answers"
    edge_type: OptionalEdgeType
    destinations: Tensor
    sources: Tensor

    def __post_init__(self) -> None:
        if self.destinations.shape != self.sources.shape:
            raise ValueError(f"there are {self.sources.shape[0]} sources for {self.destinations.shape[0]} destinations")

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> FoundEdges:
        src, dst = ends_of(self.edge_type)
        relation, rows = part.relation(self.edge_type), part.rows_of(self.destinations, dst)
        return edges_in_rows(relation, rows, self.sources.long(), part.num_nodes_of(src))

    def answer_forms(self, facts: PartitionFacts) -> Forms:
        return dict.fromkeys(FoundEdges._fields, (torch.int64, (self.num_ids,)))

    def joined(self, pieces: Sequence[Any], answers: Sequence[FoundEdges]) -> FoundEdges:
        return FoundEdges(*map(torch.cat, zip(*answers, strict=True)))

    @staticmethod
    def answer_columns(answer: FoundEdges) -> dict[str, Tensor]:
        return answer._asdict()

    def answer_of(self, where: str, columns: dict[str, Tensor]) -> FoundEdges:
        edges = FoundEdges(**columns)
        if bool((edges.counts < 0).any()) or bool(((edges.counts > 0) != (edges.first_ids >= 0)).any()):
            raise BadMessage(f"{where}: the counts and the first edge ids of the answer contradict each other.")
        return edges
