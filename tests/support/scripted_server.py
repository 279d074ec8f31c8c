"""A server of a part within this process, which a test tells what to do: what no real server would."""

from collections.abc import Callable, Iterable
from types import TracebackType

import pyarrow.flight as flight

from datapipes.distributed import Part
from datapipes.distributed.partition_facts import PartitionFacts, greeting_to_message
from datapipes.distributed.server.service import OF_PARTS
from datapipes.distributed.wire.arrow_message import Message, to_batches
from datapipes.distributed.wire.arrow_reading import from_bytes
from datapipes.distributed.wire.refusals import error_to_bytes


class Dropped(Exception):
    """A script raises it to fail without a reason that a client could read."""


class AsItIs(Exception):
    """A script raises it for the server to raise `error`, which Flight gives a code."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def answer_of(part: Part, message: Message) -> Message:
    """What a server of the part answers."""
    kind = message.header["kind"]
    if kind == "hello":
        return greeting_to_message(part.part, PartitionFacts.of(part))
    request = OF_PARTS[kind].from_message("scripted", message)
    return request.answer_to_message(request.answered_by(part))


Change = Callable[[Message, Message], Message]  # of a request and the part's answer to it


def raising(errors: Iterable[Exception]) -> Change:
    """Raise the errors, a request for each; then answer as the part does."""
    left = iter(errors)

    def change(_: Message, answer: Message) -> Message:
        for error in left:
            raise error
        return answer

    return change


class ScriptedServer(flight.FlightServerBase):
    """Answers as the part does, except to the kinds of requests in `changes`. `asked` lists the kinds of requests."""

    def __init__(self, part: Part, **changes: Change) -> None:
        self.part, self.changes, self.asked = part, changes, []
        super().__init__("grpc://127.0.0.1:0")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        message = from_bytes("scripted", ticket.ticket, 2**30)
        kind = message.header["kind"]
        self.asked.append(kind)
        try:
            answer = answer_of(self.part, message)
            if kind in self.changes:
                answer = self.changes[kind](message, answer)
        except AsItIs as given:
            raise given.error from None
        except Dropped:
            raise
        except flight.FlightError:
            raise
        except Exception as error:
            raise flight.FlightServerError(str(error), error_to_bytes(error)) from error
        return flight.GeneratorStream(*to_batches("scripted", answer))

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()
