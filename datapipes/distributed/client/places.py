"""Places: which server of a part a process asks: one of its replicas, another one after a failure."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable

from datapipes.base.errors import text_of
from datapipes.distributed.address import Address
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.retry import Moved, reason, verdict_on
from datapipes.distributed.resolver import Replicas


class Places:
    """The servers of one part, the one that is asked next at the front. Any thread may use it.

    The first choice follows from a hash of this process and the address, so clients spread over replicas.

    Args:
        again: tells where they are now, asked when none can be reached; it may raise. None: they stay where they are.
    Attributes:
        complaint: what prevented `again` the last time, a sentence for errors.
    """

    def __init__(self, replicas: Replicas, again: Callable[[], Replicas] | None = None) -> None:
        self._again, self.complaint = again, ""
        self._changing = threading.Lock()
        self._order = sorted(replicas, key=_rank)
        self._have_answered: set[Address] = set()

    def connect(self, connect: Callable[[Address, float], Connection], timeout: float) -> Connection:
        """Return a connection to one of them, tried one after the other; each has its share of the time.

        Raises:
            Moved: Others answer where servers of this part have answered before, and `again` may tell where they are.
            The failure of the last one; or the first that tells more than that a server cannot be reached.
        """
        ends, tried = time.monotonic() + timeout, list[Address]()
        while waiting := [each for each in self.all() if each not in tried]:
            address, left = waiting[0], ends - time.monotonic()
            try:
                connection = connect(address, left / len(waiting))
            except Exception as failure:
                tried.append(address)
                self.failed(address)
                is_final = verdict_on(failure).most == 0
                if is_final and (self._again is None or address not in self._have_answered):
                    raise
                is_last = len(waiting) == 1
                if is_last:
                    self._ask_again()
                if time.monotonic() >= ends or (is_last and not {*self.all()} - {*tried}):
                    if is_final:
                        raise Moved(reason(failure)) from failure
                    raise
            else:
                self._have_answered.add(address)
                return connection
        raise AssertionError("there is always one that was not tried")

    def all(self) -> Replicas:
        """Return all of them, in the order in which they are asked."""
        with self._changing:
            return Replicas(self._order)

    def failed(self, address: Address) -> bool:
        """Ask the others first from now on; return whether there are others."""
        with self._changing:
            if address in self._order:
                self._order.remove(address)
                self._order.append(address)
            return len(self._order) > 1

    def _ask_again(self) -> None:
        if self._again is None:
            return
        try:
            found = self._again()
        except BaseException as error:  # of the user's resolver; nobody but the one who waits could take it
            self.complaint = f" The resolver was asked again: {type(error).__name__}: {text_of(error)}"
            return
        self.complaint = ""
        with self._changing:
            new = sorted((each for each in found if each not in self._order), key=_rank)
            self._order = [*new, *(each for each in self._order if each in found)]


def _rank(address: Address) -> bytes:
    return hashlib.blake2b(f"{_client()} {address}".encode(), digest_size=8).digest()


def _client() -> str:
    return f"{socket.gethostname()} {os.getpid()}"
