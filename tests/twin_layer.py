"""The plain Python twin of in-subgraphs: docs/semantics.md, section 4.4. See twin.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import twin


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
    relations: Mapping[twin.EdgeType, tuple[Sequence[int], Sequence[int], Sequence[int] | None]],
    seeds: Mapping[Any, Sequence[Any]],
    edge_types: Sequence[twin.EdgeType],
) -> twin.TypedNeighborhood:
    """Section 4.4 with types: the in-edges of the chosen edge types. `seeds` as for sample_typed_neighbors."""
    fanouts = [dict.fromkeys(edge_types, -1)]
    return twin.sample_typed_neighbors(
        node_types, relations, seeds, fanouts=fanouts, key_of=lambda hop, ordinal: 0, replace=False, frontier="all"
    )
