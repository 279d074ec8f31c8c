"""What does not survive a fork: CUDA, and what registers here, such as the clients of Arrow Flight.

A forked child has the memory of its parent but only one of its threads. A library that works with threads waits there
for ever, past every deadline, and even when its objects are destroyed. So a fork for workers is refused; what the user
forks may not use the library; and its objects are never destroyed there, so that the child can end.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Any, NamedTuple

import torch


class Unforkable(NamedTuple):
    """What a process has done that no child survives, in words: "this process {did}, ..., or {instead}"."""

    did: str
    instead: str


_CUDA = Unforkable("has initialised CUDA", "iterate before CUDA is used")
_registering = threading.Lock()
_here: dict[str, Unforkable] = {}  # by name
_inherited: dict[str, int] = {}  # {name: the process that had registered it before this one was forked}
_kept: weakref.WeakSet[Any] = weakref.WeakSet()
_hooked = False


def register(name: str, what: Unforkable) -> None:
    """Note that this process may not be forked any more, for good: the threads of a library may outlive its objects."""
    global _hooked
    with _registering:
        _here[name] = what
        if not _hooked:
            os.register_at_fork(after_in_child=_after_fork)
            _hooked = True


def keep_in_children(thing: Any) -> None:
    """Let no forked child destroy `thing`, which must be weakly referable."""
    _kept.add(thing)


def why_not_to_fork() -> Unforkable | None:
    """Return what a child forked from this process would not survive, None if there is nothing."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _CUDA
    return next(iter(_here.values()), None)


def refuse_if_inherited(where: str, name: str, what: str) -> None:
    """Raise RuntimeError if this process was forked from one that had registered `name`; it would wait for ever.

    Args:
        what: what the process has done, for the message: "{what} in process 7 ...".
    """
    if name in _inherited:
        raise RuntimeError(
            f"{where}: {what} in process {_inherited[name]}, from which this one, {os.getpid()}, was forked later; "
            "that does not survive a fork. Start processes by forkserver or spawn, or fork before that."
        )


def _after_fork() -> None:
    # Other threads of the parent may have held the lock.
    global _registering
    _registering = threading.Lock()
    parent = os.getppid()
    for name in _here:
        _inherited.setdefault(name, parent)
    _here.clear()
    for thing in [*_kept]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
