"""Stop examples/launch_local.py at any moment, and kill its servers: the run goes on or ends, and no process is left.

Half of the turns send SIGINT or SIGTERM to the launcher after a random time; it must end within a bound, with exit
status 130 (or with that of a run that was over), and nothing that it started may be left. The other half kill a server,
several times; the launcher must start it again, and the test accuracy must be that of an undisturbed run.
Run: PYTHONPATH=tests/support python tests/soak/soak_launcher.py --minutes 5   (or make soak)
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from example_data import EXAMPLES, write_ring
from scripts import processes_with
from soaking import arguments

BOUND_S = 120.0  # for the launcher to end
MOST_KILLS = 3


def main() -> None:
    options = arguments(__doc__, minutes=5.0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as a background job it would be ignored by all
    draws = random.Random(options.seed)
    ends = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        ring = write_ring(Path(folder) / "ring.npz", 400)
        with launched(ring, Path(folder) / "parts", epochs=5) as run:
            expected = accuracy_of(run.finished())
        print(f"an undisturbed run: {expected}", flush=True)
        turns = 0
        while time.monotonic() < ends:
            if turns % 2 == 0:
                stop_at_random(ring, Path(folder) / f"other_{turns}", draws)
            else:
                kill_servers(ring, Path(folder) / "parts", draws, expected)
            turns += 1
    print(f"{turns} turns, nothing was left")


def stop_at_random(ring: Path, root: Path, draws: random.Random) -> None:
    after, number = draws.uniform(0.5, 25.0), draws.choice([signal.SIGINT, signal.SIGTERM])
    with launched(ring, root, epochs=100_000) as run:
        time.sleep(after)
        run.process.send_signal(number)
        output = run.finished()
        # Before the launcher has set its handlers, the signal ends it as any other program.
        allowed = (130, -number, 1) if "served" not in output else (130,)
        assert run.process.returncode in allowed, (after, number, run.process.returncode, output)
    print(f"{signal.Signals(number).name} after {after:.1f} s: ended with {run.process.returncode}", flush=True)


def kill_servers(ring: Path, root: Path, draws: random.Random, expected: str) -> None:
    kills = 0
    with launched(ring, root, epochs=5) as run:
        while kills < MOST_KILLS and run.process.poll() is None:
            time.sleep(draws.uniform(0.5, 4.0))
            servers = run.servers()
            if servers:
                with suppress(ProcessLookupError):
                    os.kill(draws.choice(servers), signal.SIGKILL)
                    kills += 1
        output = run.finished()
        assert run.process.returncode == 0, output
        assert accuracy_of(output) == expected, output
    print(f"{kills} kills of servers: {expected}", flush=True)


def accuracy_of(output: str) -> str:
    found = re.search(r"^test accuracy \d\.\d{4}$", output, re.MULTILINE)
    assert found, output
    return found[0]


class Launched:
    """A launcher that runs, and what it has printed."""

    def __init__(self, command: list[str], mark: str) -> None:
        name, _, value = mark.partition("=")
        environment = {**os.environ, name: value, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        self._lines.extend(iter(self.process.stdout.readline, ""))

    def servers(self) -> list[int]:
        """The servers of the two parts, those that were started last."""
        found = dict(re.findall(r"^part (\d) is served at .*, process (\d+)$", "".join(self._lines), re.MULTILINE))
        return [int(pid) for pid in found.values()]

    def finished(self) -> str:
        """Wait for the end, and return all that was printed. One that does not end shows where its threads are."""
        try:
            self.process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self._reader.join(10)  # what it started may hold the output open
            raise AssertionError("".join(self._lines)) from None
        self._reader.join(BOUND_S)
        assert not self._reader.is_alive(), "a process that was left has the output open"
        return "".join(self._lines)


@contextmanager
def launched(ring: Path, root: Path, *, epochs: int) -> Iterator[Launched]:
    """Run the launcher; after that, nothing that it started may be left."""
    mark = f"DATAPIPES_SOAK={uuid.uuid4()}"
    launcher = [sys.executable, "-u", str(EXAMPLES / "launch_local.py"), "--data", str(ring), "--root", str(root)]
    run = Launched([*launcher, "--method", "fennel", "--", "--workers", "0", "--epochs", str(epochs)], mark)
    try:
        yield run
        left = processes_with(mark)
        assert not left, f"processes were left: {left}"
    finally:
        for pid in processes_with(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
