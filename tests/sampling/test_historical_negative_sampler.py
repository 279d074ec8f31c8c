"""HistoricalNegativeSampler: negatives are those of the twin, over whole graphs and parts, and what is refused."""

import pytest
import torch
import twin
import twin_links
from dist_graphs import small_parts, typed_parts
from hypothesis import assume, given
from hypothesis import strategies as st
from link_chains import PAIRS, links_of_types, pairs_chain
from pipelines import assert_no_bit_changes, assert_states_are_apart, assert_states_move, digests, first, small_graph
from strategies import csc_graphs, rng_seeds, typed_graphs, typed_pairs
from timed_pipelines import timed_graph
from twin_cases import typed_graph_of
from typed_pipelines import typed_graph

import datapipes as dp

TIMES = torch.arange(22) * 11 % 70


def historical(graph=None, ratio: int = 3, **options) -> dp.Stage:
    graph = timed_graph().reversed() if graph is None else graph
    return pairs_chain(timestamps=TIMES).sample_historical_negative(graph, ratio, edge_time_attr="at", **options)


def contract_chain() -> dp.Stage:
    return historical()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    graph, options = timed_graph().reversed(), {"edge_time_attr": "at", "form": "rows"}
    constructed = dp.HistoricalNegativeSampler(pairs_chain(timestamps=TIMES), graph, 2, **options)
    return historical(graph, 2, form="rows"), constructed


def timed_typed_graph() -> dp.HeteroCSCGraph:
    """The typed graph turned round; all of its edges have times."""
    graph = typed_graph()
    relations = {of: (graph.relation(of).indptr, graph.relation(of).indices) for of in graph.edge_types}
    times = {of: {"at": torch.arange(len(indices)) * 37 % 60} for of, (_, indices) in relations.items()}
    return dp.HeteroCSCGraph(relations, graph.num_nodes, edge_attributes=times).reversed()


def typed_historical(graph) -> dp.Stage:
    source = links_of_types()
    sets = {
        of: dp.ItemSet((links[:], torch.arange(len(links)) * 7 % 60), names=("seeds", "timestamps"))
        for of, links in source.item_set.item_sets.items()
    }
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), 4, shuffle=True, seed=5)
    return pipe.sample_historical_negative(graph, 2, edge_time_attr="at")


# --- the twin


def edges_of(reversed_edges) -> list[tuple[int, int, int]]:
    indptr, times = reversed_edges.indptr, reversed_edges.edge_attributes["at"].tolist()
    sources = torch.arange(len(indptr) - 1).repeat_interleave(indptr.diff()).tolist()
    return list(zip(sources, reversed_edges.indices.tolist(), times, strict=True))


@given(st.data(), csc_graphs(min_nodes=1), rng_seeds)
def test_negatives_are_those_of_the_twin(data, arrays, rng_seed):
    ids = st.integers(0, arrays.num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(ids, ids), min_size=1, max_size=6))
    times = data.draw(st.lists(st.integers(-1, 4), min_size=len(pairs), max_size=len(pairs)))
    ratio = data.draw(st.integers(1, 3))
    at = data.draw(st.lists(st.integers(0, 3), min_size=arrays.num_edges, max_size=arrays.num_edges))
    graph = dp.CSCGraph(*arrays, edge_attributes={"at": torch.tensor(at, dtype=torch.int64)}).reversed()
    items = dp.ItemSet((torch.tensor(pairs), torch.tensor(times)), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(items, len(pairs), seed=rng_seed)
    found = first(pipe.sample_historical_negative(graph, ratio, edge_time_attr="at"))
    keys = tuple(twin.hop_key(rng_seed, 0, 0, 1, hop, 0) for hop in range(2))
    expected = twin_links.historical_negatives(pairs, times, ratio, keys, arrays.num_nodes, edges_of(graph))
    assert found.seeds.tolist() == [*map(list, pairs), *expected]
    assert found.indexes.tolist() == [*range(len(pairs)), *twin_links.positive_of(len(pairs), ratio)]


@given(st.data(), typed_graphs())
def test_negatives_of_types_are_those_of_the_twin(data, arrays):
    pairs = data.draw(typed_pairs(arrays))
    assume(pairs)
    at = {of: [i * 7 % 4 for i in range(len(indices))] for of, (_, indices, _) in arrays.relations.items()}
    attributes = {of: {"at": torch.tensor(times, dtype=torch.int64)} for of, times in at.items()}
    graph = typed_graph_of(arrays, edge_attributes=attributes).reversed()
    times = {of: [i * 3 % 5 for i in range(len(each))] for of, each in pairs.items()}
    sets = {
        of: dp.ItemSet((torch.tensor(each), torch.tensor(times[of])), names=("seeds", "timestamps"))
        for of, each in pairs.items()
    }
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), 40, seed=5)
    found = first(pipe.sample_historical_negative(graph, 2, edge_time_attr="at")).seeds
    for of, each in pairs.items():
        keys = tuple(twin.hop_key(5, 0, 0, 1, hop, graph.edge_types.index(of[::-1])) for hop in range(2))
        edges, count = edges_of(graph.relation(of[::-1])), arrays.num_nodes[of[2]]
        expected = twin_links.historical_negatives(each, times[of], 2, keys, count, edges, of[0] == of[2])
        assert found[of].tolist() == [*map(list, each), *expected]


# --- what it is for


def test_negatives_were_linked_before_and_are_not_the_positive():
    links = torch.tensor([[0, 5], [0, 4], [0, 3], [0, 5], [0, 2], [1, 2]])
    at = torch.tensor([1, 2, 3, 4, 9, 0])
    backwards = dp.CSCGraph.from_edge_index(links.T, 6, edge_attributes={"at": at}).reversed()
    items = dp.ItemSet((torch.tensor([[0, 4]]).expand(300, 2), torch.full((300,), 9)), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(items, 300, seed=1).sample_historical_negative(backwards, 1, edge_time_attr="at", form="rows")
    counts = first(pipe).seeds[:, 2].bincount(minlength=6).tolist()
    assert counts[3] + counts[5] == 300  # not 2, which comes at the same time
    assert abs(counts[3] - 150) < 5 * 300**0.5 / 2  # as often as 5, which was linked twice


@pytest.mark.parametrize("ratio", [1, 3])
def test_neither_parts_nor_workers_change_a_bit(ratio):
    graph = timed_graph().reversed()
    expected = assert_no_bit_changes(lambda: historical(graph, ratio).sample_neighbor(timed_graph(), [2]))
    for num_parts, local_part in ((1, None), (3, 1)):
        parts = small_parts(num_parts, local_part, graph)
        chain = historical(parts, ratio)
        assert chain.asynchronous
        assert digests(chain.sample_neighbor(timed_graph(), [2])) == expected


def test_parts_of_types_change_no_bit():
    graph = timed_typed_graph()
    assert digests(typed_historical(typed_parts(graph=graph))) == digests(typed_historical(graph))


def test_states_move_between_whole_graph_and_parts_and_not_to_other_times():
    graph = timed_graph().reversed()
    assert_states_move(lambda: [historical(graph), historical(small_parts(2, 0, graph))])
    later = timed_graph(edge_attributes={"at": torch.arange(200)}).reversed()
    assert_states_are_apart([historical(graph), historical(later), historical(graph, 2)])


# --- refused


def test_what_a_historical_sampler_refuses(refuses):
    graph = timed_graph().reversed()
    source = pairs_chain(timestamps=TIMES)
    for ratio in (1.5, 0):
        refuses(ValueError, historical, graph, ratio)
    refuses(TypeError, historical, torch.eye(3))
    refuses(ValueError, historical, small_graph())
    refuses(TypeError, source.sample_historical_negative, graph, 1)
    refuses(TypeError, source.sample_historical_negative, graph, 1, edge_time_attr=None)
    refuses(ValueError, source.sample_historical_negative, graph, 1, edge_time_attr="since")
    refuses(ValueError, pairs_chain().sample_historical_negative, graph, 1, edge_time_attr="at")
    refuses(ValueError, typed_historical, timed_typed_graph().reversed())
    refuses(ValueError, typed_historical, typed_graph().reversed())
    refuses(TypeError, typed_historical, graph)
    unknown = source.transform(lambda minibatch: minibatch.replace(timestamps=None))
    refuses(ValueError, first, unknown.sample_historical_negative(graph, 1, edge_time_attr="at"))
    pairs = dp.ItemSet((PAIRS + 30, TIMES), names=("seeds", "timestamps"))
    refuses(IndexError, list, dp.ItemSampler(pairs, 22).sample_historical_negative(graph, 1, edge_time_attr="at"))
    changed = historical(graph)
    graph.edge_attributes["at"].add_(1)
    refuses(ValueError, first, changed)
