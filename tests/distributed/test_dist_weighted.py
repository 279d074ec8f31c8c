"""dist_sample_neighbor with prob_name: the draws of the whole graph by weights; states; weights that are refused."""

import pytest
import torch
from amounts import examples
from dist_graphs import dist_graph_of, new_root, small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books
from pipelines import assert_states_move, digests, items, refused
from strategies import csc_graphs, rng_seeds
from typed_pipelines import typed_items
from weights import weighted_graph, weighted_typed_graph, weights_for

import datapipes as dp
from datapipes.distributed import DistGraph

OPTIONS = {"prob_name": "w", "return_edge_ids": True}


def weighted_parts(num_parts: int = 3, local_part: int | None = 1, weights: torch.Tensor | None = None) -> DistGraph:
    return small_parts(num_parts, local_part, weighted_graph(weights))


@examples(40)
@given(st.data(), csc_graphs(min_nodes=1), rng_seeds)
def test_weighted_draws_from_any_parts_are_those_of_the_whole_graph(data, arrays, rng_seed):
    graph = dp.CSCGraph(*arrays, edge_attributes={"w": data.draw(weights_for(arrays.num_edges))})
    fanouts = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    start = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 4, shuffle=True, seed=rng_seed)
    options = {
        "replace": data.draw(st.booleans()),
        "frontier": data.draw(st.sampled_from(["all", "new"])),
        "disjoint": data.draw(st.booleans()),
    }
    parts = dist_graph_of(graph, data.draw(books(graph, 4)), new_root())
    try:
        whole = start.sample_neighbor(graph, fanouts, **OPTIONS, **options)
        ours = start.dist_sample_neighbor(parts, fanouts, **OPTIONS, **options)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()
    finally:
        parts.close()


@pytest.mark.parametrize("num_parts", [1, 3])
def test_weighted_draws_with_types_are_those_of_the_whole_graph(num_parts):
    graph = weighted_typed_graph()
    whole = typed_items().sample_neighbor(graph, [2, 3], **OPTIONS)
    ours = typed_items().dist_sample_neighbor(typed_parts(num_parts, 0, graph), [2, 3], **OPTIONS)
    assert digests(ours) == digests(whole)
    assert ours.fingerprint() == whole.fingerprint()


@pytest.mark.parametrize(
    ("method", "context"), [("thread", {}), ("process", {"multiprocessing_context": "fork"}), ("process", {})]
)
def test_workers_get_the_sums_of_the_part_in_this_process(method, context):
    graph = weighted_parts(2, 1)
    pipe = items().dist_sample_neighbor(graph, [3, 2], **OPTIONS)
    assert graph.local_part.kept_bytes >= 8 * graph.local_part.relation().num_edges
    assert graph.peers.asked == []
    with dp.DataLoader(pipe, 1, worker_method=method, **context) as loader:
        assert digests(loader) == digests(items().sample_neighbor(weighted_graph(), [3, 2], **OPTIONS))


def test_a_state_moves_between_the_whole_graph_and_any_parts_and_that_of_other_weights_is_refused():
    def pipes() -> list[dp.Stage]:
        whole = items().sample_neighbor(weighted_graph(), [2, 3], **OPTIONS)
        return [whole, *(items().dist_sample_neighbor(weighted_parts(n), [2, 3], **OPTIONS) for n in (3, 2))]

    assert_states_move(pipes)
    other = weighted_parts(weights=torch.ones(200))
    with refused(ValueError, stage="sample_neighbor", found="weights_digest was", allowed="is"):
        items().dist_sample_neighbor(other, [2, 3], **OPTIONS).load_state_dict(pipes()[0].state_dict())
    plain = items().dist_sample_neighbor(weighted_parts(), [2, 3], return_edge_ids=True)
    with refused(ValueError, stage="sample_neighbor", found="weights_digest", allowed="."):
        plain.load_state_dict(pipes()[0].state_dict())


@pytest.mark.parametrize(
    ("weights", "arguments", "error", "found", "allowed"),
    [
        (None, {"prob_name": "v"}, ValueError, "no edge attribute 'v'", "'w'"),
        (None, {"prob_name": 3}, TypeError, "got 3", "the name of an edge attribute"),
        (None, {"prob_name": "rows"}, ValueError, r"\[num_edges, 2\]", "one for each edge"),
        (torch.ones(200).int(), {}, TypeError, "int32", "float16"),
        (torch.arange(200.0) - 1, {}, ValueError, "is -1", "0 or more"),
        (torch.full((200,), torch.inf), {}, ValueError, "is inf", "0 or more"),
    ],
)
def test_what_is_no_weight_is_refused_when_the_stage_is_built(weights, arguments, error, found, allowed):
    graph = small_parts(1, 0, weighted_graph(weights))
    with refused(error, stage="dist_sample_neighbor", found=found, allowed=allowed):
        items().dist_sample_neighbor(graph, [2], **{**OPTIONS, **arguments})


def test_wrong_weights_of_another_part_are_told_by_it():
    graph = small_parts(2, None, weighted_graph(torch.full((200,), -1.0)))
    with pytest.raises(ValueError, match=r"Part.draw: the weight 'w' is -1 at position") as caught:
        next(iter(items().dist_sample_neighbor(graph, [2], **OPTIONS)))
    assert "asked of part" in "\n".join(getattr(caught.value, "__notes__", ()))
