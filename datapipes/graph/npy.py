"""Read a .npy file of unknown origin, and turn tensors into the arrays that .npy files contain.

The reader unpickles nothing. It checks the size of the file against the header before it maps or reads an array.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.graph.checks import MAX_NODES
from datapipes.processes.sharing import know_mapping

REMEDY = "save the graph again"

_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_TRIES = 10


@contextlib.contextmanager
def readable(
    where: str, path: Path, dtype: torch.dtype, shape: tuple[int, ...], remedy: str = REMEDY
) -> Iterator[None]:
    """Context manager: if reading a corrupt .npy file fails inside, raise a ValueError that names the file `path`.

    Args:
        dtype, shape: what the file should have, for the error.
        remedy: a sentence that says what to do.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise _unreadable(where, path, dtype, shape, error, remedy) from error
        other = ", or open the graph with mmap=False" if remedy == REMEDY else ""
        raise OSError(
            error.errno,
            f"{where}: no descriptor is left for {path}; each mapped file keeps one. Raise the limit (ulimit -n)"
            f"{other}",
        ) from error
    except Exception as error:
        if says_all(error, path):
            raise ValueError(f"{where}: {error}") from error
        raise _unreadable(where, path, dtype, shape, error, remedy) from error


def says_all(error: Exception, path: Path) -> bool:
    """Return whether `error` is one of `open_regular` or `read_regular`: its text names `path` and says what to do."""
    return isinstance(error, ValueError) and str(error).startswith(f"{path} ")


def _unreadable(
    where: str, path: Path, dtype: torch.dtype, shape: tuple[int, ...], error: Exception, remedy: str
) -> ValueError:
    why = (str(error) or type(error).__name__).removesuffix(".")
    return ValueError(
        f"{where}: {path} cannot be read as {dtype_name(dtype)} {shown(list(shape))}: {why}. It may be truncated or "
        f"corrupt; {remedy}."
    )


def read_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of a .npy file; return (shape, whether in Fortran order, dtype). `file` is then at the values.

    NumPy parses the header as Python code. In Python 3.11 that may fail with a SystemError about the recursion depth if
    another thread parses at the same time: the threads share the counter. So the parsing is tried again.

    Raises:
        Nearly any error if the header is corrupt.
    """
    shape, fortran, dtype = _parsed_header(file)
    if not all(
        type(length) is int and 0 <= length <= MAX_NODES for length in shape
    ):  # the product of two negative lengths is positive
        raise ValueError(f"the header has the shape {shown(list(shape))}; sizes must be integers in [0, {MAX_NODES}]")
    return shape, fortran, dtype


def _parsed_header(file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    begin = file.tell()
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return _READ_HEADER[np.lib.format.read_magic(file)](file)
        file.seek(begin)
    return _READ_HEADER[np.lib.format.read_magic(file)](file)


def read_array(file: BinaryIO, shape: tuple[int, ...], mmap: bool) -> np.ndarray[Any, Any]:
    """Return the array in an open .npy file, which must have the shape `shape`; memory-mapped with `mmap`.

    Unlike np.load, do not guess the file format, and unpack no archive.
    """
    written, fortran, dtype = read_header(file)
    if dtype.kind not in "biufc":
        raise ValueError(f"the file has the dtype {dtype}; numbers are needed")
    if written != shape:
        raise ValueError(f"the file has the shape {shown(list(written))}")
    # Check this before the mapping: reading a mapping beyond the end of its file would kill the process.
    begin, size = file.tell(), os.fstat(file.fileno()).st_size
    needed = math.prod(shape) * dtype.itemsize
    if begin + needed != size:
        raise ValueError(f"the file has {size - begin} bytes of values, and needs {needed}")
    order: Any = "F" if fortran else "C"
    if not mmap or size == begin:
        return np.fromfile(file, dtype, math.prod(shape)).reshape(shape, order=order)
    # "c": pages are shared until a process writes to them; torch needs a writable array.
    array = np.memmap(file, dtype, "c", begin, shape, order)
    know_mapping(array, file)
    return array


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a tensor as a contiguous NumPy array; a dtype that NumPy lacks becomes integers of the same size."""
    tensor = tensor.cpu().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no such dtype
        return tensor.view(
            {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        ).numpy()


class NpyRows:
    """Reads rows of a file of numbers without mapping it, so that only the requested rows are in memory.

    Args:
        path: a .npy file; with `raw`, a file of values without a header.
        raw: (dtype, shape of a row) of a file without a header; None for a .npy file.
    Attributes:
        shape: the shape of the values as they lie in the file, in C order.
        begin: the byte of the file at which the values begin.
        is_transposed: whether the array is in Fortran order, so that its shape is the reverse of `shape`.
        dtype: the NumPy dtype of the values.
    Raises:
        ValueError: The file is no .npy file, holds no numbers, or is truncated.
        OSError: The file cannot be opened.
    """

    def __init__(self, where: str, path: Path, raw: tuple[np.dtype[Any], tuple[int, ...]] | None = None) -> None:
        self.path, self._where, fortran = path, where, False
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if raw is None:
                try:
                    shape, fortran, self.dtype = read_header(file)
                except Exception as error:  # a corrupt header raises nearly anything
                    raise ValueError(
                        f"{where}: {path} is no .npy file: {shown(error)}. Write it with numpy.save."
                    ) from error
                self.begin = file.tell()
            else:
                self.begin, self.dtype = 0, raw[0]
                shape = (size // (self.dtype.itemsize * math.prod(raw[1])), *raw[1])
        if self.dtype.kind not in "biufc" or not self.dtype.isnative:
            raise ValueError(
                f"{where}: {path} holds {self.dtype}; numbers in the machine's byte order are needed. Convert it."
            )
        num_bytes = math.prod(shape) * self.dtype.itemsize
        if self.begin + num_bytes != size:
            raise ValueError(
                f"{where}: {path} has {size - self.begin} bytes of values; {shown(list(shape))} of {self.dtype} need "
                f"{num_bytes}. It may be truncated; write it again."
            )
        self.is_transposed = fortran and len(shape) > 1
        self.shape = shape[::-1] if self.is_transposed else shape

    def columns(self) -> list[NpyRows]:
        """Split a file of shape [k, n] into its k rows: return k NpyRows of shape [n] each; k should be small."""
        parts = [copy.copy(self) for _ in range(self.shape[0])]
        for number, part in enumerate(parts):
            part.shape = self.shape[1:]
            part.begin += number * math.prod(part.shape) * self.dtype.itemsize
        return parts

    def read(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Read the rows [begin, end) and return them; rows are along the first dimension of `shape`.

        Raises:
            ValueError: The file has become shorter.
        """
        row = math.prod(self.shape[1:])
        with open_regular(self.path) as file:
            file.seek(self.begin + begin * row * self.dtype.itemsize)
            values = np.fromfile(file, self.dtype, (end - begin) * row)
        if values.size != (end - begin) * row:
            raise ValueError(f"{self._where}: {self.path} has become shorter while it was read. Write it again.")
        return values.reshape(end - begin, *self.shape[1:])
