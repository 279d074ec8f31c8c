"""StepsRequest: asks a part for one step of random walks that are at nodes which the part owns (docs/semantics.md,
section 4.11).

A part does not know whether the source of an in-edge is near: has an edge to the node before. So node2vec's answer has
all in-edges that may be taken, in the order in which they decide, and the client asks which sources are near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import shown
from datapipes.base.records import OptionalEdgeType, whole
from datapipes.base.types import ends_of
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import GoOn, Request
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.graph.choice import CHOICE, Choice
from datapipes.partition.native.part import Part

SURE, IF_NEAR, IF_FAR, IN_ROW = range(4)  # kinds of in-edges; csrc/sampling/walk_steps.h
_EDGE_BYTES = 8 + 8 + 1 + 8  # of an in-edge of an answer, at most


class Steps(NamedTuple):
    """The in-edges that decide the step of each walk.

    Attributes:
        counts: int64 [n], how many in-edges each walk has; 0: it ends.
        sources: [sum of counts], of the graph's `index_dtype`.
        edge_ids: int64, as `sources`.
        kinds: uint8, as `sources`. SURE: the walk takes it, if no earlier one; IF_NEAR, IF_FAR: so if the source is
            near, or is not; IN_ROW: the in-edges of this walk are all that its node has, in order.
        sums: float64, as `sources`, the running sums of the weights of the node's in-edges; 0 unless the kind is
            IN_ROW. Empty if in-edges are drawn uniformly.
    """

    counts: Tensor
    sources: Tensor
    edge_ids: Tensor
    kinds: Tensor
    sums: Tensor


@dataclass(frozen=True)
class StepsRequest(Request[Steps]):
    """Ask a part to draw a step of walks.

    Attributes:
        edge_type: of the step.
        number: number of the step.
        key: random key of hop 0 and the edge type, uint64.
        end_below: a first word below this number ends a walk; 0: none is drawn.
        p, q: of node2vec; both 1 in the first step.
        choice: how in-edges are drawn; None: uniformly.
        ids: int32 or int64 [n], the nodes of the walks, which the part owns; repeats allowed.
        walkers: int64 [n], the numbers of the walks.
        before: int32 or int64 [n], the nodes before; -1 if there are none.
    """

    kind, things = "steps", "in-edges"
    edge_type: OptionalEdgeType
    number: Annotated[int, whole(0, 2**62)]
    key: Annotated[int, whole(0, 2**64 - 1)]
    end_below: Annotated[int, whole(0, 2**32)]
    p: float
    q: float
    choice: Annotated[Choice, CHOICE] | None
    ids: Tensor
    walkers: Tensor
    before: Tensor

    def __post_init__(self) -> None:
        if not self.ids.shape == self.walkers.shape == self.before.shape:
            raise ValueError(f"{self.ids.shape[0]} ids need as many walkers and nodes before")
        if not (self.p > 0 and self.q > 0):
            raise ValueError(f"p and q are {self.p} and {self.q}, they must be above 0")
        if self.choice is not None and self.choice.of_times:
            raise ValueError("walks are not drawn by time")

    @property
    def step(self) -> _core.WalkStep:
        return _core.WalkStep(self.key, self.number, self.end_below, self.p, self.q)

    def of(self, places: Tensor) -> StepsRequest:
        """Return a request like this one for the walks at `places`."""
        return replace(self, ids=self.ids[places], walkers=self.walkers[places], before=self.before[places])

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Steps:
        src, dst = ends_of(self.edge_type)
        relation = part.relation(self.edge_type)
        reads = None if self.choice is None else self.choice.reads
        sums = None if reads is None else part.chosen("Part", reads, self.edge_type).argument()
        counts, sources, edge_ids, kinds, of_rows = _core.draw_steps(
            relation.indptr.numpy(),
            relation.indices.numpy(),
            None if relation.edge_ids is None else relation.edge_ids.numpy(),
            part.num_nodes_of(src),
            part.rows_of(self.ids, dst).numpy(),
            self.walkers.long().numpy(),
            self.before.long().numpy(),
            self.step,
            sums,
        )
        no_sums = np.empty(0, np.float64)
        return Steps(
            *map(torch.from_numpy, (counts, sources, edge_ids, kinds, no_sums if of_rows is None else of_rows))
        )

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        if (self.p, self.q) != (1.0, 1.0):
            return None
        num_bytes = (8 + _EDGE_BYTES) * self.num_ids
        return num_bytes if num_bytes <= most else None

    def counted_bytes(self, part: Part, facts: PartitionFacts, go_on: GoOn) -> int:
        go_on()
        indptr, rows = part.relation(self.edge_type).indptr, part.rows_of(self.ids, ends_of(self.edge_type)[1])
        most = (indptr[rows + 1] - indptr[rows]).clamp(min=64)  # the whole row, or what 64 draws give
        return 8 * self.num_ids + _EDGE_BYTES * int(most.sum())

    def joined(self, pieces: Sequence[Any], answers: Sequence[Steps]) -> Steps:
        return Steps(*map(torch.cat, zip(*answers, strict=True)))

    @staticmethod
    def answer_columns(answer: Steps) -> dict[str, Tensor]:
        return answer._asdict()

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Steps:
        if [*message.tensors] != [*Steps._fields]:
            expected = shown([*Steps._fields])
            raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {expected}.")
        steps = Steps(**message.tensors)
        num_edges = steps.sources.shape[0] if steps.sources.ndim == 1 else -1
        num_sums = 0 if self.choice is None else num_edges
        expected_forms = [
            (torch.int64, (self.num_ids,)),
            (facts.index_dtype, (num_edges,)),
            (torch.int64, (num_edges,)),
            (torch.uint8, (num_edges,)),
            (torch.float64, (num_sums,)),
        ]
        if [(values.dtype, tuple(values.shape)) for values in steps] != expected_forms:
            forms = [f"{values.dtype} {list(values.shape)}" for values in steps]
            raise BadMessage(
                f"{where}: the in-edges are {forms}, expected were {self.num_ids} counts and as many of each."
            )
        if int(steps.counts.sum()) != num_edges or bool((steps.counts < 0).any()):
            raise BadMessage(f"{where}: the counts of the walks do not add up to the in-edges.")
        num_nodes = facts.num_nodes[ends_of(self.edge_type)[0]]
        if num_edges > 0:
            if not 0 <= int(steps.sources.min()) <= int(steps.sources.max()) < num_nodes:
                raise BadMessage(f"{where}: found sources outside [0, {num_nodes}).")
            if int(steps.edge_ids.min()) < 0 or int(steps.kinds.max()) > IN_ROW:
                raise BadMessage(f"{where}: found edge ids below 0, or kinds above {IN_ROW}.")
        return steps
