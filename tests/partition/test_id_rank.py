"""IdRank: the row of an id among ascending ids, against numpy's bisection."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from datapipes import _core

EDGES = [0, 63, 64, 383, 384, 385, 767, 768, 2000]  # of words and lines


def slow_rows(ids, wanted):
    """The twin: where each wanted id stands in the list, -1 if it does not."""
    return [ids.index(each) if each in ids else -1 for each in wanted]


@given(
    st.sets(st.one_of(st.integers(0, 2500), st.sampled_from(EDGES))),
    st.integers(0, 500),
    st.lists(st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-2, 3100), st.sampled_from(EDGES)), max_size=60),
    st.sampled_from([np.int32, np.int64]),
    st.sampled_from([1, 3]),
)
def test_rows_are_those_of_the_list(ids, more, wanted, dtype, num_threads):
    given_ids = sorted(ids)
    rank = _core.IdRank(np.array(given_ids, dtype=np.int64), (max(given_ids, default=-1) + 1) + more)
    rows = rank.rows(np.array(wanted, dtype=dtype), num_threads=num_threads)
    assert rows.tolist() == slow_rows(given_ids, wanted)


def test_many_ids_and_all_of_them_by_several_threads():
    ids = np.flatnonzero(np.random.default_rng(0).random(300_000) < 0.4)
    rank = _core.IdRank(ids, 300_000)
    wanted = np.random.default_rng(1).integers(-10, 300_010, 200_000)
    rows = rank.rows(wanted, num_threads=2)
    places = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    assert np.array_equal(rows, np.where(ids[places] == wanted, places, -1))
    assert np.array_equal(_core.IdRank(np.arange(1000), 1000).rows(np.arange(1000)), np.arange(1000))


def test_what_a_rank_refuses(refuses):
    for ids in ([1, 1], [2, 1], [-1], [5], [0, 5]):
        refuses(ValueError, _core.IdRank, np.array(ids), 5)
    for num_ids in (-1, 2**62):
        refuses(ValueError, _core.IdRank, np.array([], dtype=np.int64), num_ids)
