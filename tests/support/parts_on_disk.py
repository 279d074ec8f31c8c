"""A small graph in parts on disk, for tests with servers."""

import contextlib
import itertools
from pathlib import Path

import torch
from partitions import source_of

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.native.native_write import write_native

NUM_NODES = 400


def a_graph(*, num_nodes: int = NUM_NODES, rng_seed: int = 0, feature_seed: int = 0) -> dp.CSCGraph:
    """Nodes have "x" and "y", edges "w"; other features over the same edges with another `feature_seed`."""
    generator, of_features = torch.Generator().manual_seed(rng_seed), torch.Generator().manual_seed(feature_seed)
    num_edges = 10 * num_nodes
    return dp.CSCGraph.from_edge_index(
        torch.randint(0, num_nodes, (2, num_edges), generator=generator),
        num_nodes,
        node_attributes={"x": torch.rand(num_nodes, 8, generator=of_features), "y": torch.arange(num_nodes)},
        edge_attributes={"w": torch.rand(num_edges, generator=of_features)},
    )


def write(root: Path, graph: dp.CSCGraph, num_parts: int = 2) -> Path:
    """Write the graph in parts, node i in part i % num_parts; return the folder."""
    root.mkdir()
    book = PartitionBook(num_parts, torch.arange(graph.num_nodes) % num_parts)
    write_native(root, source_of(graph), book, node_time_attr=None, about={}, progress=lambda *_: None)
    return root


def batches(source: dp.Stage | dp.DataLoader, count: int | None = None) -> list[str]:
    """The digests of the first `count` minibatches, by default of all. Then nothing is under way any more."""
    with contextlib.closing(source):
        return [minibatch.digest() for minibatch in itertools.islice(iter(source), count)]


def seeds(num_nodes: int = NUM_NODES) -> dp.ItemSampler:
    return dp.ItemSampler(dp.ItemSet(torch.arange(num_nodes), names="seeds"), 4, shuffle=True, seed=3)


def whole(graph: dp.CSCGraph, count: int | None = None) -> list[str]:
    """The digests of an epoch over the undivided graph, or of its beginning."""
    x = dp.TensorFeature(graph.node_attributes_of(None)["x"])
    chain = seeds(graph.num_nodes).sample_neighbor(graph, [4, 4])
    return batches(chain.fetch_feature(dp.FeatureStore({("node", None, "x"): x}), ["x"]), count)


def over(dist_graph: dp.distributed.DistGraph, num_nodes: int = NUM_NODES) -> dp.Stage:
    """The same epoch over parts."""
    chain = seeds(num_nodes).dist_sample_neighbor(dist_graph, [4, 4])
    return chain.fetch_feature(dp.distributed.DistFeatureStore(dist_graph), ["x"])
