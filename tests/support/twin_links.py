"""The plain Python twin of links: slow, obvious, written from docs/semantics.md, sections 4.7 and 4.9."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from twin import EdgeType, Stream, choose, sums_of, weighted_draw
from twin_trees import Relation, Rule, Trees, picks_of

MOST_TRIES = 1024
COLUMNS = {"src": [0], "dst": [1], "both": [0, 1]}


def positive_of(count: int, ratio: float) -> list[int]:
    """The row of the positive of each negative."""
    number = math.ceil(ratio * count)
    return [j * count // number for j in range(number)]


def negatives(
    pairs: Sequence[Sequence[int]],
    ratio: float,
    key: int,
    num_nodes: tuple[int, int],
    *,
    corrupt: str = "dst",
    weights: tuple[Any, Any] = (None, None),
    edges: Collection[tuple[int, int]] | None = None,
    since: tuple[Any, Any] = (None, None),
    times: Sequence[int] | None = None,
) -> list[list[int]]:
    """Section 4.7: a negative for each slot. `edges` are given where none of them may be returned (strict)."""
    found = []
    for slot, row in enumerate(positive_of(len(pairs), ratio)):
        stream, positive = Stream(key, 0, slot), list(pairs[row])
        for _ in range(MOST_TRIES):
            pair = list(positive)
            for column in COLUMNS[corrupt]:
                if weights[column] is None:
                    pair[column] = stream.bounded(num_nodes[column])
                else:
                    pair[column] = weighted_draw(sums_of(weights[column]), stream)
            exists = times is None or all(
                since[column] is None or since[column][pair[column]] <= times[row] for column in COLUMNS[corrupt]
            )
            if exists and is_new(pair, positive, edges):
                break
        else:
            pair = list(positive)
            for column in COLUMNS[corrupt]:
                if since[column] is not None:
                    pair[column] = min(range(num_nodes[column]), key=lambda v, c=column: (since[c][v], v))
            has_times = any(since[column] is not None for column in COLUMNS[corrupt])
            if not has_times or not is_new(pair, positive, edges):
                raise ValueError(f"no negative for {positive}")
        found.append(pair)
    return found


def in_batch_negatives(
    pairs: Sequence[Sequence[int]], ratio: float, key: int, *, column: int, first_slot: int = 0
) -> list[list[int]]:
    """Section 4.15: the end in `column` is that of another pair."""
    found = []
    for slot, row in enumerate(positive_of(len(pairs), ratio)):
        others = [other for other in range(len(pairs)) if other != row] or [row]
        place = Stream(key, 0, first_slot + slot).bounded(len(others))
        found.append([pairs[others[place]][column] if end == column else pairs[row][end] for end in (0, 1)])
    return found


def historical_negatives(
    pairs: Sequence[Sequence[int]],
    times: Sequence[int],
    ratio: int,
    keys: tuple[int, int],
    num_nodes: int,
    edges: Sequence[tuple[int, int, int]],
    one_type: bool = True,
) -> list[list[int]]:
    """Section 4.16. `edges` are (source, destination, time) in the order of the reversed graph, `keys` those of hops 0
    and 1; `one_type` says whether sources and destinations are nodes of one type.
    """
    found = []
    for i, ((u, v), t) in enumerate(zip(pairs, times, strict=True)):
        history: list[int] = []
        for source, x, at in edges:
            if source == u and x != v and at < t and x not in history:
                history.insert(0 if one_type and x == u else len(history), x)
        taken = [history[offset] for offset in choose(len(history), ratio, False, Stream(keys[1], i))]
        for slot in range(i * ratio + len(taken), (i + 1) * ratio):
            taken.append(Stream(keys[0], 0, slot).bounded(num_nodes))
        found += [[u, x] for x in taken]
    return found


def is_new(pair: list[int], positive: list[int], edges: Collection[tuple[int, int]] | None) -> bool:
    return edges is None or (tuple(pair) not in edges and pair != positive)


# --- Section 4.9: subgraph forms


def edges_among(
    trees: Trees,
    relations: Mapping[EdgeType, Relation],
    of: EdgeType,
    rule: Rule,
    moment_of: Callable[[Any], tuple[int, int | None]],
) -> list[tuple[int, int, int]]:
    """The edges of a type among the nodes: (local source, local destination, edge id), by destination and position.
    `moment_of` gives the time and the window of a group.
    """
    src, _, dst = of
    relation = relations[of]
    local = {node: i for i, node in enumerate(zip(trees.groups[src], trees.nodes[src], strict=True))}
    found = []
    for place, (group, v) in enumerate(zip(trees.groups[dst], trees.nodes[dst], strict=True)):
        time, window = moment_of(group)
        for p in picks_of(relation, v, -1, 0, 0, time, rule._replace(window=window)):
            if (group, int(relation.indices[p])) in local:
                edge_id = p if relation.edge_ids is None else int(relation.edge_ids[p])
                found.append((local[group, int(relation.indices[p])], place, edge_id))
    return found


def both_ways(
    trees: Trees,
    among: Mapping[EdgeType, list[tuple[int, int, int]]],
    reverses: Mapping[EdgeType, EdgeType],
    *,
    want_ids: bool,
) -> dict[EdgeType, list[tuple[int, int, int]]]:
    """The edges that were drawn and their reverses, each pair once; `reverses` has each edge type that is sampled.

    Raises:
        KeyError: A pair has no edge among the nodes, and ids are wanted.
    """
    drawn: dict[EdgeType, set[tuple[int, int, int]]] = {of: set() for of in {*reverses, *reverses.values()}}
    for hop in trees.hops:
        for of, block in hop.items():
            columns = [v for v in range(len(block.indptr) - 1) for _ in range(block.indptr[v], block.indptr[v + 1])]
            drawn[of] |= {*zip(block.indices, columns, block.edge_ids, strict=True)}
    found = {}
    for of in drawn:
        pairs = {edge[:2] for edge in drawn[of]}
        pairs |= {(v, u) for other, to in reverses.items() if to == of for u, v, _ in drawn[other]}
        ids: dict[tuple[int, int], int] = {}
        for edge in [*(e for e in among[of] if e in drawn[of]), *among[of]]:
            ids.setdefault(edge[:2], edge[2])
        ordered = sorted(pairs, key=lambda pair: (pair[1], pair[0]))
        found[of] = [(*pair, ids[pair] if want_ids else -1) for pair in ordered]
    return found
