"""DistGraph: the seeds of the part in this process; what it samples is in test_dist_samplers.py."""

import pytest
import torch
from dist_graphs import in_parts
from pipelines import refused

import datapipes as dp

NUM_NODES, OWNERS = 20, torch.arange(20) * 7 % 11 % 2
EDGES = torch.stack((torch.arange(20), torch.arange(20).roll(1)))


def attributes(first: int = 0) -> dict[str, torch.Tensor]:
    masks = {"train_mask": torch.arange(NUM_NODES) % 3 == 0, "none_mask": torch.zeros(NUM_NODES, dtype=torch.bool)}
    return {"y": torch.arange(NUM_NODES) + first, "class": torch.arange(NUM_NODES) % 4, **masks}


def own(part: int | None, *, typed: bool = False) -> dp.distributed.DistGraph:
    if not typed:
        return in_parts(dp.CSCGraph.from_edge_index(EDGES, NUM_NODES, node_attributes=attributes()), OWNERS, 2, part)
    graph = dp.HeteroCSCGraph.from_edge_index(
        {("a", "to", "b"): EDGES, ("b", "to", "c"): EDGES},
        num_nodes=dict.fromkeys("abc", NUM_NODES),
        node_attributes={"a": attributes(), "b": attributes(100), "c": {"y": torch.arange(NUM_NODES)}},
    )
    return in_parts(graph, {"a": OWNERS, "b": 1 - OWNERS, "c": OWNERS}, 2, part)


def test_the_seeds_of_the_parts_are_all_seeds_with_their_labels():
    wanted = attributes()["train_mask"].nonzero().flatten()
    seeds = []
    for part in range(2):
        items = own(part).local_items()
        taken = items.take(torch.arange(len(items)))
        assert set((OWNERS[taken["seeds"]]).tolist()) == {part}
        assert torch.equal(taken["labels"], taken["seeds"])
        assert torch.equal(own(part).local_items(label="class").take(torch.arange(3))["labels"], taken["seeds"][:3] % 4)
        assert own(part).local_items(label=None).names == ("seeds",)
        seeds.append(taken["seeds"])
    assert torch.equal(torch.cat(seeds).sort().values, wanted)
    assert len(own(0).local_items("none_mask")) == 0


def test_with_types_each_type_that_has_the_mask_has_its_seeds():
    items = own(1, typed=True).local_items()
    assert items.types == ("a", "b")
    taken = items.take(torch.arange(len(items)))
    assert set(OWNERS[taken["seeds"]["a"]].tolist()) == {1}
    assert set(OWNERS[taken["seeds"]["b"]].tolist()) == {0}
    assert torch.equal(taken["labels"]["b"], taken["seeds"]["b"] + 100)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("to_undirected", "call it of the whole graph, and partition that again"),
        ("add_self_loops", "call it of the whole graph, and partition that again"),
        ("remove_self_loops", "call it of the whole graph, and partition that again"),
        ("in_degrees", r"local_part\.relation\(edge_type\) has the in-edges of the part"),
        ("out_degrees", "call it of the whole graph before"),
    ],
)
def test_what_needs_all_rows_is_refused(name, remedy):
    graph = own(0)
    with refused(TypeError, stage="DistGraph", found=f"no {name}", allowed="rows are in 2 parts", remedy=remedy):
        getattr(graph, name)()


@pytest.mark.parametrize(
    ("part", "typed", "arguments", "found", "remedy"),
    [
        (None, False, {}, "all parts are behind servers", "local_part="),
        (0, False, {"mask": "test_mask"}, "no mask 'test_mask'.*'train_mask'", "Name another mask"),
        (0, False, {"mask": "y"}, "no mask 'y'", "Name another mask"),
        (0, False, {"label": "label"}, "no attribute 'label'.*'class'", "label=None"),
        (0, True, {"label": "label"}, "nodes of a have no attribute", "label=None"),
        (0, True, {"mask": "none_mask"}, "no node where 'none_mask' is True", "Name another mask"),
    ],
)
def test_a_mask_or_a_label_that_is_not_there_is_refused(part, typed, arguments, found, remedy):
    with refused(ValueError, stage="DistGraph.local_items", found=found, allowed="", remedy=remedy):
        own(part, typed=typed).local_items(**arguments)
