"""The plain Python twin of trees and times: slow, obvious, written from docs/semantics.md, sections 3.3, 4.5 and 4.6.

A graph without types is given as one with the one node type "" and the one edge type ("", "", "").
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from twin import EdgeType, Hop, Stream, choose, choose_weighted

PLAIN = ("", "", "")  # the edge type of a graph without types


class Relation(NamedTuple):
    """The in-edges of one edge type; `times` has for each in-edge the times that it has: none, one or two.

    `weights` has one of each, where in-edges are drawn by weights.
    """

    indptr: Sequence[int]
    indices: Sequence[int]
    edge_ids: Sequence[int] | None = None
    times: Sequence[Sequence[int]] | None = None
    weights: Sequence[Any] | None = None


class Rule(NamedTuple):
    """Which in-edges are drawn; without `temporal` all are eligible."""

    replace: bool = False
    temporal: bool = False
    strategy: str = "uniform"
    inclusive: bool = False
    window: int | None = None  # of seeds without one of their own


class Trees(NamedTuple):
    """What is sampled: `groups` has for each local id the tree, or (time, window) where there are no trees."""

    nodes: dict[str, list[int]]
    groups: dict[str, list[Any]]
    batch: dict[str, list[int]] | None
    compacted_seeds: dict[Any, list[list[int]]]
    hops: list[dict[EdgeType, Hop]]


def is_eligible(times: Sequence[int], t: int, rule: Rule) -> bool:
    """Section 4.6."""
    if not times:
        return True
    latest, earliest = max(times), min(times)
    if latest > t or (latest == t and not rule.inclusive):
        return False
    return rule.window is None or earliest >= max(t - rule.window, -(2**63))


def picks_of(relation: Relation, v: int, fanout: int, key: int, stream: int, t: int | None, rule: Rule) -> list[int]:
    """Section 3.3: the positions that are drawn among the in-edges of v."""
    begin, end = int(relation.indptr[v]), int(relation.indptr[v + 1])
    eligible = list(range(begin, end))
    if rule.temporal:
        assert t is not None
        eligible = [p for p in eligible if relation.times is None or is_eligible(relation.times[p], t, rule)]
    if relation.weights is not None:
        assert rule.strategy == "uniform"
        weights = [relation.weights[p] for p in eligible]
        return [eligible[offset] for offset in choose_weighted(weights, fanout, rule.replace, Stream(key, v, stream))]
    if rule.strategy == "uniform":
        return [eligible[offset] for offset in choose(len(eligible), fanout, rule.replace, Stream(key, v, stream))]
    assert not rule.replace
    if fanout == -1:
        return eligible
    by_time = sorted(eligible, key=lambda p: (0 if relation.times is None else max(relation.times[p], default=0), p))
    return sorted(by_time[max(len(by_time) - fanout, 0) :])


def sample_trees(
    node_types: Sequence[str],
    relations: Mapping[EdgeType, Relation],
    seeds: Mapping[Any, Sequence[Sequence[int]]],
    *,
    fanouts: Sequence[Mapping[EdgeType, int]],
    key_of: Callable[[int, int], int],
    frontier: str,
    disjoint: bool,
    rule: Rule,
    timestamps: Mapping[Any, Sequence[int]] | None = None,
    windows: Mapping[Any, Sequence[int]] | None = None,
) -> Trees:
    """Sections 4.5 and 4.6. `fanouts` is in hop order, hop 0 first; a missing edge type is 0.

    `seeds` has rows of ids by node type or by edge type, `timestamps` a time for each row, `windows` a window for each
    row if these have their own. `key_of(hop, ordinal)` is the hop key of an edge type.
    """
    nodes: dict[str, list[tuple[Any, int]]] = {node_type: [] for node_type in node_types}  # (group, id)
    local_ids: dict[str, dict[tuple[Any, int], int]] = {node_type: {} for node_type in node_types}

    def local_id(node_type: str, group: Any, v: int) -> int:
        known = local_ids[node_type]
        if (group, v) not in known:
            known[group, v] = len(nodes[node_type])
            nodes[node_type].append((group, v))
        return known[group, v]

    row_of_tree: list[int] = []
    moment_of_tree: list[tuple[int, int | None]] = []  # time and window
    num_rows = 0
    compacted_seeds: dict[Any, list[list[int]]] = {}
    for of in sorted(seeds):
        compacted_seeds[of] = []
        for place, row in enumerate(seeds[of]):
            compacted_seeds[of].append([])
            for column, v in enumerate(row):
                node_type = of if isinstance(of, str) else of[2 if column == 1 else 0]
                time = 0 if timestamps is None else int(timestamps[of][place])
                moment = time, rule.window if windows is None else int(windows[of][place])
                group = len(row_of_tree) if disjoint else moment
                compacted_seeds[of][-1].append(local_id(node_type, group, int(v)))
                row_of_tree.append(num_rows)
                moment_of_tree.append(moment)
            num_rows += 1
    edge_types = sorted(relations)
    sampled = [edge_type for edge_type in edge_types if any(fanout.get(edge_type, 0) != 0 for fanout in fanouts)]
    hops = []
    found_before_last_hop = dict.fromkeys(nodes, 0)
    for hop, fanout in enumerate(fanouts):
        found_before = {node_type: len(found) for node_type, found in nodes.items()}
        blocks = {}
        for edge_type in sampled:
            src, _, dst = edge_type
            relation, block = relations[edge_type], Hop([0], [], [], 0)
            key = key_of(hop, edge_types.index(edge_type))
            for place in range(found_before[dst]):
                if frontier == "all" or place >= found_before_last_hop[dst]:
                    group, v = nodes[dst][place]
                    stream, (time, window) = (group, moment_of_tree[group]) if disjoint else (0, group)
                    own_rule = rule._replace(window=window)
                    for p in picks_of(relation, v, fanout.get(edge_type, 0), key, stream, time, own_rule):
                        block.indices.append(local_id(src, group, int(relation.indices[p])))
                        block.edge_ids.append(p if relation.edge_ids is None else int(relation.edge_ids[p]))
                block.indptr.append(len(block.indices))
            blocks[edge_type] = block
        hops.append({of: block._replace(num_src=len(nodes[of[0]])) for of, block in blocks.items()})
        found_before_last_hop = found_before
    groups = {of: [group for group, _ in found] for of, found in nodes.items()}
    batch = {of: [row_of_tree[tree] for tree in trees] for of, trees in groups.items()} if disjoint else None
    return Trees({of: [v for _, v in found] for of, found in nodes.items()}, groups, batch, compacted_seeds, hops)
