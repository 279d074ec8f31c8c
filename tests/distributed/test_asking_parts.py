"""Asking parts: one coroutine serves callers that wait and callers that await."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
import torch
from dist_graphs import small_parts
from pipelines import items

from datapipes.distributed.asking_parts import all_or_failed, here_or_off_loop, run_here


def test_a_thread_that_waits_makes_all_calls_itself():
    async def calls():
        return [await here_or_off_loop(threading.get_ident), await here_or_off_loop(threading.get_ident)]

    assert run_here(calls()) == [threading.get_ident()] * 2
    assert threading.get_ident() not in asyncio.run(calls())


def test_a_graph_in_parts_can_be_asked_where_an_event_loop_runs():
    stage = items().sample_neighbor(small_parts(), [2, 2])
    expected = stage.graph.has_edges(torch.tensor([[3, 5]]))

    async def in_a_loop():
        return stage.graph.has_edges(torch.tensor([[3, 5]])), await stage.graph.has_edges_async(torch.tensor([[3, 5]]))

    for found in asyncio.run(in_a_loop()):
        assert torch.equal(found.counts, expected.counts)
        assert torch.equal(found.first_ids, expected.first_ids)


@pytest.mark.parametrize("run", [run_here, asyncio.run])
def test_an_error_is_told_while_others_still_wait(run):
    waiting, failed, done = Future(), Future(), Future()
    done.set_result(5)
    threading.Timer(0.01, failed.set_exception, [ValueError("no such part")]).start()
    (told,) = run(all_or_failed([done, waiting, failed]))
    with pytest.raises(ValueError, match="no such part"):
        told.result()
    assert run(all_or_failed([done, done])) == [done, done]


def test_what_a_coroutine_raises_leaves_the_thread_as_it_was():
    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_here(fails())

    async def where():
        return await here_or_off_loop(threading.get_ident)

    assert asyncio.run(where()) != threading.get_ident()


def test_a_future_that_is_cancelled_ends_the_wait():
    cancelled, waiting = Future(), Future()
    threading.Timer(0.01, cancelled.cancel).start()
    (told,) = run_here(all_or_failed([cancelled, waiting]))
    assert told is cancelled
