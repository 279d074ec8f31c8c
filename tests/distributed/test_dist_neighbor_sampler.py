"""DistNeighborSampler: a graph in parts gives the bits of the whole one, and wrong answers of a part end in errors."""

import functools
import tempfile
from pathlib import Path

import pytest
import torch
from dist_graphs import dist_graph_of
from pipelines import digests, items, refused, small_graph

import datapipes as dp
from datapipes.distributed import DistGraph, PartitionBook
from datapipes.graph.graph import Graph


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # removed at exit


def in_parts(graph: Graph, owners, num_parts: int, local_part: int | None = None) -> DistGraph:
    """The graph in parts, `owners` being the part of each node, or {node type: the part of each}."""
    root = Path(tempfile.mkdtemp(dir=_folder().name))
    return dist_graph_of(graph, PartitionBook(num_parts, owners), root, local_part)


def small_parts(num_parts: int = 3, local_part: int | None = 1, graph: dp.CSCGraph | None = None) -> DistGraph:
    return in_parts(graph or small_graph(), torch.arange(40) * 7 % 11 % num_parts, num_parts, local_part)


def contract_chain() -> dp.Stage:
    return items().dist_sample_neighbor(small_parts(), [3, 2], return_edge_ids=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    graph, options = small_parts(), {"replace": True, "frontier": "new", "concurrency": 2}
    functional = items().dist_sample_neighbor(graph, [2, 1], **options)
    return functional, dp.distributed.DistNeighborSampler(items(), graph, [2, 1], **options)


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
@pytest.mark.parametrize("frontier", ["all", "new"])
@pytest.mark.parametrize("replace", [False, True])
def test_any_number_of_parts_gives_the_minibatches_of_the_whole_graph(num_parts, frontier, replace):
    options = {"frontier": frontier, "replace": replace, "return_edge_ids": True}
    expected = digests(items().sample_neighbor(small_graph(), [3, -1, 2], **options))
    for local_part in (None, num_parts - 1):
        graph = small_parts(num_parts, local_part)
        assert digests(items().dist_sample_neighbor(graph, [3, -1, 2], **options)) == expected


def test_a_whole_graph_and_a_graph_in_parts_name_each_others_sampler():
    with refused(TypeError, stage="dist_sample_neighbor", found="CSCGraph", allowed="DistGraph", remedy="sample_nei"):
        items().dist_sample_neighbor(small_graph(), [2])
    with refused(TypeError, stage="sample_neighbor", found="DistGraph", allowed="CSCGraph", remedy="dist_sample_nei"):
        items().sample_neighbor(small_parts(), [2])


def test_a_state_moves_between_the_whole_graph_and_its_parts():
    whole, parts = items().sample_neighbor(small_graph(), [2]), items().dist_sample_neighbor(small_parts(), [2])
    for saved, resumed in ((whole, parts), (parts, whole)):
        expected = digests(saved)
        saved.set_epoch(0)
        next(iter(saved))
        resumed.load_state_dict(saved.state_dict())
        assert digests(resumed) == expected[1:]
        for pipe in (saved, resumed):
            pipe.set_epoch(0)
