"""RemoteReceivingChannel: a channel that receives the minibatches which servers make."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.clock import NoClock
from datapipes.base.codec import Message
from datapipes.base.errors import ChannelClosed, EndOfEpoch, LoaderTimeoutError, QueueTimeoutError
from datapipes.base.rng import check_epoch
from datapipes.chain.calls import Calls
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.numbering import Numbering
from datapipes.channel import ChannelBase
from datapipes.channel.base import check_timeout
from datapipes.distributed.partition_client import PartitionClient, default_client
from datapipes.distributed.server_pool import ServerPool, SilentServers

__all__ = ["RemoteReceivingChannel"]

_NAME = "RemoteReceivingChannel"


class RemoteReceivingChannel(ChannelBase):
    """Receives the minibatches of a chain that runs on one or several servers, epoch after epoch. A server's object
    that makes the minibatches is called a producer, see PartitionClient.create_producer.

    A minibatch is requested by epoch and index. So a request can be sent again, also to another server, and no
    minibatch is lost or doubled. Each of `world_size` clients gets the indices rank, rank + world_size, ... Nothing is
    padded, so a client may get one minibatch more than another.

    The first `recv` begins an epoch. EndOfEpoch ends it; the next `recv` begins the next epoch.

    Args:
        server_rank: rank of the server, or a list of ranks. With several servers, each makes a share of the
            minibatches. A server that gives no answer is left out for a minute. The constructor creates the producer on
            servers where this client has not created it yet, and waits for their answers until the deadline.
        producer_id: the id that `create_producer` returned; for several servers also a list of ids, all equal.
        num_expected: the most messages that this client gets in an epoch; None for no bound.
        prefetch_size: how many minibatches are requested ahead from each server. No requested minibatch is more than
            `prefetch_size` times the number of servers ahead of the first minibatch that is missing.
        client: a PartitionClient that has created the producer; by default the client that `connect` returned last.
        in_order: True returns messages in the order of their indices, False in the order of arrival.
        rank, world_size: the index of this client, and the number of clients.
    Raises:
        TypeError, ValueError: An argument is not allowed; or the ids differ, since servers have different data.
        UnknownProducer: The client has not created the producer, or has destroyed it.
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
        self._silent = SilentServers(self.server_ranks, self.client.deadline, _NAME)
        for server, error in self.client.create_on(self.server_ranks, self.producer_id).items():
            self._silent.add(server, error)
        self.num_batches = self.client.num_batches(self.server_ranks[0], self.producer_id)
        self.num_steps = len(range(self.rank, self.num_batches, self.world_size))
        self._using = threading.RLock()
        self._is_closed = False
        self._dispatcher: Dispatcher | None = None
        self._pool: ServerPool | None = None
        self._leave(0)

    def recv(self, timeout: float | None = None, **_: Any) -> Message:
        """Return the next minibatch as a message; `MiniBatch.from_message` turns the message into a MiniBatch.

        Args:
            timeout: the most seconds to wait. None: only the client's deadline for a request bounds the wait.
        Raises:
            EndOfEpoch: The epoch has ended. The next call begins the next epoch.
            QueueTimeoutError: No message came within `timeout`; the next call goes on waiting.
            ServerUnavailable: No server answers any more; the next call asks again.
            ChannelClosed: The channel was closed.
            The error of a stage, with its traceback; the next call goes on with the next minibatch.
        """
        limit = check_timeout(_NAME, timeout)
        ends = None if limit is None else time.monotonic() + limit
        with self._used(limit):
            dispatcher = self._begin()
            self._refuse_closed()  # only now: a later `close` wakes the pool, which exists from here on
            try:
                if self._num_delivered == self.num_expected:
                    raise StopIteration
                minibatch = dispatcher.take(None if ends is None else max(ends - time.monotonic(), 0.0))
            except StopIteration:
                self._refuse_closed()
                ended = self._epoch
                self._leave(ended + 1)
                raise EndOfEpoch(ended) from None
            except LoaderTimeoutError:
                raise _late() from None
            self._num_delivered += 1
            return minibatch.to_message()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ChannelClosed(f"{_NAME}: was closed. Make a new one.")

    @contextlib.contextmanager
    def _used(self, limit: float | None) -> Iterator[None]:
        """Context manager that lets only one thread receive at a time. Another thread waits up to `limit` seconds, then
        gets QueueTimeoutError; if `limit` is None, it waits without a bound.
        """
        if not self._using.acquire(timeout=-1 if limit is None else limit):
            raise _late()
        try:
            yield
        finally:
            self._using.release()

    def send(self, msg: Message, **_: Any) -> NoReturn:
        """Raise TypeError: this channel only receives."""
        raise TypeError(f"{_NAME}: it only receives; its messages are made by producers on servers.")

    def reset(self, epoch: int | None = None) -> None:
        """Leave the present epoch; its minibatches that still arrive are dropped. If another thread is in `recv`, wait
        until its call returns.

        Args:
            epoch: epoch of the next `recv`. By default this is the epoch after the present epoch, or the present epoch
                itself if `recv` was not called in it.
        """
        with self._using:
            following = self._epoch if self._dispatcher is None else self._epoch + 1
            self._leave(following if epoch is None else check_epoch(_NAME, epoch))

    def close(self) -> None:
        """End the channel; a thread that waits in `recv` gets ChannelClosed. The producer on the servers stays, see
        PartitionClient.destroy_producer. May be called twice.
        """
        self._is_closed = True
        if (pool := self._pool) is not None:
            self._context.stopped.set()
            pool.wake()
        with self._using:
            self._leave(self._epoch)

    def __len__(self) -> int:
        """Number of minibatches that have arrived and that `recv` has not returned yet."""
        dispatcher, pool = self._dispatcher, self._pool
        return 0 if dispatcher is None or pool is None else len(dispatcher) + pool.num_arrived

    def _begin(self) -> Dispatcher:
        """Return the Dispatcher of the present epoch, which requests the minibatches and delivers them. Make it if the
        epoch has not begun.
        """
        if self._dispatcher is None:
            self._pool, calls = self._new_pool(), Calls(Numbering({}, None), NoClock())
            self._context = EpochContext(calls, Position(self._epoch))
            indices = range(self.rank, self.num_batches, self.world_size)
            self._dispatcher = Dispatcher(self._pool, self._context, indices, in_order=self.in_order, goes_on=True)
        return self._dispatcher

    def _leave(self, epoch: int) -> None:
        self._epoch, self._num_delivered = epoch, 0
        self._dispatcher = self._pool = None

    def _new_pool(self) -> ServerPool:
        """Return a new ServerPool: the servers as the workers of a Dispatcher. It serves one epoch and one reader."""
        return ServerPool(self.client, self.producer_id, self.server_ranks, self._silent, self.prefetch_size)

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"client": self.client, "in_order": self.in_order}
        options |= {"rank": self.rank, "world_size": self.world_size}
        return partial(RemoteReceivingChannel, **options), self._arguments

    def __repr__(self) -> str:
        return f"{_NAME}(servers {[*self.server_ranks]}, producer {self.producer_id}, epoch {self._epoch})"


def _late() -> QueueTimeoutError:
    return QueueTimeoutError(
        f"{_NAME}: no minibatch came within the timeout. Call again to go on waiting, or raise the timeout."
    )


def _servers(client: PartitionClient, ranks: Any, ids: Any) -> tuple[tuple[int, ...], int]:
    """Check the arguments `server_rank` and `producer_id` of the channel, and return (server ranks, producer id). The
    id must be the same on all servers.
    """
    many = [*ranks] if isinstance(ranks, (list, tuple)) else [ranks]
    numbers = [*ids] if isinstance(ids, (list, tuple)) else [ids] * len(many)
    for rank in many:
        check_int(_NAME, "server_rank", rank, 0)
        if rank not in client.addresses:
            raise ValueError(
                f"{_NAME}: server {rank} is not in the namebook; there are {[*client.addresses]}. Name one of these."
            )
    if not many or len(numbers) != len(many) or len({*many}) != len(many):
        raise ValueError(
            f"{_NAME}: server_rank is {shown(ranks)}, and producer_id names {len(numbers)} producers. Name each server "
            "once, and one producer, or one for each server."
        )
    for number in numbers:
        check_int(_NAME, "producer_id", number, 0)
    if len({*numbers}) > 1:
        raise ValueError(
            f"{_NAME}: the servers {many} have the producers {numbers}; a chain has the same number on all servers "
            "with the same data, so the data or the chains of these servers differ. Serve the same folder on all of "
            "them, and create one chain."
        )
    return tuple(many), numbers[0]
