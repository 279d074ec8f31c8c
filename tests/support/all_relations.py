"""Graphs of the kernels of partitioning: any, with types or without, and the edges in one numbering of all nodes."""

import numpy as np
import torch
from hypothesis import strategies as st
from strategies import Graph, TypedGraph, csc_graphs, typed_graphs

import datapipes as dp

SRC, DST = 0, 2


@st.composite
def graphs(draw, min_nodes: int = 0) -> dp.CSCGraph | dp.HeteroCSCGraph:
    """Any graph with `min_nodes` nodes or more: self-loops, parallel edges, hubs, isolated nodes, empty types."""
    if draw(st.booleans()):
        return plain(draw(csc_graphs(min_nodes)))
    return typed(draw(typed_graphs(0).filter(lambda graph: sum(graph.num_nodes.values()) >= min_nodes)))


def plain(graph: Graph) -> dp.CSCGraph:
    return dp.CSCGraph(graph.indptr, graph.indices)


def typed(graph: TypedGraph) -> dp.HeteroCSCGraph:
    return dp.HeteroCSCGraph({key: rows[:2] for key, rows in graph.relations.items()}, graph.num_nodes)


def in_edges_of(graph: dp.CSCGraph | dp.HeteroCSCGraph) -> list[list[int]]:
    """The sources of the in-edges of each node; types lie one after another in sorted order."""
    first, total = {}, 0
    for node_type in graph.node_types:
        first[node_type] = total
        total += graph.num_nodes_of(node_type)
    found: list[list[int]] = [[] for _ in range(total)]
    for edge_type in graph.edge_types:
        src, dst = (None, None) if edge_type is None else (edge_type[SRC], edge_type[DST])
        rows = graph.relation(edge_type)
        indptr, indices = rows.indptr.tolist(), rows.indices.tolist()
        for v in range(graph.num_nodes_of(dst)):
            found[first[dst] + v] += [first[src] + u for u in indices[indptr[v] : indptr[v + 1]]]
    return found


@st.composite
def training_of(draw, graph: dp.CSCGraph | dp.HeteroCSCGraph) -> tuple[list[np.ndarray | None], list[bool]]:
    """Any masks of training nodes, as the kernels take them; and whether each node is one, in the one numbering."""
    masks, trained = [], []
    for node_type in graph.node_types:
        count = graph.num_nodes_of(node_type)
        chosen = draw(st.lists(st.booleans(), min_size=count, max_size=count)) if draw(st.booleans()) else None
        masks.append(None if chosen is None else np.array(chosen, np.uint8))
        trained += chosen or [False] * count
    return masks, trained


def undirected_random(num_nodes: int, num_edges: int, rng_seed: int) -> dp.CSCGraph:
    """A larger random graph that has each edge in both directions."""
    made = torch.Generator().manual_seed(rng_seed)
    ends = torch.randint(num_nodes, (2, num_edges), generator=made)
    return dp.CSCGraph.from_edge_index(torch.cat((ends, ends.flip(0)), dim=1), num_nodes)


def corrupt(indptr: list[int], indices: list[int]) -> dp.CSCGraph:
    """A graph with wrong entries in the middle, which the constructor does not look at."""
    return dp.CSCGraph(torch.tensor(indptr), torch.tensor(indices))


CORRUPT = [
    corrupt([0, 1, 2, 3], [1, 3, 0]),  # a source above the nodes
    corrupt([0, 1, 2, 3], [1, -1, 0]),  # a negative source
    corrupt([0, 3, 1, 3], [1, 0, 0]),  # an offset that falls
    corrupt([0, 9, 1, 3], [1, 0, 0]),  # an offset above the edges
    corrupt([0, -4, 1, 3], [1, 0, 0]),  # a negative offset
]


def corrupt_relation() -> dp.HeteroCSCGraph:
    """The second source of a:r:b is no node; b:s:b has no edges."""
    indptr, nothing = torch.tensor([0, 1, 2]), torch.zeros(0, dtype=torch.int64)
    relations = {("a", "r", "b"): (indptr, torch.tensor([0, 2])), ("b", "s", "b"): (torch.zeros(3).long(), nothing)}
    return dp.HeteroCSCGraph(relations, {"a": 2, "b": 2})
