"""Data sets: the embedded one, and readers of published file formats."""

from datapipes.datasets.dataset import Dataset
from datapipes.datasets.opening import debian_packages, open
from datapipes.datasets.raw import DatasetFormatError

__all__ = [
    "Dataset",
    "DatasetFormatError",
    "debian_packages",
    "open",
]


def __dir__() -> list[str]:
    return [*__all__]
