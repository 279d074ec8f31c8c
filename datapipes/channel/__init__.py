"""Channels carry messages (dicts of tensors) between processes, through shared memory or a queue of torch."""

from datapipes.base.errors import ChannelClosed, EndOfEpoch, PeerDied, QueueTimeoutError, RemoteError
from datapipes.channel.base import ChannelBase
from datapipes.channel.mp_channel import MpChannel
from datapipes.channel.shm_channel import ShmChannel

__all__ = [
    "ChannelBase",
    "ChannelClosed",
    "EndOfEpoch",
    "MpChannel",
    "PeerDied",
    "QueueTimeoutError",
    "RemoteError",
    "ShmChannel",
]
