"""Data sets: the embedded one, and readers of published file formats."""

from datapipes.datasets.dataset import Dataset
from datapipes.datasets.opening import debian_packages, open
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.tfrecord.data_loader import TFRecordDataLoader
from datapipes.datasets.tfrecord.default_types import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from datapipes.datasets.tfrecord.entity import LoadedEntityTensors
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.load import load_torch_tensors_from_tf_record
from datapipes.datasets.tfrecord.load_error import TFRecordLoadError
from datapipes.datasets.tfrecord.loaded import LoadedGraphTensors
from datapipes.datasets.tfrecord.metadata import SerializedGraphMetadata
from datapipes.datasets.tfrecord.read_options import TFDatasetOptions
from datapipes.datasets.tfrecord.share_memory import share_memory
from datapipes.datasets.tfrecord.writing import write_tf_records

__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "Dataset",
    "DatasetFormatError",
    "LoadedEntityTensors",
    "LoadedGraphTensors",
    "SerializedGraphMetadata",
    "SerializedTFRecordInfo",
    "TFDatasetOptions",
    "TFRecordDataLoader",
    "TFRecordLoadError",
    "debian_packages",
    "load_torch_tensors_from_tf_record",
    "open",
    "share_memory",
    "write_tf_records",
]


def __dir__() -> list[str]:
    return [*__all__]
