"""A partitioner that is killed at any moment leaves the older partition or the new one, each whole."""

import multiprocessing
import random
import time
from pathlib import Path

from amounts import amount
from partition_targets import graph_of_seed, partition

from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part

NUM_PARTS = 3
KILLS = amount(20, 4)
MOST_S = 60


class Run:
    """A partitioner in a process of its own."""

    def __init__(self, root: Path, rng_seed: int) -> None:
        context = multiprocessing.get_context("forkserver")
        self.hears, says = context.Pipe(duplex=False)
        self.process = context.Process(target=partition, args=(str(root), rng_seed, NUM_PARTS, says), daemon=True)
        self.process.start()
        says.close()
        assert self.hears.poll(MOST_S)
        assert self.hears.recv() == "begins"

    def end(self) -> float:
        """Wait until it has ended by itself, and return its seconds."""
        begin = time.monotonic()
        assert self.hears.poll(MOST_S)
        assert self.hears.recv() == "ended"
        self.process.join(MOST_S)
        assert self.process.exitcode == 0
        return time.monotonic() - begin

    def kill_after(self, seconds: float) -> None:
        self.process.join(seconds)
        self.process.kill()
        self.process.join(MOST_S)


def fingerprint_at(root: Path) -> str:
    """Return the fingerprint of the graph whose partition is at `root`; all files fit each other and their hashes."""
    open_book(root)
    return {Part.open(root, part).fingerprint for part in range(NUM_PARTS)}.pop()


def test_a_partitioner_killed_at_any_moment_leaves_a_whole_partition(tmp_path):
    root, rng = tmp_path / "parts", random.Random(0)
    digests = [graph_of_seed(rng_seed).digest() for rng_seed in (0, 1)]
    takes = Run(root, 0).end()
    found = digests[0]
    for turn in range(KILLS):
        Run(root, (turn + 1) % 2).kill_after(takes * rng.uniform(0, 1.1))
        before, found = found, fingerprint_at(root)
        assert found in (before, digests[(turn + 1) % 2])
        for beside in tmp_path.iterdir():  # a folder that opens is whole, under whatever name
            if (beside / "partition.json").exists():
                assert fingerprint_at(beside) in digests
    Run(root, 0).end()
    assert fingerprint_at(root) == digests[0]
    assert list(tmp_path.iterdir()) == [root]


def test_a_first_run_that_is_killed_leaves_nothing_that_opens(tmp_path):
    root, rng = tmp_path / "parts", random.Random(1)
    Run(root, 0).kill_after(rng.uniform(0, 0.2))
    assert not root.exists() or fingerprint_at(root) == graph_of_seed(0).digest()
    Run(root, 0).end()
    assert fingerprint_at(root) == graph_of_seed(0).digest()
