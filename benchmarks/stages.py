"""What does a stage cost where there is little to do: microseconds of processor time a minibatch, on one thread?

A `transform` whose function returns what it is given (the difference between a chain of 8 and one of none, divided by
8), in a plain chain and in a DataLoader without workers. ItemSampler with 16 and 1,024 seeds, in order and shuffled,
over 10^4 to 10^7 items. Whole chains of 1, 16 and 128 seeds: [10, 5] neighbors and 100 floats a node, of --graph or of
200,000 nodes and 4 million edges. With --peer-python GraphBolt's beside each; in place of a DataLoader without workers
it has its own. What an epoch takes at its begin, such as GraphBolt's permutation, is divided among its minibatches. All
in alternation, median of 9.
Run: python benchmarks/stages.py [--graph GRAPH --peer-python PYTHON]
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commit 5edf365, two runs; ratios to GraphBolt 2.1.0): a
transform that does nothing 2.7 and 3.1 us, in a DataLoader 8.2 and 8.8, where its threads are noise (4.8 without them).
16 seeds 0.75 to 2.0 times as long, the median 1.07; 1,024 in order 0.5 to 1.3 times; shuffled, of 3 million 0.9 and 1.5
times, of 10 million 1.1 twice, of 100,000 1.7 and 1.8. A chain of one seed 0.36 and 0.58 times, in a DataLoader 0.6 and
0.8; of 16 0.3 to 0.7; of 128 0.17 to 0.32. Alone, without the peer between the rounds, a chain of one seed takes 80 to
91 us, where commit fcf3d75 took 99 to 121 in the same minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import KEEP_MEMORY, Peer, alternate, load_graph, parser, peer_of, report
from consumers import Reading

import datapipes as dp

STAGES = 8  # that do nothing, in one chain
FANOUTS = [10, 5]
SIZES = (10_000, 100_000, 1_000_000, 3_000_000, 10_000_000)


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="", help="of the figures: those with this in their names")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, tuple[dp.Stage, str]] = {}  # ours, and what the peer is told
    for count in (0, STAGES):
        pipe, what = noops(seeds(16, False, 10**6), count), f"seeds 16 0 1000000 {count}"
        sides[f"16 seeds, {count} transforms"] = pipe, what
        sides[f"16 seeds, {count} transforms, in a DataLoader"] = dp.DataLoader(pipe), f"{what} loader"
    for size in SIZES:
        for batch_size in (16, 1024):
            for shuffle in (False, True):
                name = f"{batch_size} seeds of {size:,}{', shuffled' if shuffle else ''}"
                sides[name] = seeds(batch_size, shuffle, size), f"seeds {batch_size} {shuffle:d} {size} 0"
    graph, rows = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(rows)})
    for batch_size in (1, 16, 128):
        pipe = dp.ItemSampler(dp.ItemSet(graph.num_nodes), batch_size, shuffle=True).sample_neighbor(graph, FANOUTS)
        pipe = pipe.fetch_feature(store, node_feature_keys=["feat"])
        sides[f"chain of {batch_size} seeds"] = pipe, f"small_chain {batch_size}"
        sides[f"chain of {batch_size} seeds, in a DataLoader"] = dp.DataLoader(pipe), f"small_chain {batch_size} loader"
    figures: dict[str, float | str] = {}
    for name, (pipe, what) in sides.items():
        if args.only in name:
            figures |= compared(name, pipe, what, args)
    for who in ("", ", graphbolt"):
        for where in ("", ", in a DataLoader"):
            none, some = (figures.get(f"16 seeds, {count} transforms{where}{who} (us)") for count in (0, STAGES))
            if none is not None and some is not None:
                figures[f"a transform that does nothing{where}{who} (us)"] = (float(some) - float(none)) / STAGES
    report(figures, args.json)


def compared(name: str, pipe: dp.Stage, what: str, args: argparse.Namespace) -> dict[str, float]:
    """Return the microseconds of both sides, and their ratio."""
    ours = used_by(pipe)
    if args.peer_python is None:
        return {f"{name} (us)": alternate({name: ours}, args.repeats, 1)[name]}
    peer = peer_of(args.peer_python, args.graph, what, KEEP_MEMORY)
    found = alternate({"ours": ours, "peer": used_by_peer(peer)}, args.repeats, 1)
    peer.close()
    return {
        f"{name} (us)": found["ours"],
        f"{name}, graphbolt (us)": found["peer"],
        f"{name}: ratio to graphbolt": found["ours"] / found["peer"],
    }


def seeds(batch_size: int, shuffle: bool, num_items: int) -> dp.Stage:
    return dp.ItemSampler(dp.ItemSet(torch.arange(num_items)), batch_size, shuffle=shuffle)


def noops(pipe: dp.Stage, count: int) -> dp.Stage:
    for _ in range(count):
        pipe = pipe.transform(as_given)
    return pipe


def as_given(minibatch: Any) -> Any:
    return minibatch


def used_by(pipe: dp.Stage) -> Callable[[int], float]:
    """Return what measures the microseconds of processor time that a minibatch takes."""
    read = Reading(pipe, len(pipe))

    def measure(_: int) -> float:
        done, seconds = read()
        return 1e6 * seconds / done

    return measure


def used_by_peer(peer: Peer) -> Callable[[int], float]:
    def measure(round_: int) -> float:
        done, _, seconds, _ = peer.counts(round_)
        return 1e6 * seconds / done

    return measure


if __name__ == "__main__":
    main()
