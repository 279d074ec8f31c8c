"""Does the report name what makes a loader slow, and blame nothing in one that is not?

Loaders that are made slow on purpose, in one way each: a function of Python that takes 30 ms, one worker process for
expensive sampling, a mapped feature that is not in memory (its pages are dropped first, and read without read-ahead),
servers behind a proxy that delays each way by 20 ms, minibatches of 4 seeds. And three that are not: beside a model of
40 ms, without workers, with one worker process and with two worker threads. Kernels with one thread. Two epochs each;
then the cause that `stats().found` names, and its sentences. With --out DIR the reports are written there.
Run: python benchmarks/slow_loaders.py --graph GRAPH
Result (2-core AMD EPYC VM, quiet, 1M nodes / 20M edges, commit ab71a61): 8 of 8 named rightly. While other work keeps
both processors busy, "one worker" is named "sampling": none is idle then, so another worker would not help.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from common import load_graph, parser, report
from distributed import line_of, server

import datapipes as dp
from datapipes import distributed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from proxy import Proxy

BATCH, MINIBATCHES, MODEL_S = 512, 40, 0.04
DISK_ROWS = 2**22  # of the mapped feature, 128 float32 each: 2 GiB


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--out", type=Path, help="folder for the reports")
    args = arguments.parse_args()
    torch.set_num_threads(1)  # or one worker would use all processors
    graph, features = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)})

    def chain(fanouts=(10, 5), batch_size=BATCH, minibatches=MINIBATCHES) -> dp.Stage:
        ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: batch_size * minibatches]
        start = dp.ItemSampler(dp.ItemSet(ids), batch_size, shuffle=True, seed=0)
        return start.sample_neighbor(graph, list(fanouts))

    figures: dict[str, float | str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fetched = chain().fetch_feature(store, ["feat"])
        loaders: dict[str, tuple[str, Callable[[], dp.DataLoader]]] = {
            "slow function": (
                "transform",
                lambda: dp.DataLoader(chain().transform(slow).fetch_feature(store, ["feat"])),
            ),
            "one worker": ("workers", lambda: dp.DataLoader(chain((20, 20, 10)), 1)),
            "not in memory": ("disk", lambda: dp.DataLoader(on_disk(chain(minibatches=8), folder))),
            "far servers": ("network", lambda: dp.DataLoader(behind_proxy(graph, features, folder, stack))),
            "tiny minibatches": (
                "tiny",
                lambda: dp.DataLoader(chain(batch_size=4, minibatches=1000).fetch_feature(store, ["feat"])),
            ),
            "not slow": ("consumer", lambda: dp.DataLoader(fetched)),
            "not slow, one worker": ("consumer", lambda: dp.DataLoader(fetched, 1)),
            "not slow, worker threads": ("consumer", lambda: dp.DataLoader(fetched, 2, worker_method="thread")),
        }
        named = 0
        for name, (cause, make) in loaders.items():
            with make() as loader:
                for _ in range(2):
                    for _ in loader:
                        if cause == "consumer":
                            time.sleep(MODEL_S)
                found = loader.stats().found
                assert found is not None
                if args.out is not None:
                    args.out.mkdir(exist_ok=True)
                    loader.report(args.out / f"{name.replace(', ', '-').replace(' ', '-')}.html")
            named += found.cause == cause
            figures[f"{name}: {found.cause}{'' if found.cause == cause else f', expected {cause}'}"] = str(found)
    figures["named rightly"] = f"{named} of {len(loaders)}"
    report(figures, args.json)


def slow(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Take 30 ms of a processor, as Python loops do."""
    began = time.thread_time()
    while time.thread_time() - began < 0.03:
        pass
    return minibatch


def spread(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Give each node of each minibatch another row of the mapped feature, so that none is read twice."""
    rows = (minibatch.input_nodes * 2654435761 + minibatch.index * 40503) % DISK_ROWS
    return minibatch.replace(input_nodes=rows)


def on_disk(chain: dp.Stage, folder: Path) -> dp.Stage:
    """Return a chain that fetches a mapped feature, of which nothing is in memory and nothing is read ahead."""
    path = folder / "feat.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(DISK_ROWS, 128))
    array[:] = 1
    array.flush()
    del array
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    page, random_access = os.sysconf("SC_PAGESIZE"), 1
    first = mapped.data_ptr() // page * page
    ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(mapped.nbytes), random_access)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(mapped)})
    return chain.transform(spread).fetch_feature(store, ["feat"])


def behind_proxy(graph: dp.CSCGraph, features: np.ndarray, folder: Path, stack: ExitStack) -> dp.Stage:
    """Return a chain over two parts, one of which a server has, behind a proxy that delays."""
    attributes = {"feat": torch.from_numpy(features)}
    graph = dp.CSCGraph(graph.indptr, graph.indices, node_attributes=attributes)
    distributed.Partitioner(graph, 2, folder / "parts", method="random", layouts=("native",)).generate_partition()
    running = stack.enter_context(server(folder / "parts", 1))
    proxy = Proxy(line_of(running).split()[1], delay=0.02)
    stack.callback(proxy.close)
    far = distributed.DistGraph.connect(folder / "parts", {1: proxy.address}, local_part=0, mmap=False)
    stack.callback(far.close)
    ids = torch.arange(BATCH // 4 * MINIBATCHES)
    start = dp.ItemSampler(dp.ItemSet(ids), BATCH // 4, shuffle=True, seed=0)
    sampled = start.dist_sample_neighbor(far, [10, 5], concurrency=2)
    return sampled.fetch_feature(distributed.DistFeatureStore(far), ["feat"])


if __name__ == "__main__":
    main()
