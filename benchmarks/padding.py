"""What does `pad` cost, as a share of the sampling before it, and how much padding is there? On one thread.

Untyped: fanouts [15, 10, 5], 1,024 and 256 seeds, indices int64 and int32; sizes by measure_sizes with one bucket. The
sides are 20 minibatches of the chain without `pad` and with it, and a copy of what `pad` must write at least, input
nodes and indices of one of them. Typed: the purchases of tables.py, sampled up to the time of the seed, with 4 buckets.
Padding is counted over 100 minibatches of another epoch. All in alternation, median of 9.
Run: python benchmarks/padding.py --graph GRAPH
Result (2-core VM, shared, 1M nodes / 20M edges, commits d3d867f to 3bba545, six runs): `pad` adds 0 to 4 % to the
sampling of 1,024 seeds and 3 to 6 % (twice 9 to 14 %) to that of 256, where the copy alone takes 5 % (int64) and 2 %
(int32); 12 to 14 % and 6 to 8 % to typed minibatches of 0.9 and 2.3 ms, where Python pads the seeds and some
minibatches end in another bucket than the guess. As a stage behind another one, which copies all (commit d330512): 10
and 12 % at 1,024 seeds, 13 to 21 % at 256, 50 and 29 % typed. Sampling alone is as fast as without the code (0.99 to
1.01, two processes in alternation). Padding of nodes and edges: 2.8 % and 3.7 % at 1,024 seeds, 5.5 % and 6.8 % at
256; typed 11 % and 13 % (10 purchases a customer), 3.5 % and 3.8 % (100).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report
from tables import BATCH_SIZE, FANOUTS, SECONDS, SHAPES, shop_data

import datapipes as dp

MINIBATCHES, COUNTED = 20, 100


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    figures: Figures = {}
    for num_seeds, dtype in itertools.product((1024, 256), (torch.int64, torch.int32)):
        items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), num_seeds, shuffle=True, seed=0)
        sampled = items.sample_neighbor(graph.with_index_dtype(dtype), [15, 10, 5])
        figures |= figures_of(f"{num_seeds} seeds, {str(dtype)[6:]}", sampled, 1, args.repeats)
    for shape in SHAPES:
        figures |= figures_of(f"typed, {shape}", purchases(*SHAPES[shape]), 4, args.repeats)
    report(figures, args.json)


def purchases(num_customers: int, num_purchases: int) -> dp.Stage:
    data = shop_data(num_customers, num_purchases)
    rng = np.random.default_rng(1)
    seeds = torch.from_numpy(rng.integers(0, num_customers, BATCH_SIZE * 300))
    times = torch.from_numpy(rng.integers(SECONDS // 2, SECONDS, len(seeds)))
    items = dp.HeteroItemSet({"customers": dp.ItemSet((seeds, times), ("seeds", "timestamps"))})
    return dp.ItemSampler(items, BATCH_SIZE, shuffle=True, seed=0).temporal_sample_neighbor(
        data.graph, FANOUTS[::-1], node_time_attr="time", strategy="last", inclusive=True
    )


def figures_of(name: str, sampled: dp.Stage, buckets: int, repeats: int) -> Figures:
    padded = sampled.pad(dp.measure_sizes(sampled, buckets=buckets))
    one = next(started(padded))
    sides = {"sampling": sampled_by(sampled), "sampling and pad": sampled_by(padded), "copy": copied(one)}
    seconds = {side: 1 / rate for side, rate in alternate(sides, repeats).items()}
    figures: Figures = {f"{name}: {side} (ms/minibatch)": 1e3 * spent for side, spent in seconds.items()}
    figures[f"{name}: pad of sampling"] = seconds["sampling and pad"] / seconds["sampling"] - 1
    figures[f"{name}: copy of sampling"] = seconds["copy"] / seconds["sampling"]
    counts = np.zeros((2, 2))
    padded.set_epoch(1)
    for minibatch in itertools.islice(padded, COUNTED):
        masks = minibatch.masks
        nodes = [*by_type(masks.nodes)]
        edges = [mask for hop in masks.edges for mask in by_type(hop)]
        counts += [[sum(map(len, part)), sum(int(mask.sum()) for mask in part)] for part in (nodes, edges)]
    for part, (rows, real) in zip(("nodes", "edges"), counts, strict=True):
        figures[f"{name}: padding of {part}"] = rows / real - 1
    return figures


def started(stage: dp.Stage) -> Any:
    stage.set_epoch(0)
    return iter(stage)


def by_type(value: Any) -> list[torch.Tensor]:
    return [*value.values()] if isinstance(value, dict) else [value]


def sampled_by(stage: dp.Stage) -> Callable[[int], float]:
    def rate(_: int) -> float:
        begin = time.perf_counter()
        for _ in itertools.islice(started(stage), MINIBATCHES):
            pass  # each is freed, so that its memory is used again
        return MINIBATCHES / (time.perf_counter() - begin)

    return rate


def copied(minibatch: dp.MiniBatch) -> Callable[[int], float]:
    blocks = [block for hop in minibatch.blocks for block in (hop.values() if isinstance(hop, dict) else [hop])]
    tensors = [*by_type(minibatch.input_nodes), *(block.indices for block in blocks)]
    copies = [tensor.clone() for tensor in tensors]

    def rate(_: int) -> float:
        begin = time.perf_counter()
        for _ in range(MINIBATCHES):
            for tensor, copy in zip(tensors, copies, strict=True):
                copy.copy_(tensor)
        return MINIBATCHES / (time.perf_counter() - begin)

    return rate


if __name__ == "__main__":
    main()
