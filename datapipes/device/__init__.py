"""Device placement."""

from datapipes.device.copy_to import CopyTo

__all__ = [
    "CopyTo",
]
