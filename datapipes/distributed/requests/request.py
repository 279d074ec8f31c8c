"""Request: base of the requests to a part. Each kind of request is a class in a module of its own.

The class has all code for its kind: the fields of the request and of its answer, how both become messages, how many
bytes the answer has, how a large request is cut and its answers are joined, and how a part answers. Client and server
only call these methods. `server/service.py` lists the kinds that a server answers.

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
    """Base of the requests to a part. Each kind of request is a frozen dataclass. `__post_init__` raises ValueError if
    its fields contradict each other.

    In a message, a Tensor field is a column of ids, int32 or int64 [n], with the name "ids.0", "ids.1", ...; all other
    fields are in the header, as their annotations say (base/records.py). So it is for DigestRequest and EdgesRequest.
    DrawRequest and RowsRequest have several columns of ids, one for each type, and write their messages themselves.

    Attributes:
        kind: name of this kind of request in messages.
        things: what errors call the content of an answer, such as "rows".
    """

    kind: ClassVar[str]
    things: ClassVar[str]

    # --- the answer

    @abstractmethod
    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> Answer:
        """Let `part` answer the request, and return the answer.

        Args:
            num_threads: threads of the kernels.
            go_on: called now and then; it raises an error if the client no longer waits.
        Raises:
            IndexError: The part does not have a node or an edge; the message names the first such id.
            ValueError, TypeError, KeyError: There is no such type or attribute.
        """

    def answered_by_graph(self, where: str, graph: LocalGraph) -> Answer:
        """Let `graph`, a whole graph that a server has instead of a part, answer the request; return the answer. Raise
        BadRequest if only a part can answer requests of this kind.
        """
        raise BadRequest(f"{where}: has no part; it makes minibatches of chains only. Serve a partition.")

    # --- its size

    def answer_forms(self, facts: PartitionFacts) -> Forms:
        """Return {name in the message: (dtype, shape)} of the tensors that the answer must have, in their order."""
        return {}

    def num_bytes(self, facts: PartitionFacts, most: int) -> int | None:
        """Return an upper bound of the answer's bytes, as far as the request alone tells it. None: only the part can
        tell whether the answer has at most `most` bytes, see `counted_bytes`.
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
        """Number of ids in the request; 0 for a kind of request that has none."""
        return next((ids.shape[0] for ids in self._columns()), 0)

    def some(self: Kind, begin: int, end: int) -> Kind:
        """Return a request like this one for some of its ids: those at the positions `begin` to `end` - 1."""
        _, names = _header_and_columns(type(self))
        return replace(self, **{name: getattr(self, name)[begin:end] for name in names})  # type: ignore[type-var]

    def cut(self: Kind, most_ids: int) -> list[Kind]:
        """Cut this request into requests of at most `most_ids` ids each, and return these in order. At least one is
        returned, also if there are no ids.
        """
        if self.num_ids <= most_ids:
            return [self]
        return [self.some(begin, begin + most_ids) for begin in range(0, self.num_ids, most_ids)]

    def pieces(self: Kind, facts: PartitionFacts) -> list[Kind]:
        """Cut this request into requests that are small enough to be sent and answered; return at least one, in
        order.
        """
        return self.cut(MOST_IDS)

    def halves(self: Kind, facts: PartitionFacts) -> list[Kind]:
        """Cut this request into two or more, whose answers each have about half of the bytes or less; return them in
        order. If no cut is possible, return a list of one request.
        """
        return self.cut(max(-(-self.num_ids // 2), 1))

    def joined(self, pieces: Sequence[Any], answers: Sequence[Answer]) -> Answer:
        """Return the answer to this request, joined from the `answers` to its `pieces`. There are two pieces or
        more.
        """
        raise NotImplementedError

    # --- how it travels

    def to_message(self, meant: Meant) -> Message:
        """Return this request as a message to the part and partition `meant`. The message shares the request's
        tensors.
        """
        header, _ = _header_and_columns(type(self))
        values = to_json(header(**{field.name: getattr(self, field.name) for field in fields(header)}))
        columns = {f"ids.{number}": ids for number, ids in enumerate(self._columns())}
        return Message(request_header(self.kind, meant, **values), columns)

    @classmethod
    def from_message(cls: type[Kind], where: str, message: Message) -> Kind:
        """Read a request of this kind from `message`. Whether the part has the requested types and names is checked
        later, in `answered_by`.

        Raises:
            BadRequest: The message is no request of this kind.
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
        """Return `answer`, an answer to a request of this kind, as a message."""
        return Message(answer_header(cls.kind), cls.answer_columns(answer))

    @staticmethod
    def answer_columns(answer: Any) -> dict[str, Tensor]:
        """Return the tensors of `answer` under the names that they have in a message: {name: tensor}."""
        raise NotImplementedError

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> Answer:
        """Read the answer to this request from `message`, and check it.

        Raises:
            BadMessage: The message does not answer this request: columns, dtypes or lengths differ from the expected
                ones, or values are impossible.
        """
        forms = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in message.tensors.items()}
        self.check_forms(where, forms, facts)
        return self.answer_of(where, message.tensors)

    def answer_of(self, where: str, columns: dict[str, Tensor]) -> Answer:
        """Build the answer from `columns`, {name in the message: tensor}. The caller has checked names, dtypes and
        shapes by `check_forms`. Raise BadMessage if values are impossible.
        """
        raise NotImplementedError

    def check_forms(self, where: str, forms: Forms, facts: PartitionFacts) -> None:
        """Raise BadMessage unless the tensors of an answer have the names, dtypes and shapes that this request implies.

        Args:
            forms: {name in the message: (dtype, shape)} of the tensors of the answer.
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
        """Return what errors call the tensor of an answer that has this name in the message."""
        return name

    def sink(self, where: str, facts: PartitionFacts) -> Sink | None:
        """Return a Sink: a function that takes the answer's tensors piece by piece while they arrive (see
        wire/arrow_reading.py). None: the answer is read as a whole after it has arrived.
        """
        return None

    def _columns(self) -> list[Tensor]:
        return [getattr(self, name) for name in _header_and_columns(type(self))[1]]


@cache
def _header_and_columns(kind: type[Request[Any]]) -> tuple[Any, list[str]]:
    """Sort the fields of `kind`, a class of requests, by how they travel. Return (record, names): a dataclass with the
    fields in the header, and the names of the fields that are columns of ids.
    """
    hints = get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    in_header = [(name, hints[name]) for name in names if hints[name] is not Tensor]
    return make_dataclass(kind.__name__, in_header, frozen=True), [name for name in names if hints[name] is Tensor]
