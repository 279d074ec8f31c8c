"""FromNode: what its node must give. tests/chain/test_stage.py has chains over nodes that give it."""

import pytest
import torch
import torchdata.nodes as tn
from pipelines import digests, sampled, small_graph, small_store

import datapipes as dp

SEEDS = torch.arange(6).split(2)


@pytest.mark.parametrize("build", [lambda stage: stage, dp.DataLoader], ids=["stage", "loader"])
def test_a_node_that_gives_something_else_is_told_what_to_give(build, refuses):
    for item in (torch.arange(3), {"seeds": torch.arange(3)}, None):
        refuses(TypeError, list, build(dp.FromNode(tn.IterableWrapper([item]))))


def test_the_remedy_works():
    node = tn.Mapper(tn.IterableWrapper(SEEDS), lambda ids: dp.MiniBatch(seeds=ids))
    fetched = list(dp.FromNode(node).fetch_feature(small_store(), ["feat"]))
    assert [minibatch.seeds.tolist() for minibatch in fetched] == [[0, 1], [2, 3], [4, 5]]
    assert all(minibatch.node_features["feat"].shape == (2, 3) for minibatch in fetched)


def test_a_sampler_stands_inside_the_node(refuses):
    node = tn.Mapper(sampled(), lambda minibatch: minibatch)
    assert digests(dp.FromNode(node)) == digests(sampled())
    node = tn.Mapper(tn.IterableWrapper(SEEDS), lambda ids: dp.MiniBatch(seeds=ids))
    refuses(ValueError, list, dp.FromNode(node).sample_neighbor(small_graph(), [2]))


def test_what_is_no_node_is_refused_with_what_to_use(refuses):
    refuses(TypeError, dp.FromNode, [1, 2])
    refuses(TypeError, dp.FromNode, sampled())
    for stage in (sampled(), dp.DataLoader(sampled())):
        for arguments in ({}, {"batch_size": 4, "shuffle": True}, {"batch_size": None}):
            refuses(TypeError, list, torch.utils.data.DataLoader(stage, **arguments))
        assert digests(stage) == digests(sampled())  # no epoch was used up
