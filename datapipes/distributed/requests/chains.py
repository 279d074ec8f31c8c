"""The requests by which a client lets a server make minibatches of a chain, and their answers, as messages. There are
requests to create a producer (the server's object that makes the minibatches), to get a minibatch, and to end or list
claims. A claim is a server's record that a client uses a producer.

A minibatch travels as its `to_message()`. If a stage raised an error, the error travels instead, with its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from datapipes.base.checks import one_line, shown
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.base.errors import PeerDied, ServerUnavailable, add_note, sentence
from datapipes.base.records import Count, Form, from_json, plain, to_json, whole
from datapipes.base.rng import MAX_EPOCH
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.minibatch import MiniBatch

MOST_KEY = 1000  # characters of a worker_key
_TOKEN = plain("texts of 32 characters", lambda value: isinstance(value, str) and len(value) == 32)


def text_up_to(most: int) -> Form:
    """Return the Form of a field whose values are texts of at most `most` characters. A Form reads and checks a JSON
    value.
    """
    return plain(f"texts of up to {most} characters", lambda value: isinstance(value, str) and len(value) <= most)


_ANY = Form(lambda name, value: value)
Token = Annotated[str, _TOKEN]  # secret of a client
ProducerId = Annotated[int, whole(0)]
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class CreateRequest:
    """Ask a server to make minibatches of a chain: to create a producer for it, or to record that the client uses the
    existing one.

    Attributes:
        client: a secret that identifies the client.
        chain: the header of the chain's description. The tensors of the description are sent as the tensors of the
            message.
        worker_key: a name under which clients share one chain; or None.
        num_workers: how many worker processes the client wants.
    """

    kind = "producer"
    client: Token
    chain: Annotated[Mapping[str, Any], _ANY]
    worker_key: Annotated[str, text_up_to(MOST_KEY)] | None
    num_workers: Count


@dataclass(frozen=True)
class MinibatchRequest:
    """Ask a producer for the minibatch with this index in this epoch."""

    kind = "minibatch"
    client: Token
    producer: ProducerId
    epoch: Annotated[int, whole(0, MAX_EPOCH)]
    index: Count


@dataclass(frozen=True)
class ClaimRequest:
    """Tell a server that the client no longer uses the producer."""

    kind = "destroy_producer"
    client: Token
    producer: ProducerId


@dataclass(frozen=True)
class ListRequest:
    """Ask a server which of its producers the client uses."""

    kind = "producers"
    client: Token


@dataclass(frozen=True)
class Created:
    """What a server tells a client about a producer that the client uses.

    Attributes:
        worker_key: the key that this client gave in its CreateRequest, or None.
        num_workers: number of worker processes of the producer.
        num_batches: minibatches in an epoch.
    """

    producer: ProducerId
    worker_key: str | None
    num_workers: Count
    num_batches: Count


@dataclass(frozen=True)
class Listed:
    """The answer to a ListRequest: the producers that the client uses."""

    producers: tuple[Created, ...]


class Made(NamedTuple):
    """The answer to a MinibatchRequest: a minibatch, or the error that a stage raised. Both are None if a stage dropped
    the minibatch.
    """

    minibatch: MiniBatch | None
    error: Exception | None = None

    def value(self) -> MiniBatch | None:
        """Return the minibatch, None if a stage dropped it. If a stage raised an error, raise this error."""
        if self.error is not None:
            raise self.error
        return self.minibatch


def request_to_message(request: Any, meant: Meant, tensors: Mapping[str, Any] | None = None) -> Message:
    """Return `request` as a message to the part and partition `meant`. `tensors` are the tensors of the message, if
    any.
    """
    return Message(request_header(request.kind, meant, **to_json(request)), dict(tensors or {}))


def request_from_message(where: str, message: Message, *kinds: type[Any]) -> Any:
    """Read the request that `message` has; return an instance of one of the classes `kinds`.

    Raises:
        BadRequest: The message has no request of these classes.
    """
    name = message.header.get("kind")
    kind = next((kind for kind in kinds if kind.kind == name), None)
    if kind is None:
        raise BadRequest(f"{where}: there is no request {shown(name)}; there are {[kind.kind for kind in kinds]}.")
    try:
        if message.tensors and kind is not CreateRequest:
            raise ValueError(f"the columns are {shown([*message.tensors])}, expected were none")
        return own_record(message, kind.kind, kind)
    except ValueError as error:
        raise BadRequest(f"{where}: {one_line(str(error))}.") from error


def told_to_message(kind: str, record: Created | Listed) -> Message:
    """Return `record` as the message that answers a request of this kind."""
    return Message(answer_header(kind, **to_json(record)), {})


def told_from_message(record: type[_Record], where: str, message: Message) -> _Record:
    """Read an answer that `told_to_message` wrote; return an instance of the class `record`. Raise BadMessage if the
    message does not fit the class.
    """
    try:
        return from_json(record, "the answer", message.header, others=True)
    except ValueError as error:
        raise BadMessage(f"{where}: {sentence(error)}") from error


def made_to_message(request: MinibatchRequest, made: Made) -> Message:
    """Return `made`, which is a minibatch or an error, as the message that answers `request`."""
    header = {"producer": request.producer, "epoch": request.epoch, "index": request.index}
    if made.error is not None:
        return Message(answer_header("minibatch", what="error", **header), error_to_message(made.error, 2**16))
    if made.minibatch is None:
        return Message(answer_header("minibatch", what="dropped", **header), {})
    return Message(answer_header("minibatch", what="minibatch", **header), made.minibatch.to_message())


def made_from_message(where: str, message: Message, request: MinibatchRequest) -> Made:
    """Read the answer to `request` from `message`: a minibatch or an error. If it is an error, add a note that names
    the server.

    Raises:
        BadMessage: The message does not answer the request.
    """
    header, kind = message.header, message.header.get("what")
    numbers = [header.get(name) for name in ("producer", "epoch", "index")]
    if numbers != [request.producer, request.epoch, request.index] or kind not in ("minibatch", "dropped", "error"):
        raise BadMessage(f"{where}: the answer is {shown(kind)} of {shown(numbers)}, expected was that of {request}.")
    if kind == "error":
        error = error_from_message(message.tensors, kept=(PeerDied, ServerUnavailable))
        add_note(error, f"on {where}")
        return Made(None, error)
    if kind == "dropped":
        return Made(None)
    minibatch = minibatch_of(where, "the answer", message.tensors)
    if (minibatch.epoch, minibatch.index) != (request.epoch, request.index):
        raise BadMessage(
            f"{where}: the answer is minibatch {minibatch.index} of epoch {minibatch.epoch}, expected was "
            f"{request.index} of {request.epoch}."
        )
    return Made(minibatch)


def minibatch_of(where: str, name: str, tensors: Any) -> MiniBatch:
    """Turn the tensors of a received message into a MiniBatch. Raise BadMessage if this is not possible; `name` is what
    the error calls the tensors.
    """
    try:
        return MiniBatch.from_message(tensors)
    except (ValueError, TypeError, LookupError) as error:
        raise BadMessage(f"{where}: {name} is no minibatch: {error}") from error
