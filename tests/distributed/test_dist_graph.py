"""DistGraph: the seeds of the part in this process; what it samples is in test_dist_samplers.py."""

import torch
from dist_graphs import in_parts

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


def test_what_a_dist_graph_refuses(refuses):
    graph, typed = own(0), own(0, typed=True)
    for name in ("to_undirected", "reversed", "add_self_loops", "remove_self_loops", "in_degrees", "out_degrees"):
        refuses(TypeError, getattr(graph, name))
    refuses(ValueError, own(None).local_items)
    for mask in ("test_mask", "y"):
        refuses(ValueError, graph.local_items, mask)
    refuses(ValueError, graph.local_items, label="label")
    refuses(ValueError, typed.local_items, label="label")
    refuses(ValueError, typed.local_items, "none_mask")
