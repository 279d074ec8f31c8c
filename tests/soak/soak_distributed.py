"""Kill the servers of a partition 50 times in an epoch: every minibatch comes once, with the bits of the whole graph.

A supervisor starts a killed server again at once, on its port. A thread kills one of the servers, waits until it is
ready again, and measures how long a client that asks all the time goes on without an answer from then on: it must be
less than 1 s. In the end no thread and no descriptor of the client is left.
Run: PYTHONPATH=tests/support python tests/soak/soak_distributed.py --kills 50 --minutes 5   (or make soak)
Result (2 cores, busy with other work): 198 kills in 4 epochs, all minibatches equal; back after 0.12 s (median), at
most 0.70 s; the longest wait for a minibatch was 2.2 s, most of it the start of a server.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import torch
from parts_on_disk import a_graph, over, whole, write
from soaking import arguments
from warm_servers import Supervisor, supervised

import datapipes as dp
from datapipes.distributed import DistGraph, connect
from datapipes.distributed.requests.rows import RowsRequest

NUM_NODES = 6_000  # 1,500 minibatches an epoch
BACK_S = 1.0  # from `ready` to the first answer
DEADLINE_S = 30.0


class Killer(threading.Thread):
    """Kills one of the servers each time that it is told to; `back_s` has the seconds from `ready` to an answer.

    The request is in flight when the server dies, so it is the client that finds the new one.
    """

    def __init__(self, servers: dict[int, Supervisor], namebook: dict[int, str]) -> None:
        super().__init__(daemon=True)
        self.servers, self.namebook = servers, namebook
        self.back_s: list[float] = []
        self.failure: BaseException | None = None
        self.told, self.is_free = threading.Semaphore(0), threading.Semaphore(1)
        self.is_over = False

    def run(self) -> None:
        try:
            with connect(self.namebook, deadline=DEADLINE_S) as client:
                while self.told.acquire() and not self.is_over:
                    part = [*self.servers][len(self.back_s) % len(self.servers)]
                    self.servers[part].kill()
                    client.rows(part, RowsRequest(())).result(DEADLINE_S + 10)
                    answered = time.monotonic()
                    self.back_s.append(max(answered - self.servers[part].wait_until_ready(), 0.0))
                    self.is_free.release()
        except BaseException as error:
            self.failure = error
            self.is_free.release()


def epoch(loader: dp.DataLoader, killer: Killer, expected: list[str], kills: int, until: float) -> None:
    """Run an epoch with kills, evenly; without more of them after `until`."""
    digests: list[str] = []
    longest, every = 0.0, max(len(expected) // (kills + 1), 1)
    killer.start()
    iterator = iter(loader)
    while True:
        began = time.monotonic()
        minibatch = next(iterator, None)
        longest = max(longest, time.monotonic() - began)
        if minibatch is None:
            break
        digests.append(minibatch.digest())
        if len(digests) % every == 0 and len(digests) // every <= kills and time.monotonic() < until:
            assert killer.is_free.acquire(timeout=3 * DEADLINE_S)
            killer.told.release()
    killer.is_over = killer.is_free.acquire(timeout=3 * DEADLINE_S)
    killer.told.release()
    killer.join(DEADLINE_S)
    if killer.failure is not None:
        raise killer.failure
    assert digests == expected, "the minibatches are not those of the whole graph"
    if killer.back_s:
        print(
            f"  {len(killer.back_s)} kills in an epoch of {len(digests)} minibatches, all equal; from ready to the "
            f"first answer median {statistics.median(killer.back_s):.3f} s, most {max(killer.back_s):.3f} s; longest "
            f"wait for a minibatch {longest:.2f} s",
            flush=True,
        )
        assert max(killer.back_s) < BACK_S, f"it took more than {BACK_S} s from ready to the first answer"
    assert longest < DEADLINE_S, "a minibatch took longer than the deadline"


def left() -> tuple[int, int]:
    """The threads and descriptors of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def main() -> None:
    multiprocessing.set_forkserver_preload(["__main__", "torch", "datapipes", "datapipes.processes.preload"])
    torch.set_num_threads(1)
    options = arguments(__doc__, minutes=5.0, kills=50)
    logging.getLogger("datapipes").setLevel(logging.WARNING)
    until = time.monotonic() + options.minutes * 60
    graph = a_graph(num_nodes=NUM_NODES)
    expected = whole(graph)
    with tempfile.TemporaryDirectory() as folder:
        root = write(Path(folder) / "root", graph)
        with supervised(root, 2) as servers:
            namebook = {part: each.address for part, each in enumerate(servers)}
            for num_workers in (0, 2):
                for local_part in (None, 0):
                    print(f"{num_workers} workers, local part {local_part}", flush=True)
                    before = left()
                    dist_graph = DistGraph.connect(root, namebook, local_part=local_part, deadline=DEADLINE_S)
                    killer = Killer({part: each for part, each in enumerate(servers) if part != local_part}, namebook)
                    with dp.DataLoader(over(dist_graph, NUM_NODES), num_workers) as loader:
                        epoch(loader, killer, expected, options.kills, until)
                    dist_graph.close()
                    time.sleep(1)  # gRPC ends its threads a moment later
                    print(f"  threads and descriptors before {before}, after {left()}", flush=True)


if __name__ == "__main__":
    main()
