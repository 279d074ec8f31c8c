"""Wrong ids are counted on the device and raised once the count is known; nothing waits for it before `finish`."""

import contextlib
import gc
import os

import pytest
import torch
from at_once import at_once
from plain_cuda import PlainCuda

from datapipes.device import runtime
from datapipes.device.missing_ids import MissingIds

DEVICE = torch.device("cpu")


class LateEvent:
    """An event that passes when the test says so, or when somebody waits for it."""

    def __init__(self, gpu: "LateCuda") -> None:
        self.gpu, self.has_passed, self.recorded = gpu, True, 0

    def record(self, stream: object) -> None:
        self.has_passed = False
        self.recorded += 1
        self.gpu.recorded.append(self)

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        self.gpu.log.append("wait")
        self.has_passed = True


class LateCuda(PlainCuda):
    """A device whose copies arrive with their events."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[LateEvent] = []
        self.log: list[str] = []
        self.pinned = 0

    def new_event(self) -> LateEvent:
        return LateEvent(self)

    def empty_pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.pinned += 1
        return super().empty_pinned(shape, dtype)


@pytest.fixture
def gpu(monkeypatch) -> LateCuda:
    gpu = LateCuda()
    monkeypatch.setattr(runtime, "_current", gpu)
    return gpu


def count(missing: MissingIds, wrong: int = 0, smallest: int = 2**63 - 1) -> None:
    """Do what a gather does that finds so many wrong ids."""
    with missing.counter() as counter:
        assert counter.tolist() == [0, 2**63 - 1]
        counter[0] += wrong
        counter[1] = min(int(counter[1]), smallest)


def test_what_is_known_is_raised_once_and_nothing_waits(gpu, refuses):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    count(missing, 2, -4)
    missing.raise_known()
    gpu.recorded[0].has_passed = True
    refuses(IndexError, missing.raise_known)
    missing.raise_known()
    missing.finish()
    assert gpu.log == []


def test_counts_of_several_gathers_are_told_together(gpu, refuses):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    for wrong, smallest in [(1, 12), (0, 2**63 - 1), (3, 11)]:
        count(missing, wrong, smallest)
    refuses(IndexError, missing.finish)
    assert gpu.log == ["wait"] * 3
    missing.finish()


def test_a_later_gather_may_be_known_before_an_earlier_one(gpu, refuses):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    count(missing, 1, 10)
    count(missing, 1, 11)
    gpu.recorded[1].has_passed = True
    refuses(IndexError, missing.raise_known)
    refuses(IndexError, missing.finish)


def test_memory_is_used_again_when_its_gather_is_known_to_be_right(gpu):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    for _ in range(3):
        count(missing)
    assert gpu.pinned == 3
    for event in gpu.recorded:
        event.has_passed = True
    for _ in range(300):
        count(missing)
        gpu.recorded[-1].has_passed = True
    assert gpu.pinned == 3


def test_a_gather_that_fails_leaves_nothing_behind(gpu):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    with contextlib.suppress(KeyError), missing.counter() as counter:
        counter[0] = 5
        raise KeyError
    count(missing)
    missing.finish()


def test_threads_count_at_once(gpu):
    missing = MissingIds("TensorFeature", 10, DEVICE)
    told: list[int] = []

    def work(_: int) -> None:
        for _ in range(50):
            count(missing, 1, 17)
            try:
                missing.finish()
            except IndexError as error:
                told.append(int(str(error).split(": ")[1].split()[0]))

    at_once(work, 4)
    assert sum(told) == 200


def test_a_table_is_let_go_only_after_the_last_gather_from_it(gpu):
    class Table(torch.Tensor):
        def __del__(self) -> None:
            gpu.log.append("gone")

    missing = MissingIds("TensorFeature", 10, DEVICE, torch.zeros(3).as_subclass(Table))
    count(missing)
    count(missing)
    gc.collect()
    assert gpu.log == []
    del missing
    gc.collect()
    assert gpu.log == ["wait", "wait", "gone"]


def test_a_forked_child_does_not_wait_for_its_parents_gathers(gpu):
    missing = MissingIds("TensorFeature", 10, DEVICE, torch.zeros(3))
    count(missing)
    child = os.fork()
    if child == 0:
        del missing
        gc.collect()
        os._exit(len(gpu.log))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
