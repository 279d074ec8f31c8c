"""Refuse an Arrow stream whose batches are compressed: a few bytes could ask for any memory.

Arrow offers no option for it, so the few fields that tell are read here from the messages' flatbuffers. An offset that
leads out of the message raises struct.error; Arrow itself verifies the rest.
"""

from __future__ import annotations

import struct
from typing import Any

MOST_MESSAGES = 2  # the schema and one batch
_HEADER_TYPE, _HEADER = 1, 2  # fields of the table Message
_SCHEMA, _BATCH = 1, 3  # values of header_type
_COMPRESSION = 3  # field of the table RecordBatch


def refuse_compression(pa: Any, stream: Any) -> None:
    """Raise ValueError unless a stream, a buffer, is a schema and at most one batch, which is not compressed.

    Raises:
        ValueError: It is another stream.
        pyarrow.ArrowException, OSError: It is no stream; Arrow says why.
    """
    reader = pa.ipc.MessageReader.open_stream(stream)
    kinds: list[int] = []
    while len(kinds) <= MOST_MESSAGES:
        try:
            message = reader.read_next_message()
        except StopIteration:
            break
        kinds.append(_kind(message))
    if kinds not in ([_SCHEMA], [_SCHEMA, _BATCH]):
        raise ValueError(f"found messages of the types {kinds}, allowed are a schema (1) and one batch (3)")


def _kind(message: Any) -> int:
    """Return the type of a message.

    Raises:
        ValueError: A batch is compressed, or the message is cut off.
    """
    data = message.metadata.to_pybytes()
    try:
        table = struct.unpack_from("<I", data)[0]
        place = _field(data, table, _HEADER_TYPE)
        kind = data[place] if place else 0
        if kind == _BATCH:
            place = _field(data, table, _HEADER)
            batch = place + struct.unpack_from("<I", data, place)[0]
            if not place or _field(data, batch, _COMPRESSION):
                raise ValueError("found a batch that is compressed")
    except (struct.error, IndexError) as error:
        raise ValueError(f"found a message that is cut off ({error})") from error
    return kind


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a flatbuffers table is, 0 if it has its default."""
    layout = table - struct.unpack_from("<i", data, table)[0]
    if layout < 0:
        raise struct.error("a layout before the message")
    size = struct.unpack_from("<H", data, layout)[0]
    if 4 + 2 * number + 2 > size:
        return 0
    offset = struct.unpack_from("<H", data, layout + 4 + 2 * number)[0]
    return table + offset if offset else 0
