"""FromNode: what its node must give. tests/chain/test_stage.py has chains over nodes that give it."""

import pytest
import torch
import torchdata.nodes as tn
from pipelines import digests, refused, sampled, small_graph, small_store

import datapipes as dp

SEEDS = torch.arange(6).split(2)


@pytest.mark.parametrize(
    ("item", "found"),
    [
        (torch.arange(3), r"IterableWrapper gave a Tensor of shape \[3\]"),
        ({"seeds": torch.arange(3)}, "IterableWrapper gave a dict"),
        (None, "IterableWrapper gave a NoneType"),
    ],
    ids=["tensor", "dict", "none"],
)
@pytest.mark.parametrize("build", [lambda stage: stage, dp.DataLoader], ids=["stage", "loader"])
def test_a_node_that_gives_something_else_is_told_what_to_give(item, found, build):
    node = tn.IterableWrapper([item])
    with refused(
        TypeError,
        stage="from_node",
        found=found,
        allowed="only MiniBatch is allowed",
        remedy=r"Mapper.*MiniBatch\(seeds=",
    ):
        next(iter(build(dp.FromNode(node))))


def test_the_remedy_works():
    node = tn.Mapper(tn.IterableWrapper(SEEDS), lambda ids: dp.MiniBatch(seeds=ids))
    fetched = list(dp.FromNode(node).fetch_feature(small_store(), ["feat"]))
    assert [minibatch.seeds.tolist() for minibatch in fetched] == [[0, 1], [2, 3], [4, 5]]
    assert all(minibatch.node_features["feat"].shape == (2, 3) for minibatch in fetched)


def test_a_sampler_stands_inside_the_node():
    node = tn.Mapper(sampled(), lambda minibatch: minibatch)
    assert digests(dp.FromNode(node)) == digests(sampled())
    node = tn.Mapper(tn.IterableWrapper(SEEDS), lambda ids: dp.MiniBatch(seeds=ids))
    with refused(ValueError, stage="sample_neighbor", found="no ItemSampler", allowed="seed and length are needed"):
        next(iter(dp.FromNode(node).sample_neighbor(small_graph(), [2])))


def test_a_list_is_refused_with_the_node_that_wraps_it():
    with refused(
        TypeError,
        stage="from_node",
        found="got list",
        allowed=r"BaseNode that gives MiniBatches",
        remedy=r"\. Wrap it: torchdata\.nodes\.IterableWrapper",
    ):
        dp.FromNode([1, 2])


@pytest.mark.parametrize("build", [sampled, lambda: dp.DataLoader(sampled())], ids=["stage", "loader"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"batch_size": 4, "shuffle": True}, {"batch_size": None}],
    ids=["plain", "shuffled", "unbatched"],
)
def test_torchs_data_loader_over_a_stage_says_what_to_use(build, arguments):
    stage = build()
    with refused(
        TypeError,
        stage=stage.name,
        found="has no items by index",
        allowed="torch.utils.data.DataLoader cannot read it",
        remedy=r"Use datapipes\.DataLoader\(pipe, num_workers=4\)",
    ):
        next(iter(torch.utils.data.DataLoader(stage, **arguments)))
    assert digests(stage) == digests(sampled())  # no epoch was used up
