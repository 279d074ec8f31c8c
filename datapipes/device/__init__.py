"""Work on GPUs: copying minibatches, gathering feature rows, page-locking host memory."""

from datapipes.device.copy_to import CopyTo

__all__ = [
    "CopyTo",
]


def __dir__() -> list[str]:
    return [*__all__]
