"""Load one entity: the ids, features and labels of the files that belong to a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from datapipes.base.threads import num_threads
from datapipes.datasets.tfrecord.columns import Columns, columns_of, columns_of_spec, columns_without_records
from datapipes.datasets.tfrecord.files import files_of, share_of_rank
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.options import TFDatasetOptions
from datapipes.datasets.tfrecord.peek import specs_in
from datapipes.datasets.tfrecord.reading import Reader

__all__ = ["LoadedEntityTensors"]


@dataclass(frozen=True, eq=False)
class LoadedEntityTensors:
    """What the records of an entity hold. It unpacks as `ids, features = loaded`.

    The tensors lie in memory that other processes map: see `share_memory`. Row i of each belongs to record i, in the
    order of the files by name and of the records in them.

    Attributes:
        ids: int64 [n] of nodes; int64 [2, n] of edges, sources in row 0 and destinations in row 1, each contiguous.
        features: [n, feature_dim] in the dtype of the info; None if it names no feature keys.
        labels: int64 [n, k] if all label keys are int64, otherwise float32; None if the info names no label keys.
    """

    ids: Tensor
    features: Tensor | None
    labels: Tensor | None

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.ids, self.features))


def load_entity(
    where: str, info: SerializedTFRecordInfo, options: TFDatasetOptions, rank: int, world_size: int
) -> LoadedEntityTensors:
    """Return what the files of a rank hold; empty tensors of the same form if it has no files.

    Args:
        where: begins all messages; it names the entity, such as "load: node 'paper'".
    Raises:
        OSError: The folder or a file cannot be read, or no file matches (FileNotFoundError).
        DatasetFormatError: A file is broken, or its records do not hold what the info asks for.
        MemoryError: Too little memory is left for the result.
    """
    files = files_of(where, info)
    num_files_at_once = num_threads() if options.use_interleave else options.num_parallel_file_reads
    log_every = options.batch_size * options.log_every_n_batch
    reader = Reader(where, options.file_buffer_size, num_files_at_once, log_every)
    columns = (
        columns_of_spec(where, info) if info.feature_spec is not None else _columns_found(where, info, reader, files)
    )
    own = share_of_rank(files, rank, world_size)
    counts = reader.counts(own)
    ids, features, labels, tables = columns.tables(sum(counts), where)
    if tables:
        reader.parse(columns.parser(), own, counts, tables)
    return LoadedEntityTensors(ids, features, labels)


def _columns_found(where: str, info: SerializedTFRecordInfo, reader: Reader, files: list[Path]) -> Columns:
    """Return the columns that the first record of all files has, so every rank finds the same."""
    keys = [*info.entity_keys, *info.feature_keys, *info.label_keys]
    for file in files:
        found = reader.first(file, lambda record: specs_in(record, keys))
        if found is not None:
            return columns_of(f"{where}: {file}, record 0", info, found)
    return columns_without_records(info)
