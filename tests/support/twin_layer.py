"""The plain Python twin of LABOR and of in-subgraphs: docs/semantics.md, sections 3.2 and 4.4. See twin.py.

A graph without types is to LABOR one with the one node type "" and the one edge type ("", "", "").
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import twin

PLAIN = ("", "", "")  # the edge type of a graph without types
Relations = Mapping[twin.EdgeType, tuple[Sequence[int], Sequence[int], Sequence[int] | None]]


class Layers(NamedTuple):
    """What the number of a source depends on besides its id; `hop` and `node_type` come with each draw."""

    seed: int
    epoch: int
    batch: int
    stage: int
    layer_dependency: bool = False
    batch_dependency: int = 1

    def number(self, t: int, hop: int, node_type: int) -> int:
        """Section 3.2."""
        if self.layer_dependency:
            hop = 0
        key = twin.hop_key(self.seed, self.epoch, 0, self.stage, hop, node_type)
        offset = twin.Stream(key, t, 1).bounded(self.batch_dependency)
        generation = (self.batch + offset) // self.batch_dependency
        key = twin.hop_key(self.seed, self.epoch, generation, self.stage, hop, node_type)
        return twin.Stream(key, t, 0).word()


def smallest(numbers: Sequence[int], fanout: int) -> list[int]:
    """Return the offsets of the picks among in-edges whose sources have these numbers."""
    if fanout == -1:
        return list(range(len(numbers)))
    picks: list[int] = []
    while len(picks) < min(fanout, len(numbers)):
        left = [offset for offset in range(len(numbers)) if offset not in picks]
        picks.append(min(left, key=lambda offset: numbers[offset]))  # the first of equal ones
    return sorted(picks)


def exponential(number: int) -> float:
    """Section 3.2: -log(1 - u) of a number, by the series of the inverse hyperbolic tangent."""
    rest = 2 * (twin.WORD - number) - 1
    halvings = 0
    while rest < 2 ** (32 - halvings):
        halvings += 1
    m = rest / 2.0 ** (33 - halvings)
    s = (1.0 - m) / (1.0 + m)
    series = 0.0
    for power in reversed(range(16)):
        series = series * (s * s) + 1.0 / (2 * power + 1)
    return halvings * 0.6931471805599453 + 2.0 * s * series


def smallest_keys(numbers: Sequence[int], weights: Sequence[Any], fanout: int) -> list[int]:
    """Return the offsets of the picks by weight, as `smallest` does without."""
    sums = twin.sums_of(weights)
    drawable = [offset for offset in range(len(sums)) if twin.grows(sums, offset)]
    keys = {}
    for offset in drawable:
        gain = sums[offset] - (sums[offset - 1] if offset > 0 else 0.0)
        keys[offset] = exponential(numbers[offset]) / gain
    picks: list[int] = []
    while len(picks) < (len(drawable) if fanout == -1 else min(fanout, len(drawable))):
        picks.append(min((offset for offset in drawable if offset not in picks), key=keys.__getitem__))
    return sorted(picks)


def sample_layer_neighbors(
    node_types: Sequence[str],
    relations: Relations,
    seeds: Mapping[Any, Sequence[Any]],
    *,
    fanouts: Sequence[Mapping[twin.EdgeType, int]],
    layers: Layers,
    frontier: str = "all",
    weights: Mapping[twin.EdgeType, Sequence[Any]] | None = None,
) -> twin.TypedNeighborhood:
    """Section 3.2 in the hops of section 4.1. The other arguments are as for twin.sample_typed_neighbors."""
    numbers: dict[tuple[int, int, int], int] = {}

    def number(t: int, hop: int, node_type: int) -> int:
        if (t, hop, node_type) not in numbers:
            numbers[t, hop, node_type] = layers.number(t, hop, node_type)
        return numbers[t, hop, node_type]

    def draw(hop: int, edge_type: twin.EdgeType, v: int, fanout: int) -> list[int]:
        indptr, indices, _ = relations[edge_type]
        begin, end = int(indptr[v]), int(indptr[v + 1])
        of_type = sorted(node_types).index(edge_type[0])
        of_sources = [number(int(u), hop, of_type) for u in indices[begin:end]]
        if weights is None:
            picks = smallest(of_sources, fanout)
        else:
            picks = smallest_keys(of_sources, weights[edge_type][begin:end], fanout)
        return [begin + offset for offset in picks]

    return twin.typed_hops(node_types, relations, seeds, fanouts=fanouts, frontier=frontier, draw=draw)


def sample_in_subgraph(
    indptr: Sequence[int], indices: Sequence[int], edge_ids: Sequence[int] | None, seeds: Sequence[int]
) -> twin.Neighborhood:
    """Section 4.4: all in-edges of the seeds."""
    distinct, compacted_seeds = twin.compact(seeds)
    offsets, positions = [0], []
    for v in distinct:
        positions += range(int(indptr[v]), int(indptr[v + 1]))
        offsets.append(len(positions))
    nodes, local = twin.compact([*distinct, *(int(indices[position]) for position in positions)])
    ids = positions if edge_ids is None else [int(edge_ids[position]) for position in positions]
    return twin.Neighborhood(nodes, compacted_seeds, [twin.Hop(offsets, local[len(distinct) :], ids, len(nodes))])


def sample_typed_in_subgraph(
    node_types: Sequence[str],
    relations: Relations,
    seeds: Mapping[Any, Sequence[Any]],
    edge_types: Sequence[twin.EdgeType],
) -> twin.TypedNeighborhood:
    """Section 4.4 with types: the in-edges of the chosen edge types. `seeds` as for sample_typed_neighbors."""
    fanouts = [dict.fromkeys(edge_types, -1)]
    return twin.sample_typed_neighbors(
        node_types, relations, seeds, fanouts=fanouts, key_of=lambda hop, ordinal: 0, replace=False, frontier="all"
    )
