"""put_rows: rows go to places of an output, equal to torch's indexing; errors write nothing."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from datapipes.base.rows import bits_of, new_rows, put_rows

DTYPES = [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64, torch.complex128]


@given(st.sampled_from(DTYPES), st.sampled_from([(), (0,), (1,), (3,), (2, 5), (100,)]), st.data())
def test_rows_go_to_their_places(dtype, shape, data):
    count, num_out = data.draw(st.integers(1, 30)), data.draw(st.integers(0, 40))
    made = torch.Generator().manual_seed(data.draw(st.integers(0, 100)))
    table = torch.randint(0, 100, (count, *shape), generator=made).to(dtype)
    out = torch.randint(0, 100, (num_out, *shape), generator=made).to(dtype)
    places = torch.randperm(num_out, generator=made)[: data.draw(st.integers(0, num_out))].sort().values
    rows = torch.randint(0, count, places.shape, generator=made)
    expected = out.clone()
    expected[places] = table[rows]
    for numbers in (rows, rows.int()):
        put_rows(out, places, table, numbers)
        assert torch.equal(bits_of(out), bits_of(expected))
        put_rows(out, places, table[rows])
        assert torch.equal(bits_of(out), bits_of(expected))


def test_many_rows_by_several_threads_and_past_the_cache():
    table = torch.arange(20_000 * 64).reshape(20_000, 64).float()
    made = torch.Generator().manual_seed(0)
    places = (torch.rand(100_000, generator=made) < 0.5).nonzero().flatten()
    rows = torch.randint(0, 20_000, places.shape, generator=made)
    expected = torch.zeros(100_000, 64)
    expected[places] = table[rows]
    for num_threads in (1, 3):
        out = torch.zeros(100_000, 64)
        put_rows(out, places, table, rows, num_threads)
        assert torch.equal(out, expected)


def test_what_is_refused_before_anything_is_written(refuses):
    out, places, rows = torch.zeros(4, 2), torch.tensor([0, 1]), torch.ones(3, 2)
    for outside in ([0, 4], [0, -1]):
        refuses(IndexError, put_rows, out, torch.tensor(outside), rows, torch.tensor([0, 1]))
    for outside in ([0, 3], [-1, 0]):
        refuses(IndexError, put_rows, out, places, rows, torch.tensor(outside))
    refuses(ValueError, put_rows, out, places, rows)
    refuses(ValueError, put_rows, out, torch.tensor([0, 1, 2]), torch.ones(3, 3))
    refuses(ValueError, put_rows, out, torch.tensor([0]), out, torch.tensor([1]))
    assert not out.any()


def test_memory_for_rows_is_recycled_and_has_their_form():
    for dtype in DTYPES:
        for shape in ((), (3,), (2, 0)):
            rows = new_rows(5, shape, dtype)
            assert (rows.dtype, rows.shape, rows.is_contiguous()) == (dtype, (5, *shape), True)
    assert new_rows(0, (3,), torch.float32).shape == (0, 3)
