"""What processes of these tests run. A spawned process imports this module, so it imports little."""

import contextlib
import os
import time


def hold_until(file: str) -> None:
    """Wait until `file` exists, at most a minute."""
    ends = time.monotonic() + 60
    while not os.path.exists(file) and time.monotonic() < ends:
        time.sleep(0.01)


def fork_and_wait(told: str, file: str) -> None:
    """Fork a child; write its pid into the file `told`; wait, and let the child wait, until `file` exists."""
    pid = os.fork()
    if pid == 0:
        hold_until(file)
        os._exit(0)
    write(told, pid)
    hold_until(file)


def write(told: str, *numbers: int) -> None:
    """Write numbers into the file `told`, which appears with all of them."""
    with open(f"{told}.part", "w", encoding="ascii") as file:
        file.write(" ".join(map(str, numbers)))
    os.rename(f"{told}.part", told)


def end_with_parent_without_pidfd(told: str, file: str) -> None:
    """Write this pid into `told`; end with the parent, on a system that has no pidfd, or when `file` exists."""
    from datapipes.processes import child

    with contextlib.suppress(AttributeError):
        del os.pidfd_open
    child.PARENT_LOOK_S = 0.05
    child.end_with_parent()
    write(told, os.getpid())
    hold_until(file)
