"""UniformNegativeSampler: negatives are those of the twin, over whole graphs and parts, and never an edge where strict.
Distributions, and what is refused.
"""

import math

import numpy as np
import pytest
import torch
import twin
import twin_links
from amounts import FULL, amount
from chi_square import p_value
from dist_graphs import in_parts, new_root, small_parts, typed_parts
from hypothesis import assume, given
from hypothesis import strategies as st
from link_chains import PAIRS, links_of_types, pairs_chain
from pipelines import (
    assert_no_bit_changes,
    assert_states_are_apart,
    assert_states_move,
    digests,
    first,
    graph_of,
    small_graph,
)
from strategies import csc_graphs, typed_graphs, typed_pairs
from twin_cases import typed_graph_of, typed_set_of
from typed_pipelines import typed_graph

import datapipes as dp
from datapipes.partition.native.manifest import opened_manifest

SEED = 5


def contract_chain() -> dp.Stage:
    return pairs_chain().sample_uniform_negative(small_graph(), 2, strict=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.UniformNegativeSampler(pairs_chain(), small_graph(), 2, strict=True)


def edges_of(indptr, indices) -> set[tuple[int, int]]:
    return {(int(u), v) for v in range(len(indptr) - 1) for u in indices[indptr[v] : indptr[v + 1]]}


def timed(graph: dp.CSCGraph, times: torch.Tensor) -> dp.CSCGraph:
    return dp.CSCGraph(graph.indptr, graph.indices, edge_ids=graph.edge_ids, node_attributes={"since": times})


# --- the twin


@given(st.data(), csc_graphs(min_nodes=1))
def test_negatives_are_those_of_the_twin(data, arrays):
    num_nodes, has_times = arrays.num_nodes, data.draw(st.booleans())
    ids = st.integers(0, num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(ids, ids), min_size=1, max_size=6))
    corrupt = data.draw(st.sampled_from(["src", "dst", "both"]))
    ratio = data.draw(st.sampled_from([1, 2, 3, 0.5, 1.25]))
    weights: list = [None, None]
    given_weights = {}
    for column in twin_links.COLUMNS[corrupt]:
        if data.draw(st.booleans()):
            some = data.draw(st.lists(st.sampled_from([0, 0.25, 1, 3]), min_size=num_nodes, max_size=num_nodes))
            weights[column] = some if any(some) else [1] * num_nodes
            dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
            given_weights[("src_weight", "dst_weight")[column]] = torch.tensor(weights[column], dtype=dtype)
    since = data.draw(st.lists(st.integers(0, 3), min_size=num_nodes, max_size=num_nodes))
    times = data.draw(st.lists(st.integers(-1, 4), min_size=len(pairs), max_size=len(pairs)))
    strict = data.draw(st.booleans())
    graph = timed(dp.CSCGraph(*arrays), torch.tensor(since))
    items = dp.ItemSet((torch.tensor(pairs), torch.tensor(times)), names=("seeds", "timestamps"))
    options = {"corrupt": corrupt, "strict": strict, "node_time_attr": "since" if has_times else None}
    pipe = dp.ItemSampler(items, len(pairs), seed=SEED)
    pipe = pipe.sample_uniform_negative(graph, ratio, **options, **given_weights)
    key = twin.hop_key(SEED, 0, 0, 1, 0, 0)
    try:
        expected = twin_links.negatives(
            pairs,
            ratio,
            key,
            (num_nodes, num_nodes),
            corrupt=corrupt,
            weights=tuple(weights),
            edges=edges_of(*arrays) if strict else None,
            since=(since, since) if has_times else (None, None),
            times=times if has_times else None,
        )
    except ValueError:
        with pytest.raises(ValueError, match="found no negative for the positive"):
            first(pipe)
        return
    found = first(pipe)
    assert found.seeds.tolist() == [*map(list, pairs), *expected]
    assert found.indexes.tolist() == [*range(len(pairs)), *twin_links.positive_of(len(pairs), ratio)]


@pytest.mark.parametrize("corrupt", ["src", "dst", "both"])
@pytest.mark.parametrize("strict", [False, True])
@given(data=st.data(), arrays=typed_graphs())
def test_negatives_of_types_are_those_of_the_twin(data, arrays, corrupt, strict):
    pairs = data.draw(typed_pairs(arrays))
    assume(pairs)
    graph = typed_graph_of(arrays)
    ratio = data.draw(st.sampled_from([1, 2, 0.5]))
    pipe = dp.ItemSampler(typed_set_of(pairs), 40, seed=SEED)
    pipe = pipe.sample_uniform_negative(graph, ratio, corrupt=corrupt, strict=strict)
    try:
        expected = {}
        for of, each in pairs.items():
            indptr, indices, _ = arrays.relations[of]
            key = twin.hop_key(SEED, 0, 0, 1, 0, graph.edge_types.index(of))
            ends = (arrays.num_nodes[of[0]], arrays.num_nodes[of[2]])
            edges = edges_of(indptr, indices) if strict else None
            expected[of] = twin_links.negatives(each, ratio, key, ends, corrupt=corrupt, edges=edges)
    except ValueError:
        with pytest.raises(ValueError, match="found no negative for the positive"):
            first(pipe)
        return
    found = {of: each.tolist() for of, each in first(pipe).seeds.items()}
    assert found == {of: [*map(list, each), *expected[of]] for of, each in pairs.items()}


def test_weights_of_types_are_those_of_the_drawn_end():
    weights = {"paper": torch.zeros(40), "author": torch.zeros(25)}
    weights["paper"][17] = weights["author"][3] = 1
    pipe = links_of_types().sample_uniform_negative(
        typed_graph(), 1, corrupt="both", src_weight=weights, dst_weight=weights
    )
    found = first(pipe)
    for (src, _, dst), seeds in found.seeds.items():
        one = {"paper": 17, "author": 3}
        assert seeds[len(seeds) // 2 :].tolist() == [[one[src], one[dst]]] * (len(seeds) // 2)


def test_int32_seeds_stay_int32_unless_the_ids_need_more():
    pairs = dp.ItemSampler(dp.ItemSet(PAIRS.int()), 4)
    assert first(pairs.sample_uniform_negative(small_graph(torch.int32), 2)).seeds.dtype == torch.int32


def test_ids_beyond_2_to_the_31_are_drawn():
    num_nodes = 2**33
    sampler = dp.UniformNegativeSampler(pairs_chain(), small_graph(), 3)
    object.__setattr__(sampler, "graph", HugeGraph(num_nodes))
    pairs = torch.tensor([[2**32 + 5, 7], [1, 2**31]])
    found = sampler.sample(pairs[[0, 0, 0, 1, 1, 1]], dp.stages.RngKey(SEED, 0, 0, 1), None, None)
    key = twin.hop_key(SEED, 0, 0, 1, 0, 0)
    assert found.tolist() == twin_links.negatives(pairs.tolist(), 3, key, (num_nodes, num_nodes))
    assert int(found[:, 1].max()) > 2**32
    narrow = sampler.sample(PAIRS[:6].int(), dp.stages.RngKey(SEED, 0, 0, 1), None, None)
    assert narrow.dtype == torch.int64


@pytest.mark.parametrize("num_nodes", [1, 40, 3_000_000_001, 2**32 - 1, 2**32, 2**34])
@pytest.mark.parametrize("corrupt", ["src", "dst", "both"])
def test_the_first_tries_together_are_those_one_by_one(num_nodes, corrupt):
    """Draws below 3 * 10^9 are rejected now and then, which the fast way must see."""
    for ratio in (5, 0.7):
        sampler = dp.UniformNegativeSampler(pairs_chain(), small_graph(), ratio, corrupt=corrupt)
        object.__setattr__(sampler, "graph", HugeGraph(num_nodes))
        pairs = torch.arange(1_400).reshape(-1, 2)
        rng = dp.stages.RngKey(SEED, 0, 0, 1)
        found = sampler.transform(dp.MiniBatch(seeds=pairs, rng=rng)).seeds
        of = torch.tensor(twin_links.positive_of(len(pairs), ratio))
        assert torch.equal(found[len(pairs) :], sampler.sample(pairs[of], rng, None, None))
        assert torch.equal(found[: len(pairs)], pairs)


class HugeGraph:
    """So many nodes that no array of them fits here."""

    is_heterogeneous, in_parts, edge_types = False, False, (None,)

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def num_nodes_of(self, node_type: object) -> int:
        return self.num_nodes


# --- one value: threads, workers, parts, resumed

OPTIONS = {
    "plain": {},
    "strict": {"strict": True},
    "both ends": {"corrupt": "both", "strict": True},
    "rows": {"form": "rows", "strict": True, "corrupt": "src"},
    "weights": {"dst_weight": torch.arange(40.0), "strict": True},
    "times": {"node_time_attr": "since", "strict": True},
}


def linked(graph, name: str) -> dp.Stage:
    pipe = pairs_chain(timestamps=torch.arange(22) % 9).sample_uniform_negative(graph, 2, **OPTIONS[name])
    return pipe.sample_neighbor(graph, [3, 2])


def small_timed_graph() -> dp.CSCGraph:
    return timed(small_graph(), torch.arange(40) * 7 % 10)


@pytest.mark.parametrize("name", OPTIONS)
def test_parts_change_no_bit(name):
    graph = small_timed_graph()
    expected = digests(linked(graph, name))
    for num_parts in (1, 2, 3, 4):
        for local_part in (None, 0) if FULL else ((None, 0)[num_parts % 2],):
            parts = small_parts(num_parts, local_part, graph, node_time_attr="since")
            assert digests(linked(parts, name)) == expected
            by_hand = first(linked(parts, name).source.source).replace()
            assert torch.equal(linked(parts, name).source.transform(by_hand).seeds, first(linked(graph, name)).seeds)


@pytest.mark.parametrize("name", OPTIONS)
def test_workers_and_threads_change_no_bit(name):
    assert_no_bit_changes(lambda: linked(small_timed_graph(), name))


def test_parts_of_types_change_no_bit():
    for options in ({"strict": True}, {"corrupt": "src", "strict": True, "form": "rows"}):
        expected = digests(links_of_types().sample_uniform_negative(typed_graph(), 2, **options))
        assert digests(links_of_types().sample_uniform_negative(typed_parts(), 2, **options)) == expected


@pytest.mark.parametrize("name", OPTIONS)
def test_a_state_moves_between_the_whole_graph_and_parts(name):
    graph = small_timed_graph()
    assert_states_move(lambda: [linked(graph, name), linked(small_parts(2, 0, graph, node_time_attr="since"), name)])


def test_a_state_does_not_load_with_other_options_weights_times_or_graph():
    graph = small_timed_graph()
    weights = torch.arange(40.0)
    assert_states_are_apart(
        [
            linked(graph, "plain"),
            linked(graph, "strict"),
            linked(graph, "times"),
            linked(timed(small_graph(), torch.arange(40) * 3 % 10), "times"),
            *(pairs_chain().sample_uniform_negative(graph, 2, dst_weight=values) for values in (weights, weights + 1)),
            pairs_chain().sample_uniform_negative(graph, 3),
            pairs_chain().sample_uniform_negative(graph, 2, form="rows"),
            pairs_chain().sample_uniform_negative(graph, 2, corrupt="src"),
        ]
    )


def test_one_round_asks_each_part_once():
    parts = small_parts(3, None)
    chain = pairs_chain().sample_uniform_negative(parts, 2, strict=True)
    parts.peers.asked.clear()
    first(chain)
    kinds = [(part, type(request).__name__) for part, request in parts.peers.asked]
    assert {kind for _, kind in kinds} == {"EdgesRequest"}
    rounds = max(sum(part == each for part, _ in kinds) for each in range(3))
    tries = sum(len(request.sources) for _, request in parts.peers.asked)
    assert tries <= 8 * (2**rounds - 1)


# --- distributions


@pytest.mark.parametrize("weighted", [False, True])
def test_nodes_are_drawn_in_proportion(weighted):
    num_nodes, count = 50, amount(40_000, 400_000)
    weights = torch.arange(num_nodes).double() ** 2 if weighted else torch.ones(num_nodes).double()
    given = {"dst_weight": weights} if weighted else {}
    graph = dp.CSCGraph(torch.zeros(num_nodes + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    sampler = dp.UniformNegativeSampler(pairs_chain(), graph, 1, **given)
    found = sampler.sample(torch.zeros(count, 2, dtype=torch.int64), dp.stages.RngKey(11, 0, 0, 1), None, None)
    counts = torch.bincount(found[:, 1], minlength=num_nodes).double()
    expected = weights / weights.sum() * count
    assert counts[expected == 0].sum() == 0
    some = expected > 0
    chi_square = float(((counts - expected)[some] ** 2 / expected[some]).sum())
    assert p_value(chi_square, int(some.sum()) - 1) > 1e-4
    assert int(found[:, 0].sum()) == 0


@pytest.mark.parametrize("density", [0.01, 0.5])
@pytest.mark.parametrize("corrupt", ["src", "dst", "both"])
def test_strict_negatives_are_no_edges_and_not_the_positive(density, corrupt):
    num_nodes, count = 400, amount(5_000, 100_000)
    is_edge = np.random.default_rng(3).random((num_nodes, num_nodes)) < density  # of destination and source
    indptr = np.concatenate([[0], is_edge.sum(1).cumsum()])
    graph = dp.CSCGraph(indptr, is_edge.nonzero()[1].copy())
    generator = torch.Generator().manual_seed(4)
    pairs = torch.randint(num_nodes, (count, 2), generator=generator)
    sampler = dp.UniformNegativeSampler(pairs_chain(), graph, 1, strict=True, corrupt=corrupt)
    found = sampler.sample(pairs, dp.stages.RngKey(11, 0, 0, 1), None, None)
    assert not is_edge[found[:, 1], found[:, 0]].any()
    assert not bool((found == pairs).all(1).any())
    kept = {"src": 1, "dst": 0}.get(corrupt)
    assert kept is None or torch.equal(found[:, kept], pairs[:, kept])


def test_a_complete_graph_ends_in_an_error_that_names_the_positive(refuses):
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([[2, 1]])), 1)
    for corrupt in ("dst", "src", "both"):
        complete = pipe.sample_uniform_negative(graph_of([[*range(6)]] * 6), 1, corrupt=corrupt, strict=True)
        refuses(ValueError, first, complete)


def test_many_pairs_of_hubs_find_the_one_node_that_is_left():
    num_nodes = 1_500  # more in-edges than a short row has
    columns = [[u for u in range(num_nodes) if u != 7], *([[]] * (num_nodes - 1))]
    graph = graph_of(columns)
    weights = torch.zeros(num_nodes)
    weights[:8] = 1
    pairs = torch.tensor([[3, 0]] * 50)
    sampler = dp.UniformNegativeSampler(pairs_chain(), graph, 1, strict=True, corrupt="src", src_weight=weights)
    assert sampler.sample(pairs, dp.stages.RngKey(1, 0, 0, 1), None, None).tolist() == [[7, 0]] * 50


def test_more_open_negatives_than_one_round_takes_give_the_same(monkeypatch):
    graph = graph_of([[u for u in range(30) if u != v] for v in range(30)])  # only no self-loops
    pairs = torch.stack((torch.arange(30).repeat(20), (torch.arange(30).repeat(20) + 7) % 30), 1)
    sampler = dp.UniformNegativeSampler(pairs_chain(), graph, 1, strict=True, corrupt="dst")
    expected = sampler.sample(pairs, dp.stages.RngKey(1, 0, 0, 1), None, None)
    assert torch.equal(expected[:, 0], expected[:, 1])
    monkeypatch.setattr("datapipes.sampling.uniform_negative_sampler.MOST_OPEN", 7)
    assert torch.equal(sampler.sample(pairs, dp.stages.RngKey(1, 0, 0, 1), None, None), expected)


# --- times


def test_without_an_eligible_node_the_earliest_is_taken():
    graph = timed(small_graph(), torch.tensor([9, 5, 5, *[7] * 37]))
    items = dp.ItemSet((torch.tensor([[3, 4], [4, 3]]), torch.tensor([4, 5])), names=("seeds", "timestamps"))
    found = first(dp.ItemSampler(items, 2).sample_uniform_negative(graph, 2, node_time_attr="since"))
    assert found.seeds[2:4].tolist() == [[3, 1]] * 2
    assert set(found.seeds[4:, 1].tolist()) <= {1, 2}


def test_parts_without_the_earliest_nodes_are_refused(refuses):
    parts = in_parts(small_timed_graph(), torch.arange(40) % 2, 2, node_time_attr="since")
    object.__setattr__(parts.facts, "earliest_nodes", None)
    other = in_parts(small_timed_graph(), torch.arange(40) % 2, 2)
    for wrong in (parts, other):
        refuses(ValueError, pairs_chain().sample_uniform_negative, wrong, 1, node_time_attr="since")


# --- what is refused


def test_what_weights_are_refused(refuses):
    def sampler(**options: object) -> dp.Stage:
        return pairs_chain().sample_uniform_negative(small_graph(), 1, **options)

    for wrong in (
        torch.ones(39),
        torch.ones(40, 1),
        -torch.arange(40.0),
        torch.full((40,), math.nan),
        torch.full((40,), math.inf),
        torch.zeros(40),
        torch.full((40,), 1e308, dtype=torch.float64),
    ):
        refuses(ValueError, sampler, dst_weight=wrong)
    for wrong in (torch.ones(40, dtype=torch.int64), {"paper": torch.ones(40)}, [1.0] * 40):
        refuses(TypeError, sampler, dst_weight=wrong)
    refuses(ValueError, sampler, corrupt="dst", src_weight=torch.ones(40))
    refuses(ValueError, sampler, corrupt="src", dst_weight=torch.ones(40))
    pipe = sampler(dst_weight=torch.rand(40))
    assert digests(sampler(dst_weight=pipe.dst_weight)) == digests(pipe)
    other = graph_of([[1], [0]])
    refuses(ValueError, pairs_chain().sample_uniform_negative, other, 2, dst_weight=pipe.dst_weight)
    authors = {"author": torch.ones(25)}
    refuses(ValueError, links_of_types().sample_uniform_negative, typed_graph(), 1, dst_weight=authors)


def test_values_that_were_changed_in_place_are_refused(refuses):
    weights, graph = torch.ones(40), small_timed_graph()
    weighted = pairs_chain().sample_uniform_negative(graph, 1, dst_weight=weights)
    at_times = pairs_chain(timestamps=torch.arange(22)).sample_uniform_negative(graph, 1, node_time_attr="since")
    weights[3] = 7
    graph.node_attributes["since"][3] = 7
    refuses(ValueError, first, weighted)
    refuses(ValueError, first, at_times)


def test_what_graphs_and_seeds_are_refused(refuses):
    refuses(TypeError, pairs_chain().sample_uniform_negative, 7, 1)
    refuses(TypeError, pairs_chain().sample_uniform_negative, typed_graph(), 1)
    refuses(TypeError, links_of_types().sample_uniform_negative, small_graph(), 1)
    likes = dp.HeteroItemSet({("paper", "likes", "paper"): dp.ItemSet(PAIRS)})
    refuses(ValueError, dp.ItemSampler(likes, 4).sample_uniform_negative, typed_graph(), 1)
    hosts = dp.HeteroItemSet({("venue", "hosts", "paper"): dp.ItemSet(PAIRS)})  # there are no venues
    refuses(ValueError, dp.ItemSampler(hosts, 4).sample_uniform_negative, typed_graph(), 2, corrupt="src")
    for graph in (small_graph(), small_parts(2)):
        for wrong in ([99, 1], [1, 99], [1, -1]):
            pairs = dp.ItemSampler(dp.ItemSet(torch.tensor([wrong])), 1)
            refuses(IndexError, first, pairs.sample_uniform_negative(graph, 1, strict=True))


def test_what_times_are_refused(refuses):
    timed_negatives, times = {"negative_ratio": 1, "node_time_attr": "since"}, small_timed_graph()
    refuses(ValueError, pairs_chain().sample_uniform_negative, small_graph(), **timed_negatives)
    refuses(ValueError, pairs_chain().sample_uniform_negative, times, **timed_negatives)
    unknown = pairs_chain().transform(lambda minibatch: minibatch)
    refuses(ValueError, first, unknown.sample_uniform_negative(times, **timed_negatives))
    floats = timed(small_graph(), torch.rand(40))
    refuses(TypeError, pairs_chain().sample_uniform_negative, floats, **timed_negatives)
    late = pairs_chain(timestamps=torch.rand(22))
    refuses(TypeError, first, late.sample_uniform_negative(times, **timed_negatives))


def test_the_manifest_tells_the_earliest_nodes():
    root = new_root()
    graph = small_timed_graph()
    dp.distributed.Partitioner(graph, 2, root, method="random", node_time_attr="since").generate_partition()
    with opened_manifest("test", root) as manifest:
        assert manifest.earliest_nodes[None].node == int((graph.node_attributes["since"] == 0).nonzero()[0])
