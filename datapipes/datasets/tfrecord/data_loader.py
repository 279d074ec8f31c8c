"""TFRecordDataLoader: a rank's share of the records of an entity, as tensors."""

from __future__ import annotations

from datapipes.base.checks import check_int, shown
from datapipes.datasets.tfrecord.entity import LoadedEntityTensors, load_entity
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.read_options import TFDatasetOptions

__all__ = ["TFRecordDataLoader"]

_DEFAULTS = TFDatasetOptions()


class TFRecordDataLoader:
    """Loads the TFRecord files of a rank, without TensorFlow.

    The files of an entity, sorted by name, are split into as many contiguous shares as there are ranks. Their sizes
    differ by at most one file, and the first ranks have more.

    Args:
        rank: in [0, world_size).
        world_size: number of ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        where = type(self).__name__
        self._world_size = check_int(where, "world_size", world_size, 1)
        self._rank = check_int(where, "rank", rank, 0, self._world_size - 1)

    @property
    def rank(self) -> int:
        """The rank whose share is loaded."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._world_size

    def load_as_torch_tensors(
        self,
        serialized_tf_record_info: SerializedTFRecordInfo,
        tf_dataset_options: TFDatasetOptions = _DEFAULTS,
    ) -> LoadedEntityTensors:
        """Return the ids, features and labels of the rank's files.

        Plain files and those packed by gzip (the name ends in .gz) may be mixed; a file without bytes has no records.
        Every checksum is checked. The order of rows is that of the files by name and of the records in them. The files
        are read twice: first they are counted, then each record is written to its place. So the memory needed is that
        of the result and one buffer for each thread (see `TFDatasetOptions.file_buffer_size`).

        Args:
            serialized_tf_record_info: which files, and which keys of their records.
            tf_dataset_options: how to read. Nothing in it changes the result.
        Returns:
            Tensors that unpack as (ids, features), with `.labels`, in memory that other processes map. A rank without
            files has tensors without rows, of the same dtypes and widths.
        Raises:
            FileNotFoundError: There is no folder, or no file in it matches the pattern.
            OSError: A file cannot be read.
            DatasetFormatError: A file is damaged, ends too early, has changed while it was read, or has a record that
                does not hold what the info asks for. The message names file, record and byte; records count from 0.
            MemoryError: Too little memory is left for the result.
        """
        where = f"{type(self).__name__}.load_as_torch_tensors"
        if not isinstance(serialized_tf_record_info, SerializedTFRecordInfo):
            raise TypeError(
                f"{where}: serialized_tf_record_info must be a SerializedTFRecordInfo, got "
                f"{shown(serialized_tf_record_info)}. Make one."
            )
        if not isinstance(tf_dataset_options, TFDatasetOptions):
            raise TypeError(
                f"{where}: tf_dataset_options must be TFDatasetOptions, got {shown(tf_dataset_options)}. Make them."
            )
        entity = "node" if serialized_tf_record_info.is_node_entity else "edge"
        where = f"{where}: {entity}"
        return load_entity(where, serialized_tf_record_info, tf_dataset_options, self._rank, self._world_size)
