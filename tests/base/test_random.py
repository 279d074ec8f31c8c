"""Philox, hop keys and bounded draws of the core, against published answers and the twin.

NumPy's Philox is the 4x64 variant and is therefore no reference here.
"""

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import assert_uniform, int64s, rng_seeds

from datapipes import _core

WORDS = st.integers(0, 2**32 - 1)
NODES = st.one_of(st.integers(0, 100), st.integers(0, 2**64 - 1))
RANGES = [1, 2, 3, 1000, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
RANGES += [2**32, 2**32 + 1, 2**40 + 7, 2**62, 2**62 + 1, 3 * 2**61, 2**63 - 1]

# Random123 kat_vectors, philox4x32 with 10 rounds: counter, key, words
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words_of(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, expected):
    k0, k1 = words_of(key)
    assert twin.philox4x32(words_of(counter), (k0, k1)) == words_of(expected)
    assert _core.philox4x32(*words_of(counter), k0 + k1 * 2**32) == words_of(expected)


@examples(200)
@given(st.tuples(WORDS, WORDS, WORDS, WORDS), rng_seeds)
def test_philox_equals_the_twin(counter, key):
    assert _core.philox4x32(*counter, key) == twin.philox4x32(counter, twin.halves(key))


def test_the_stream_version_is_the_one_of_the_page():
    assert _core.STREAM_VERSION == twin.STREAM_VERSION == 1


@examples(200)
@given(st.fixed_dictionaries({name: st.integers(0, 2**bits - 1) for name, bits in twin.HOP_KEY_BITS.items()}))
def test_a_hop_key_equals_the_twin(numbers):
    assert _core.hop_key(**numbers) == twin.hop_key(**numbers)


@pytest.mark.parametrize("name", twin.HOP_KEY_BITS)
def test_every_number_changes_the_hop_key_up_to_its_largest(name):
    zeros = dict.fromkeys(twin.HOP_KEY_BITS, 0)
    powers = [zeros | {name: 2**bit} for bit in range(twin.HOP_KEY_BITS[name])]
    largest = zeros | {name: 2 ** twin.HOP_KEY_BITS[name] - 1}
    keys = [_core.hop_key(**numbers) for numbers in [zeros, *powers, largest]]
    assert len(set(keys)) == len(keys)


def test_a_number_out_of_its_range_is_refused_by_name(refuses):
    zeros = dict.fromkeys(twin.HOP_KEY_BITS, 0)
    for name, bits in twin.HOP_KEY_BITS.items():
        if bits < 64:
            refuses(ValueError, _core.hop_key, **zeros | {name: 2**bits})
            with pytest.raises(ValueError, match=name):
                twin.hop_key(**zeros | {name: 2**bits})
        for no_uint64 in (-1, 2**64):
            with pytest.raises(TypeError, match="incompatible function arguments"):
                _core.hop_key(**zeros | {name: no_uint64})
    for below_one in (0, -1):
        refuses(ValueError, _core.bounded_draws, 0, 0, 0, int64s([5, below_one]))


@examples(200)
@given(rng_seeds, NODES, WORDS, st.lists(st.integers(1, 2**63 - 1) | st.sampled_from(RANGES)))
def test_bounded_draws_equal_the_twin(key, node, stream, ranges):
    words = twin.Stream(key, node, stream)
    expected = [words.bounded(n) for n in ranges]
    assert _core.bounded_draws(key, node, stream, int64s(ranges)).tolist() == expected


@pytest.mark.parametrize("n", RANGES)
def test_many_draws_of_one_range_equal_the_twin_through_rejections(n):
    words = twin.Stream(2024, 7, 1)
    expected = [words.bounded(n) for _ in range(300)]
    drawn = _core.bounded_draws(2024, 7, 1, np.full(300, n, dtype=np.int64))
    assert drawn.tolist() == expected
    assert drawn.min() >= 0
    assert drawn.max() < n
    rejected = words.words_taken - 300 * (1 if n < 2**32 else 2)
    likely = (2**32 % n) / 2**32 if n < 2**32 else (2**64 % n) / 2**64
    assert rejected > 50 if likely > 0.2 else rejected == 0


def test_a_range_of_one_takes_a_word():
    after_ones = _core.bounded_draws(5, 6, 0, int64s([1, 1, 1000]))
    assert after_ones[:2].tolist() == [0, 0]
    assert after_ones[2] == _core.bounded_draws(5, 6, 0, int64s([1000, 1000, 1000]))[2]


def test_streams_of_other_keys_nodes_and_numbers_differ():
    ranges = np.full(4, 2**62, dtype=np.int64)
    addresses = [(0, 0, 0), (1, 0, 0), (2**32, 0, 0), (0, 1, 0), (0, 2**32, 0), (0, 0, 1), (0, 0, 2**32 - 1)]
    assert len({tuple(_core.bounded_draws(*address, ranges)) for address in addresses}) == len(addresses)


@pytest.mark.parametrize("n", [2, 10, 100])
def test_bounded_draws_are_uniform(n):
    trials = 1000 * n
    drawn = _core.bounded_draws(99, 3, 0, np.full(trials, n, dtype=np.int64))
    assert_uniform(np.bincount(drawn, minlength=n), trials)


@pytest.mark.parametrize("n", [3 * 2**30, 2**31 + 1, 3 * 2**61])
def test_bounded_draws_of_a_wide_range_fall_evenly_on_its_sixteenths(n):
    drawn = _core.bounded_draws(98, 3, 0, np.full(20_000, n, dtype=np.int64))
    assert_uniform(np.bincount([int(value) * 16 // n for value in drawn], minlength=16), 20_000)


def test_no_ranges_give_no_draws():
    drawn = _core.bounded_draws(0, 0, 0, int64s())
    assert drawn.dtype == np.int64
    assert drawn.shape == (0,)
