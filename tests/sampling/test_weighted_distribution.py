"""Weighted draws have the stated probabilities: chi-square tests up to degree 5,000, over six orders of magnitude.

Without replacement, draws are successive, each in proportion to what is left. The probability of a set of picks is then
a sum over the orders in which they may come. It is computed exactly: for few in-edges over all sets, for many by
classes of equal weights, where only the number of picks of each class matters. Within a class all in-edges are equally
likely.

All keys are fixed, so the verdicts are fixed too. The wrong recipes at the end must fail the same checks.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from amounts import ranked
from chi_square import p_value
from weights import sums_of

from datapipes import _core

LEVEL = 1e-4
MIN_EXPECTED = 8
Draw = Callable[[np.ndarray, int, bool, int], np.ndarray]


def draws(weights: np.ndarray, fanout: int, replace: bool, trials: int) -> np.ndarray:
    """Rows of offsets [trials, fanout], each of a stream of its own: over nodes of equal weights, and over keys."""
    degree = len(weights)
    num_nodes = min(max(400_000 // degree, 1), trials)
    indptr = np.arange(num_nodes + 1, dtype=np.int64) * degree
    sums = sums_of(indptr, torch.from_numpy(np.tile(weights, num_nodes)))
    indices, nodes = np.zeros(num_nodes * degree, dtype=np.int32), np.arange(num_nodes)
    rows = []
    for i in range(-(-trials // num_nodes)):
        key = _core.hop_key(degree * 1000 + fanout * 2 + replace, i % 5, i // 5, 1, i % 2, 0)
        _, _, found = _core.sample_hop(
            indptr, indices, nodes, fanout=fanout, replace=replace, key=key, choice=_core.Weights([sums])
        )
        rows.append(found.reshape(num_nodes, fanout) - indptr[:-1, None])
    return np.concatenate(rows)[:trials]


def p_of_counts(found: np.ndarray, expected: np.ndarray) -> float:
    """Chi-square of counts; cells that expect little are put together."""
    order = np.argsort(expected)
    few = np.searchsorted(np.cumsum(expected[order]), MIN_EXPECTED) + 1
    if expected[order[-1]] < MIN_EXPECTED or few >= len(expected):
        few = 0 if expected.min() >= MIN_EXPECTED else len(expected) - 1
    groups = [order[:few]] if few else []
    found = np.array([*(found[group].sum() for group in groups), *found[order[few:]]], dtype=float)
    expected = np.array([*(expected[group].sum() for group in groups), *expected[order[few:]]])
    return p_value(float(((found - expected) ** 2 / expected).sum()), len(expected) - 1)


def spread(degree: int, orders: float = 6) -> np.ndarray:
    """Weights over so many orders of magnitude, in no order."""
    return np.random.default_rng(degree).permutation(10 ** np.linspace(-orders / 2, orders / 2, degree))


def classes_of(degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights 1, 1e3 and 1e6, few large ones and many small ones; and the class of each."""
    large, middle = max(degree // 500, 1), max(degree // 50, 2)
    classes = np.random.default_rng(degree).permutation(np.repeat([0, 1, 2], [degree - large - middle, middle, large]))
    return 1000.0**classes, classes


# --- exact probabilities


def sets(weights: np.ndarray, fanout: int) -> dict[frozenset, float]:
    """The probability of each set of `fanout` successive picks."""
    found = {frozenset(): 1.0}
    for _ in range(fanout):
        after: dict[frozenset, float] = {}
        for picked, probability in found.items():
            left = sum(w for i, w in enumerate(weights) if i not in picked)
            for i, weight in enumerate(weights):
                if i not in picked:
                    key = picked | {i}
                    after[key] = after.get(key, 0.0) + probability * weight / left
        found = after
    return found


def class_counts(weights: np.ndarray, sizes: np.ndarray, fanout: int) -> dict[tuple[int, ...], float]:
    """The probability of each number of picks by class; `weights` and `sizes` are those of the classes."""
    found = {(0,) * len(sizes): 1.0}
    for _ in range(fanout):
        after: dict[tuple[int, ...], float] = {}
        for counts, probability in found.items():
            left = (sizes - counts) * weights
            for i in np.flatnonzero(left > 0):
                key = tuple(count + (j == i) for j, count in enumerate(counts))
                after[key] = after.get(key, 0.0) + probability * left[i] / left.sum()
        found = after
    return found


# --- checks: each returns a p-value


def with_replacement(weights: np.ndarray, draw: Draw, picks: int = 400_000) -> float:
    rows = draw(weights, 4, True, picks // 4)
    return p_of_counts(np.bincount(rows.ravel(), minlength=len(weights)), rows.size * weights / weights.sum())


def picked_sets(weights: np.ndarray, fanout: int, draw: Draw, trials: int = 60_000) -> float:
    rows = draw(weights, fanout, False, trials)
    counts = Counter(map(frozenset, rows.tolist()))
    exact = sets(weights, fanout)
    assert set(counts) <= set(exact)
    return p_of_counts(np.array([counts[key] for key in exact]), trials * np.array([*exact.values()]))


def picked_classes(degree: int, fanout: int, draw: Draw, trials: int = 20_000) -> tuple[float, float]:
    """The p-values of the picks by class, and of the places within the classes."""
    weights, classes = classes_of(degree)
    rows = draw(weights, fanout, False, trials)
    assert (np.diff(rows, axis=1) > 0).all()
    of_rows = np.stack([(classes[rows] == number).sum(axis=1) for number in range(3)], axis=1)
    counts = Counter(map(tuple, of_rows.tolist()))
    exact = class_counts(1000.0 ** np.arange(3), np.bincount(classes, minlength=3), fanout)
    assert set(counts) <= set(exact)
    p_classes = p_of_counts(np.array([counts[key] for key in exact]), trials * np.array([*exact.values()]))
    return p_classes, within_class(rows, np.flatnonzero(classes == 0), degree)


def within_class(rows: np.ndarray, members: np.ndarray, degree: int) -> float:
    """Chi-square of the counts in at most 16 bins of a class; the covariance is that of what the rows add."""
    bins = np.full(degree, -1)
    bins[members] = np.arange(len(members)) * min(len(members), 16) // len(members)
    of_bin = np.stack([(bins[rows] == number).sum(axis=1) for number in range(bins.max() + 1)], axis=1).astype(float)
    sizes = np.bincount(bins[members])
    deviation = of_bin - of_bin.sum(axis=1, keepdims=True) * sizes / sizes.sum()
    total = deviation.sum(axis=0)[:-1]
    covariance = deviation[:, :-1].T @ deviation[:, :-1]
    if covariance.any():
        return p_value(float(total @ np.linalg.solve(covariance, total)), len(total))
    return 1.0


@pytest.mark.parametrize("degree", ranked([5, 65, 500, 8, 50, 64, 5_000], 3))
def test_with_replacement_the_draws_have_the_probabilities_of_the_weights(degree):
    assert with_replacement(spread(degree), draws) > LEVEL
    assert with_replacement(spread(degree, 0.5), draws) > LEVEL


@pytest.mark.parametrize(("degree", "fanout"), ranked([(5, 2), (9, 7), (5, 1), (5, 3), (5, 4), (9, 3), (12, 5)], 2))
def test_without_replacement_the_sets_of_picks_have_their_exact_probabilities(degree, fanout):
    assert picked_sets(spread(degree), fanout, draws) > LEVEL
    assert picked_sets(spread(degree, 1), fanout, draws) > LEVEL


@pytest.mark.parametrize(
    ("degree", "fanout"),
    ranked([(20, 5), (65, 15), (500, 40), (50, 15), (64, 30), (200, 15), (500, 10), (5_000, 15), (5_000, 60)], 3),
)
def test_without_replacement_the_picks_of_each_class_have_their_exact_probabilities(degree, fanout):
    p_classes, p_within = picked_classes(degree, fanout, draws)
    assert p_classes > LEVEL
    assert p_within > LEVEL


# --- wrong recipes, which the same checks must find


def by_slots(power: float) -> Draw:
    """Successive draws in proportion to the weights to a power: 1 is right, and other numbers are not."""

    def draw(weights: np.ndarray, fanout: int, replace: bool, trials: int) -> np.ndarray:
        numbers = np.random.default_rng(3)
        if replace:
            share = weights**power
            return numbers.choice(len(weights), (trials, fanout), p=share / share.sum())
        races = numbers.exponential(size=(trials, len(weights))) / weights**power
        return np.sort(np.argsort(races, axis=1)[:, :fanout], axis=1)

    return draw


def as_if_replaced(weights: np.ndarray, fanout: int, replace: bool, trials: int) -> np.ndarray:
    """Draws all anew if two are equal: a common mistake, which gives large weights too much."""
    numbers = np.random.default_rng(4)
    rows = []
    while len(rows) < trials:
        row = numbers.choice(len(weights), fanout, p=weights / weights.sum())
        if len(set(row.tolist())) == fanout:
            rows.append(np.sort(row))
    return np.stack(rows)


@pytest.mark.full  # it tests the checks
def test_the_checks_pass_a_right_recipe_and_find_wrong_ones():
    assert with_replacement(spread(50), by_slots(1)) > LEVEL > 1e-12 > with_replacement(spread(50), by_slots(1.02))
    weights = spread(9, 1)
    assert picked_sets(weights, 3, by_slots(1)) > LEVEL > 1e-12 > picked_sets(weights, 3, by_slots(1.05))
    assert picked_sets(weights, 3, as_if_replaced, 20_000) < 1e-12
    assert picked_classes(50, 2, by_slots(1))[0] > LEVEL > 1e-12 > picked_classes(50, 2, by_slots(1.1))[0]
