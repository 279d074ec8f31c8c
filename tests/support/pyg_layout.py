"""Partitions in PyG's layout for the tests: small graphs, and their folders."""

import torch

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.pyg.pyg_write import write_pyg
from datapipes.partition.source import Source


def source_of(graph):
    """A Source without training nodes, its types in the graph's order."""
    return Source(graph, {}, graph.node_types, graph.edge_types)


def quiet(*_):
    """A Progress that is not looked at."""


def written(folder, source, book, node_time_attr=None):
    write_pyg(folder, source, book, node_time_attr=node_time_attr, progress=quiet)
    return folder


def without_times(attributes):
    """The attributes under a name that PyG does not take as times."""
    return {name + "!" if name == "time" else name: values for name, values in attributes.items()}


def renamed(graph):
    """The graph without attributes that PyG takes as times."""
    if not graph.is_heterogeneous:
        return dp.CSCGraph(
            graph.indptr,
            graph.indices,
            node_attributes=without_times(graph.node_attributes),
            edge_attributes=without_times(graph.edge_attributes),
            edge_ids=graph.edge_ids,
        )
    relations = {key: graph.relation(key) for key in graph.edge_types}
    ids = {key: each.edge_ids for key, each in relations.items() if each.edge_ids is not None}
    return dp.HeteroCSCGraph(
        {key: (each.indptr, each.indices) for key, each in relations.items()},
        graph.num_nodes,
        node_attributes={key: without_times(each) for key, each in graph.node_attributes.items()},
        edge_attributes={key: without_times(each.edge_attributes) for key, each in relations.items()},
        edge_ids=ids,
    )


def same(a, b):
    """Whether two tensors have the same dtype, shape and values."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    is_narrow = a.is_floating_point() and a.itemsize == 1  # torch 2.4 compares none of these
    return torch.equal(a.float(), b.float()) if is_narrow else torch.equal(a, b)


def small(**attributes):
    """Six nodes; node v has the in-edges of v - 1, v - 2, ... in descending order, each twice."""
    columns = [[u for u in range(v - 1, -1, -1) for _ in range(2)] for v in range(6)]
    indptr = torch.tensor([0, *(len(each) for each in columns)]).cumsum(0)
    indices = torch.tensor([u for each in columns for u in each])
    return dp.CSCGraph(indptr, indices, **attributes)


BOOK = PartitionBook(2, torch.tensor([0, 1, 0, 0, 1, 1]))


def typed(*edge_types, **attributes):
    names = {name for each in edge_types for name in (each[0], each[2])}
    edges = {each: torch.tensor([[0, 1], [1, 0]]) for each in edge_types}
    return dp.HeteroCSCGraph.from_edge_index(edges, dict.fromkeys(names, 2), **attributes)
