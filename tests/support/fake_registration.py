"""A stand-in for CUDA that registers host memory in a table, and notes every call that real CUDA would refuse or that
would take memory from under a kernel.
"""

import gc
import os
from collections.abc import Callable, Iterator

import pytest
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from datapipes.device import host_memory, runtime

NOT_SUPPORTED, ALREADY_REGISTERED, NOT_REGISTERED = 801, 712, 713


class FakeRegistration(runtime.Cuda):
    """One GPU. `registered` is {address: (bytes, read_only)}, `faults` says in words what went wrong."""

    def __init__(self, refuse: int = 0, refuses_read_only: int = 0) -> None:
        super().__init__()
        self.refuse, self.refuses_read_only, self.refuses_to_write = refuse, refuses_read_only, 0
        self.refuse_after = 0  # so many calls succeed before `refuse` acts
        self.registered: dict[int, tuple[int, bool]] = {}
        self.calls: list[str] = []
        self.faults: list[str] = []
        self.locked_by_torch: list[tuple[int, int]] = []
        self.kernels: list[StorageWeakRef] = []  # memory that kernels in flight read

    def device_count(self) -> int:
        return 1

    def is_pinned(self, address: int) -> bool:
        ranges = [*self.locked_by_torch, *((address, size) for address, (size, _) in self.registered.items())]
        return any(begin <= address < begin + size for begin, size in ranges)

    def register(self, address: int, num_bytes: int, *, read_only: bool) -> int:
        self.calls.append("register")
        if num_bytes <= 0:
            self.faults.append(f"register({address}, {num_bytes}): no bytes")
        if self.refuse and self.refuse_after == 0:
            return self.refuse
        self.refuse_after -= bool(self.refuse)
        if refused := self.refuses_read_only if read_only else self.refuses_to_write:
            return refused
        for begin, (size, _) in self.registered.items():
            if address < begin + size and begin < address + num_bytes:
                self.faults.append(f"register({address}, {num_bytes}): again, {begin} has {size}")
                return ALREADY_REGISTERED
        self.registered[address] = (num_bytes, read_only)
        return 0

    def unregister(self, address: int) -> int:
        self.calls.append("unregister")
        if address not in self.registered:
            self.faults.append(f"unregister({address}): not registered")
            return NOT_REGISTERED
        if self.kernels:
            self.faults.append(f"unregister({address}): while a kernel reads")
        del self.registered[address]
        return 0

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        if any(memory.expired() for memory in self.kernels):
            self.faults.append("a kernel reads memory that was given back")
        self.kernels.clear()

    def reads(self, tensor: Tensor) -> None:
        """Queue a kernel that reads a tensor; it ends when somebody waits for it."""
        self.kernels.append(StorageWeakRef(tensor.untyped_storage()))

    def covers(self, tensor: Tensor) -> bool:
        """Return whether every byte of a contiguous tensor is registered."""
        at, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for address, (size, _) in sorted(self.registered.items()):
            if address <= at:
                at = max(at, address + size)
        return at >= end


def registering(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistration]:
    """The body of a fixture: a fake GPU; at the end of the test nothing is registered, and nothing went wrong."""
    found = FakeRegistration()
    monkeypatch.setattr(runtime, "_current", found)
    try:
        yield found
        gc.collect()
        assert found.faults == []
        assert found.registered == {}
        assert host_memory._table.segments == []
    finally:
        host_memory._after_fork()  # what a failed test has left is of no further test


def in_forked_child(call: Callable[[], int]) -> int:
    """Return what `call` returns in a forked child, a number."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writes, b"%d" % call())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as answers:
        answer = answers.read()
    os.waitpid(pid, 0)
    return int(answer)
