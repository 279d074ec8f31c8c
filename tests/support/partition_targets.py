"""What processes of these tests run: a partitioner over a small graph."""

from multiprocessing.connection import Connection

import torch

import datapipes as dp
from datapipes.distributed import Partitioner


def graph_of_seed(rng_seed: int, num_nodes: int = 3000, num_edges: int = 20_000) -> dp.CSCGraph:
    """A graph with attributes; another seed gives another one."""
    generator = torch.Generator().manual_seed(rng_seed)
    edge_index = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    x = torch.rand(num_nodes, 16, generator=generator)
    w = torch.rand(num_edges, generator=generator)
    return dp.CSCGraph.from_edge_index(edge_index, num_nodes, node_attributes={"x": x}, edge_attributes={"w": w})


def partition(root: str, rng_seed: int, num_parts: int, says: Connection) -> None:
    """Partition the graph of `rng_seed` with METIS into `root`; say when it begins and when it has ended."""
    partitioner = Partitioner(graph_of_seed(rng_seed), num_parts, root)
    says.send("begins")
    partitioner.generate_partition()
    says.send("ended")
