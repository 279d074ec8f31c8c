"""Kill senders and receivers of a ShmChannel with SIGKILL, at any instruction, and check that no other one is hurt.

Three senders and two receivers work on a small channel without a pause. One of them, or sometimes all of one kind, is
killed and replaced. After each kill every survivor makes progress, or gets PeerDied, within the bound. At the end every
message was received once, in order and with the right bytes; only a message that a killed receiver was holding may be
lost. Nothing is left: no memory of the channel in use, no process, no descriptor.
Run: PYTHONPATH=tests/support python tests/soak/soak_channel.py --kills 1000 --minutes 5   (or make soak)
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import signal
import time
import traceback

import numpy as np
import torch
from channels import num_descriptors, num_mappings
from soaking import arguments

import datapipes as dp

SENDERS, RECEIVERS = 3, 2
MOST_SENT = 20_000  # messages of one sender
EVERY_ALL = 40  # after so many kills, all senders or all receivers are killed at once
BOUND_S = 1.0

# Columns of the table of workers.
DONE, TOLD, WRONG = range(3)


class Worker:
    """One process and its row in the shared table."""

    def __init__(self, soak: Soak, number: int, sends: bool) -> None:
        self.number, self.sends = number, sends
        work = soak.send if sends else soak.receive
        self.process = soak.context.Process(target=soak.run, args=(work, number), daemon=True)
        self.process.start()


class Soak:
    """The channel, its workers, and their records in memory that all processes share."""

    def __init__(self, kills: int, rng_seed: int) -> None:
        self.context = multiprocessing.get_context("fork")
        self.channel = dp.ShmChannel(capacity=4, shm_size="64KB")
        self.random = random.Random(rng_seed)
        self.bound_s = 30.0  # longer for the first start
        self.most_workers = 2 * (
            SENDERS + RECEIVERS + kills + (kills // EVERY_ALL + 1) * SENDERS
        )  # numbers are skipped
        self.table = shared((self.most_workers, 3), np.int64)
        self.sent = shared((self.most_workers,), np.int64)  # messages whose send has returned
        self.got = shared((RECEIVERS, self.most_workers, MOST_SENT), np.uint8)  # times that a message was received
        self.stop = shared((1,), np.int64)
        self.workers: list[Worker] = []
        self.started = self.killed = self.killed_receivers = 0
        self.longest_s = 0.0

    # --- in the workers

    def run(self, work, number: int) -> None:
        torch.set_num_threads(1)
        try:
            work(number)
        except dp.ChannelClosed:
            pass
        except BaseException:
            self.table[number, WRONG] = 1
            traceback.print_exc()

    def send(self, number: int) -> None:
        sizes = random.Random(number)
        for i in range(MOST_SENT):
            data = torch.full((sizes.randrange(20_000),), value_of(number, i), dtype=torch.uint8)
            message = {"from": torch.tensor(number), "number": torch.tensor(i), "data": data}
            while True:
                try:
                    self.channel.send(message)
                    break
                except dp.PeerDied:
                    self.table[number, TOLD] += 1
            self.sent[number] = i + 1
            self.table[number, DONE] += 1
            if self.stop[0]:
                return
        signal.pause()

    def receive(self, number: int) -> None:
        kept, newest = [], {}
        plane = self.got[number % RECEIVERS]
        while True:
            try:
                message = self.channel.recv()
            except dp.PeerDied:
                self.table[number, TOLD] += 1
                continue
            except dp.EndOfEpoch:
                return
            sender, i = int(message["from"]), int(message["number"])
            plane[sender, i] += 1
            if i <= newest.get(sender, -1) or not bool((message["data"] == value_of(sender, i)).all()):
                raise AssertionError(f"message {i} of sender {sender} came late or with other bytes")
            newest[sender] = i
            kept.append(message)
            if len(kept) > 3:
                del kept[i % 3]
            self.table[number, DONE] += 1

    # --- in the parent

    def start(self, sends: bool) -> None:
        # Two receivers at a time write to different planes: one even, one odd.
        taken = {worker.number % RECEIVERS for worker in self.workers if not worker.sends}
        while not sends and self.started % RECEIVERS in taken:
            self.started += 1
        self.workers.append(Worker(self, self.started, sends))
        self.started += 1

    def kill(self, victims: list[Worker]) -> None:
        for victim in victims:
            os.kill(victim.process.pid, signal.SIGKILL)
            self.workers.remove(victim)
        self.killed += len(victims)
        self.killed_receivers += sum(not victim.sends for victim in victims)
        for victim in victims:
            victim.process.join(30)
            if victim.process.exitcode != -signal.SIGKILL:
                raise AssertionError(f"worker {victim.number} ended with {victim.process.exitcode}, not by the kill")
        self.survive()
        for victim in victims:
            self.start(victim.sends)
            self.survive()

    def survive(self) -> None:
        """Wait until every worker has made progress, or got PeerDied, from now on."""
        before = self.table[:, :2].sum(axis=1)
        began = time.perf_counter()
        behind = list(self.workers)
        while behind:
            waited = time.perf_counter() - began
            if self.table[:, WRONG].any() or waited > self.bound_s:
                raise AssertionError(f"workers {[worker.number for worker in behind]} did not go on in {waited:.2f} s")
            time.sleep(0.0005)
            behind = [worker for worker in behind if self.table[worker.number, :2].sum() == before[worker.number]]
        self.longest_s = max(self.longest_s, time.perf_counter() - began)

    def soak(self, kills: int, until: float) -> None:
        for sends in (*[True] * SENDERS, *[False] * RECEIVERS):
            self.start(sends)
        self.survive()
        self.bound_s = BOUND_S
        while self.killed < kills and time.monotonic() < until:
            time.sleep(self.random.random() * 0.003)
            victims = [self.random.choice(self.workers)]
            if self.killed % EVERY_ALL == EVERY_ALL - 1:
                victims = [worker for worker in self.workers if worker.sends == victims[0].sends]
            self.kill(victims)

    def finish(self) -> None:
        """Let the senders end, receive the remaining messages, and count."""
        self.stop[0] = 1
        senders = [worker for worker in self.workers if worker.sends]
        for worker in senders:
            worker.process.join(30)
        for _ in range(RECEIVERS):
            self.channel.end_epoch(timeout=30)
        for worker in self.workers:
            worker.process.join(30)
            if worker.process.exitcode != 0:
                raise AssertionError(f"worker {worker.number} ended with {worker.process.exitcode}")
        received = self.got.sum(axis=0, dtype=np.int64)
        lost = [int((received[number, : self.sent[number]] == 0).sum()) for number in range(self.started)]
        twice = int((received > 1).sum())
        stats = self.channel.stats()
        print(
            f"{self.killed} kills ({self.killed_receivers} of receivers), {int(received.sum())} messages, {sum(lost)} "
            f"in the hands of a killed receiver, longest pause {self.longest_s:.3f} s, {stats['copied_out']} copied out"
        )
        if twice or sum(lost) > self.killed_receivers:
            raise AssertionError(f"{twice} messages came twice, {sum(lost)} were lost")
        if stats["held"] or stats["used_bytes"] or stats["unread"] or stats["deaths"] < self.killed:
            raise AssertionError(f"something is left in the channel: {stats}")
        self.channel.close()

    def end(self) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.join(30)


def shared(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Zeros in memory that forked children share."""
    memory = mmap.mmap(-1, int(np.prod(shape)) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def value_of(sender: int, number: int) -> int:
    return (sender * 31 + number * 7) % 251


def main() -> None:
    """Kill so many processes, or as many as the minutes allow. AssertionError if others are hurt."""
    options = arguments(__doc__, minutes=5.0, kills=1000)
    descriptors = num_descriptors()
    soak = Soak(options.kills, options.seed)
    try:
        soak.soak(options.kills, time.monotonic() + 60 * options.minutes)
        soak.finish()
    finally:
        soak.end()
    del soak
    assert num_mappings() == 0
    assert num_descriptors() <= descriptors


if __name__ == "__main__":
    main()
