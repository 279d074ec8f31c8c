"""A small graph with types, and chains over it. Child processes import this module too.

It has several relations between two types, one of a type with itself and an empty type; seeds of nodes or of links, a
field of the user's own, features of nodes and edges.
"""

import random

import torch

import datapipes as dp

WRITES, REVIEWS, CITES = ("author", "writes", "paper"), ("author", "reviews", "paper"), ("paper", "cites", "paper")
WRITTEN, HOSTS = ("paper", "rev:writes", "author"), ("venue", "hosts", "paper")
NUM_NODES = {"paper": 40, "author": 25, "venue": 0}
EDGE_TYPES = [WRITES, REVIEWS, CITES, WRITTEN, HOSTS]
FANOUTS = [{WRITES: 2, CITES: 3, WRITTEN: -1}, 3]


def typed_graph(dtype: torch.dtype = torch.int64, *, with_edge_ids: bool = True) -> dp.HeteroCSCGraph:
    numbers = random.Random(7)
    relations, edge_ids = {}, {}
    for src, rel, dst in EDGE_TYPES:
        most = 8 if NUM_NODES[src] else 0
        columns = [
            [numbers.randrange(NUM_NODES[src]) for _ in range(numbers.randint(0, most))] for _ in range(NUM_NODES[dst])
        ]
        indptr = torch.tensor([0, *map(len, columns)]).cumsum(0)
        relations[src, rel, dst] = (indptr, torch.tensor([u for column in columns for u in column], dtype=dtype))
        edge_ids[src, rel, dst] = torch.arange(int(indptr[-1])).flip(0)
    return dp.HeteroCSCGraph(relations, num_nodes=NUM_NODES, edge_ids=edge_ids if with_edge_ids else None)


def typed_store() -> dp.FeatureStore:
    features = {("node", of, "feat"): torch.arange(3.0 * count).view(-1, 3) for of, count in NUM_NODES.items()}
    features |= {("edge", of, "weight"): torch.arange(200).half() for of in (WRITES, CITES)}
    return dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in features.items()})


def typed_set(*, links: bool = False) -> dp.HeteroItemSet:
    """Seeds of two types, 13 and 9, with labels and a field of the user's own."""
    sets = {}
    for of, count in {CITES if links else "paper": 13, WRITES if links else "author": 9}.items():
        seeds = torch.arange(count) * 7 % 25
        seeds = torch.stack((seeds, seeds.flip(0)), dim=1) if links else seeds
        sets[of] = dp.ItemSet(
            (seeds, torch.arange(count), torch.rand(count, generator=torch.Generator().manual_seed(3))),
            names=("seeds", "labels", "weight"),
        )
    return dp.HeteroItemSet(sets)


def typed_items(*, links: bool = False, **arguments) -> dp.ItemSampler:
    """Six minibatches, the last one shorter."""
    return dp.ItemSampler(typed_set(links=links), 4, **{"shuffle": True, "seed": 5, **arguments})


def typed_sampled(
    source: dp.Stage | None = None, graph: dp.HeteroCSCGraph | None = None, **arguments
) -> dp.NeighborSampler:
    arguments = {"fanouts": FANOUTS, "return_edge_ids": True, **arguments}
    return (source or typed_items()).sample_neighbor(graph or typed_graph(), **arguments)


def typed_fetched(source: dp.Stage | None = None) -> dp.FeatureFetcher:
    store = typed_store()
    return (source or typed_sampled()).fetch_feature(store, {"paper": ["feat"], "venue": ["feat"]}, {CITES: ["weight"]})


def typed_links() -> dp.FeatureFetcher:
    return typed_fetched(typed_sampled(typed_items(links=True), frontier="new"))
