"""The arena: arrays in one file, written in pieces, and found again at their places."""

import numpy as np
import pytest
import torch
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused

from datapipes.graph.arena import ALIGNED, ArenaWriter, Form, part_of, planned, read_arena, read_form, refuse_overlaps

dtypes = st.sampled_from([torch.bool, torch.uint8, torch.bfloat16, torch.int32, torch.float64, torch.complex128])
shapes = st.lists(st.integers(0, 5), min_size=0, max_size=3)


def values_of(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    return (torch.arange(int(np.prod(shape))) % 2).to(dtype).reshape(shape)


@examples(50)
@given(st.lists(st.tuples(dtypes, shapes), max_size=6), st.integers(1, 3), st.booleans())
def test_arrays_written_in_pieces_come_back(tmp_path_factory, arrays, most, mmap):
    path = tmp_path_factory.getbasetemp() / "arena.npy"
    forms, seen = [*planned(arrays)], bytearray()
    tensors = [values_of(*each) for each in arrays]
    with ArenaWriter(path, forms, seen.extend) as arena:
        for tensor in tensors:
            arena.write(tensor.split(most) if tensor.ndim else [tensor])
    assert path.read_bytes() == seen
    assert [form.begin % ALIGNED for form in forms] == [0] * len(forms)
    refuse_overlaps(forms)
    whole = read_arena("here", path, forms[-1].end if forms else 0, mmap)
    assert np.array_equal(np.load(path), whole.numpy())
    for tensor, form in zip(tensors, forms, strict=True):
        found = read_form(form.described(), whole.numel(), "it", "the header")
        assert found == form
        got = part_of("here", path, whole, found)
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got, tensor)


@pytest.mark.parametrize("count", [2, 4])
def test_pieces_that_are_not_the_array_are_refused(tmp_path, count):
    forms = [*planned([(torch.int64, [3])])]
    with (
        refused(
            ValueError, stage=r"a\.npy", found=f"{8 * count} bytes", allowed="array of 24", remedy="write them again"
        ),
        ArenaWriter(tmp_path / "a.npy", forms) as arena,
    ):
        arena.write([torch.arange(1), torch.arange(count - 1)])


def test_arrays_that_share_bytes_are_refused():
    forms = [Form(torch.uint8, (65,), 0, 65), Form(torch.uint8, (0,), 64, 64), Form(torch.uint8, (1,), 64, 65)]
    refuse_overlaps(forms[:2])
    with pytest.raises(ValueError, match="the arrays at bytes 0 and 64 overlap"):
        refuse_overlaps(forms)
