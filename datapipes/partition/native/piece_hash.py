"""The hash that partition.json has for each file: the SHA-256 of the SHA-256s of the file's pieces of 2^24 bytes.

The pieces of a large file are hashed by several threads (hashlib lets go of the GIL), so a part opens as fast as its
file can be read. `split -b 16M --filter='sha256sum'` prints the hashes of the pieces.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from datapipes.base.threads import num_threads

PIECE = 2**24  # bytes
READ = 2**20  # bytes that a thread holds


class PieceHash:
    """Computes the hash of a file while it is written: `update` takes its bytes, in portions of any size."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._piece = hashlib.sha256()

    def update(self, values: Any) -> None:
        """Hash the next bytes; `values` is any object with contiguous bytes."""
        left = memoryview(values).cast("B")
        while len(left) > 0:
            room = PIECE - self.size % PIECE
            self._piece.update(left[:room])
            self.size += len(left[:room])
            left = left[room:]
            if self.size % PIECE == 0:
                self._pieces.append(self._piece.digest())
                self._piece = hashlib.sha256()

    def hexdigest(self) -> str:
        """Return the hash of all bytes so far, 64 hexadecimal digits."""
        last = [self._piece.digest()] if self.size % PIECE else []
        return _of_pieces([*self._pieces, *last])


def hash_of_bytes(values: bytes) -> str:
    """Return the hash of a file with the content `values`, 64 hexadecimal digits."""
    whole = PieceHash()
    whole.update(values)
    return whole.hexdigest()


def hash_of_file(descriptor: int, size: int) -> str:
    """Return the hash of the first `size` bytes of an open file, 64 hexadecimal digits.

    Raises:
        ValueError: The file is shorter.
        OSError: The file cannot be read.
    """
    begins = range(0, size, PIECE)
    threads = min(num_threads(), len(begins))
    if threads <= 1:
        return _of_pieces([_piece_at(descriptor, begin, size) for begin in begins])
    with ThreadPoolExecutor(threads, "datapipes-hash") as pool:
        return _of_pieces([*pool.map(lambda begin: _piece_at(descriptor, begin, size), begins)])


def _piece_at(descriptor: int, begin: int, size: int) -> bytes:
    # Read, not mapped: a mapped file that is truncated meanwhile would kill the process.
    piece, end = hashlib.sha256(), min(begin + PIECE, size)
    buffer = memoryview(bytearray(min(READ, end - begin)))
    while begin < end:
        count = os.preadv(descriptor, [buffer[: end - begin]], begin)
        if count == 0:
            raise ValueError(f"it ends at byte {begin} of {size}")
        piece.update(buffer[:count])
        begin += count
    return piece.digest()


def _of_pieces(pieces: list[bytes]) -> str:
    return hashlib.sha256(b"".join(pieces)).hexdigest()
