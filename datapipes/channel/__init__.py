"""Channels carry messages (dicts of tensors) between processes, through shared memory or a queue of torch."""

from datapipes.channel.base import ChannelBase
from datapipes.channel.mp_channel import MpChannel
from datapipes.channel.shm_channel import ShmChannel

__all__ = [
    "ChannelBase",
    "MpChannel",
    "ShmChannel",
]


def __dir__() -> list[str]:
    return [*__all__]
