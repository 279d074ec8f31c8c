"""Futures of several answers that are put together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

_Piece = TypeVar("_Piece")
_Whole = TypeVar("_Whole")


def joined(pieces: Sequence[Future[_Piece]], join: Callable[[list[_Piece]], _Whole]) -> Future[_Whole]:
    """Return a future of `join` of all answers, or of the first error in the order of `pieces`, when all have ended."""
    whole: Future[_Whole] = Future()
    whole.set_running_or_notify_cancel()
    left, lock = len(pieces), threading.Lock()
    kept = [*pieces]

    def ended(_: Future[_Piece]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left > 0:
                return
        ended_pieces = [*kept]
        kept.clear()  # they hold this function, which must not hold them and their answers
        try:
            whole.set_result(join([each.result() for each in ended_pieces]))
        except BaseException as error:
            whole.set_exception(error)

    for each in pieces:
        each.add_done_callback(ended)
    return whole
