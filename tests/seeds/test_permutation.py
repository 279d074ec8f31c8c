"""The order of an epoch's items: a permutation, the same however it is cut, and equal to the twin's."""

from itertools import permutations

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import assert_uniform, rng_seeds

from datapipes import _core

KEY = 0x0123456789ABCDEF
SIZES = [0, 1, 2, 3, 5, 100, 65_536, 65_537, 70_001, 100_000]


def whole(n: int, key: int = KEY) -> np.ndarray:
    return _core.permutation_at(n, key, 0, n)


@pytest.mark.parametrize("n", SIZES)
def test_every_item_is_visited_once(n):
    order = whole(n)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", SIZES)
def test_any_run_is_the_slice_of_the_whole(n):
    order = whole(n)
    cuts = {(0, 0), (0, n), (n, 0), (n // 2, n - n // 2), (n // 3, n // 7), (max(n - 1, 0), min(n, 1))}
    for first, count in cuts:
        assert np.array_equal(_core.permutation_at(n, KEY, first, count), order[first : first + count])


@examples(100)
@given(st.integers(0, 40), rng_seeds)
def test_a_small_order_equals_the_twin(n, key):
    assert whole(n, key).tolist() == twin.permutation(n, key)


def test_the_largest_shuffled_order_equals_the_twin():
    assert whole(2**16).tolist() == twin.permutation(2**16, KEY)


@examples(100)
@given(st.data(), rng_seeds)
def test_a_place_of_a_large_order_equals_the_twin(data, key):
    n = data.draw(st.one_of(st.integers(2**16 + 1, 2**40), st.sampled_from([2**17, 2**17 + 1, 2**18])))
    for x in {0, n - 1, data.draw(st.integers(0, n - 1))}:
        assert _core.permutation_at(n, key, x, 1).tolist() == [twin.permutation_at(n, key, x)]


@pytest.mark.parametrize("n", [2**62, 2**63 - 1])
def test_the_widest_orders_equal_the_twin(n):
    expected = [twin.permutation_at(n, KEY, x) for x in (n - 2, n - 1)]
    assert _core.permutation_at(n, KEY, n - 2, 2).tolist() == expected


def test_the_orders_of_four_items_are_equally_frequent():
    place = {order: i for i, order in enumerate(permutations(range(4)))}
    keys = [_core.hop_key(0, epoch, 0, 0, 0, 0) for epoch in range(4800)]
    found = [place[tuple(whole(4, key).tolist())] for key in keys]
    assert_uniform(np.bincount(found, minlength=24), len(keys))


@pytest.mark.parametrize("n", [65_536, 70_001])
def test_the_items_of_a_minibatch_fall_evenly_on_the_range(n):
    counts = np.zeros(16, dtype=np.int64)
    for epoch in range(40):
        items = _core.permutation_at(n, _core.hop_key(1, epoch, 0, 0, 0, 0), 512, 256)
        counts += np.bincount(items * 16 // n, minlength=16)
    assert_uniform(counts, 40 * 256)


@pytest.mark.parametrize("n", [100, 70_001])
def test_other_keys_give_other_orders(n):
    orders = {tuple(_core.permutation_at(n, key, 0, 20).tolist()) for key in (0, 1, 2, 2**32, 2**63)}
    assert len(orders) == 5


def test_what_a_permutation_refuses(refuses):
    for n in (0, 5, 70_001):
        for first, count in [(0, n + 1), (n, 1), (n + 1, 0), (-1, 1), (-1, 0), (2**63 - 1, 1), (-(2**63), 1)]:
            refuses(IndexError, _core.permutation_at, n, KEY, first, count)
    refuses(IndexError, _core.permutation_at, -1, KEY, 0, 0)
    refuses(ValueError, _core.permutation_at, 5, KEY, 0, -1)
