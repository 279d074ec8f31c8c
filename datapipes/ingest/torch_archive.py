"""Read files that torch.save wrote since version 1.6, without torch's unpickler: zip archives of a pickle and tensors.

torch's unpickler hashes keys that the file chose, and writes values into its messages. Both take forever if a tuple has
one tuple as both of its items, this tuple again has one tuple as both items, and so on. Also, torch's list of allowed
globals belongs to the whole process. So plain_pickle.py reads the pickle, and this module makes tensors of the members
that the pickle refers to.

Invariant: no code of a file runs, and time and memory stay in proportion to its size. Refused with `FileRefused`: a
packed archive, a value other than plain data and dense tensors, a tensor beyond its storage, and a tensor with more
bytes than the file.
"""

from __future__ import annotations

import io
import math
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from datapipes.base.checks import as_tensor
from datapipes.ingest.plain_pickle import MAX_LENGTH, METHODS, FileRefused, Global, Items, Reader, parse_pickles

MAX_MEMBERS = 2**12
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # zipfile does not bound the unpacked bytes of others
_ENTRY = b"PK\x01\x02"  # before each entry of the directory
_MOST_DIMENSIONS = 64
_SAVED = "a file that torch saved"
_HEADER_BYTES, _LENGTHS_AT = 30, 26  # the header of a member; two lengths at its byte 26 say how much follows it
_BYTE_ORDERS = {b"little": "little", b"big": "big"}

_KINDS = {
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "Short": torch.int16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Float": torch.float32,
    "Double": torch.float64,
    "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128,
}
_STORAGES = {Global(f"{kind}Storage"): dtype for kind, dtype in _KINDS.items()}
_UNTYPED = Global("UntypedStorage")
_SIGNS: dict[str, Callable[[Tensor], Tensor]] = {"conj": Tensor.conj, "neg": torch._neg_view}
_DTYPES = {Global(name): dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}


def _length(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_LENGTH:
        raise ValueError("something else than a length")
    return value


def _lengths(values: object = ()) -> tuple[int, ...]:
    if not isinstance(values, tuple) or len(values) > _MOST_DIMENSIONS:  # a file may name one tuple again and again
        raise ValueError(f"something else than up to {_MOST_DIMENSIONS} lengths")
    return tuple(map(_length, values))


class _Storage:
    """What the reader makes of a storage: its member in the archive, and the count and dtype of its numbers.

    A dtype of None means bytes, whose dtype each tensor gives.
    """

    __slots__ = ("count", "dtype", "key")

    def __init__(self, reference: object) -> None:
        if not isinstance(reference, tuple) or len(reference) != 5:
            raise ValueError("a reference that torch does not write")
        _, kind, key, _, count = reference
        if not isinstance(kind, Global) or not (kind in _STORAGES or kind is _UNTYPED) or not isinstance(key, str):
            raise ValueError("a reference to something else than a storage of numbers")
        self.dtype, self.key, self.count = _STORAGES.get(kind), key, _length(count)


class _Tensor:
    """What the reader makes of a tensor: its storage, offset, shape, strides and dtype.

    `signs` lists which of torch's conjugate and negative bits are set: keys of `_SIGNS`.
    """

    __slots__ = ("dtype", "offset", "shape", "signs", "storage", "strides")

    def __init__(self, storage: Any, offset: Any, shape: Any, strides: Any, *more: Any) -> None:
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        self.storage, self.offset = storage, _length(offset)
        self.shape, self.strides = _lengths(shape), _lengths(strides)
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor with more or fewer strides than dimensions")
        rest = more[2:]  # after two arguments for gradients
        if storage.dtype is None:
            if not rest or not isinstance(rest[0], Global) or rest[0] not in _DTYPES:
                raise ValueError("a tensor without a dtype")
            self.dtype, rest = _DTYPES[rest[0]], rest[1:]
        else:
            self.dtype = storage.dtype
        self.signs = [sign for items in rest for sign, is_set in items.pairs if is_set]
        if not all(isinstance(sign, str) and sign in _SIGNS for sign in self.signs):
            raise ValueError("a tensor with unknown properties")
        if self.dtype == torch.bool and self.signs:
            raise ValueError("a tensor of bool with a sign")


TENSORS: dict[tuple[str, str], Global] = {
    **{("torch._utils", name): Global(name, _Tensor) for name in ("_rebuild_tensor_v2", "_rebuild_tensor_v3")},
    ("collections", "OrderedDict"): Global("OrderedDict", Items),  # the hooks of a tensor
    ("torch", "Size"): Global("Size", _lengths),
    **{("torch", kind.name): kind for kind in (*_STORAGES, *_DTYPES)},
    ("torch.storage", "UntypedStorage"): _UNTYPED,
}


class _TensorReader(Reader):
    """A Reader of pickles in which plain data and dense tensors occur, as torch.save writes them."""

    methods: Mapping[str, str] = {
        **METHODS,
        "put": "BINPUT LONG_BINPUT MEMOIZE",  # not PUT and GET, whose numbers are text of any length
        "get": "BINGET LONG_BINGET",
        "binpersid": "BINPERSID",
    }

    def _binpersid(self, _: Any) -> None:
        self._stack.append(_Storage(self._stack.pop()))


class TorchArchive:
    """An archive that torch.save wrote: a pickle, and the numbers of its tensors. No code of the file is run.

    Args:
        stream: the file.
        most_bytes: the most bytes that its pickle may have.
        mapped: all bytes of the file, mapped. Tensors then share these bytes, and checksums are not checked. None:
            tensors are read into memory, and checksums are checked.
    Raises:
        FileRefused: The archive is broken, packed, or not from torch.save.
    """

    def __init__(self, stream: BinaryIO, most_bytes: int, mapped: UntypedStorage | None = None) -> None:
        self._stream, self._mapped = stream, mapped
        self._read: dict[str, tuple[UntypedStorage, torch.dtype | None]] = {}  # {key: (bytes, dtype if copied)}
        with _told("a broken archive"):  # on corrupt archives zipfile raises nearly anything
            self._archive = open_archive(stream.read()) if mapped is None else zipfile.ZipFile(stream)
            self._size = stream.seek(0, 2)
            members = self._archive.infolist()
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise FileRefused("a packed archive: its entries are compressed, and may be of any size", _SAVED)
            if sum(member.file_size for member in members) > self._size:
                raise FileRefused("a packed archive: its entries are larger than the file", _SAVED)
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            if len(pickles) != 1 or pickles[0].file_size > most_bytes:
                raise FileRefused(f"no data.pkl, several, or one of more than {most_bytes} bytes", _SAVED)
            self._pickled = read_member(self._archive, pickles[0])
            self._folder = pickles[0].filename.removesuffix("data.pkl")
            self._members = {member.filename: member for member in members}
            order = self._members.get(f"{self._folder}byteorder")  # older versions of torch wrote none
            self._is_swapped = order is not None and _BYTE_ORDERS[read_member(self._archive, order)] != sys.byteorder

    def read(self, allowed: Mapping[tuple[str, str], Global]) -> object:
        """Return the object in the archive's pickle. `tensor` makes tensors of what stands for them in this object.

        Args:
            allowed: {(module, name): Global}, the only globals that the pickle may name.
        Raises:
            FileRefused: The pickle is broken or hostile, or holds something else.
        """
        return parse_pickles(self._pickled, allowed, kind=_TensorReader)[0]

    def tensor(self, value: object, name: str) -> Tensor | None:
        """Make the tensor for which `value`, from the result of `read`, stands. None: `value` stands for no tensor.

        The tensor shares the bytes of its storage: the mapped bytes, or memory that must not be written to. A
        contiguous copy of the tensor has at most as many bytes as the file.

        Raises:
            FileRefused: The archive lacks numbers of the tensor, or the tensor has more bytes than the file.
        """
        if not isinstance(value, _Tensor):
            return None
        with _told("broken tensors"):  # a member is missing or broken, or a number overflows
            return self._made(value, name)

    def _made(self, value: _Tensor, name: str) -> Tensor:
        storage = self._storage(value.storage, value.dtype)
        if 0 in value.shape:
            return torch.empty(value.shape, dtype=value.dtype)
        count, whole = storage.nbytes() // value.dtype.itemsize, math.prod(value.shape) * value.dtype.itemsize
        if whole > self._size:  # an expanded tensor: a small file may repeat one number a billion times
            shape = f"{name} of shape {[*value.shape]}, {whole} bytes, of {count} numbers in {self._size} bytes"
            raise FileRefused(shape, "numbers for all of it", "Save tensor.contiguous() instead.")
        last = value.offset + sum((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))
        if last >= count:
            raise FileRefused(f"{count} numbers for {name}, which needs {last + 1}", "all numbers of a tensor")
        made = torch.empty(0, dtype=value.dtype).set_(storage, value.offset, value.shape, value.strides)
        for sign in value.signs:
            made = _SIGNS[sign](made)
        return made

    def _storage(self, stored: _Storage, dtype: torch.dtype) -> UntypedStorage:
        """Return the bytes for which `stored` stands, in the byte order of this machine, for tensors of `dtype`."""
        if stored.key not in self._read:
            member = self._members[f"{self._folder}data/{stored.key}"]
            size = stored.count * (1 if stored.dtype is None else stored.dtype.itemsize)
            if size != member.file_size:
                text = f"a storage of {stored.count} numbers with {member.file_size} bytes"
                raise FileRefused(text, f"{size // max(stored.count, 1)} bytes for each number")
            storage, only = self._bytes_of(member), None
            if self._is_swapped or storage.data_ptr() % dtype.itemsize:
                storage, only = storage.clone(), dtype  # type: ignore[no-untyped-call]
            if self._is_swapped:
                storage.byteswap(dtype)  # type: ignore[no-untyped-call]
            self._read[stored.key] = storage, only
        storage, only = self._read[stored.key]
        if only not in (None, dtype) or storage.data_ptr() % dtype.itemsize:  # a copy for each dtype would take memory
            raise FileRefused(f"a storage of {dtype} that has another dtype too", "one dtype for each storage")
        return storage

    def _bytes_of(self, member: zipfile.ZipInfo) -> UntypedStorage:
        if self._mapped is None:
            content = np.frombuffer(read_member(self._archive, member), np.uint8)
            return as_tensor("torch.load", member.filename, content).untyped_storage()
        self._archive.open(member).close()  # checks the header before the bytes
        self._stream.seek(member.header_offset + _LENGTHS_AT)
        begin = member.header_offset + _HEADER_BYTES + sum(struct.unpack("<HH", self._stream.read(4)))
        if begin + member.file_size > self._size:
            raise EOFError(f"{member.file_size} bytes from byte {begin} on, of {self._size}")
        storage: UntypedStorage = self._mapped[begin : begin + member.file_size]
        return storage


@contextmanager
def _told(text: str) -> Iterator[None]:
    """Context manager: turn any error raised inside into FileRefused; `text` says what was found."""
    try:
        yield
    except FileRefused:
        raise
    except Exception as error:
        raise FileRefused(f"{text} ({type(error).__name__}: {str(error)[:200]})", _SAVED) from error


# --- zip archives of unknown origin, such as npz files: memory stays in proportion to the archive and to the stated
# sizes of its members, even if the stated sizes are false


def open_archive(content: bytes) -> zipfile.ZipFile:
    """Open the zip archive whose bytes are `content`, and return it.

    Raises:
        Exception: The archive is broken, or has more than about `MAX_MEMBERS` members. Any class of error is possible,
            since zipfile raises nearly anything.
    """
    count = content.count(_ENTRY)  # before zipfile makes an object of half a kilobyte for each member
    if count > MAX_MEMBERS:
        raise ValueError(f"about {count} members, at most {MAX_MEMBERS} are allowed")
    return zipfile.ZipFile(io.BytesIO(content))


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a member of a zip archive. No more than its stated size is unpacked.

    Raises:
        Exception: The member is broken, or its compression is not one of `PACKINGS`.
    """
    if member.compress_type not in PACKINGS:
        raise ValueError(f"a member packed by method {member.compress_type}, {PACKINGS} are allowed")
    with archive.open(member) as stream:
        content = stream.read(member.file_size)  # read() would unpack up to 2 GiB before it cuts
    if len(content) != member.file_size:
        raise EOFError(f"{len(content)} of {member.file_size} bytes")
    return content
