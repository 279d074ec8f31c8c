"""Graphs in TFRecord files: what GiGL loads, read without TensorFlow."""

from datapipes.datasets.tfrecord.default_types import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.metadata import SerializedGraphMetadata
from datapipes.datasets.tfrecord.options import TFDatasetOptions

__all__ = [
    "DEFAULT_HOMOGENEOUS_EDGE_TYPE",
    "DEFAULT_HOMOGENEOUS_NODE_TYPE",
    "SerializedGraphMetadata",
    "SerializedTFRecordInfo",
    "TFDatasetOptions",
]


def __dir__() -> list[str]:
    return [*__all__]
