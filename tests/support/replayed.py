"""A search through all orders in which a world can move. It need not be copied: each path is played from its start."""

import gc
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

from shm_model import Report, Violation


class PlayedWorld(Protocol):
    """What is searched. Whatever does not hold raises Violation."""

    def moves(self) -> Iterable[tuple[Any, ...]]:
        """Return what can happen next: the name of a method, and its arguments."""

    def key(self) -> Hashable:
        """Return the state: equal ones go on in the same ways."""

    def check(self) -> None:
        """Check a state."""

    def check_end(self) -> None:
        """Check a state that has no moves."""


def explore_by_replay(begin: Callable[[], PlayedWorld]) -> Report:
    """Visit every state that a world can get into; raise Violation with the moves that lead to what does not hold."""
    known: set[Hashable] = set()
    todo: list[tuple[tuple[Any, ...], ...]] = [()]
    steps = ends = 0
    collects = gc.isenabled()
    gc.disable()
    try:
        while todo:
            path = todo.pop()
            steps += 1
            try:
                world = begin()
                for name, *arguments in path:
                    getattr(world, name)(*arguments)
                world.check()
                if world.key() in known:
                    continue
                known.add(world.key())
                moves = [*world.moves()]
                if not moves:
                    ends += 1
                    world.check_end()
            except Violation as violation:
                raise Violation(
                    "\n".join([str(violation), *(" ".join(map(str, move)) for move in path)])
                ) from violation
            todo += [(*path, move) for move in moves]
    finally:
        if collects:
            gc.enable()
    return Report(len(known), steps, ends)


class PlayedFuture:
    """A future that a test ends in two steps, as other threads do: `finish`, and then `tell` who waits for it."""

    def __init__(self) -> None:
        self.state = "pending"
        self.made: Any = None
        self._told: list[Callable[[Any], object]] = []

    def add_done_callback(self, tell: Callable[[Any], object]) -> None:
        self._told.append(tell)
        if self.state == "told":
            tell(self)

    def finish(self, made: Any) -> None:
        self.state, self.made = "finished", made

    def tell(self) -> None:
        self.state = "told"
        for tell in self._told:
            tell(self)

    def cancel(self) -> bool:
        if self.state != "pending":
            return False
        self.finish(RuntimeError("it was cancelled"))
        self.tell()
        return True

    def exception(self) -> BaseException | None:
        return self.made if isinstance(self.made, BaseException) else None

    def result(self) -> Any:
        if isinstance(self.made, BaseException):
            raise self.made
        return self.made


class PlayedQueue(list[Any]):
    """A queue.SimpleQueue that can be looked into; to `get` from it where nothing is takes no time."""

    def __init__(self, empty: type[Exception]) -> None:
        super().__init__()
        self._empty = empty

    put = list.append
    qsize = list.__len__

    def get(self, timeout: float | None) -> Any:
        if not self:
            raise self._empty
        return self.pop(0)
