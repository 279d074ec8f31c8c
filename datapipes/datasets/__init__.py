"""Data sets: the embedded one, and readers of published file formats."""

from typing import TYPE_CHECKING

from datapipes.compat.other_names import missing_public_name
from datapipes.datasets.dataset import Dataset, Task
from datapipes.datasets.from_frames import from_networkx, from_pandas
from datapipes.datasets.from_tables import from_tables
from datapipes.datasets.ondisk import BuiltinDataset, OnDiskDataset
from datapipes.datasets.opening import debian_packages, open
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.tfrecord.data_loader import (
    LoadedEntityTensors,
    TFDatasetOptions,
    TFRecordDataLoader,
    share_memory,
)
from datapipes.datasets.tfrecord.entity_task import TFRecordLoadError
from datapipes.datasets.tfrecord.info import SerializedGraphMetadata, SerializedTFRecordInfo
from datapipes.datasets.tfrecord.load import load_torch_tensors_from_tf_record
from datapipes.datasets.tfrecord.loaded import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    LoadedGraphTensors,
)
from datapipes.datasets.tfrecord.writing import write_tf_records

__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "BuiltinDataset",
    "Dataset",
    "DatasetFormatError",
    "LoadedEntityTensors",
    "LoadedGraphTensors",
    "OnDiskDataset",
    "SerializedGraphMetadata",
    "SerializedTFRecordInfo",
    "TFDatasetOptions",
    "TFRecordDataLoader",
    "TFRecordLoadError",
    "Task",
    "debian_packages",
    "from_networkx",
    "from_pandas",
    "from_tables",
    "load_torch_tensors_from_tf_record",
    "open",
    "share_memory",
    "write_tf_records",
]


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        raise missing_public_name(name, "datapipes.datasets")
