"""DrawRequest: asks a part for one hop of one minibatch, the in-edges of nodes that the part owns.

Each hop sends a request to each part that owns some of its nodes, so speed matters here. A request takes 5 to 10 us to
write and 16 to 38 us to read. For speed, base/records.py reads only the lists in the header, not the request as one
record: that would take 5 us more to write, and 6 us more to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import OptionalEdgeType, OptionalNodeType, form_of, list_of, whole
from datapipes.base.types import NodeType, ends_of
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import GoOn, Request
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, columns_of, own_values, request_header
from datapipes.graph.choice import CHOICE, UNIFORM, Choice
from datapipes.graph.hops import misfit
from datapipes.partition.native.part import Part

COLUMNS = ("ids", "streams", "times", "windows")  # of the rows of a request
_NAMES = ("ids", "draws", "replace", "edge_ids")  # in the header of each request
_INT64_BYTES = 8


class Draw(NamedTuple):
    """How a hop draws in-edges of one edge type.

    Attributes:
        fanout: how many in-edges are drawn for each node, -1 for all; not 0.
        key: random key of the hop and edge type, uint64.
    """

    edge_type: OptionalEdgeType
    fanout: Annotated[int, whole(-1, 2**62)]
    key: Annotated[int, whole(0, 2**64 - 1)]


class Drawn(NamedTuple):
    """The drawn in-edges, the answer to a DrawRequest. It has a row for each draw and each node of the draw; a row has
    the in-edges of one node. The rows of the request's first draw come first, in the order of its nodes, then the rows
    of the second draw, and so on.

    Attributes:
        indptr: int64 [number of rows + 1]: row i has the in-edges `indptr[i]` to `indptr[i + 1]` - 1 of the following
            tensors.
        neighbors: [indptr[-1]], ids of the sources, of the graph's `index_dtype`.
        edge_ids: int64 [indptr[-1]]; None if the request did not ask for edge ids.
    """

    indptr: Tensor
    neighbors: Tensor
    edge_ids: Tensor | None

    def split(self, rows: list[int]) -> list[Drawn]:
        """Cut the rows into pieces, and return these: the first has `rows[0]` rows, the next has `rows[1]`, and
        so on.
        """
        ends = [*accumulate(rows, initial=0)]
        places = self.indptr[ends].tolist()
        return [
            Drawn(
                self.indptr[row : end + 1] - begin,
                self.neighbors[begin:stop],
                None if self.edge_ids is None else self.edge_ids[begin:stop],
            )
            for (row, end), (begin, stop) in zip(pairwise(ends), pairwise(places), strict=True)
        ]


_IDS, _DRAWS = form_of(tuple[OptionalNodeType, ...]), form_of(tuple[Draw, ...])


@dataclass(frozen=True)
class DrawRequest(Request[Drawn]):
    """Ask a part to draw in-edges of nodes that it owns, for all edge types at once.

    Attributes:
        ids: {destination type: int32 or int64 [n]}, the nodes to draw for. A node occurs once; but if groups of seeds
            share no nodes, or in-edges are drawn by time, once for each group or time.
        draws: fanout and random key for each edge type, in sorted order of the types. In-edges of a type are drawn for
            all of `ids[destination type]`.
        replace: whether to draw with replacement.
        edge_ids: whether the answer has the ids of the edges.
        streams: {destination type: uint32 [n]}, for each id the number of the random stream to draw from. None: stream
            0 for all ids.
        times: {destination type: int64 [n]}, the time of each id. None: in-edges are not drawn by time.
        windows: {destination type: int64 [n]}, the time window of each id. None: `choice` has the window, if any.
        choice: how in-edges are drawn, for example uniformly or by weights.
    """

    kind, things = "draw", "edges"
    ids: dict[NodeType | None, Tensor]
    draws: tuple[Draw, ...]
    replace: bool = False
    edge_ids: bool = False
    streams: dict[NodeType | None, Tensor] | None = None
    times: dict[NodeType | None, Tensor] | None = None
    choice: Choice = UNIFORM
    windows: dict[NodeType | None, Tensor] | None = None

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Drawn:
        if go_on is not None:
            go_on()
        drawn = part.draw_hop(
            self.ids,
            self.draws,
            replace=self.replace,
            edge_ids=self.edge_ids,
            num_threads=num_threads,
            streams=self.streams,
            times=self.times,
            windows=self.windows,
            choice=self.choice,
        )
        return Drawn(*drawn)

    # --- its size

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        if any(draw.fanout < 0 for draw in self.draws):
            return None
        num_bytes = self._num_bytes(facts, lambda draw, num_nodes: num_nodes * draw.fanout)
        return num_bytes if num_bytes <= most else None

    def counted_bytes(self, part: Part, facts: PartitionFacts, go_on: GoOn) -> int:
        """Return an upper bound of the answer's bytes, computed from the degrees of the nodes in `part`. It is exact if
        in-edges are drawn uniformly.

        Args:
            go_on: called before each edge type is counted; it raises an error if the client no longer waits.
        """
        rows = {node_type: part.rows_of(ids, node_type) for node_type, ids in self.ids.items()}

        def num_edges(draw: Draw, _: int) -> int:
            go_on()
            indptr, own = part.relation(draw.edge_type).indptr, rows[ends_of(draw.edge_type)[1]]
            degrees = indptr[own + 1] - indptr[own]
            if draw.fanout < 0:
                return int(degrees.sum())
            if self.replace:
                return int(torch.count_nonzero(degrees)) * draw.fanout
            return int(degrees.clamp(max=draw.fanout).sum())

        return self._num_bytes(facts, num_edges)

    def _num_bytes(self, facts: PartitionFacts, num_edges: Callable[[Draw, int], int]) -> int:
        """Return the bytes of an answer. The function `num_edges(draw, number of nodes)` returns how many in-edges a
        Draw yields.
        """
        edge_bytes = facts.index_dtype.itemsize + (_INT64_BYTES if self.edge_ids else 0)
        rows = self._rows()
        num_edges_all = sum(num_edges(draw, num_rows) for draw, num_rows in zip(self.draws, rows, strict=True))
        return _INT64_BYTES * (sum(rows) + 1) + edge_bytes * num_edges_all

    def _rows(self) -> list[int]:
        """Return how many rows the answer has for each Draw: as many as `ids` has of its destination type."""
        counts = {node_type: ids.shape[0] for node_type, ids in self.ids.items()}
        return [counts.get(ends_of(draw.edge_type)[1], 0) for draw in self.draws]  # `_check` refuses missing ids

    # --- its pieces

    @property
    def num_ids(self) -> int:
        return sum(ids.shape[0] for ids in self.ids.values())

    def some(self, begin: int, end: int) -> DrawRequest:
        """Return a request like this one for some of its ids: those at the positions `begin` to `end` - 1, if the ids
        of all node types are concatenated in the order of `ids`.
        """
        cut, before = {}, 0
        for node_type, ids in self.ids.items():
            cut[node_type] = slice(max(begin - before, 0), max(end - before, 0))
            before += ids.shape[0]
        columns: dict[str, Any] = {
            name: {node_type: values[cut[node_type]] for node_type, values in column.items()}
            for name in COLUMNS
            if (column := getattr(self, name)) is not None
        }
        return replace(self, **columns)

    def joined(self, pieces: Sequence[Any], answers: Sequence[Drawn]) -> Drawn:
        split = [answer.split(piece._rows()) for piece, answer in zip(pieces, answers, strict=True)]
        of_no_rows = answers[0].split([0])  # there may be no draws
        in_order = [*of_no_rows, *(drawn for draw in zip(*split, strict=True) for drawn in draw)]
        counts = torch.cat([drawn.indptr.diff() for drawn in in_order])
        return Drawn(
            torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            torch.cat([drawn.neighbors for drawn in in_order]),
            torch.cat([drawn.edge_ids for drawn in in_order if drawn.edge_ids is not None]) if self.edge_ids else None,
        )

    # --- as a message: "ids.0" are the ids of the first node type; optional values are omitted when unset

    def to_message(self, meant: Meant) -> Message:
        names = [name for name in COLUMNS if getattr(self, name) is not None]
        header = request_header(
            self.kind,
            meant,
            ids=_IDS.write(self.ids),
            draws=_DRAWS.write(self.draws),
            replace=bool(self.replace),
            edge_ids=bool(self.edge_ids),
            **({} if names == ["ids"] else {"columns": names}),
            **({} if self.choice == UNIFORM else {"choice": CHOICE.write(self.choice)}),
        )
        columns = {f"{name}.{i}": getattr(self, name)[type_] for name in names for i, type_ in enumerate(self.ids)}
        return Message(header, columns)

    @classmethod
    def _read(cls, message: Message) -> DrawRequest:
        values = own_values(message)
        columns, choice = (values.pop(name) if values.get(name) is not None else None for name in ("columns", "choice"))
        if values.keys() != {*_NAMES}:
            there = shown(sorted(values))
            raise ValueError(f"the header of a request 'draw' is {there}, it must have exactly {[*_NAMES]}")
        types, replace, edge_ids = _IDS.read("ids", values["ids"]), values["replace"], values["edge_ids"]
        if len({*types}) < len(types):
            raise ValueError("a node type has ids twice")
        if type(replace) is not bool or type(edge_ids) is not bool:
            raise ValueError(f"replace and edge_ids are {shown(replace)} and {shown(edge_ids)}, allowed are booleans")
        by_name = columns_of(message, _column_names(columns), len(types))
        request = DrawRequest(
            draws=_DRAWS.read("draws", values["draws"]),
            replace=replace,
            edge_ids=edge_ids,
            choice=UNIFORM if choice is None else CHOICE.read("choice", choice),
            **{name: dict(zip(types, tensors, strict=True)) for name, tensors in by_name.items()},
        )
        request._check()
        return request

    def _check(self) -> None:
        """Raise ValueError if the fields of this request, which was received, do not fit together."""
        if any(draw.fanout == 0 for draw in self.draws):
            raise ValueError("a fanout is 0, allowed are -1 and whole numbers above 0; leave the edge type out")
        drawn = [draw.edge_type or () for draw in self.draws]
        if any(one >= after for one, after in pairwise(drawn)):
            raise ValueError(f"the edge types of the draws are {shown(drawn)}; each comes once, in sorted order")
        self.choice.refuse_request(len(drawn), replace=self.replace, has_streams=self.streams is not None)
        if found := misfit(self.choice, self.times, self.windows):
            raise ValueError(found)
        missing = [draw.edge_type for draw in self.draws if ends_of(draw.edge_type)[1] not in self.ids]
        if missing:
            raise ValueError(f"there are no ids for the draw of {shown(missing[0])}")

    @staticmethod
    def answer_columns(answer: Drawn) -> dict[str, Tensor]:
        """Return {name: tensor} of "indptr", "neighbors" and, if the answer has edge ids, "edge_ids"."""
        return {name: value for name, value in answer._asdict().items() if value is not None}

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Drawn:
        wanted = ["indptr", "neighbors", *(["edge_ids"] if self.edge_ids else [])]
        if [*message.tensors] != wanted:
            raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {shown(wanted)}.")
        drawn, rows = Drawn(*map(message.tensors.get, Drawn._fields)), self._rows()  # type: ignore[arg-type]
        _check_drawn(where, drawn, sum(rows), facts)
        row = 0
        for src, of_sources in groupby(zip(self.draws, rows, strict=True), lambda pair: ends_of(pair[0].edge_type)[0]):
            end = row + sum(num_rows for _, num_rows in of_sources)
            neighbors = drawn.neighbors[int(drawn.indptr[row]) : int(drawn.indptr[end])]
            _check_inside(where, "neighbor", neighbors, facts.num_nodes[src])
            row = end
        return drawn


def _column_names(value: object) -> tuple[str, ...]:
    """Check `value`, the entry "columns" of a request's header, and return the names of the columns that the request
    has.
    """
    if value is None:
        return ("ids",)
    names = list_of("columns", value)
    if len(names) < 2 or names != [name for name in COLUMNS if name in names]:
        raise ValueError(f"columns is {shown(names)}, allowed are two or more of {shown(COLUMNS)}, in this order")
    return tuple(names)


def _check_drawn(where: str, drawn: Drawn, num_rows: int, facts: PartitionFacts) -> None:
    indptr, neighbors, edge_ids = drawn
    if indptr.dtype != torch.int64 or indptr.shape != (num_rows + 1,):
        raise BadMessage(
            f"{where}: indptr is {indptr.dtype} {list(indptr.shape)}, expected was int64 [{num_rows + 1}]."
        )
    if int(indptr[0]) != 0 or not bool((indptr[1:] >= indptr[:-1]).all()):
        raise BadMessage(f"{where}: indptr does not begin at 0, or decreases.")
    count = int(indptr[-1])
    expected = [(neighbors, facts.index_dtype), *([] if edge_ids is None else [(edge_ids, torch.int64)])]
    if any(values.dtype != dtype or values.shape != (count,) for values, dtype in expected):
        forms = [f"{values.dtype} {list(values.shape)}" for values, _ in expected]
        raise BadMessage(f"{where}: the edges are {forms}, expected were {count} of {expected[0][1]} and int64.")
    if edge_ids is not None:
        _check_inside(where, "edge id", edge_ids, 2**63 - 1)


def _check_inside(where: str, name: str, values: Tensor, most: int) -> None:
    if values.shape[0] > 0 and not 0 <= int(values.min()) <= int(values.max()) < most:
        raise BadMessage(f"{where}: found {name}s outside [0, {most}).")
