"""The lowest layer, used by all others: argument checks, errors, the random key, the codec, clocks, threads."""

from datapipes.base.errors import ChannelClosed, EndOfEpoch, PeerDied, QueueTimeoutError, RemoteError
from datapipes.base.rng import STREAM_VERSION, RngKey

__all__ = [
    "STREAM_VERSION",
    "ChannelClosed",
    "EndOfEpoch",
    "PeerDied",
    "QueueTimeoutError",
    "RemoteError",
    "RngKey",
]
