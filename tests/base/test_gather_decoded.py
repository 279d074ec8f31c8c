"""The row gather of values stored with fewer bits: the bits of the twin, at any width and spacing, on any threads."""

import numpy as np
import pytest
import torch
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES

from datapipes import _core
from datapipes.base.rows import byte_rows
from datapipes.features.stored_values import decode

STORED = {"float16": np.uint16, "bfloat16": np.uint16, "int8": np.int8}
WIDTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 31, 100, 128, 1024]
LARGEST = 0x7F7FFFFF  # the bits of the largest float32


def table_of(stored_as: str, num_rows: int, width: int) -> np.ndarray:
    """Any bits at all: NaN, infinities and subnormal numbers too."""
    kind = np.iinfo(STORED[stored_as])
    made = np.random.default_rng(width)
    return made.integers(kind.min, kind.max, (num_rows, width), dtype=STORED[stored_as], endpoint=True)


def scale_of(stored_as: str, width: int) -> np.ndarray | None:
    if stored_as != "int8":
        return None
    scale = np.random.default_rng(width + 1).random(width, dtype=np.float32)
    scale[::5], scale[1::7] = 0, 1e-45
    return scale


def as_bytes(table: np.ndarray) -> np.ndarray:
    return byte_rows(torch.from_numpy(table.view(np.int16 if table.itemsize == 2 else np.int8)))


def decoded(stored_as: str, table: np.ndarray, scale: np.ndarray | None) -> list[list[int]]:
    """The float32 of every value by the twin, as bits."""
    if stored_as == "int8":
        steps = [int(bits) for bits in scale.view(np.uint32)]
        return [[twin.decoded_int8(int(n), step) for n, step in zip(row, steps, strict=True)] for row in table]
    one = twin.decoded_float16 if stored_as == "float16" else twin.decoded_bfloat16
    return [[one(int(bits)) for bits in row] for row in table]


def expect_the_twin(stored_as: str, table: np.ndarray, ids: np.ndarray, **options) -> None:
    scale = scale_of(stored_as, table.shape[1])
    found = _core.gather_decoded(as_bytes(table), ids, stored_as=stored_as, scale=scale, **options)
    assert (found.shape, found.dtype) == ((len(ids), 4 * table.shape[1]), np.uint8)
    rows = decoded(stored_as, table, scale)
    expected = np.array([rows[i] for i in ids], dtype=np.uint32).reshape(table[ids].shape)
    assert np.array_equal(found, expected.view(np.uint8).reshape(found.shape))


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16"])
def test_every_bit_pattern_of_sixteen_bits_is_decoded_as_the_twin_does(stored_as):
    table = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
    expect_the_twin(stored_as, table, np.arange(len(table)))


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16"])
def test_every_bit_pattern_has_the_bits_of_torch_but_for_the_payload_of_nan(stored_as):
    table = np.arange(2**16, dtype=np.uint16).reshape(-1, 64)
    found = _core.gather_decoded(as_bytes(table), np.arange(len(table)), stored_as=stored_as).view(np.int32)
    by_torch = decode(torch.from_numpy(table.view(np.int16)).view(getattr(torch, stored_as)), None).numpy()
    same = (found == by_torch.view(np.int32)) | (np.isnan(found.view(np.float32)) & np.isnan(by_torch))
    assert same.all()


def test_int8_is_rounded_once_at_every_number_and_at_scales_of_all_sizes():
    numbers = np.repeat(np.arange(-128, 128, dtype=np.int8)[:, None], 19, axis=1)
    most = int(np.array(float(np.uint32(LARGEST).view(np.float32)) / 128, dtype=np.float32).view(np.uint32))
    bits = [0, 1, 2, 3, 100, 2**22, 2**23 - 1, 2**23, 2**23 + 1, 0x3F800000, 0x3F800001, 0x3FFFFFFF, 0x3EAAAAAB]
    scale = np.array([*bits, 0x3DCCCCCD, 0x40490FDB, 0x00FFFFFF, 0x34000001, most - 1, most], dtype=np.uint32)
    found = _core.gather_decoded(
        as_bytes(numbers), np.arange(256), stored_as="int8", scale=scale.view(np.float32)
    ).view(np.uint32)
    assert found.tolist() == decoded("int8", numbers, scale.view(np.float32))


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("stored_as", STORED)
def test_rows_of_every_width_are_decoded(stored_as, dtype):
    for width in WIDTHS:
        ids = np.random.default_rng(1).integers(0, 11, 40).astype(dtype)
        for count in (0, 1, 2, 40):
            expect_the_twin(stored_as, table_of(stored_as, 11, width), ids[:count])


@pytest.mark.parametrize("stored_as", STORED)
def test_rows_with_gaps_between_them_are_decoded(stored_as):
    ids = np.array([9, 0, 7, 7, 8, 1])
    for width in (1, 3, 8, 13, 16):
        wide = table_of(stored_as, 10, width + 3)
        for table in (wide[:, :width], wide[:, 3:], wide[::2, 1 : 1 + width]):
            expect_the_twin(stored_as, table, ids % len(table))


@pytest.mark.parametrize("stored_as", STORED)
def test_stored_rows_and_outputs_may_begin_at_odd_addresses(stored_as):
    width = 12
    table, scale = table_of(stored_as, 6, width), scale_of(stored_as, width)
    plain = as_bytes(table)
    odd = np.zeros(plain.nbytes + 1, dtype=np.uint8)[1:].reshape(plain.shape)
    odd[:] = plain
    ids = np.array([5, 0, 0, 3])
    out = np.zeros(4 * 4 * width + 1, dtype=np.uint8)[1:].reshape(4, 4 * width)
    assert _core.gather_decoded(odd, ids, stored_as=stored_as, scale=scale, out=out) is out
    assert np.array_equal(out, _core.gather_decoded(plain, ids, stored_as=stored_as, scale=scale))


@examples(60)
@given(
    st.data(), st.sampled_from([*STORED]), st.integers(1, 9), st.integers(0, 40), st.sampled_from(ID_DTYPES),
    st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_a_gather_equals_the_twin(data, stored_as, num_rows, width, dtype, num_threads, own_memory):
    ids = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=20)), dtype=dtype)
    out = np.full((len(ids), 4 * width), 77, dtype=np.uint8) if own_memory else None
    expect_the_twin(stored_as, table_of(stored_as, num_rows, width), ids, out=out, num_threads=num_threads)


@pytest.mark.parametrize("width", [100, 98, 96])  # written past the cache where rows are multiples of 16 bytes
@pytest.mark.parametrize("stored_as", STORED)
def test_a_large_gather_is_the_same_on_any_number_of_threads(stored_as, width):
    table, scale = table_of(stored_as, 1_000, width), scale_of(stored_as, width)
    ids = np.random.default_rng(2).integers(0, 1_000, 25_000)
    few = _core.gather_decoded(as_bytes(table), np.arange(1_000), stored_as=stored_as, scale=scale)
    for num_threads in (1, 3):
        found = _core.gather_decoded(as_bytes(table), ids, stored_as=stored_as, scale=scale, num_threads=num_threads)
        assert np.array_equal(found, few[ids])


@pytest.mark.parametrize("stored_as", STORED)
def test_no_mode_of_the_processor_changes_stored_halves(stored_as):
    table, scale = table_of(stored_as, 20, 33), scale_of(stored_as, 33)
    if scale is not None:
        scale[:] = 0.5
    before = _core.gather_decoded(as_bytes(table), np.arange(20), stored_as=stored_as, scale=scale)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no mode that flushes subnormal numbers")
    try:
        after = _core.gather_decoded(as_bytes(table), np.arange(20), stored_as=stored_as, scale=scale)
    finally:
        torch.set_flush_denormal(False)
    assert np.array_equal(before, after)


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("stored_as", STORED)
def test_an_id_outside_the_table_is_refused_and_nothing_is_written(stored_as, dtype, refuses):
    table, out = as_bytes(table_of(stored_as, 5, 8)), np.zeros((3, 32), dtype=np.uint8)
    options = {"stored_as": stored_as, "scale": scale_of(stored_as, 8), "out": out}
    for outside in (-1, 5, np.iinfo(dtype).max, np.iinfo(dtype).min):
        refuses(IndexError, _core.gather_decoded, table, np.array([0, 1, outside], dtype=dtype), **options)
    assert not out.any()


def test_what_is_not_asked_for_is_refused(refuses):
    table, ids, scale = as_bytes(table_of("int8", 4, 6)), np.array([0, 1]), np.ones(6, dtype=np.float32)
    for no_scale in (None, scale[:5]):
        refuses(ValueError, _core.gather_decoded, table, ids, stored_as="int8", scale=no_scale)
    half, shared = as_bytes(table_of("float16", 4, 6)), np.zeros(48, dtype=np.uint8)
    refuses(ValueError, _core.gather_decoded, half, ids, stored_as="float64")
    refuses(ValueError, _core.gather_decoded, half[:, :11], ids, stored_as="bfloat16")
    for options in (
        {"scale": scale},
        {"num_threads": 0},
        {"out": np.empty((2, 12), dtype=np.uint8)},
        {"out": np.empty((3, 24), dtype=np.uint8)},
        {"out": half.reshape(2, 24)},
    ):
        refuses(ValueError, _core.gather_decoded, half, ids, stored_as="float16", **options)
    in_out = shared.view(np.int64)[4:]
    refuses(ValueError, _core.gather_decoded, half, in_out, stored_as="float16", out=shared.reshape(2, 24))
    for rows, numbers, factors in (
        (table.astype(np.float32), ids, scale),
        (table, ids.astype(np.float64), scale),
        (table, [0, 1], scale),
        (table, ids, scale.astype(np.float64)),
    ):
        with pytest.raises(TypeError):
            _core.gather_decoded(rows, numbers, stored_as="int8", scale=factors)
