"""Graphs of the tests that have all that a graph may have, with types and without; and those that Hypothesis draws."""

import itertools
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from pipelines import graph_of
from strategies import ID_DTYPES

import datapipes as dp

WRITES, CITES, KNOWS = ("author", "writes", "paper"), ("paper", "cites", "paper"), ("author", "knows", "author")
AGAIN = ("author", "also writes", "paper")


class Edges(NamedTuple):
    """A heterogeneous graph as lists: {node type: number}, and {edge type: its edges (source, destination)}."""

    num_nodes: dict[str, int]
    edges: dict[tuple[str, str, str], list[tuple[int, int]]]

    def edge_index(self, dtype: torch.dtype = torch.int64) -> dict[tuple[str, str, str], torch.Tensor]:
        return {key: torch.tensor(rows, dtype=dtype).reshape(-1, 2).t() for key, rows in self.edges.items()}


@st.composite
def typed_edges(draw, max_types: int = 4, max_relations: int = 8, max_nodes: int = 6) -> Edges:
    """Up to 4 node types and 8 edge types: several between the same types, from a type to itself, and empty ones."""
    types = draw(st.lists(st.sampled_from(["a", "b", "c:d", "é"]), min_size=1, max_size=max_types, unique=True))
    num_nodes = {kind: draw(st.integers(0, max_nodes)) for kind in types}
    keys = st.tuples(st.sampled_from(types), st.sampled_from(["r", "s", "t.u"]), st.sampled_from(types))
    edges = {}
    for src, rel, dst in draw(st.lists(keys, max_size=max_relations, unique=True)):
        if num_nodes[src] and num_nodes[dst]:
            pairs = st.tuples(st.integers(0, num_nodes[src] - 1), st.integers(0, num_nodes[dst] - 1))
            edges[src, rel, dst] = draw(st.lists(pairs, max_size=8))
        else:
            edges[src, rel, dst] = []
    return Edges(num_nodes, edges)


id_dtypes = st.sampled_from([torch.int32 if dtype().itemsize == 4 else torch.int64 for dtype in ID_DTYPES])


def library(dtype: torch.dtype = torch.int64, **arguments) -> dp.HeteroCSCGraph:
    """Authors, papers and a venue without edges: two relations between the same types, two from a type to itself."""

    def of(indptr: list[int], indices: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(indptr), torch.tensor(indices, dtype=dtype)

    relations = {
        WRITES: of([0, 2, 2, 3, 5], [0, 1, 2, 2, 0]),
        CITES: of([0, 0, 1, 3, 3], [0, 1, 0]),
        KNOWS: of([0, 1, 1, 1], [2]),
        AGAIN: of([0, 0, 0, 0, 0], []),
    }
    return dp.HeteroCSCGraph(relations, {"paper": 4, "author": 3, "venue": 1}, **arguments)


def full_library(dtype: torch.dtype = torch.int64) -> dp.HeteroCSCGraph:
    """The same with edge ids and attributes of odd names, dtypes and widths."""
    return library(
        dtype,
        edge_ids={WRITES: torch.tensor([4, 0, 1, 2, 3]), "paper:cites:paper": torch.tensor([9, 8, 7])},
        node_attributes={
            "paper": odd_attributes(4, 0)["node_attributes"],
            "venue": {"x": torch.tensor([[1.5]])},
        },
        edge_attributes={WRITES: {"w": torch.arange(5).half()}, AGAIN: {"w": torch.zeros(0, 3)}},
    )


def odd_attributes(num_nodes: int, num_edges: int) -> dict[str, dict[str, torch.Tensor]]:
    """Attributes of a graph without types: odd names, odd dtypes and zero-width rows."""
    return {
        "node_attributes": {
            "x/y ../z.npy": torch.arange(num_nodes * 2.0).reshape(num_nodes, 2).bfloat16(),
            "mask": torch.arange(num_nodes) % 2 == 0,
            "": torch.zeros(num_nodes, 0),
            "größe": torch.ones(num_nodes, dtype=torch.complex64),
        },
        "edge_attributes": {"w": torch.arange(num_edges).half(), "mask": torch.ones(num_edges).bool()},
    }


COLUMNS = [[1, 2, 2], [], [0, 2]]  # with parallel edges, a self-loop and a node without in-edges


def full_graph() -> dp.CSCGraph:
    """A graph without types, with edge ids and attributes of odd names, dtypes and widths."""
    return graph_of(COLUMNS, edge_ids=torch.tensor([4, 0, 1, 2, 3]), **odd_attributes(3, 5))


def many_relations(count: int, num_edges: int, num_nodes: int = 500) -> dp.HeteroCSCGraph:
    """A graph of `count` relations between two node types, with edge ids and an attribute each."""
    made = torch.Generator().manual_seed(1)
    edges = {
        ("a", f"r{number}", "b"): torch.randint(num_nodes, (2, num_edges), generator=made) for number in range(count)
    }
    weights = {key: {"w": torch.arange(num_edges)} for key in edges}
    return dp.HeteroCSCGraph.from_edge_index(edges, {"a": num_nodes, "b": num_nodes}, edge_attributes=weights)


def in_edges(graph: dp.CSCGraph | dp.HeteroCSCGraph, edge_type: object = None) -> list[list[int]]:
    """The sources of each node's in-edges."""
    relation = graph.relation(edge_type)
    return [relation.indices[a:b].tolist() for a, b in itertools.pairwise(relation.indptr.tolist())]


def tensors_of(graph: dp.CSCGraph | dp.HeteroCSCGraph) -> dict[tuple, torch.Tensor]:
    """All tensors of a graph, by where they belong."""
    attributes = graph.node_attributes if graph.is_heterogeneous else {None: graph.node_attributes}
    found = {("node", kind, name): rows for kind, each in attributes.items() for name, rows in each.items()}
    for key in graph.edge_types:
        relation = graph.relation(key)
        found["indptr", key], found["indices", key] = relation.indptr, relation.indices
        if relation.edge_ids is not None:
            found["edge_ids", key] = relation.edge_ids
        found.update({("edge", key, name): rows for name, rows in relation.edge_attributes.items()})
    return found


def expect_equal(found: dp.CSCGraph | dp.HeteroCSCGraph, expected: dp.CSCGraph | dp.HeteroCSCGraph) -> None:
    assert (found.node_types, found.edge_types) == (expected.node_types, expected.edge_types)
    assert (found.num_nodes, found.num_edges) == (expected.num_nodes, expected.num_edges)
    ours, theirs = tensors_of(found), tensors_of(expected)
    assert list(ours) == list(theirs)
    for place, rows in theirs.items():
        assert (place, ours[place].dtype, ours[place].shape) == (place, rows.dtype, rows.shape)
        assert torch.equal(ours[place], rows), place
    assert found.digest() == expected.digest()
