"""Pairs as seeds, without types and with, and negative samplers that draw nothing: for the tests of links."""

import torch
from typed_pipelines import typed_items

import datapipes as dp

PAIRS = torch.stack((torch.arange(22) * 7 % 40, torch.arange(22) * 3 % 40), 1)


def pairs_chain(**more: object) -> dp.ItemSampler:
    """PAIRS in minibatches of four, shuffled; `more` are further fields."""
    names = ("seeds", *more)
    return dp.ItemSampler(dp.ItemSet((PAIRS, *more.values()), names=names), 4, shuffle=True, seed=5)


def links_of_types() -> dp.Stage:
    """Pairs of two edge types, without labels."""
    sets = typed_items(links=True).item_set.item_sets
    pairs = {of: dp.ItemSet(items[:] if len(items.names) == 1 else items[:][0]) for of, items in sets.items()}
    return dp.ItemSampler(dp.HeteroItemSet(pairs), 4, shuffle=True, seed=5)


def edges_by_id(items: dp.ItemSet) -> dict[int, tuple[int, int]]:
    """{edge id: ends} of a set that ItemSet.of_edges made, in its order."""
    assert items.names == ("seeds", "edge_ids")
    pairs, ids = items[:]
    return dict(zip(ids.tolist(), map(tuple, pairs.tolist()), strict=True))


def next_destination(pairs, rng, edge_type, timestamps):
    """A negative sampler that draws nothing."""
    return torch.stack((pairs[:, 0], (pairs[:, 1] + 1) % 40), 1)


def next_source(pairs, rng, edge_type, timestamps):
    """As next_destination, of the other end."""
    return torch.stack(((pairs[:, 0] + 1) % 40, pairs[:, 1]), 1)
