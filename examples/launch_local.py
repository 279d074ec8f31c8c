"""Train on a graph in parts on one machine: cut it, start a server for each part, and the trainers under torchrun.

Run: python examples/launch_local.py [--data debian | FOLDER] [--parts 2] [--root FOLDER] [--cache 64MB]

Cuts the data set into `--parts` parts in `--root`, unless its parts are there already. Starts `datapipes serve` for
each part, and starts it again at the same address if it ends; a trainer that waits for it goes on. Then runs
examples/distributed_node_classification.py with one rank for each part. Whatever ends the run, also an error or
Ctrl-C, all that was started is stopped by its process id. The settings are those of examples/node_classification.py
for the same data, so the test accuracy is comparable; arguments after `--` go to the trainers as they are.

On several machines each runs `datapipes serve` for its part under a supervisor, such as systemd or Kubernetes, and
torchrun the trainers: docs/distributed.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from training import settings_for

import datapipes as dp
from datapipes.distributed import Part, Partitioner

EXAMPLE = Path(__file__).with_name("distributed_node_classification.py")
READY_S = 120.0  # for a server to read its part and listen
STOP_S = 20.0  # for a process to end after it was asked to
LOOK_S = 0.2  # between two looks at all processes
MARK = "DATAPIPES_LAUNCH"  # all processes of a run have it in their environment, with a value of its own
ENVIRONMENT = {**os.environ, MARK: str(uuid.uuid4())}


def main() -> None:
    args, more = parse_arguments()
    signal.signal(signal.SIGTERM, stop_as_by_ctrl_c)
    with contextlib.ExitStack() as folders:
        temporary = Path(folders.enter_context(tempfile.TemporaryDirectory()))
        root = args.root or temporary / "parts"
        data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data, split=args.split)
        partition_unless_there(data, args, root)
        status = run(root, args.parts, temporary / "namebook.json", [*trainer_arguments(data, args), *more])
    sys.exit(status)


def partition_unless_there(data: dp.datasets.Dataset, args: argparse.Namespace, root: Path) -> None:
    """Cut the data set, unless `root` has this graph in as many parts."""
    with contextlib.suppress(FileNotFoundError):
        part = Part.open(root, 0, verify=False)
        if part.fingerprint == data.graph.digest() and part.num_parts == args.parts:
            print(f"parts of {data.name} are in {root}", flush=True)
            return
    report = Partitioner(data, args.parts, root, method=args.method, layouts=("native",)).generate_partition()
    print(report, flush=True)


def run(root: Path, num_parts: int, namebook: Path, arguments: list[str]) -> int:
    """Run servers and trainers until the trainers end; return their exit status. No process is left."""
    servers: list[Server] = []
    trainers = None
    try:
        for part in range(num_parts):
            servers.append(Server(root, part))
        for server in servers:
            server.wait_until_ready()
        namebook.write_text(json.dumps({server.part: server.address for server in servers}), encoding="utf-8")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_parts)]
        command = [*torchrun, str(EXAMPLE), "--root", str(root), "--namebook", str(namebook), *arguments]
        # Ctrl-C reaches this process only, which then stops the others.
        trainers = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True)
        while trainers.poll() is None:
            for server in servers:
                server.restart_if_it_ended()
            time.sleep(LOOK_S)
        return trainers.returncode
    except KeyboardInterrupt:
        print("stopped", flush=True)
        return 130
    finally:
        with no_more_interrupts():
            for process in [trainers, *(server.process for server in servers)]:
                stop(process)
            end_all_that_are_left()


class Server:
    """`datapipes serve` for one part."""

    def __init__(self, root: Path, part: int) -> None:
        self.root, self.part, self.address = root, part, "127.0.0.1:0"  # any port
        self.process: subprocess.Popen[str] | None = None
        self._start()

    def _start(self) -> None:
        serve = [sys.executable, "-m", "datapipes.cli", "serve", str(self.root), "--part", str(self.part)]
        command = [*serve, "--address", self.address]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._first_line: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        with process.stdout as lines:
            self._first_line.put(lines.readline())

    def wait_until_ready(self) -> None:
        """Wait for the first line, "ready HOST:PORT"."""
        try:
            word, _, address = self._first_line.get(timeout=READY_S).strip().partition(" ")
        except queue.Empty:
            word, address = f"nothing within {READY_S:.0f} s", ""
        if word != "ready":
            raise RuntimeError(f"the server of part {self.part} said {word!r} instead of 'ready'. Its log is above.")
        self.address = address
        print(f"part {self.part} is served at {address}, process {self.process.pid}", flush=True)

    def restart_if_it_ended(self) -> None:
        """Start the server again, where it was; clients ask again until their deadline."""
        if self.process.poll() is not None:
            print(f"the server of part {self.part} ended with {self.process.returncode}; starting it again", flush=True)
            self._start()
            self.wait_until_ready()


def stop(process: subprocess.Popen | None) -> None:
    """End a process that was started here; torchrun ends its ranks."""
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_all_that_are_left() -> None:
    """Kill what the processes started and did not stop: torchrun leaves ranks that it was just starting."""
    mark = f"{MARK}={ENVIRONMENT[MARK]}".encode()
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


@contextlib.contextmanager
def no_more_interrupts() -> Iterator[None]:
    """Let a second Ctrl-C not break off the stopping."""
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def stop_as_by_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def trainer_arguments(data: dp.datasets.Dataset, args: argparse.Namespace) -> list[str]:
    """Return the settings that examples/node_classification.py would choose, as arguments."""
    arguments = ["--seed", str(args.seed), *(["--cache", args.cache] if args.cache else [])]
    for name, value in dataclasses.asdict(settings_for(data)).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{option}" if value else f"--no-{option}")
        else:
            arguments += [f"--{option}", *map(str, value if isinstance(value, tuple) else (value,))]
    return arguments


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder or .npz that dp.datasets.open reads")
    parser.add_argument("--split", type=int, default=0, help="split of the files, or seed of a random one")
    parser.add_argument("--parts", type=int, default=2, help="parts, and ranks")
    parser.add_argument("--method", default="metis", help="of the Partitioner; 'fennel' needs no pymetis")
    parser.add_argument("--root", type=Path, help="where the parts are, or go; a temporary folder by default")
    parser.add_argument("--cache", help="memory of each rank for rows of other parts, such as 64MB; none by default")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    return parser.parse_args(own), more


if __name__ == "__main__":
    main()
