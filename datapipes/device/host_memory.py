"""Page-lock host memory by registering it with CUDA, so that all GPUs of this process can read it. Nothing is copied.

CUDA refuses to register a byte twice, and tensors may share memory. So one table has the registered segments (ranges of
bytes), each with the number of its owners. `pin` registers the bytes that are in no segment yet. An owner ends by
`release` or by garbage collection. When the last owner of a segment ends, three steps follow in this order: wait for
the work of the GPUs, which may still read; unregister the segment; drop the reference to its memory.

Nothing is unregistered at exit, when CUDA may be gone already, nor in a forked child, where CUDA never was.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from datapipes.base.log import logger
from datapipes.base.sizes import check_memory
from datapipes.device.host_pages import INVALID_VALUE, NOT_SUPPORTED, Mapped, Memory, Run, mapped_in, refusal, runs_of
from datapipes.device.runtime import cuda

_Self = TypeVar("_Self", bound="Pinnable")


@dataclass(eq=False)
class _Segment:
    """The page-locked bytes [begin, end).

    Attributes:
        memories: the tensors' memory in this range; keeps the bytes alive.
        is_ours: whether `pin` has registered the bytes. If False, other code has locked them.
        is_there: whether the bytes are still registered.
        owners: number of Pinned objects that need the bytes to stay locked.
    """

    begin: int
    end: int
    memories: list[Memory]
    is_ours: bool = True
    is_there: bool = True  # until it is unregistered
    owners: int = 0

    @property
    def num_bytes(self) -> int:
        return self.end - self.begin


class Pinned:
    """Keeps memory page-locked. This ends with `release`, or when this object is collected.

    Other Pinned objects may keep the same memory locked longer.
    """

    def __init__(self, memories: list[Memory], segments: list[_Segment]) -> None:
        self._memories, self._segments = memories, segments
        self._table = _table
        # A finalizer runs once, in any thread, also for an object in a cycle of garbage; this one not at exit.
        self._end = weakref.finalize(self, _table.ended_later, segments)
        self._end.atexit = False

    @property
    def holds(self) -> bool:
        """Whether the memory is still locked: not released, not moved, and this process is no forked child."""
        return (
            self._table is _table
            and self._end.alive
            and all(memory.is_there for memory in self._memories)
            and all(segment.is_there for segment in self._segments)
        )

    def release(self) -> None:
        """Let the memory go; if no other Pinned needs it, wait for the GPUs and unlock it. May be called twice."""
        ended = self._end.detach()
        self._memories, self._segments = [], []
        if ended is not None and self._table is _table:
            segments = ended[2][0]
            _table.ended.append(segments)
            _table.end_all(wait=True)


class _Table:
    """The registered segments of this process, with the number of owners of each. It is empty in a forked child."""

    def __init__(self) -> None:
        self.segments: list[_Segment] = []
        # Segments of ended owners. The garbage collector may run at any moment, so adding here takes no lock.
        self.ended: deque[list[_Segment]] = deque()
        self._lock = threading.RLock()
        self._busy = False  # an outer call of this thread is changing the segments
        self._never_freed: list[_Segment] = []
        self.is_exiting = False

    def pin(self, where: str, memories: list[Memory], locked: list[Memory], remedy: str) -> Pinned:
        """Register the bytes of `memories` that are not registered yet, and return a Pinned that keeps them locked.

        Args:
            locked: memories that other code has locked; the Pinned keeps them alive.
            remedy: what to do if CUDA refuses, as words for the error.
        """
        with self._alone():
            self._end_moved(memories)
            segments = [_Segment(memory.begin, memory.end, [memory], is_ours=False) for memory in locked]
            new: list[_Segment] = []
            try:
                for run in runs_of(memories):
                    registered = self.overlapping(run.begin, run.end)
                    segments += registered
                    for gap in _gaps(run, registered):
                        before = sum(segment.num_bytes for segment in self.segments + new)
                        new += _registered(where, gap, before, remedy)
            except BaseException:
                for segment in new:  # no kernel has read them yet
                    cuda().unregister(segment.begin)
                raise
            self.segments += new
            for segment in (segments := segments + new):
                segment.owners += 1
            return Pinned([*memories, *locked], segments)

    def overlapping(self, begin: int, end: int) -> list[_Segment]:
        """Return the segments that contain some of the bytes [begin, end)."""
        return [segment for segment in [*self.segments] if segment.begin < end and begin < segment.end]

    def ended_later(self, segments: list[_Segment]) -> None:
        """Note that an owner of `segments` was garbage-collected, and unregister those that have no other owner.

        If a thread is changing segments now, that thread does the unregistering.
        """
        if self is _table:
            self.ended.append(segments)
            self.end_all(wait=False)

    def end_all(self, wait: bool) -> None:
        """Unregister the segments whose last owner has ended.

        If another thread is changing segments now: with `wait`, wait for that thread; without, leave the segments to
        it.
        """
        while (wait or self.ended) and not self.is_exiting and self._lock.acquire(blocking=wait):
            wait = False
            try:
                if self._busy:
                    return  # the garbage collector called inside of this loop or of `pin`, which does the rest
                self._busy = True
                try:
                    self._take_ended()
                finally:
                    self._busy = False
            finally:
                self._lock.release()

    def _take_ended(self) -> None:
        unused = []
        while self.ended:
            for segment in self.ended.popleft():
                segment.owners -= 1
                if segment.owners == 0:
                    unused.append(segment)
        self._end(unused)

    def _end(self, segments: list[_Segment]) -> None:
        """Wait for the work of the GPUs, unregister the segments, and drop the references to their memory."""
        if not segments:
            return
        try:
            cuda().synchronize()
        except RuntimeError as error:  # the GPU failed; it reads no more
            logger.warning("pinned memory: a GPU failed before its memory was unregistered: %s", error)
        for segment in segments:
            segment.is_there = False
            if segment.is_ours and segment in self.segments:
                self.segments.remove(segment)
                code = cuda().unregister(segment.begin)
                if code != 0:
                    logger.warning(
                        "pinned memory: CUDA did not unregister %d bytes (error %d of cudaHostUnregister); they stay "
                        "in memory.",
                        segment.num_bytes,
                        code,
                    )
                    self._never_freed.append(segment)
                    continue
            segment.memories = []

    def _end_moved(self, memories: list[Memory]) -> None:
        """Unregister segments that overlap `memories` though their own memory was freed: other memory is there now."""
        in_the_way = [segment for run in runs_of(memories) for segment in self.overlapping(run.begin, run.end)]
        self._end([segment for segment in in_the_way if not all(memory.is_there for memory in segment.memories)])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context manager: inside, no other thread changes the segments."""
        try:
            with self._lock:
                if self._busy:
                    raise RuntimeError(
                        "pin_memory_: called by the garbage collector (__del__) inside of pin_memory_. Leave it out of "
                        "__del__."
                    )
                self._busy = True
                try:
                    self._take_ended()
                    yield
                finally:
                    self._busy = False
        finally:
            self.end_all(wait=False)


_table = _Table()
_watched = False


def pin(where: str, tensors: Iterable[Tensor], remedy: str = "leave pin_memory_ out") -> Pinned:
    """Page-lock the memory of tensors in host memory, by registering it with CUDA; shared bytes are registered once.

    Memory that torch has locked (`pin_memory`) is kept alive, but not registered again. Pages that this process may not
    write, and pages of files mapped copy-on-write, are registered for reading only. If the driver cannot do that, the
    system copies the copy-on-write pages into memory; the log says so. Files that are mapped for writing are registered
    for reading if registering for writing fails.

    Args:
        where: names the caller in errors.
        remedy: what to do if CUDA refuses, as words for the error.
    Returns:
        A Pinned, which keeps the memory locked; keep it as long as a GPU may read.
    Raises:
        RuntimeError: There is no CUDA device, or CUDA refuses.
        MemoryError: The limit of locked memory is too low.
    """
    memories: list[Memory] = []
    locked: list[Memory] = []
    for tensor in tensors:
        if tensor.numel() > 0:
            (locked if is_locked_elsewhere(tensor) else memories).append(Memory.of(tensor))
    return _pinned(where, memories, locked, remedy)


def pin_range(where: str, address: int, num_bytes: int, keep: object, remedy: str) -> Pinned:
    """Do as `pin` for host memory that is no tensor; the memory must stay valid while the object `keep` lives."""
    return _pinned(where, [Memory(address, address + num_bytes, keep, address)], [], remedy)


def _pinned(where: str, memories: list[Memory], locked: list[Memory], remedy: str) -> Pinned:
    global _watched
    if cuda().device_count() == 0:
        raise RuntimeError(
            f"{where}: this machine offers no CUDA device to torch {torch.__version__}, and only a GPU reads "
            f"page-locked memory. Install a CUDA build of torch, or {remedy}."
        )
    if not _watched:
        _watched = True
        os.register_at_fork(after_in_child=_after_fork)
        atexit.register(_at_exit)
    return _table.pin(where, memories, locked, remedy)


class Pinnable:
    """Mixin with `pin_memory_`, `unpin_memory_` and `is_pinned`. Copies, also those in workers, are not pinned."""

    _pinned: Pinned | None = None

    @abstractmethod
    def _pinned_tensors(self) -> Iterable[Tensor]:
        """Return the tensors that `pin_memory_` locks."""

    def pin_memory_(self: _Self) -> _Self:
        """Page-lock all arrays where they are, so that the GPUs of this process can read them; return this object.

        Nothing is copied, and a second call changes nothing. Arrays in mapped files are locked for reading only. Where
        the driver cannot do that, the system copies their pages into memory, and the log says so. Arrays shared with
        other objects are locked once. The lock ends with `unpin_memory_`, or with this object, after the work of the
        GPUs. Processes forked from this one, and workers, have no lock; each may make its own.

        Raises:
            RuntimeError: There is no CUDA device here, or CUDA refuses.
            MemoryError: The limit of locked memory (`ulimit -l`) is too low.
        Cost: every page is brought into memory and locked, so the time grows with the bytes.
        """
        if not self.is_pinned():
            self._pinned = None  # a hold on memory that has moved
            self._pinned = pin(f"{type(self).__name__}.pin_memory_", self._pinned_tensors())
        return self

    def unpin_memory_(self: _Self) -> _Self:
        """Undo `pin_memory_`, after waiting for the work of the GPUs; return this object."""
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.release()
        return self

    def is_pinned(self) -> bool:
        """Return whether this process still has the arrays locked, as `pin_memory_` did."""
        return self._pinned is not None and self._pinned.holds


def without_pin(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a Pinnable for a copy or a pickle: without the Pinned, since a copy is not pinned."""
    return {name: value for name, value in state.items() if name != "_pinned"}


def is_locked_elsewhere(tensor: Tensor) -> bool:
    """Return whether torch or other code, but not `pin`, has page-locked the first and the last byte of a tensor."""
    if tensor.numel() == 0 or cuda().holds(tensor):
        return False
    memory = Memory.of(tensor)
    if _table.overlapping(memory.begin, memory.end):
        return False
    return cuda().is_pinned(memory.begin) and cuda().is_pinned(memory.end - 1)


def _gaps(run: Run, segments: list[_Segment]) -> Iterator[Run]:
    """Yield the ranges of bytes of `run` that are in none of `segments`."""
    begin = run.begin
    for segment in sorted(segments, key=lambda segment: segment.begin):
        if begin < segment.begin:
            yield _part(run, begin, segment.begin)
        begin = max(begin, segment.end)
    if begin < run.end:
        yield _part(run, begin, run.end)


def _part(run: Run, begin: int, end: int) -> Run:
    return Run(begin, end, [memory for memory in run.memories if memory.begin < end and begin < memory.end])


def _registered(where: str, gap: Run, before: int, remedy: str) -> list[_Segment]:
    """Register the bytes of `gap`, a range that is not registered yet, with CUDA. Return a segment for each mapping.

    The range may consist of memory that is mapped in different ways; each such piece is registered alone, and is one
    segment of the result. If an error is raised, no byte of the range stays registered.

    Args:
        before: how many bytes were registered before this call; for the error text.
    """
    done: list[_Segment] = []
    try:
        for mapped in mapped_in(gap.begin, gap.end):
            num_bytes = mapped.end - mapped.begin
            code = cuda().register(mapped.begin, num_bytes, read_only=not mapped.may_write or mapped.copies_on_write)
            if code in (NOT_SUPPORTED, INVALID_VALUE) and mapped.may_write and mapped.copies_on_write:
                code = _copied_and_registered(where, mapped)
            elif code != 0 and mapped.may_write and mapped.is_file:
                # A file mapped for writing on a file system that does not let its pages be held for writing.
                code = cuda().register(mapped.begin, num_bytes, read_only=True) and code
            if code != 0:
                raise refusal(where, code, num_bytes, before + mapped.begin - gap.begin, remedy)
            done.append(_Segment(mapped.begin, mapped.end, _part(gap, mapped.begin, mapped.end).memories))
    except BaseException:
        for segment in done:
            cuda().unregister(segment.begin)
        raise
    return done


def _copied_and_registered(where: str, mapped: Mapped) -> int:
    num_bytes = mapped.end - mapped.begin
    check_memory(where, "a copy of a mapped file, whose pages this driver cannot lock,", num_bytes, "Pin less.")
    logger.warning(
        "%s: this driver cannot lock the pages of a mapped file; %d bytes of it are copied into memory.",
        where,
        num_bytes,
    )
    return cuda().register(mapped.begin, num_bytes, read_only=False)


def _after_fork() -> None:
    global _table
    _table = _Table()


def _at_exit() -> None:
    _table.is_exiting = True
