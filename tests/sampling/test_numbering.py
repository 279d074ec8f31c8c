"""Numbering: local ids by first occurrence, however many calls bring the ids."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import int64s

from datapipes import _core

KINDS = {np.int32: _core.NumberingInt32, np.int64: _core.NumberingInt64}


@examples(200)
@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=5),
    st.sampled_from(list(KINDS)),
    st.sampled_from([0, 2**20]),
)
def test_many_calls_number_as_one_call_does(parts, dtype, direct_limit):
    numbering = KINDS[dtype](41, direct_limit=direct_limit)
    local = [numbering.number(np.array(part, dtype=dtype)).tolist() for part in parts]
    nodes, expected = twin.compact([v for part in parts for v in part])
    assert [i for ids in local for i in ids] == expected
    assert numbering.nodes().tolist() == nodes
    assert numbering.nodes().dtype == dtype


def test_two_numberings_do_not_disturb_each_other():
    one, other = _core.NumberingInt64(100), _core.NumberingInt64(50)
    assert one.number(int64s([7, 8])).tolist() == [0, 1]
    assert other.number(int64s([8, 7, 8])).tolist() == [0, 1, 0]
    assert one.number(int64s([9, 8])).tolist() == [2, 1]


@pytest.mark.parametrize("direct_limit", [0, 2**20])
def test_an_id_outside_is_refused_and_the_numbering_goes_on(refuses, direct_limit):
    numbering = _core.NumberingInt64(3, direct_limit=direct_limit)
    numbering.number(int64s([2]))
    for wrong in (-1, 3, 2**40):
        refuses(IndexError, numbering.number, int64s([0, wrong]))
    assert numbering.number(int64s([0, 2])).tolist() == [1, 0]
    assert numbering.nodes().tolist() == [2, 0]


def test_wrong_arguments_are_refused(refuses):
    for wrong in (np.array([0], dtype=np.int32), np.array([[0]]), [0]):
        with pytest.raises((TypeError, ValueError)):
            _core.NumberingInt64(3).number(wrong)
    refuses(ValueError, _core.NumberingInt64, -1)


def test_threads_may_share_a_numbering():
    numbering = _core.NumberingInt64(10_000)
    parts = [np.random.default_rng(i).integers(0, 10_000, 3_000) for i in range(16)]
    with ThreadPoolExecutor(4) as pool:
        local = list(pool.map(numbering.number, parts))
    nodes = numbering.nodes()
    assert len(set(nodes.tolist())) == len(nodes)
    for part, ids in zip(parts, local, strict=True):
        assert np.array_equal(nodes[ids], part)
