"""What a client asks of the server of a part, and what it gets. Requests are idempotent: asked again, also after a
restart of the server, they give the same bits.

Ids are those of the whole graph. In a graph without types the one node type and the one edge type is None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from datapipes.base.records import OptionalEdgeType, whole
from datapipes.base.types import EdgeType, NodeType
from datapipes.graph.choice import UNIFORM, Choice

COLUMNS = ("ids", "streams", "times")  # of a DrawRequest: those of its rows


class Draw(NamedTuple):
    """What a hop draws from one edge type.

    Attributes:
        fanout: in-edges for each node, -1 for all; not 0.
        key: random key of the hop and edge type, uint64.
    """

    edge_type: OptionalEdgeType
    fanout: Annotated[int, whole(-1, 2**62)]
    key: Annotated[int, whole(0, 2**64 - 1)]


@dataclass(frozen=True)
class DrawRequest:
    """One hop of one minibatch: in-edges of nodes that the part owns, of all edge types at once.

    Attributes:
        ids: {destination type: int32 or int64 [n]}, distinct, but for nodes of several trees or times.
        draws: in sorted order of the edge types; each draws for all of `ids[destination type]`.
        replace: draw with replacement.
        edge_ids: whether the answer has the ids of the edges.
        streams: of each id the stream of the random key, uint32, {destination type: [n]}; None: all have stream 0.
        times: of each id its time, int64, {destination type: [n]}; only where in-edges are drawn by time.
        choice: how in-edges are drawn.
    """

    ids: dict[NodeType | None, Tensor]
    draws: tuple[Draw, ...]
    replace: bool = False
    edge_ids: bool = False
    streams: dict[NodeType | None, Tensor] | None = None
    times: dict[NodeType | None, Tensor] | None = None
    choice: Choice = UNIFORM

    def rows(self, begin: int, end: int) -> DrawRequest:
        """Return the same draws for the rows from `begin` to `end`, counted over all types."""
        cut, before = {}, 0
        for node_type, ids in self.ids.items():
            cut[node_type] = slice(max(begin - before, 0), max(end - before, 0))
            before += ids.shape[0]
        parts: dict[str, Any] = {
            name: {kind: values[cut[kind]] for kind, values in column.items()}
            for name in COLUMNS
            if (column := getattr(self, name)) is not None
        }
        return replace(self, **parts)


class Drawn(NamedTuple):
    """What was drawn from one edge type; the answer to a DrawRequest is a list of them, aligned with its draws.

    Attributes:
        indptr: int64 [n + 1], where the edges of each node begin.
        neighbors: [indptr[-1]], ids of the sources, of the graph's `index_dtype`.
        edge_ids: int64 [indptr[-1]]; None if they were not asked for.
    """

    indptr: Tensor
    neighbors: Tensor
    edge_ids: Tensor | None


class Rows(NamedTuple):
    """Rows of some features of one type, at the same ids.

    Attributes:
        domain: "node" or "edge".
        type: a node type or edge type, or None.
        names: of the features.
        ids: int32 or int64 [n]: nodes that the part owns, or edge ids of edges into such nodes; repeats are allowed.
    """

    domain: str
    type: Any
    names: tuple[str, ...]
    ids: Tensor


@dataclass(frozen=True)
class RowsRequest:
    """Rows of several features and types at once. The answer is a list of tensors [n, ...]: of the first of `rows` each
    name, then of the second, and so on.
    """

    rows: tuple[Rows, ...]


@dataclass(frozen=True)
class EdgesRequest:
    """Whether pairs of nodes are edges. The answer is a FoundEdges, aligned with the pairs.

    Attributes:
        destinations: int32 or int64 [n], nodes that the part owns; repeats allowed.
        sources: int32 or int64 [n].
    """

    edge_type: EdgeType | None
    destinations: Tensor
    sources: Tensor


@dataclass(frozen=True)
class DigestRequest:
    """Digests of what a choice reads of the in-edges that the part stores. The answer is a list, aligned with
    `edge_types`: digests, see sum_of_digests, or None where there is nothing to read.
    """

    edge_types: tuple[EdgeType | None, ...]
    choice: Choice


Digests = list[list[str] | None]

# Takes rows of an answer as they arrive: the number of the tensor in the answer, its first row, and the bytes of the
# rows, uint8 [n, bytes of a row], which are valid during the call only. Rows may come more than once, if the request is
# asked again; the calls come from several threads.
TakeRows = Callable[[int, int, Tensor], None]
