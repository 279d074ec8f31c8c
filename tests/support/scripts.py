"""Scripts and programs in processes of their own that have torch already: for tests whose failure is an abort."""

import atexit
import builtins
import contextlib
import faulthandler
import multiprocessing
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from amounts import FULL
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


def run_fresh(script: str, *arguments: str, unset: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run `script` in an interpreter of its own, which imports what tests do; return how it ended."""
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**environment, "PYTHONPATH": ":".join([SUPPORT, *sys.path])},
    )


def run_program(
    program: Path, *arguments: str, folder: Path, timeout_s: float, options: Sequence[str] = (), fresh: bool = FULL
) -> Ended:
    """Run `python *options program *arguments` in `folder`; end what it has started. The code is None after a timeout.

    `make test-all` starts an interpreter. `make test` takes a child of the fork server, of which its workers come too;
    there `options` may be -W alone, with an action, or with action:message:category.
    """
    with tempfile.TemporaryDirectory() as outputs, contextlib.ExitStack() as stack:
        paths = [os.path.join(outputs, name) for name in ("stdout", "stderr")]
        if fresh:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            child = _Interpreter([*options, str(program), *arguments], folder, *files)
        else:
            order = (str(program), arguments, str(folder), options[1::2] or ["default"], *paths)
            child = multiprocessing.get_context("forkserver").Process(target=_run_program, args=order)
            child.start()
        child.join(timeout_s)
        code = child.exitcode
        if code is None:
            os.kill(child.pid, signal.SIGABRT)  # faulthandler prints where each thread is
            child.join(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # so that nothing it starts outlives the test
        child.join()
        return Ended(code, *(Path(path).read_text() for path in paths))


class _Interpreter:
    """A fresh interpreter with what `run_program` uses of a Process."""

    def __init__(self, command: list[str], folder: Path, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        # torch's threads spin, which is slow beside other tests
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", *command],
            cwd=folder,
            env=environment,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        self.pid = self._child.pid

    @property
    def exitcode(self) -> int | None:
        return self._child.poll()

    def join(self, timeout_s: float | None = None) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout_s)


def processes_with(variable: str) -> list[int]:
    """Return the processes that have "NAME=value" in their environment: those that a test has started, and theirs."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return sorted({*found} - {os.getpid()})


def ended(pid: int) -> bool:
    """Return whether the process is gone, or a zombie that its own parent has to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes between open and read
        return True


def _run(script: str, stdout: str, stderr: str) -> None:
    _print_into(stdout, stderr)
    exec(script, {"__name__": "__main__"})


def _run_program(
    program: str, arguments: tuple[str, ...], folder: str, warns: Sequence[str], stdout: str, stderr: str
) -> None:
    os.setsid()
    os.chdir(folder)
    _print_into(stdout, stderr)
    faulthandler.enable()
    for each in warns:
        action, _, rest = each.partition(":")
        message, _, category = rest.partition(":")
        warnings.filterwarnings(action, re.escape(message), getattr(builtins, category or "Warning"))
    sys.argv = [program, *arguments]
    whole = os.path.join(folder, program)  # also for workers, which start in another folder
    sys.path.insert(0, os.path.dirname(whole))
    try:
        runpy.run_path(whole, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # a child of multiprocessing ends without them


def _print_into(stdout: str, stderr: str) -> None:
    for number, path in ((1, stdout), (2, stderr)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
