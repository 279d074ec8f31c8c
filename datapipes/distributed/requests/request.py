"""Request: one kind of question to the owner of a part; each kind is a class in a module of its own.

The class holds all code of its kind: the request and its answer, their messages, the bytes of an answer, the cutting of
a large request and the joining of its answers, and the answering by a part. Client and server call the class, and have
no code of their own for a kind. `server/service.py` lists the kinds that a server answers.

Requests are idempotent: a request that is sent again, also after a restart of the server, gets the same answer. Ids are
global: ids of nodes and edges of the whole graph. In a graph without types the node type and the edge type are None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, get_type_hints

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.errors import sentence
from datapipes.base.records import to_json
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.wire.arrow_message import Message, bytes_of
from datapipes.distributed.wire.arrow_reading import BadMessage, Sink
from datapipes.distributed.wire.envelope import Meant, answer_header, ids_of, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.local_graph import LocalGraph
from datapipes.partition.native.part import Part

MOST_IDS = 2**20  # of one request

Answer = TypeVar("Answer")
Kind = TypeVar("Kind", bound="Request[Any]")
Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]
GoOn = Callable[[], None]  # called while a part works on an answer; may raise, for example if the client has gone


class Request(ABC, Generic[Answer]):
    """One kind of request: a frozen dataclass. A Tensor field travels as a column of ids, int32 or int64 [n], named
    "ids.0", "ids.1", ...; all other fields are in the header, by their annotations (base/records.py). `__post_init__`
    raises ValueError if fields contradict each other. DigestRequest and EdgesRequest travel this way. DrawRequest and
    RowsRequest have several columns of ids, by type, and define their messages themselves.

    Attributes:
        kind: name of this kind of request on the wire.
        things: how errors call what an answer contains.
    """

    kind: ClassVar[str]
    things: ClassVar[str]

    # --- the answer

    @abstractmethod
    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Answer:
        """Return the answer of a part.

        Raises:
            IndexError: The part does not have a node or an edge; the message names the first such id.
            ValueError, TypeError, KeyError: There is no such type or attribute.
        """

    def answered_by_graph(self, where: str, graph: LocalGraph) -> Answer:
        """Return the answer of a server that has a whole graph. Raise BadRequest if only parts answer this kind."""
        raise BadRequest(f"{where}: has no part; it makes minibatches of chains only. Serve a partition.")

    # --- its size

    def answer_forms(self, facts: PartitionFacts) -> Forms:
        """Return {name on the wire: (dtype, shape)} of the tensors of an answer, in order."""
        return {}

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        """Return an upper bound of the answer's bytes. None: only the part can tell whether the answer has at most
        `most` bytes, see `counted_bytes`.
        """
        return sum(bytes_of(shape, dtype) for dtype, shape in self.answer_forms(facts).values())

    def counted_bytes(self, part: Part, facts: PartitionFacts, go_on: GoOn) -> int:
        """Return an upper bound of the answer's bytes, computed from the data of the part. The server calls this if
        `num_bytes` returns None.
        """
        raise NotImplementedError

    # --- its pieces

    @property
    def num_ids(self) -> int:
        """Number of ids in the request; 0 if the request cannot be cut by ids."""
        return next((ids.shape[0] for ids in self._columns()), 0)

    def some(self: Kind, begin: int, end: int) -> Kind:
        """Return this request for the ids at positions `begin` to `end` - 1 only."""
        _, names = _header_and_columns(type(self))
        return replace(self, **{name: getattr(self, name)[begin:end] for name in names})  # type: ignore[type-var]

    def cut(self: Kind, most_ids: int) -> list[Kind]:
        """Return requests of at most `most_ids` ids each, in order; at least one."""
        if self.num_ids <= most_ids:
            return [self]
        return [self.some(begin, begin + most_ids) for begin in range(0, self.num_ids, most_ids)]

    def pieces(self: Kind, facts: PartitionFacts) -> list[Kind]:
        """Return the requests that are sent in place of this request, in order; at least one."""
        return self.cut(MOST_IDS)

    def halves(self: Kind, facts: PartitionFacts) -> list[Kind]:
        """Return requests for about half of the answer each, or less, in order; [self] if no cut is possible."""
        return self.cut(max(-(-self.num_ids // 2), 1))

    def joined(self, pieces: Sequence[Any], answers: Sequence[Answer]) -> Answer:
        """Join the answers to `pieces` of this request, two or more, and return the answer to the request."""
        raise NotImplementedError

    # --- how it travels

    def to_message(self, meant: Meant) -> Message:
        """Return the request as a message, which shares the request's tensors."""
        header, _ = _header_and_columns(type(self))
        values = to_json(header(**{field.name: getattr(self, field.name) for field in fields(header)}))
        columns = {f"ids.{number}": ids for number, ids in enumerate(self._columns())}
        return Message(request_header(self.kind, meant, **values), columns)

    @classmethod
    def from_message(cls: type[Kind], where: str, message: Message) -> Kind:
        """Return the request in a message. Whether a part has the requested types and names is checked only in
        `answered_by`.

        Raises:
            BadRequest: The message is no such request.
        """
        try:
            return cls._read(message)
        except ValueError as error:
            raise BadRequest(f"{where}: {sentence(error)}") from error

    @classmethod
    def _read(cls: type[Kind], message: Message) -> Kind:
        header, names = _header_and_columns(cls)
        values = vars(own_record(message, cls.kind, header))
        return cls(**values, **dict(zip(names, ids_of(message, len(names)), strict=True)))

    @classmethod
    def answer_to_message(cls, answer: Answer) -> Message:
        """Return an answer as a message."""
        return Message(answer_header(cls.kind), cls.answer_columns(answer))

    @staticmethod
    def answer_columns(answer: Any) -> dict[str, Tensor]:
        """Return {name on the wire: tensor} of an answer."""
        raise NotImplementedError

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Answer:
        """Return the answer in a message.

        Raises:
            BadMessage: The message does not answer this request: columns, dtypes or lengths differ from the expected
                ones, or values are impossible.
        """
        forms = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in message.tensors.items()}
        self.check_forms(where, forms, facts)
        return self.answer_of(where, message.tensors)

    def answer_of(self, where: str, columns: dict[str, Tensor]) -> Answer:
        """Return the answer in `columns`, after `check_forms` has checked names, dtypes and shapes. Raise BadMessage if
        values are impossible.
        """
        raise NotImplementedError

    def check_forms(self, where: str, forms: Forms, facts: PartitionFacts) -> None:
        """Raise BadMessage unless the tensors of an answer have the names, dtypes and shapes that this request implies.

        Args:
            forms: {name on the wire: (dtype, shape)} of the tensors of the answer.
        """
        expected = self.answer_forms(facts)
        if [*forms] != [*expected]:
            raise BadMessage(f"{where}: answered the tensors {shown([*forms])}, expected were {shown([*expected])}.")
        for name, (dtype, shape) in expected.items():
            if forms[name] != (dtype, shape):
                answered = f"{dtype_name(forms[name][0])} {[*forms[name][1]]}"
                raise BadMessage(
                    f"{where}: answered {self.called(name)} as {answered}, expected was {dtype_name(dtype)} {[*shape]}."
                )

    def called(self, name: str) -> str:
        """Return how errors call the tensor `name` of an answer."""
        return name

    def sink(self, where: str, facts: PartitionFacts) -> Sink | None:
        """Return the Sink that takes the answer's tensors as they arrive; None if the answer is read as a whole."""
        return None

    def _columns(self) -> list[Tensor]:
        return [getattr(self, name) for name in _header_and_columns(type(self))[1]]


@cache
def _header_and_columns(kind: type[Request[Any]]) -> tuple[Any, list[str]]:
    """Return (record, names): a dataclass of the fields of a kind that travel in the header, and the names of the
    fields that travel as columns.
    """
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    in_header = [(name, hints[name]) for name in names if hints[name] is not Tensor]
    return make_dataclass(kind.__name__, in_header, frozen=True), [name for name in names if hints[name] is Tensor]
