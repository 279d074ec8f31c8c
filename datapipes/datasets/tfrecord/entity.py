"""Load one entity: the ids, features and labels of the files that belong to a rank.

Its columns say which values of a record go where, and to which tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.base.threads import num_threads
from datapipes.datasets.tfrecord.files import files_of, share_of_rank
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo, check_entity_key, check_features
from datapipes.datasets.tfrecord.peek import specs_in
from datapipes.datasets.tfrecord.read_options import TFDatasetOptions
from datapipes.datasets.tfrecord.reading import Reader
from datapipes.datasets.tfrecord.spec import INT64, KeySpec, key_spec
from datapipes.datasets.tfrecord.tables import Table
from datapipes.processes.torch_memory import shared_with_memory

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
        _columns_of_spec(where, info) if info.feature_spec is not None else _columns_found(where, info, reader, files)
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
    return _columns_without_records(info)


@dataclass(frozen=True)
class Columns:
    """What is known of each key of an entity, in the order of the info."""

    entities: tuple[KeySpec, ...]  # one for nodes, two for edges
    features: tuple[KeySpec, ...]
    labels: tuple[KeySpec, ...]
    feature_dtype: torch.dtype

    def parser(self) -> _core.ExampleParser:
        """Return the parser of these columns."""
        return _core.ExampleParser([(each.key.encode(), each.kind, each.width, each.default) for each in self._all])

    def tables(self, num_records: int, where: str) -> tuple[Tensor, Tensor | None, Tensor | None, list[Table]]:
        """Return ids, features and labels for so many records, and the tables of their memory.

        Features and labels are None where there are no keys. There are no tables if there are no records.

        Raises:
            MemoryError: Too little memory is left; the message begins with `where`.
        """
        num_entities = len(self.entities)
        ids_shape = (num_records,) if num_entities == 1 else (num_entities, num_records)
        ids, tables = _made(ids_shape, torch.int64, [[each] for each in self.entities], where)
        whole = all(each.kind == INT64 for each in self.labels)
        rest: list[Tensor | None] = []
        label_dtype = torch.int64 if whole else torch.float32
        for keys, dtype in ((self.features, self.feature_dtype), (self.labels, label_dtype)):
            if not keys:
                rest.append(None)
                continue
            shape = (num_records, sum(each.width for each in keys))
            made, more = _made(shape, dtype, [keys], where)
            rest.append(made)
            tables += more
        return ids, rest[0], rest[1], tables

    @property
    def _all(self) -> list[KeySpec]:
        return [*self.entities, *self.features, *self.labels]


def _columns_of_spec(where: str, info: SerializedTFRecordInfo) -> Columns:
    """Return the columns of an info that has a spec; an entity key that is not in it has one int64."""
    spec = info.feature_spec
    assert spec is not None
    given = [key_spec(where, spec, key) if key in spec else KeySpec(key, INT64, 1) for key in info.entity_keys]
    named = [key_spec(where, spec, key) for key in (*info.feature_keys, *info.label_keys)]
    return columns_of(where, info, [*given, *named])


def columns_of(where: str, info: SerializedTFRecordInfo, keys: Sequence[KeySpec]) -> Columns:
    """Return the columns of an info; `keys` are those of the entity, then of features, then of labels.

    Raises:
        ValueError: They are not what the info needs.
    """
    num_entities, num_features = len(info.entity_keys), len(info.feature_keys)
    entities, rest = keys[:num_entities], keys[num_entities:]
    for each in entities:
        check_entity_key(where, each)
    check_features(where, rest[:num_features], info.feature_dim, info.feature_dtype)
    return Columns(tuple(entities), tuple(rest[:num_features]), tuple(rest[num_features:]), info.feature_dtype)


def _columns_without_records(info: SerializedTFRecordInfo) -> Columns:
    """Return the columns of an info without a spec, if no file has a record: features together have their dim."""
    features = (KeySpec("", INT64, info.feature_dim),) if info.feature_keys else ()
    one = [KeySpec(key, INT64, 1) for key in (*info.entity_keys, *info.label_keys)]
    count = len(info.entity_keys)
    return Columns(tuple(one[:count]), features, tuple(one[count:]), info.feature_dtype)


def _made(
    shape: tuple[int, ...], dtype: torch.dtype, keys: Sequence[Sequence[KeySpec]], where: str
) -> tuple[Tensor, list[Table]]:
    """Return a tensor in shared memory, and a table for each group of keys; the tables stand one after the other."""
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype), []
    tensor, memory = shared_with_memory(shape, dtype, where)
    size = len(memory) // len(keys)
    widths = [[each.width for each in group] for group in keys]
    numpy_dtype = np.dtype(dtype_name(dtype))
    return tensor, [Table(memory, place * size, numpy_dtype, group) for place, group in enumerate(widths)]
