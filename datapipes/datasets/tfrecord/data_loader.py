"""TFRecordDataLoader: loads a rank's share of the records of an entity (nodes or edges) as tensors.

The files of an entity are those in its folder whose names match `tfrecord_uri_pattern`. They are sorted by name and
divided into one contiguous share for each rank. All ranks must see the same files; then each file is in exactly one
share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_bool, check_int, dtype_name, shown
from datapipes.base.log import logger
from datapipes.base.threads import num_threads
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo, check_keys, key_specs
from datapipes.datasets.tfrecord.reading import Reader, Table
from datapipes.datasets.tfrecord.spec import INT64, KeySpec, specs_in
from datapipes.datasets.tfrecord.torch_memory import shared_tensor, shared_with_memory
from datapipes.ingest.remote import AnyFile, files_in, is_uri

__all__ = ["LoadedEntityTensors", "TFDatasetOptions", "TFRecordDataLoader", "share_memory"]

_PARALLEL_READS = 64
_RAM_BUDGET = 0.5
_LEAST_BUFFER = 16  # bytes of framing around a record


@dataclass(frozen=True)
class TFDatasetOptions:
    """How the files of an entity are read. Fields and defaults are GiGL's. No field changes the result.

    Attributes:
        batch_size: records per step of the progress log; see `log_every_n_batch`. Memory use does not depend on it.
        file_buffer_size: the most bytes of a record, framing included; a longer record is an error. The
            buffer of a reading thread begins with 256 KiB, or file_buffer_size if less, and doubles for longer records;
            while it doubles, the old buffer is in memory too.
        deterministic: no effect. Rows are always in the order of the records, file after file, sorted by name.
        use_interleave: read with as many threads as torch uses (`torch.get_num_threads()`), each one file at a time.
        num_parallel_file_reads: number of threads if `use_interleave` is False. With True only the default is allowed,
            since the number would have no effect.
        ram_budget_multiplier: share of the memory that TensorFlow may use for its buffers. Here a thread has one
            buffer, so only the default is allowed.
        log_every_n_batch: log a line of INFO after every `batch_size * log_every_n_batch` records.
    Raises:
        TypeError, ValueError: A value is not allowed, or can have no effect.
    """

    batch_size: int = 10_000
    file_buffer_size: int = 100 * 2**20
    deterministic: bool = False
    use_interleave: bool = True
    num_parallel_file_reads: int = _PARALLEL_READS
    ram_budget_multiplier: float = _RAM_BUDGET
    log_every_n_batch: int = 1000

    def __post_init__(self) -> None:
        where = type(self).__name__
        check_int(where, "batch_size", self.batch_size, 1)
        check_int(where, "file_buffer_size", self.file_buffer_size, _LEAST_BUFFER)
        check_bool(where, "deterministic", self.deterministic)
        check_bool(where, "use_interleave", self.use_interleave)
        check_int(where, "num_parallel_file_reads", self.num_parallel_file_reads, 1)
        check_int(where, "log_every_n_batch", self.log_every_n_batch, 1)
        if self.use_interleave and self.num_parallel_file_reads != _PARALLEL_READS:
            raise ValueError(
                f"{where}: num_parallel_file_reads={self.num_parallel_file_reads} has no effect with "
                f"use_interleave=True, which takes as many threads as torch uses. Leave it at {_PARALLEL_READS}, or "
                "set use_interleave=False."
            )
        if self.ram_budget_multiplier != _RAM_BUDGET:
            raise ValueError(
                f"{where}: ram_budget_multiplier={shown(self.ram_budget_multiplier)} has no effect here; only "
                f"{_RAM_BUDGET} is allowed. Leave it out. file_buffer_size bounds the memory of a thread."
            )


_MOST_NAMES = 5  # of other files, in a message


def files_of(where: str, info: SerializedTFRecordInfo) -> Sequence[AnyFile]:
    """Return the files of an entity, sorted by name.

    Args:
        where: how error messages begin.
    Raises:
        FileNotFoundError: There is no such folder, or no file in it matches the pattern.
        OSError: The folder cannot be read.
        ModuleNotFoundError: The folder is a URI, and the package that reads it is not installed.
        ValueError: The folder is a URI whose scheme is unknown.
    """
    pattern = re.compile(info.tfrecord_uri_pattern)
    try:
        here = None if is_uri(info.folder) else sorted(Path(info.folder).iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise type(error)(
            f"{where}: the folder {info.folder} cannot be read ({error.strerror}); a folder of TFRecord files is "
            "needed. Check tfrecord_uri_prefix."
        ) from error
    files: Sequence[AnyFile] = files_in(where, info.folder) if here is None else here
    matching = [file for file in files if pattern.match(file.name)]
    if not matching:
        names = [file.name for file in files]
        content = f"it holds {len(names)} others, such as {shown(names[:_MOST_NAMES])}" if names else "it is empty"
        raise FileNotFoundError(
            f"{where}: no file in {info.folder} matches the pattern {pattern.pattern!r}; {content}. Check "
            "tfrecord_uri_prefix and tfrecord_uri_pattern."
        )
    return matching


@dataclass(frozen=True, eq=False)
class LoadedEntityTensors:
    """The tensors of an entity. They unpack as `ids, features = loaded`.

    The tensors lie in memory that other processes map: see `share_memory`. Records are numbered from 0 through all
    files, sorted by name. Row i of features and labels, and ids[i] (for edges ids[:, i]), belong to record i.

    Attributes:
        ids: int64 [n] for nodes; int64 [2, n] for edges: sources in row 0, destinations in row 1; rows are contiguous.
        features: [n, feature_dim], dtype `feature_dtype` of the info; None if the info names no feature keys.
        labels: int64 [n, k] if all label keys are int64, otherwise float32; None if the info names no label keys.
    """

    ids: Tensor
    features: Tensor | None
    labels: Tensor | None

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter((self.ids, self.features))


def _keys_found(where: str, info: SerializedTFRecordInfo, reader: Reader, files: Sequence[AnyFile]) -> list[KeySpec]:
    """Return the KeySpec of each key in `info`: its kind and number of values, as found in a record.

    That is the first record of the first file that has records. `files` are the files of all ranks, so all ranks return
    the same specs. If no file has records, the first feature key gets all `feature_dim` columns.
    """
    keys = [*info.entity_keys, *info.feature_keys, *info.label_keys]
    for file in files:
        specs = reader.first(file, lambda record: specs_in(record, keys))
        if specs is not None:
            check_keys(f"{where}: {file}, record 0", info, specs)
            return specs
    widths = {**dict.fromkeys(keys, 1), **dict.fromkeys(info.feature_keys, 0)}
    widths |= dict.fromkeys(info.feature_keys[:1], info.feature_dim)
    return [KeySpec(key, INT64, width) for key, width in widths.items()]


def _tables(
    where: str, info: SerializedTFRecordInfo, keys: Sequence[KeySpec], num_records: int
) -> tuple[LoadedEntityTensors, list[Table]]:
    """Allocate tensors for `num_records` records; return (loaded, tables).

    `loaded` has the tensors. Each of `tables` is a part of their memory to which records are written; without records
    there are none.

    Args:
        keys: the keys of the entity, then of features, then of labels.
    Raises:
        MemoryError: Too little memory is left; the message begins with `where`.
    """
    begin = len(info.entity_keys)
    end = begin + len(info.feature_keys)
    entities, features, labels = keys[:begin], keys[begin:end], keys[end:]
    ids_shape = (num_records,) if len(entities) == 1 else (len(entities), num_records)
    ids, tables = _made(ids_shape, torch.int64, [[column] for column in entities], where)
    label_dtype = torch.int64 if all(column.kind == INT64 for column in labels) else torch.float32
    rest: list[Tensor | None] = [None, None]
    for place, (columns, dtype) in enumerate(((features, info.feature_dtype), (labels, label_dtype))):
        if columns:
            shape = (num_records, sum(column.width for column in columns))
            rest[place], more = _made(shape, dtype, [columns], where)
            tables += more
    return LoadedEntityTensors(ids, *rest), tables


def _made(
    shape: tuple[int, ...], dtype: torch.dtype, keys: Sequence[Sequence[KeySpec]], where: str
) -> tuple[Tensor, list[Table]]:
    """Return (tensor, tables): a new tensor in shared memory, and a Table for each group of `keys`.

    The tables divide the tensor's memory into equal parts, one after another. A tensor without values has no tables.
    """
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=dtype), []
    tensor, memory = shared_with_memory(shape, dtype, where)
    size = len(memory) // len(keys)
    widths = [[column.width for column in group] for group in keys]
    numpy_dtype = np.dtype(dtype_name(dtype))
    return tensor, [Table(memory, place * size, numpy_dtype, group) for place, group in enumerate(widths)]


_DEFAULTS = TFDatasetOptions()


class TFRecordDataLoader:
    """Loads the TFRecord files of a rank, without TensorFlow.

    The files of an entity, sorted by name, are split into one contiguous share for each rank. Shares differ by at most
    one file; the first ranks have the larger shares.

    Args:
        rank: the rank whose share is loaded, in [0, world_size).
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

        Plain files and gzip files (names ending in .gz) may be mixed; an empty file has no records. A warning in the
        log says how many files have no records.

        Every checksum is checked. Files are sorted by name; rows are in the order of the records in them. The files are
        read twice: first the records are counted, then each record is written to its place. So the memory needed is the
        result and one buffer for each thread (see `TFDatasetOptions.file_buffer_size`).

        Args:
            serialized_tf_record_info: the files, and the keys of their records.
            tf_dataset_options: how to read. No option changes the result.
        Returns:
            Tensors that unpack as (ids, features), with `.labels`, in memory that other processes map. A rank without
            files has tensors without rows, of the same dtypes and widths.
        Raises:
            FileNotFoundError: There is no folder, or no file in it matches the pattern.
            OSError: A file cannot be read.
            DatasetFormatError: A file is damaged, ends too early, has changed while it was read, or has a record that
                does not fit the info. The message names file, record and byte; records are numbered from 0.
            MemoryError: Too little memory is left for the result.
            ModuleNotFoundError: The folder is a URI, and the package that reads it is not installed.
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
        info, options = serialized_tf_record_info, tf_dataset_options
        where = f"{where}: {'node' if info.is_node_entity else 'edge'}"
        files = files_of(where, info)
        num_files_at_once = num_threads() if options.use_interleave else options.num_parallel_file_reads
        log_every = options.batch_size * options.log_every_n_batch
        reader = Reader(where, options.file_buffer_size, num_files_at_once, log_every)
        if info.feature_spec is None:
            keys = _keys_found(where, info, reader, files)
        else:
            keys = key_specs(where, info, info.feature_spec)
        size, more = divmod(len(files), self._world_size)  # the first `more` ranks have one file more
        begin = self._rank * size + min(self._rank, more)
        share = files[begin : begin + size + (self._rank < more)]
        counts = reader.counts(share)
        if empty := [file.name for file, count in zip(share, counts, strict=True) if count == 0]:
            numbers = len(empty), len(share), shown(empty[0])
            logger.warning("%s: %d of %d files to load have no records, such as %s", where, *numbers)
        loaded, tables = _tables(where, info, keys, sum(counts))
        if tables:
            columns = [(spec.key.encode(), spec.kind, spec.width, spec.default) for spec in keys]
            reader.parse(_core.ExampleParser(columns), share, counts, tables)
        return loaded


# --- tensors that other processes map

_Key = TypeVar("_Key")


@overload
def share_memory(entity: Tensor) -> Tensor: ...
@overload
def share_memory(entity: None) -> None: ...
@overload
def share_memory(entity: Mapping[_Key, Tensor]) -> dict[_Key, Tensor]: ...
def share_memory(entity: Any) -> Any:
    """Return `entity` with its values in memory that other processes can map, so that passing it on copies nothing.

    The memory is a memfd: anonymous, with a descriptor, not limited by the size of /dev/shm, and freed with its last
    user. It passes without a copy through torch.multiprocessing (with the sharing strategy "file_descriptor", the
    default on Linux), through an MpChannel, and to the workers of a DataLoader; a ShmChannel copies it into its ring,
    like any tensor. All processes see each other's writes.

    Args:
        entity: a dense tensor in host memory, a dict of such tensors, or None. It is not changed.
    Returns:
        Tensors of the same shapes and dtypes, in a dict if a dict was given; None if `entity` is None. A tensor that is
        already in a memfd, or has no values, is returned without a copy. Copies are contiguous.
    Raises:
        TypeError: `entity` is something else, or a tensor is sparse or quantised.
        ValueError: A tensor is not in host memory.
        MemoryError: Too little memory is left.
    """
    if entity is None:
        return None
    if isinstance(entity, Mapping):
        return {key: _shared(f"share_memory: the tensor {key!r}", value) for key, value in entity.items()}
    return _shared("share_memory: the tensor", entity)


def _shared(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {shown(value)}. Pass a tensor, a dict of tensors, or None.")
    tensor = as_tensor("share_memory", name.partition(": ")[2], value)
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} must be in host memory, found it on {tensor.device}. Call .cpu().")
    return shared_tensor(tensor, "share_memory")
