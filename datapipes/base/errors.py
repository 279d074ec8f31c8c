"""The errors that a loader and the calls of every channel raise, and errors as messages."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping

import torch

from datapipes.base.codec import Message

__all__ = [
    "ChannelClosed",
    "ChannelDamaged",
    "EndOfEpoch",
    "LoaderTimeoutError",
    "PeerDied",
    "QueueTimeoutError",
    "RemoteError",
]


class QueueTimeoutError(TimeoutError):
    """The timeout passed before there was room or a message. The channel stays usable: call again."""


class LoaderTimeoutError(TimeoutError):
    """No minibatch came within the `timeout` of a loader or a Prefetcher. The epoch stays usable: the next call goes on
    waiting. A TimeoutError of another type comes from a stage, and ends the epoch as any error of a stage does.
    """


class ChannelClosed(RuntimeError):
    """The channel was closed, here or by the process that made it, and all its messages were received; for good."""


class ChannelDamaged(RuntimeError):
    """The shared memory of a ShmChannel holds what datapipes does not write: a process has overwritten it.

    All calls in all processes raise this from then on; make a new channel. Received tensors may hold other values.
    """


class PeerDied(RuntimeError):
    """A process at the other side of the channel ended without leaving the channel; or, from a DataLoader, workers died
    that cannot be replaced any more.

    Notes say how each process ended, where that is known. After `recv` the channel stays usable, if another process
    still sends. A loader's epoch is over; its `state_dict()` names the minibatch.

    Attributes:
        pids: The processes that ended and were not reported before; empty if nobody is left at the other side.
    """

    def __init__(self, message: str, pids: Iterable[int] = ()) -> None:
        super().__init__(message, tuple(pids))
        self.pids: tuple[int, ...] = self.args[1]

    def __str__(self) -> str:
        return str(self.args[0])


class EndOfEpoch(Exception):
    """A sender has sent all of an epoch. Not an error: iteration over a channel ends here. The next `recv` is about the
    next epoch.

    Attributes:
        epoch: The epoch of that sender that ended.
    """

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"epoch {self.epoch} has ended"


class RemoteError(RuntimeError):
    """An error of a sender, or of a stage in a worker process, whose type cannot be raised here.

    Its text begins with the name of that type. The notes are those of the error; the cause is the traceback, as text.
    """


class RemoteTraceback(Exception):
    """The cause of an error that came through a channel: the traceback of the sender, as text."""


def error_to_message(error: BaseException, most_bytes: int = 2**20) -> Message:
    """Return the error as a message. Of a text longer than `most_bytes`, such as the traceback, it keeps the end."""
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
    """Return the error that `error_to_message` wrote, with the traceback of the sender as its cause.

    A built-in type is kept; any other type becomes RemoteError. Nothing is unpickled.

    Args:
        own_types: the sender runs this program, so an error type of any module that is imported here is kept too. The
            error is made from its text.
    """
    kind, module, text, trace, pid = (
        _to_text(message.get(name)) for name in ("type", "module", "text", "traceback", "pid")
    )
    error: Exception = RemoteError(f"{kind}: {text}")
    # A spawned process calls the main module __mp_main__.
    module = "__main__" if module == "__mp_main__" else module
    place = sys.modules.get(module) if own_types else builtins
    known = getattr(place, kind, None)
    if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, (StopIteration, Warning)):
        # The constructor may need other arguments than one text, or raise what is no Exception, such as SystemExit.
        with contextlib.suppress(BaseException):
            made = known(text)
            error = made if isinstance(made, Exception) else error  # __new__ may make anything
    with contextlib.suppress(ValueError, TypeError):
        for note in json.loads(_to_text(message.get("notes")) or "[]"):
            add_note(error, str(note))
    error.__cause__ = RemoteTraceback(f"\n\nIn process {pid}, which sent it:\n{trace}")
    return error


def _text_of(error: BaseException) -> str:
    """Return the one text that the error was made of (str of a KeyError would quote it), otherwise str(error)."""
    if len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]
    try:
        return str(error)
    except BaseException as second:  # SystemExit, too, is no reason to end here
        return f"(its text cannot be made: {type(second).__name__})"


def _to_bytes(text: str, most_bytes: int) -> torch.Tensor:
    data = text.encode(errors="replace")[-most_bytes:] if most_bytes > 0 else b""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _to_text(data: torch.Tensor | None) -> str:
    return "" if data is None else bytes(data.flatten().view(torch.uint8).tolist()).decode(errors="replace")


def add_note(error: BaseException, note: str) -> None:
    """Attach `note` to an error, once. Python 3.10 has no notes; there the error stays as it is."""
    if hasattr(error, "add_note") and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def as_error(
    raised: BaseException,
    raiser: str = "a stage",
    remedy: str = "Raise an error, or return None to drop the minibatch.",
) -> Exception:
    """Return `raised` as an error that ends an epoch and no more than that.

    What is no Exception (SystemExit, KeyboardInterrupt, GeneratorExit) would end a worker or the consumer; it becomes a
    RuntimeError. LoaderTimeoutError says that the next call goes on waiting; of a loader within `raiser` that does not
    hold, so it becomes a plain TimeoutError.
    """
    if isinstance(raised, LoaderTimeoutError):
        error: Exception = TimeoutError(*raised.args)
    elif isinstance(raised, Exception):
        return raised
    else:
        text = _text_of(raised)
        error = RuntimeError(f"{raiser} raised {type(raised).__name__}{f': {text}' if text else ''}. {remedy}")
    error.__cause__ = raised
    for note in getattr(raised, "__notes__", []):
        add_note(error, note)
    return error


def as_seen_by_consumer(raised: BaseException) -> BaseException:
    """Return `as_error(raised)`, but `raised` itself if it is an Exception or may come from a signal.

    In the main thread Ctrl-C raises KeyboardInterrupt, and a handler may call sys.exit(), also while a stage runs; only
    GeneratorExit is never a signal's. Passed on, it would end a generator around the consumer's loop without a word.
    """
    may_be_a_signal = threading.current_thread() is threading.main_thread() and not isinstance(raised, GeneratorExit)
    return raised if isinstance(raised, Exception) or may_be_a_signal else as_error(raised)
