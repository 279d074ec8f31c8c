"""Errors as messages: an error is sent through a channel with its notes and its traceback. Nothing is pickled."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence

import torch

from datapipes.base.codec import Message
from datapipes.base.errors import PeerDied, RemoteError, RemoteTraceback, add_note, text_of


def error_to_message(error: BaseException, most_bytes: int = 2**20) -> Message:
    """Return the error as a message. Of a text longer than `most_bytes`, such as a traceback, only the end is sent."""
    if not isinstance(error, BaseException):
        raise TypeError(
            f"send_error: error must be an exception, got {type(error).__name__}. Pass the exception itself."
        )
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    parts = {
        "type": type(error).__name__,
        "module": type(error).__module__,
        "text": text_of(error),
        "notes": json.dumps([str(note) for note in getattr(error, "__notes__", ())]),
        "traceback": trace,
        "pid": str(os.getpid()),
    }
    if isinstance(error, PeerDied):
        parts["pids"] = json.dumps(error.pids)
    return {name: _to_bytes(text, most_bytes) for name, text in parts.items()}


def error_from_message(
    message: Mapping[str, torch.Tensor], *, own_types: bool = False, kept: Sequence[type[Exception]] = ()
) -> Exception:
    """Return the error that `error_to_message` wrote, with the traceback of the sender as its cause.

    An error of a built-in type keeps its type; an error of any other type becomes a RemoteError. Nothing is unpickled.

    Args:
        own_types: True if the sender runs the same program. Then an error also keeps its type if the type is in a
            module that is imported here. The constructor of the type gets only the text.
        kept: further types; an error of such a type keeps it.
    """
    kind, module, text, trace, pid = (
        _to_text(message.get(name)) for name in ("type", "module", "text", "traceback", "pid")
    )
    error: Exception = RemoteError(f"{kind}: {text}")
    # A spawned process calls the main module __mp_main__.
    module = "__main__" if module == "__mp_main__" else module
    place = sys.modules.get(module) if own_types else builtins
    named = [type_ for type_ in kept if (type_.__module__, type_.__name__) == (module, kind)]
    type_ = named[0] if named else getattr(place, kind, None)
    if isinstance(type_, type) and issubclass(type_, Exception) and not issubclass(type_, (StopIteration, Warning)):
        # The constructor may need other arguments than one text, or raise a BaseException such as SystemExit.
        with contextlib.suppress(BaseException):
            made = PeerDied(text, _pids_of(message.get("pids"))) if type_ is PeerDied else type_(text)
            error = made if isinstance(made, Exception) else error  # __new__ may make anything
    with contextlib.suppress(ValueError, TypeError):
        for note in json.loads(_to_text(message.get("notes")) or "[]"):
            add_note(error, str(note))
    error.__cause__ = RemoteTraceback(f"\n\nIn process {pid}, which sent it:\n{trace}")
    return error


def error_to_json(error: BaseException, most_bytes: int = 2**14) -> dict[str, list[int]]:
    """Return the message of `error_to_message` as a JSON value, for a pipe."""
    return {name: part.tolist() for name, part in error_to_message(error, most_bytes).items()}


def error_from_json(said: Mapping[str, list[int]], *, own_types: bool) -> Exception:
    """Return the error that `error_to_json` wrote; see error_from_message."""
    parts = {name: torch.tensor(part, dtype=torch.uint8) for name, part in said.items()}
    return error_from_message(parts, own_types=own_types)


def _to_bytes(text: str, most_bytes: int) -> torch.Tensor:
    data = text.encode(errors="replace")[-most_bytes:] if most_bytes > 0 else b""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _pids_of(data: torch.Tensor | None) -> list[int]:
    with contextlib.suppress(ValueError, TypeError):
        return [int(pid) for pid in json.loads(_to_text(data))]
    return []


def _to_text(data: torch.Tensor | None) -> str:
    return "" if data is None else bytes(data.flatten().view(torch.uint8).tolist()).decode(errors="replace")
