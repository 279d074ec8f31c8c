"""What a server process holds, read between the rounds of a soak."""

import os
import time
from pathlib import Path
from typing import NamedTuple

BOUND_S = 60.0  # until a killed client's connections are gone
GROWTH = 16 * 2**20  # bytes; what the allocators of a busy process may still gather
FIRST = 6  # rounds in which a server gets what it needs


class State(NamedTuple):
    """What a process holds."""

    num_bytes: int
    threads: int
    files: int


def state_of(pid: int) -> State:
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = next(1024 * int(line.split()[1]) for line in memory if line.startswith("Private_Dirty:"))
    return State(private, len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")))


def settled(pid: int, files: int, bound_s: float = BOUND_S) -> State:
    """Return the state once the connections of killed clients are gone: so many descriptors are left, or fewer."""
    until = time.monotonic() + bound_s
    while state_of(pid).files > files and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(2.0)  # threads of gRPC end a little later, and a server without requests gives freed memory back
    return state_of(pid)
