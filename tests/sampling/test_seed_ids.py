"""The groups of the seeds of a minibatch: trees, or seeds of one time."""

import numpy as np
import pytest
import torch
from pipelines import refused

from datapipes.sampling.seed_ids import seed_trees

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


def times(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def trees_of(seeds, timestamps=None, *, disjoint=True):
    return seed_trees("here", seeds, timestamps, disjoint=disjoint, has_times=timestamps is not None)


def test_each_seed_is_a_tree_of_its_own_also_where_it_repeats():
    trees = trees_of(torch.tensor([4, 4, 1]))
    assert trees.groups.tolist() == trees.streams.tolist() == [0, 1, 2]
    assert trees.times is trees.rows is None


def test_the_trees_of_a_row_have_its_time():
    trees = trees_of(torch.tensor([[4, 1, 2], [4, 0, 0]]), times([7, -3]))
    assert trees.groups.tolist() == [0, 1, 2, 3, 4, 5]
    assert trees.rows.tolist() == [0, 0, 0, 1, 1, 1]
    assert trees.times.tolist() == [7, 7, 7, -3, -3, -3]


def test_without_trees_the_seeds_of_a_time_are_one_group_and_share_a_stream():
    trees = trees_of(torch.tensor([[4, 1], [3, 2], [0, 0]]), times([7, -3, 7]), disjoint=False)
    assert trees.times[trees.groups].tolist() == [7, 7, -3, -3, 7, 7]
    assert trees.streams.tolist() == [0, 0]
    assert trees.rows is None


def test_with_types_trees_are_counted_over_all_types_in_sorted_order():
    seeds = {"paper": torch.tensor([5, 6]), "author": torch.tensor([1])}
    trees = trees_of(seeds, {"paper": times([3, 4]), "author": times([9])})
    assert {of: groups.tolist() for of, groups in trees.groups.items()} == {"author": [0], "paper": [1, 2]}
    assert trees.rows is None  # the number of the tree
    assert trees.times.tolist() == [9, 3, 4]


def test_the_ends_of_links_are_trees_row_by_row_aligned_with_the_ids_of_their_type():
    seeds = {CITES: torch.tensor([[5, 6]]), WRITES: torch.tensor([[0, 2], [1, 3]])}
    trees = trees_of(seeds, {CITES: times([3]), WRITES: times([4, 5])})
    assert {of: groups.tolist() for of, groups in trees.groups.items()} == {"author": [0, 2], "paper": [1, 3, 4, 5]}
    assert trees.rows.tolist() == [0, 0, 1, 1, 2, 2]
    assert trees.times.tolist() == [4, 4, 5, 5, 3, 3]
    assert all(groups.flags.c_contiguous for groups in trees.groups.values())
    merged = trees_of(seeds, {CITES: times([4]), WRITES: times([4, 5])}, disjoint=False)
    assert {of: merged.times[groups].tolist() for of, groups in merged.groups.items()} == {
        "author": [4, 5],
        "paper": [4, 5, 4, 4],
    }


def test_a_type_without_seeds_has_no_trees():
    seeds = {"paper": torch.tensor([], dtype=torch.int64), "author": torch.tensor([1])}
    trees = trees_of(seeds, {"paper": times([]), "author": times([9])})
    assert [trees.groups[of].tolist() for of in ("author", "paper")] == [[0], []]


def test_seeds_without_times_are_refused():
    with refused(ValueError, stage="here", found="without timestamps", allowed="each row of the seeds needs a time"):
        seed_trees("here", torch.tensor([1]), None, disjoint=False, has_times=True)


@pytest.mark.parametrize(
    ("timestamps", "error", "named", "allowed"),
    [
        (torch.tensor([1.0, 2.0]), TypeError, "float32", "int64"),
        (torch.tensor([1, 2], dtype=torch.int32), TypeError, "int32", "int64"),
        ([1, 2], TypeError, "list", "tensor"),
        (times([1]), ValueError, r"got \[1\]", r"\[2\]"),
        (times([[1], [2]]), ValueError, r"\[2, 1\]", r"\[2\]"),
        ({"paper": times([1, 2])}, TypeError, "dict", "a tensor, since the seeds have no types"),
        (torch.zeros(2, dtype=torch.int64, device="meta"), ValueError, "meta", "in host memory"),
    ],
)
def test_times_that_do_not_belong_to_the_seeds_are_refused(timestamps, error, named, allowed):
    with refused(error, stage="here: timestamps", found=named, allowed=allowed):
        trees_of(torch.tensor([1, 2]), timestamps)


def test_times_of_other_types_than_the_seeds_are_refused():
    seeds = {"paper": torch.tensor([1]), "author": torch.tensor([1])}
    with refused(TypeError, stage="here", found="Tensor", allowed="a dict by type"):
        trees_of(seeds, times([1, 2]))
    with refused(ValueError, stage="here", found=r"\['paper'\]", allowed=r"\['author', 'paper'\]"):
        trees_of(seeds, {"paper": times([1])})
    with refused(ValueError, stage="here", found=r"\['paper', 'venue'\]", allowed=r"\['author', 'paper'\]"):
        trees_of(seeds, {"paper": times([1]), "venue": times([1])})
    with refused(ValueError, stage="here", found="timestamps of 'paper'.*got \\[2\\]", allowed=r"\[1\]"):
        trees_of(seeds, {"paper": times([1, 2]), "author": times([1])})


def test_the_arrays_are_what_the_core_takes():
    trees = trees_of(torch.tensor([[4, 1], [3, 2]]), times([7, -3])[::1], disjoint=False)
    found = [(each.dtype, each.flags.c_contiguous) for each in (trees.groups, trees.streams, trees.times)]
    assert found == [(np.int64, True), (np.uint32, True), (np.int64, True)]
