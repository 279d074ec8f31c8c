"""The lowest layer, used by all others: argument checks, errors, the random key, the codec, clocks, threads."""

from datapipes.base.errors import (
    ChannelClosed,
    ChannelDamaged,
    DatapipesDeprecationWarning,
    EndOfEpoch,
    LoaderTimeoutError,
    PeerDied,
    QueueTimeoutError,
    RemoteError,
    ServerUnavailable,
)
from datapipes.base.rng import STREAM_VERSION, RngKey

__all__ = [
    "STREAM_VERSION",
    "ChannelClosed",
    "ChannelDamaged",
    "DatapipesDeprecationWarning",
    "EndOfEpoch",
    "LoaderTimeoutError",
    "PeerDied",
    "QueueTimeoutError",
    "RemoteError",
    "RngKey",
    "ServerUnavailable",
]


def __dir__() -> list[str]:
    return [*__all__]
