"""The attempts of one request, on connections that a test makes up: what is asked again, how often, how long."""

import contextlib
from concurrent.futures import Future

import pyarrow
import pyarrow.flight as flight
import pytest

import datapipes as dp
from datapipes.base.errors import text_of
from datapipes.distributed.addresses import replicas_of
from datapipes.distributed.client import remote_part
from datapipes.distributed.client.remote_part import Limits, RemotePart
from datapipes.distributed.wire.arrow_message import Message

WAIT_S = 60.0
SHORT_S = 0.3  # a deadline that a test waits for
ADDRESS = replicas_of("test", "a part", "127.0.0.1:1", "test")
ANSWER = Message({"kind": "made up"}, {})


class MadeUp:
    """A connection on which `ask(timeout)` is the answer."""

    def __init__(self, ask):
        self.address, self.in_flight, self.retired, self.greeted, self.answer = ADDRESS[0], 0, False, 0.0, ask

    def ask(self, message, timeout, most_bytes, sink=None):
        return self.answer(timeout)

    def close(self):
        pass


@pytest.fixture
def asked():
    """Asks a part whose connections come from `connect(timeout)`; in the end it is closed."""
    made = []

    def ask(connect, deadline=WAIT_S) -> Future:
        made.append(RemotePart(1, ADDRESS, Limits(deadline), lambda _, timeout: connect(timeout)))
        return made[-1].submit(lambda send: send(ANSWER, 0))

    yield ask
    for each in made:
        each.close()


def all_subclasses(kind):
    return {kind, *(each for direct in kind.__subclasses__() for each in all_subclasses(direct))}


def raised(error):
    raise error


def in_turn(*answers):
    """Give the answers one after another; errors are raised."""
    left = [*answers]

    def answer(timeout):
        first = left.pop(0)
        return raised(first) if isinstance(first, Exception) else first

    return answer


def reset(timeout):
    raise flight.FlightInternalError("stream reset")


@pytest.mark.parametrize(
    ("failure", "least", "most"),
    [(flight.FlightTimedOutError("Deadline Exceeded"), 1 / 2, 1.0), (flight.FlightUnavailableError("cut"), 0.0, 1 / 3)],
    ids=["it took too long", "another failure"],
)
def test_after_one_that_took_too_long_an_attempt_has_all_the_time_that_is_left_else_its_share(
    asked, failure, least, most
):
    timeouts = []

    def answer(timeout):
        timeouts.append(timeout)
        return ANSWER if len(timeouts) > 1 else raised(failure)

    assert asked(lambda timeout: MadeUp(answer)).result(WAIT_S) is ANSWER
    assert timeouts[0] <= WAIT_S / 3
    assert WAIT_S * least < timeouts[1] <= WAIT_S * most


def test_a_server_that_does_not_return_is_not_waited_for():
    def cut(timeout):
        raise flight.FlightUnavailableError("connection refused")

    with contextlib.closing(
        RemotePart(1, ADDRESS, Limits(WAIT_S, may_return=False), lambda _, timeout: cut(timeout))
    ) as remote:
        future = remote.submit(lambda send: send(ANSWER, 0))
        with pytest.raises(dp.ServerUnavailable, match="nothing listens there any more"):
            future.result(WAIT_S / 10)


def test_the_error_names_the_deadline_where_time_was_the_reason(asked):
    def late(timeout):
        raise flight.FlightTimedOutError("Deadline Exceeded")

    with pytest.raises(dp.ServerUnavailable, match=r"Deadline Exceeded\. .* if it needs longer, raise deadline"):
        asked(lambda timeout: MadeUp(late), SHORT_S).result(WAIT_S)
    with pytest.raises(dp.ServerUnavailable) as caught:
        asked(late, SHORT_S).result(WAIT_S)  # nothing was reached
    assert "raise deadline" not in str(caught.value)


def test_an_attempt_that_the_deadline_cuts_short_does_not_hide_why_the_others_failed(asked):
    deadline = 4 * SHORT_S

    def answer(timeout):
        if timeout < deadline / 6:  # half of what an attempt has before the deadline is near
            raise flight.FlightTimedOutError("Deadline Exceeded")
        raise flight.FlightUnavailableError("it is full")

    with pytest.raises(dp.ServerUnavailable, match="the last attempt ended with: it is full"):
        asked(lambda timeout: MadeUp(answer), deadline).result(WAIT_S)


def test_a_server_that_is_lost_and_that_is_back_is_told_once_each(asked, monkeypatch, caplog):
    monkeypatch.setattr(remote_part, "OUTAGE_S", 0.0)
    answer = in_turn(*[flight.FlightUnavailableError("the network cut it")] * 4, ANSWER, ANSWER)
    assert asked(lambda timeout: MadeUp(answer)).result(WAIT_S) is ANSWER
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "part 1 at 127.0.0.1:1 has not answered for 0 s: the network cut it. It is asked again.",
        "part 1 at 127.0.0.1:1 answers again, after 0 s.",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_an_outage_is_told_after_two_seconds_and_one_that_was_short_is_not(caplog):
    outage = remote_part.Outage("part 3 at host:1")
    outage.failed(10.0, 11.9, "refused")
    outage.answered(12.0)
    assert caplog.records == []
    outage.failed(20.0, 20.1, "refused")
    outage.failed(21.0, 22.0, "refused")
    outage.failed(23.0, 29.0, "reset")
    outage.answered(31.4)
    outage.answered(32.0)
    assert [record.getMessage() for record in caplog.records] == [
        "part 3 at host:1 has not answered for 2 s: refused. It is asked again.",
        "part 3 at host:1 answers again, after 11 s.",
    ]


def test_a_server_that_is_full_is_not_lost(asked, monkeypatch, caplog):
    monkeypatch.setattr(remote_part, "OUTAGE_S", 0.0)
    answer = in_turn(flight.FlightInternalError(NO_ROOM), ANSWER)
    assert asked(lambda timeout: MadeUp(answer)).result(WAIT_S) is ANSWER
    assert caplog.records == []


NO_ROOM = "gRPC returned resource exhausted error, with message: Server Threadpool Exhausted. gRPC client"
ALL_OF_ARROW = sorted({*all_subclasses(pyarrow.ArrowException), flight.FlightError}, key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", ALL_OF_ARROW, ids=lambda kind: kind.__name__)
def test_every_error_of_arrow_ends_as_one_with_a_meaning(asked, kind):
    def fail(timeout):
        raise kind("told by gRPC", *([1, 2] if kind is flight.FlightWriteSizeExceededError else []))

    typed = dp.ServerUnavailable, dp.RemoteError, PermissionError, ConnectionError, MemoryError
    with pytest.raises(typed) as caught:
        asked(lambda timeout: MadeUp(fail), SHORT_S).result(WAIT_S)
    assert "part 1 at 127.0.0.1:1" in text_of(caught.value)


def test_a_server_without_room_is_asked_again_on_its_connection_until_the_deadline(asked):
    connections = [MadeUp(in_turn(*[pyarrow.ArrowInvalid(NO_ROOM)] * 6, ANSWER))]  # one is enough
    assert asked(lambda timeout: connections.pop()).result(WAIT_S) is ANSWER
    with pytest.raises(dp.ServerUnavailable, match=r"part 1 at .* Server Threadpool Exhausted"):
        asked(lambda timeout: MadeUp(lambda timeout: raised(pyarrow.ArrowInvalid(NO_ROOM))), SHORT_S).result(WAIT_S)


def test_a_stream_that_every_new_connection_resets_is_given_up(asked):
    made = []

    def connect(timeout):
        made.append(timeout)
        return MadeUp(reset)

    with pytest.raises(dp.RemoteError, match=r"part 1 at 127\.0\.0\.1:1: .*stream reset"):
        asked(connect).result(WAIT_S)
    assert len(made) == 3


def test_resets_do_not_count_while_nothing_greets(asked):
    steps = [reset, None, None, None, None, reset, None, None, lambda timeout: ANSWER]

    def connect(timeout):
        step = steps.pop(0)
        return reset(timeout) if step is None else MadeUp(step)

    assert asked(connect).result(WAIT_S) is ANSWER
