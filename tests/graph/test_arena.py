"""The arena: arrays in one file, written in pieces, and found again at their places."""

import json

import numpy as np
import torch
from amounts import examples
from hypothesis import example, given
from hypothesis import strategies as st

from datapipes.base.records import from_json, to_json
from datapipes.base.strict_json import parse_strict
from datapipes.graph.arena import ALIGNED, Arena, Array, Entry, by_place, part_of, planned, read_arena, write_arena

dtypes = st.sampled_from([torch.bool, torch.uint8, torch.bfloat16, torch.int32, torch.float64, torch.complex128])
shapes = st.lists(st.integers(0, 5), min_size=0, max_size=3)


def values_of(dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    return (torch.arange(int(np.prod(shape))) % 2).to(dtype).reshape(shape)


@example([(torch.int64, [0]), (torch.bfloat16, [2, 0])], 1, True)  # no bytes at all
@example([(torch.int64, [0])], 1, False)
@examples(50)
@given(st.lists(st.tuples(dtypes, shapes), max_size=6), st.integers(1, 3), st.booleans())
def test_arrays_written_in_pieces_come_back(tmp_path_factory, arrays, most, mmap):
    path = tmp_path_factory.getbasetemp() / "arena.npy"
    tensors, seen = [values_of(*each) for each in arrays], bytearray()
    pieces = [tensor.split(most) if tensor.ndim else [tensor] for tensor in tensors]
    arena = planned(Array(("x", i, ""), *form, pieces[i]) for i, form in enumerate(arrays))
    write_arena(path, arena, pieces, seen.extend)
    assert path.read_bytes() == seen
    assert [entry.offset % ALIGNED for entry in arena.arrays] == [0] * len(arrays)
    found = from_json(Arena, "the header", parse_strict(json.dumps(to_json(arena))))
    assert found == arena
    whole = read_arena("here", path, arena.num_bytes, mmap)
    assert np.array_equal(np.load(path), whole)
    entries = by_place(found.arrays, {"x": len(arrays)})
    for number, tensor in enumerate(tensors):
        got = part_of("here", path, whole, entries["x", number, ""])
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got, tensor)
        assert got.untyped_storage().nbytes() == tensor.nbytes


def entry(size: int, offset: int, kind: str = "x", number: int = 0, name: str = "") -> Entry:
    return Entry(kind, number, name, torch.uint8, (size,), offset)


def test_what_an_arena_refuses(refuses, tmp_path):
    for count in (2, 4):
        pieces = [torch.arange(1), torch.arange(count - 1)]
        arena = planned([Array(("x", 0, ""), torch.int64, [3], pieces)])
        refuses(ValueError, write_arena, tmp_path / "a.npy", arena, [pieces])
    Arena(65, (entry(65, 0), entry(0, 64)))
    refuses(ValueError, Arena, 65, (entry(65, 0), entry(0, 64), entry(1, 64)))
    for place in (entry(65, 0), entry(0, 8), entry(1, 64), entry(0, 128)):
        refuses(ValueError, Arena, 64, (place,))
    for entries in (
        [entry(1, 0, "y")],
        [entry(1, 0, number=2)],
        [entry(1, 0), entry(1, 64, name="other")],
        [entry(1, 0, "attributes", 0, "a")] * 2,
    ):
        refuses(ValueError, by_place, entries, {"x": 2, "attributes": 1})
