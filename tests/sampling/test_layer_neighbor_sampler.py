"""LayerNeighborSampler: equal to the twin; picks are uniform or by weight, and shared between nodes, hops and
minibatches.
"""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
import twin_layer
from amounts import ranked
from chi_square import p_value
from hypothesis import assume, given
from hypothesis import strategies as st
from pipelines import assert_no_bit_changes, graph_of, items, small_graph, start_at
from strategies import csc_graphs, rng_seeds, typed_graphs, typed_seeds
from twin import Neighborhood
from twin_cases import by_hop, expect_the_twin, typed_fanouts, typed_graph_of, typed_set_of
from typed_pipelines import CITES, WRITES, typed_graph, typed_items
from weights import weighted_graph, weighted_typed_graph, weights_for

import datapipes as dp

DEPENDENCIES = st.fixed_dictionaries(
    {"layer_dependency": st.booleans(), "batch_dependency": st.sampled_from([1, 2, 7, 2**31 - 1])}
)


def contract_chain() -> dp.Stage:
    return items().sample_layer_neighbor(small_graph(), [3, 2], batch_dependency=7, return_edge_ids=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    options = {"layer_dependency": True, "batch_dependency": 3, "frontier": "new", "prob_name": "w"}
    functional = typed_items().sample_layer_neighbor(weighted_typed_graph(), [2, 3], **options)
    return functional, dp.LayerNeighborSampler(typed_items(), weighted_typed_graph(), [2, 3], **options)


@given(st.data(), csc_graphs(min_nodes=1), rng_seeds, st.integers(0, 2**32 - 1))
def test_the_stage_draws_what_the_twin_draws(data, arrays, rng_seed, epoch):
    fanouts = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
    dependencies, frontier = data.draw(DEPENDENCIES), data.draw(st.sampled_from(["all", "new"]))
    edge_ids = np.arange(arrays.num_edges)[::-1].copy() if data.draw(st.booleans()) else None
    weights = data.draw(st.none() | weights_for(arrays.num_edges))
    by_weight = {} if weights is None else {"prob_name": "w"}
    graph = dp.CSCGraph(*arrays, edge_ids=edge_ids, edge_attributes={} if weights is None else {"w": weights})
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    start = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 4, shuffle=True, seed=rng_seed)
    pipe = start.transform(lambda minibatch: minibatch)  # the sampler then has ordinal 2
    options = {"frontier": frontier, "return_edge_ids": True, **dependencies, **by_weight}
    pipe = pipe.sample_layer_neighbor(graph, fanouts, **options)
    for minibatch in start_at(pipe, epoch):
        found = twin_layer.sample_layer_neighbors(
            [""],
            {twin_layer.PLAIN: (*arrays, edge_ids)},
            {"": minibatch.seeds.tolist()},
            fanouts=[{twin_layer.PLAIN: fanout} for fanout in reversed(fanouts)],
            layers=twin_layer.Layers(rng_seed, epoch, minibatch.index, 2, **dependencies),
            frontier=frontier,
            weights=None if weights is None else {twin_layer.PLAIN: weights.tolist()},
        )
        if any(fanouts):
            hops = [blocks[twin_layer.PLAIN] for blocks in found.hops]
            expect_the_twin(minibatch, Neighborhood(found.nodes[""], found.compacted_seeds[""], hops))


@given(st.data(), typed_graphs(), rng_seeds)
def test_the_stage_draws_what_the_twin_draws_with_types(data, arrays, rng_seed):
    weights = None
    if data.draw(st.booleans()):
        weights = {of: data.draw(weights_for(len(indices))) for of, (_, indices, _) in arrays.relations.items()}
    graph = typed_graph_of(
        arrays, **({} if weights is None else {"edge_attributes": {of: {"w": w} for of, w in weights.items()}})
    )
    seeds = {of: ids for of, ids in data.draw(typed_seeds(arrays)).items() if ids}
    assume(seeds)
    fanouts = data.draw(typed_fanouts(graph))
    dependencies, frontier = data.draw(DEPENDENCIES), data.draw(st.sampled_from(["all", "new"]))
    start = dp.ItemSampler(typed_set_of(seeds), 5, shuffle=True, seed=rng_seed)
    options = {"frontier": frontier, "return_edge_ids": True, "prob_name": None if weights is None else "w"}
    for minibatch in start.sample_layer_neighbor(graph, fanouts, **options, **dependencies):
        expected = twin_layer.sample_layer_neighbors(
            sorted(arrays.num_nodes),
            arrays.relations,
            {of: ids.tolist() for of, ids in minibatch.seeds.items()},
            fanouts=by_hop(fanouts, graph.edge_types),
            layers=twin_layer.Layers(rng_seed, 0, minibatch.index, 1, **dependencies),
            frontier=frontier,
            weights=weights and {of: w.tolist() for of, w in weights.items()},
        )
        expect_the_twin(minibatch, expected)


@pytest.mark.parametrize("options", [{"batch_dependency": 1}, {"batch_dependency": 7}, {"prob_name": "w"}], ids=str)
def test_threads_and_workers_change_no_bit(options):
    columns = [[(v * 31 + i * 7) % 1200 for i in range(v % 90)] for v in range(1200)]

    def chain() -> dp.Stage:
        graph = graph_of(columns)
        graph.edge_attributes["w"] = (torch.arange(graph.num_edges) % 11).half()
        start = dp.ItemSampler(dp.ItemSet(1200), 600, shuffle=True, seed=3)
        return start.sample_layer_neighbor(graph, [30, 20, 40], **options)

    assert next(iter(chain())).blocks[0].num_edges > 16_384  # for fewer picks no thread is woken (draw_hop.h)
    assert_no_bit_changes(chain)


def test_int32_and_int64_graphs_have_the_same_picks():
    narrow, wide = (
        list(items().sample_layer_neighbor(small_graph(dtype), [3, 2], batch_dependency=2))
        for dtype in (torch.int32, torch.int64)
    )
    assert [m.input_nodes.tolist() for m in narrow] == [m.input_nodes.tolist() for m in wide]
    assert {m.input_nodes.dtype for m in narrow} == {torch.int32}


# --- what the numbers are for


def picks_of(degree: int, fanout: int, trials: int, columns: int = 1, **options) -> list[list[list[int]]]:
    """What nodes 0 .. columns - 1, which all have the sources 0 .. degree - 1, pick in each minibatch."""
    num_nodes = max(degree, columns)
    row = torch.arange(degree)
    ends = [min(v, columns) * degree for v in range(num_nodes + 1)]
    graph = dp.CSCGraph(torch.tensor(ends), row.repeat(columns))
    seeds = torch.arange(columns).repeat(trials)
    pipe = dp.ItemSampler(dp.ItemSet(seeds), columns, seed=11)
    found = []
    for minibatch in pipe.sample_layer_neighbor(graph, [fanout], **options):
        (block,) = minibatch.blocks
        picked = minibatch.input_nodes[block.indices]
        found.append([picked[block.indptr[v] : block.indptr[v + 1]].tolist() for v in range(columns)])
    return found


def inclusion_p(counts: np.ndarray, trials: int, fanout: int) -> float:
    """The p-value of counts of picks, `fanout` of len(counts) in each trial, each equally likely."""
    cells = len(counts)
    share = fanout / cells
    assert counts.sum() == trials * fanout
    variance = trials * share * (1 - share) * cells / (cells - 1)
    return p_value(float(((counts - trials * share) ** 2).sum() / variance), cells - 1)


@pytest.mark.parametrize("dependency", [1, 3])
@pytest.mark.parametrize(
    ("degree", "fanout", "trials"), ranked([(5, 2, 3000), (300, 15, 1500), (30, 10, 2000), (5000, 40, 600)], 2)
)
def test_each_in_edge_is_picked_with_the_same_probability(degree, fanout, trials, dependency):
    found = picks_of(degree, fanout, trials * dependency, batch_dependency=dependency)
    counts = np.bincount(np.concatenate([picks[0] for picks in found[::dependency]]), minlength=degree)
    assert 1e-4 < inclusion_p(counts, trials, fanout) < 1 - 1e-4


def test_pairs_of_in_edges_are_picked_together_as_often_as_by_chance():
    degree, fanout, trials = 6, 3, 4000
    pairs = np.zeros((degree, degree))
    for ((first, second, third),) in picks_of(degree, fanout, trials):
        pairs[[first, first, second], [second, third, third]] += 1
    counts = pairs[np.triu_indices(degree, 1)]
    share = fanout * (fanout - 1) / (degree * (degree - 1))
    assert np.abs(counts - trials * share).max() < 5 * math.sqrt(trials * share * (1 - share))


def picks_by_weight(weights: list[float], fanout: int, trials: int) -> list[list[int]]:
    """What a node with sources of these weights picks in each minibatch, as offsets."""
    row = torch.arange(len(weights))
    indptr = torch.tensor([0] + [len(weights)] * len(weights))
    graph = dp.CSCGraph(indptr, row, edge_attributes={"w": torch.tensor(weights)})
    pipe = dp.ItemSampler(dp.ItemSet(torch.zeros(trials, dtype=torch.int64)), 1, seed=11)
    chain = pipe.sample_layer_neighbor(graph, [fanout], prob_name="w", return_edge_ids=True)
    return [minibatch.blocks[0].edge_ids.tolist() for minibatch in chain]


def test_by_weight_picks_have_the_law_of_successive_draws():
    weights, trials = [1.0, 30.0, 0.0, 4.0, 10.0, 0.25], 4000
    total = sum(weights)
    firsts = np.bincount(np.concatenate(picks_by_weight(weights, 1, trials)), minlength=6)
    expected = {(i,): w / total for i, w in enumerate(weights)}
    pairs = {
        (i, j): expected[i,] * weights[j] / (total - weights[i]) + expected[j,] * weights[i] / (total - weights[j])
        for i, j in combinations(range(6), 2)
    }
    found = picks_by_weight(weights, 2, trials)
    of_pairs = [sum(picks == [*pair] for picks in found) for pair in pairs]
    for counts, shares in ((firsts, expected), (of_pairs, pairs)):
        cells = [(count, trials * share) for count, share in zip(counts, shares.values(), strict=True)]
        assert all(count == 0 for count, mean in cells if mean == 0)
        statistic = sum((count - mean) ** 2 / mean for count, mean in cells if mean > 0)
        assert 1e-4 < p_value(float(statistic), sum(mean > 0 for _, mean in cells) - 1) < 1 - 1e-4


def test_equal_weights_pick_as_without_weights_and_a_mask_among_what_it_keeps():
    for weights, kept in ((torch.full((200,), 0.5), small_graph()), (torch.arange(200) % 3 > 0, None)):
        by_weight = items().sample_layer_neighbor(weighted_graph(weights), [3, 2], prob_name="w")
        if kept is None:
            graph, of_row = small_graph(), torch.arange(40).repeat_interleave(small_graph().indptr.diff())
            columns = [graph.indices[weights & (of_row == v)].tolist() for v in range(40)]
            kept = graph_of(columns)
        plain = items().sample_layer_neighbor(kept, [3, 2])
        assert [m.digest() for m in by_weight] == [m.digest() for m in plain]


def test_nodes_with_the_same_sources_pick_the_same():
    for first, *others in picks_of(200, 7, 20, columns=5):
        assert len(first) == 7
        assert all(picks == first for picks in others)


def test_a_source_that_one_node_picks_is_picked_by_all_with_a_larger_share():
    """The number is the source's: who has fewer other sources to choose from picks it whenever the other does."""
    many = list(range(100))
    graph = graph_of([many, many[::2], *([] for _ in range(98))])
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0, 1]).repeat(50)), 2, seed=4).sample_layer_neighbor(graph, [10])
    for minibatch in pipe:
        (block,) = minibatch.blocks
        first, second = (
            set(minibatch.input_nodes[block.indices[block.indptr[v] : block.indptr[v + 1]]].tolist()) for v in (0, 1)
        )
        assert {u for u in first if u % 2 == 0} <= second


def shares_kept(dependency: int, batches: int = 8) -> list[float]:
    """Of nodes that take the one smaller of two sources: the share that picks as in the minibatch before."""
    pairs = 4000
    columns = [[pairs + 2 * v, pairs + 2 * v + 1] for v in range(pairs)]
    graph = graph_of(columns + [[] for _ in range(2 * pairs)])
    seeds = dp.ItemSet(torch.arange(pairs).repeat(batches))
    pipe = dp.ItemSampler(seeds, pairs, seed=9).sample_layer_neighbor(graph, [1], batch_dependency=dependency)
    picked = [m.input_nodes[m.blocks[0].indices] for m in pipe]
    return [(a == b).float().mean().item() for a, b in pairwise(picked)]


@pytest.mark.parametrize("dependency", [2, 7, 64])
def test_from_batch_to_batch_one_source_in_kappa_gets_a_new_number(dependency):
    # A pick stays if neither source has a new number; with one new number it stays in 2 of 3, with two in 1 of 2 cases.
    kept = 1 - 1 / dependency
    expected = kept**2 + 2 * kept * (1 - kept) * 2 / 3 + (1 - kept) ** 2 / 2
    for share in shares_kept(dependency):
        assert abs(share - expected) < 5 * math.sqrt(expected * (1 - expected) / 4000)


def test_with_the_longest_dependency_numbers_stay():
    assert min(shares_kept(2**31 - 1, 3)) == 1


def test_with_layer_dependency_all_hops_have_the_same_numbers():
    graph = graph_of([list(range(50))] * 50)
    start = dp.ItemSampler(dp.ItemSet(1), 1, seed=2)
    for dependent in (True, False):
        (minibatch,) = start.sample_layer_neighbor(graph, [5, 5], layer_dependency=dependent)
        assert (len(minibatch.input_nodes) <= 6) == dependent


def test_relations_from_one_type_share_its_numbers_and_others_do_not():
    row = torch.arange(60)
    relation = (torch.tensor([0, 60]), row)
    graph = dp.HeteroCSCGraph(
        {("a", "r", "c"): relation, ("a", "s", "c"): relation, ("b", "r", "c"): relation}, {"a": 60, "b": 60, "c": 1}
    )
    start = dp.ItemSampler(dp.HeteroItemSet({"c": dp.ItemSet(1)}), 1, seed=2)
    (minibatch,) = start.sample_layer_neighbor(graph, [6])
    assert [len(minibatch.input_nodes[of]) for of in ("a", "b")] == [6, 6]
    assert set(minibatch.input_nodes["a"].tolist()) != set(minibatch.input_nodes["b"].tolist())


def test_it_needs_fewer_input_nodes_than_uniform_sampling():
    rng = np.random.default_rng(5)
    graph = dp.CSCGraph(torch.arange(2001) * 100, torch.from_numpy(rng.integers(0, 2000, 200_000)))
    start = dp.ItemSampler(dp.ItemSet(2000), 64, shuffle=True, seed=2)
    chains = {
        "uniform": start.sample_neighbor(graph, [5, 5]),
        "layer": start.sample_layer_neighbor(graph, [5, 5]),
        "dependent": start.sample_layer_neighbor(graph, [5, 5], layer_dependency=True),
    }
    nodes = {name: sum(len(m.input_nodes) for m in chain) for name, chain in chains.items()}
    assert nodes["dependent"] < nodes["layer"] < nodes["uniform"]


# --- refused


def test_what_a_layer_neighbor_sampler_refuses(refuses):
    def sampler(graph: dp.CSCGraph, fanouts: object = (2,), **options: object) -> dp.Stage:
        return items().sample_layer_neighbor(graph, fanouts, **options)

    graph = small_graph()
    for dependency in (0, -1, 2**31, 2**70):
        refuses(ValueError, sampler, graph, batch_dependency=dependency)
    for dependency in (True, 1.0, None):
        refuses(TypeError, sampler, graph, batch_dependency=dependency)
    refuses(TypeError, sampler, graph, layer_dependency=1)
    refuses(ValueError, sampler, graph, frontier="old")
    refuses(ValueError, sampler, graph, [-2])
    refuses(TypeError, sampler, torch.eye(3))
    refuses(IndexError, next, iter(dp.ItemSampler(dp.ItemSet(41), 41).sample_layer_neighbor(graph, [1])))
    typed = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(41)}), 41)
    refuses(IndexError, next, iter(typed.sample_layer_neighbor(typed_graph(), [{WRITES: 1, CITES: 1}])))
    corrupt = dp.CSCGraph(torch.tensor([0, 3]), torch.tensor([5, 5, 5]))
    refuses(ValueError, next, iter(dp.ItemSampler(dp.ItemSet(1), 1).sample_layer_neighbor(corrupt, [2])))
    refuses(TypeError, sampler, graph, prob_name=1)
    refuses(ValueError, sampler, graph, prob_name="w")
    refuses(ValueError, sampler, weighted_graph(-torch.ones(200)), prob_name="w")


def test_the_stage_tells_what_it_does():
    text = repr(contract_forms()[0])
    assert "layer_dependency=True" in text
    assert "batch_dependency=3" in text
    assert "prob_name='w'" in repr(items().sample_layer_neighbor(weighted_graph(), [2], prob_name="w"))
    plain = repr(items().sample_layer_neighbor(small_graph(), [2]))
    assert "dependency" not in plain
    assert "prob_name" not in plain


def test_dependencies_belong_to_the_fingerprint(refuses):
    state = contract_chain().state_dict()
    for options in ({"batch_dependency": 6}, {"batch_dependency": 7, "layer_dependency": True}):
        other = items().sample_layer_neighbor(small_graph(), [3, 2], return_edge_ids=True, **options)
        refuses(ValueError, other.load_state_dict, state)
    by_weight = items().sample_layer_neighbor(
        weighted_graph(), [3, 2], return_edge_ids=True, prob_name="w", batch_dependency=7
    )
    refuses(ValueError, by_weight.load_state_dict, state)
    assert "weights_digest" not in contract_chain().fingerprint()
