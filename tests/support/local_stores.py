"""Partitions in both layouts for the tests of the local stores."""

import torch
from hetero_graphs import full_library
from pyg_layout import quiet, source_of, written

import datapipes as dp
from datapipes.distributed import PartitionBook
from datapipes.partition.book import with_edge_map
from datapipes.partition.native.native_write import write_native

LAYOUTS = ["native", "pyg"]


def partitioned(root, graph, book, layouts=LAYOUTS, *, edge_map=True):
    """Write the partition of a graph in some layouts; return the folder."""
    book = with_edge_map(book, graph) if edge_map else book
    if "native" in layouts:
        write_native(root, source_of(graph), book, node_time_attr=None, about={}, progress=quiet)
    if "pyg" in layouts:
        written(root, source_of(graph), book)
    return root


def plain_graph() -> dp.CSCGraph:
    """Twelve nodes and 60 edges, whose ids are not their positions; features of several widths and dtypes."""
    made = torch.Generator().manual_seed(2)
    edges = torch.randint(12, (2, 60), generator=made)
    return dp.CSCGraph.from_edge_index(
        edges,
        num_nodes=12,
        node_attributes={"x": torch.rand(12, 3, generator=made), "y": torch.arange(12), "cube": torch.rand(12, 2, 2)},
        edge_attributes={"edge_attr": torch.rand(60, 2, generator=made).bfloat16(), "w": torch.rand(60)},
    )


def typed_graph() -> dp.HeteroCSCGraph:
    """Nodes and edges of several types, one of them without nodes in one of the parts."""
    graph = full_library()
    x = {node_type: torch.rand(count, 2) for node_type, count in graph.num_nodes.items()}
    relations = {key: graph.relation(key) for key in graph.edge_types}
    return dp.HeteroCSCGraph(
        {key: (each.indptr, each.indices) for key, each in relations.items()},
        graph.num_nodes,
        node_attributes={key: {"x": values} for key, values in x.items()},
        edge_attributes={key: {"edge_attr": torch.rand(each.num_edges, 2)} for key, each in relations.items()},
        edge_ids={key: torch.arange(each.num_edges).flip(0) for key, each in relations.items()},
    )


def book_of(graph, num_parts: int = 2) -> PartitionBook:
    """Nodes to parts by turns."""
    maps = {each: torch.arange(graph.num_nodes_of(each)) % num_parts for each in graph.node_types}
    return PartitionBook(num_parts, maps)
