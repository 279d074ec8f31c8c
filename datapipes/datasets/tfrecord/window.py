"""A window on a stream of records: it holds whole records, and the begin of the next."""

from __future__ import annotations

from datapipes import _core
from datapipes.datasets.tfrecord.streams import Stream

_FIRST_BYTES = 2**18  # of the window; so it stays in the cache


class RecordTooLong(Exception):
    """A record does not fit into the largest window. The text says how long it is."""


class Window:
    """The bytes of a stream that are not yet used up; a piece of it at a time.

    Attributes:
        at: position in the stream of the first byte of `content`.
    """

    def __init__(self, stream: Stream, most_bytes: int) -> None:
        self._stream = stream
        self._most = most_bytes
        self._room = memoryview(bytearray(min(_FIRST_BYTES, most_bytes)))
        self._begin = self._end = 0
        self.at = 0

    @property
    def content(self) -> memoryview:
        """What was read and not yet used up; valid until the next call of `fill`."""
        return self._room[self._begin : self._end]

    def use_up(self, num_bytes: int) -> None:
        """Drop bytes from the beginning of the content."""
        self._begin += num_bytes
        self.at += num_bytes

    def fill(self) -> bool:
        """Read more behind the content; return False if the stream has ended.

        Raises:
            RecordTooLong: The content fills the largest window, and is not yet a whole record.
            StreamBroken, OSError: as the stream raises them.
        """
        rest = self.content
        room = self._room if len(rest) < len(self._room) else self._larger()
        if self._begin > 0 or room is not self._room:
            room[: len(rest)] = rest
        self._room, self._begin, self._end = room, 0, len(rest)
        count = self._stream.readinto(room[self._end :])
        self._end += count
        return count > 0

    def _larger(self) -> memoryview:
        # By doubling: a length may be made up, so memory follows the bytes that are there.
        if len(self._room) == self._most:
            length = _core.record_length(self._room)
            raise RecordTooLong(f"it has {length} bytes, file_buffer_size allows {self._most}")
        return memoryview(bytearray(min(2 * len(self._room), self._most)))
