"""Answers that are put together: when all have ended, in order, and freed at once."""

import gc
import weakref
from concurrent.futures import Future

import pytest

from datapipes.distributed.client.flight_peers import joined

BOUND_S = 20.0


class Large:
    """Something whose end can be seen."""


@pytest.fixture
def no_collector():
    """What is freed here is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_whole_comes_with_the_last_piece_in_the_order_of_the_pieces():
    pieces = [Future() for _ in range(3)]
    whole = joined(pieces, list)
    for number in (2, 0, 1):
        assert not whole.done()
        pieces[number].set_result(number)
    assert whole.result(BOUND_S) == [0, 1, 2]


def test_the_first_error_of_the_pieces_is_that_of_the_whole():
    pieces = [Future() for _ in range(3)]
    whole = joined(pieces, list)
    pieces[2].set_exception(KeyError("later"))
    pieces[1].set_exception(KeyError("first"))
    pieces[0].set_result(0)
    with pytest.raises(KeyError, match="first"):
        whole.result(BOUND_S)


@pytest.mark.usefixtures("no_collector")
def test_answers_that_are_joined_are_freed_with_the_whole():
    pieces = [Future(), Future()]
    kept = Large()
    whole = joined(pieces, lambda found, kept=kept: found)
    for each in pieces:
        each.set_result(Large())
    seen = [weakref.ref(kept), *map(weakref.ref, whole.result(BOUND_S))]
    del pieces, whole, kept, each
    assert [ref() for ref in seen] == [None] * 3
