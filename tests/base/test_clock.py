"""StageClock: wall time and the sum of calls that overlap."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipes.base import clock
from datapipes.base.clock import CallRecord, StageClock

MOMENTS = st.integers(0, 30)


UNUSED = {"processor_seconds": 0, "disk_bytes": 0}


def counted(spans: list[tuple[int, int]], stage: str = "1 sample") -> dict[str, dict[str, float]]:
    """The counts after calls from one moment to another, which are counted as they end."""
    made = StageClock()
    for began, ended in sorted(spans, key=lambda span: span[1]):
        made.add_call(*CallRecord(stage, float(began), float(ended - began), 1, "thread", 0))
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
    one_by_one = counted([(2 * number, 2 * number + 1) for number in range(num_calls)])["1 sample"]
    assert one_by_one["seconds"] == one_by_one["concurrent_seconds"] == num_calls
    two_at_once = counted([(number, number + 2) for number in range(num_calls)])["1 sample"]
    assert two_at_once == {"calls": num_calls, "seconds": num_calls + 1, "concurrent_seconds": 2 * num_calls, **UNUSED}


def test_stages_are_apart():
    made = StageClock()
    for stage in ("a", "b", "a"):
        made.add_call(*CallRecord(stage, 0.0, 2.0, 1, "thread", 0, 1.5, 4096.0))
    assert made.stats() == {
        "a": {"calls": 2, "seconds": 2, "concurrent_seconds": 4, "processor_seconds": 3, "disk_bytes": 8192},
        "b": {"calls": 1, "seconds": 2, "concurrent_seconds": 2, "processor_seconds": 1.5, "disk_bytes": 4096},
    }


def test_the_first_calls_of_several_threads_are_all_kept():
    num_threads = 4
    for _ in range(20):
        made, together = StageClock(), threading.Barrier(num_threads)

        def call(made=made, together=together):
            together.wait()
            made.add("1 sample", 0.0, 0)

        threads = [threading.Thread(target=call) for _ in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(made.last_calls()) == made.stats()["1 sample"]["calls"] == num_threads


def test_counts_can_be_read_while_the_first_call_of_a_stage_is_counted(monkeypatch):
    made, numbered, read = StageClock(), StageClock._number_of, []

    def number_of(counting, name):
        read.append(counting.stats() if not read else {})
        return numbered(counting, name)

    monkeypatch.setattr(StageClock, "_number_of", number_of)
    monkeypatch.setattr(clock, "FRESH_CALLS", 1)
    made.add("1 sample", 0.0, 0)
    assert read[0] == {}
    assert made.stats()["1 sample"]["calls"] == 1
