"""RemoteReceivingChannel: the minibatches of producers on servers, as a channel."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NoReturn

from datapipes.base.checks import check_bool, check_int
from datapipes.base.codec import Message
from datapipes.base.errors import ChannelClosed, EndOfEpoch, QueueTimeoutError, ServerUnavailable
from datapipes.base.log import logger
from datapipes.base.rng import check_epoch
from datapipes.channel import ChannelBase
from datapipes.channel.base import check_timeout
from datapipes.distributed.partition_client import PartitionClient, default_client
from datapipes.minibatch import MiniBatch

__all__ = ["RemoteReceivingChannel"]

_NAME = "RemoteReceivingChannel"
SILENT_S = 60.0  # that a server is left out which gave no answer, where there are others


class RemoteReceivingChannel(ChannelBase):
    """Receives the minibatches of a producer, epoch after epoch, from one or several servers that have it.

    A minibatch is asked for by epoch and index, so none is lost or doubled whatever happens on the way: a request may
    be made again, and by another server. Of `world_size` clients, each gets the indices rank, rank + world_size, ...;
    they are not padded, so one may have a minibatch more than another.

    The first `recv` begins an epoch; its end, as EndOfEpoch, is followed by the next one.

    Args:
        server_rank: the server, or a list of servers: they take turns, and one that gives no answer is left out for a
            minute. On those where this client has not created the producer it is created; one that gives no answer is
            waited for until the deadline.
        producer_id: what `create_producer` returned; for several servers also a list of these, all the same number.
        num_expected: messages after which an epoch ends for this client, if it has not ended before.
        prefetch_size: minibatches that are asked for ahead, of each server; with `in_order` as many are held at most.
        client: a PartitionClient that has created the producer; by default the one that `connect` made last.
        in_order: whether messages come by index; else as they arrive.
        rank, world_size: the number of this client, and how many there are.
    Raises:
        TypeError, ValueError: An argument is not allowed; servers have different producers, so other data.
        UnknownProducer: The client has no claim on the producer.
    """

    def __init__(
        self,
        server_rank: int | Sequence[int],
        producer_id: int | Sequence[int],
        num_expected: int | None = None,
        prefetch_size: int = 4,
        *,
        client: PartitionClient | None = None,
        in_order: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._arguments = (server_rank, producer_id, num_expected, prefetch_size)
        self.client = default_client(_NAME) if client is None else client
        if not isinstance(self.client, PartitionClient):
            raise TypeError(f"{_NAME}: client must be a PartitionClient, got {type(client).__name__}. Use connect().")
        self.server_ranks, self.producer_id = _servers(self.client, server_rank, producer_id)
        self.num_expected = None if num_expected is None else check_int(_NAME, "num_expected", num_expected, 0)
        self.prefetch_size = check_int(_NAME, "prefetch_size", prefetch_size, 1)
        self.in_order = check_bool(_NAME, "in_order", in_order)
        self.world_size = check_int(_NAME, "world_size", world_size, 1)
        self.rank = check_int(_NAME, "rank", rank, 0, self.world_size - 1)
        self._silent: dict[int, float] = {}  # {server that gave no answer: since when}
        for rank, error in self.client.create_on(self.server_ranks, self.producer_id).items():
            self.falls_silent(rank, error)
        self.num_batches = self.client.num_batches(self.server_ranks[0], self.producer_id)
        self.num_steps = len(range(self.rank, self.num_batches, self.world_size))
        self._using = threading.RLock()
        self._is_closed, self._epoch, self._has_begun = False, 0, False
        self._run = _Run(0)

    def recv(self, timeout: float | None = None, **_: Any) -> Message:
        """Return the next message; `MiniBatch.from_message` makes a minibatch of it.

        Args:
            timeout: seconds; None waits until the server has answered, or has given no answer within the deadline of
                the client.
        Raises:
            EndOfEpoch: The epoch has ended. The next call is about the next one.
            QueueTimeoutError: None came within `timeout`; the next call goes on waiting.
            ServerUnavailable: No server answers any more; the next call asks again.
            ChannelClosed: The channel was closed.
            The error of a stage, with its traceback; the next call is about the next minibatch.
        """
        limit = check_timeout(_NAME, timeout)
        ends = None if limit is None else time.monotonic() + limit
        with self._used(limit):
            while True:
                if self._is_closed:
                    raise ChannelClosed(f"{_NAME}: was closed. Make a new one.")
                self._has_begun = True
                if self._has_ended():
                    ended = self._epoch
                    self._leave(ended + 1)
                    raise EndOfEpoch(ended)
                self._ask()
                outcome = self._run.ready(self.in_order)
                if isinstance(outcome, BaseException):
                    raise outcome
                if outcome is not None:
                    self._run.delivered += 1
                    return outcome.to_message()
                if self._run.waits():
                    self._take(ends)

    @contextlib.contextmanager
    def _used(self, limit: float | None) -> Iterator[None]:
        """One thread receives at a time."""
        if not self._using.acquire(timeout=-1 if limit is None else limit):
            raise _late()
        try:
            yield
        finally:
            self._using.release()

    def send(self, msg: Message, **_: Any) -> NoReturn:
        """Raise TypeError: minibatches come from servers."""
        raise TypeError(f"{_NAME}: it only receives; its messages are made by producers on servers.")

    def reset(self, epoch: int | None = None) -> None:
        """Leave the epoch that is being received; answers that still come are dropped. Waits for a `recv` of another
        thread.

        Args:
            epoch: what the next `recv` is about; by default the next epoch, or this one if nothing of it was asked for.
        """
        with self._using:
            following = self._epoch + 1 if self._has_begun else self._epoch
            self._leave(following if epoch is None else check_epoch(_NAME, epoch))

    def close(self) -> None:
        """End the channel; a thread that waits in `recv` gets ChannelClosed. The producer stays, see
        PartitionClient.destroy_producer. May be called twice.
        """
        self._is_closed = True
        self._run.arrived.put(None)  # wakes who waits
        with self._using:
            self._leave(self._epoch)

    def __len__(self) -> int:
        """Number of minibatches that have arrived."""
        return len(self._run.made) + self._run.arrived.qsize()

    def _leave(self, epoch: int) -> None:
        self._epoch, self._has_begun, self._run = epoch, False, _Run(epoch)

    def _has_ended(self) -> bool:
        run = self._run
        if self.num_expected is not None and run.delivered >= self.num_expected:
            return True
        return run.next_step >= self.num_steps and not (run.again or run.waits() or run.made)

    def _ask(self) -> None:
        """Ask for the next minibatches, as many as each server may have."""
        run = self._run
        while run.again or run.next_step < self.num_steps:
            servers = [*run.asked.values()]
            server = min(self.answering(), key=servers.count)
            step = run.again[0] if run.again else run.next_step
            most = run.next_delivered + self.prefetch_size * len(self.server_ranks)
            if servers.count(server) >= self.prefetch_size or (self.in_order and step >= most):
                return
            index = self.rank + step * self.world_size
            future = self.client.minibatch(server, self.producer_id, run.epoch, index)
            if run.again:
                run.again.pop(0)
            run.next_step = max(run.next_step, step + 1)
            run.asked[step] = server
            future.add_done_callback(run.taking(step))

    def answering(self) -> list[int]:
        """Return the servers to be asked: all but those that gave no answer lately, or all if none did."""
        now = time.monotonic()
        silent = {rank for rank, since in [*self._silent.items()] if now - since < SILENT_S}
        return [rank for rank in self.server_ranks if rank not in silent] or [*self.server_ranks]

    def falls_silent(self, server: int, error: ServerUnavailable) -> bool:
        """Note that a server gave no answer; return whether others are left. If not, all are asked again next time.

        Servers that fell silent longer than a deadline ago may be back by now; these are left, too.
        """
        now = time.monotonic()
        if server not in self._silent:
            logger.warning("%s: left out for %g s, so that other servers make its share: %s", _NAME, SILENT_S, error)
        self._silent[server] = now
        if len(self._silent) < len(self.server_ranks):
            return True
        before = now - self.client.deadline - 1.0  # servers that are lost together fall silent within a deadline
        self._silent = {rank: since for rank, since in self._silent.items() if since > before}
        if len(self._silent) < len(self.server_ranks):
            return True
        self._silent = {}
        return False

    def answered(self, server: int) -> None:
        """Note that a server gave an answer: it is there again for those that fall silent later."""
        self._silent.pop(server, None)

    def _take(self, ends: float | None) -> None:
        """Take one answer."""
        run = self._run
        try:
            taken = run.arrived.get(timeout=None if ends is None else max(ends - time.monotonic(), 0.0))
        except queue.Empty:
            raise _late() from None
        if taken is None:
            return
        step, future = taken
        server, error = run.asked.pop(step), future.exception()
        if not isinstance(error, ServerUnavailable):
            self.answered(server)
            run.made[step] = error or future.result()
            return
        run.again = sorted([*run.again, step])
        if not self.falls_silent(server, error):
            run.ask_anew()
            raise error

    def __reduce__(self) -> tuple[Any, ...]:
        options = {"client": self.client, "in_order": self.in_order, "rank": self.rank, "world_size": self.world_size}
        return _rebuilt, (self._arguments, options)

    def __repr__(self) -> str:
        return f"{_NAME}(servers {[*self.server_ranks]}, producer {self.producer_id}, epoch {self._epoch})"


class _Run:
    """What is under way of one epoch.

    Attributes:
        next_step: the first step of this client that was not asked for.
        asked: {step: the server that has it}.
        again: steps to ask for again, ascending.
        made: {step: what it became}.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch, self.next_step, self.next_delivered, self.delivered = epoch, 0, 0, 0
        self.asked: dict[int, int] = {}
        self.again: list[int] = []
        self.made: dict[int, MiniBatch | BaseException | None] = {}
        self.arrived: queue.SimpleQueue[tuple[int, Future[MiniBatch | None]] | None] = queue.SimpleQueue()

    def taking(self, step: int) -> Any:
        """Return what a future calls that is done; it goes to this run alone."""
        arrived = self.arrived
        return lambda future: arrived.put((step, future))

    def ask_anew(self) -> None:
        """Forget what was asked for: all of it is asked for again."""
        self.again = sorted([*self.again, *self.asked])
        self.asked, self.arrived = {}, queue.SimpleQueue()

    def waits(self) -> bool:
        """Return whether an answer is still to come."""
        return bool(self.asked)

    def ready(self, in_order: bool) -> MiniBatch | BaseException | None:
        """Return what can be delivered; dropped minibatches are left out."""
        while self.made:
            step = self.next_delivered if in_order else next(iter(self.made))
            if step not in self.made:
                return None
            made = self.made.pop(step)
            self.next_delivered = step + 1 if in_order else 0
            if made is not None:
                return made
        return None


def _late() -> QueueTimeoutError:
    return QueueTimeoutError(
        f"{_NAME}: no minibatch came within the timeout. Call again to go on waiting, or raise it."
    )


def _servers(client: PartitionClient, ranks: Any, ids: Any) -> tuple[tuple[int, ...], int]:
    """Return the servers, and the producer that all of them have."""
    many = [*ranks] if isinstance(ranks, (list, tuple)) else [ranks]
    numbers = [*ids] if isinstance(ids, (list, tuple)) else [ids] * len(many)
    for rank in many:
        check_int(_NAME, "server_rank", rank, 0)
        if rank not in client.addresses:
            raise ValueError(f"{_NAME}: server {rank} is not in the namebook; there are {[*client.addresses]}.")
    if not many or len(numbers) != len(many) or len({*many}) != len(many):
        raise ValueError(
            f"{_NAME}: {len(many)} servers and {len(numbers)} producers. Name each server once, and one producer, or "
            "one for each server."
        )
    for number in numbers:
        check_int(_NAME, "producer_id", number, 0)
    if len({*numbers}) > 1:
        raise ValueError(
            f"{_NAME}: the servers {many} have the producers {numbers}; a chain has one number on all servers of the "
            "same data, so these have other data, or other chains. Serve the same folder on all of them."
        )
    return tuple(many), numbers[0]


def _rebuilt(arguments: tuple[Any, ...], options: dict[str, Any]) -> RemoteReceivingChannel:
    return RemoteReceivingChannel(*arguments, **options)
