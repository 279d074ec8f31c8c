"""Rows that belong together: a stage that changes one field and forgets another is told so where it returns."""

import numpy as np
import pytest
import torch
import torchdata.nodes
from pipelines import fetched, refused

import datapipes as dp


def cut_first_block(minibatch: dp.MiniBatch) -> list[dp.Block]:
    first, *rest = minibatch.blocks
    return [dp.Block(first.indptr, first.indices, first.num_src + 1, first.edge_ids), *rest]


FORGETFUL = {  # what a stage changes: {the field that no longer fits: the change}
    "labels": lambda given: {"seeds": torch.cat([given.seeds, given.seeds]), "compacted_seeds": None},
    "indexes": lambda given: {"indexes": torch.arange(len(given.seeds) + 1)},
    "timestamps": lambda given: {"timestamps": torch.tensor(3)},
    "compacted_seeds": lambda given: {"compacted_seeds": given.compacted_seeds[:-1]},
    "batch": lambda given: {"batch": given.seeds},
    r"blocks\[0\]": lambda given: {"blocks": cut_first_block(given)},
    r"node_features\['feat'\]": lambda given: {"node_features": {"feat": given.node_features["feat"][1:]}},
    r"edge_features\[1\]\['weight'\]": lambda given: {
        "edge_features": [given.edge_features[0], {"weight": given.edge_features[1]["weight"][1:]}]
    },
    "edge_features": lambda given: {"edge_features": given.edge_features[1:]},
}


@pytest.mark.parametrize("name", FORGETFUL)
@pytest.mark.parametrize(
    "load",
    [lambda chain: chain, dp.DataLoader, lambda chain: dp.DataLoader(chain, 1, worker_method="thread", cut="end")],
    ids=["plain", "data_loader", "worker"],
)
def test_a_stage_that_returns_rows_that_do_not_belong_together_is_named(name, load):
    def forgets(minibatch):
        return minibatch.replace(**FORGETFUL[name](minibatch))

    with (
        load(fetched().transform(forgets)) as stage,
        refused(ValueError, stage="transform: returned", found=name, allowed="equally many rows", remedy="Change both"),
    ):
        next(iter(stage))


@pytest.mark.parametrize("labels", [[0] * 4, np.zeros(4)], ids=["list", "array"])
@pytest.mark.parametrize("name", ["labels", "seeds"])
def test_a_field_that_is_no_tensor_is_refused(name, labels):
    with refused(TypeError, stage="transform", found=f"{name} is a {type(labels).__name__}", allowed="a tensor"):
        next(iter(fetched().transform(lambda minibatch: minibatch.replace(**{name: labels}))))


def test_features_of_seeds_belong_to_the_seeds():
    chain = dp.ItemSampler(dp.ItemSet(4), 4).transform(
        lambda minibatch: minibatch.replace(node_features={"feat": torch.ones(3, 2)})
    )
    with refused(ValueError, stage="transform", found=r"\[3, 2\]", allowed="4 seeds"):
        next(iter(chain))


def test_pairs_with_one_label_each_and_other_fields_belong_together():
    pairs = dp.ItemSet((torch.arange(8).reshape(4, 2), torch.ones(4), torch.arange(4), torch.arange(4)))
    chain = dp.ItemSampler(pairs, 2).transform(
        lambda minibatch: minibatch.replace(seeds=minibatch.seeds.flip(1), node_features={"of_pairs": torch.ones(9)})
    )
    assert [minibatch.labels.tolist() for minibatch in chain] == [[1, 1], [1, 1]]


class ThreeLabels(dp.stages.SeedStage):
    """Starts minibatches of two seeds and three labels."""

    rng_seed = 0
    num_steps = num_batches = 1

    def make_minibatch(self, rng):
        return dp.MiniBatch(seeds=torch.arange(2), labels=torch.arange(3), epoch=rng.epoch, index=rng.index)


def test_a_stage_that_starts_minibatches_is_checked_too():
    with refused(ValueError, stage="three_labels", found=r"labels \(\[3\]\)", allowed="2 seeds"):
        next(iter(ThreeLabels()))


def test_what_a_node_gives_is_checked_too():
    node = torchdata.nodes.IterableWrapper([dp.MiniBatch(seeds=torch.arange(3), labels=torch.arange(2))])
    with refused(ValueError, stage="from_node", found=r"labels \(\[2\]\)", allowed="3 seeds"):
        next(iter(dp.FromNode(node)))


def test_a_further_field_that_is_changed_in_place_is_checked_too():
    def shorten(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        minibatch.extra["weight"] = minibatch.extra["weight"][:1]
        return minibatch

    start = dp.ItemSampler(dp.ItemSet((torch.arange(4), torch.arange(4)), names=("seeds", "weight")), 2)
    with refused(ValueError, stage="transform", found=r"extra\['weight'\] \(\[1\]\)", allowed="2 seeds"):
        next(iter(start.transform(shorten)))


def test_blocks_by_type_without_typed_nodes_and_a_field_of_no_names_are_refused():
    def of_types(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        blocks = {("a", "x", "b"): minibatch.blocks[0]}
        return minibatch.replace(input_nodes=None, node_features=None, blocks=blocks, edge_features=[{}])

    with refused(TypeError, stage="transform", found=r"blocks\[0\] is a tuple", allowed="a Block"):
        next(iter(fetched().transform(of_types)))
    with refused(TypeError, stage="transform", found="extra is a list", allowed="a dict"):
        next(iter(dp.ItemSampler(dp.ItemSet(4), 4).transform(lambda minibatch: minibatch.replace(extra=[]))))
