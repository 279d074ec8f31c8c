"""Real server processes for tests: `datapipes serve` on a partition, waited for, killed, restarted and stopped.

Every wait has a bound. A process is addressed by its own id only.
"""

import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

READY_S = 60.0  # for a process to import torch and open its part, on a busy machine
END_S = 20.0
_hosts = itertools.count()


def own_host() -> str:
    """Return a loopback address for one server.

    The port of a server that was killed is free until the server starts again. On an address of its own, no other
    program that asks for any free port can get that one.
    """
    process, host = os.getpid(), next(_hosts)
    return f"127.{process // 250 % 250 + 1}.{process % 250}.{host % 250 + 1}"


class ServerProcess:
    """One `datapipes serve`; `start` returns when it is ready. Also a context manager, which kills it at the end.

    Args:
        address: where to listen; by default an address of this machine that no other server here has.
        within: a command that runs another one in its place, such as `ip netns exec NAME`.
    Attributes:
        address: "host:port", where the last one listened; a restarted one takes the same port.
    """

    def __init__(
        self,
        root: Path,
        part: int | None,
        *options: object,
        address: str = "",
        within: Sequence[str] = (),
    ) -> None:
        self.root, self.part, self.options, self.within = root, part, options, within
        self.address = address or f"{own_host()}:0"
        self.process: subprocess.Popen | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """All that its processes wrote to stderr."""
        self._log.seek(0)
        return self._log.read()

    def launch(self) -> "ServerProcess":
        """Start the process and return at once; `wait_until_ready` must follow."""
        part = [] if self.part is None else ["--part", self.part]
        command = [sys.executable, "-m", "datapipes.cli", "serve", self.root, *part, "--address", self.address]
        command = [*self.within, *command]
        self.process = subprocess.Popen(
            [*map(str, command), *map(str, self.options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            # Of torch's threads there would be as many as cores in each of the server's.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def wait_until_ready(self) -> str:
        """Return the address, once the process has written it."""
        line, until = b"", time.monotonic() + READY_S
        descriptor = self.process.stdout.fileno()
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([descriptor], [], [], max(until - time.monotonic(), 0))
            data = os.read(descriptor, 1) if readable else b""
            if not data:
                self.kill()
                raise AssertionError(f"no server within {READY_S} s; stdout {line!r}, stderr:\n{self.log}")
            line += data
        word, address = line.decode().split()
        assert word == "ready"
        self.address = address
        return address

    def start(self) -> "ServerProcess":
        self.launch().wait_until_ready()
        return self

    def kill(self) -> None:
        """SIGKILL the process, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask the process to stop; return its exit code. It is killed if it does not end within the bound."""
        return self._end(signal.SIGTERM)

    def restart(self) -> "ServerProcess":
        """Kill the process, and start another one on the same port."""
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """Let the process answer nothing; the connections stay."""
        os.kill(self.pid, signal.SIGSTOP)
        until = time.monotonic() + END_S
        while self._threads_that_run():  # a thread may go on for milliseconds, and answer
            assert time.monotonic() < until, f"the server does not stop within {END_S} s"
            time.sleep(0.001)

    def _threads_that_run(self) -> list[Path]:
        threads = Path(f"/proc/{self.pid}/task").iterdir()
        return [each for each in threads if (each / "stat").read_text().rpartition(")")[2].split()[0] != "T"]

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(number)
        try:
            return process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_S)
            raise AssertionError(f"the server did not end within {END_S} s; stderr:\n{self.log}") from None
        finally:
            process.stdout.close()

    def __enter__(self) -> "ServerProcess":
        return self if self.process is not None else self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._log.close()


@contextlib.contextmanager
def servers_of(root: Path, num_parts: int, *options: object) -> Iterator[list[ServerProcess]]:
    """A process for each part; they start at the same time. All are killed at the end."""
    servers = [ServerProcess(root, part, *options) for part in range(num_parts)]
    with contextlib.ExitStack() as stack:
        for each in servers:
            each.launch()
            stack.enter_context(each)
        for each in servers:
            each.wait_until_ready()
        yield servers


def namebook_of(servers: list[ServerProcess]) -> dict[int, str]:
    """{part: address}."""
    return {each.part: each.address for each in servers}
