"""Partitions of the tests: graphs with everything, any assignment to parts, and the slow equivalents."""

from collections import Counter

import torch
from hetero_graphs import typed_edges
from hypothesis import strategies as st
from strategies import csc_graphs

import datapipes as dp
from datapipes.base.types import ends_of
from datapipes.distributed import PartitionBook
from datapipes.graph.graph import Graph
from datapipes.partition.id_maps import RangeMap
from datapipes.partition.source import Source

TIME = "time"


def source_of(graph: dp.CSCGraph | dp.HeteroCSCGraph) -> Source:
    """A Source without training nodes, its types in the graph's order."""
    return Source(graph, {}, graph.node_types, graph.edge_types)


def attributes_of(count: int, rng_seed: int) -> dict[str, torch.Tensor]:
    """Attributes of several dtypes and widths for `count` rows."""
    made = torch.Generator().manual_seed(rng_seed)
    wide = torch.randn(count, 6, generator=made)
    return {
        "x": wide[:, :3].bfloat16(),
        "x/y ../größe": torch.complex(wide[:, 1], wide[:, 0]),
        "mask": wide[:, 0] > 0,
        "": torch.zeros(count, 0),
        "across": wide.t().contiguous().t().double(),  # the values of a row are not adjacent
        TIME: torch.randint(100, (count,), generator=made),
    }


@st.composite
def graphs(draw) -> Graph:
    """Any graph with or without types, int32 or int64: self-loops, parallel edges, empty types, edge ids of its own."""
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    own_ids, rng_seed = draw(st.booleans()), draw(st.integers(0, 1000))
    if draw(st.booleans()):
        indptr, indices = draw(csc_graphs())
        count = len(indices)
        return dp.CSCGraph(
            indptr,
            indices,
            node_attributes=attributes_of(len(indptr) - 1, rng_seed),
            edge_attributes=attributes_of(count, rng_seed + 1),
            edge_ids=torch.randperm(count, generator=torch.Generator().manual_seed(rng_seed)) if own_ids else None,
        )
    edges = draw(typed_edges())
    made = dp.HeteroCSCGraph.from_edge_index(edges.edge_index(dtype), edges.num_nodes)
    relations = {key: made.relation(key) for key in made.edge_types}
    return dp.HeteroCSCGraph(
        {key: (each.indptr, each.indices) for key, each in relations.items()},
        made.num_nodes,
        node_attributes={kind: attributes_of(count, rng_seed) for kind, count in made.num_nodes.items()},
        edge_attributes={key: attributes_of(each.num_edges, rng_seed + 1) for key, each in relations.items()},
        edge_ids={key: each.edge_ids for key, each in relations.items()} if own_ids else None,
    )


@st.composite
def books(draw, graph: Graph, most_parts: int = 8) -> PartitionBook:
    """Any assignment to 1 to 8 parts, dense or by ranges, some of them empty."""
    num_parts = draw(st.integers(1, most_parts))
    nodes = {}
    for node_type in graph.node_types:
        count = graph.num_nodes_of(node_type)
        if draw(st.booleans()):
            nodes[node_type] = torch.tensor(
                draw(st.lists(st.integers(0, num_parts - 1), min_size=count, max_size=count)), dtype=torch.int64
            )
        else:
            cuts = draw(st.lists(st.integers(0, count), min_size=num_parts - 1, max_size=num_parts - 1))
            nodes[node_type] = RangeMap(torch.tensor([0, *sorted(cuts), count]))
    return PartitionBook(num_parts, nodes)


def parts_of(book: PartitionBook, node_type: str | None) -> list[int]:
    """The part of each node, one by one."""
    found = book.nodes(node_type)
    return [int(found.part_of(torch.tensor([node]))) for node in range(found.num_ids)]


def slow_positions(graph: Graph, book: PartitionBook, edge_type, part: int) -> list[int]:
    """The positions of a part's edges in the whole relation: node by node, edge by edge."""
    indptr = graph.relation(edge_type).indptr.tolist()
    owner = parts_of(book, ends_of(edge_type)[1])
    return [place for node, own in enumerate(owner) if own == part for place in range(indptr[node], indptr[node + 1])]


def slow_remote(graph: Graph, book: PartitionBook, part: int) -> dict:
    """{source type: [(node of another part, edges of the part that come from it)]}, the most frequent first."""
    counts = {ends_of(edge_type)[0]: Counter() for edge_type in graph.edge_types}
    for edge_type in graph.edge_types:
        src = ends_of(edge_type)[0]
        owner, indices = parts_of(book, src), graph.relation(edge_type).indices.tolist()
        for place in slow_positions(graph, book, edge_type, part):
            if owner[indices[place]] != part:
                counts[src][indices[place]] += 1
    return {src: sorted(found.items(), key=lambda each: (-each[1], each[0])) for src, found in counts.items()}
