"""Does every minibatch arrive exactly once when workers of a DataLoader are killed, and how long is the wait?

Worker processes get SIGKILL at random moments while epochs are read: --kills in all, 50 to 500 ms apart; 1,024 seeds,
fanouts [15, 10, 5], node features. Each minibatch is compared by digest with the one that the chain makes without
workers. At the end no worker, descriptor or mapping may be left. max_restarts is the default: if kills hit the same
minibatch more than three times, the run ends with PeerDied, which counts as a failure.
Run: python benchmarks/chaos.py --graph GRAPH
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commits 5be9c11 and c66de65): 200 kills, 480 and 440
minibatches, each once, longest pause 0.35 and 0.50 s, nothing left. With 20 to 200 ms between kills one run of three
ended in PeerDied: 4 kills had hit workers that were making the same minibatch.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import statistics
import sys
import threading
import time
from multiprocessing import active_children
from pathlib import Path

import torch
from common import load_graph, parser, report

import datapipes as dp

MINIBATCHES = 40
GAP_S = (0.05, 0.5)
BOUND_S = 60.0


class Killer(threading.Thread):
    """Kills a random worker at random times, until it has killed enough or is asked to stop."""

    def __init__(self, kills: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.left = kills
        self.times: list[float] = []
        self.stopped = threading.Event()
        self._random = random.Random(seed)

    def run(self) -> None:
        while self.left > 0 and not self.stopped.wait(self._random.uniform(*GAP_S)):
            pids = [child.pid for child in active_children() if child.name.startswith("datapipes-worker")]
            if pids:
                os.kill(self._random.choice(pids), signal.SIGKILL)  # type: ignore[arg-type]
                self.times.append(time.monotonic())
                self.left -= 1


def left_over() -> tuple[int, int]:
    """Return (open descriptors, mappings of channels) of this process."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return len(os.listdir("/proc/self/fd")), maps.count("datapipes-channel")


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments.add_argument("--channel", default="shm")
    arguments.add_argument("--context", default=None)
    arguments.add_argument("--max-restarts", type=int, default=3)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("datapipes").setLevel(logging.ERROR)
    graph, rows = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.from_numpy(rows))})
    items = dp.ItemSampler(dp.ItemSet(1024 * MINIBATCHES), 1024, shuffle=True, seed=1)
    chain = items.sample_neighbor(graph, [15, 10, 5]).fetch_feature(store, node_feature_keys=["feat"])
    wanted = [minibatch.digest() for minibatch in chain]

    options = {"channel": args.channel, "multiprocessing_context": args.context, "max_restarts": args.max_restarts}
    warm = dp.DataLoader(chain, args.workers, **options)
    list(warm)  # starts the server that forks workers; it stays and does not count as left over
    warm.close()
    before = left_over()
    loader = dp.DataLoader(chain, args.workers, **options)
    killer = Killer(args.kills, args.seed)
    pauses: list[float] = []
    rounds = 0
    killer.start()
    while killer.is_alive():
        loader.set_epoch(0)
        got = []
        asked = time.monotonic()
        for minibatch in loader:
            pauses.append(time.monotonic() - asked)
            got.append(minibatch.digest())
            asked = time.monotonic()
        if got != wanted:
            sys.exit(f"seed {args.seed}: round {rounds} gave {len(got)} minibatches, or others than the {len(wanted)}")
        rounds += 1
    killed = len(killer.times)
    loader.close()
    ends = time.monotonic() + BOUND_S
    while active_children() and time.monotonic() < ends:
        time.sleep(0.05)
    del loader, minibatch
    after = left_over()
    report(
        {
            "kills": float(killed),
            "minibatches, each exactly once": float(rounds * len(wanted)),
            "longest pause (s)": max(pauses),
            "median pause (s)": statistics.median(pauses),
            "worker processes left": float(len(active_children())),
            "descriptors more than before": float(after[0] - before[0]),
            "channel mappings more than before": float(after[1] - before[1]),
            "seed": str(args.seed),
        },
        args.json,
    )


if __name__ == "__main__":
    main()
