"""The groups of the seeds of a minibatch: what times they may have. Which groups there are, test_trees_and_times.py
compares with the twin.
"""

import torch

from datapipes.sampling.seed_ids import seed_trees


def times(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def trees_of(seeds, timestamps):
    return seed_trees("here", seeds, timestamps, disjoint=True, has_times=True)


def test_a_type_without_seeds_has_no_trees():
    seeds = {"paper": torch.tensor([], dtype=torch.int64), "author": torch.tensor([1])}
    trees = trees_of(seeds, {"paper": times([]), "author": times([9])})
    assert [trees.groups[of].tolist() for of in ("author", "paper")] == [[0], []]


def test_what_times_of_seeds_are_refused(refuses):
    seeds = torch.tensor([1, 2])
    with refuses(ValueError):
        seed_trees("here", seeds, None, disjoint=False, has_times=True)
    refuses(TypeError, trees_of, seeds, torch.tensor([1.0, 2.0]))
    refuses(TypeError, trees_of, seeds, torch.tensor([1, 2], dtype=torch.int32))
    refuses(TypeError, trees_of, seeds, [1, 2])
    refuses(ValueError, trees_of, seeds, times([1]))
    refuses(ValueError, trees_of, seeds, times([[1], [2]]))
    refuses(TypeError, trees_of, seeds, {"paper": times([1, 2])})
    refuses(ValueError, trees_of, seeds, torch.zeros(2, dtype=torch.int64, device="meta"))
    typed = {"paper": torch.tensor([1]), "author": torch.tensor([1])}
    refuses(TypeError, trees_of, typed, times([1, 2]))
    refuses(ValueError, trees_of, typed, {"paper": times([1])})
    refuses(ValueError, trees_of, typed, {"paper": times([1]), "venue": times([1])})
    refuses(ValueError, trees_of, typed, {"paper": times([1, 2]), "author": times([1])})
