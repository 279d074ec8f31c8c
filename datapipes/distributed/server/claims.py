"""Who has claims on which producer, what each producer holds, and the limits of what clients may make a server do."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from datapipes.distributed.server.admission import HOSTS_SHARE, Admission
from datapipes.distributed.server.producer import Maker
from datapipes.distributed.wire.chain_codec import Created
from datapipes.distributed.wire.refusals import BadRequest

RATE_S = 1.0  # a rate is that of this time or longer
CLIENTS_SHARE = 4  # a client has at most one in so many of the bytes of tensors, and of the worker processes


@dataclass(frozen=True)
class ChainLimits:
    """What clients may make a server do.

    Attributes:
        num_producers, num_producers_each: in all, of which a host has at most half, and of a client.
        tensor_bytes: that all chains hold of the tensors of their descriptions; a client has at most a quarter.
        num_workers: processes of a producer; who wishes for more gets so many. A client has twice as many, and all
            clients eight times.
        making_s: seconds of one minibatch.
        idle_s: seconds after which a claim ends that nobody has used.
    """

    num_workers: int
    num_producers: int = 64
    num_producers_each: int = 16
    tensor_bytes: int = 2**30
    making_s: float = 120.0
    idle_s: float = 600.0


@dataclass
class Building:
    """A producer that is being built for a client; it counts already.

    Attributes:
        claims: by client.
        host: of who creates it.
        held_bytes: that its chain holds of tensors that came with its description, in all processes.
    """

    claims: dict[str, Any]
    host: str
    num_workers: int
    held_bytes: int = 0


class Producer:
    """A chain, and who has a claim on it: {client: (worker_key, when it was last used)}."""

    def __init__(self, number: int, maker: Maker, admission: Admission, num_workers: int, num_batches: int) -> None:
        self.number, self.maker, self.admission, self.num_workers = number, maker, admission, num_workers
        self.num_batches, self.held_bytes, self.host = num_batches, 0, ""  # of who has created it
        self.num_making = self.num_made = self.largest = 0  # minibatches, and the bytes of the largest
        self.rate, self._seen = 0.0, (time.monotonic(), 0)  # minibatches a second, between the last two looks
        self.claims: dict[str, tuple[str | None, float]] = {}

    def created_for(self, client: str) -> Created:
        """Return what a client with a claim is told."""
        return Created(self.number, self.claims[client][0], self.num_workers, self.num_batches)

    def look(self) -> None:
        """Count how many minibatches were made in a second since the last look."""
        now, (before, made) = time.monotonic(), self._seen
        if now - before >= RATE_S:
            self.rate, self._seen = (self.num_made - made) / (now - before), (now, self.num_made)


def refuse_many(
    where: str, limits: ChainLimits, others: Collection[Producer | Building], added: Building, *, is_new: bool
) -> None:
    """Raise BadRequest if a producer would be too much beside the others, or, unless it is new, the claim on it."""
    (client,) = added.claims
    own = [each for each in others if client in each.claims]
    most = [("producers of one client", len(own) + 1, limits.num_producers_each)]
    if is_new:
        of_host = sum(each.host == added.host for each in others)
        own_bytes, all_bytes = (sum(each.held_bytes for each in some) for some in (own, others))
        own_workers, all_workers = (sum(each.num_workers for each in some) for some in (own, others))
        workers = 2 * limits.num_workers
        most += [
            ("producers of one host", of_host + 1, limits.num_producers // HOSTS_SHARE),
            ("producers", len(others) + 1, limits.num_producers),
            ("bytes of tensors of one client", own_bytes + added.held_bytes, limits.tensor_bytes // CLIENTS_SHARE),
            ("bytes of tensors", all_bytes + added.held_bytes, limits.tensor_bytes),
            ("workers of one client", own_workers + added.num_workers, workers),
            ("workers", all_workers + added.num_workers, CLIENTS_SHARE * workers),
        ]
    for what, found, allowed in most:
        if found > allowed:
            raise BadRequest(
                f"{where}: these would be {found} {what}; at most {allowed} are allowed. Destroy some, or give item "
                "sets a name here."
            )
