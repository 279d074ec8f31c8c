"""What PyG samples of small heterogeneous graphs where every in-edge is kept: recorded, and explained.

Recorded from `torch_sparse::hetero_neighbor_sample` of torch-sparse 0.6.18 (`directed=True`, no replacement), one of
the two samplers that torch_geometric's NeighborLoader runs; it was built from its sources. The tests need neither. The
counts of a hop are the differences between calls of h and of h + 1 hops. What it does:

* Nodes are numbered for each type: first the seeds, a row for each, then new nodes by first appearance.
* A hop goes over the edge types in sorted order. Along (src, rel, dst) it takes the nodes of dst that the hop before
  found (hop 0: the seeds), in order, and of each all in-edges in order. What one edge type finds in a hop, the others
  number too, but expand in the next hop only.
* A seed that repeats is expanded once for each of its rows; its edges as a source start at its first row.

By hand, "one_hop": paper 0 has in-edges from authors 0 and 1, from papers 1, 2 and 0, from venue 0. Authors and the
venue are new; of the papers 0 is the seed, so 1 and 2 are new. No author is a seed, so "by" has no edge in hop 0.
"three_hops...": hop 1 expands authors 0, 1 (papers 0; 0, 2: all known) and papers 1, 2 (author 1, known; paper 2 twice,
by two parallel edges). It finds nothing, so hop 2 has no node to expand.
"""

from typing import NamedTuple

from hetero_graphs import Edges

import datapipes as dp

EdgeType = tuple[str, str, str]


class Case(NamedTuple):
    """Seeds, and what is sampled for them.

    `fanouts` has an entry a hop, the one next to the seeds first; edge types that are not in it are not drawn from.
    `nodes` are ids in the order of their rows. `edges` are (source id, destination id, edge id) in order, all hops.
    """

    name: str
    graph: Edges
    seeds: dict[str, list[int]]
    fanouts: dict[EdgeType, list[int]]
    nodes: dict[str, list[int]]
    edges: dict[EdgeType, list[tuple[int, int, int]]]
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]

    @property
    def keeps_all(self) -> bool:
        """Whether each hop keeps all in-edges of each type that is drawn from."""
        return all(set(fanouts) == {-1} for fanouts in self.fanouts.values())

    def stage_fanouts(self) -> list[dict[EdgeType, int]]:
        """`fanouts` as stages take them: the hop next to the seeds last."""
        num_hops = len(next(iter(self.fanouts.values())))
        return [{kind: of_type[hop] for kind, of_type in self.fanouts.items()} for hop in reversed(range(num_hops))]


def hetero_graph(edges: Edges) -> dp.HeteroCSCGraph:
    """The graph, with the place of each edge as its id."""
    return dp.HeteroCSCGraph.from_edge_index(edges.edge_index(), edges.num_nodes)


WRITES = ("author", "writes", "paper")
BY = ("paper", "by", "author")
CITES = ("paper", "cites", "paper")
OF = ("venue", "of", "paper")
ONE = ("a", "one", "b")
TWO = ("a", "two", "b")
BACK = ("b", "back", "a")
LOOP = ("b", "loop", "b")

# Nodes without edges and types without any; a loop, parallel edges; nothing points to venues.
LIBRARY = Edges(
    num_nodes={"author": 4, "paper": 6, "venue": 2, "topic": 3},
    edges={
        WRITES: [(0, 0), (1, 0), (1, 2), (2, 3), (3, 5)],
        BY: [(0, 0), (0, 1), (2, 1), (3, 2), (5, 3)],
        CITES: [(1, 0), (2, 0), (2, 1), (0, 0), (2, 1)],
        OF: [(0, 0), (1, 3)],
    },
)
# Two relations between the same types, and back.
LETTERS = Edges(
    num_nodes={"a": 5, "b": 5},
    edges={
        ONE: [(0, 0), (1, 0), (2, 1)],
        TWO: [(1, 0), (3, 0), (4, 2)],
        BACK: [(1, 0), (2, 1), (0, 3)],
        LOOP: [(0, 0), (1, 0), (3, 1), (4, 3)],
    },
)

CASES = [
    Case(
        name="one_hop",
        graph=LIBRARY,
        seeds={"paper": [0]},
        fanouts={WRITES: [-1], BY: [-1], CITES: [-1], OF: [-1]},
        nodes={"author": [0, 1], "paper": [0, 1, 2], "topic": [], "venue": [0]},
        edges={WRITES: [(0, 0, 0), (1, 0, 1)], BY: [], CITES: [(1, 0, 0), (2, 0, 1), (0, 0, 3)], OF: [(0, 0, 0)]},
        num_sampled_nodes={"author": [0, 2], "paper": [1, 2], "topic": [0, 0], "venue": [0, 1]},
        num_sampled_edges={WRITES: [2], BY: [0], CITES: [3], OF: [1]},
    ),
    Case(
        name="three_hops_of_which_the_last_finds_nothing",
        graph=LIBRARY,
        seeds={"paper": [0]},
        fanouts={WRITES: [-1, -1, -1], BY: [-1, -1, -1], CITES: [-1, -1, -1], OF: [-1, -1, -1]},
        nodes={"author": [0, 1], "paper": [0, 1, 2], "topic": [], "venue": [0]},
        edges={
            WRITES: [(0, 0, 0), (1, 0, 1), (1, 2, 2)],
            BY: [(0, 0, 0), (0, 1, 1), (2, 1, 2)],
            CITES: [(1, 0, 0), (2, 0, 1), (0, 0, 3), (2, 1, 2), (2, 1, 4)],
            OF: [(0, 0, 0)],
        },
        num_sampled_nodes={"author": [0, 2, 0, 0], "paper": [1, 2, 0, 0], "topic": [0, 0, 0, 0], "venue": [0, 1, 0, 0]},
        num_sampled_edges={WRITES: [2, 1, 0], BY: [0, 3, 0], CITES: [3, 2, 0], OF: [1, 0, 0]},
    ),
    Case(
        name="seeds_of_two_types",
        graph=LIBRARY,
        seeds={"author": [2], "paper": [1]},
        fanouts={WRITES: [-1, -1], BY: [-1, -1], CITES: [-1, -1], OF: [-1, -1]},
        nodes={"author": [2, 1], "paper": [1, 3, 2], "topic": [], "venue": [1]},
        edges={WRITES: [(2, 3, 3), (1, 2, 2)], BY: [(3, 2, 3)], CITES: [(2, 1, 2), (2, 1, 4)], OF: [(1, 3, 1)]},
        num_sampled_nodes={"author": [1, 0, 1], "paper": [1, 2, 0], "topic": [0, 0, 0], "venue": [0, 0, 1]},
        num_sampled_edges={WRITES: [0, 2], BY: [1, 0], CITES: [2, 0], OF: [0, 1]},
    ),
    Case(
        name="seeds_that_nothing_points_to",
        graph=LIBRARY,
        seeds={"venue": [1]},
        fanouts={WRITES: [-1, -1], BY: [-1, -1], CITES: [-1, -1], OF: [-1, -1]},
        nodes={"author": [], "paper": [], "topic": [], "venue": [1]},
        edges={WRITES: [], BY: [], CITES: [], OF: []},
        num_sampled_nodes={"author": [0, 0, 0], "paper": [0, 0, 0], "topic": [0, 0, 0], "venue": [1, 0, 0]},
        num_sampled_edges={WRITES: [0, 0], BY: [0, 0], CITES: [0, 0], OF: [0, 0]},
    ),
    Case(
        name="seeds_that_repeat",
        graph=LIBRARY,
        seeds={"paper": [2, 0, 2], "venue": [1, 1]},
        fanouts={WRITES: [-1, -1], BY: [-1, -1], CITES: [-1, -1], OF: [-1, -1]},
        nodes={"author": [1, 0], "paper": [2, 0, 2, 1], "topic": [], "venue": [1, 1, 0]},
        edges={
            WRITES: [(1, 2, 2), (0, 0, 0), (1, 0, 1), (1, 2, 2)],
            BY: [(0, 1, 1), (2, 1, 2), (0, 0, 0)],
            CITES: [(1, 0, 0), (2, 0, 1), (0, 0, 3), (2, 1, 2), (2, 1, 4)],
            OF: [(0, 0, 0)],
        },
        num_sampled_nodes={"author": [0, 2, 0], "paper": [3, 1, 0], "topic": [0, 0, 0], "venue": [2, 1, 0]},
        num_sampled_edges={WRITES: [4, 0], BY: [0, 3], CITES: [3, 2], OF: [1, 0]},
    ),
    Case(
        name="a_relation_in_one_hop_only",
        graph=LIBRARY,
        seeds={"paper": [0, 3]},
        fanouts={WRITES: [-1, -1], BY: [-1, -1], CITES: [0, -1]},
        nodes={"author": [0, 1, 2], "paper": [0, 3, 2], "topic": [], "venue": []},
        edges={WRITES: [(0, 0, 0), (1, 0, 1), (2, 3, 3)], BY: [(0, 0, 0), (0, 1, 1), (2, 1, 2), (3, 2, 3)], CITES: []},
        num_sampled_nodes={"author": [0, 3, 0], "paper": [2, 0, 1], "topic": [0, 0, 0], "venue": [0, 0, 0]},
        num_sampled_edges={WRITES: [3, 0], BY: [0, 4], CITES: [0, 0]},
    ),
    Case(
        name="two_relations_between_two_types",
        graph=LETTERS,
        seeds={"b": [0]},
        fanouts={ONE: [-1, -1], TWO: [-1, -1], BACK: [-1, -1], LOOP: [-1, -1]},
        nodes={"a": [0, 1, 3, 2], "b": [0, 1, 2, 3]},
        edges={
            ONE: [(0, 0, 0), (1, 0, 1), (2, 1, 2)],
            TWO: [(1, 0, 0), (3, 0, 1)],
            BACK: [(1, 0, 0), (2, 1, 1), (0, 3, 2)],
            LOOP: [(0, 0, 0), (1, 0, 1), (3, 1, 2)],
        },
        num_sampled_nodes={"a": [0, 3, 1], "b": [1, 1, 2]},
        num_sampled_edges={ONE: [2, 1], TWO: [2, 0], BACK: [0, 3], LOOP: [2, 1]},
    ),
    Case(
        name="new_nodes_of_two_types_in_each_hop",
        graph=LETTERS,
        seeds={"a": [0, 3], "b": [0]},
        fanouts={ONE: [-1, -1, -1], TWO: [-1, -1, -1], BACK: [-1, -1, -1], LOOP: [-1, -1, -1]},
        nodes={"a": [0, 3, 1, 2, 4], "b": [0, 1, 2, 3, 4]},
        edges={
            ONE: [(0, 0, 0), (1, 0, 1), (2, 1, 2)],
            TWO: [(1, 0, 0), (3, 0, 1), (4, 2, 2)],
            BACK: [(1, 0, 0), (0, 3, 2), (2, 1, 1)],
            LOOP: [(0, 0, 0), (1, 0, 1), (3, 1, 2), (4, 3, 3)],
        },
        num_sampled_nodes={"a": [2, 1, 1, 1], "b": [1, 1, 2, 1]},
        num_sampled_edges={ONE: [2, 1, 0], TWO: [2, 0, 1], BACK: [2, 1, 0], LOOP: [2, 1, 1]},
    ),
]
