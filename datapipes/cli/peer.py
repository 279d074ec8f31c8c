"""`datapipes bench GRAPH --peer graphbolt`: the same work by GraphBolt, in an environment of its own, in the same run.

The environment is made once, from pinned wheels, in the user's cache. GraphBolt reads copies of the graph, features and
seeds. While one side is measured, the other stands still. GraphBolt runs twice: as installed, and with glibc told to
keep freed memory, since otherwise it page-faults on each minibatch.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from datapipes.base.progress import Progress
from datapipes.base.sizes import check_memory
from datapipes.cli import measuring
from datapipes.cli.command import WrongUsage
from datapipes.cli.measuring import Made, Setting, Side
from datapipes.seeds import ItemSet

PROGRAM = Path(__file__).with_name("graphbolt_peer.py")
NAME = "GraphBolt 2.1.0"
PINS = [
    *("torch==2.2.1", "dgl==2.1.0", "torchdata==0.7.1", "numpy==1.26.4", "pandas==2.2.3", "scipy==1.13.1"),
    *("pyyaml==6.0.3", "pydantic==2.12.5", "setuptools==69.5.1"),
]
PYTHONS = ((3, 9), (3, 12))  # the first and the last with wheels of all PINS
KEEP_MEMORY = {
    "MALLOC_TOP_PAD_": str(2**30),
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_ARENA_MAX": "1",  # the heap of any other arena ends at 64 MiB
}
ALLOCATORS: dict[str, dict[str, str]] = {"keeps memory": KEEP_MEMORY, "as installed": {}}
ANSWER_S = 180.0  # for one measurement; the first one includes loading the graph
START_S, INSTALL_S = 60.0, 3600.0  # for an interpreter to tell its version, for the installation
_WORK = {  # what GraphBolt's program calls it: (what both do, the unit, how many are one of it)
    "sample": ("sample and compact, one thread", "million edges/s", 1e6),
    "gather": ("gather features, one thread", "GB/s", 1e9),
    "load": ("the whole chain, no workers", "minibatches/s", 1.0),
}


class Peer:
    """Another interpreter that measures once for each line it is sent, as graphbolt_peer.py does.

    Its processes are stopped between two measurements, because threads of its DataLoader poll and take part of a core.

    Args:
        command: the interpreter with its arguments.
        allocator: settings of glibc's allocator, in the environment.
    """

    def __init__(self, command: list[str], allocator: Mapping[str, str]) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in (*KEEP_MEMORY, "PYTHONPATH")}
        environment |= {"DGLBACKEND": "pytorch", **allocator}  # without a backend it prints which one it chose
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True
        )
        atexit.register(self._signal, signal.SIGKILL)  # stopped processes would stay for ever
        self.measure(0)  # loads the graph

    def measure(self, line: int = 0) -> float:
        """Return the peer's rate: of edges, if it samples."""
        done, _, seconds, _ = self.counts(line)
        return done / seconds

    def counts(self, line: int) -> tuple[float, float, float, float]:
        """Return what the peer did, its input nodes if it samples, seconds, and processor time.

        Raises:
            TimeoutError: no answer came within ANSWER_S.
            RuntimeError: the peer has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], ANSWER_S)[0]:
                raise TimeoutError(f"the peer did not answer within {ANSWER_S:.0f} s. Give a smaller graph.")
            answer = self._process.stdout.readline()
        finally:
            self._signal(signal.SIGSTOP)
        if not answer:
            self._signal(signal.SIGKILL)
            code = self._process.wait()
            raise RuntimeError(f"the peer ended with exit code {code}. Its messages above say why.")
        done, input_nodes, seconds, processor_seconds = map(float, answer.split())
        return done, input_nodes, seconds, processor_seconds

    def close(self) -> None:
        """End the peer's processes. It may be called twice."""
        self._signal(signal.SIGKILL)  # at the end of its input it would not always end, and it has nothing to save
        self._process.wait(timeout=60)
        atexit.unregister(self._signal)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def environment(python: str | None) -> Path:
    """Return the Python of an environment with PINS; make it first, if this user has none.

    Args:
        python: the interpreter to make it with; by default this one.
    """
    base = python or sys.executable
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        version = tuple(map(int, subprocess.check_output([base, "-c", ask], text=True, timeout=START_S).split()))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise WrongUsage(f"--peer-python: {base} does not run: {error}. Name an interpreter of Python.") from error
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        allowed = " to ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        found = ".".join(map(str, version))
        raise WrongUsage(f"--peer-python: {NAME} has wheels for Python {allowed}, and {base} is {found}. Name another.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "datapipes"
    key = hashlib.sha256("\n".join([os.path.realpath(base), *PINS]).encode()).hexdigest()[:12]
    folder = cache / f"graphbolt-{key}"
    if not (folder / "done").exists():  # or a run was interrupted
        shutil.rmtree(folder, ignore_errors=True)
        run = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        for command in ([base, "-m", "venv", str(folder)], [*run, "--only-binary=:all:", *PINS]):
            try:
                subprocess.run(command, stdout=sys.stderr, check=True, timeout=INSTALL_S)
            except subprocess.SubprocessError as error:
                raise RuntimeError(
                    f"{NAME} cannot be installed; the messages above say why. Mend what they name."
                ) from error
        (folder / "done").touch()
    return folder / "bin" / "python"


def compare(
    setting: Setting, made: Made, seconds: float, python: Path, progress: Progress, left: list[str]
) -> dict[str, dict[str, Any]]:
    """Measure both libraries in turn; return {what both do: its unit, rates, and how many times as fast we are}.

    A figure is the median of the rounds; of `times` also the least and the largest.
    """
    folder = Path(tempfile.mkdtemp(prefix="datapipes-peer-"))
    peers: dict[tuple[str, str], Peer] = {}
    try:
        _write_job(folder, setting, seconds)
        command = [str(python), "-c", PROGRAM.read_text(encoding="utf-8"), str(folder)]
        for work, (allocator, variables) in product(_WORK, ALLOCATORS.items()):
            peers[work, allocator] = Peer([*command, work], variables)
        sides = _own_sides(setting, made, seconds)
        sides |= {f"{work}, {allocator}": peer.measure for (work, allocator), peer in peers.items()}
        rates = measuring.alternate(sides, NAME, progress, left)
    finally:
        for peer in peers.values():
            peer.close()
        shutil.rmtree(folder, ignore_errors=True)
    figures: dict[str, dict[str, Any]] = {}
    for work, (text, unit, scale) in _WORK.items():
        figures[text] = {"unit": unit, "datapipes": median(rates[work]) / scale}
        for allocator in ALLOCATORS:
            others = rates[f"{work}, {allocator}"]
            times = sorted(ours / other for ours, other in zip(rates[work], others, strict=True))
            figures[text][f"{NAME}, {allocator}"] = median(others) / scale
            figures[text][f"times {allocator}"] = [median(times), times[0], times[-1]]
    return figures


def check(setting: Setting) -> None:
    """Raise WrongUsage if GraphBolt cannot do the same work."""
    if not isinstance(setting.items, ItemSet) or setting.items.seeds_shape:
        raise WrongUsage(
            "--peer compares minibatches of nodes on graphs without types; the seeds here are edges, or the graph has "
            "types. Give another graph, or leave out --peer."
        )
    for name, feature in setting.features.items():
        if feature.dtype == torch.bfloat16:
            raise WrongUsage(
                f"--peer: {name} is bfloat16, of which no .npy file can be made. Convert it, or leave out --peer."
            )
    # Each kind of work and allocator has a process of its own; those that sample read no features.
    of_features = sum(feature.tensor.nbytes for feature in setting.features.values())
    of_graph = 8 * (setting.num_edges() + setting.graph.num_nodes_of(None) + 1)
    num_bytes = len(ALLOCATORS) * (len(_WORK) * of_graph + (len(_WORK) - 1) * of_features)
    check_memory("--peer", "what GraphBolt's processes read", num_bytes, "Give a smaller graph.")


def _own_sides(setting: Setting, made: Made, seconds: float) -> dict[str, Side]:
    """Return our side of each comparison."""

    def side(work: measuring.Work) -> float:
        with measuring.threads(1):
            return measuring.rate(work, seconds)

    rows = [(minibatch, setting.fetched().bytes_for(minibatch)) for minibatch in made.minibatches]
    works = {"sample": measuring.sampling(setting), "gather": measuring.gathering(setting, rows)}
    sides: dict[str, Side] = {name: partial(side, work) for name, work in works.items()}
    return sides | {"load": partial(measuring.deliver, setting, seconds, {}, "")}


def _write_job(folder: Path, setting: Setting, seconds: float) -> None:
    """Write what graphbolt_peer.py reads."""
    graph: Any = setting.graph
    items: Any = setting.items
    seeds = items.take(torch.arange(len(items)))["seeds"]
    for name, values in (("indptr", graph.indptr), ("indices", graph.indices), ("seeds", seeds)):
        np.save(folder / f"{name}.npy", np.asarray(values, dtype=np.int64))
    names = []
    for number, feature in enumerate(setting.features.values()):
        names.append(f"feature_{number}")
        np.save(folder / f"{names[-1]}.npy", np.asarray(feature.tensor))
    job = {"seeds": "seeds.npy", "features": names, "batch_size": setting.batch_size, "fanouts": setting.fanouts}
    job |= {"seconds": seconds, "threads": torch.get_num_threads()}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
