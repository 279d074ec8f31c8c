"""What a run costs: seconds by step, and the most private memory that it held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_S = 0.02  # seconds between two looks at the memory
_PRIVATE = ("RssAnon:", "RssShmem:")  # pages of mapped files are not counted: the system takes them back when it needs


class Cost:
    """Counts while its block runs.

    Attributes:
        seconds: {step: seconds}, of the steps that ended.
        memory_bytes: {step: the most private memory of this process beyond what it held at the beginning}, looked at
            every 20 ms.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.memory_bytes: dict[str, int] = {}
        self._step = ""
        self._ended = threading.Event()

    def __enter__(self) -> Cost:
        self._before = private_bytes()
        self._thread = threading.Thread(target=self._look, name="datapipes-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the time of the block to `seconds`; what memory it takes is that of the step."""
        begin, self._step = time.monotonic(), name
        yield
        self._count()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin
        self._step = ""

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._count()

    def _count(self) -> None:
        step = self._step
        self.memory_bytes[step] = max(self.memory_bytes.get(step, 0), private_bytes() - self._before)


def private_bytes(pid: int | str = "self") -> int:
    """Return the private memory of a process: anonymous and shared pages, without those of mapped files."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PRIVATE))
