"""Helpers of the channel tests, and the functions of their child processes; a spawned child imports this module."""

import ctypes
import gc
import itertools
import multiprocessing
import os
import pickle
import random
import resource
import signal
import struct
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

import datapipes as dp

BOUND_S = 60.0  # longest wait for an event that should happen at once: on a busy machine a process takes long to start
HEAD = 64  # bytes that the names in a message of `numbered` take in a channel
SEGMENT = "datapipes-channel"  # its name in /proc


# --- messages


def numbered(number: int, num_bytes: int = 64) -> dp.channel.base.Message:
    """A message that takes HEAD + num_bytes bytes; `number_of` reads its number."""
    return {"x": torch.full((num_bytes,), number % 251, dtype=torch.uint8)}


def number_of(message: dp.channel.base.Message) -> int:
    """The number of a message of `numbered`, modulo 251; checks every byte."""
    values = message["x"].unique().tolist()
    assert len(values) == 1, f"a message of one value holds {values}"
    return values[0]


# --- tensors

NAMES = [
    *("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex64", "complex128", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
DTYPES = [getattr(torch, name) for name in NAMES if hasattr(torch, name)]  # the dtypes that this torch has


def random_tensor(dtype: torch.dtype, shape: Sequence[int], rng_seed: int = 0) -> torch.Tensor:
    """Random bytes, so that NaNs and negative zeros are among the values."""
    num_bytes = int(torch.Size(shape).numel()) * dtype.itemsize
    raw = random.Random(rng_seed).randbytes(num_bytes)
    data = torch.frombuffer(bytearray(raw), dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
    return (data % 2 == 0 if dtype == torch.bool else data.view(dtype)).reshape(shape)


def nested_tensor(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, says torch
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


# --- threads and processes


def in_thread(function: Callable, *arguments: Any) -> Future:
    """Call in a daemon thread; the future gets the result or error, within BOUND_S."""
    future: Future = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Child:
    """A process that calls `function(*arguments)`; the end of the `with` kills it if it still lives."""

    def __init__(self, function: Callable, *arguments: Any, method: str = "fork") -> None:
        context = multiprocessing.get_context(method)
        self._outcome, there = context.Pipe(duplex=False)
        self.process = context.Process(target=_report, args=(there, function, arguments))
        self.process.start()
        there.close()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._outcome.close()
        self.process.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.join(BOUND_S)

    def result(self) -> Any:
        """Return the result of the function, or raise its error."""
        assert self._outcome.poll(BOUND_S), "the child does not end"
        returned, outcome = self._outcome.recv()
        self.process.join(BOUND_S)
        if not returned:
            raise outcome
        return outcome


def _report(there: Any, function: Callable, arguments: tuple) -> None:
    torch.set_num_threads(1)  # the threads of libgomp do not survive a fork
    try:
        outcome = True, function(*arguments)
    except BaseException as error:
        outcome = False, error
    with suppress(BrokenPipeError):
        there.send(outcome)


def attached_again(channel: dp.ShmChannel) -> dp.ShmChannel:
    """Attach the channel again, as another peer in this process."""
    return pickle.loads(ForkingPickler.dumps(channel))


# --- what children do


def echo(requests: dp.ShmChannel, answers: dp.ShmChannel) -> int:
    """Send each message back until there are no more; return their number."""
    count = 0
    while True:
        try:
            answers.send(requests.recv(BOUND_S), BOUND_S)
        except dp.ChannelClosed:
            return count
        except dp.PeerDied:
            continue
        count += 1


def echo_from_queue(queue: Any) -> int:
    return echo(*queue.get(timeout=BOUND_S))


def echo_in_a_child(requests: dp.ShmChannel, answers: dp.ShmChannel, method: str) -> int:
    with Child(echo, requests, answers, method=method) as grandchild:
        return grandchild.result()


def send_numbers(channel: dp.ShmChannel, sender: int, count: int) -> None:
    for number in range(count):
        channel.send({"sender": torch.tensor(sender), "number": torch.tensor(number)}, BOUND_S)


def send_until_closed(channel: dp.ShmChannel, num_bytes: int = 2048) -> None:
    number = 0
    with suppress(dp.ChannelClosed):
        while True:
            channel.send({"pid": torch.tensor(os.getpid()), **numbered(number, num_bytes)}, BOUND_S)
            number += 1


def wait_for_a_message(ready: dp.ShmChannel, channel: dp.ShmChannel) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with SIGINT ignored
    ready.send({}, BOUND_S)
    channel.recv()


def end_with_threads_in_send(channel: dp.ShmChannel, num_bytes: int) -> None:
    message = numbered(1, num_bytes)
    began = threading.Event()

    def send() -> None:
        while True:
            began.set()
            channel.send(message)

    for _ in range(3):
        threading.Thread(target=send, daemon=True).start()
    began.wait(BOUND_S)


# --- limits of this process


def lowest_free_descriptor() -> int:
    """The least number that is free while the open ones are listed, so that only the list's own is free below it."""
    gc.collect()
    opened = {int(number) for number in os.listdir("/proc/self/fd")}
    return next(number for number in itertools.count() if number not in opened)


@contextmanager
def limited(limit: int, most: int) -> Iterator[None]:
    """Set a limit of the module `resource` for a while."""
    soft, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(limit, (soft, hard))


# --- what is left in the system


def who_has(inode: int) -> list[str]:
    """The mappings and descriptors of a channel's memory, over all processes that this one may inspect."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/maps") as maps:
            found += [f"{pid} maps it" for line in maps if SEGMENT in line and line.split()[4] == str(inode)]
        with suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with suppress(OSError):
                    if SEGMENT in os.readlink(path) and os.stat(path).st_ino == inode:
                        found.append(f"{pid} has it open")
    return found


def inode_of(channel: dp.ShmChannel) -> int:
    return os.fstat(channel._shared.descriptor).st_ino


def num_mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum(SEGMENT in line for line in maps)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def open_descriptors() -> set[tuple[int, int, int]]:
    """Number, device and inode of each open descriptor of this process."""
    opened = set()
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # the descriptor of listdir itself is closed by now
            file = os.fstat(number)
            opened.add((number, file.st_dev, file.st_ino))
    return opened


def descriptors_from_now() -> Callable[[], int]:
    """Return a function that counts the open descriptors that are not open now.

    What earlier tests left to the garbage collector, or to another thread, may be closed meanwhile and does not count.
    """
    gc.collect()
    before = open_descriptors()
    return lambda: len(open_descriptors() - before)


def damage_slots(address: int, num_bytes: int) -> None:
    """Overwrite the slots of a channel, which lie behind its header; csrc/shm/state.h has the places."""
    memory = (ctypes.c_ubyte * num_bytes).from_address(address)
    (slots,) = struct.unpack_from("<Q", memory, 32)
    memory[slots : slots + 64 * 32] = b"\xee" * (64 * 32)
