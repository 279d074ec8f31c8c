"""Servers that start within a moment: `datapipes serve` in children of the fork server, which has imported torch.

What tests kill often starts here; partition_servers.py starts the command as a user does. A Supervisor starts a server
again as soon as it has ended, as those of a cluster do.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from partition_servers import ServerProcess

START_S = 60.0  # for a server to start again, on a busy machine
_CONTEXT = multiprocessing.get_context("forkserver")


class _Child:
    """A child of the fork server with what ServerProcess uses of a Popen."""

    def __init__(self, command: list[str]) -> None:
        self.stdout, writing = _CONTEXT.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_serve, args=(command, writing), daemon=True)
        self._process.start()
        writing.close()
        self.pid, self.sentinel, self._code = self._process.pid, self._process.sentinel, None

    def poll(self) -> int | None:
        if self._code is None and self._process.exitcode is not None:
            self._code = self._process.exitcode
            self._process.close()
        return self._code

    def send_signal(self, number: int) -> None:
        # Every start of a process, in any thread, polls all children: while one reads the exit code of this child, poll
        # finds none here although the child is gone.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        if self._code is None:
            self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("datapipes serve", timeout)
        return self._code


def _serve(command: list[str], stdout: Connection) -> None:
    from datapipes.cli.main import main

    os.dup2(stdout.fileno(), 1)
    raise SystemExit(main(command))


class WarmServer(ServerProcess):
    """A ServerProcess that starts within a moment. What it logs goes to the stderr of the tests."""

    def launch(self) -> WarmServer:
        part = [] if self.part is None else ["--part", self.part]
        command = ["serve", self.root, *part, "--address", self.address, *self.options]
        self.process: Any = _Child([str(each) for each in command])
        return self


class Supervisor:
    """Starts a server again as soon as it has ended, on its port; `kill` ends it as a crash does.

    Attributes:
        server: may be changed while none runs; the next start takes it.
        ready: when each start was ready, in time.monotonic().
        kills: how often it was killed.
    """

    def __init__(self, root: Path, part: int, *options: object) -> None:
        self.server = WarmServer(root, part, *options).start()
        self.ready: list[float] = [time.monotonic()]
        self.kills = 0
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return self.server.address

    def kill(self) -> None:
        """SIGKILL the server, once it runs."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ready) > self.kills, START_S), "it did not start again"
            self.kills += 1
            os.kill(self.server.pid, signal.SIGKILL)

    def wait_until_ready(self) -> float:
        """Wait for the start that follows the last kill; return when it was ready."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ready) > self.kills, START_S), "it did not start again"
            return self.ready[-1]

    def close(self) -> None:
        self._ended = True
        with contextlib.suppress(ProcessLookupError, AssertionError):
            os.kill(self.server.pid, signal.SIGKILL)
        self._thread.join(START_S)
        self.server.__exit__()

    def _main(self) -> None:
        while True:
            multiprocessing.connection.wait([self.server.process.sentinel])
            if self._ended:
                return
            self.server.kill()
            self.server.start()
            with self._changed:
                self.ready.append(time.monotonic())
                self._changed.notify_all()

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def supervised(root: Path, num_parts: int, *options: object) -> Iterator[list[Supervisor]]:
    """A supervised server for each part."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Supervisor(root, part, *options)) for part in range(num_parts)]
