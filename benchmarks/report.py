"""What does it cost to collect what a loader's report needs?

Each call of a stage reads the processor time of its thread twice, and, if it took a millisecond, the bytes that it
waited for from a disk; now and then the loader reads its memory and the idle time of the machine. One side collects,
the other has empty functions in the place of these. Epochs of 40 minibatches, and of 1,200 with 16 seeds each, where
calls are short; without workers, kernels with one thread. Processor time of the process, in alternation, which side is
first too, 50 rounds of both; the ratio of a round, its median, mean and the interval of the mean at 95 % (t).
Run: python benchmarks/report.py --graph GRAPH --repeats 50
Result (2-core AMD EPYC VM, quiet, 1M nodes / 20M edges, commit 05bef06): 1,024 seeds 0.992 (0.981 to 1.004), 16
seeds 1.000 (0.986 to 1.013). When the disk was looked at for every call, 16 seeds took 1.036 (1.017 to 1.057).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch
from common import load_graph, parser, report

import datapipes as dp
from datapipes.base import clock
from datapipes.chain import epoch
from datapipes.loader import stats

FANOUTS, MINIBATCHES = [15, 10], 40


class Nothing:
    """Counts nothing."""

    @classmethod
    def at_begin(cls) -> float:
        return 0.0

    @classmethod
    def in_call(cls, began: float, processor_seconds: float) -> clock.Used:
        return clock.NOTHING


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, features = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)})
    figures: dict[str, float | str] = {}
    for batch_size in (1024, 16):
        minibatches = MINIBATCHES if batch_size > 16 else 30 * MINIBATCHES
        ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: batch_size * minibatches]
        start = dp.ItemSampler(dp.ItemSet(ids), batch_size, shuffle=True, seed=0)
        loader = dp.DataLoader(start.sample_neighbor(graph, FANOUTS).fetch_feature(store, ["feat"]))
        ratios = paired(lambda loader=loader: spent(loader), max(args.repeats, 3))
        half = T_95 * statistics.stdev(ratios) / len(ratios) ** 0.5
        mean = statistics.mean(ratios)
        figures[f"batch size {batch_size}: processor time, collecting to not, median"] = statistics.median(ratios)
        figures[f"batch size {batch_size}: mean"] = mean
        figures[f"batch size {batch_size}: 95 % interval"] = f"{mean - half:.4f} to {mean + half:.4f}"
    report(figures, args.json)


T_95 = 2.01  # of 49 degrees of freedom


def paired(measure: Callable[[], float], rounds: int) -> list[float]:
    """Return the ratio of each round; which side comes first changes."""
    ratios = []
    for number in range(rounds + 1):
        found = {}
        for collects in (number % 2 == 0, number % 2 == 1):
            if collects:
                found[collects] = measure()
            else:
                look = mock.patch.object(stats.Watch, "look")
                with mock.patch.object(epoch, "Used", Nothing), look:
                    found[collects] = measure()
        if number > 0:  # the first is a warm-up
            ratios.append(found[True] / found[False])
    return ratios


def spent(loader: dp.DataLoader) -> float:
    """Return the processor time of an epoch."""
    loader.set_epoch(0)  # each time the same minibatches
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


if __name__ == "__main__":
    main()
