"""How much faster is ShmChannel than torch.multiprocessing.Queue and a pickling queue, and how near to a bare wake-up?

Two processes. Messages are dicts of 5 float32 tensors, 1 KB to 64 MB in total, and the message of a sampled minibatch
(1,024 seeds, fanouts [15, 10, 5]). Rate: the sender sends messages of fresh tensors as fast as it can; the receiver
reads one byte of every page of every tensor; the time ends when it has read the last one. MpChannel is shown beside the
queue that it wraps. The pickling queue is multiprocessing.Queue with NumPy arrays. Latency: one message of 1 KB after
every 200 us of work in the sender, from before `send` to after `recv`, 50th percentile. The bare hop is a futex wake
from C++ to C++ at the same pace. Answers: half the time from `send` until the receiver's answer arrives through a
second channel. Transports in alternation, median of 9; received tensors are compared first.
Run: python benchmarks/channel.py --graph GRAPH
Result (2-core AMD EPYC VM, shared, commit d58dfdf): 4 MB 8.0 GB/s against 0.70 of the torch queue (11.5 x), 16 MB 7.9
against 0.80 (9.9 x), 64 MB 9.2 x, 1 MB 24 x, the minibatch (5.6 MB) 8.1 against 0.37 (21.8 x); the pickling queue 7.0 x
at 1 MB, 16.5 x at 4 MB. 1 KB: bare hop 50 us, ShmChannel 64 us in one tensor and 74 us in five, pickling queue 309 us,
torch queue 3.3 ms; answers 8.2 us, since neither side sleeps. The time beyond the hop depends on how deep the core of
the receiver slept: other runs on the idle machine (hops of 39 to 50 us) gave 2 to 20 us for one tensor, 19 to 29 us for
five.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import alternate, load_graph, parser, report

import datapipes as dp
from datapipes import _core

SIZES = {"1 KB": 2**10, "64 KB": 2**16, "1 MB": 2**20, "4 MB": 2**22, "16 MB": 2**24, "64 MB": 2**26}
BYTES_OF_A_TURN = 2**26
MOST_MESSAGES = 50
TENSORS = 5
PAGE = 4096
PACE_S = 200e-6
HOPS = 100
BOUND_S = 120.0
IDLE_WORD = mmap.mmap(-1, PAGE)

Message = dict[str, Any]


class Transport:
    """A queue between this process and a receiver process; its cost includes `pack` and `unpack`."""

    def __init__(self, name: str, queue: Any, send: Callable[[Message], Any], recv: Callable[[], Message]) -> None:
        context = multiprocessing.get_context("fork")
        self.name, self.queue, self.send = name, queue, send
        self._orders, orders = context.Pipe()
        self._had = mmap.mmap(-1, PAGE)  # counts the messages the receiver has received
        self._receiver = context.Process(target=receive, args=(orders, recv, self._had), daemon=True)
        self._receiver.start()

    def order(self, what: str, count: int) -> None:
        self._orders.send((what, count))

    def answer(self) -> Any:
        if not self._orders.poll(BOUND_S):
            raise RuntimeError(f"{self.name}: the receiver does not answer")
        return self._orders.recv()

    def rate(self, message: Message, count: int) -> float:
        """Return bytes per second of `count` messages.

        Each message has new tensors: a queue of torch moves a tensor to shared memory when it first sends it, and would
        not copy it again.
        """
        messages = [{key: tensor.clone() for key, tensor in message.items()} for _ in range(count)]
        self.order("touch", count)
        began = time.perf_counter()
        for fresh in messages:
            self.send(fresh)
        self.answer()
        return count * size_of(message) / (time.perf_counter() - began)

    def latency(self, message: Message) -> float:
        """Return the median seconds from before `send` to after `recv`."""
        self._had[:4] = bytes(4)
        self.order("times", HOPS)
        sent = []
        for number in range(1, HOPS + 1):
            work(PACE_S)
            sent.append(time.perf_counter())
            self.send(message)
            ends = time.perf_counter() + BOUND_S
            while int.from_bytes(self._had[:4], "little") < number:  # wait until it is asleep again
                work(PACE_S / 10)
                if time.perf_counter() > ends:
                    raise RuntimeError(f"{self.name}: the receiver does not go on")
        return statistics.median(np.subtract(self.answer(), sent))

    def check(self, message: Message) -> None:
        self.order("give back", 1)
        self.send(message)
        got = self.answer()
        assert got.keys() == message.keys()
        assert all(np.array_equal(got[key], message[key].numpy()) for key in message)

    def close(self) -> None:
        self.order("end", 0)
        self._receiver.join(BOUND_S)


def receive(orders: Any, recv: Callable[[], Message], had: mmap.mmap) -> None:
    """Run in the receiving process: do what each request asks, and answer when it is done."""
    torch.set_num_threads(1)  # the OpenMP threads of the parent do not exist here
    while True:
        what, count = orders.recv()
        if what == "end":
            return
        if what == "give back":
            orders.send({key: value.numpy().copy() for key, value in recv().items()})
        elif what == "touch":
            for _ in range(count):
                touch(recv())
            orders.send(None)
        elif what == "times":
            times = []
            for _ in range(count):
                message = recv()
                times.append(time.perf_counter())
                del message
                had[:4] = len(times).to_bytes(4, "little")
            orders.send(times)
        else:
            orders.send(_core.receive_futex_hops(recv(), count))


def work(seconds: float) -> None:
    """Work like sampling: without a pause and without the GIL, which the thread of a queue needs in this process."""
    _core.send_futex_hops(IDLE_WORD, 1, seconds)


def touch(message: Message) -> int:
    """Read one byte of every page."""
    total = 0
    for value in message.values():
        total += int(value.numpy().reshape(-1).view(np.uint8)[::PAGE].sum())
    return total


def size_of(message: Message) -> int:
    return sum(tensor.nbytes for tensor in message.values())


def message_of(num_bytes: int) -> Message:
    values = torch.randn(num_bytes // 4)
    return {f"tensor{i}": part.clone() for i, part in enumerate(values.chunk(TENSORS))}


def minibatch_message(args: argparse.Namespace) -> Message:
    graph, _ = load_graph(args.graph)
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    return next(iter(items.sample_neighbor(graph, [15, 10, 5]))).to_message()


def transports() -> list[Transport]:
    channel, wrapped = dp.ShmChannel(capacity=16, shm_size="256MB"), dp.MpChannel(maxsize=16)
    theirs = torch.multiprocessing.get_context("fork").Queue(maxsize=16)
    pickling = multiprocessing.get_context("fork").Queue(maxsize=16)

    def send_arrays(message: Message) -> None:
        pickling.put({key: tensor.numpy() for key, tensor in message.items()})

    return [
        Transport("ShmChannel", channel, channel.send, channel.recv),
        Transport("MpChannel", wrapped, wrapped.send, wrapped.recv),
        Transport("torch queue", theirs, theirs.put, theirs.get),
        Transport(
            "pickling queue", pickling, send_arrays, lambda: {k: torch.from_numpy(v) for k, v in pickling.get().items()}
        ),
    ]


def bare_hop() -> tuple[Transport, Callable[[int], float]]:
    """Return (receiver process, a side for `alternate`): the median seconds of a bare hop."""
    word = mmap.mmap(-1, PAGE)
    transport = Transport("bare hop", word, lambda _: None, lambda: word)

    def measure(_: int) -> float:
        word[:4] = bytes(4)
        transport.order("hops", HOPS)
        sent = _core.send_futex_hops(word, HOPS, PACE_S)
        return statistics.median(np.subtract(transport.answer(), sent))

    return transport, measure


def latency_figures(sides: list[Transport], args: argparse.Namespace) -> dict[str, float | str]:
    hop, measure_hop = bare_hop()
    message, one = message_of(SIZES["1 KB"]), {"tensor": torch.randn(SIZES["1 KB"] // 4)}
    measured: dict[str, Callable[[int], float]] = {side.name: lambda _, t=side: t.latency(message) for side in sides}
    measured["ShmChannel, one tensor"] = lambda _: sides[0].latency(one)
    seconds = alternate({**measured, "bare hop": measure_hop}, args.repeats)
    hop.close()
    seconds["ShmChannel, one tensor, answers"] = statistics.median(answers(one) for _ in range(args.repeats))
    figures: dict[str, float | str] = {f"1 KB, {name}, latency (us)": value * 1e6 for name, value in seconds.items()}
    for name in ("ShmChannel", "ShmChannel, one tensor"):
        figures[f"  {name}, beyond the bare hop (us)"] = (seconds[name] - seconds["bare hop"]) * 1e6
    return figures


def answers(message: Message) -> float:
    """Return the median seconds of half a round trip through one channel and back through another."""
    there, back = (dp.ShmChannel(capacity=16, shm_size="1MB") for _ in range(2))
    process = multiprocessing.get_context("fork").Process(target=answer_all, args=(there, back), daemon=True)
    process.start()
    times = []
    for _ in range(HOPS * 10):
        began = time.perf_counter()
        there.send(message)
        back.recv(BOUND_S)
        times.append(time.perf_counter() - began)
    there.end_epoch()
    process.join(BOUND_S)
    return statistics.median(times) / 2


def answer_all(there: dp.ShmChannel, back: dp.ShmChannel) -> None:
    torch.set_num_threads(1)
    for message in there:
        back.send(message)


def rate_figures(
    size: str, message: Message, sides: list[Transport], args: argparse.Namespace
) -> dict[str, float | str]:
    count = max(4, min(MOST_MESSAGES, BYTES_OF_A_TURN // size_of(message)))
    rates = alternate({side.name: lambda _, t=side: t.rate(message, count) for side in sides}, args.repeats, warm_ups=1)
    size = f"{size} ({size_of(message) / 2**20:.3g} MB)"
    figures: dict[str, float | str] = {f"{size}, {name} (GB/s)": rate / 1e9 for name, rate in rates.items()}
    for name in ("torch queue", "pickling queue"):
        figures[f"  ShmChannel against {name}, {size} (x)"] = rates["ShmChannel"] / rates[name]
    return figures


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    messages = {name: message_of(num_bytes) for name, num_bytes in SIZES.items()}
    messages["minibatch"] = minibatch_message(args)
    sides = transports()
    for side in sides:
        side.check(messages["64 KB"])
    figures = latency_figures(sides, args)
    report(figures, None)
    for size, message in messages.items():
        found = rate_figures(size, message, sides, args)
        report(found, None)
        figures |= found
    for side in sides:
        side.close()
    if args.json is not None:
        args.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
