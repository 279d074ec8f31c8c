"""A graph over which METIS takes long, and a process that partitions it; child processes import this module."""

import multiprocessing.connection
import os
from pathlib import Path

import torch

import datapipes as dp
from datapipes.partition.methods.assign import assign
from datapipes.partition.source import Source


def long_graph() -> dp.CSCGraph:
    ends = torch.randint(100_000, (2, 1_500_000), generator=torch.Generator().manual_seed(0))
    return dp.CSCGraph.from_edge_index(ends, 100_000)


def children() -> list[int]:
    """The children of this process that run the script of METIS."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            is_metis = b"metis_child.py" in (entry / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent == os.getpid() and is_metis:
            found.append(int(entry.name))
    return found


def partition(says: multiprocessing.connection.Connection) -> None:
    """Partition the graph in a way that takes more than a minute; tell the process of METIS."""
    told = False

    def progress(text: str, done: int, total: int) -> None:
        nonlocal told
        if text.startswith("METIS") and not told:
            told = True
            says.send(children()[0])

    source = Source(long_graph(), {}, (None,), (None,))
    assign(source, 2**14, method="metis", recursive=False, rng_seed=0, progress=progress)
