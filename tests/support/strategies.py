"""Hypothesis strategies of the kernel tests: graphs, seeds, fanouts, keys and hubs; and one statistical check.

The sampler keeps the picks of a node in one of three forms, by degree (up to 64, or more) and by the number of picks
(up to 512, or more). Drawn graphs reach the first two forms; `star` makes hubs that reach the third.
"""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

ID_DTYPES = (np.int32, np.int64)

rng_seeds = st.integers(0, 2**64 - 1)
fanouts = st.one_of(st.integers(-1, 8), st.sampled_from([31, 32, 33, 64, 65, 99, 100, 150, 199, 200, 300]))


class Graph(NamedTuple):
    """A CSC graph: indptr int64[num_nodes + 1], indices int32 or int64 [num_edges]."""

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return len(self.indices)


def int64s(values=()) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def graph_of(columns: list[list[int]], dtype=np.int64) -> Graph:
    """The graph in which node v has the in-edges `columns[v]`."""
    indptr = np.cumsum([0, *map(len, columns)], dtype=np.int64)
    return Graph(indptr, np.array([u for column in columns for u in column], dtype=dtype))


def star(degree: int, dtype=np.int64) -> Graph:
    """Node 0 has the in-edges 1, 2 .. degree in this order; no other node has any."""
    return graph_of([list(range(1, degree + 1)), *([] for _ in range(degree))], dtype)


def random_graph(num_nodes: int, num_edges: int, rng_seed: int, dtype=np.int64) -> Graph:
    """A larger graph than Hypothesis would draw; degrees are uneven and some nodes have none."""
    rng = np.random.default_rng(rng_seed)
    destinations = (rng.random(num_edges) ** 2 * num_nodes).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(destinations, minlength=num_nodes))])
    return Graph(indptr.astype(np.int64), rng.integers(0, num_nodes, num_edges).astype(dtype))


@st.composite
def columns_of(draw, num_nodes: int) -> list[int]:
    """The in-edges of one node: often none, sometimes many; repeats and the node itself included."""
    if draw(st.integers(0, 9)) < 9:
        min_size = draw(st.integers(0, 2))
        return draw(st.lists(st.integers(0, num_nodes - 1), min_size=min_size, max_size=6))
    degree, first, step = draw(st.integers(7, 200)), draw(st.integers(0, 50)), draw(st.integers(0, 7))
    return [(first + step * i) % num_nodes for i in range(degree)]


@st.composite
def csc_graphs(draw, min_nodes: int = 0, max_nodes: int = 12, dtypes=ID_DTYPES) -> Graph:
    """A small graph with isolated nodes, self-loops, parallel edges and hubs; the empty graph too."""
    num_nodes = draw(st.integers(min_nodes, max_nodes))
    columns = [draw(columns_of(num_nodes)) for _ in range(num_nodes)]
    return graph_of(columns, draw(st.sampled_from(dtypes)))


@st.composite
def seeds_in(draw, graph: Graph) -> np.ndarray:
    """Seeds in any order, repeats included; none in a graph without nodes."""
    if graph.num_nodes == 0:
        return int64s()
    min_size = draw(st.integers(0, 4))
    return int64s(draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=min_size, max_size=10)))


class TypedGraph(NamedTuple):
    """A graph with types: nodes of each type, and (indptr, indices, edge ids or None) of each edge type."""

    num_nodes: dict[str, int]
    relations: dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray, np.ndarray | None]]


TYPE_NAMES = ("b", "a", "a:b", "ä", "B")


@st.composite
def typed_graphs(draw, min_relations: int = 1, dtypes=ID_DTYPES) -> TypedGraph:
    """Up to 4 node types and 8 relations: several between the same types, of a type with itself, empty types."""
    dtype = draw(st.sampled_from(dtypes))
    names = draw(st.lists(st.sampled_from(TYPE_NAMES), min_size=1, max_size=4, unique=True))
    num_nodes = {name: draw(st.integers(0, 8)) for name in names}
    ends = st.tuples(st.sampled_from(names), st.sampled_from("rstuvwxy"), st.sampled_from(names))
    relations = {}
    for edge_type in draw(st.lists(ends, min_size=min_relations, max_size=8, unique=True)):
        sources = num_nodes[edge_type[0]]
        columns = [draw(columns_of(sources)) if sources else [] for _ in range(num_nodes[edge_type[2]])]
        indptr, indices = graph_of(columns, dtype)
        own_ids = np.random.default_rng(len(indices)).permutation(len(indices)) if draw(st.booleans()) else None
        relations[edge_type] = (indptr, indices, own_ids)
    return TypedGraph(num_nodes, relations)


@st.composite
def typed_seeds(draw, graph: TypedGraph) -> dict:
    """Seeds of some node types, or pairs of some edge types; repeats and types without seeds included."""

    def ids(node_type):
        return st.integers(0, graph.num_nodes[node_type] - 1)

    if draw(st.booleans()):
        types = draw(st.lists(st.sampled_from(sorted(graph.num_nodes)), unique=True))
        return {of: draw(st.lists(ids(of), max_size=6)) if graph.num_nodes[of] else [] for of in types}
    types = draw(st.lists(st.sampled_from(sorted(graph.relations)), unique=True))
    return {
        of: draw(st.lists(st.tuples(ids(of[0]), ids(of[2])), max_size=4))
        if graph.num_nodes[of[0]] and graph.num_nodes[of[2]]
        else []
        for of in types
    }


@st.composite
def typed_pairs(draw, graph: TypedGraph) -> dict:
    """Pairs of some edge types, at least one of each; nothing where no edge type has nodes at both ends."""
    types = [of for of in sorted(graph.relations) if graph.num_nodes[of[0]] and graph.num_nodes[of[2]]]
    chosen = draw(st.lists(st.sampled_from(types), min_size=1, unique=True)) if types else []
    ends = {of: [st.integers(0, graph.num_nodes[end] - 1) for end in (of[0], of[2])] for of in chosen}
    return {of: draw(st.lists(st.tuples(*ends[of]), min_size=1, max_size=4)) for of in chosen}


def assert_uniform(counts, trials: int, per_trial: int = 1) -> None:
    """Chi-square: each of `trials` trials hit `per_trial` distinct cells of `counts`, all equally likely.

    The statistic must lie within 5 standard deviations of its mean. The keys are fixed, so the verdict is too.
    """
    counts = np.asarray(counts, dtype=np.float64)
    cells = len(counts)
    share = per_trial / cells
    assert counts.sum() == trials * per_trial
    variance = trials * share * (1 - share) * cells / (cells - 1)
    statistic = ((counts - trials * share) ** 2).sum() / variance
    mean, deviation = cells - 1, np.sqrt(2 * (cells - 1))
    assert abs(statistic - mean) < 5 * deviation, f"chi-square {statistic:.1f}, expected about {mean}"
