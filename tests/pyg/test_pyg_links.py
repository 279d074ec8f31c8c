"""LinkSeeds does what PyG's `edge_sample` does before and after it samples, over the same draws."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from pyg_cases import pyg
from torch_geometric.sampler.neighbor_sampler import edge_sample

from datapipes.pyg.links import LinkSeeds

EdgeSamplerInput, NegativeSampling = pyg.sampler.EdgeSamplerInput, pyg.sampler.NegativeSampling
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
NUM_NODES = {"author": 17, "paper": 23}
NODE_TIME = {node_type: torch.arange(count) * 7 % 20 for node_type, count in NUM_NODES.items()}
PAIRS = [None, ("binary", 1), ("binary", 0.4), ("binary", 2.5)]
CASES = [*itertools.product(PAIRS, (False, True)), (("triplet", 1), False), (("triplet", 3), False)]  # have no labels


def links_of(edge_type: Any, *, has_labels: bool, has_times: bool) -> Any:
    ends = [torch.arange(9) * 5 % 17, torch.arange(9) * 11 % 17]
    label = torch.arange(18).view(9, 2) if has_labels else None
    return EdgeSamplerInput(torch.arange(9) + 100, *ends, label, torch.arange(9) + 8 if has_times else None, edge_type)


def sample(seeds: Any, times: Any) -> Any:
    """Each seed is a node of its own, in a tree of its own."""
    if isinstance(seeds, dict):
        numbers = torch.arange(sum(map(len, seeds.values()))).split([len(seeds[group]) for group in sorted(seeds)])
        trees = dict(zip(sorted(seeds), numbers, strict=True))
        return pyg.sampler.HeteroSamplerOutput(dict(seeds), {}, {}, None, batch=trees)
    return pyg.sampler.SamplerOutput(seeds, None, None, None, batch=torch.arange(len(seeds)))


def both(links: Any, negatives: Any, node_time: Any, disjoint: bool) -> tuple[Any, Any, list[Any]]:
    """PyG's output and ours, each with what the sampler was given."""
    num_nodes = NUM_NODES if links.input_type is not None else 23
    given: list[Any] = []

    def noting(seeds: Any, times: Any) -> Any:
        given.append(copy.deepcopy((seeds, times)))
        return sample(seeds, times)

    torch.manual_seed(5)
    theirs = edge_sample(links, noting, num_nodes, disjoint, node_time, negatives)
    torch.manual_seed(5)
    seeds = LinkSeeds(links, negatives, num_nodes, node_time, disjoint)
    return theirs, seeds.placed(noting(seeds.seeds, seeds.times)), given


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return [*one] == [*other] and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(equal, one, other))
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.parametrize("edge_type", [None, WRITES, CITES], ids=["without types", "two types", "one type"])
@pytest.mark.parametrize("way", ["each node once", "trees", "times"])
@pytest.mark.parametrize(("negatives", "has_labels"), CASES, ids=str)
def test_seeds_and_output_are_those_of_pyg(edge_type, way, negatives, has_labels):
    negatives = None if negatives is None else NegativeSampling(*negatives)
    links = links_of(edge_type, has_labels=has_labels, has_times=way == "times")
    node_time = None if way != "times" else NODE_TIME if edge_type is not None else NODE_TIME["paper"]
    theirs, ours, given = both(links, negatives, node_time, way != "each node once")
    assert equal(*given)
    assert equal(theirs.metadata, ours.metadata)
    if way != "each node once":
        trees = [ours.batch] if edge_type is None else [*ours.batch.values()]
        amount = 0 if negatives is None else negatives.amount
        assert all(0 <= int(tree.min()) <= int(tree.max()) < len(links.row) for tree in trees)
        if amount == math.ceil(amount):  # else PyG gives a negative the tree of another link
            assert equal(theirs.batch, ours.batch)


@pytest.mark.parametrize("edge_type", [None, WRITES])
def test_a_positive_and_its_negatives_have_one_number(edge_type):
    links = links_of(edge_type, has_labels=False, has_times=False)
    num_nodes = 23 if edge_type is None else NUM_NODES
    seeds = LinkSeeds(links, NegativeSampling("binary", 1.4), num_nodes, None, True)
    batch = seeds.placed(sample(seeds.seeds, None)).batch
    of_each_end = [*torch.arange(9), *torch.arange(9), *torch.arange(4)]
    expected = torch.tensor(of_each_end)
    if edge_type is None:
        assert torch.equal(batch, expected.repeat(2))
    else:
        assert all(torch.equal(batch[node_type], expected) for node_type in ("author", "paper"))


class Late(NegativeSampling):
    """Draws nothing but the last node."""

    def sample(self, num_samples: int, endpoint: str, num_nodes: int | None = None) -> torch.Tensor:
        assert num_nodes is not None
        return torch.full((num_samples,), num_nodes - 1)


def test_where_no_draw_is_early_enough_the_negative_is_the_earliest_node():
    links = links_of(None, has_labels=False, has_times=True)
    node_time = torch.arange(23) * 10 + 5
    node_time[[0, 4]] = torch.tensor([9, 1])
    theirs, ours, given = both(links, Late("binary", 1), node_time, True)
    assert equal(*given)
    assert equal(theirs.metadata, ours.metadata)
    assert set(given[0][0].view(2, -1)[:, 9:].flatten().tolist()) == {4}


def test_what_does_not_belong_together_is_refused(refuses):
    def refused(negatives, node_time=None, **given):
        links = links_of(None, **{"has_labels": False, "has_times": False, **given})
        refuses(ValueError, LinkSeeds, links, negatives, 23, node_time, node_time is not None)

    refused(NegativeSampling("binary", 1), NODE_TIME["paper"])  # the links have no times
    refused(None, has_times=True)
    refused(NegativeSampling("triplet", 1), has_labels=True)
