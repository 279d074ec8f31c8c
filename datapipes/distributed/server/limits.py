"""ServerLimits: how many requests a server works on at once, and how many bytes it receives, sends and keeps in
memory.
"""

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
        num_threads: threads that the kernels of one request use.
        concurrency: how many requests are worked on at once; by default how many CPU cores this process may use.
        max_waiting: how many requests of all clients may wait. Further requests are refused as "full", and clients ask
            again. The server takes one waiting request from each connection in turn.
        max_request_bytes: the most bytes of a request.
        max_answer_bytes: the most bytes of an answer. A larger answer is refused before it is made, and clients then
            ask for fewer ids at once.
        max_bytes_in_flight: the most bytes of all answers that are being made or sent. A connection takes at most a
            sixteenth of these bytes, or one answer if that is larger; all connections of a host take at most half.
            Further requests wait, except requests of clients that take few bytes: a sixteenth is reserved for these.
            The value is at least four times `max_answer_bytes`.
        stall_s: a client that reads nothing of its answer for so many seconds loses its connection. Choose more seconds
            than a slow client needs for 4 MiB. Choose fewer than the deadline of clients, 30 s: a client that waits for
            the bytes of a stalled client must still get its answer in time. gRPC itself ends an answer if its client
            has died or its deadline has passed.
        max_memory: the most memory of the whole process, without mapped files, but with memory of other work in the
            process. Above the bound the largest producers are ended, then all connections, and clients connect again.
            None: no bound. "auto", for a process that only serves: its memory at the start, plus twice
            `max_bytes_in_flight`, plus 16 times `max_request_bytes`. The bound is soft: gRPC takes a whole request, and
            about six times its size, before the server can refuse the request.
        max_workers: the most worker processes of a producer; by default how many CPU cores this process may use. Only a
            server with `chains` has producers.
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
    """Return (max_request_bytes, max_answer_bytes, max_bytes_in_flight), each as an int, in bytes."""
    return (
        parse_size(_WHERE, "max_request_bytes", limits.max_request_bytes),
        parse_size(_WHERE, "max_answer_bytes", limits.max_answer_bytes),
        parse_size(_WHERE, "max_bytes_in_flight", limits.max_bytes_in_flight),
    )


def or_cores(number: int | None) -> int:
    """Return `number`, or if it is None, how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if number is None else number
