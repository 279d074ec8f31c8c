"""What the soaks share: their arguments, rounds of processes that are killed, and what may not grow between them."""

import argparse
import multiprocessing
import multiprocessing.connection
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from partition_servers import ServerProcess

BOUND_S = 60.0  # until a killed client's connections are gone
GROWTH = 16 * 2**20  # bytes; what the allocators of a busy process may still gather
FIRST = 6  # rounds in which a server gets what it needs
ROUND_S = 4.0


def arguments(
    doc: str | None, *, minutes: float, kinds: Sequence[str] = (), default_kinds: Sequence[str] = (), **counts: int
) -> argparse.Namespace:
    """Return the arguments of a soak: `minutes`, `seed`, which is shown, `kinds` if there are some, and the counts.

    Args:
        counts: the default of each further argument, as kills=100.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=minutes, help="stop after so many, of each kind")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="for another such run")
    if kinds:
        parser.add_argument("--kinds", nargs="+", choices=kinds, default=default_kinds or kinds)
    for name, count in counts.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    return options


class State(NamedTuple):
    """What a process holds."""

    num_bytes: int
    threads: int
    files: int


def state_of(pid: int) -> State:
    memory = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    private = next(1024 * int(line.split()[1]) for line in memory if line.startswith("Private_Dirty:"))
    return State(private, len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")))


def settled(pid: int, files: int, bound_s: float = BOUND_S) -> State:
    """Return the state once the connections of killed clients are gone: so many descriptors are left, or fewer."""
    until = time.monotonic() + bound_s
    while state_of(pid).files > files and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(2.0)  # threads of gRPC end a little later, and a server without requests gives freed memory back
    return state_of(pid)


def one_round(
    targets: Sequence[Callable[..., None]], common: tuple, servers: Sequence[ServerProcess], rng_seed: int
) -> int:
    """Let clients of servers run for a while, kill them, and return how much they have done.

    Each is called as `target(*common, rng_seed, done)`, where it adds to `done.value`, and ends only by an error.
    """
    context = multiprocessing.get_context("fork")  # this process has no connection of its own
    done = [context.Value("q", 0, lock=False) for _ in targets]  # a client that is killed would keep the lock
    seeds = range(rng_seed * len(targets), (rng_seed + 1) * len(targets))
    clients = [
        context.Process(target=target, args=(*common, seed, count), daemon=True)
        for target, seed, count in zip(targets, seeds, done, strict=True)
    ]
    for client in clients:
        client.start()
    ended = multiprocessing.connection.wait([client.sentinel for client in clients], ROUND_S)
    for client in clients:
        client.kill()
        client.join()
    assert not ended, f"seed {rng_seed}: a client has met an error; see above"
    for server in servers:
        assert server.process.poll() is None, f"seed {rng_seed}: a server has ended; its log:\n{server.log}"
    return sum(count.value for count in done)


def expect_no_growth(name: str, states: Sequence[State], most_more: int) -> None:
    """Compare the states after the last third of the rounds with those after the first; show both.

    Args:
        most_more: threads or descriptors that the last may have more than the first.
    """
    third = len(states) // 3
    for field in State._fields:
        values = [getattr(state, field) for state in states]
        # A leak is in every later state. Of memory the least counts: what a moment has not given back yet goes.
        extreme = min if field == "num_bytes" else max
        first, last = extreme(values[FIRST - 1 : FIRST - 1 + third]), extreme(values[-third:])
        print(f"{name}: {field} {first} first, {last} last", flush=True)
        slack = GROWTH if field == "num_bytes" else most_more
        assert last <= first + slack, f"{name}: {field} has grown: {values}"


def expect_a_clean_end(server: ServerProcess) -> None:
    assert "Traceback" not in server.log, server.log
    assert " has died" not in server.log, server.log
    assert server.stop() == 0, server.log
