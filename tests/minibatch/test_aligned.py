"""Rows that belong together: a stage that changes one field and forgets another is told so where it returns."""

import numpy as np
import pytest
import torch
import torchdata.nodes
from pipelines import fetched

import datapipes as dp


def cut_first_block(minibatch: dp.MiniBatch) -> list[dp.Block]:
    first, *rest = minibatch.blocks
    return [dp.Block(first.indptr, first.indices, first.num_src + 1, first.edge_ids), *rest]


FORGETFUL = [  # what a stage changes: one field, and not those whose rows belong to it
    lambda given: {"seeds": torch.cat([given.seeds, given.seeds]), "compacted_seeds": None},
    lambda given: {"indexes": torch.arange(len(given.seeds) + 1)},
    lambda given: {"timestamps": torch.tensor(3)},
    lambda given: {"compacted_seeds": given.compacted_seeds[:-1]},
    lambda given: {"batch": given.seeds},
    lambda given: {"blocks": cut_first_block(given)},
    lambda given: {"node_features": {"feat": given.node_features["feat"][1:]}},
    lambda given: {"edge_features": [given.edge_features[0], {"weight": given.edge_features[1]["weight"][1:]}]},
    lambda given: {"edge_features": given.edge_features[1:]},
]


@pytest.mark.parametrize(
    "load",
    [lambda chain: chain, dp.DataLoader, lambda chain: dp.DataLoader(chain, 1, worker_method="thread", cut="end")],
    ids=["plain", "data_loader", "worker"],
)
def test_a_stage_that_returns_rows_that_do_not_belong_together_is_named(load, refuses):
    for change in FORGETFUL:
        chain = fetched().transform(lambda minibatch, change=change: minibatch.replace(**change(minibatch)))
        with load(chain) as stage:
            refuses(ValueError, next, iter(stage))


def test_what_a_stage_may_not_return(refuses):
    def replaced(chain, **fields):
        next(iter(chain.transform(lambda minibatch: minibatch.replace(**fields))))

    for name in ("labels", "seeds"):
        for no_tensor in ([0] * 4, np.zeros(4)):
            refuses(TypeError, replaced, fetched(), **{name: no_tensor})
    block = next(iter(fetched())).blocks[0]
    of_types = {"blocks": {("a", "x", "b"): block}, "edge_features": [{}]}
    refuses(TypeError, replaced, fetched(), input_nodes=None, node_features=None, **of_types)
    seeds = dp.ItemSampler(dp.ItemSet((torch.arange(4), torch.arange(4)), names=("seeds", "weight")), 4)
    refuses(TypeError, replaced, seeds, extra=[])
    refuses(ValueError, replaced, seeds, node_features={"feat": torch.ones(3, 2)})
    refuses(ValueError, replaced, seeds, extra={"weight": torch.ones(3)})
    refuses(ValueError, next, iter(seeds.transform(shorten_in_place)))
    refuses(ValueError, next, iter(ThreeLabels()))
    node = torchdata.nodes.IterableWrapper([dp.MiniBatch(seeds=torch.arange(3), labels=torch.arange(2))])
    refuses(ValueError, next, iter(dp.FromNode(node)))


def shorten_in_place(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    minibatch.extra["weight"] = minibatch.extra["weight"][:1]
    return minibatch


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
