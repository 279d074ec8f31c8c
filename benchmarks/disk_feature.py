"""How many rows does a DiskFeature read cold, against a mapped file, and how near is that to what the disk gives?

A file of rows of 512 bytes, 4 GB; each measurement reads the rows of a new random minibatch, distinct ids, after the
pages of the file were dropped (posix_fadvise, after sync). Sides: np.memmap as it is, and advised that reads are
random; DiskFeature with 64, 128 and 256 threads, through the page cache and past it. All in alternation, median of 5.
The limit is fio: random direct reads of 4 KiB, io_uring, 128 under way in each of 2 jobs, in the same run.
Run: python benchmarks/disk_feature.py --folder FOLDER_ON_THE_DISK
Result (2-core AMD EPYC VM, ext4 on a virtual disk, commit c2173a9): np.memmap 9.8 thousand rows/s, advised 15.1. 64
threads 83.6, 88 past the page cache: 8.5 and 9.0 times np.memmap, 0.92 and 0.97 of fio (91). 128 threads 0.94 and 1.05
of fio, 256 threads 0.99 and 1.03. 8.9 bytes are read for each that is asked for: a block of 4 KiB for a row of 512.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import alternate, parser, report, timed

import datapipes as dp

COLUMNS, SEED = 128, 0  # of float32: rows of 512 bytes
FIO = ["--rw=randread", "--bs=4k", "--direct=1", "--ioengine=io_uring", "--iodepth=128", "--numjobs=2", "--norandommap"]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    arguments.add_argument("--folder", type=Path, help="on the disk to measure; by default that of temporary files")
    arguments.add_argument("--rows", type=int, default=8_000_000, help="of the file")
    arguments.add_argument("--minibatch", type=int, default=30_000, help="rows of one")
    args = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "feat.npy"
        _write(path, args.rows)
        draws = np.random.default_rng(SEED)

        def side(read: Callable[[torch.Tensor], Any]) -> Callable[[int], float]:
            def measure(_: int) -> float:
                ids = torch.from_numpy(draws.choice(args.rows, args.minibatch, replace=False))
                _drop(path)
                return args.minibatch / timed(lambda: read(ids))[0]

            return measure

        features = {
            f"DiskFeature, {depth} threads{', direct' if direct else ''}": dp.DiskFeature(
                path, num_threads=depth, direct=direct
            )
            for depth in (64, 128, 256)
            for direct in (False, True)
        }
        sides: dict[str, Callable[[int], float]] = {
            "np.memmap": side(_mapped(path, None)),
            "np.memmap, MADV_RANDOM": side(_mapped(path, mmap.MADV_RANDOM)),
            **{name: side(feature.read) for name, feature in features.items()},
        }
        if shutil.which("fio"):
            sides["fio"] = lambda _: _fio(path)
        rates = alternate(sides, args.repeats, warm_ups=1)
        counts = {name: feature.stats() for name, feature in features.items()}
    figures: dict[str, float | str] = {}
    for name, rate in rates.items():
        figures[f"{name} (thousand rows/s)"] = rate / 1e3
        figures[f"{name}, times np.memmap"] = rate / rates["np.memmap"]
        if "fio" in rates:
            figures[f"{name}, of fio"] = rate / rates["fio"]
        if name in counts:
            figures[f"{name}, bytes read for one asked for"] = counts[name]["disk_bytes"] / counts[name]["row_bytes"]
    report(figures, args.json)


def _write(path: Path, count: int) -> None:
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, COLUMNS))
    step = 2**16
    for begin in range(0, count, step):
        rows[begin : begin + step] = np.random.default_rng(begin).random(rows[begin : begin + step].shape, np.float32)
    rows.flush()
    os.sync()


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _mapped(path: Path, advice: int | None) -> Callable[[torch.Tensor], Any]:
    def read(ids: torch.Tensor) -> Any:
        rows = np.load(path, mmap_mode="r")  # anew: pages that are mapped are not dropped
        if advice is not None:
            rows.base.madvise(advice)
        return rows[ids.numpy()]

    return read


def _fio(path: Path) -> float:
    """Return random reads per second."""
    command = ["fio", "--name=limit", f"--filename={path}", *FIO, "--runtime=3", "--time_based", "--group_reporting"]
    done = subprocess.run([*command, "--output-format=json"], capture_output=True, check=True, text=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


if __name__ == "__main__":
    main()
