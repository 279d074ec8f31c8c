"""The row gather: any width, any spacing of the rows; ids are checked before a byte is copied."""

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES

from datapipes import _core

WIDTHS = [0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 100, 400, 4096]


def table_of(num_rows: int, row_bytes: int) -> np.ndarray:
    return np.random.default_rng(row_bytes).integers(0, 256, (num_rows, row_bytes), dtype=np.uint8)


def expect_the_twin(table: np.ndarray, ids: np.ndarray) -> None:
    rows = _core.gather_rows(table, ids)
    assert rows.shape == (len(ids), table.shape[1])
    assert rows.dtype == np.uint8
    assert rows.flags.c_contiguous
    assert [row.tobytes() for row in rows] == twin.gather_rows([row.tobytes() for row in table], ids)


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_width_are_copied(width, dtype):
    table = table_of(50, width)
    ids = np.random.default_rng(1).integers(0, 50, 203).astype(dtype)
    for count in (0, 1, 2, 3, 8, 33, 203):
        expect_the_twin(table, ids[:count])


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_with_gaps_between_them_are_copied(width):
    wide = table_of(40, width + 5)
    ids = np.array([39, 0, 7, 7, 38, 1])
    expect_the_twin(wide[:, :width], ids)
    expect_the_twin(wide[:, 5:], ids)  # rows that start at odd addresses
    expect_the_twin(wide[::2, 3 : 3 + width], ids // 2)
    expect_the_twin(np.broadcast_to(table_of(1, width), (40, width)), ids)


@examples(100)
@given(st.data(), st.integers(1, 20), st.integers(0, 70), st.sampled_from(ID_DTYPES))
def test_a_gather_equals_the_twin(data, num_rows, width, dtype):
    ids = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=40))
    expect_the_twin(table_of(num_rows, width), np.array(ids, dtype=dtype))


def test_a_large_gather_equals_take():
    table = table_of(10_000, 400)
    ids = np.random.default_rng(2).integers(0, 10_000, 20_000)
    assert np.array_equal(_core.gather_rows(table, ids), table.take(ids, axis=0))


def test_the_rows_are_a_copy():
    table = table_of(3, 8)
    rows = _core.gather_rows(table, np.array([0, 1]))
    rows[:] = 0
    assert np.array_equal(table, table_of(3, 8))


def test_a_table_that_cannot_be_written_is_read():
    table = table_of(3, 8)
    table.flags.writeable = False
    expect_the_twin(table, np.array([2, 0]))


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("width", [0, 1, 8, 400])
def test_an_id_outside_the_table_is_refused(width, dtype):
    for outside in (-1, 5, np.iinfo(dtype).max, np.iinfo(dtype).min):
        for ids in ([outside], [0, 1, 2, outside], [outside] + [0] * 100, [0] * 100 + [outside]):
            with pytest.raises(IndexError, match=rf"row id must be in \[0, 5\), got {outside}\."):
                _core.gather_rows(table_of(5, width), np.array(ids, dtype=dtype))


def test_a_table_without_rows_yields_only_the_empty_gather(refuses):
    assert _core.gather_rows(table_of(0, 8), np.array([], dtype=np.int64)).shape == (0, 8)
    refuses(IndexError, _core.gather_rows, table_of(0, 8), np.array([0]))


def test_other_dtypes_shapes_and_layouts_are_refused():
    table, ids = table_of(4, 6), np.array([0, 1])
    wrong = [
        (table.astype(np.float32), ids),
        (table[0], ids),
        (table.reshape(4, 3, 2), ids),
        (table[:, ::2], ids),
        (table[:, ::-1], ids),
        (table[::-1], ids),
        (np.asfortranarray(table), ids),
        (table, ids.astype(np.float64)),
        (table, ids.astype(np.uint8)),
        (table, ids.reshape(1, 2)),
        (table, np.arange(4)[::2]),
        (table, [0, 1]),
    ]
    for rows, wanted in wrong:
        with pytest.raises((TypeError, ValueError)):
            _core.gather_rows(rows, wanted)
