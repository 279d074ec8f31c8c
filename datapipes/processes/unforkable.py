"""Refuses forks where a library would not survive them: CUDA, and those that register here, such as Arrow Flight.

A forked child has the memory of its parent but only one of its threads. A library that relies on its other threads
waits for ever there, past every deadline, and even when its objects are destroyed. So while a process has objects of
such a library, it is not forked for workers. In a child that the user forks, using the library raises an error, and its
objects are never destroyed, so that the child can end.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, NamedTuple

import torch


class Unforkable(NamedTuple):
    """Why this process must not be forked: two texts for the error "this process {has}, ... Or {instead}"."""

    has: str
    instead: str


_CUDA = Unforkable("has initialised CUDA", "iterate before CUDA is used")
_names: set[str] = set()  # of all things that were ever registered in this process
_things: weakref.WeakKeyDictionary[Any, Unforkable] = weakref.WeakKeyDictionary()  # those that still exist
_inherited: dict[str, int] = {}  # {name: pid of the process that had registered such a thing before it forked}


def must_not_be_forked(thing: Any, name: str, kind: Unforkable) -> None:
    """Register `thing`, an object of a library: while it exists, this process must not be forked for workers.

    `thing` must allow weak references. If the user's code forks the process nevertheless, `refuse_if_inherited(name)`
    raises an error in the child. It does so even if `thing` was gone before the fork: the threads of a library may
    outlive its objects.
    """
    if not _names:
        os.register_at_fork(after_in_child=_after_fork)
    _names.add(name)
    _things[thing] = kind


def why_not_to_fork() -> Unforkable | None:
    """Return why this process must not be forked, as texts for the error. None: it may be forked."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _CUDA
    return next(iter([*_things.values()]), None)


def refuse_if_inherited(where: str, name: str, deed: str) -> None:
    """Raise RuntimeError in a process forked from one that had called `must_not_be_forked` with this `name`.

    There, calls of the library would wait for ever.

    Args:
        deed: what the older process did, for the message: "{deed} in process 7, ...".
    """
    if name in _inherited:
        raise RuntimeError(
            f"{where}: {deed} in process {_inherited[name]}, from which this one, {os.getpid()}, was forked later; it "
            "does not work after a fork. Start processes by forkserver or spawn, or fork before its first use."
        )


def refuse_forked(process: int, where: str, makers: str) -> None:
    """Raise RuntimeError unless this process is the one that began an epoch, whose pid is `process`.

    A process that was forked from it would wait for ever.

    Args:
        makers: what makes the minibatches, for the error.
    """
    if os.getpid() != process:
        raise RuntimeError(
            f"{where}: this epoch was begun in another process, and a forked child cannot use the {makers} of its "
            "parent. Call iter() again in this process."
        )


def _after_fork() -> None:
    for name in _names:
        _inherited.setdefault(name, os.getppid())
    finalizers: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})  # that of an Arrow server would wait, too
    for thing in [*_things]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # never released, so the thing is never destroyed
        for finalizer in [registered for registered, info in finalizers.items() if info.weakref() is thing]:
            finalizer.detach()
