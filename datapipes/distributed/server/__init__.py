"""The server of a part: its answers, its limits on clients, and its statistics."""

from datapipes.distributed.server.limits import ServerLimits
from datapipes.distributed.server.partition_server import PartitionServer

__all__ = [
    "PartitionServer",
    "ServerLimits",
]


def __dir__() -> list[str]:
    return [*__all__]
