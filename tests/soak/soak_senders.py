"""Kill senders and cut their connections while a receiver reads: what each life of a sender sent comes once, in order.

Three senders push to one receiver, a process of its own, each through a proxy. At random one is killed, and a new one
takes its place; its connections are cut or stand still; or the receiver reads nothing for a while. Each life of a
sender numbers its minibatches from 0 on, and signals after every tenth. Of each life the receiver must have got the
numbers 0, 1, 2, ... without a gap or a repetition, with the bits of the chain, and of the last lives all; each sender
that was killed in the middle of an epoch must be named once; an epoch has ten of each sender that signalled it. The
receiver's memory, threads and descriptors may not grow.
Run: PYTHONPATH=tests/support python tests/soak/soak_senders.py --minutes 2   (or make soak)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import torch
from pipelines import fetched
from proxy import Proxy
from soaking import GROWTH, arguments, settled

from datapipes.base.errors import PeerDied
from datapipes.distributed import SamplerReceiver, SamplerSender

NUM_SENDERS, EACH = 3, 10  # minibatches of an epoch
BOUND_S = 30.0  # without a minibatch, an error or the end of an epoch
CONTEXT = multiprocessing.get_context("forkserver")
ROOM = 3 * GROWTH  # what waits while nothing is read, too
KINDS = ("killed", "cut", "silent", "not read")


def send(address: str, life: int, stop: Any) -> None:
    """Push until told to stop, whole epochs; say in each minibatch whose it is and its number."""
    made, number = [*fetched()], 0
    with SamplerSender({0: address}, timeout=BOUND_S) as sender:
        while not stop.is_set():
            for _ in range(EACH):
                minibatch = made[number % len(made)]
                sender.send(minibatch.replace(indexes=torch.full_like(minibatch.seeds, life << 32 | number)), 0)
                number += 1
            sender.signal(0)


def receive(address: str, told: Connection) -> None:
    """Tell [life, number, digest], "epoch" or the name of a dead sender, for each that comes; wait when told to."""
    with SamplerReceiver(None, address, NUM_SENDERS, timeout=BOUND_S) as receiver:
        while True:
            try:
                for minibatch in receiver:
                    whose = int(minibatch.indexes[0])
                    told.send([whose >> 32, whose & (2**32 - 1), minibatch.replace(indexes=None).digest()])
                    if told.poll(0):
                        time.sleep(told.recv())
                told.send("epoch")
            except PeerDied as error:
                told.send(str(error))
            except TimeoutError:
                return


class Seen:
    """What came, checked as it comes."""

    def __init__(self) -> None:
        self.digests = [minibatch.digest() for minibatch in fetched()]
        self.next: Counter[int] = Counter()  # by life
        self.epoch: Counter[int] = Counter()
        self.dead: list[str] = []
        self.num_epochs = 0

    def take(self, told: Any) -> None:
        if told == "epoch":
            wrong = {life: count for life, count in self.epoch.items() if count > EACH}
            if wrong:
                sys.exit(f"epoch {self.num_epochs} has more than {EACH} minibatches of {wrong}")
            self.epoch.clear()
            self.num_epochs += 1
        elif isinstance(told, str):
            self.dead.append(told)
        else:
            life, number, digest = told
            if number != self.next[life] or digest != self.digests[number % len(self.digests)]:
                sys.exit(f"life {life}: got {number}, expected {self.next[life]}; or other bits")
            self.next[life] += 1
            self.epoch[life] += 1


def main() -> None:
    options = arguments(__doc__, minutes=2.0)
    generator, ends, done = random.Random(options.seed), time.monotonic() + 60 * options.minutes, Counter[str]()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    here, there = CONTEXT.Pipe()
    receiver = CONTEXT.Process(target=receive, args=(address, there), daemon=True)
    receiver.start()
    there.close()
    stop, seen, life = CONTEXT.Event(), Seen(), 0
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(contextlib.closing(Proxy(address))) for _ in range(NUM_SENDERS)]
        senders: list[Any] = []
        lives: list[int] = []
        for proxy in proxies:
            senders.append(begun(proxy, life, stop))
            lives.append(life)
            life += 1

        def read(seconds: float) -> None:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                if here.poll(min(left, 0.1)):
                    seen.take(here.recv())

        half, first = time.monotonic() + 30 * options.minutes, None  # by then the allocators have what they need
        while time.monotonic() < ends:
            if first is None and time.monotonic() > half:
                first = settled(receiver.pid, 0, 0.0)
            kind, which = generator.choice(KINDS), generator.randrange(NUM_SENDERS)
            done[kind] += 1
            if kind == "killed":
                os.kill(senders[which].pid, signal.SIGKILL)
                senders[which].join()
                senders[which], lives[which] = begun(proxies[which], life, stop), life
                life += 1
            elif kind == "cut":
                proxies[which].tell("cut")
            elif kind == "silent":
                proxies[which].tell("hole on")
                read(generator.uniform(0.1, 2.0))
                proxies[which].tell("hole off")
            else:
                here.send(generator.uniform(0.1, 2.0))
            before = sum(seen.next.values())
            read(generator.uniform(0.1, 6.0))
            if sum(seen.next.values()) == before:
                read(BOUND_S)
            if sum(seen.next.values()) == before:
                sys.exit(f"nothing has come for {BOUND_S:.0f} s after {dict(done)}")
        stop.set()
        for sender in senders:
            until = time.monotonic() + BOUND_S
            while sender.is_alive() and time.monotonic() < until:
                read(0.1)
            if sender.exitcode != 0:
                sys.exit(f"a sender ended with {sender.exitcode}")
        read(1.0)
        assert first is not None
        last = settled(receiver.pid, first.files)
        receiver.kill()
    unfinished = {each: seen.next[each] for each in lives if seen.next[each] % EACH}
    if unfinished:
        sys.exit(f"the last lives have lost minibatches: {unfinished}")
    if len(seen.dead) > done["killed"]:
        sys.exit(f"{done['killed']} senders were killed, and {len(seen.dead)} named: {seen.dead}")
    print(f"{dict(done)}; {sum(seen.next.values())} minibatches, {seen.num_epochs} epochs, {len(seen.dead)} named dead")
    print(f"the receiver: {first} at half time, {last} at the end")
    if last.num_bytes > first.num_bytes + ROOM or last.threads > first.threads + 2 or last.files > first.files:
        sys.exit("the receiver has grown")


def begun(proxy: Proxy, life: int, stop: Any) -> Any:
    sender = CONTEXT.Process(target=send, args=(proxy.address, life, stop), daemon=True)
    sender.start()
    return sender


if __name__ == "__main__":
    main()
