"""Producers: the chains of a server, who has a claim on each, and the minibatches that are made of them.

A producer's number is a hash of the chain's description and of the server's data. So making one twice is making it
once, and after a restart, or on another server of the same data, it has the same number. A client has a claim on what
it asked for; a producer without claims ends, and a claim that nobody uses ends after a while.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from datapipes.base.codec import digest_message
from datapipes.base.log import logger
from datapipes.base.outcome import as_error
from datapipes.base.threads import threads_of_kernels
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.distributed.chain_description import build_chain
from datapipes.distributed.server.admission import HOSTS_SHARE, KEPT_SHARE, Admission, Hold, host_of
from datapipes.distributed.server.producer import (
    InProcesses,
    InThreads,
    KeptAnswers,
    Maker,
    bytes_of,
    refuse_many_seeds,
)
from datapipes.distributed.server.served import Offers
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.chain_codec import (
    ClaimRequest,
    Created,
    CreateRequest,
    ListRequest,
    Made,
    MinibatchRequest,
    created_to_message,
    listed_to_message,
    made_to_message,
    request_from_message,
)
from datapipes.distributed.wire.envelope import answer_header
from datapipes.distributed.wire.refusals import BadRequest, Unavailable, UnknownProducer
from datapipes.features.feature_fetcher import FeatureFetcher

LOOK_S = 5.0
RATE_S = 1.0  # a rate is that of this time or longer
ANSWERS_SHARE = 8  # answers for retries are at most one in so many of the bytes in flight
FIRST_BYTES = 2**24  # of the first minibatch, before any is known
MOST_CLAIMS = 4096  # on a producer
CLIENTS_SHARE = 4  # a client has at most one in so many of the bytes of tensors, and of the worker processes


@dataclass(frozen=True)
class ChainLimits:
    """What clients may make a server do.

    Attributes:
        num_producers, num_producers_each: in all, of which a host has at most half, and of a client.
        tensor_bytes: of the tensors of all descriptions; a client has at most a quarter.
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


class _Producer:
    """A chain, and who has a claim on it: {client: (worker_key, when it was last used)}."""

    def __init__(self, number: int, maker: Maker, admission: Admission, num_workers: int, num_batches: int) -> None:
        self.number, self.maker, self.admission, self.num_workers = number, maker, admission, num_workers
        self.num_batches, self.tensor_bytes, self.host = num_batches, 0, ""  # of who has created it
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


class Producers:
    """The producers of a server.

    Args:
        most_bytes: of a minibatch.
        concurrency, max_waiting, max_bytes: of the admission of requests for minibatches, which is apart from that of
            hops and rows: two servers whose producers ask each other for these cannot wait for each other.
    """

    def __init__(
        self,
        where: str,
        offers: Offers,
        limits: ChainLimits,
        *,
        concurrency: int,
        num_threads: int,
        max_waiting: int,
        max_bytes: int,
        most_bytes: int,
    ) -> None:
        self._where, self._offers, self.limits = where, offers, limits
        self._num_threads, self._most_bytes = num_threads, most_bytes
        self._first_bytes = min(FIRST_BYTES, max_bytes // KEPT_SHARE)
        self._admitted = {"concurrency": concurrency, "max_waiting": max_waiting, "max_bytes": max_bytes}
        self._admission = Admission(where, **self._admitted, spare=1)
        self._changing = threading.Lock()
        self._is_closed = False
        self._opening = threading.Lock()  # held while graph and features are opened
        self._producers: dict[int, _Producer] = {}
        self._keys: dict[str, int] = {}  # {worker_key: producer}, while one has a claim under it
        self._kept = KeptAnswers(max_bytes // ANSWERS_SHARE)

    # --- requests

    def create(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, Hold]:
        """Answer a CreateRequest.

        Raises:
            BadRequest: It is none, or asks for more than a client may have.
            ValueError, TypeError, LookupError: The chain cannot be built here.
        """
        request: CreateRequest = request_from_message(self._where, message, CreateRequest)
        number = _number_of(request.chain, message.tensors, self._offers.content_id)

        def work() -> Message:
            with self._changing:
                self._refuse_other_key(request, number)
                known = self._producers.get(number)
                self._refuse_many(known, request, message.num_bytes, host_of(peer))
            made = None if known is not None else self._made(number, request, message, host_of(peer))
            try:
                with self._changing:  # others may have come and gone meanwhile
                    producer = self._producers.get(number) or made
                    if producer is None:
                        raise Unavailable(f"{self._where}: the producer {number} has just ended. Create it again.")
                    self._refuse_other_key(request, number)
                    self._refuse_many(None if producer is made else producer, request, message.num_bytes, host_of(peer))
                    self._claim(producer, request)
                    self._producers[number] = producer
                    created = producer.created_for(request.client)
                    made = None if producer is made else made
            finally:
                if made is not None:
                    self._end([made])
            return created_to_message(created)

        return self._admission.run(peer, 0, work, is_cancelled, request.client)

    def minibatch(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, Hold]:
        """Answer a MinibatchRequest.

        Raises:
            UnknownProducer: The client has no claim on it; the server may have been started again.
            BadRequest: There is no such minibatch.
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
            return self._most_bytes  # the first one will tell

        def work() -> Message:
            # Only here: who waits for room for an answer, since its client reads none, would hold up all that want it.
            with self._kept.turn((request.producer, request.epoch, request.index), is_cancelled) as kept:
                return self._answer(producer, request) if kept is None else kept

        return producer.admission.run(peer, expected, work, is_cancelled, request.client)

    def destroy(self, message: Message) -> Message:
        """Answer a ClaimRequest; the producer ends if it was the last claim. Without a claim it does nothing."""
        request: ClaimRequest = request_from_message(self._where, message, ClaimRequest)
        with self._changing:
            ended = self._give_up(request.client, request.producer)
        self._end(ended)
        return Message(answer_header("destroy_producer"), {})

    def listed(self, message: Message) -> Message:
        """Answer a ListRequest."""
        request: ListRequest = request_from_message(self._where, message, ListRequest)
        with self._changing:
            claimed = [each for each in self._producers.values() if request.client in each.claims]
            own = [each.created_for(request.client) for each in claimed]
        return listed_to_message(own)

    # --- looks and the end

    def look(self) -> float:
        """End the claims that nobody has used for a while; return the seconds until the next look."""
        latest, ended = time.monotonic() - self.limits.idle_s, []
        with self._changing:
            for producer in [*self._producers.values()]:
                producer.look()
                for client in [client for client, (_, used) in producer.claims.items() if used < latest]:
                    ended += self._give_up(client, producer.number)
        self._end(ended)
        return min(LOOK_S, self.limits.idle_s / 4)

    def numbers(self) -> list[dict[str, Any]]:
        """Return what there is, as JSON values."""
        with self._changing:
            return [
                {
                    "producer": each.number,
                    "clients": len(each.claims),
                    "num_workers": each.num_workers,
                    "waiting": each.admission.num_waiting,
                    "working": each.admission.num_working,
                    "num_made": each.num_made,
                    "made_per_s": each.rate,
                    "largest_bytes": each.largest if each.num_made else 0,
                }
                for each in self._producers.values()
            ]

    def close(self, grace_s: float) -> bool:
        """Refuse new requests, wait up to `grace_s` for those under way; return whether all ended."""
        ends, has_ended = time.monotonic() + grace_s, True
        with self._changing:
            self._is_closed = True
            producers = [*self._producers.values()]
        for admission in {self._admission, *(each.admission for each in producers)}:
            has_ended = admission.close(max(ends - time.monotonic(), 0.0)) and has_ended
        with self._changing:
            self._producers, self._keys = {}, {}
        self._kept.forget()
        for each in producers:
            each.maker.close()
        return has_ended

    # --- producers and claims; `_changing` is held

    def _refuse_other_key(self, request: CreateRequest, number: int) -> None:
        known = None if request.worker_key is None else self._keys.get(request.worker_key)
        if known is not None and known != number:
            raise ValueError(
                f"{self._where}: the worker_key {request.worker_key!r} is that of producer {known}, which has another "
                "chain. Destroy that one first, or use another key."
            )

    def _refuse_many(self, known: _Producer | None, request: CreateRequest, tensor_bytes: int, host: str) -> None:
        """Refuse a claim beyond the limits, and a producer if it is not known."""
        if self._is_closed:
            raise Unavailable(f"{self._where}: the server stops. Ask the next one.")
        if known is not None and request.client in known.claims:
            return
        limits, all_ = self.limits, self._producers.values()
        own = [each for each in all_ if request.client in each.claims]
        num_workers = min(request.num_workers, limits.num_workers)
        own_bytes, own_workers = sum(each.tensor_bytes for each in own), sum(each.num_workers for each in own)
        most = [("producers of one client", len(own) + 1, limits.num_producers_each)]
        if known is None:
            of_host = sum(each.host == host for each in all_)
            all_bytes, all_workers = sum(each.tensor_bytes for each in all_), sum(each.num_workers for each in all_)
            workers = 2 * limits.num_workers
            most += [
                ("producers of one host", of_host + 1, limits.num_producers // HOSTS_SHARE),
                ("producers", len(all_) + 1, limits.num_producers),
                ("bytes of tensors of one client", own_bytes + tensor_bytes, limits.tensor_bytes // CLIENTS_SHARE),
                ("bytes of tensors", all_bytes + tensor_bytes, limits.tensor_bytes),
                ("workers of one client", own_workers + num_workers, workers),
                ("workers", all_workers + num_workers, CLIENTS_SHARE * workers),
            ]
        for what, found, allowed in most:
            if found > allowed:
                raise BadRequest(
                    f"{self._where}: these would be {found} {what}; at most {allowed} are allowed. Destroy some, or "
                    "give item sets a name here."
                )

    def _claim(self, producer: _Producer, request: CreateRequest) -> None:
        if len(producer.claims) >= MOST_CLAIMS and request.client not in producer.claims:
            raise BadRequest(
                f"{self._where}: producer {producer.number} has {MOST_CLAIMS} clients, and no more may be."
            )
        before = producer.claims.get(request.client, (None, 0.0))[0]
        producer.claims[request.client] = (request.worker_key, time.monotonic())
        self._forget_key(before)
        if request.worker_key is not None:
            self._keys[request.worker_key] = producer.number

    def _claimed(self, client: str, number: int) -> _Producer:
        producer = self._producers.get(number)
        if producer is None or client not in producer.claims:
            raise UnknownProducer(f"{self._where}: producer {number} is not one of this client's. Create it again.")
        producer.claims[client] = (producer.claims[client][0], time.monotonic())
        return producer

    def _give_up(self, client: str, number: int) -> list[_Producer]:
        """End a claim; return the producers that are to be ended, none or one."""
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
            key == each for made in self._producers.values() for each, _ in made.claims.values()
        ):
            self._keys.pop(key, None)

    # --- outside of `_changing`

    def _made(self, number: int, request: CreateRequest, message: Message, host: str) -> _Producer:
        offers = self._offers
        with self._opening:
            graph, features = offers.graph(), None if offers.features is None else offers.features()
        with threads_of_kernels(self._num_threads):
            chain = build_chain(
                Message(dict(request.chain), message.tensors),
                graph=graph,
                items=offers.items,
                features=features,
                stages=offers.stages,
            )
        stages: StageGraph[Stage] = StageGraph(chain)
        for fetcher in stages.find(FeatureFetcher):
            hidden = [key for key in fetcher.feature_keys if offers.keys is not None and key[2] not in offers.keys]
            if hidden:
                raise ValueError(
                    f"{self._where}: the feature {hidden[0][2]!r} is not offered; there are "
                    f"{sorted(offers.keys or ())}."
                )
        refuse_many_seeds(self._where, stages, self._most_bytes)
        num_workers = min(request.num_workers, self.limits.num_workers)
        maker: Maker
        if num_workers == 0:
            maker, admission = InThreads(chain, self._most_bytes), self._admission
        else:
            maker = processes = InProcesses(chain, num_workers, self._most_bytes)
            admission = Admission(self._where, **{**self._admitted, "concurrency": processes.at_once})
        producer = _Producer(number, maker, admission, num_workers, stages.seed_stage.num_batches)
        producer.tensor_bytes, producer.host = message.num_bytes, host
        logger.info("%s: producer %d: %s, %d workers", self._where, number, " ".join(str(chain).split()), num_workers)
        return producer

    def _end(self, producers: list[_Producer]) -> None:
        for each in producers:
            logger.info("%s: producer %d has ended", self._where, each.number)
            if each.admission is not self._admission:
                each.admission.close(0.0)
            each.maker.close()

    def _answer(self, producer: _Producer, request: MinibatchRequest) -> Message:
        made = self._made_minibatch(producer, request)
        answer = made_to_message(request, made)
        if made.error is None:  # else the next try may find more memory
            self._kept.keep((request.producer, request.epoch, request.index), answer)
        del made  # the traceback of its error holds this frame
        return answer

    def _made_minibatch(self, producer: _Producer, request: MinibatchRequest) -> Made:
        producer.num_making += 1
        try:
            with threads_of_kernels(self._num_threads):
                minibatch = producer.maker.make(request.epoch, request.index, self.limits.making_s)
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
