"""Begin, read, leave, resume and close epochs of many loaders at random, side by side, and kill their workers.

Loaders of every kind (processes and threads, "shm" and "mp", in order and not) read three chains: over a graph with
types, over one without, and of links with negatives. Each turn does one of these: ask a loader for a minibatch and
check its digest and index; leave its epoch for the next one; resume its epoch, by its state, in a loader of another
kind; kill one worker of any loader. Waits are bounded, so a lost minibatch ends in TimeoutError. At the end nothing is
left: no process, no thread, no descriptor, no memory of a channel.
Run: PYTHONPATH=tests/support python tests/soak/soak_loader.py --minutes 5   (or make soak)
"""

from __future__ import annotations

import functools
import itertools
import logging
import os
import random
import signal
import threading
import time
from multiprocessing import active_children
from typing import Any

import worker_stages as ws
from channels import num_descriptors, num_mappings
from soaking import arguments
from worker_ways import workers

import datapipes as dp

BOUND_S = 60.0  # many processes start at the same time
MOST_KILLS = 1_000_000  # so that no loader gives up
P_KILL, P_SWITCH, P_LEAVE = 0.01, 0.03, 0.15

OF_WORKERS = {"max_restarts": MOST_KILLS}
KINDS: dict[str, dict[str, Any]] = {
    "forkserver": {"num_workers": 2, **OF_WORKERS},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork", **OF_WORKERS},
    "forkserver, mp": {"num_workers": 2, "channel": "mp", **OF_WORKERS},
    "fork, mp": {"num_workers": 1, "channel": "mp", "multiprocessing_context": "fork", **OF_WORKERS},
    "out of order": {"num_workers": 2, "overlap": False, "in_order": False, **OF_WORKERS},
    "small channel": {"num_workers": 2, "shm_size": "64KB", "multiprocessing_context": "fork", **OF_WORKERS},
    "workers of one epoch": {"num_workers": 2, "persistent_workers": False, **OF_WORKERS},
    "threads": {"num_workers": 3, "worker_method": "thread"},
    "no workers": {},
}


CHAINS = {"plain": ws.worker_chain, "types": ws.typed_worker_chain, "links": ws.link_worker_chain}


@functools.lru_cache(maxsize=128)
def expected(name: str, epoch: int) -> dict[int, str]:
    """Return the digests of an epoch by index, from the chain without a loader."""
    chain = CHAINS[name]()
    chain.set_epoch(epoch)
    return {minibatch.index: minibatch.digest() for minibatch in chain}


class Reader:
    """A loader, and the minibatches that its epoch still has to deliver."""

    def __init__(self, kind: str, chain: str, before: Reader | None = None) -> None:
        self.kind, self.chain = kind, chain
        self.epoch = -1
        self.loader = dp.DataLoader(CHAINS[chain](), timeout=BOUND_S, **KINDS[kind])
        if before is not None:
            self.loader.load_state_dict(before.loader.state_dict())
        self.begin()
        if before is not None and before.epoch == self.epoch:
            self.left = before.left

    def begin(self) -> None:
        """Begin the next epoch, even if this one is not finished; an epoch that was not read yet stays where it is."""
        self.stream = iter(self.loader)
        epoch = self.loader.state_dict()["epoch"]
        if epoch != self.epoch:
            self.epoch, self.left = epoch, dict(expected(self.chain, epoch))

    def read(self) -> None:
        """Read one minibatch; begin the next epoch after the last."""
        minibatch = next(self.stream, None)
        if minibatch is None:
            assert not self.left, f"{self.kind}: epoch {self.epoch} ended without minibatches {sorted(self.left)}"
            self.begin()
            return
        where = f"{self.kind}: minibatch {minibatch.index} of epoch {self.epoch}"
        assert minibatch.epoch == self.epoch, f"{where} is of epoch {minibatch.epoch}"
        assert minibatch.index in self.left, f"{where} comes a second time"
        in_place = self.kind == "out of order" or minibatch.index == min(self.left)
        assert in_place, f"{where} comes before {min(self.left)}"
        assert minibatch.digest() == self.left.pop(minibatch.index), f"{where} has other bits"


def kill_one(choice: random.Random) -> int:
    """Kill one running worker; return how many were killed (0 or 1)."""
    pids = [worker.pid for worker in workers()]
    if pids:
        os.kill(choice.choice(pids), signal.SIGKILL)  # type: ignore[arg-type]
    return min(len(pids), 1)


def soak(rng_seed: int, until: float) -> dict[str, int]:
    """Take random turns until the time `until`; return how often each action was taken."""
    choice = random.Random(rng_seed)
    kinds = list(KINDS)
    readers = [Reader(kind, chain) for kind, chain in zip(kinds, itertools.cycle(CHAINS), strict=False)]
    done = dict.fromkeys(("minibatches", "epochs left", "loaders", "kills"), 0)
    while time.monotonic() < until:
        number, what = choice.randrange(len(readers)), choice.random()
        if what < P_KILL:
            done["kills"] += kill_one(choice)
        elif what < P_SWITCH:
            before = readers[number]
            readers[number] = Reader(choice.choice(kinds), before.chain, before)
            before.loader.close()
            done["loaders"] += 1
        elif what < P_LEAVE:
            readers[number].begin()
            done["epochs left"] += 1
        else:
            readers[number].read()
            done["minibatches"] += 1
    for reader in readers:
        reader.loader.close()
    return done


def held() -> dict[str, int]:
    """Return the numbers of descriptors, channel memories, threads and children of this process."""
    return {
        "descriptors": num_descriptors(),
        "channels": num_mappings(),
        "threads": threading.active_count(),
        "children": len(active_children()),
    }


def run(rng_seed: int, minutes: float) -> dict[str, int]:
    """Return how often each action was taken; AssertionError if something is wrong or left over."""
    for kind in KINDS:  # start the processes that multiprocessing starts once and keeps
        with dp.DataLoader(ws.worker_chain(), timeout=BOUND_S, **KINDS[kind]) as loader:
            list(loader)
    before = held()
    done = soak(rng_seed, time.monotonic() + 60 * minutes)
    left = {what: (held()[what], number) for what, number in before.items() if held()[what] > number}
    assert not left, f"left over, (now, before): {left}"
    return done


def main() -> None:
    options = arguments(__doc__, minutes=5.0)
    logging.getLogger("datapipes").setLevel(logging.ERROR)  # hide the warnings about killed workers
    print(run(options.seed, options.minutes))


if __name__ == "__main__":
    main()
