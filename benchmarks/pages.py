"""How much do huge pages matter to sampling and to the gather, and does memory shared with workers have them?

A graph whose nodes have 50 in-edges each, from sources drawn evenly, and 100 float32 per node, both made here from a
seed. sample_neighbor takes 1,024 seeds, fanouts [15, 10, 5]; TensorFeature.read gathers the input nodes of five such
minibatches; one thread. The same values lie in: private memory in huge pages; private memory kept from them
(MADV_NOHUGEPAGE); a memfd as the system gives it; and a memfd as the loader makes it for its workers (`share_memory`),
which takes reserved huge pages if enough are free, and else asks for the memory to be moved into huge ones
(MADV_COLLAPSE). --files DIR adds files there, mapped as CSCGraph.open does it and kept from huge pages; each is dropped
from the page cache before it is read. All in alternation, median of 9; the share of the bytes in huge pages is told.
Memory: 4 copies, and with --files 2 more, of 16 bytes an edge: 124M edges take 8 and 12 GB.
Run: python benchmarks/pages.py --edges 124000000 (--files DIR)
Result (2-core AMD EPYC VM with one or more other programs to a core, Linux 6.18, shmem_enabled never, commit 7cb4984,
20M to 24M edges, four runs): the memfd for workers has 99 % of its bytes in huge pages (reserved ones in the last
run), the other 0. Sampling from it takes 55, 27.7, 40.6 and 20.0 ns an edge, from the other 88, 34.2, 56.9 and 25.5:
1.60, 1.24, 1.40 and 1.27 x. The gather: 1.72, 1.05, 1.13 and 1.19 x. Private memory, huge against small: sampling
1.50, 1.32, 1.39 and 1.92 x, gather 1.47, 1.07, 1.08 and 0.87 x; huge private memory takes 57, 27.8, 41.1 and 17.8 ns
an edge. 124M edges, quiet, commit c2173a9: the memfd for workers 25.6 ns an edge and 5.0 GB/s, the other 35.7 and 3.3:
1.39 and 1.49 x; private memory 27.9 and 4.6 against 37.1 and 2.7: 1.33 and 1.71 x. Files (ext4, two runs): 79 % huge
as opened, sampling 1.50 and 1.13 x, gather 1.43 and 1.03 x.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from common import alternate, parser, report, timed
from sample import FANOUTS, Sampling

import datapipes as dp
from datapipes import _core
from datapipes.processes.mappings import ask_for_huge_pages
from datapipes.processes.sharing import share_memory

DEGREE, WIDTH = 50, 100
PIECE = 2**22  # values made at a time
SMALL, HUGE = "small pages", "huge pages"


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--edges", type=int, default=20_000_000)
    arguments.add_argument("--files", type=Path, help="a folder on a disk: measure mapped files too")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    made = made_values(args.edges // DEGREE)
    places: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"private, {HUGE}": lambda values: values,
        f"private, {SMALL}": lambda values: private(values.shape, values.dtype, mmap.MADV_NOHUGEPAGE).copy_(values),
        f"memfd, {SMALL}": memfd,
        "memfd, as for workers": as_for_workers,
    }
    pairs = [("memfd, as for workers", f"memfd, {SMALL}"), (f"private, {HUGE}", f"private, {SMALL}")]
    if args.files is not None:
        places[f"file, {SMALL}"] = lambda values: mapped(args.files, values, is_asked_for=False)
        places["file, as opened"] = lambda values: mapped(args.files, values, is_asked_for=True)
        pairs.append(("file, as opened", f"file, {SMALL}"))
    figures: dict[str, float | str] = {}
    sides: dict[str, Callable[[int], float]] = {}
    drawn: list[torch.Tensor] = []
    for name, place in places.items():
        before = huge_bytes()
        indices, rows = map(place, made)
        assert torch.equal(indices, made[0])
        assert torch.equal(rows, made[1])  # and all of both are in memory now
        if name != f"private, {HUGE}":
            share = (huge_bytes() - before) / (indices.nbytes + rows.nbytes)
            figures[f"{name}: share in huge pages"] = share
        graph = dp.CSCGraph(torch.arange(len(rows) + 1) * DEGREE, indices)
        pipe = dp.ItemSampler(dp.ItemSet(len(rows)), 1024, shuffle=True, seed=1).sample_neighbor(graph, FANOUTS)
        stream = iter(pipe)
        ids = [next(stream).input_nodes for _ in range(5)]
        drawn = drawn or ids
        assert all(map(torch.equal, ids, drawn))
        sides[f"sampling, {name}"] = Sampling(pipe)
        sides[f"gather, {name}"] = gather(dp.TensorFeature(rows), ids)
    rates = alternate(sides, args.repeats)
    for name in places:
        figures[f"{name}: sampling (ns/edge)"] = 1e9 / rates[f"sampling, {name}"]
        figures[f"{name}: gather (GB/s)"] = rates[f"gather, {name}"] / 1e9
    for one, other in pairs:
        for what in ("sampling", "gather"):
            figures[f"{what}: {one}, ratio to {other}"] = rates[f"{what}, {one}"] / rates[f"{what}, {other}"]
    report(figures, args.json)


def made_values(num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sources of edges, int64, and rows of features, in private memory in huge pages."""
    rng = np.random.default_rng(0)
    indices = private([num_nodes * DEGREE], torch.int64, mmap.MADV_HUGEPAGE)
    rows = private([num_nodes, WIDTH], torch.float32, mmap.MADV_HUGEPAGE)
    for part in indices.split(PIECE):
        part.copy_(torch.from_numpy(rng.integers(0, num_nodes, len(part))))
    for part in rows.view(-1).split(PIECE):
        part.copy_(torch.from_numpy(rng.random(len(part), dtype=np.float32)))
    return indices, rows


def private(shape: Sequence[int], dtype: torch.dtype, advice: int) -> torch.Tensor:
    num_bytes = math.prod(shape) * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(*shape)


def memfd(values: torch.Tensor) -> torch.Tensor:
    memory = _core.SharedMemory.create(values.nbytes, "pages")
    return torch.frombuffer(memory, dtype=values.dtype, count=values.numel()).view(values.shape).copy_(values)


def as_for_workers(values: torch.Tensor) -> torch.Tensor:
    shared = share_memory(values)
    for thread in threading.enumerate():
        if thread.name == "datapipes-huge-pages":
            thread.join()
    return shared


def mapped(folder: Path, values: torch.Tensor, *, is_asked_for: bool) -> torch.Tensor:
    """Return the values in a mapped file, which was dropped from the page cache and has no name any more."""
    path = folder / "pages.npy"
    np.save(path, values.numpy())
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    array = np.load(path, mmap_mode="c")
    path.unlink()
    if is_asked_for:
        ask_for_huge_pages(array._mmap)
    else:
        array._mmap.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.from_numpy(np.asarray(array))


def gather(feature: dp.TensorFeature, nodes: list[torch.Tensor]) -> Callable[[int], float]:
    """Return bytes per second over the rows of all minibatches; each result is released before the next."""
    num_bytes = sum(map(len, nodes)) * 4 * WIDTH
    return lambda _: num_bytes / sum(timed(lambda ids=ids: feature.read(ids))[0] for ids in nodes)


def huge_bytes() -> int:
    """Return how many bytes this process maps in huge pages."""
    found = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    kinds = ("AnonHugePages:", "ShmemPmdMapped:", "FilePmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:")
    return sum(1024 * int(line.split()[1]) for line in found if line.split()[0] in kinds)


if __name__ == "__main__":
    main()
