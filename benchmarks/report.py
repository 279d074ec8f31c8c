"""What does it cost to collect what a loader's report needs?

Each call of a stage reads the processor time of its thread twice, and, if it took a millisecond, the bytes that it
waited for from a disk; now and then the loader reads its memory and the idle time of the machine. One side collects,
the other has empty functions in the place of these. Epochs of 10 minibatches, and of 300 with 16 seeds each, where
calls are short; without workers, kernels with one thread. Processor time of the process; a round has 4 epochs of each
side, in alternation, which side is first too; the ratio of each of 50 rounds, their median, mean and the interval of
the mean at 95 % (t).
Run: python benchmarks/report.py --graph GRAPH --repeats 50
Result (2-core AMD EPYC VM, quiet, 1M nodes / 20M edges, commit 0d1ce38): 1,024 seeds 0.992 (0.978 to 1.006), 16
seeds 0.991 (0.983 to 1.000). When each call looked twice at its thread's time, 16 seeds took 1.019 (1.010 to 1.027, 200
rounds); when each looked at the disk too, 1.036.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from unittest import mock

import torch
from common import load_graph, parser, report

import datapipes as dp
from datapipes.base.clock import StageClock
from datapipes.loader import stats

FANOUTS, MINIBATCHES, TURNS = [15, 10], 10, 4


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
    """Return the ratio of each round; the sides take turns, and which comes first changes."""
    ratios = []
    for number in range(rounds + 1):
        found = {True: 0.0, False: 0.0}
        for turn in range(TURNS):
            for collects in (turn % 2 == 0, turn % 2 == 1):
                with contextlib.nullcontext() if collects else nothing_collected():
                    found[collects] += measure()
        if number > 0:  # the first is a warm-up
            ratios.append(found[True] / found[False])
    return ratios


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    with mock.patch.object(StageClock, "at_begin", return_value=None), mock.patch.object(stats.Watch, "look"):
        yield


def spent(loader: dp.DataLoader) -> float:
    """Return the processor time of an epoch."""
    loader.set_epoch(0)  # each time the same minibatches
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


if __name__ == "__main__":
    main()
