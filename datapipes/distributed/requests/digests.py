"""DigestRequest asks each part for digests of its times or weights. Summed over all parts they are the digests of the
whole graph. So the saved state of a sampler fits both the whole graph and its partitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from datapipes.base.checks import shown
from datapipes.base.records import OptionalEdgeType
from datapipes.base.types import of_type
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import GoOn, Request
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import answer_header
from datapipes.graph.choice import CHOICE, Choice, sum_of_digests
from datapipes.graph.local_graph import LocalGraph
from datapipes.partition.native.part import Part

_DIGEST = re.compile(r"[a-z0-9_]{1,20}:[0-9a-f]{32}")
Digests = list[list[str] | None]


@dataclass(frozen=True)
class DigestRequest(Request[Digests]):
    """Ask a part for digests of the values that sampling reads from its in-edges: times or weights.

    The answer is a list with one entry for each of `edge_types`. An entry is a list of digests, or None if sampling
    reads no values from edges of this type.

    Attributes:
        edge_types: distinct edge types, in sorted order.
        choice: how in-edges are drawn; this decides which values are read.
    """

    kind, things = "digest", "digests"
    edge_types: tuple[OptionalEdgeType, ...]
    choice: Annotated[Choice, CHOICE]

    def __post_init__(self) -> None:
        if any((one or ()) >= (after or ()) for one, after in pairwise(self.edge_types)):
            raise ValueError(f"edge_types are {shown(self.edge_types)}; each comes once, in sorted order")

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Digests:
        reads = self.choice.reads
        if reads is None:
            return [None for _ in self.edge_types]
        return [part.chosen("Part.chosen", reads, edge_type).digests() for edge_type in self.edge_types]

    def answered_by_graph(self, where: str, graph: LocalGraph) -> Digests:
        chosen = graph.choose("the server", self.choice, self.edge_types)
        return [chosen[edge_type].digests() if edge_type in chosen else None for edge_type in self.edge_types]

    @classmethod
    def answer_to_message(cls, answer: Digests) -> Message:
        return Message(answer_header(cls.kind, digests=answer), {})

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Digests:
        digests = message.header.get("digests")
        if not isinstance(digests, list) or len(digests) != len(self.edge_types) or not all(map(_is_entry, digests)):
            raise BadMessage(f"{where}: the digests are {shown(digests)}; expected was one entry for each edge type.")
        return digests


def joined_digests(where: str, edge_types: Sequence[Any], answers: Sequence[Digests]) -> dict[Any, list[str] | None]:
    """Sum the digests that all parts gave as `answers`; return {edge type: list of sums}. None: the parts have no
    digests for this edge type, since no values are read.

    Raises:
        ValueError: Some parts gave more digests than others for an edge type.
    """
    return {
        edge_type: _sum(where, edge_type, of_parts)
        for edge_type, of_parts in zip(edge_types, zip(*answers, strict=True), strict=True)
    }


def _sum(where: str, edge_type: Any, of_parts: Sequence[list[str] | None]) -> list[str] | None:
    lengths = {None if digests is None else len(digests) for digests in of_parts}
    if len(lengths) > 1:
        raise ValueError(
            f"{where}: some parts have more weights or times{of_type(edge_type)} than others. Check that all servers "
            "have the same version and the files of one partition."
        )
    present = [digests for digests in of_parts if digests is not None]
    return [sum_of_digests(digests) for digests in zip(*present, strict=True)] if present else None


def _is_entry(value: Any) -> bool:
    if value is None:
        return True
    is_list = isinstance(value, list) and 1 <= len(value) <= 3
    return is_list and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in value)
