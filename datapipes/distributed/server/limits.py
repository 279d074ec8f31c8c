"""ServerLimits: how much a server does at once, and how many bytes it takes, sends and holds."""

from __future__ import annotations

import os
from dataclasses import dataclass

from datapipes.base.checks import check_int, check_seconds
from datapipes.base.sizes import parse_size

__all__ = ["ServerLimits"]

_WHERE = "ServerLimits"
AUTO = "auto"


@dataclass(frozen=True)
class ServerLimits:
    """The limits of a PartitionServer. A size is a number of bytes, or a text such as "64MB".

    Attributes:
        num_threads: threads of a kernel, for each request.
        concurrency: how many requests are worked on at once; by default as many as this process may use CPU cores.
        max_waiting: how many requests of all clients may wait; further ones are refused as "full", and clients ask
            again. Waiting requests are taken from connection to connection.
        max_request_bytes: the most bytes of a request.
        max_answer_bytes: the most bytes of an answer; a larger one is refused before it is made, and clients then ask
            for fewer ids at once.
        max_bytes_in_flight: the most bytes of all answers that are being made or sent. A connection holds at most a
            sixteenth of them, or one answer if that is larger; all connections of a host together hold at most half.
            Further requests wait, except requests of clients that hold few bytes: a sixteenth is reserved for these.
            At least four times `max_answer_bytes`.
        stall_s: a client that reads nothing of its answer for so many seconds loses its connection. Choose more seconds
            than a slow client needs for 4 MiB, and fewer than the deadline of clients, 30 s: clients that wait for the
            bytes of a stalled one must still get their answers. gRPC itself ends answers whose client has died, or
            whose deadline has passed.
        max_memory: the most memory of the whole process, without mapped files. Above it the largest producers are
            ended, then all connections, and clients connect again. None for no bound; memory of other work in the
            process would count too. "auto", for a process that only serves: its memory at the start, plus twice
            `max_bytes_in_flight`, plus 16 times `max_request_bytes`. The bound is soft: gRPC takes a whole request, and
            about six times its size, before the server can refuse it.
        max_workers: the most worker processes of a producer; by default as many as this process may use CPU cores. Only
            a server with `chains` has producers.
    Raises:
        TypeError, ValueError: A number is not in its range, or a text is no size.
    """

    num_threads: int = 1
    concurrency: int | None = None
    max_waiting: int = 256
    max_request_bytes: int | str = "64MB"
    max_answer_bytes: int | str = "256MB"
    max_bytes_in_flight: int | str = "1GB"
    stall_s: float = 10.0
    max_memory: int | str | None = None
    max_workers: int | None = None

    def __post_init__(self) -> None:
        for name, lowest in {"num_threads": 1, "max_waiting": 1, "concurrency": 1, "max_workers": 0}.items():
            number = getattr(self, name)
            if number is not None or name in ("num_threads", "max_waiting"):
                object.__setattr__(self, name, check_int(_WHERE, name, number, lowest))  # an int, also of NumPy's
        if self.max_memory is not None and self.max_memory != AUTO:
            parse_size(_WHERE, "max_memory", self.max_memory)
        advice = "Choose more than a slow client needs for one batch of an answer, 4 MiB."
        check_seconds(_WHERE, "stall_s", self.stall_s, advice)
        _, max_answer_bytes, max_bytes_in_flight = sizes_of(self)
        if max_bytes_in_flight < 4 * max_answer_bytes:
            raise ValueError(
                f"{_WHERE}: max_bytes_in_flight must be at least 4 times max_answer_bytes ({max_answer_bytes}), got "
                f"{max_bytes_in_flight}. Raise it."
            )


def sizes_of(limits: ServerLimits) -> tuple[int, int, int]:
    """Return max_request_bytes, max_answer_bytes and max_bytes_in_flight as numbers of bytes."""
    return (
        parse_size(_WHERE, "max_request_bytes", limits.max_request_bytes),
        parse_size(_WHERE, "max_answer_bytes", limits.max_answer_bytes),
        parse_size(_WHERE, "max_bytes_in_flight", limits.max_bytes_in_flight),
    )


def or_cores(number: int | None) -> int:
    """Return `number`, or if it is None, how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if number is None else number
