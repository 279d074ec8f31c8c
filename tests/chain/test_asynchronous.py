"""off_loop: calls in threads beside the event loop; is_async: a property of each instance."""

import asyncio
import threading
from concurrent.futures import wait
from contextvars import ContextVar

import pytest

import datapipes as dp
from datapipes.base.threads import num_threads, threads_of_kernels
from datapipes.chain.asynchronous import is_async, off_loop
from datapipes.chain.loop_thread import THREADS, LoopThread

BOUND_S = 20.0


@pytest.fixture(params=["of a chain", "of the caller"])
def run(request):
    """Run a coroutine in an event loop: one of this package, or the caller's own."""
    if request.param == "of the caller":
        yield asyncio.run
        return
    loop = LoopThread()
    yield lambda coroutine: loop.submit(coroutine).result(BOUND_S)
    loop.close()


class Both(dp.MiniBatchTransformer):
    def __init__(self, source, asynchronous):
        super().__init__(source)
        self.asynchronous = asynchronous

    def transform(self, minibatch):
        return minibatch.replace(labels=minibatch.seeds)

    async def transform_async(self, minibatch):
        return minibatch.replace(labels=minibatch.seeds + 1)


def test_each_instance_says_whether_it_is_asynchronous():
    items = dp.ItemSampler(dp.ItemSet(8), 4)
    awaited, called = Both(items, True), Both(items, False)
    assert (is_async(awaited), is_async(called), is_async(items)) == (True, False, False)
    assert [minibatch.labels.tolist() for minibatch in called] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [minibatch.labels.tolist() for minibatch in awaited] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_call_runs_in_another_thread_and_gives_its_result(run):
    async def use():
        return await off_loop(lambda first, *, second: (first, second, threading.get_ident()), 1, second=2)

    first, second, thread = run(use())
    assert (first, second) == (1, 2)
    assert thread != threading.get_ident()


def test_the_loop_goes_on_during_a_call(run):
    began, go_on = threading.Event(), threading.Event()

    def call():
        began.set()
        assert go_on.wait(BOUND_S)
        return "done"

    async def use():
        long = asyncio.ensure_future(off_loop(call))
        assert await off_loop(began.wait, BOUND_S)  # a second call gets its turn meanwhile
        assert not long.done()
        go_on.set()
        return await long

    assert run(use()) == "done"


def test_a_call_raises_its_error(run):
    def call():
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run(off_loop(call))


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError, GeneratorExit])
def test_what_is_no_error_becomes_one(run, kind):
    def call():
        raise kind("odd")

    with pytest.raises(RuntimeError, match=rf"raised {kind.__name__}.*odd"):
        run(off_loop(call))
    assert run(off_loop(int, "3")) == 3  # the threads serve on


def test_kernels_of_a_call_have_the_share_of_the_thread_that_began_the_loop():
    with threads_of_kernels(7):
        loop = LoopThread()
    assert loop.submit(off_loop(num_threads)).result(BOUND_S) == 7
    loop.close()

    async def use():
        with threads_of_kernels(5):
            return await off_loop(num_threads)

    assert asyncio.run(use()) == 5


def test_a_call_sees_the_context_of_its_task(run):
    name = ContextVar("name", default="none")

    async def use():
        name.set("mine")
        return await off_loop(name.get)

    assert run(use()) == "mine"


def test_threads_are_few_and_end_with_their_loop():
    before = set(threading.enumerate())
    loop = LoopThread()
    calls = [loop.submit(off_loop(threading.get_ident)) for _ in range(50)]
    assert len({call.result(BOUND_S) for call in calls}) <= 2
    loop.close()
    assert set(threading.enumerate()) <= before


def test_a_call_whose_thread_cannot_be_started_raises_and_later_calls_run(monkeypatch):
    refused, start = [True], threading.Thread.start

    def start_or_fail(thread):
        if thread.name.startswith(THREADS) and refused:
            refused.pop()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    loop = LoopThread()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        loop.submit(off_loop(int, "3")).result(BOUND_S)
    assert loop.submit(off_loop(int, "3")).result(BOUND_S) == 3
    loop.close()


def test_close_drops_calls_that_wait_and_ends_with_the_one_under_way():
    began, go_on, made = threading.Event(), threading.Event(), []

    def call(number):
        made.append(number)
        began.set()
        assert go_on.wait(BOUND_S)

    before = set(threading.enumerate())
    loop = LoopThread()
    calls = [loop.submit(off_loop(call, number)) for number in range(10)]
    assert began.wait(BOUND_S)
    ending = threading.Thread(target=loop.close)
    ending.start()
    assert len(wait(calls, BOUND_S).not_done) == 0  # cancelled, though the calls under way still run
    go_on.set()
    ending.join(BOUND_S)
    assert set(threading.enumerate()) <= before
    assert len(made) <= 2


def test_a_loop_that_its_own_thread_ends_is_closed():
    loop = LoopThread()

    async def end():
        loop.close()

    loop.submit(end()).exception(BOUND_S)
    loop._thread.join(BOUND_S)
    assert loop._loop.is_closed()


def test_a_loop_whose_thread_cannot_be_started_is_closed(monkeypatch):
    made, new_event_loop = [], asyncio.new_event_loop

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(asyncio, "new_event_loop", lambda: made.append(new_event_loop()) or made[0])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        LoopThread()
    assert made[0].is_closed()
