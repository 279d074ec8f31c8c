"""The errors with which a server refuses requests. An error is sent as the name of its type, which must be on a list,
and a text. So nothing is unpickled.
"""

from __future__ import annotations

import builtins
import json
from typing import Any

from datapipes.base.checks import one_line
from datapipes.base.errors import text_of
from datapipes.base.strict_json import parse_strict

MOST_BYTES = 4000  # of an error; gRPC carries errors in headers of at most 8 KiB
_BUILT_IN = (
    *("ValueError", "TypeError", "IndexError", "KeyError", "OverflowError", "RuntimeError", "MemoryError"),
    *("NotImplementedError", "OSError"),
)


class BadRequest(ValueError):
    """The server cannot answer this request; the text says why."""


class OtherPartition(ValueError):
    """Client and server have different parts, partitions, contents or versions; the text of the error names both
    values.
    """


class AnswerTooLarge(ValueError):
    """The answer would have more bytes than the server sends at once; the text of the error has both numbers. Ask for
    less at once.
    """


class Unavailable(ConnectionError):
    """The server is full or stops: the same request may be answered later, here or by the next server of the part."""


class UnknownProducer(LookupError):
    """The server does not know that the client uses the producer, for example since the server was restarted. Create
    the producer again.
    """


class NoRoom(ConnectionError):
    """The receiver runs, but has no room for the minibatch yet. Push the minibatch again, with a full time limit."""


class UnknownSender(LookupError):
    """The receiver does not know the sender. Either the receiver was restarted; or it took the sender for dead, and
    another sender has replaced it.
    """


_OWN: dict[str, type[Exception]] = {
    cls.__name__: cls
    for cls in (BadRequest, OtherPartition, AnswerTooLarge, Unavailable, UnknownProducer, NoRoom, UnknownSender)
}


def error_to_bytes(error: BaseException) -> bytes:
    """Write the type and the text of `error` as JSON, to be sent to a client. If the type is not on the list of known
    types, its nearest base class on the list is written.
    """
    sent = next((cls.__name__ for cls in type(error).__mro__ if _type_of(cls.__name__) is cls), "RuntimeError")
    name = type(error).__name__
    text = text_of(error) if sent == name else f"{name}: {text_of(error)}"
    data = json.dumps({"type": sent, "text": text[:MOST_BYTES]}).encode()
    while len(data) > MOST_BYTES:
        text = text[: min(len(text), MOST_BYTES) * 3 // 4]
        data = json.dumps({"type": sent, "text": f"{text}..."}).encode()
    return data


def error_from_bytes(data: Any) -> tuple[type[Exception], str] | None:
    """Read what `error_to_bytes` wrote; return (type, text) of the error. The text is one line, with unprintable
    characters escaped. Return None if `data` is something else.
    """
    try:
        values = parse_strict(bytes(data).decode("ascii"))
    except (ValueError, TypeError):
        return None
    if not isinstance(values, dict):
        return None
    kind, text = values.get("type"), values.get("text")
    error = _type_of(kind) if isinstance(kind, str) else None
    return None if error is None or not isinstance(text, str) else (error, one_line(text))


def _type_of(name: str) -> type[Exception] | None:
    return _OWN.get(name) or (getattr(builtins, name) if name in _BUILT_IN else None)
