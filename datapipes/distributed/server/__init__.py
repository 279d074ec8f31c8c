"""The server of a part: what it answers, how it limits its clients, and what it tells of itself."""

from datapipes.distributed.server.limits import ServerLimits
from datapipes.distributed.server.partition_server import PartitionServer

__all__ = [
    "PartitionServer",
    "ServerLimits",
]


def __dir__() -> list[str]:
    return [*__all__]
