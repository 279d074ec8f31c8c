"""Overwrite the shared memory of a ShmChannel at random while others use it, and check that nobody crashes or hangs.

In each run senders and receivers make random calls with short timeouts, and this process writes garbage into header,
slots, data and table of peers: words at random places, some from elsewhere in the segment, some just beside what is
there. One setting is a small channel with one process on each side. The other is larger: two on each side, messages
that wait, and receivers that keep messages. In one of eight runs a process is killed on the way.

A call returns, or raises an error of channels, within its timeout and a slack. A process ends by itself. The mutex is
left alone but in one of twenty runs: glibc trusts its bytes (csrc/shm/PROTOCOL.md, section 8), so there, and only
there, a crash or a wait is counted and not a failure.

In a third setting, "ids", a process reads rows and samples by ids of a message that it holds, and another one
overwrites these ids all the time. Each call returns or raises IndexError.
Run: PYTHONPATH=tests/support python tests/soak/soak_garbage.py --runs 500   (or make soak)
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import random
import signal
import struct
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from channels import attached_again
from soaking import arguments

import datapipes as dp
from datapipes.base.errors import RemoteTraceback

CALLS = 40  # of each process in a run
BURSTS = 12  # times that garbage is written in a run
TIMEOUTS_S = (0, 0, 0.002, 0.02)
SLACK_S = 5.0  # for a machine that is busy
BOUND_S = 40.0  # for a process to end: leaving a channel whose mutex is held takes up to 10 s
OF_MUTEX, OF_KILLS = 20, 8  # one run of so many

MUTEX = range(256, 256 + (48 if platform.machine() == "aarch64" else 40))  # in the header
FOUND = MUTEX.stop + 4  # Header::damaged
ERRORS = (dp.QueueTimeoutError, dp.ChannelClosed, dp.ChannelDamaged, dp.PeerDied, dp.EndOfEpoch)


@dataclass(frozen=True)
class Setting:
    capacity: int
    shm_size: int
    sides: int  # processes on each side
    waiting: int  # messages before the first garbage
    kept: int  # messages that a receiver keeps
    most_bytes: int  # of a message


SETTINGS = {
    "small": Setting(capacity=2, shm_size=4096, sides=1, waiting=0, kept=1, most_bytes=1500),
    "large": Setting(capacity=32, shm_size=2**20, sides=2, waiting=12, kept=8, most_bytes=60_000),
}


IDS = "ids"
NUM_ROWS = 1000
USES = 500  # of each kind in a run


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0  # beyond its timeout, of any call
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Report) -> None:
        self.outcomes += other.outcomes
        self.longest_s = max(self.longest_s, other.longest_s)
        self.wrong += other.wrong


# --- those who use the channel


class User:
    """Makes random calls in a process of its own, and reports what came of them."""

    def __init__(self, channel: dp.ShmChannel, setting: Setting, sends: bool, rng_seed: int) -> None:
        self.channel, self.setting, self.sends = channel, setting, sends
        self.random = random.Random(rng_seed)
        self.kept: list[Any] = []
        self.report = Report()

    def run(self, there: Connection, *, quiet: bool) -> None:
        torch.set_num_threads(1)  # the threads of libgomp do not survive a fork
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for _ in range(CALLS):
            timeout_s = self.random.choice(TIMEOUTS_S)
            began = time.monotonic()
            self.report.outcomes[self.outcome(timeout_s)] += 1
            self.report.longest_s = max(self.report.longest_s, time.monotonic() - began - timeout_s)
        there.send(self.report)

    def outcome(self, timeout_s: float) -> str:
        try:
            (self.send if self.sends else self.receive)(timeout_s)
        except ERRORS as error:
            return type(error).__name__
        except Exception as error:
            if isinstance(error.__cause__, RemoteTraceback):  # of an error message
                return "RemoteError"
            if str(error).startswith("ShmChannel") and isinstance(error, (ValueError, RuntimeError)):
                return type(error).__name__
            self.report.wrong.append(traceback.format_exc())
            return "another error"
        return "done"

    def send(self, timeout_s: float) -> None:
        what, channel = self.random.randrange(16), self.channel
        if what == 0:
            channel.end_epoch(self.random.randrange(3), timeout=timeout_s)
        elif what == 1:
            channel.send_error(KeyError("k"), timeout=timeout_s)
        elif what == 2:
            channel.stats()
        elif what == 3:
            attached_again(channel).send({}, timeout=timeout_s)
        else:
            size = self.random.randrange(self.setting.most_bytes)
            message = {"x": torch.full((size,), size % 251, dtype=torch.uint8), "b": torch.ones(2, 3).bfloat16()}
            channel.send(message | {"f": torch.ones(3).to(torch.float8_e5m2)}, timeout=timeout_s)

    def receive(self, timeout_s: float) -> None:
        what, channel = self.random.randrange(16), self.channel
        if what == 0:
            channel.reset(self.random.choice((None, 0, 1)))
        elif what == 1:
            len(channel)
        elif what == 2:
            attached_again(channel).stats()
        else:
            message = channel.recv(timeout=timeout_s)
            for tensor in message.values():  # all of it can be read
                ctypes.string_at(tensor.data_ptr(), tensor.nbytes)
            self.kept.append(message)
            if len(self.kept) > self.setting.kept:
                del self.kept[self.random.randrange(len(self.kept))]


# --- the one who overwrites it


class Vandal:
    """Writes garbage into the segment of a channel, which was whole when this was made."""

    def __init__(self, channel: dp.ShmChannel, rng_seed: int, *, mutex: bool) -> None:
        address, num_bytes = channel._shared.memory
        self.memory = (ctypes.c_ubyte * num_bytes).from_address(address)
        self.random = random.Random(rng_seed)
        peers, slots, data, data_bytes = struct.unpack_from("<4Q", self.memory, 24)
        self.places = [
            *(range(MUTEX.start), range(MUTEX.stop, peers)),  # header
            *(range(peers, peers + 1024), range(peers, slots)),
            *(range(slots, slots + 1024), range(slots, data)),
            *(range(data, data + 4096), range(data, data + data_bytes)),
        ]
        self.whole_mutex = self.memory[MUTEX.start : MUTEX.stop]
        if mutex:
            self.places += [MUTEX] * 4

    def mend_mutex(self) -> None:
        """Write the mutex as it was; nobody else may use the channel any more."""
        self.memory[MUTEX.start : MUTEX.stop] = self.whole_mutex

    def write(self) -> None:
        if self.random.randrange(4):  # so that the others go on in what is damaged
            struct.pack_into("<I", self.memory, FOUND, 0)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            place = self.random.choice(self.places)
            width = self.random.choice((1, 4, 8, 8, 64))
            at = self.random.randrange(0, max(len(place) - width, 0) + 1, min(width, 8)) + place.start
            values = b"".join(struct.pack("<Q", self.value(place)) for _ in range(8))
            self.memory[at : at + min(width, len(place))] = list(values[: min(width, len(place))])

    def value(self, place: range) -> int:
        found = struct.unpack_from("<Q", self.memory, self.random.randrange(place.start, place.stop - 7, 8))[0]
        kind = self.random.randrange(7)
        any_bits = self.random.getrandbits(64)
        values = (any_bits, 0, 2**64 - 1, any_bits % 200, 1 << any_bits % 64, found, found + any_bits % 3 - 1)
        return values[kind] % 2**64


# --- ids that change while they are used


def use_changing_ids(channel: dp.ShmChannel, there: Connection) -> None:
    """Receive ids, and read and sample by them while they change; send the Report."""
    torch.set_num_threads(1)
    ids, report = channel.recv(timeout=BOUND_S)["ids"], Report()
    there.send(ids.data_ptr() - channel._shared.memory[0])
    columns = torch.arange(NUM_ROWS * 4)
    graph = dp.CSCGraph(columns[: NUM_ROWS + 1] * 4, columns % NUM_ROWS)
    rows = dp.TensorFeature(torch.ones(NUM_ROWS, 25))
    packed = dp.TensorFeature(torch.ones(NUM_ROWS, 25), stored_as="float16")
    items = dp.ItemSampler(dp.ItemSet(NUM_ROWS), NUM_ROWS)
    sampler, minibatch = items.sample_neighbor(graph, [2, 2]), next(iter(items)).replace(seeds=ids)
    out = torch.empty(len(ids), 25)
    uses = {
        "rows": lambda: rows.read(ids, out=out),
        "packed rows": lambda: packed.read(ids),
        "minibatch": lambda: sampler.transform(minibatch),
    }
    for _ in range(USES):
        for name, use in uses.items():
            try:
                use()
                report.outcomes[f"{name} done"] += 1
            except IndexError:
                report.outcomes[f"{name} refused"] += 1
            except Exception:
                report.wrong.append(traceback.format_exc())
    there.send(report)


def run_of_ids(rng_seed: int) -> Report:
    """Return what came of a process that reads by ids while this one overwrites one of them."""
    rng = random.Random(rng_seed)
    context = multiprocessing.get_context("fork")
    with dp.ShmChannel(2, 2**16) as channel:
        channel.send({"ids": torch.arange(NUM_ROWS)}, timeout=0)
        here, there = context.Pipe(duplex=False)
        user = context.Process(target=use_changing_ids, args=(channel, there), daemon=True)
        user.start()
        there.close()
        total = Report()
        if not here.poll(BOUND_S):
            total.wrong.append("a process does not begin")
        else:
            address, num_bytes = channel._shared.memory
            first = here.recv()
            memory = np.frombuffer((ctypes.c_ubyte * num_bytes).from_address(address), dtype=np.uint8)
            ids = memory[first : first + 8 * NUM_ROWS].view(np.int64)
            at, far = rng.randrange(NUM_ROWS), rng.choice((NUM_ROWS, -1, 2**31, 2**44, -(2**62), 2**63 - 1))
            ends = time.monotonic() + BOUND_S
            while user.is_alive() and time.monotonic() < ends and not here.poll():
                for _ in range(500):
                    ids[at] = far
                    ids[at] = 1
        user.join(SLACK_S)
        if user.exitcode == 0 and here.poll():
            total.add(here.recv())
        else:
            total.wrong.append(f"a process that reads by ids has the exit code {user.exitcode}")
            user.kill()
            user.join()
        here.close()
        user.close()
    return total


# --- one run, and many


def one_run(setting: Setting, rng_seed: int) -> Report:
    """Return what came of a run; `wrong` is empty if nobody crashed, hung or met an error that is none of channels."""
    rng = random.Random(rng_seed)
    mutex, kills = rng.randrange(OF_MUTEX) == 0, rng.randrange(OF_KILLS) == 0
    channel = dp.ShmChannel(setting.capacity, setting.shm_size)
    vandal = Vandal(channel, rng_seed, mutex=mutex)
    for number in range(setting.waiting):
        channel.send({"x": torch.full((1000,), number, dtype=torch.uint8)}, timeout=0)
    context = multiprocessing.get_context("fork")
    users, total = [], Report()
    for number in range(2 * setting.sides):
        here, there = context.Pipe(duplex=False)
        user = User(channel, setting, number % 2 == 0, rng_seed * 10 + number)
        process = context.Process(target=user.run, args=(there,), kwargs={"quiet": mutex}, daemon=True)
        process.start()
        there.close()
        users.append((process, here))
    victim = rng.choice(users)[0] if kills else None
    for burst in range(BURSTS):
        vandal.write()
        multiprocessing.connection.wait([process.sentinel for process, _ in users], rng.random() * 0.01)
        if burst == BURSTS // 2 and victim is not None:
            victim.kill()
    ends = time.monotonic() + BOUND_S
    for process, here in users:
        process.join(max(ends - time.monotonic(), 0))
        ended = {None: "hangs", 0: "ended", -signal.SIGKILL: "was killed"}.get(process.exitcode, "crashed")
        if ended == "hangs":
            process.kill()
            process.join()
        if ended == "ended" and here.poll():
            total.add(here.recv())
        elif mutex and ended in ("hangs", "crashed"):
            total.outcomes[f"mutex overwritten: {ended}"] += 1
        elif process is not victim:
            total.wrong.append(f"a process {ended} (exit code {process.exitcode})")
        here.close()
        process.close()
    if mutex:
        vandal.mend_mutex()
    channel.close()
    if mutex:
        total.longest_s = 0.0
        total.outcomes["runs with the mutex overwritten"] += 1
    if total.longest_s > SLACK_S:
        total.wrong.append(f"a call took {total.longest_s:.1f} s longer than its timeout")
    return total


def run(name: str, runs: int, rng_seed: int, minutes: float = 60.0) -> Report:
    """Make so many runs of a setting, or as many as `minutes` allow. AssertionError at the first that goes wrong."""
    total, until = Report(), time.monotonic() + 60 * minutes
    for number in range(runs):
        if time.monotonic() > until:
            break
        seed = rng_seed + number
        one = run_of_ids(seed) if name == IDS else one_run(SETTINGS[name], seed)
        if one.wrong:
            raise AssertionError("\n".join([f"setting {name!r}, seed {seed}:", *one.wrong]))
        total.add(one)
        total.outcomes["runs"] += 1
    return total


def main() -> None:
    options = arguments(__doc__, minutes=60.0, kinds=[*SETTINGS, IDS], runs=500)
    torch.set_num_threads(1)
    for name in options.kinds:
        total = run(name, options.runs, options.seed, options.minutes)
        counts = ", ".join(f"{what} {count}" for what, count in sorted(total.outcomes.items()))
        print(f"{name}: longest {total.longest_s:.2f} s beyond a timeout; {counts}", flush=True)


if __name__ == "__main__":
    main()
