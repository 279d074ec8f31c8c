"""Weighted draws of one hop: equal to the twin's bit for bit; what is 0 is never drawn; wrong weights are refused."""

from contextlib import suppress

import numpy as np
import pytest
import torch
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES, Graph, csc_graphs, fanouts, graph_of, random_graph, rng_seeds, seeds_in, star
from weights import DTYPES, sums_of, weighted_hop, weights_for

from datapipes import _core

KEY = 0xFEDCBA9876543210


def expect_the_twin(graph: Graph, seeds, weights: torch.Tensor, *, fanout: int, replace: bool, key: int = KEY) -> None:
    found = weighted_hop(graph, seeds, weights, fanout=fanout, replace=replace, key=key)
    expected = twin.sample_hop(*graph, seeds, fanout=fanout, replace=replace, key=key, weights=weights.tolist())
    assert [array.tolist() for array in found] == list(expected)
    assert [array.dtype for array in found] == [np.int64, graph.indices.dtype, np.int64]


@examples(300)
@given(st.data(), csc_graphs(), fanouts, st.booleans(), rng_seeds)
def test_a_weighted_hop_equals_the_twin(data, graph, fanout, replace, key):
    weights = data.draw(weights_for(graph.num_edges))
    expect_the_twin(graph, data.draw(seeds_in(graph)), weights, fanout=fanout, replace=replace, key=key)


def skewed(count: int, orders: float = 6, rng_seed: int = 5) -> torch.Tensor:
    """Weights over so many orders of magnitude, and a few zeros."""
    numbers = np.random.default_rng(rng_seed)
    weights = 10 ** (numbers.random(count) * orders - orders / 2)
    return torch.from_numpy(np.where(numbers.random(count) < 0.05, 0, weights))


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("degree", [1, 2, 7, 8, 9, 17, 63, 64, 65, 72, 129, 500, 3_000])
@pytest.mark.parametrize("orders", [0.5, 6, 40])
def test_weighted_picks_of_every_degree_equal_the_twin(degree, orders, dtype):
    graph, weights = star(degree, dtype), skewed(degree, orders, degree)
    for fanout in sorted({-1, 0, 1, 5, 10, degree // 2, *([degree - 2, degree - 1, degree] if degree < 600 else [])}):
        for replace in (False, True):
            if fanout >= -1:
                expect_the_twin(graph, [0, 1, 0], weights, fanout=fanout, replace=replace)


@pytest.mark.parametrize("fanout", [255, 256, 257, 700])
def test_weighted_picks_of_a_hub_with_a_large_fanout_equal_the_twin(fanout):
    graph = star(1_500)
    expect_the_twin(graph, [0, 1], skewed(1_500), fanout=fanout, replace=False)
    expect_the_twin(graph, [0, 1], skewed(1_500), fanout=fanout, replace=True)


def test_rows_that_begin_anywhere_in_a_line_of_sums_equal_the_twin():
    graph = graph_of([[0] * degree for degree in (3, 70, 1, 66, 0, 81, 9, 130, 7, 65)], np.int32)
    for fanout in (1, 4, 9, 60):
        expect_the_twin(graph, range(10), skewed(graph.num_edges, 4), fanout=fanout, replace=False)


@pytest.mark.parametrize("replace", [False, True])
def test_a_weighted_hop_of_many_seeds_is_the_same_with_any_number_of_threads(replace):
    graph = random_graph(2_000, 60_000, rng_seed=1, dtype=np.int32)
    weights, seeds = skewed(60_000, 3).float(), np.random.default_rng(2).integers(0, 2_000, 5_000)
    found = [
        weighted_hop(graph, seeds, weights, fanout=9, replace=replace, key=KEY, threads=threads)
        for threads in (1, 2, 7)
    ]
    expected = twin.sample_hop(*graph, seeds[:150], fanout=9, replace=replace, key=KEY, weights=weights.tolist())
    assert found[0][2][: len(expected[2])].tolist() == expected[2]
    for other in found[1:]:
        assert all(np.array_equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("fanout", [-1, 3, 40])
@pytest.mark.parametrize("replace", [False, True])
def test_what_has_weight_0_is_never_drawn_and_a_node_of_zeros_gets_nothing(fanout, replace):
    graph = graph_of([[0] * 30, [1] * 30, [2] * 8])
    mask = torch.arange(68) % 3 == 1
    mask[30:60] = False
    for weights in (mask, mask.half() * 1e-3, mask.double() * 1e300):
        indptr, _, positions = weighted_hop(graph, [0, 1, 2], weights, fanout=fanout, replace=replace, key=KEY)
        assert bool(mask[positions].all())
        counts = [int(mask[:30].sum()), 0, int(mask[60:].sum())]
        expected = counts if fanout == -1 else [(fanout if replace else min(fanout, n)) if n else 0 for n in counts]
        assert np.diff(indptr).tolist() == expected


def test_a_weight_that_is_too_small_to_change_the_sum_counts_as_0():
    weights = torch.tensor([1e-20, 1.0, 1e-20, 1.0], dtype=torch.float64)
    _, _, positions = weighted_hop(star(4), [0], weights, fanout=-1, replace=False, key=KEY)
    assert positions.tolist() == [0, 1, 3]


@pytest.mark.parametrize("degree", [1, 7, 8, 16, 63, 64, 72, 80])
def test_a_draw_that_rounds_to_the_whole_sum_gives_the_last_drawable_in_edge(degree):
    weights = torch.zeros(degree, dtype=torch.float64)
    weights[[0, degree // 2]] = 5e-324  # every other number between 0 and the sum rounds to the sum
    for key in range(12):
        for fanout, replace in ((1, False), (5, True)):
            expect_the_twin(star(degree), [0], weights, fanout=fanout, replace=replace, key=key)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_every_dtype_draw_what_the_same_numbers_in_double_precision_draw(dtype):
    weights = torch.arange(90).remainder(5).to(dtype)
    wide = [
        weighted_hop(star(90), [0], each, fanout=7, replace=True, key=KEY)[2].tolist()
        for each in (weights, weights.double())
    ]
    assert wide[0] == wide[1]


@examples(60)
@given(st.data(), csc_graphs())
def test_the_sums_are_those_of_the_page(data, graph):
    weights = data.draw(weights_for(graph.num_edges))
    raw = weights.view(torch.uint8) if weights.numel() else torch.empty(0, dtype=torch.uint8)
    name = str(weights.dtype).removeprefix("torch.")
    sums, coarse, drawable = _core.row_sums(graph.indptr, raw.numpy(), dtype=name, num_threads=2)
    expected, counts = [], []
    for begin, end in zip(graph.indptr[:-1], graph.indptr[1:], strict=True):
        of_row = twin.sums_of(weights[begin:end].tolist())
        expected += of_row
        counts.append(sum(twin.grows(of_row, offset) for offset in range(len(of_row))))
    assert sums.tolist() == expected + [0.0] * (-len(expected) % 8)
    assert coarse.tolist() == sums[7 : len(expected) : 8].tolist()
    if counts == np.diff(graph.indptr).tolist():
        assert drawable is None
    else:
        assert drawable.tolist() == counts


@pytest.mark.parametrize("threads", [1, 7])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_wrong_weights_are_refused_with_the_place_of_the_first(refuses, dtype, threads):
    indptr, weights = np.arange(0, 60_001, 3), torch.ones(60_000, dtype=dtype)
    for wrong in (-1.0, -(2.0**-100), float("inf"), float("-inf")):
        weights[[40_000, 17, 59_000]] = torch.tensor([wrong, wrong, -5.0], dtype=dtype)
        refuses(ValueError, sums_of, indptr, weights, threads)
    weights[17] = float("nan")
    with pytest.raises(ValueError, match=r"weights is -?nan at position 17, an in-edge of node 5; .* 0 or more"):
        sums_of(indptr, weights, threads)


def test_what_arrays_of_sums_are_refused(refuses):
    indptr, raw = np.array([0, 2, 3]), np.zeros(12, dtype=np.uint8)
    refuses(ValueError, sums_of, np.array([0, 3]), torch.tensor([1.0, 1e308, 1e308], dtype=torch.float64))
    refuses(ValueError, _core.row_sums, indptr, raw, dtype="int32")
    refuses(ValueError, _core.row_sums, np.array([0, 2, 4]), raw, dtype="float32")
    refuses(ValueError, _core.row_sums, np.zeros(0, dtype=np.int64), raw, dtype="float32")
    node_ids = np.zeros(3, dtype=np.int64)
    refuses(ValueError, _core.row_sums, indptr, raw, dtype="float32", node_ids=node_ids)
    options = {"fanout": 2, "replace": False, "key": KEY}
    other = _core.Weights([sums_of(star(30).indptr, torch.ones(30))])
    refuses(ValueError, _core.sample_hop, *star(20), np.array([0]), choice=other, **options)


def test_sums_that_no_weights_have_raise_and_do_no_harm():
    graph = star(200)
    sums, coarse = np.full(200, np.nan), np.zeros(25)
    for wrong in (_core.RowSums(sums, coarse), _core.RowSums(np.zeros(200), coarse, np.full(201, 150))):
        for fanout in (-1, 5, 100, 150):
            for replace in (False, True):
                with suppress(ValueError):
                    _, _, positions = _core.sample_hop(
                        *graph, np.array([0]), fanout=fanout, replace=replace, key=KEY, choice=_core.Weights([wrong])
                    )
                    assert ((positions >= 0) & (positions < 200)).all()
    with pytest.raises(ValueError, match="the sums of a row changed"):
        _core.sample_hop(*graph, np.array([0]), fanout=100, replace=False, key=KEY, choice=_core.Weights([wrong]))
    expect_the_twin(graph, [0], skewed(200), fanout=20, replace=False)
