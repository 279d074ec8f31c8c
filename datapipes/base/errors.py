"""What the calls of a channel raise; the same names for every channel, whatever carries it."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Iterable, Mapping

import torch

from datapipes.base.codec import Message


class QueueTimeoutError(TimeoutError):
    """The timeout passed before there was room, or a message. The channel can be used on."""


class ChannelClosed(RuntimeError):
    """The channel was closed, here or by the process that made it, and what it had was received."""


class PeerDied(RuntimeError):
    """A process at the other side of the channel ended without a word.

    Attributes:
        pids: Those that ended and had not been told of before; empty where nobody is left at all.
    """

    def __init__(self, message: str, pids: Iterable[int] = ()) -> None:
        super().__init__(message, tuple(pids))
        self.pids: tuple[int, ...] = self.args[1]

    def __str__(self) -> str:
        return str(self.args[0])


class EndOfEpoch(Exception):
    """A sender has sent all of an epoch; not an error. Iterating over a channel ends here.

    Attributes:
        epoch: The one that ended, for that sender.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} has ended"


class RemoteError(RuntimeError):
    """A sender's error of a kind that cannot be raised here under its own name."""


class RemoteTraceback(Exception):
    """The cause of an error that came through a channel: where the sender raised it, as text."""


def error_to_message(error: BaseException, most_bytes: int = 2**20) -> Message:
    """Return the error as a message; its traceback keeps its end where it is longer than `most_bytes`."""
    if not isinstance(error, BaseException):
        raise TypeError(
            f"send_error: error must be an exception, got {type(error).__name__}. Pass the exception itself."
        )
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    parts = {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "text": _text_of(error),
        "notes": json.dumps([str(note) for note in getattr(error, "__notes__", ())]),
        "traceback": trace,
        "pid": str(os.getpid()),
    }
    return {name: _to_bytes(text, most_bytes) for name, text in parts.items()}


def error_from_message(message: Mapping[str, torch.Tensor], *, own_types: bool = False) -> Exception:
    """Return the error that `error_to_message` wrote: of its own type where that is a built-in one, else RemoteError.

    Nothing is unpickled. The sender's traceback is its cause.

    Args:
        own_types: the sender runs this program, so an error type of a module that is imported here keeps its type too;
            it is made from its text.
    """
    kind, module, text, trace, pid = (
        _to_text(message.get(name)) for name in ("type", "module", "text", "traceback", "pid")
    )
    error: Exception = RemoteError(f"{kind}: {text}")
    module = (
        "__main__" if module == "__mp_main__" else module
    )  # the name of the main module in a process that was spawned
    place = sys.modules.get(module) if own_types else builtins
    known = getattr(place, kind, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, (StopIteration, Warning)):
        with contextlib.suppress(Exception):  # some take more than a text
            error = known(text)
    with contextlib.suppress(ValueError, TypeError):
        for note in json.loads(_to_text(message.get("notes")) or "[]"):
            add_note(error, str(note))
    error.__cause__ = RemoteTraceback(f"\n\nIn process {pid}, which sent it:\n{trace}")
    return error


def _text_of(error: BaseException) -> str:
    """What the error was made of where that is one text (KeyError shows it quoted), else what it shows."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be made: {type(second).__name__})"


def _to_bytes(text: str, most_bytes: int) -> torch.Tensor:
    data = text.encode(errors="replace")[-most_bytes:] if most_bytes > 0 else b""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _to_text(data: torch.Tensor | None) -> str:
    return "" if data is None else bytes(data.flatten().tolist()).decode(errors="replace")


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to an error on its way up, once (Python 3.10 has no notes and shows the error as it is)."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)
