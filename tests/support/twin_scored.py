"""Sections 4.12 and 4.13 of docs/semantics.md in plain Python: PageRank by pushes, and most visited nodes."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from twin_walks import Rows, Walker

WHOLE = 2**62


def ppr(rows: Sequence[Sequence[int]], seed: int, alpha: float, eps: float) -> tuple[dict[int, int], dict[int, int]]:
    """(mass, residual) of a seed; `rows` has the sources of each node's in-edges."""
    keep, least = int(Fraction(alpha) * 2**32), int(Fraction(eps) * WHOLE)
    mass, residual = {}, {seed: WHOLE}
    while True:
        due = [node for node, rest in residual.items() if rest >= least * max(len(rows[node]), 1) or rest == WHOLE]
        if not due:
            return mass, residual
        shares = []
        for node in due:
            rest = residual.pop(node)
            kept = (rest * keep) >> 32 if rows[node] else rest
            mass[node] = mass.get(node, 0) + kept
            share = (rest - kept) // len(rows[node]) if rows[node] else 0
            residual[node] = rest - kept - share * len(rows[node])
            shares += [(source, share) for source in rows[node]]
        for source, share in shares:
            residual[source] = residual.get(source, 0) + share


def largest(scores: dict[int, int], count: int) -> list[tuple[int, int]]:
    """The (node, score) with the largest scores, filled up with (-1, 0)."""
    most = sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:count]
    return most + [(-1, 0)] * (count - len(most))


class Traversals(Walker):
    """Walks that may end only after a traversal of `length` steps."""

    def __init__(self, rows: Sequence[Rows], keys: Sequence[int], restart_prob: float, length: int) -> None:
        super().__init__(rows, keys, 1.0, 1.0, restart_prob)
        self.length = length

    def may_end(self, step: int) -> bool:
        return step > 0 and step % self.length == 0

    def visits(self, node: int, numbers: range) -> dict[int, int]:
        """How often the walks with these numbers visit each other node."""
        ends = (self.walk(node, number)[0][self.length :: self.length] for number in numbers)
        return Counter(end for walk in ends for end in walk if end not in (-1, node))
