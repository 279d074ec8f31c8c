"""Read one array of a folder: a .npy file, a tensor that torch.save wrote, a column of a table.

Invariant: nothing is unpickled but tensors, by ingest/torch_archive.py. A file that is cut short, or holds something
else, is a DatasetFormatError before its values are used; nothing beyond the end of a file is mapped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor
from datapipes.base.files import open_regular
from datapipes.base.sizes import check_memory
from datapipes.datasets.ondisk_yaml import Description, RowsFile
from datapipes.datasets.raw import DatasetFormatError
from datapipes.graph.npy import NpyRows, read_array
from datapipes.ingest.plain_pickle import FileRefused
from datapipes.ingest.table_files import TableFiles
from datapipes.ingest.torch_archive import TENSORS, TorchArchive
from datapipes.processes.mappings import File, identity_of, map_file

WHERE = "OnDiskDataset"
_MOST_PICKLE = 2**16  # bytes of the pickle that describes one tensor
_LESS = "Set in_memory: false."


@contextlib.contextmanager
def format_errors(what: str) -> Iterator[None]:
    """Raise what is wrong with a file as a DatasetFormatError; readers and pyarrow raise many types."""
    try:
        yield
    except DatasetFormatError:
        raise
    except FileRefused as error:
        raise DatasetFormatError.of(what, error.found, error.expected, error.remedy) from error
    except (ValueError, TypeError, LookupError, NotImplementedError) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        raise DatasetFormatError(f"{what}: {text}") from error


class Arrays:
    """The arrays of a folder. A table is read once for all columns that are asked for, and kept as long as this is."""

    def __init__(self, described: Description) -> None:
        self._described = described
        self._tables: dict[Path, TableFiles] = {}

    def read(self, file: RowsFile, wanted: tuple[int, str] | None = None) -> Tensor:
        """Return an array: in memory, or mapped if it stays on disk. A column of a table is in memory.

        Args:
            wanted: see `check_rows`; an array that has not as many rows is not read.
        Raises:
            DatasetFormatError: It is none.
            MemoryError: It needs more memory than is left.
        """
        path = self._described.path(file)
        with format_errors(file.path):
            if file.format == "numpy":
                return _npy(path, file, wanted)
            if file.format == "torch":
                return _saved(path, file, wanted)
            if path not in self._tables:
                self._tables[path] = TableFiles(WHERE, path)
                if (ids := self._described.id_columns.get(file.path)) is not None:
                    self._tables[path].sort_by(ids)
            return self._tables[path].numbers(file.name)


def check_rows(file: RowsFile, count: int, wanted: tuple[int, str] | None) -> None:
    """Raise ValueError unless a file has one row for each of `wanted`, such as (30, "nodes"); None is any number."""
    if wanted is not None and count != wanted[0]:
        raise ValueError(f"{file.path} has {count} rows for {wanted[0]} {wanted[1]}. Give one for each.")


def _npy(path: Path, file: RowsFile, wanted: tuple[int, str] | None) -> Tensor:
    found = NpyRows(WHERE, path)  # checks the size
    shape = found.shape[::-1] if found.is_transposed else found.shape
    check_rows(file, shape[0] if shape else 1, wanted)
    if not file.stays_on_disk:
        check_memory(WHERE, file.path, (2 if found.is_transposed else 1) * path.stat().st_size, _LESS)
    with open_regular(path) as stream:
        rows = as_tensor(WHERE, file.path, read_array(stream, shape, file.stays_on_disk))
    return rows if file.stays_on_disk else rows.contiguous()


def _saved(path: Path, file: RowsFile, wanted: tuple[int, str] | None) -> Tensor:
    with open_regular(path) as stream:
        status = os.fstat(stream.fileno())
        if status.st_size == 0:
            raise ValueError("found an empty file; expected one that torch.save wrote. Save the tensor again.")
        # A mapping that worker processes find by the path, so that they share its pages.
        mapped = torch.frombuffer(map_file(File(str(path.resolve()), identity_of(status))), dtype=torch.uint8)
        archive = TorchArchive(stream, _MOST_PICKLE, mapped.untyped_storage())
        rows = archive.tensor(archive.read(TENSORS), "a tensor")
    if rows is None:
        raise ValueError("found something else than one tensor. Save the tensor alone: torch.save(tensor, path).")
    check_rows(file, rows.shape[0] if rows.ndim else 1, wanted)
    if file.stays_on_disk:
        return rows
    check_memory(WHERE, file.path, rows.nbytes, _LESS)
    return rows.clone(memory_format=torch.contiguous_format)
