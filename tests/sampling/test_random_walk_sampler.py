"""RandomWalkSampler equals the twin of docs/semantics.md, section 4.11; its steps have the stated probabilities."""

import itertools
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import twin
import twin_walks
from chi_square import p_value
from dist_graphs import small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from pipelines import as_it_is, assert_no_bit_changes, digests, first, items, refused, small_graph
from strategies import ID_DTYPES, csc_graphs, random_graph
from twin_walks import rows_of
from typed_pipelines import CITES, WRITES, WRITTEN, typed_graph, typed_items
from weights import weighted_graph, weights_for

import datapipes as dp
from datapipes import _core

BIASES = [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (2.0**-50, 1.0), (1.0, 2.0**40)]
LEVEL = 1e-4


def walked(graph: Any = None, length: int = 4, **arguments: Any) -> dp.Stage:
    return items().sample_random_walk(graph or small_graph(), length, **{"return_edge_ids": True, **arguments})


def contract_chain() -> dp.Stage:
    return walked(walks_per_node=2)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.RandomWalkSampler(items(), small_graph(), 4, walks_per_node=2, return_edge_ids=True)


def expect_walks(minibatch: dp.MiniBatch, seeds: list[int], rows: list[Any], keys: list[int], **options: Any) -> None:
    """Check a minibatch against the twin; `rows` and `keys` are those of each step."""
    walks, edge_ids = minibatch.extra["walks"], minibatch.extra["walk_edge_ids"]
    if isinstance(walks, dict):
        (walks,), (edge_ids,) = walks.values(), edge_ids.values()
    walks_per_node = walks.shape[1]
    given = {"p": 1.0, "q": 1.0, "restart_prob": 0.0} | options
    walker = twin_walks.Walker(rows, keys, **given)
    assert walks.shape == (len(seeds), walks_per_node, len(rows) + 1)
    for place, seed in enumerate(seeds):
        for j in range(walks_per_node):
            found = walks[place, j].tolist(), edge_ids[place, j].tolist()
            assert found == walker.walk(seed, place * walks_per_node + j)


# --- the twin


@pytest.mark.parametrize("restart_prob", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("prob_name", [None, "w"])
@pytest.mark.parametrize(("p", "q"), BIASES)
def test_walks_are_those_of_the_twin(p, q, prob_name, restart_prob):
    graph = weighted_graph()
    options = {"p": p, "q": q, "restart_prob": restart_prob}
    rows = rows_of(graph.relation(None), prob_name)
    steps = walked(graph, 5, walks_per_node=2, prob_name=prob_name, **options)
    for index, minibatch in enumerate(itertools.islice(steps, 2)):
        key = twin.hop_key(5, 0, index, 1, 0, 0)
        expect_walks(minibatch, minibatch.seeds.tolist(), [rows] * 5, [key] * 5, **options)
        assert minibatch.blocks is None


@given(st.data())
def test_drawn_graphs_are_walked_as_the_twin_does(data):
    arrays = data.draw(csc_graphs())
    dtype = data.draw(st.sampled_from(ID_DTYPES))
    num_nodes = len(arrays.indptr) - 1
    if num_nodes == 0:
        return
    weights = data.draw(st.none() | weights_for(len(arrays.indices)))
    graph = dp.CSCGraph(
        torch.from_numpy(arrays.indptr),
        torch.from_numpy(arrays.indices.astype(dtype)),
        edge_attributes={} if weights is None else {"w": weights},
    )
    seeds = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=80))
    p, q = data.draw(st.sampled_from(BIASES))
    options = {"p": p, "q": q, "restart_prob": data.draw(st.sampled_from([0.0, 0.1]))}
    prob_name = None if weights is None else "w"
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor(seeds)), len(seeds), seed=3)
    length = data.draw(st.integers(1, 3))
    made = first(pipe.sample_random_walk(graph, length, prob_name=prob_name, return_edge_ids=True, **options))
    key = twin.hop_key(3, 0, 0, 1, 0, 0)
    expect_walks(made, seeds, [rows_of(graph.relation(None), prob_name)] * length, [key] * length, **options)
    assert made.extra["walks"].dtype == graph.index_dtype


def test_a_metapath_is_followed_from_the_destination_to_the_source():
    graph = typed_graph()
    papers = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(40)}), 9, shuffle=True, seed=5)
    for metapath, length in (([CITES], 3), ([CITES, ":".join(WRITES)], 2), ([WRITTEN, WRITES], 4)):
        source = papers if length < 4 else dp.ItemSampler(dp.HeteroItemSet({"author": dp.ItemSet(25)}), 9, seed=5)
        made = first(source.sample_random_walk(graph, length, metapath=metapath, return_edge_ids=True))
        ((start, seeds),) = made.seeds.items()
        steps = [{":".join(of): of for of in graph.edge_types}.get(of, of) for of in metapath] * length
        rows = [rows_of(graph.relation(of)) for of in steps[:length]]
        keys = [twin.hop_key(5, 0, 0, 1, 0, graph.edge_types.index(of)) for of in steps[:length]]
        expect_walks(made, seeds.tolist(), rows, keys)
        assert set(made.extra["walks"]) == {start}


def test_large_minibatches_are_the_same_for_any_threads_workers_and_resume():
    arrays = random_graph(3_000, 40_000, rng_seed=4)
    graph = dp.CSCGraph(*map(torch.from_numpy, arrays), edge_attributes={"w": torch.arange(40_000) % 5 * 1.0})
    for options in ({}, {"p": 0.5, "q": 2.0}, {"prob_name": "w", "restart_prob": 0.05}):

        def chain(options: Any = options) -> dp.Stage:
            source = dp.ItemSampler(dp.ItemSet(2_000), 700, shuffle=True, seed=1)
            return source.sample_random_walk(graph, 6, walks_per_node=3, **options)

        expected = assert_no_bit_changes(chain)
        pipe = chain()
        next(iter(pipe))
        again = chain()
        again.load_state_dict(pipe.state_dict())
        assert digests(again) == expected[1:]
        assert digests(chain().transform(as_it_is)) == expected


def test_a_walk_without_steps_is_its_seed():
    made = first(walked(length=0, walks_per_node=2))
    assert made.extra["walks"][:, 1, 0].tolist() == made.seeds.tolist()
    assert made.extra["walk_edge_ids"].shape == (len(made.seeds), 2, 0)


# --- probabilities


def visits(graph: dp.CSCGraph, length: int, walks: int, **options: Any) -> np.ndarray:
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1, seed=11)
    made = first(pipe.sample_random_walk(graph, length, walks_per_node=walks, **options))
    return made.extra["walks"][0].numpy()


def expect_shares(found: np.ndarray, shares: dict[int, float]) -> None:
    counts = Counter(found.tolist())
    total = sum(shares.values())
    expected = {node: len(found) * share / total for node, share in shares.items()}
    assert counts.keys() <= expected.keys()
    statistic = sum((counts[node] - count) ** 2 / count for node, count in expected.items())
    assert p_value(statistic, len(expected) - 1) > LEVEL


def graph_of_edges(edges: list[tuple[int, int]], weights: list[float] | None = None) -> dp.CSCGraph:
    edge_index = torch.tensor(edges).t()
    attributes = {} if weights is None else {"w": torch.tensor(weights)}
    return dp.CSCGraph.from_edge_index(edge_index, edge_attributes=attributes)


def test_a_step_takes_each_in_edge_as_often_and_by_weight_in_proportion():
    edges = [(source, 0) for source in range(1, 8)]
    graph = graph_of_edges(edges, [1.0, 2.0, 3.0, 4.0, 0.0, 6.0, 0.5])
    expect_shares(visits(graph, 1, 20_000)[:, 1], dict.fromkeys(range(1, 8), 1.0))
    expected = {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 6: 6.0, 7: 0.5}
    expect_shares(visits(graph, 1, 20_000, prob_name="w")[:, 1], expected)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5, 2.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize(("p", "q"), [(0.25, 4.0), (4.0, 0.25), (1e-4, 1.0), (1e4, 1.0)])
def test_the_second_step_has_the_weights_of_node2vec(p, q, weights):
    # From 0 the only way leads to 1. From 1: back to 0, to 2 which points to 0 too, and to 3 and 4 which do not.
    edges = [(0, 1), (2, 1), (3, 1), (4, 1), (1, 0), (2, 0), (5, 2)]
    graph = graph_of_edges(edges, weights)
    found = visits(graph, 2, 20_000, p=p, q=q, prob_name=weights and "w")
    through = found[found[:, 1] == 1][:, 2]
    shares = {0: 1 / p, 2: 1.0, 3: 1 / q, 4: 1 / q}
    if weights is not None:
        shares = {node: share * weight for (node, share), weight in zip(shares.items(), weights, strict=False)}
    expect_shares(through, shares)


def test_walks_end_as_often_as_they_should():
    ring = graph_of_edges([(0, 1), (1, 0)])
    lengths = (visits(ring, 6, 20_000, restart_prob=0.25) >= 0).sum(1) - 1
    expect_shares(lengths, {**{steps: 0.25 * 0.75**steps for steps in range(6)}, 6: 0.75**6})


# --- refusals


def test_what_is_refused(refuses):
    pipe, graph = items(), small_graph()
    for walk_length in (-1, 2.5, None):
        refuses((ValueError, TypeError), pipe.sample_random_walk, graph, walk_length)
    refuses(TypeError, pipe.sample_random_walk, "graph", 3)
    for options in (
        {"p": 0.0},
        {"q": -1.0},
        {"q": float("nan")},
        {"p": float("inf")},
        {"restart_prob": 1.5},
        {"restart_prob": float("nan")},
        {"walks_per_node": 0},
        {"metapath": [WRITES]},
        {"prob_name": "w"},
    ):
        refuses(ValueError, pipe.sample_random_walk, graph, 3, **options)
    for options in ({"p": "1"}, {"restart_prob": True}, {"return_edge_ids": 1}):
        refuses(TypeError, pipe.sample_random_walk, graph, 3, **options)
    typed = typed_items()
    for metapath in (None, [], "author:writes:paper", 5):
        refuses(TypeError, typed.sample_random_walk, typed_graph(), 3, metapath=metapath)
    for metapath in ([("a", "b", "c")], [WRITES], [WRITES, CITES], [CITES]):
        refuses(ValueError, typed.sample_random_walk, typed_graph(), 3, metapath=metapath)
    refuses(ValueError, typed.sample_random_walk, typed_graph(), 1, metapath=[CITES], p=2.0)
    refuses(ValueError, first, typed.transform(as_it_is).sample_random_walk(typed_graph(), 1, metapath=[CITES]))
    refuses(TypeError, typed.sample_random_walk, graph, 3)
    pairs = dp.ItemSampler(dp.ItemSet(torch.tensor([[0, 1]])), 1)
    refuses(ValueError, pairs.sample_random_walk, graph, 3)
    refuses(ValueError, first, pairs.transform(as_it_is).sample_random_walk(graph, 3))
    for seed, length in ((40, 3), (-1, 3), (2**32 + 3, 3), (40, 0)):
        for of in (graph.with_index_dtype(torch.int32), small_parts()):
            seeds = dp.ItemSampler(dp.ItemSet(torch.tensor([seed])), 1)
            refuses(IndexError, first, seeds.sample_random_walk(of, length))
    twice = dp.ItemSet((torch.arange(4), torch.arange(4)), names=("seeds", "walks"))
    refuses(ValueError, first, dp.ItemSampler(twice, 2).sample_random_walk(graph, 3))
    with pytest.raises(ValueError, match="2\\^32"):
        first(pipe.sample_random_walk(graph, 3, walks_per_node=2**31))


def test_walks_that_exceed_the_memory_are_refused():
    with refused(MemoryError, stage="sample_random_walk", found="nodes needs", allowed="are left by"):
        first(items().sample_random_walk(small_graph(), 2**20, walks_per_node=2**28))


def test_weights_that_change_are_refused():
    graph = weighted_graph()
    pipe = walked(graph, prob_name="w")
    graph.edge_attributes["w"][3] = 9.0
    with pytest.raises(ValueError, match="changed in place"):
        first(pipe)
    with pytest.raises(ValueError, match="changed in place"):
        pickle.dumps(pipe)


def test_states_name_what_decides():
    changes = ({}, {"p": 2.0}, {"q": 2.0}, {"restart_prob": 0.5}, {"walks_per_node": 2}, {"return_edge_ids": False})
    assert len({str(walked(**change).fingerprint()) for change in (*changes, {"length": 5})}) == len(changes) + 1


def test_the_memory_of_walks_is_known():
    for ids in (False, True):
        pipe = walked(small_graph().with_index_dtype(torch.int32), walks_per_node=3, return_edge_ids=ids)
        num_bytes = sum(values.nbytes for values in first(pipe).extra.values())
        assert pipe.bytes_for(first(items())) == num_bytes + ids * 8 * 3 * len(first(items()).seeds)


def test_a_plan_is_for_its_graph():
    for graph in (small_graph(), small_parts()):
        for pipe in (walked(small_graph()), items().sample_ppr(small_graph(), 3)):
            with pytest.raises(ValueError, match="plan of another graph"):
                graph.drawn(pipe.plan, torch.arange(3), [1] * 4)


def test_a_state_names_the_steps_and_not_how_they_are_written():
    papers = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(40)}), 9, shuffle=True, seed=5)
    once, twice, other = (
        papers.sample_random_walk(typed_graph(), 4, metapath=metapath)
        for metapath in ([CITES], [CITES, ":".join(CITES)], [WRITES, WRITTEN])
    )
    assert once.fingerprint() == twice.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_kernel_refuses_what_does_not_fit(refuses, dtype):
    indptr, indices = np.array([0, 2, 3]), np.array([1, 0, 1], dtype)

    def walks(seeds=(0,), steps=((0, 7),), indices=indices, indptr=indptr, **options):
        graph = _core.Topology([("", 2)], [(0, 0, indptr, indices, None, "")])
        steps = [(*step, 0)[:3] for step in steps]
        return _core.random_walks(graph, np.array(seeds), steps=steps, **options)

    assert walks()[0].shape == (2,)
    refuses(IndexError, walks, seeds=(2,))
    refuses(ValueError, walks, steps=((1, 7),))
    refuses(ValueError, walks, walks_per_node=0)
    refuses(ValueError, walks, walks_per_node=2**32 + 1)
    refuses(ValueError, walks, p=0.0)
    refuses(ValueError, walks, steps=((0, 7), (0, 7)), p=2.0)
    assert walks(p=2.0)[0].shape == (2,)
    refuses(ValueError, walks, steps=((0, 7, 2**32 + 1),))
    refuses(ValueError, walks, sums=[])
    refuses(ValueError, walks, indices=np.array([5, 5, 5], dtype))
    refuses(ValueError, walks, indptr=np.array([0, 9, 3]))
    refuses(ValueError, _core.sorted_sources, np.array([0, 9]), indices)
    assert _core.sorted_sources(indptr, indices).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_kernels_of_a_step_refuse_what_does_not_fit(refuses, dtype):
    indptr, indices, walks = np.array([0, 2, 3]), np.array([1, 0, 1], dtype), np.array([0, 1])
    step = _core.WalkStep(7, 1, p=2.0)

    def drawn(indptr=indptr, indices=indices, rows=walks, walkers=walks, before=walks, step=step):
        return _core.draw_steps(indptr, indices, None, 2, rows, walkers, before, step)

    counts, sources, _, kinds, _ = drawn()
    assert counts.sum() == len(sources) == len(kinds)
    refuses(IndexError, drawn, rows=np.array([0, 2]))
    refuses(ValueError, drawn, walkers=np.array([0, -1]))
    refuses(ValueError, drawn, before=np.array([0]))
    refuses(ValueError, drawn, indptr=np.array([0, 9, 3]))
    refuses(ValueError, drawn, indices=np.array([5, 5, 5], dtype))
    refuses(ValueError, drawn, step=_core.WalkStep(7, 1, q=0.0))

    def by_rows(counts=(1, 2), sums=(), near=(0, 1, 0), before=walks):
        sources = np.array([0, 1, 1])
        arrays = np.array(counts), sources, np.array(sums, float), np.array(near, np.uint8), walks, before
        return _core.chosen_in_rows(*arrays, step).tolist()

    assert by_rows()[0] == 0
    assert by_rows(sums=(2.0, 0.0, 1.0)) == [0, 2]
    refuses(ValueError, by_rows, counts=(0, 3))
    refuses(ValueError, by_rows, counts=(1, 1))
    refuses(ValueError, by_rows, near=(0, 0))
    refuses(ValueError, by_rows, before=np.array([0]))
    for sums in ([0.0, 0.0, 0.0], [1.0, 2.0, 1.0], [1.0, 1.0, float("inf")], [1.0, float("nan"), 1.0], [1.0]):
        refuses(ValueError, by_rows, sums=sums)
    counts, sources, ids, kinds, sums = _core.whole_rows(indptr, indices, np.array([5, 6, 7]), 2, np.array([1, 0, 1]))
    assert (counts.tolist(), sources.tolist(), ids.tolist()) == ([1, 2, 1], [1, 1, 0, 1], [7, 5, 6, 7])
    assert len(kinds) == len(sums) == 0
    refuses(IndexError, _core.whole_rows, indptr, indices, None, 2, np.array([2]))


# --- over parts


@pytest.mark.parametrize("prob_name", [None, "w"])
@pytest.mark.parametrize(("p", "q"), BIASES)
def test_walks_over_parts_are_those_of_the_whole_graph(p, q, prob_name):
    graph = weighted_graph()
    options = {"p": p, "q": q, "prob_name": prob_name, "walks_per_node": 3, "restart_prob": 0.05}
    expected = digests(walked(graph, 5, **options))
    for num_parts, local_part in ((1, None), (2, 0), (4, 1)):
        parts = small_parts(num_parts, local_part, graph=graph)
        assert digests(walked(parts, 5, **options)) == expected


def test_a_state_of_walks_over_parts_goes_on_in_the_whole_graph():
    graph = weighted_graph()
    options = {"p": 0.5, "q": 2.0, "prob_name": "w"}
    pipe = walked(small_parts(graph=graph), **options)
    next(iter(pipe))
    with dp.DataLoader(walked(small_parts(graph=graph), **options), 2, worker_method="thread") as loader:
        assert digests(loader) == digests(walked(graph, **options))
    again = walked(graph, **options)
    again.load_state_dict(pipe.state_dict())
    assert digests(again) == digests(walked(graph, **options))[1:]


def test_a_metapath_over_parts_is_that_of_the_whole_graph():
    papers = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(40)}), 9, shuffle=True, seed=5)
    for metapath in ([CITES], [WRITES, WRITTEN]):
        chains = [
            papers.sample_random_walk(graph, 4, metapath=metapath, walks_per_node=2, return_edge_ids=True)
            for graph in (typed_graph(), typed_parts())
        ]
        assert digests(chains[0]) == digests(chains[1])
