"""Section 4.11 of docs/semantics.md in plain Python: random walks along in-edges."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import twin

REFUSALS = 64


class Rows(NamedTuple):
    """The in-edges of a step: their sources and ids, node by node; and their weights, if they are drawn by weight."""

    sources: Sequence[Sequence[int]]
    edge_ids: Sequence[Sequence[int]]
    weights: Sequence[Sequence[Any]] | None = None


def rows_of(relation: Any, prob_name: str | None = None) -> Rows:
    """The rows of a relation of a graph."""
    indptr = relation.indptr.tolist()
    ids = [*range(indptr[-1])] if relation.edge_ids is None else relation.edge_ids.tolist()
    columns = [relation.indices.tolist(), ids, *([relation.edge_attributes[prob_name].tolist()] if prob_name else [])]
    return Rows(*([column[a:b] for a, b in itertools.pairwise(indptr)] for column in columns))


def chance_words(p: float, q: float) -> dict[str, int]:
    """For each kind of in-edge the number of words that accept it."""
    chances = {"back": 1 / p, "near": 1.0, "far": 1 / q}
    most = max(chances.values())
    return {kind: int(Fraction(chance / most) * twin.WORD) for kind, chance in chances.items()}


class Walker:
    def __init__(self, rows: Sequence[Rows], keys: Sequence[int], p: float, q: float, restart_prob: float) -> None:
        self.rows, self.keys, self.p, self.q = rows, keys, p, q
        self.end_below = int(Fraction(restart_prob) * twin.WORD)

    def may_end(self, step: int) -> bool:
        return True

    def walk(self, seed: int, number: int) -> tuple[list[int], list[int]]:
        """(nodes, edge ids) of a walk, filled up with -1."""
        nodes, edge_ids = [seed], []
        for t, rows in enumerate(self.rows):
            stream = twin.Stream(self.keys[t], t, number)
            if self.end_below and self.may_end(t) and stream.word() < self.end_below:
                break
            place = self.step(rows, nodes, stream)
            if place is None:
                break
            edge_ids.append(rows.edge_ids[nodes[-1]][place])
            nodes.append(rows.sources[nodes[-1]][place])
        length = len(self.rows)
        return nodes + [-1] * (length + 1 - len(nodes)), edge_ids + [-1] * (length - len(edge_ids))

    def step(self, rows: Rows, nodes: Sequence[int], stream: twin.Stream) -> int | None:
        sources = rows.sources[nodes[-1]]
        if not sources:
            return None
        sums = None if rows.weights is None else twin.sums_of(rows.weights[nodes[-1]])
        if sums is not None and not sums[-1] > 0:
            return None

        def pick() -> int:
            return stream.bounded(len(sources)) if sums is None else twin.weighted_draw(sums, stream)

        if len(nodes) == 1 or (self.p, self.q) == (1, 1):
            return pick()
        before = nodes[-2]
        kinds = [
            "back" if source == before else "near" if source in rows.sources[before] else "far" for source in sources
        ]
        words = chance_words(self.p, self.q)
        for _ in range(REFUSALS):
            place = pick()
            if stream.word() < words[kinds[place]]:
                return place
        chances = {"back": 1 / self.p, "near": 1.0, "far": 1 / self.q}
        gains = [1.0] * len(sources) if sums is None else [a - b for a, b in zip(sums, [0.0, *sums], strict=False)]
        return twin.weighted_draw(
            twin.sums_of([gain * chances[kind] for gain, kind in zip(gains, kinds, strict=True)]), stream
        )
