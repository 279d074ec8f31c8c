"""write_tf_records: tensors as files of TFRecords, for users who have no TensorFlow and for tests.

A record is the bytes of tf.train.Example with packed lists, framed.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_bool, check_int, dtype_name, shown
from datapipes.base.folder import new_folder
from datapipes.datasets.tfrecord.info import NUMBERS
from datapipes.ingest.remote import local_path

__all__ = ["write_tf_records"]

_WHERE = "write_tf_records"
_MOST_FILES = 99_999  # their names have five digits
_BATCH_BYTES = 2**18  # of rows that are encoded at once; as objects of Python they take many times that


def write_tf_records(
    folder: str | os.PathLike[str], columns: Mapping[str, Any], num_files: int = 1, compress: bool = False
) -> None:
    """Write tensors as TFRecords of tf.train.Example, one record for each row.

    The files are `data-00000-of-00004.tfrecord` and so on, with `.gz` behind it if they are packed. Rows go into them
    in order; the numbers of rows in two files differ by at most one. The same arguments give the same bytes. The folder
    appears at once, with all its files: a writer that fails, or is killed, leaves nothing in its place.

    Args:
        folder: of this machine; does not exist yet, or is empty.
        columns: {key: values}, tensors or arrays [n] or [n, k] in host memory, all of the same n. Integers become lists
            of int64. Floats become lists of float32: float64 is rounded.
        num_files: 1 to 99,999. More files than rows are allowed; some then have no records.
        compress: pack the files by gzip.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message names it. Also an integer above the largest
            int64, or a float that float32 cannot hold.
        FileExistsError: `folder` holds something.
        OSError: The disk is full, or the folder cannot be written.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"{_WHERE}: folder must be a path, got {shown(folder)}. Pass one.")
    path = Path(local_path(_WHERE, "folder", os.fspath(folder)))
    tensors, num_rows = _checked(columns)
    check_int(_WHERE, "num_files", num_files, 1, _MOST_FILES)
    check_bool(_WHERE, "compress", compress)
    suffix = ".tfrecord.gz" if compress else ".tfrecord"
    row_bytes = sum(
        (4 if column.is_floating_point() else 1) * column.shape[1] + len(key) for key, column in tensors.items()
    )
    rows = max(_BATCH_BYTES // row_bytes, 1)
    with new_folder(_WHERE, path, 0 if compress else num_rows * row_bytes) as new:
        for number in range(num_files):
            begin, end = num_rows * number // num_files, num_rows * (number + 1) // num_files
            with _opened(new / f"data-{number:05}-of-{num_files:05}{suffix}", compress) as file:
                for first in range(begin, end, rows):
                    last = min(first + rows, end)
                    file.write(records_of([(key.encode(), _values(key, t[first:last])) for key, t in tensors.items()]))


def _checked(columns: Any) -> tuple[dict[str, Tensor], int]:
    """Return the columns as tensors [n, k], and n."""
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(key, str) for key in columns):
        raise TypeError(
            f"{_WHERE}: columns must be a dict of tensors by key, not empty, got {shown(columns)}. Pass it."
        )
    tensors = {}
    for key, value in columns.items():
        tensor = as_tensor(_WHERE, f"columns[{key!r}]", value)
        if tensor.dtype not in (*NUMBERS, torch.bfloat16) or tensor.device.type != "cpu":
            raise TypeError(
                f"{_WHERE}: columns[{key!r}] must hold integers or floats in host memory, got "
                f"{dtype_name(tensor.dtype)} on {tensor.device}. Convert it."
            )
        if tensor.ndim not in (1, 2) or 0 in tensor.shape[1:]:
            raise ValueError(
                f"{_WHERE}: columns[{key!r}] must have shape [n] or [n, k], k at least 1, got {list(tensor.shape)}. "
                "Reshape it, or leave it out."
            )
        tensors[key] = tensor.unsqueeze(1) if tensor.ndim == 1 else tensor
    sizes = {key: len(tensor) for key, tensor in tensors.items()}
    if len({*sizes.values()}) > 1:
        raise ValueError(f"{_WHERE}: the columns must have one number of rows, got {shown(sizes)}. Make them equal.")
    return tensors, len(next(iter(tensors.values())))


def _values(key: str, part: Tensor) -> NDArray[Any]:
    """Return some rows as int64 or float32."""
    if not part.is_floating_point():
        whole = part.to(torch.int64)
        if part.dtype == torch.uint64 and bool((whole < 0).any()):
            raise ValueError(
                f"{_WHERE}: columns[{key!r}] has a number above {2**63 - 1}, the largest int64. Convert it."
            )
        return whole.numpy()
    narrow = part.to(torch.float32)
    if part.dtype == torch.float64 and bool((narrow.isinf() & ~part.isinf()).any()):
        most = float(np.finfo(np.float32).max)
        raise ValueError(f"{_WHERE}: columns[{key!r}] has a number beyond {most}, the largest float32. Scale it.")
    return narrow.numpy()


@contextmanager
def _opened(path: Path, compress: bool) -> Iterator[BinaryIO]:
    with open(path, "xb") as file:
        if not compress:
            yield file
            return
        with gzip.GzipFile(
            "", "wb", 6, file, mtime=0
        ) as packed:  # neither name nor time, so equal rows give equal bytes
            yield packed  # type: ignore[misc]


_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"  # tags of fields that carry their length
_MASK_DELTA = 0xA282EAD8  # of the CRCs that records store


def records_of(columns: Sequence[tuple[bytes, NDArray[Any]]]) -> bytes:
    """Return a record for each row.

    Args:
        columns: keys, and their values: int64 or float32 [rows, values of a row].
    """
    rows = zip(*(_entries(key, values) for key, values in columns), strict=True)
    return b"".join(_record(_field(_FIELD_1, b"".join(entries))) for entries in rows)


def _entries(key: bytes, values: NDArray[Any]) -> Iterator[bytes]:
    """Yield for each row an entry of the map from keys to Features, which holds one packed list."""
    name = _field(_FIELD_1, key)
    if values.dtype == np.float32:
        kind, lists = _FIELD_2, (row.tobytes() for row in values.astype("<f4", copy=False))
    else:
        kind, lists = _FIELD_3, (b"".join(map(_varint, row)) for row in values.tolist())
    for numbers in lists:
        feature = _field(kind, _field(_FIELD_1, numbers))
        yield _field(_FIELD_1, name + _field(_FIELD_2, feature))


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Return a number, seven bits a byte; a negative one takes ten bytes."""
    number %= 2**64
    written = bytearray()
    while number >= 0x80:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


def _record(data: bytes) -> bytes:
    """Return the data of a record, framed by its length and two CRCs."""
    length = len(data).to_bytes(8, "little")
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    """Return the CRC as records store it: turned right by 15 bits, plus a constant."""
    crc = _core.crc32c(data)
    return (((crc >> 15 | crc << 17) + _MASK_DELTA) % 2**32).to_bytes(4, "little")
