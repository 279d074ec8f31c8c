"""Producers: the chains for which a server makes minibatches, and the claims of clients on them.

A producer is a chain for which this server makes minibatches. Its id, here called its number, is a hash of the chain's
description and of the server's data. So creating a producer twice makes one producer, and the id is the same after a
restart and on all servers with the same data. A claim is a record that a client uses a producer; a client that creates
a producer gets a claim. A claim ends if the client does not use it for a while. A producer without claims ends.

Many clients ask for single minibatches of any epoch, in their own order. So the dispatcher of an epoch
(chain/dispatcher.py), which decides what to request next, runs in each client.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from datapipes.base.codec import digest_message
from datapipes.base.log import logger
from datapipes.base.outcome import as_error
from datapipes.base.threads import threads_of_kernels
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.distributed.chain_description import ChainBuilder
from datapipes.distributed.requests.chains import (
    ClaimRequest,
    Created,
    CreateRequest,
    Listed,
    ListRequest,
    Made,
    MinibatchRequest,
    made_to_message,
    request_from_message,
    told_to_message,
)
from datapipes.distributed.server.admission import HOSTS_SHARE, KEPT_SHARE, Admission, Hold, host_of
from datapipes.distributed.server.limits import ServerLimits, or_cores, sizes_of
from datapipes.distributed.server.makers import (
    InProcesses,
    InThreads,
    KeptAnswers,
    bytes_of,
    refuse_many_seeds,
)
from datapipes.distributed.server.offers import Offers
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import answer_header
from datapipes.distributed.wire.refusals import BadRequest, Unavailable, UnknownProducer
from datapipes.features.feature_fetcher import FeatureFetcher

RATE_S = 1.0  # the shortest time over which a rate is measured
NUM_PRODUCERS, NUM_PRODUCERS_EACH = 64, 16  # of a server (a host has at most half), and of a client
TENSOR_BYTES = 2**30  # of the tensors of descriptions that all chains hold; a client has at most a quarter
CLIENTS_SHARE = 4  # a client has at most 1/CLIENTS_SHARE of the bytes of tensors, and of the worker processes


class Producer:
    """A chain for which the server makes minibatches, and which clients use it. A Producer is made, and counts for the
    limits, when it is requested. `maker`, `admission` and `num_batches` are set later, when its chain has been built.

    Attributes:
        host: host of the client that has created the producer.
        claims: {client: (worker_key, time of its last request)}, an entry for each client that uses the producer.
        held_bytes: bytes of tensors from the description that the chain keeps in memory, in all its processes together.
        largest: bytes of the largest minibatch so far.
        rate: minibatches made per second, as `look` last measured it.
    """

    maker: InThreads | InProcesses
    admission: Admission
    num_batches: int

    def __init__(self, number: int, host: str, num_workers: int, claims: dict[str, tuple[str | None, float]]) -> None:
        self.number, self.host, self.num_workers, self.claims = number, host, num_workers, claims
        self.held_bytes = self.num_making = self.num_made = self.largest = 0
        self.rate, self._seen = 0.0, (time.monotonic(), 0)

    def created_for(self, client: str) -> Created:
        """Return what a client that uses this producer needs: the producer's id, the client's worker key, how many
        worker processes there are, and how many minibatches an epoch has.
        """
        return Created(self.number, self.claims[client][0], self.num_workers, self.num_batches)

    def look(self) -> None:
        """Compute `rate` anew, unless this was done less than RATE_S seconds ago."""
        now, (before, made) = time.monotonic(), self._seen
        if now - before >= RATE_S:
            self.rate, self._seen = (self.num_made - made) / (now - before), (now, self.num_made)


def refuse_many(where: str, max_workers: int, others: Collection[Producer], added: Producer, *, is_new: bool) -> None:
    """Raise BadRequest if a limit would be exceeded when the one client in `added.claims` uses the producer `added`.
    There are limits for a client, for a host, and for all clients together.

    Args:
        others: the producers that exist.
        is_new: True: `added` would be created. False: it exists, and the client would be one more that uses it.
    """
    (client,) = added.claims
    claimed = [producer for producer in others if client in producer.claims]
    most = [("producers of one client", len(claimed) + 1, NUM_PRODUCERS_EACH)]
    if is_new:
        of_host = sum(producer.host == added.host for producer in others)
        own_bytes, all_bytes = (sum(producer.held_bytes for producer in some) for some in (claimed, others))
        own_workers, all_workers = (sum(producer.num_workers for producer in some) for some in (claimed, others))
        workers = 2 * max_workers  # of one client; all clients may have CLIENTS_SHARE times as many
        most += [
            ("producers of one host", of_host + 1, NUM_PRODUCERS // HOSTS_SHARE),
            ("producers", len(others) + 1, NUM_PRODUCERS),
            ("bytes of tensors of one client", own_bytes + added.held_bytes, TENSOR_BYTES // CLIENTS_SHARE),
            ("bytes of tensors", all_bytes + added.held_bytes, TENSOR_BYTES),
            ("workers of one client", own_workers + added.num_workers, workers),
            ("workers", all_workers + added.num_workers, CLIENTS_SHARE * workers),
        ]
    for things, number, allowed in most:
        if number > allowed:
            raise BadRequest(
                f"{where}: with this chain there would be {number} {things}; at most {allowed} are allowed. Destroy "
                "producers, or give item sets a name on the server."
            )


LOOK_S = 5.0
MAKING_S = 120.0  # within which a minibatch must be made
IDLE_S = 600.0  # after which an unused claim ends
ANSWERS_SHARE = 8  # answers for retries have at most 1/ANSWERS_SHARE of the bytes in flight
FIRST_BYTES = 2**24  # assumed of the first minibatch
MOST_CLAIMS = 4096  # on a producer
ASIDE_S = 60.0  # a producer that was ended for want of memory cannot be created again for this time
LEAST_ENDED = 2**20  # bytes of tensors; ending a producer with fewer frees nothing


class Producers:
    """The producers of a server: creates them, asks them for minibatches, and ends them.

    Requests for minibatches have their own Admission, the bound on requests worked on at once; requests for hops and
    rows have another. So two servers whose producers ask each other for hops and rows never wait for each other.
    """

    def __init__(self, where: str, offers: Offers, limits: ServerLimits) -> None:
        self._where, self._offers = where, offers
        self._num_threads, self._max_workers = limits.num_threads, or_cores(limits.max_workers)
        _, self._most_bytes, max_bytes = sizes_of(limits)
        self._first_bytes = min(FIRST_BYTES, max_bytes // KEPT_SHARE)
        self._admitted = {
            "concurrency": or_cores(limits.concurrency),
            "max_waiting": limits.max_waiting,
            "max_bytes": max_bytes,
        }
        self._admission = Admission(where, **self._admitted, spare=1)
        self._changing = threading.Lock()
        self._is_closed = False
        self._opening = threading.Lock()  # held while graph and features are opened
        self._producers: dict[int, Producer] = {}
        self._building: list[Producer] = []
        self._aside: dict[int, float] = {}  # {number: time until which it cannot be created again}
        self._keys: dict[str, int] = {}  # {worker_key: producer}, while a claim uses the key
        self._kept = KeptAnswers(max_bytes // ANSWERS_SHARE)

    # --- requests

    def create(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, Hold]:
        """Answer a CreateRequest: create the producer if it does not exist, and record that the client uses it. Return
        (answer, Hold: the reservation of bytes that the caller must release).

        Raises:
            BadRequest: The message is no CreateRequest, or a limit would be exceeded.
            ValueError, TypeError, LookupError: The chain cannot be built here.
        """
        request: CreateRequest = request_from_message(self._where, message, CreateRequest)
        number = _number_of(request.chain, message.tensors, self._offers.content_id)

        def work() -> Message:
            claims = {request.client: (request.worker_key, time.monotonic())}
            asked_for = Producer(number, host_of(peer), min(request.num_workers, self._max_workers), claims)
            with self._changing:
                self._refuse_other_key(request, number)
                existing = self._producers.get(number)
                self._refuse_many(existing, asked_for)
                if existing is None:
                    self._refuse_aside(number)
                    self._building.append(asked_for)
            unused = None
            try:
                if existing is None:
                    self._build(asked_for, request, message)
                    unused = asked_for
                with self._changing:  # others may have come and gone meanwhile
                    producer = self._producers.get(number) or unused
                    if producer is None:
                        raise Unavailable(f"{self._where}: the producer {number} has just ended. Create it again.")
                    self._refuse_other_key(request, number)
                    self._refuse_many(None if producer is unused else producer, asked_for)
                    self._claim(producer, request)
                    self._producers[number] = producer
                    created = producer.created_for(request.client)
                    unused = None if producer is unused else unused
            finally:
                with self._changing:
                    self._building = [other for other in self._building if other is not asked_for]
                if unused is not None:
                    self._end([unused])
            return told_to_message(request.kind, created)

        return self._admission.run(peer, 0, work, is_cancelled, request.client)

    def minibatch(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, Hold]:
        """Answer a MinibatchRequest: make the minibatch, or take a kept answer. Return (answer, Hold: the reservation
        of its bytes, which the caller must release).

        Raises:
            UnknownProducer: The client has not created the producer since the server was started, or its claim has
                ended.
            BadRequest: An epoch has no minibatch with this index.
        """
        request: MinibatchRequest = request_from_message(self._where, message, MinibatchRequest)
        with self._changing:
            producer = self._claimed(request.client, request.producer)
        if request.index >= producer.num_batches:
            raise BadRequest(
                f"{self._where}: producer {producer.number} has {producer.num_batches} minibatches in an epoch, asked "
                f"was for {request.index}. Count them from 0."
            )

        def expected() -> int:
            if producer.largest or not producer.num_making:
                return min(producer.largest * 5 // 4 or self._first_bytes, self._most_bytes)
            return self._most_bytes  # before the first minibatch nothing better is known

        def work() -> Message:
            # The turn begins only here: a request that still waits for room, since its client does not read, must not
            # hold up other requests for the same answer.
            with self._kept.turn((request.producer, request.epoch, request.index), is_cancelled) as kept:
                return self._answer(producer, request) if kept is None else kept

        return producer.admission.run(peer, expected, work, is_cancelled, request.client)

    def destroy(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, None]:
        """Answer a ClaimRequest: the client no longer uses the producer. If no client uses it any more, end the
        producer. Return (answer, None).
        """
        request: ClaimRequest = request_from_message(self._where, message, ClaimRequest)
        with self._changing:
            ended = self._give_up(request.client, request.producer)
        self._end(ended)
        return Message(answer_header(request.kind), {}), None

    def listed(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, None]:
        """Answer a ListRequest with the producers that the client uses. Return (answer, None)."""
        request: ListRequest = request_from_message(self._where, message, ListRequest)
        with self._changing:
            claimed = [producer for producer in self._producers.values() if request.client in producer.claims]
            listed = Listed(tuple(producer.created_for(request.client) for producer in claimed))
        return told_to_message(request.kind, listed), None

    # --- looks and the end

    def look(self) -> float:
        """End the claims that were not used for IDLE_S seconds, and producers without claims. Return the seconds until
        the next call. A Guard calls this.
        """
        latest, ended = time.monotonic() - IDLE_S, []
        with self._changing:
            for producer in [*self._producers.values()]:
                producer.look()
                for client in [client for client, (_, used) in producer.claims.items() if used < latest]:
                    ended += self._give_up(client, producer.number)
        self._end(ended)
        return min(LOOK_S, IDLE_S / 4)

    def end_largest(self, num_bytes: int) -> int:
        """End the producers whose chains keep most memory, until `num_bytes` are free. Return how many were ended.

        Producers that keep little memory stay, since ending them frees nothing. The ended producers cannot be created
        again for ASIDE_S seconds.
        """
        self._kept.forget()
        ended: list[Producer] = []
        with self._changing:
            for producer in sorted(self._producers.values(), key=lambda producer: producer.held_bytes, reverse=True):
                if producer.held_bytes < LEAST_ENDED or sum(one.held_bytes for one in ended) >= num_bytes:
                    break
                self._aside[producer.number] = time.monotonic() + ASIDE_S
                for client in [*producer.claims]:
                    ended += self._give_up(client, producer.number)
        self._end(ended)
        return len(ended)

    def numbers(self) -> list[dict[str, Any]]:
        """Return the statistics of each producer, a dict {name: JSON value} for each."""
        with self._changing:
            return [
                {
                    "producer": producer.number,
                    "clients": len(producer.claims),
                    "num_workers": producer.num_workers,
                    "held_bytes": producer.held_bytes,
                    "waiting": producer.admission.num_waiting,
                    "working": producer.admission.num_working,
                    "num_made": producer.num_made,
                    "made_per_s": producer.rate,
                    "largest_bytes": producer.largest if producer.num_made else 0,
                }
                for producer in self._producers.values()
            ]

    def close(self, grace_s: float) -> bool:
        """Refuse new requests, wait up to `grace_s` seconds for earlier requests, then end the producers. Return True
        if all requests ended in time.
        """
        ends, has_ended = time.monotonic() + grace_s, True
        with self._changing:
            self._is_closed = True
            producers = [*self._producers.values()]
        for admission in {self._admission, *(producer.admission for producer in producers)}:
            has_ended = admission.close(max(ends - time.monotonic(), 0.0)) and has_ended
        with self._changing:
            self._producers, self._keys = {}, {}
        self._kept.forget()
        for producer in producers:
            producer.maker.close()
        return has_ended

    # --- producers and claims; the caller holds `_changing`

    def _refuse_other_key(self, request: CreateRequest, number: int) -> None:
        existing = None if request.worker_key is None else self._keys.get(request.worker_key)
        if existing is not None and existing != number:
            raise ValueError(
                f"{self._where}: the worker_key {request.worker_key!r} is that of producer {existing}, which has "
                "another chain. Destroy that one first, or use another key."
            )

    def _refuse_many(self, existing: Producer | None, asked_for: Producer) -> None:
        """Raise BadRequest if the producer `asked_for` would exceed a limit, see refuse_many. `existing` is the same
        producer if it exists, else None. Raise Unavailable if the server stops.
        """
        if self._is_closed:
            raise Unavailable(f"{self._where}: the server stops. Ask the next one.")
        if existing is None or not asked_for.claims.keys() <= existing.claims.keys():
            others = [*self._producers.values(), *(other for other in self._building if other is not asked_for)]
            refuse_many(self._where, self._max_workers, others, asked_for, is_new=existing is None)

    def _refuse_aside(self, number: int) -> None:
        """Raise Unavailable if the producer with the id `number` was ended to free memory less than ASIDE_S seconds
        ago.
        """
        now = time.monotonic()
        self._aside = {ended: until for ended, until in self._aside.items() if until > now}
        if number in self._aside:
            raise Unavailable(
                f"{self._where}: producer {number} was ended since the server's memory exceeded its bound, max_memory. "
                "Give item sets a name on the server, or start it with a larger max_memory."
            )

    def _claim(self, producer: Producer, request: CreateRequest) -> None:
        if len(producer.claims) >= MOST_CLAIMS and request.client not in producer.claims:
            raise BadRequest(f"{self._where}: producer {producer.number} has {MOST_CLAIMS} clients, the most allowed.")
        before = producer.claims.get(request.client, (None, 0.0))[0]
        producer.claims[request.client] = (request.worker_key, time.monotonic())
        self._forget_key(before)
        if request.worker_key is not None:
            self._keys[request.worker_key] = producer.number

    def _claimed(self, client: str, number: int) -> Producer:
        producer = self._producers.get(number)
        if producer is None or client not in producer.claims:
            raise UnknownProducer(f"{self._where}: producer {number} is not one of this client's. Create it again.")
        producer.claims[client] = (producer.claims[client][0], time.monotonic())
        return producer

    def _give_up(self, client: str, number: int) -> list[Producer]:
        """Record that a client no longer uses the producer with the id `number`. If now no client uses it, remove it
        and return [producer], which the caller must end. Otherwise return [].
        """
        producer = self._producers.get(number)
        if producer is None or client not in producer.claims:
            return []
        self._forget_key(producer.claims.pop(client)[0])
        if producer.claims:
            return []
        del self._producers[number]
        self._kept.forget(number)
        return [producer]

    def _forget_key(self, key: str | None) -> None:
        if key is not None and not any(
            key == other for made in self._producers.values() for other, _ in made.claims.values()
        ):
            self._keys.pop(key, None)

    # --- outside of `_changing`

    def _build(self, producer: Producer, request: CreateRequest, message: Message) -> None:
        offers = self._offers

        def admit(held_bytes: int) -> None:
            with self._changing:  # worker processes share one more copy of the tensors
                producer.held_bytes = held_bytes * (1 + (producer.num_workers > 0))
                self._refuse_many(None, producer)

        with self._opening:
            graph, features = offers.graph, offers.features
        with threads_of_kernels(self._num_threads):
            builder = ChainBuilder(graph, offers.items, features, offers.stages, admit)
            chain = builder.build(Message(dict(request.chain), message.tensors))
        stages: StageGraph[Stage] = StageGraph(chain)
        for fetcher in stages.find(FeatureFetcher):
            hidden = [key for key in fetcher.feature_keys if offers.keys is not None and key[2] not in offers.keys]
            if hidden:
                raise ValueError(
                    f"{self._where}: the feature {hidden[0][2]!r} is not offered; there are "
                    f"{sorted(offers.keys or ())}."
                )
        refuse_many_seeds(self._where, stages, self._most_bytes)
        if producer.num_workers == 0:
            producer.maker, producer.admission = InThreads(chain, self._most_bytes), self._admission
        else:
            producer.maker = processes = InProcesses(chain, producer.num_workers, self._most_bytes)
            producer.admission = Admission(self._where, **{**self._admitted, "concurrency": processes.at_once})
        producer.num_batches = stages.seed_stage.num_batches
        text = " ".join(str(chain).split())
        logger.info("%s: producer %d: %s, %d workers", self._where, producer.number, text, producer.num_workers)

    def _end(self, producers: list[Producer]) -> None:
        for producer in producers:
            logger.info("%s: producer %d has ended", self._where, producer.number)
            if producer.admission is not self._admission:
                producer.admission.close(0.0)
            producer.maker.close()

    def _answer(self, producer: Producer, request: MinibatchRequest) -> Message:
        made = self._made_minibatch(producer, request)
        answer = made_to_message(request, made)
        if made.error is None:  # after an error the next try may succeed, for example with more memory
            self._kept.keep((request.producer, request.epoch, request.index), answer)
        del made  # the traceback of its error holds this frame
        return answer

    def _made_minibatch(self, producer: Producer, request: MinibatchRequest) -> Made:
        producer.num_making += 1
        try:
            with threads_of_kernels(self._num_threads):
                minibatch = producer.maker.make(request.epoch, request.index, MAKING_S)
        except UnknownProducer:
            raise
        except BaseException as error:
            return Made(None, as_error(error))
        finally:
            producer.num_making -= 1
        producer.num_made += 1
        if minibatch is not None:
            producer.largest = max(producer.largest, bytes_of(minibatch))
        return Made(minibatch)


def _number_of(chain: Mapping[str, Any], tensors: Mapping[str, Tensor], content_id: str) -> int:
    text = json.dumps([chain, digest_message(tensors), content_id], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
