"""NeighborSampler: the whole Python path equals the plain twin; bad seeds and graphs are refused."""

import re

import numpy as np
import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import graph_of, items, refused, sampled, small_graph, start_at
from strategies import csc_graphs, rng_seeds
from twin_cases import expect_the_twin
from typed_pipelines import CITES
from weights import weights_for

import datapipes as dp
from datapipes import _core


def contract_chain() -> dp.Stage:
    return sampled()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    functional = items().sample_neighbor(small_graph(), [2, 1], replace=True, frontier="new")
    return functional, dp.NeighborSampler(items(), small_graph(), [2, 1], replace=True, frontier="new")


def twin_of(
    graph: dp.CSCGraph, seeds: torch.Tensor, rng: dp.stages.RngKey, fanouts, **options: object
) -> twin.Neighborhood:
    return twin.sample_neighbors(
        graph.indptr.tolist(),
        graph.indices.tolist(),
        None if graph.edge_ids is None else graph.edge_ids.tolist(),
        seeds.reshape(-1).tolist(),
        fanouts=fanouts[::-1],  # the twin's are in hop order
        keys=[twin.hop_key(rng.seed, rng.epoch, rng.index, rng.stage, hop, 0) for hop in range(len(fanouts))],
        **options,
    )


@pytest.mark.parametrize("weighted", [False, True])
@given(data=st.data(), arrays=csc_graphs(min_nodes=1), rng_seed=rng_seeds, epoch=st.integers(0, 2**32 - 1))
def test_the_stage_draws_what_the_twin_draws(data, arrays, rng_seed, epoch, weighted):
    fanouts = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
    options = {"replace": data.draw(st.booleans()), "frontier": data.draw(st.sampled_from(["all", "new"]))}
    edge_ids = np.arange(arrays.num_edges)[::-1].copy() if data.draw(st.booleans()) else None
    weights = data.draw(weights_for(arrays.num_edges)) if weighted else None
    graph = dp.CSCGraph(*arrays, edge_ids=edge_ids, edge_attributes={"w": weights} if weighted else None)
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    start = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 4, shuffle=True, seed=rng_seed)
    pipe = start.transform(lambda minibatch: minibatch)  # the sampler then has ordinal 2
    pipe = pipe.sample_neighbor(graph, fanouts, prob_name="w" if weighted else None, return_edge_ids=True, **options)
    options |= {"weights": weights.tolist()} if weighted else {}
    for minibatch in start_at(pipe, epoch):
        rng = dp.stages.RngKey(rng_seed, epoch, minibatch.index, 2)
        expect_the_twin(minibatch, twin_of(graph, minibatch.seeds, rng, fanouts, **options))
        assert len(minibatch.digest()) == 32


def test_each_minibatch_epoch_place_and_sampler_draws_for_itself():
    graph = graph_of([list(range(1, 200)), *([] for _ in range(199))])
    seeds = dp.ItemSet(torch.zeros(3).long())
    start = dp.ItemSampler(seeds, 1, seed=4)
    places = [
        start.sample_neighbor(graph, [5]),
        start.transform(lambda minibatch: minibatch).sample_neighbor(graph, [5]),
    ]
    drawn = [tuple(m.input_nodes.tolist()) for pipe in places for epoch in (0, 1) for m in start_at(pipe, epoch)]
    assert len(set(drawn)) == len(drawn) == 12


def test_transform_by_hand_draws_what_the_chain_draws():
    pipe = sampled()
    by_hand = [pipe.transform(minibatch).digest() for minibatch in start_at(pipe.source, 2)]
    assert by_hand == [minibatch.digest() for minibatch in start_at(sampled(), 2)]


def test_seeds_may_be_int32_over_an_int64_graph():
    ids = torch.arange(8)
    narrow, wide = (
        dp.ItemSampler(dp.ItemSet(seeds), 4).sample_neighbor(small_graph(), [2]) for seeds in (ids.int(), ids)
    )
    assert [m.input_nodes.tolist() for m in narrow] == [m.input_nodes.tolist() for m in wide]


def test_edge_ids_are_left_out_unless_asked_for():
    minibatch = next(iter(items().sample_neighbor(small_graph(), [2])))
    assert [block.edge_ids for block in minibatch.blocks] == [None]


def test_compacted_seeds_point_at_the_seeds_repeats_and_pairs_included():
    pairs = torch.tensor([[5, 7], [7, 5], [5, 5], [9, 7]])
    minibatch = next(iter(dp.ItemSampler(dp.ItemSet(pairs), 4).sample_neighbor(small_graph(), [2, 2])))
    assert minibatch.compacted_seeds.tolist() == [[0, 1], [1, 0], [0, 0], [2, 1]]
    assert minibatch.input_nodes[:3].tolist() == [5, 7, 9]
    assert minibatch.blocks[-1].num_dst == 3
    assert torch.equal(minibatch.input_nodes[minibatch.compacted_seeds], pairs)


def test_fanouts_are_written_from_the_input_layer_to_the_seeds():
    graph = graph_of([[1, 2, 3], [4, 5], [4, 5], [4, 5], [], []])
    outer, inner = next(iter(dp.ItemSampler(dp.ItemSet(1), 1).sample_neighbor(graph, [-1, 2], frontier="new"))).blocks
    assert (inner.num_edges, outer.num_edges) == (2, 4)


@pytest.mark.parametrize(
    "fanouts",
    [(3, 2), torch.tensor([3, 2]), [np.int64(3), np.int32(2)], range(3, 1, -1)],
    ids=lambda f: type(f).__name__,
)
def test_fanouts_may_be_any_sequence_of_ints(fanouts):
    assert sampled(fanouts=fanouts).fanouts == [3, 2]


# --- refused when the chain is built


def test_what_a_neighbor_sampler_refuses(refuses):
    sample, graph = items().sample_neighbor, small_graph()
    for fanouts in ([], [1] * 257, [2, -2], [2**63]):
        refuses(ValueError, sample, graph, fanouts)
    for fanouts in ([2.0], [True], torch.tensor([0.5]), 3, "32", None, {"a": 1}, [2, {CITES: 2}]):
        refuses(TypeError, sample, graph, fanouts)
    refuses(TypeError, sample, graph, [2], replace=1)
    refuses(TypeError, sample, graph, [2], return_edge_ids="yes")
    refuses(ValueError, sample, graph, [2], frontier="old")
    refuses(ValueError, sample, graph, [2], frontier=None)
    for wrong in (torch.eye(3), ((0, 1), (1,))):
        refuses(TypeError, sample, wrong, [2])


# --- refused while running


def sample(seeds, graph: dp.CSCGraph | None = None, fanouts=(-1, -1)) -> dp.MiniBatch:
    """One minibatch of any seeds, also of seeds that no ItemSet allows."""
    start = dp.ItemSampler(dp.ItemSet(1), 1).transform(lambda minibatch: minibatch.replace(seeds=seeds))
    return next(iter(start.sample_neighbor(graph or small_graph(), fanouts)))


def test_what_seeds_are_refused(refuses):
    for ids in ([0, 40], [-1, 0], [2**62]):
        refuses(IndexError, sample, torch.tensor(ids))
    for wrong in (torch.tensor([1.0]), torch.tensor([True]), None, [1, 2]):
        refuses(TypeError, sample, wrong)
    for wrong in (
        torch.arange(6)[::2],
        torch.zeros(2, 2, 2).long(),
        torch.tensor(3),
        torch.tensor([], dtype=torch.int64),
        torch.zeros(3, device="meta").long(),
    ):
        refuses(ValueError, sample, wrong)
    refuses(TypeError, sampled().transform, dp.MiniBatch(seeds=[1, 2]))


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        ([0, 3, 1, 4], [0, 1, 2, 0]),
        ([0, 2**40, 3, 4], [0, 1, 2, 0]),
        ([0, -(2**40), 3, 4], [0, 1, 2, 0]),
        ([0, 2, 3, 4], [0, 3, 2, 0]),
        ([0, 2, 3, 4], [0, -1, 2, 0]),
        ([0, 2, 3, 4], [0, 2**40, 2, 0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("fanout", [-1, 1, 2])
def test_a_graph_that_contradicts_itself_ends_in_an_error_or_is_not_met(indptr, indices, fanout):
    graph = dp.CSCGraph(torch.tensor(indptr), torch.tensor(indices))
    try:
        nodes = sample(torch.arange(3), graph, (fanout, fanout)).input_nodes.tolist()
    except (ValueError, IndexError) as error:
        text = str(error)
    else:
        assert fanout != -1  # with -1 all in-edges are read, so the sampler must find the fault
        text = "graph" if set(nodes) == {0, 1, 2} else f"found {nodes}"
    assert "graph" in text


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(
    ("fanouts", "hop", "picks"),
    [([2**40], 0, 3 * 2**40), ([2, 2**40], 0, 3 * 2**40), ([2**40, 2], 1, 3 * 2**40), ([2**31] * 4, 0, 3 * 2**31)],
    ids=str,
)
def test_a_hop_that_does_not_fit_into_memory_says_what_it_needs_before_it_is_drawn(dtype, fanouts, hop, picks):
    if _core.memory_left()[0] > 100 * 2**30:
        pytest.skip("needs a machine with less than 100 GiB left")
    graph = graph_of([[0, 1, 2]] * 3).with_index_dtype(dtype)
    pipe = dp.ItemSampler(dp.ItemSet(3), 3).sample_neighbor(graph, fanouts, replace=True, return_edge_ids=True)
    least = picks * (dtype.itemsize + 8)
    found = f"hop {hop} .* fanout {max(fanouts)}, drawn with replacement, would hold {picks} in-edges.* (\\d+) bytes"
    with refused(MemoryError, stage="sample_neighbor", found=found, allowed=r"\d+ are left by the memory") as caught:
        next(iter(pipe))
    assert least <= int(re.search(found, str(caught.value)).group(1)) <= 3 * least


def test_more_picks_than_64_bits_count_are_refused(refuses):
    start, graph = dp.ItemSampler(dp.ItemSet(3), 3), graph_of([[0, 1, 2]] * 3)
    for fanouts in ([2**62], [2**63 - 1], [3, 2**62]):
        refuses(ValueError, next, iter(start.sample_neighbor(graph, fanouts, replace=True)))


def test_the_error_of_too_large_a_hop_comes_out_of_a_worker():
    if _core.memory_left()[0] > 2**44:
        pytest.skip("needs a machine with less than 16 TiB left")
    pipe = dp.ItemSampler(dp.ItemSet(3), 3).sample_neighbor(graph_of([[0, 1, 2]] * 3), [2**40], replace=True)
    expected = refused(MemoryError, stage="sample_neighbor", found="hop 0", allowed="are left by the memory")
    with dp.DataLoader(pipe, 1, multiprocessing_context="fork") as loader, expected:
        next(iter(loader))
