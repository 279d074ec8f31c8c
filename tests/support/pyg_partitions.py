"""PyG's own Partitioner, with the call to METIS that it has no library for; and the data that it is given."""

import warnings
from unittest import mock

import numpy as np
import pymetis
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pytest.importorskip("torch_geometric", reason="PyG's own classes are compared: install the pyg extra")
    import torch_geometric.distributed as pyg
    from torch_geometric.data import Data, HeteroData
    from torch_geometric.loader.cluster import ClusterData

__all__ = ["Data", "HeteroData", "data_of", "hetero_data_of", "partitioned_by_pyg", "pyg"]


def _by_pymetis(cluster: ClusterData, edge_index: torch.Tensor, num_nodes: int) -> torch.Tensor:
    """The part of each node: what ClusterData asks METIS for; parallel edges count once."""
    pairs = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    pairs = torch.unique(pairs[:, pairs[0] != pairs[1]], dim=1)
    offsets = np.concatenate([[0], np.bincount(pairs[0].numpy(), minlength=num_nodes).cumsum()])
    adjacency = pymetis.CSRAdjacency(offsets.astype(np.int64), pairs[1].numpy())
    _, parts = pymetis.part_graph(cluster.num_parts, adjacency)
    return torch.tensor(parts)


def partitioned_by_pyg(data, num_parts: int, root) -> None:
    """Let PyG write a partition of `data` to `root`."""
    with mock.patch.object(ClusterData, "_metis", _by_pymetis):
        pyg.Partitioner(data, num_parts, str(root)).generate_partition()


def data_of(rng_seed: int = 0, *, num_nodes: int = 60, num_edges: int = 200) -> Data:
    """A symmetric graph with features of nodes and edges."""
    made = torch.Generator().manual_seed(rng_seed)
    one_way = torch.randint(num_nodes, (2, num_edges), generator=made)
    edges = torch.cat([one_way, one_way.flip(0)], dim=1)[:, torch.randperm(2 * num_edges, generator=made)]
    return Data(
        x=torch.randn(num_nodes, 3, generator=made),
        edge_index=edges,
        edge_attr=torch.randn(2 * num_edges, 2, generator=made),
        y=torch.randint(5, (num_nodes,), generator=made),
        num_nodes=num_nodes,
    )


def hetero_data_of(rng_seed: int = 0) -> HeteroData:
    """A symmetric graph of two node types, whose order is not that of the alphabet, and three edge types."""
    made = torch.Generator().manual_seed(rng_seed)
    data = HeteroData()
    for node_type, count in (("paper", 40), ("author", 30)):
        data[node_type].x = torch.randn(count, 3, generator=made)
    writes = torch.stack([torch.randint(30, (90,), generator=made), torch.randint(40, (90,), generator=made)])
    cites = torch.randint(40, (2, 50), generator=made)
    data["paper", "cites", "paper"].edge_index = torch.cat([cites, cites.flip(0)], dim=1)
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "written by", "author"].edge_index = writes.flip(0)
    for edge_type in data.edge_types:
        count = data[edge_type].edge_index.shape[1]
        data[edge_type].edge_attr = torch.randn(count, 2, generator=made)
    return data
