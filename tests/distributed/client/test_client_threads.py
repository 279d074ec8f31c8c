"""The threads of a client: what happens when one cannot be started, and when one of them closes them all."""

import threading

import pytest

from datapipes.distributed.client.remote_part import Threads

BOUND_S = 30.0


@pytest.fixture
def refused(monkeypatch):
    """Starting a thread fails while `refused` is not empty."""
    left, start = [], threading.Thread.start

    def start_or_fail(thread):
        if left:
            left.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    return left


def test_work_whose_thread_cannot_be_started_is_given_back_and_later_work_runs(refused):
    threads, done, never = Threads("test-threads", 2), threading.Event(), threading.Event()
    refused.append(True)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        threads.run(never.set)
    assert threads.run(done.set)
    assert done.wait(BOUND_S)
    assert threads.close(BOUND_S)
    assert not never.is_set()


def test_work_waits_for_a_thread_there_is_when_no_other_can_be_started(refused):
    threads, begun, go, done = Threads("test-threads", 2), threading.Event(), threading.Event(), threading.Event()

    def first():
        begun.set()
        go.wait(BOUND_S)

    threads.run(first)
    assert begun.wait(BOUND_S)
    refused.append(True)
    assert threads.run(done.set)
    go.set()
    assert done.wait(BOUND_S)
    assert threads.close(BOUND_S)


def test_a_thread_that_closes_them_is_not_one_that_is_left_behind():
    threads, closed, done = Threads("test-threads", 2), [], threading.Event()

    def close():
        closed.append(threads.close(BOUND_S))
        done.set()

    threads.run(close)
    assert done.wait(BOUND_S)
    assert closed == [True]
