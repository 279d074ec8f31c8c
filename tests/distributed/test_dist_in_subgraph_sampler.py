"""DistInSubgraphSampler: all in-edges of the seeds, from parts as from the whole graph."""

import pytest
import torch
from dist_graphs import small_parts, typed_parts
from pipelines import assert_states_move, digests, items, refused, small_graph
from typed_pipelines import CITES, WRITES, typed_graph, typed_items

import datapipes as dp
from datapipes.distributed import DistInSubgraphSampler


def contract_chain() -> dp.Stage:
    return items().dist_sample_in_subgraph(small_parts(), return_edge_ids=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    parts, options = typed_parts(), {"edge_types": ["paper:cites:paper", WRITES], "concurrency": 3}
    functional = typed_items().dist_sample_in_subgraph(parts, **options)
    return functional, DistInSubgraphSampler(typed_items(), parts, **options)


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("edge_ids", [True, False])
def test_the_in_edges_are_those_of_the_whole_graph(num_parts, edge_ids):
    expected = digests(items().sample_in_subgraph(small_graph(), return_edge_ids=edge_ids))
    parts = small_parts(num_parts, None)
    assert digests(items().dist_sample_in_subgraph(parts, return_edge_ids=edge_ids)) == expected
    for links, some in ((False, None), (True, [CITES, WRITES])):
        options = {"edge_types": some, "return_edge_ids": edge_ids}
        expected = digests(typed_items(links=links).sample_in_subgraph(typed_graph(torch.int32), **options))
        parts = typed_parts(num_parts, num_parts - 1, typed_graph(torch.int32))
        assert digests(typed_items(links=links).dist_sample_in_subgraph(parts, **options)) == expected


def test_edge_types_that_are_not_kept_are_not_asked_for():
    graph = typed_parts(2, None)
    next(iter(typed_items().dist_sample_in_subgraph(graph, edge_types=[CITES])))
    assert {draw.edge_type for _, request in graph.peers.asked for draw in request.draws} == {CITES}


def test_a_state_moves_between_the_whole_graph_and_any_parts():
    def pipes() -> list[dp.Stage]:
        return [
            items().sample_in_subgraph(small_graph()),
            items().dist_sample_in_subgraph(small_parts(3)),
            items().dist_sample_in_subgraph(small_parts(1, None), concurrency=1),
        ]

    assert_states_move(pipes)


def test_a_state_of_another_sampler_is_refused():
    state = items().sample_in_subgraph(small_graph()).state_dict()
    with pytest.raises(ValueError, match="sample_in_subgraph"):
        items().dist_sample_neighbor(small_parts(), [-1]).load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "error", "found", "allowed"),
    [
        ({"edge_types": []}, ValueError, r"got \[\]", "at least one edge type"),
        ({"edge_types": [("paper", "cite", "paper")]}, ValueError, "'cite'", "nearest"),
        ({"concurrency": 0}, ValueError, "concurrency.*0", "1"),
        ({"return_edge_ids": 1}, TypeError, "got 1", "True or False"),
        ({"dist_graph": typed_graph()}, TypeError, "HeteroCSCGraph", "a DistGraph"),
        ({"dist_graph": torch.eye(3)}, TypeError, "Tensor", "must be a"),
    ],
    ids=str,
)
def test_arguments_that_are_not_allowed_are_refused(change, error, found, allowed):
    with refused(error, stage="dist_sample_in_subgraph", found=found, allowed=allowed):
        typed_items().dist_sample_in_subgraph(**{"dist_graph": typed_parts(), **change})


def test_a_seed_that_is_no_node_is_refused_under_the_name_of_the_stage():
    pipe = dp.ItemSampler(dp.ItemSet(41), 41).dist_sample_in_subgraph(small_parts())
    with refused(IndexError, stage="^dist_sample_in_subgraph: ", found="got 40", allowed=r"\[0, 40\)"):
        next(iter(pipe))
