"""How fast is the portable wheel beside a native build of the same sources?

Each is installed into a folder of its own (pip install --no-deps --target FOLDER WHEEL), and a child process imports it
from there. Both children do the same turns of fixed work, one after the other, the first of a round in alternation:
1,024 seeds with fanouts [15, 10, 5], uniform from int64 and int32 ids, by weights, by time and by LABOR; a gather of
their feature rows, also from float16; messages of 4 MiB through a ShmChannel; and the whole chain with features through
DataLoader. One thread, but for the chain, which has two. A turn's time is processor time of the child, all its threads;
the wall time is shown too. Where the system puts the core, the stacks and the arrays moves rates by a few percent, so
the children are started 9 times, with 7 rounds each. A figure is the median of the 9 medians of (portable / native);
beside it stand their second and second highest, between which the true median lies with a confidence of 96 %.
Run: python benchmarks/wheel.py --graph GRAPH NATIVE PORTABLE
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, g++ 12.2, commit c8dbc11): uniform 0.996 (0.959 to 1.010),
int32 0.999 (0.981 to 1.019), LABOR 1.002 (0.980 to 1.036), by weights 0.988 (0.971 to 0.994), by time 1.004 (1.001 to
1.017), gather 1.009 (0.983 to 1.025), from float16 1.010 (1.000 to 1.021), the whole chain 0.994 (0.986 to 1.018). Five
starts in a quieter hour: 1.003 (1.000 to 1.027), 0.990, 1.003, 1.003, 1.002, 1.006 (1.005 to 1.007), 1.010, 1.007. The
channel 0.995 (0.961 to 1.031); the native build against a copy of itself gave 0.951 (0.884 to 1.022), so this says no
more than that. Compiled by zig's clang, as before: uniform 0.978, int32 0.879, LABOR 1.151, by weights 1.104, by time
1.104, gather 0.941, from float16 0.953.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import edge_values
import torch
from common import Figures, load_graph, parser, report
from samplers import ROWS, with_values

import datapipes as dp

LIVES, ROUNDS, WARM_UPS = 9, 7, 2
FANOUTS = [15, 10, 5]
SAMPLERS = {"weighted": 5, "temporal": 4, "labor": 4}  # minibatches of a turn, by the name in samplers.py
MESSAGE_BYTES, MESSAGES = 2**22, 30

Turn = Callable[[], object]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--turns-of", type=Path, help=argparse.SUPPRESS)  # what a child is started with
    arguments.add_argument("--only", nargs="+", default=[], help="words of the names of what to measure")
    arguments.add_argument("installs", nargs="*", type=Path, help="folders: of the native build, of the portable wheel")
    args = arguments.parse_args()
    if args.turns_of is not None:
        return answer(args.turns_of, args.graph)
    if len(args.installs) != 2:
        return print("wheel: two installs are compared; name their folders. Nothing is measured")
    medians: dict[str, list[tuple[float, float]]] = {}
    for life in range(LIVES):
        children = [Child(install, args.graph) for install in args.installs]
        for name in children[0].names:
            if not args.only or any(word in name for word in args.only):
                medians.setdefault(name, []).append(compare(name, children, life))
        for child in children:
            child.close()
    report({name: value for each, pairs in medians.items() for name, value in figures(each, pairs).items()}, args.json)


def compare(name: str, children: list[Child], life: int) -> tuple[float, float]:
    """Return the medians over a life of the second child's time over the first one's: processor time, wall time."""
    ratios = []
    for number in range(WARM_UPS + ROUNDS):
        first = (life + number) % 2
        taken = {child: children[child].turn(name) for child in (first, 1 - first)}
        ratios.append([other / one for one, other in zip(taken[0], taken[1], strict=True)])
    processor, wall = (statistics.median(each) for each in zip(*ratios[WARM_UPS:], strict=True))
    return processor, wall


def figures(name: str, medians: list[tuple[float, float]]) -> Figures:
    processor, wall = (sorted(each) for each in zip(*medians, strict=True))
    return {
        f"{name}: portable / native": statistics.median(processor),
        f"{name}: between": f"{processor[1]:.3f} and {processor[-2]:.3f}",
        f"{name}: wall time": statistics.median(wall),
    }


class Child:
    """A process that imports the package from a folder, and does a turn when it is told to."""

    def __init__(self, install: Path, graph: Path | None) -> None:
        command = [sys.executable, __file__, "--turns-of", str(install)]
        command += [] if graph is None else ["--graph", str(graph)]
        environment = {**os.environ, "PYTHONPATH": str(install)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.names = self._answer().split(", ")

    def turn(self, name: str) -> tuple[float, float]:
        """Return the seconds of a turn: of processor time, of wall time."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        processor, wall = map(float, self._answer().split())
        return processor, wall

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a child ended with code {self._process.wait()}; see its messages above")
        return line.rstrip("\n")


def answer(install: Path, graph: Path | None) -> None:
    """Print the names of the turns; then, for each name on standard input, do the turn and print its seconds."""
    if not Path(dp.__file__).is_relative_to(install.resolve()):
        raise SystemExit(f"wheel: the package was imported from {dp.__file__}, not from {install}")
    torch.set_num_threads(1)
    turns = turns_of(graph)
    print(", ".join(turns), flush=True)
    for line in sys.stdin:
        threads, turn = turns[line.rstrip("\n")]
        torch.set_num_threads(threads)
        began, began_processor = time.perf_counter(), time.process_time()
        turn()
        print(time.process_time() - began_processor, time.perf_counter() - began, flush=True)


def turns_of(folder: Path | None) -> dict[str, tuple[int, Turn]]:
    """Return turns of 50 to 150 ms by name, each with its number of threads."""
    graph, rows = load_graph(folder)
    seeds = torch.arange(graph.num_nodes), torch.from_numpy(edge_values.seed_times(graph.num_nodes))
    items = dp.ItemSampler(dp.ItemSet(seeds, ("seeds", "timestamps")), 1024, shuffle=True, seed=1)
    samplers = {row.name: row.build(items, with_values(graph, row.values)) for row in ROWS if row.name in SAMPLERS}
    features = torch.from_numpy(rows)
    stores = {
        name: dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features, stored_as=name)})
        for name in (None, "float16")
    }
    sampled = items.sample_neighbor(graph, FANOUTS)
    fetched = {name: sampled.fetch_feature(store, node_feature_keys=["feat"]) for name, store in stores.items()}
    kept = list(islice(iter(sampled), 5))

    def gather(name: str | None) -> Turn:
        return lambda: [fetched[name].transform(minibatch) for minibatch in kept]

    def copy() -> None:  # memory of its own for each turn: where it lies makes 10 % of the rate
        channel, message = dp.ShmChannel(4, "16MB"), {"rows": torch.ones(MESSAGE_BYTES // 4)}
        for _ in range(MESSAGES):
            channel.send(message)
            channel.recv()
        channel.close()

    def whole_chain() -> None:  # a loader of its own, since one that stays works ahead while the other child measures
        with dp.DataLoader(fetched[None]) as loader:
            for _ in islice(loader, 15):
                pass

    return {
        "uniform": (1, some(sampled, 10)),
        "uniform int32": (1, some(items.sample_neighbor(graph.with_index_dtype(torch.int32), FANOUTS), 10)),
        **{name: (1, some(sampler, SAMPLERS[name])) for name, sampler in samplers.items()},
        "gather": (1, gather(None)),
        "gather from float16": (1, gather("float16")),
        "channel": (1, copy),
        "end to end": (2, whole_chain),
    }


def some(pipe: dp.Stage, count: int) -> Turn:
    """Return a turn that takes `count` minibatches, through epochs without end."""

    def endless() -> Iterator[object]:
        while True:
            yield from pipe

    stream = endless()
    return lambda: list(islice(stream, count))


if __name__ == "__main__":
    main()
