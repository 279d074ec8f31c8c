"""Run by GraphBolt's interpreter, which has no datapipes: measure GraphBolt once for each line on standard input.

`datapipes bench --peer graphbolt` starts it; so does benchmarks/peer_graphbolt.py, which adds measurements. A line of
the answer has what was done, the input nodes, seconds, and seconds of processor time.
Arguments: FOLDER WHAT. FOLDER has indptr.npy and indices.npy (int64), a file.npy for each feature, and job.json: the
batch size, the fanouts, the file of the seeds, those of the features, the seconds, the threads of the loader. WHAT is
`sample`, `gather` (one thread each) or `load` (its DataLoader without workers).
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import dgl.graphbolt as gb
import numpy as np
import torch

Measure = Callable[[int], tuple[float, ...]]  # the line -> what was done, input nodes, and seconds if not all count


def answer_lines(measure: Measure) -> None:
    """Call `measure` for each line of standard input, and print what it did."""
    for line in sys.stdin:
        began, began_processor = time.perf_counter(), time.process_time()
        done, input_nodes, *seconds = measure(int(line))
        seconds = seconds or [time.perf_counter() - began]
        print(done, input_nodes, *seconds, time.process_time() - began_processor, flush=True)


def sampling(pipe: Any, round_s: float) -> Measure:
    """Count the edges and input nodes of the minibatches of `pipe`."""
    stream = endless(pipe)

    def measure(_: int) -> tuple[float, float]:
        began, edges, input_nodes = time.perf_counter(), 0, 0
        while time.perf_counter() - began < round_s:
            minibatch = next(stream)
            edges += sum(edges_of(hop.sampled_csc) for hop in minibatch.sampled_subgraphs)
            input_nodes += nodes_of(minibatch.input_nodes)
        return edges, input_nodes

    return measure


def gathering(pipe: Any, store: gb.BasicFeatureStore, names: Sequence[str], round_s: float) -> Measure:
    """Count the bytes of the features of five minibatches of `pipe`, which are read again and again."""
    nodes = [minibatch.input_nodes for minibatch in islice(endless(pipe), 5)]

    def measure(_: int) -> tuple[float, float]:
        began, num_bytes = time.perf_counter(), 0
        while time.perf_counter() - began < round_s:
            for ids in nodes:
                for name in names:
                    rows = store.read("node", None, name, ids)
                    num_bytes += rows.numel() * rows.element_size()
        return num_bytes, 0

    return measure


def loading(loader: gb.DataLoader, round_s: float) -> Measure:
    """Count the minibatches of a DataLoader."""
    stream = endless(loader)

    def measure(_: int) -> tuple[float, float]:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < round_s:
            next(stream)
            done += 1
        return done, 0

    return measure


def endless(pipe: Any) -> Iterator[gb.MiniBatch]:
    """Yield minibatches, epoch after epoch."""
    while True:
        yield from pipe


def edges_of(csc: Any) -> int:
    parts = csc.values() if isinstance(csc, dict) else [csc]
    return sum(len(part.indices) for part in parts)


def nodes_of(ids: Any) -> int:
    return sum(map(len, ids.values())) if isinstance(ids, dict) else len(ids)


def topology(folder: Path | str) -> tuple[np.ndarray, np.ndarray]:
    return np.load(Path(folder, "indptr.npy")), np.load(Path(folder, "indices.npy"))


def features(folder: Path, names: Sequence[str]) -> gb.BasicFeatureStore:
    rows = {("node", None, name): torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names}
    return gb.BasicFeatureStore({key: gb.TorchBasedFeature(each) for key, each in rows.items()})


def neighbor_sampler(
    arrays: tuple[np.ndarray, np.ndarray], seeds: np.ndarray, batch_size: int, fanouts: list[int], shuffle: bool = True
) -> gb.NeighborSampler:
    items = gb.ItemSampler(gb.ItemSet(torch.from_numpy(seeds), names="seed_nodes"), batch_size, shuffle=shuffle)
    return gb.NeighborSampler(items, gb.fused_csc_sampling_graph(*map(torch.from_numpy, arrays)), fanouts)


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    torch.set_num_threads(job["threads"] if what == "load" else 1)
    pipe = neighbor_sampler(topology(folder), np.load(folder / job["seeds"]), job["batch_size"], job["fanouts"])
    if what == "sample":
        measure = sampling(pipe, job["seconds"])
    elif what == "gather":
        measure = gathering(pipe, features(folder, job["features"]), job["features"], job["seconds"])
    else:
        fetcher = gb.FeatureFetcher(pipe, features(folder, job["features"]), node_feature_keys=job["features"])
        measure = loading(gb.DataLoader(fetcher), job["seconds"])
    answer_lines(measure)


if __name__ == "__main__":
    main()
