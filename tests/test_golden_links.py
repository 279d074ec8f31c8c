"""Golden digests of links: docs/semantics.md, sections 4.7 to 4.9, at stream version 1.

As in test_golden.py, a digest changes only together with STREAM_VERSION. The tests of the stages compare with the twin.
"""

import golden_graphs as golden
import pytest
import torch

import datapipes as dp


def plain(graph_dtype=torch.int64, **options) -> dp.Stage:
    since = torch.arange(golden.NUM_NODES) * 19 % 50
    graph = dp.CSCGraph.from_edge_index(
        torch.tensor(golden.parallel_edges()), golden.NUM_NODES, node_attributes={"since": since}
    ).with_index_dtype(graph_dtype)
    seeds = golden.repeated_seeds(pairs=True)
    times = torch.arange(golden.NUM_ITEMS) * 7 % 60 + 20
    items = dp.ItemSet((seeds, times), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(items, golden.BATCH_SIZE, shuffle=True, seed=golden.SEED)
    sampled = pipe.sample_uniform_negative(graph, **options).sample_neighbor(graph, [4, 3], return_edge_ids=True)
    return sampled.exclude_seed_edges(True, only_positive=True)


def of_types(**options) -> dp.Stage:
    graph = dp.HeteroCSCGraph.from_edge_index(golden.edge_index_of_types(), num_nodes=golden.NUM_NODES_OF)
    sets = {of: dp.ItemSet(golden.items_of(of)) for of in golden.NUM_LINKS_OF}
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), golden.TYPED_BATCH_SIZE, shuffle=True, seed=golden.SEED)
    return pipe.sample_uniform_negative(graph, **options).sample_neighbor(graph, [3, 2]).exclude_seed_edges()


WEIGHT = (torch.arange(golden.NUM_NODES) % 7).double()


def of_form(**options) -> dp.Stage:
    graph = dp.CSCGraph.from_edge_index(torch.tensor(golden.parallel_edges()), golden.NUM_NODES).to_undirected()
    pipe = dp.ItemSampler(
        dp.ItemSet(golden.repeated_seeds(pairs=True)), golden.BATCH_SIZE, shuffle=True, seed=golden.SEED
    )
    return pipe.sample_neighbor(graph, [4, 3], return_edge_ids=True, **options)


CASES = {
    "plain": lambda: plain(negative_ratio=3),
    "strict, both ends, int32 ids": lambda: plain(torch.int32, negative_ratio=1.5, corrupt="both", strict=True),
    "rows of sources by weight": lambda: plain(negative_ratio=2, form="rows", corrupt="src", src_weight=WEIGHT),
    "times, strict": lambda: plain(negative_ratio=2, node_time_attr="since", strict=True),
    "induced": lambda: of_form(subgraph_type="induced"),
    "induced trees": lambda: of_form(subgraph_type="induced", disjoint=True),
    "bidirectional": lambda: of_form(subgraph_type="bidirectional"),
    "types": lambda: of_types(negative_ratio=2, strict=True),
    "types: rows": lambda: of_types(negative_ratio=2, form="rows", corrupt="src"),
}
GOLDEN = {
    "plain": "ae8a8772f2f6c16214d566503e0e7a5d",
    "strict, both ends, int32 ids": "ebd781c7e201487500a012a43d0bbc53",
    "rows of sources by weight": "b2d3ec7ce7eb9523ae5cc7b04f2f454a",
    "times, strict": "e4724b4901c9c6eed66efe7a614de115",
    "induced": "9b8979ddd99b2f248c9b04ca05a3be91",
    "induced trees": "b139f3257cec3333285ab07e505c6ba9",
    "bidirectional": "16965b4065bf8434185902c9f4ed313f",
    "types": "9adf2ab70e09361c35d58c972f3c3f9f",
    "types: rows": "2e67ade8a3e3c077e4c2d425f092a16a",
}


@pytest.mark.parametrize("name", CASES)
def test_the_package_gives_the_golden_digest(name):
    minibatch = dp.DataLoader(CASES[name]()).minibatch(golden.EPOCH, golden.INDEX)
    assert minibatch.digest() == GOLDEN[name]
