"""Scripts in processes of their own that have torch already: for tests whose failure is an abort."""

import contextlib
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from pipelines import BOUND_S

SUPPORT = str(Path(__file__).parent)  # where the helpers are that a child imports


class Ended(NamedTuple):
    returncode: int | None
    stdout: str
    stderr: str


def run_script(script: str) -> Ended:
    """Run `script` in a child of the fork server, which has imported torch once for all; return how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
        child = multiprocessing.get_context("forkserver").Process(target=_run, args=(script, *paths), daemon=True)
        child.start()
        child.join(BOUND_S)
        child.kill()  # does nothing where it has ended
        return Ended(child.exitcode, *(Path(path).read_text() for path in paths))


def processes_with(variable: str) -> list[int]:
    """Return the processes that have "NAME=value" in their environment: those that a test has started, and theirs."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted({*found} - {os.getpid()})


def _run(script: str, stdout: str, stderr: str) -> None:
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    exec(script, {"__name__": "__main__"})
