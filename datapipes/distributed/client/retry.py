"""Which failed requests are retried, and after how long a pause. Requests are idempotent, so a retry is safe."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from datapipes.base.checks import one_line
from datapipes.base.errors import RemoteError, add_note, text_of

FIRST_PAUSE_S, MOST_PAUSE_S = 0.02, 0.25  # a server that is back is found within MOST_PAUSE_S
FEW = 2  # retries of a failure that may be a permanent bug


class Verdict(NamedTuple):
    """What to do after an attempt to send a request has failed: whether to retry, and how.

    Attributes:
        most: how often a request is retried after failures with this Verdict; None: until the deadline. If
            `of_connection` is True, not every failure counts: see Failures.add.
        renew: whether the next attempt makes a new channel; gRPC waits longer and longer before it reconnects an old
            channel.
        raised: type of the error that the caller gets after the last retry. None: the caller gets the failure itself.
        why: the reason in words, for the text of an error of the type `raised`.
        of_connection: whether the connection may have caused the failure.
        slow: whether the attempt failed only because its time ran out. The next attempt then has all the time left.
    """

    most: int | None
    renew: bool
    raised: type[Exception] | None
    why: str
    of_connection: bool = False
    slow: bool = False


class Moved(Exception):  # no error: the request is retried
    """Raised for a retry: another program answers at the address of a server. The server may have another address by
    now.
    """


RESET = Verdict(FEW, True, RemoteError, "the stream was reset, the server died, or no partition server is there", True)
FULL = Verdict(None, False, None, "the server answers, but is full or stops")
STRANGER = Verdict(0, True, ConnectionError, "what listens there is no partition server")
# {class name: Verdict}; names, so that pyarrow need not be imported. The first class in the failure's __mro__ decides.
TABLE = {
    "FlightUnavailableError": Verdict(None, True, None, "no connection: the server is away, or the network cut it"),
    "FlightTimedOutError": Verdict(
        None,
        True,
        None,
        "the server or the connection stands still, or the answer takes long",
        slow=True,
    ),
    "FlightCancelledError": Verdict(None, True, None, "a server that stops drops unanswered requests"),
    "Unavailable": FULL,
    "TimeoutError": Verdict(None, False, None, "another thread is still connecting"),
    "FlightUnauthenticatedError": Verdict(0, False, PermissionError, "the server refuses this client, also later"),
    "FlightUnauthorizedError": Verdict(0, False, PermissionError, "the server refuses this client, also later"),
    "ArrowNotImplementedError": STRANGER,
    "Moved": Verdict(None, True, None, "the port of a server that is gone was given to another program"),
    "ArrowMemoryError": Verdict(0, False, MemoryError, "too little memory is left here"),
    "FlightError": RESET,
    "ArrowException": RESET,
}
# A part of the text, since pyarrow has no class for this failure. The connection is good; the server has no thread or
# memory for a request.
EXHAUSTED = "resource exhausted"
# A part of the text, since gRPC has no code for this failure. If the other side refuses our certificate, the failure
# looks like a cut connection instead.
HANDSHAKE = "handshake failed"
NOT_TRUSTED = Verdict(FEW, True, PermissionError, "TLS: the other side has no certificate of our authority, or no TLS")
FINAL = Verdict(0, False, None, "an answer: the request is wrong, or the answer does not fit it")


def verdict_on(failure: Exception) -> Verdict:
    """Decide by the class and the text of `failure` whether its request is retried; return the decision as a
    Verdict.
    """
    names = [cls.__name__ for cls in type(failure).__mro__]
    if "FlightUnavailableError" in names and HANDSHAKE in text_of(failure).lower():
        return NOT_TRUSTED
    if "ArrowException" in names and EXHAUSTED in text_of(failure).lower():
        return FULL
    return next((TABLE[name] for name in names if name in TABLE), FINAL)


def judge(where: str, failure: Exception) -> tuple[Verdict, Exception]:
    """Return (verdict, error): whether the request is retried after `failure`, and the error that the caller gets if it
    is not. `where` is what errors call the server.
    """
    verdict = verdict_on(failure)
    if verdict.raised is not None:
        return verdict, verdict.raised(f"{where}: {verdict.why}: {reason(failure)}")
    if where not in text_of(failure):
        add_note(failure, f"asking {where}")
    return verdict, failure


def reason(failure: BaseException) -> str:
    """Return the text of the error `failure` in one line, without the debug context that gRPC adds.

    Control characters, which could move the cursor of a terminal, are escaped.
    """
    text = text_of(failure).partition(" gRPC client debug context:")[0].partition(". Client context:")[0]
    _, _, message = text.partition(", with message: ")
    line = " ".join((message or text).split()).rstrip(".")
    return one_line(line[:500]) or type(failure).__name__


class Failures:
    """The failed attempts of one request so far; tells whether to retry.

    Attributes:
        count: number of failed attempts.
        slow: whether the last failure was a timeout on a connection that had been opened.
        last: the text of the last failure.
        greeted: time.monotonic() at the handshake of the connection that the latest attempt used; None if it had no
            connection.
    """

    def __init__(self) -> None:
        self.count, self.slow, self.last = 0, False, "it waited for others and was not sent"
        self.greeted: float | None = None
        self._counted: Counter[Verdict] = Counter()
        self._when = -math.inf  # time of the last failure of a connection

    def add(self, verdict: Verdict, error: Exception) -> bool:
        """Record that an attempt failed with `error`. Return True if the request must not be retried.

        A failure that the connection may have caused counts only if this connection was opened after the previous such
        failure. If no connection can be opened, the server is away, and only the deadline ends the retries.
        """
        self.count, self.slow, self.last = self.count + 1, verdict.slow and self.greeted is not None, reason(error)
        if verdict.of_connection:
            counts = self.greeted is not None and self.greeted > self._when
            self._when = time.monotonic()
            if not counts:
                return False
        self._counted[verdict] += 1
        return verdict.most is not None and self._counted[verdict] > verdict.most


def pauses() -> Iterator[float]:
    """Yield how many seconds to wait before each retry: a random time, whose bound doubles with each retry up to
    MOST_PAUSE_S.
    """
    own_random, most = random.Random(), FIRST_PAUSE_S  # does not advance the global generator
    while True:
        yield own_random.uniform(most / 2, most)
        most = min(2 * most, MOST_PAUSE_S)
