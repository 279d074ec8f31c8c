"""Draws are uniform: chi-square tests of positions, bins, pairs and whole sets, for every form of keeping the picks.

A chi-square test cannot prove exactness; equality with the twin and the rejection of section 1.3 do that. It shows that
a bias would be noticed: the known wrong recipes at the end must fail the same checks, and the right one must pass. One
wrong recipe makes half of the positions 3 % likelier than the other half.

A check passes if its p-value is in (LEVEL, 1 - LEVEL). A p-value next to 1 means counts that are more even than
independent draws can be. All keys are fixed, so the verdicts are fixed too. The file makes about 250 checks at a level
of at most 2e-5 each: with new keys a right sampler would fail once in 200 times. The wrong recipes end below 1e-12.
"""

from collections.abc import Callable
from math import comb

import numpy as np
import pytest
from chi_square import p_value

from datapipes import _core

LEVEL = 1e-5
NUM_PICKS = 1_000_000  # picks per case; if the complement is drawn, positions left out per case
MAX_OUTPUT = 8_000_000  # the most picks that a case returns
MIN_EXPECTED = 5  # the chi-square approximation needs so many expected draws per cell
KEEP, REPLACE = False, True  # whether an in-edge may be drawn again


def assert_plausible(p_values: dict[str, float]) -> None:
    assert p_values
    for check, p in p_values.items():
        assert LEVEL < p < 1 - LEVEL, f"{check}: p = {p:.3g}"


# --- draws of the kernel: int32 [trials, fanout], one row for each stream, positions among the node's in-edges


def draws(degree: int, fanout: int, *, num_nodes: int, num_keys: int, replace: bool = KEEP) -> np.ndarray:
    """Draw for `num_nodes` nodes of equal degree under each of `num_keys` keys; each row is a stream of its own.

    Epoch, minibatch and hop vary from key to key as they do in practice. Each case has its own seed: with the same
    random words in all cases, one unlucky stretch would show in each.
    """
    indptr = np.arange(num_nodes + 1, dtype=np.int64) * degree
    indices = np.zeros(num_nodes * degree, dtype=np.int32)  # the neighbors do not matter here
    nodes = np.arange(num_nodes, dtype=np.int64)
    rows = np.empty((num_keys, num_nodes, fanout), dtype=np.int32)
    for i in range(num_keys):
        key = _core.hop_key(degree * 2**32 + fanout * 2 + replace, i % 5, i // 5, 1, i % 2, 0)
        _, _, positions = _core.sample_hop(indptr, indices, nodes, fanout=fanout, replace=replace, key=key)
        np.subtract(positions.reshape(num_nodes, fanout), indptr[:-1, None], out=rows[i], casting="same_kind")
    return rows.reshape(-1, fanout)


def many_draws(degree: int, fanout: int, *, replace: bool = KEEP) -> np.ndarray:
    """Draw as often as the case needs, over many keys and so many nodes that there are at most 600,000 edges."""
    telling = fanout if replace else min(fanout, degree - fanout)
    trials = min(NUM_PICKS // telling, MAX_OUTPUT // fanout)
    num_nodes = min(600_000 // degree, 1_000, trials)
    return draws(degree, fanout, num_nodes=num_nodes, num_keys=-(-trials // num_nodes), replace=replace)


# --- statistics: each takes rows of picks and returns the p-values of its checks by name


def bin_p_values(rows: np.ndarray, degree: int, *, replace: bool = KEEP) -> dict[str, float]:
    """Test the counts in 16 bins, in 256 bins and of each position, where each bin expects enough draws.

    Let a bin hold the share p of n positions, and X count the picks of one draw in it. With replacement the counts
    are multinomial: Var X = k p (1 - p), Cov(X, Y) = -k p q. A k-subset gives a hypergeometric X; variance and
    covariance are those of the multinomial times (n - k) / (n - 1), since later picks avoid earlier ones. Over many
    independent draws the counts O are then normal with this covariance, so
        sum over bins of (O - E)^2 / E * (n - 1) / (n - k)
    is chi-square; its degrees of freedom are the number of bins - 1. With bins of one position, this tests that each
    position is included with probability k / n. Few bins find a bias that is smooth or has a threshold; single
    positions find a local one.
    """
    trials, fanout = rows.shape
    spread = 1.0 if replace else (degree - fanout) / (degree - 1)
    counts = np.bincount(rows.ravel(), minlength=degree)
    p_values = {}
    for num_bins in sorted({min(degree, num_bins) for num_bins in (16, 256, degree)}):
        first = -(-np.arange(num_bins) * degree // num_bins)
        expected = trials * fanout / degree * np.diff(first, append=degree)
        if expected.min() * (1 if replace else min(1, (degree - fanout) / fanout)) >= MIN_EXPECTED:
            found = np.add.reduceat(counts, first)
            statistic = ((found - expected) ** 2 / expected).sum() / spread
            p_values[f"{num_bins} bins"] = p_value(statistic, num_bins - 1)
    return p_values


def pair_p_values(rows: np.ndarray, degree: int) -> dict[str, float]:
    """Test the joint inclusion of two positions, which has probability k(k - 1) / (n(n - 1)).

    Let D(i, j) be the count of a pair less its expectation. Its covariance depends only on how many positions two
    pairs share, so its eigenspaces are those of the Johnson scheme J(n, 2): the constants, where a count of fixed
    total has no variance; a(i) + a(j) with a of sum 0, which is fixed by the counts of single positions and tested
    there; and the rest, of n(n - 3) / 2 dimensions. There the eigenvalue is
        Var D(i, j) - 2 Cov(D(i, j), D(i, l)) + Cov(D(i, j), D(l, m)) = p2 - 2 p3 + p4
    with pr the probability that r given positions are all drawn. So the squares of D less its first two parts, over
    trials times this eigenvalue, add up to a chi-square with n(n - 3) / 2 degrees of freedom.
    """
    trials, fanout = rows.shape
    together = [np.prod([(fanout - i) / (degree - i) for i in range(r)]) for r in range(5)]  # p0 .. p4
    included = np.zeros((trials, degree), dtype=np.float32)  # sums of ones are exact below 2^24
    np.put_along_axis(included, rows.astype(np.int64), 1.0, axis=1)
    i, j = np.triu_indices(degree, k=1)
    deviation = (included.T @ included)[i, j].astype(np.float64) - trials * together[2]
    deviation -= deviation.mean()
    of_position = np.bincount(i, deviation, degree) + np.bincount(j, deviation, degree)
    rest = deviation - (of_position[i] + of_position[j]) / (degree - 2)
    statistic = (rest**2).sum() / (trials * (together[2] - 2 * together[3] + together[4]))
    return {"pairs": p_value(statistic, degree * (degree - 3) // 2)}


def cell_p_value(cells: np.ndarray, num_cells: int) -> float:
    """Test trials that each fall into one of `num_cells` equally likely cells."""
    expected = len(cells) / num_cells
    assert expected >= MIN_EXPECTED
    counts = np.bincount(cells, minlength=num_cells)
    assert len(counts) == num_cells
    return p_value(((counts - expected) ** 2 / expected).sum(), num_cells - 1)


def set_p_values(rows: np.ndarray, degree: int) -> dict[str, float]:
    """Test all k-subsets of n positions; ascending picks c1 < c2 .. are set number C(c1, 1) + C(c2, 2) + .."""
    fanout = rows.shape[1]
    binomials = np.array([[comb(c, i + 1) for i in range(fanout)] for c in range(degree)])
    numbers = binomials[rows, np.arange(fanout)].sum(axis=1)
    return {"sets": cell_p_value(numbers, comb(degree, fanout))}


# --- the kernel passes


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [
        *((11, fanout) for fanout in (1, 5, 9, 10)),
        *((20, fanout) for fanout in (5, 10, 11, 18, 19)),
        *((64, fanout) for fanout in (5, 10, 25, 32, 33, 60, 63)),
        *((1_000, fanout) for fanout in (5, 10, 25, 100, 200, 500, 501, 800, 995, 999)),
        *((40_000, fanout) for fanout in (5, 10, 25, 100, 200, 1_000, 39_000, 39_600, 39_990)),  # 16 bits suffice
        *((70_000, fanout) for fanout in (5, 10, 25, 100, 200, 1_000, 69_000, 69_600, 69_990)),  # and here they do not
    ],
)
def test_without_replacement_positions_and_bins_are_equally_likely(degree, fanout):
    assert_plausible(bin_p_values(many_draws(degree, fanout), degree))


@pytest.mark.parametrize("fanout", [5, 25, 200])
@pytest.mark.parametrize("degree", [11, 20, 64, 1_000, 40_000, 70_000])
def test_with_replacement_positions_and_bins_are_equally_likely(degree, fanout):
    assert_plausible(bin_p_values(many_draws(degree, fanout, replace=REPLACE), degree, replace=REPLACE))


@pytest.mark.parametrize(("num_nodes", "num_keys"), [(1, 10_000), (2_000, 1)])
@pytest.mark.parametrize(("degree", "fanout"), [(11, 5), (11, 10), (20, 10), (64, 25), (1_000, 100), (1_000, 800)])
@pytest.mark.parametrize("replace", [KEEP, REPLACE])
def test_keys_alone_and_nodes_alone_make_the_draws_vary(degree, fanout, replace, num_nodes, num_keys):
    rows = draws(degree, fanout, num_nodes=num_nodes, num_keys=num_keys, replace=replace)
    assert_plausible(bin_p_values(rows, degree, replace=replace))


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [*((11, k) for k in (2, 5, 9)), *((20, k) for k in (5, 10, 18)), *((64, k) for k in (5, 10, 25, 60)), (80, 25)],
)
def test_without_replacement_pairs_of_positions_are_equally_likely(degree, fanout):
    assert_plausible(pair_p_values(draws(degree, fanout, num_nodes=500, num_keys=100), degree))


@pytest.mark.parametrize("degree", [11, 20, 64, 200])
def test_with_replacement_a_pick_does_not_depend_on_the_one_before(degree):
    rows = draws(degree, 10, num_nodes=500, num_keys=100, replace=REPLACE).astype(np.int64)
    pairs = rows[:, 0::2] * degree + rows[:, 1::2]
    assert_plausible({"pairs": cell_p_value(pairs.ravel(), degree**2)})


@pytest.mark.parametrize(
    ("degree", "fanout"),
    [(5, 2), (6, 3), (6, 5), (7, 5), (8, 4), (11, 5), (11, 10), (64, 2), (64, 62), (66, 2), (66, 64)],
)
def test_all_sets_are_equally_likely(degree, fanout):
    assert_plausible(set_p_values(draws(degree, fanout, num_nodes=500, num_keys=100), degree))


@pytest.mark.parametrize("replace", [KEEP, REPLACE])
def test_streams_next_to_each_other_are_independent(replace):
    degree, num_nodes, num_keys = 20, 1_000, 200
    picks = draws(degree, 1, num_nodes=num_nodes, num_keys=num_keys, replace=replace).reshape(num_keys, num_nodes)
    next_node = picks[:, 0::2] * degree + picks[:, 1::2]
    next_key = picks[0::2] * degree + picks[1::2]
    for name, cells in {"next node": next_node, "next key": next_key}.items():
        assert_plausible({name: cell_p_value(cells.ravel(), degree**2)})


# --- wrong recipes fail: those of other systems, in NumPy, under the same statistics


def floyd(bounded: Callable[[int], np.ndarray], degree: int, fanout: int) -> np.ndarray:
    """Floyd's algorithm for many trials at once; `bounded(n)` gives each trial a number below n."""
    rows = np.empty((len(bounded(1)), fanout), dtype=np.int64)
    for i, j in enumerate(range(degree - fanout, degree)):
        pick = bounded(j + 1)
        taken = (rows[:, :i] == pick[:, None]).any(axis=1)
        rows[:, i] = np.where(taken, j, pick)
    return np.sort(rows, axis=1)


def right(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    return floyd(lambda n: rng.integers(0, n, trials), degree, fanout)


def modulo_j(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """Modulo j instead of j + 1: an upper position is drawn only if a pick is taken already."""
    return floyd(lambda n: rng.integers(0, max(n - 1, 1), trials), degree, fanout)


def sixteen_bits(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """16 random bits modulo the range: the first 2^16 mod n positions get one more of the 2^16 numbers."""
    return floyd(lambda n: rng.integers(0, 2**16, trials) % n, degree, fanout)


def one_stream_for_two(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """Two threads start from the default seed, so each draw is made twice."""
    return np.repeat(right(rng, degree, fanout, trials // 2), 2, axis=0)


def repeats(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """Draws with replacement although none was asked for."""
    return np.sort(rng.integers(0, degree, (trials, fanout)), axis=1)


def window(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """A random start and its successors: positions have the right probability, pairs and sets do not."""
    return np.sort((rng.integers(0, degree, (trials, 1)) + np.arange(fanout)) % degree, axis=1)


def tilted(rng: np.random.Generator, degree: int, fanout: int, trials: int) -> np.ndarray:
    """Makes the lower half of the range 3 % likelier than the upper half."""

    def bounded(n: int) -> np.ndarray:
        pick = rng.integers(0, n, trials)
        return np.where((pick >= n / 2) & (rng.random(trials) < 0.015), pick - n // 2, pick)

    return floyd(bounded, degree, fanout)


WRONG = [
    (modulo_j, bin_p_values, 20, 10, 20_000),
    (modulo_j, bin_p_values, 11, 10, 20_000),
    (modulo_j, bin_p_values, 64, 25, 20_000),
    (modulo_j, set_p_values, 6, 3, 20_000),
    (sixteen_bits, bin_p_values, 40_000, 25, 20_000),
    (sixteen_bits, bin_p_values, 40_000, 5, 100_000),
    (tilted, bin_p_values, 1_000, 5, NUM_PICKS // 5),
    (tilted, bin_p_values, 40_000, 10, NUM_PICKS // 10),
    (one_stream_for_two, bin_p_values, 1_000, 25, 20_000),
    (one_stream_for_two, pair_p_values, 64, 10, 20_000),
    (one_stream_for_two, set_p_values, 11, 5, 20_000),
    (repeats, bin_p_values, 1_000, 500, 2_000),
    (window, pair_p_values, 20, 5, 20_000),
    (window, set_p_values, 6, 3, 20_000),
]


@pytest.mark.parametrize(("recipe", "p_values", "degree", "fanout", "trials"), WRONG)
def test_a_wrong_recipe_fails_and_the_right_one_passes(recipe, p_values, degree, fanout, trials):
    wrong = p_values(recipe(np.random.default_rng(1), degree, fanout, trials), degree)
    assert min(wrong.values()) < 1e-12
    assert_plausible(p_values(right(np.random.default_rng(2), degree, fanout, trials), degree))


def test_the_wrong_recipes_have_the_known_defects():
    rng = np.random.default_rng(3)
    halves = (modulo_j(rng, 20, 10, 50_000) < 10).mean()
    assert abs(halves - 0.53) < 0.005
    assert (modulo_j(rng, 11, 10, 1_000)[:, 0] == 0).all()
    assert abs((sixteen_bits(rng, 40_000, 5, 50_000) < 2**16 - 40_000).mean() - 0.78) < 0.005


def test_p_values_equal_the_tables():
    table = {(1, 3.841): 0.05, (10, 18.307): 0.05, (100, 149.449): 0.001, (1_000, 1_106.969): 0.01}
    for (degrees_of_freedom, statistic), expected in table.items():
        assert p_value(statistic, degrees_of_freedom) == pytest.approx(expected, rel=1e-3)
