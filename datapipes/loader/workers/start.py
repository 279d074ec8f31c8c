"""What a pool sends to its worker processes: the arguments of their start, and the messages in their pipes."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from datapipes.channel import ChannelBase
from datapipes.processes.sharing import Packed

# The first byte of each message that the pool sends through the pipe.
TASK = b"T"  # then the numbers of a Task, int64 each
END = b"E"
CHANNEL = b"C"  # then the descriptor of a ShmChannel


@dataclass
class Start:
    """What a worker process is started with.

    Attributes:
        worker: its number, from 0.
        life: how often a worker with this number was started before.
        pool: a random number that names the pool in messages.
        connection: the worker's end of its pipe.
        chain: (last stage before the cut, worker_init_fn).
        board: see board.py.
        channel: where outcomes go; None if the pool makes one once it knows how large a minibatch is.
        own_channel: whether the pool made the channel; then it can drop messages of older generations from it.
        explicit_size: whether the user has chosen its size; then a minibatch that does not fit is refused.
        num_threads: how many threads a kernel of this package may use.
    """

    worker: int
    life: int
    pool: int
    connection: Connection
    chain: Packed | tuple[Any, ...]
    board: Packed
    channel: ChannelBase | None
    own_channel: bool
    explicit_size: bool
    num_threads: int
