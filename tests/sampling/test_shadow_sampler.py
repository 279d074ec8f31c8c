"""ShadowSampler is the NeighborSampler of induced trees."""

from typing import Any

import pytest
from dist_graphs import small_parts
from pipelines import digests, items, small_graph
from typed_pipelines import typed_graph, typed_items
from weights import weighted_graph

import datapipes as dp


def shadows(graph: Any = None, **arguments: Any) -> dp.Stage:
    return items().sample_shadow(graph or small_graph(), [3, 2], **arguments)


def contract_chain() -> dp.Stage:
    return shadows()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return shadows(), dp.ShadowSampler(items(), small_graph(), [3, 2])


@pytest.mark.parametrize("options", [{}, {"return_edge_ids": True}, {"replace": True}, {"prob_name": "w"}])
def test_shadows_are_induced_trees(options):
    graph = weighted_graph()
    expected = digests(items().sample_neighbor(graph, [3, 2], disjoint=True, subgraph_type="induced", **options))
    assert digests(shadows(graph, **options)) == digests(shadows(small_parts(graph=graph), **options)) == expected


def test_shadows_of_types():
    expected = digests(typed_items().sample_neighbor(typed_graph(), [2], disjoint=True, subgraph_type="induced"))
    assert digests(typed_items().sample_shadow(typed_graph(), [2])) == expected
