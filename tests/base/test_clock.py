"""StageClock: wall time and the sum of calls that overlap."""

import multiprocessing
import os
import threading

import pytest
from at_once import at_once
from hypothesis import given
from hypothesis import strategies as st

from datapipes.base import clock
from datapipes.base.clock import CallRecord, StageClock

MOMENTS = st.integers(0, 30)
WAIT_S = 30.0


UNUSED = {"processor_seconds": 0, "disk_bytes": 0}


def counted(spans: list[tuple[int, int]], stage: str = "1 sample") -> dict[str, dict[str, float]]:
    """The counts after calls from one moment to another, which are counted as they end."""
    made = StageClock()
    for began, ended in sorted(spans, key=lambda span: span[1]):
        made.add_calls([CallRecord(stage, float(began), float(ended - began), 1, "thread", 0)])
    return made.stats()


@given(st.lists(st.tuples(MOMENTS, MOMENTS).map(sorted).map(tuple), min_size=1, max_size=12))
def test_seconds_are_the_time_in_which_at_least_one_call_ran(spans):
    busy = {moment for began, ended in spans for moment in range(began, ended)}
    wall, at_once = float(len(busy)), float(sum(ended - began for began, ended in spans))
    assert counted(spans) == {
        "1 sample": {"calls": len(spans), "seconds": wall, "concurrent_seconds": at_once, **UNUSED}
    }


@pytest.mark.parametrize("num_calls", [1, 7, 8, 9, 100])
def test_calls_that_are_no_longer_kept_count(monkeypatch, num_calls):
    monkeypatch.setattr(clock, "KEPT_CALLS", 16)
    monkeypatch.setattr(clock, "FRESH_CALLS", 4)
    one_by_one = counted([(2 * number, 2 * number + 1) for number in range(num_calls)])["1 sample"]
    assert one_by_one["seconds"] == one_by_one["concurrent_seconds"] == num_calls
    two_at_once = counted([(number, number + 2) for number in range(num_calls)])["1 sample"]
    assert two_at_once == {"calls": num_calls, "seconds": num_calls + 1, "concurrent_seconds": 2 * num_calls, **UNUSED}


def test_stages_are_apart():
    made = StageClock()
    made.add_calls(CallRecord(stage, 0.0, 2.0, 1, "thread", 0, 1.5, 4096.0) for stage in ("a", "b", "a"))
    assert made.stats() == {
        "a": {"calls": 2, "seconds": 2, "concurrent_seconds": 4, "processor_seconds": 3, "disk_bytes": 8192},
        "b": {"calls": 1, "seconds": 2, "concurrent_seconds": 2, "processor_seconds": 1.5, "disk_bytes": 4096},
    }


def test_the_first_calls_of_several_threads_are_all_kept():
    num_threads = 4
    for _ in range(20):
        made, together = StageClock(), threading.Barrier(num_threads, timeout=WAIT_S)

        def call(number, made=made, together=together):
            together.wait()
            made.add("1 sample", 0.0, number)

        at_once(call, num_threads)
        assert len(made.last_calls()) == made.stats()["1 sample"]["calls"] == num_threads


def test_the_last_calls_are_kept_in_their_order(monkeypatch):
    monkeypatch.setattr(clock, "KEPT_CALLS", 16)
    monkeypatch.setattr(clock, "FRESH_CALLS", 4)
    made = StageClock()
    calls = [CallRecord(f"{number % 3} stage", float(number), 1.0, 1, "thread", number) for number in range(99)]
    for number, call in enumerate(calls):
        made.add_calls([call])
        assert made.last_calls() == calls[max(number - 15, 0) : number + 1]


def test_calls_of_many_threads_are_each_counted_once(monkeypatch):
    monkeypatch.setattr(clock, "FRESH_CALLS", 8)
    made, seen = StageClock(), []

    def call(_):
        for number in range(2000):
            made.add("1 sample", 0.0, number)
            if number % 50 == 0:
                seen.append(made.stats()["1 sample"]["calls"])

    at_once(call, 4)
    assert made.stats()["1 sample"]["calls"] == len(made.last_calls()) == 8000
    assert max(seen) <= 8000


def test_counts_can_be_read_while_calls_are_counted(monkeypatch):
    """As in a handler of a signal, which runs in the thread that counts."""
    made, numbered, read = StageClock(), StageClock._numbers, []

    def numbers(counting, names):
        read.append(counting.stats() if not read else {})
        return numbered(counting, names)

    monkeypatch.setattr(StageClock, "_numbers", numbers)
    monkeypatch.setattr(clock, "FRESH_CALLS", 1)
    made.add("1 sample", 0.0, 0)
    assert read[0] == {}
    assert made.stats()["1 sample"]["calls"] == 1


def test_a_child_that_is_forked_while_calls_are_counted_counts(monkeypatch):
    made = StageClock()
    holds, goes_on = threading.Event(), threading.Event()

    def hold():
        with clock._process.counting:
            clock._process.is_moving = True
            holds.set()
            goes_on.wait(WAIT_S)
            clock._process.is_moving = False

    thread = threading.Thread(target=hold)
    thread.start()
    assert holds.wait(WAIT_S)

    def count():
        made.add("1 sample", 0.0, 0)
        os._exit(made.stats()["1 sample"]["calls"] != 1)

    child = multiprocessing.get_context("fork").Process(target=count)
    child.start()
    child.join(WAIT_S)
    exit_code = child.exitcode
    child.kill()
    goes_on.set()
    thread.join()
    assert exit_code == 0
