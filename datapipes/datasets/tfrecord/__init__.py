"""Graphs in TFRecord files, GiGL's input, read without TensorFlow."""

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
    "LoadedEntityTensors",
    "LoadedGraphTensors",
    "SerializedGraphMetadata",
    "SerializedTFRecordInfo",
    "TFDatasetOptions",
    "TFRecordDataLoader",
    "TFRecordLoadError",
    "load_torch_tensors_from_tf_record",
    "share_memory",
    "write_tf_records",
]


def __dir__() -> list[str]:
    return [*__all__]
