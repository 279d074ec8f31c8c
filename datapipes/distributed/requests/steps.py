"""StepsRequest: asks a part for one step of random walks that are at nodes which the part owns (docs/semantics.md,
section 4.11). WholeRowsRequest asks for all in-edges of nodes, with the sums of their weights; PageRank reads them too.

A part does not know whether the source of an in-edge is near: has an edge to the node before. So node2vec's answer has
all in-edges that may be taken, in the order in which they decide, and the client asks which sources are near.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

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
from datapipes.graph.walks import MOST_BIAS
from datapipes.partition.native.part import Part

SURE, IF_NEAR, IF_FAR, OPEN = range(4)  # kinds of in-edges; csrc/sampling/walk_steps.h
MOST_DRAWS = 65  # of a walk in a step: 64 that may be refused, and the one that ends
_EDGE_BYTES = 8 + 8 + 1 + 8  # of an in-edge of an answer, at most


class Steps(NamedTuple):
    """The in-edges that decide the step of each walk; or, for a WholeRowsRequest, all in-edges of each node.

    Attributes:
        counts: int64 [n], how many in-edges each walk has; 0: it ends.
        sources: [sum of counts], of the graph's `index_dtype`.
        edge_ids: int64, as `sources`; empty if they are not wanted.
        kinds: uint8, as `sources`; empty for whole rows. IF_NEAR, IF_FAR: the walk takes it if the source is near, or
            is not. The last of a walk is SURE, or OPEN: if no earlier one is taken, all in-edges of the node decide.
        sums: float64, as `sources`, the running sums of the weights of whole rows; else empty.
    """

    counts: Tensor
    sources: Tensor
    edge_ids: Tensor
    kinds: Tensor
    sums: Tensor


class _OfWalks(Request[Steps]):
    """What both kinds of requests have in common."""

    edge_type: OptionalEdgeType
    edge_ids: bool
    choice: Annotated[Choice, CHOICE] | None
    ids: Tensor

    def _relation(self, part: Part) -> tuple[Any, Any, Any, int, Any]:
        """Return the arguments of the kernels that say which rows they read."""
        src, dst = ends_of(self.edge_type)
        relation = part.relation(self.edge_type)
        edge_ids = None if relation.edge_ids is None else relation.edge_ids.numpy()
        rows = part.rows_of(self.ids, dst).numpy()
        return relation.indptr.numpy(), relation.indices.numpy(), edge_ids, part.num_nodes_of(src), rows

    def _sums(self, part: Part) -> Any:
        reads = None if self.choice is None else self.choice.reads
        return None if reads is None else part.chosen("Part", reads, self.edge_type).argument()

    def _answer(self, arrays: Any) -> Steps:
        steps = Steps(*map(torch.from_numpy, arrays))
        return steps if self.edge_ids else steps._replace(edge_ids=steps.edge_ids[:0])

    def sent(self, counts: Tensor) -> Tensor:
        """Return how many in-edges of each id stand in an answer with these `counts`."""
        return counts

    def joined(self, pieces: Sequence[Any], answers: Sequence[Steps]) -> Steps:
        return Steps(*map(torch.cat, zip(*answers, strict=True)))

    @staticmethod
    def answer_columns(answer: Steps) -> dict[str, Tensor]:
        return answer._asdict()

    def _checked(self, where: str, message: Message, facts: PartitionFacts, *, rows: bool) -> Steps:
        """Return an answer whose tensors have the forms of whole rows, or of steps, and ids in their ranges."""
        if [*message.tensors] != [*Steps._fields]:
            expected = shown([*Steps._fields])
            raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {expected}.")
        steps = Steps(**message.tensors)
        size = steps.sources.shape[0] if steps.sources.ndim == 1 else -1
        forms = [
            (torch.int64, (self.num_ids,)),
            (facts.index_dtype, (size,)),
            (torch.int64, (size if self.edge_ids else 0,)),
            (torch.uint8, (0 if rows else size,)),
            (torch.float64, (size if rows and self.choice is not None else 0,)),
        ]
        if [(values.dtype, tuple(values.shape)) for values in steps] != forms:
            found = [f"{values.dtype} {list(values.shape)}" for values in steps]
            raise BadMessage(
                f"{where}: the in-edges are {found}, expected were {self.num_ids} counts, and as many of each."
            )
        counts, num_nodes = self.sent(steps.counts), facts.num_nodes[ends_of(self.edge_type)[0]]
        if bool(((steps.counts < 0) | (counts > size)).any()) or int(counts.sum()) != size:
            raise BadMessage(f"{where}: the counts of the walks do not add up to the in-edges.")
        if size > 0 and not 0 <= int(steps.sources.min()) <= int(steps.sources.max()) < num_nodes:
            raise BadMessage(f"{where}: found sources outside [0, {num_nodes}).")
        if size > 0 and self.edge_ids and int(steps.edge_ids.min()) < 0:
            raise BadMessage(f"{where}: found edge ids below 0.")
        return steps


@dataclass(frozen=True)
class StepsRequest(_OfWalks):
    """Ask a part to draw a step of walks.

    Attributes:
        edge_type: of the step.
        number: number of the step.
        key: random key of hop 0 and the edge type, uint64.
        end_below: a first word below this number ends a walk; 0: none is drawn.
        p, q: of node2vec; both 1 in the first step.
        edge_ids: whether the answer has edge ids.
        choice: how in-edges are drawn; None: uniformly.
        ids: int32 or int64 [n], the nodes of the walks, which the part owns; repeats allowed.
        walkers: int64 [n], the numbers of the walks.
        before: int32 or int64 [n], the nodes before; empty if p and q are 1.
    """

    kind, things = "steps", "in-edges"
    edge_type: OptionalEdgeType
    number: Annotated[int, whole(0, 2**62)]
    key: Annotated[int, whole(0, 2**64 - 1)]
    end_below: Annotated[int, whole(0, 2**32)]
    p: float
    q: float
    edge_ids: bool
    choice: Annotated[Choice, CHOICE] | None
    ids: Tensor
    walkers: Tensor
    before: Tensor

    def __post_init__(self) -> None:
        if not all(1 / MOST_BIAS <= bias <= MOST_BIAS for bias in (self.p, self.q)):
            raise ValueError(f"p and q are {self.p} and {self.q}, they must be in [2^-64, 2^64]")
        num_before = self.ids.shape[0] if self.looks_back else 0
        if self.walkers.shape != self.ids.shape or self.before.shape != (num_before,):
            raise ValueError(f"{self.ids.shape[0]} ids need as many walkers, and {num_before} nodes before")
        if self.choice is not None and self.choice.of_times:
            raise ValueError("walks are not drawn by time")

    @property
    def step(self) -> _core.WalkStep:
        return _core.WalkStep(self.key, self.number, self.end_below, self.p, self.q)

    @property
    def looks_back(self) -> bool:
        """Whether the nodes before decide."""
        return (self.p, self.q) != (1.0, 1.0)

    @property
    def all_before(self) -> Tensor:
        """int64 [n], the nodes before; -1 where they do not decide."""
        return self.before.long() if self.looks_back else torch.full(self.ids.shape, -1)

    def of(self, places: Tensor) -> StepsRequest:
        """Return a request like this one for the walks at `places`."""
        before = self.before[places] if self.looks_back else self.before
        return replace(self, ids=self.ids[places], walkers=self.walkers[places], before=before)

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Steps:
        walks = self.walkers.long().numpy(), self.all_before.numpy(), self.step
        return self._answer(_core.draw_steps(*self._relation(part), *walks, self._sums(part)))

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        return (8 + _EDGE_BYTES * (MOST_DRAWS if self.looks_back else 1)) * self.num_ids

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Steps:
        steps = self._checked(where, message, facts, rows=False)
        last = steps.counts.cumsum(0)[steps.counts > 0] - 1
        ends = steps.kinds[last]
        most = MOST_DRAWS if self.looks_back else 1
        if bool((steps.counts > most).any()) or int((steps.kinds == SURE).sum() + (steps.kinds >= OPEN).sum()) != len(
            last
        ):
            raise BadMessage(f"{where}: a walk has more than {most} in-edges, or some behind the one that ends.")
        if not bool(((ends == SURE) | ((ends == OPEN) & self.looks_back)).all()):
            raise BadMessage(f"{where}: the last in-edge of a walk is neither sure nor open.")
        return steps


@dataclass(frozen=True)
class WholeRowsRequest(_OfWalks):
    """Ask a part for all in-edges of nodes that it owns, in their order.

    Attributes:
        edge_type, edge_ids, choice, ids: as in StepsRequest.
        most: int64 [n], of a node with more in-edges the answer has only their number; empty: of none.
    """

    kind, things = "whole_rows", "in-edges"
    edge_type: OptionalEdgeType
    edge_ids: bool
    choice: Annotated[Choice, CHOICE] | None
    ids: Tensor
    most: Tensor

    def __post_init__(self) -> None:
        if self.most.shape not in (self.ids.shape, (0,)):
            raise ValueError(f"most has the shape {[*self.most.shape]}, for {self.ids.shape[0]} ids")

    def of(self, places: Tensor) -> WholeRowsRequest:
        """Return a request like this one for the ids at `places`."""
        return replace(self, ids=self.ids[places], most=self.most[places] if len(self.most) else self.most)

    def sent(self, counts: Tensor) -> Tensor:
        return counts.where(counts <= self.most, 0) if len(self.most) else counts

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Steps:
        most = self.most.long().numpy() if len(self.most) else None
        return self._answer(_core.whole_rows(*self._relation(part), self._sums(part), most))

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        return None

    def counted_bytes(self, part: Part, facts: PartitionFacts, go_on: GoOn) -> int:
        go_on()
        indptr, rows = part.relation(self.edge_type).indptr, part.rows_of(self.ids, ends_of(self.edge_type)[1])
        return 8 * self.num_ids + _EDGE_BYTES * int(self.sent(indptr[rows + 1] - indptr[rows]).sum())

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Steps:
        return self._checked(where, message, facts, rows=True)
