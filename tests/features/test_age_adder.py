"""Ages: the time of the seed minus the time of a node or an edge, with types and without, from seeds of any form."""

import pytest
import torch
from pipelines import digests

import datapipes as dp

NUM_NODES, NUM_EDGES, DAY = 60, 600, 86_400
WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "written", "author")


def drawn(high, count, seed):
    return torch.randint(0, high, (count,), generator=torch.Generator().manual_seed(seed))


def untyped():
    born, time = drawn(50, NUM_NODES, 1) * DAY + 1_700_000_007, drawn(50, NUM_EDGES, 2) * DAY + 1_700_000_003
    graph = dp.CSCGraph.from_edge_index(
        torch.stack([drawn(NUM_NODES, NUM_EDGES, 3), drawn(NUM_NODES, NUM_EDGES, 4)]),
        NUM_NODES,
        node_attributes={"born": born},
        edge_attributes={"time": time},
    )
    missing = drawn(5, NUM_NODES, 5) == 0
    features = {("node", None, "born"): born, ("node", None, "born_missing"): missing, ("edge", None, "time"): time}
    return graph, dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in features.items()})


def typed():
    ends, time = torch.stack([drawn(20, NUM_EDGES, 3), drawn(30, NUM_EDGES, 4)]), drawn(50, NUM_EDGES, 2)
    born = {"author": drawn(50, 20, 6), "paper": drawn(50, 30, 7)}
    graph = dp.HeteroCSCGraph.from_edge_index(
        {WRITES: ends, WRITTEN: ends.flip(0)},
        {"author": 20, "paper": 30},
        edge_attributes={WRITES: {"time": time}, WRITTEN: {"time": time}},
    )
    features = {("node", kind, "born"): rows for kind, rows in born.items()} | {("edge", WRITES, "time"): time}
    return graph, dp.FeatureStore({key: dp.TensorFeature(rows) for key, rows in features.items()})


def with_times():
    """Return a chain that fetches times of nodes and edges."""
    graph, features = untyped()
    items = dp.ItemSet((torch.arange(40), torch.full((40,), 1_710_000_000)), ("seeds", "timestamps"))
    pipe = dp.ItemSampler(items, 8).temporal_sample_neighbor(graph, [3], edge_time_attr="time", return_edge_ids=True)
    return pipe.fetch_feature(features, ["born", "born_missing"], ["time"])


def contract_chain() -> dp.Stage:
    return with_times().add_ages(["born"], ["time"], per=DAY)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.AgeAdder(with_times(), ["born"], ["time"], per=DAY)


@pytest.mark.parametrize("form", ["nodes", "pairs", "rows"])
@pytest.mark.parametrize(
    "options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=["times", "trees", "induced"]
)
def test_ages_are_those_of_each_seed(form, options):
    graph, features = untyped()
    seeds = (
        drawn(NUM_NODES, 40, 8) if form == "nodes" else drawn(NUM_NODES, 80 if form == "pairs" else 120, 8).view(40, -1)
    )
    stamps = drawn(6, 40, 9) * 7 * DAY + 1_700_000_000 + 10 * DAY
    pipe = dp.ItemSampler(dp.ItemSet((seeds, stamps), ("seeds", "timestamps")), 16)
    pipe = pipe.temporal_sample_neighbor(graph, [4, 3], edge_time_attr="time", return_edge_ids=True, **options)
    pipe = pipe.fetch_feature(features, ["born", "born_missing"], ["time"])
    num_edges = 0
    for minibatch in pipe.add_ages(["born"], ["time"], per=DAY):
        rows = minibatch.node_features
        stamps_of = {int(node): set() for node in range(len(minibatch.input_nodes))}
        for local, stamp in zip(
            minibatch.compacted_seeds.view(len(minibatch.timestamps), -1), minibatch.timestamps, strict=True
        ):
            for node in local.tolist():
                stamps_of[node].add(int(stamp))
        for _ in minibatch.blocks:
            for block in reversed(minibatch.blocks):
                for src, dst in block.edge_index.T.tolist():
                    stamps_of[src] |= stamps_of[dst]
        assert all(len(each) == 1 for each in stamps_of.values())
        seed_times = torch.tensor([each.pop() for each in stamps_of.values()])
        expected = (seed_times - rows["born"]).float() / DAY
        assert torch.equal(rows["born_age"], expected.masked_fill(rows["born_missing"], 0))
        for block, edges in zip(minibatch.blocks, minibatch.edge_features, strict=True):
            age = (seed_times[block.edge_index[1]] - edges["time"]).float() / DAY
            assert torch.equal(edges["time_age"], age)
            assert (age > 0).all()
            num_edges += block.num_edges
    assert num_edges > 100


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("seed_type", ["paper", WRITES], ids=["nodes", "links"])
def test_ages_with_types(disjoint, seed_type):
    graph, features = typed()
    seeds = drawn(30, 24, 1) if seed_type == "paper" else torch.stack([drawn(20, 24, 2), drawn(30, 24, 3)], 1)
    items = dp.HeteroItemSet({seed_type: dp.ItemSet((seeds, drawn(4, 24, 4) + 30), ("seeds", "timestamps"))})
    pipe = dp.ItemSampler(items, 8).temporal_sample_neighbor(
        graph, [4, 3], edge_time_attr="time", return_edge_ids=True, disjoint=disjoint
    )
    pipe = pipe.fetch_feature(features, {"author": ["born"], "paper": ["born"]}, {WRITES: ["time"]})
    for minibatch in pipe.add_ages({"author": ["born"]}, {"author:writes:paper": ["time"]}):
        assert ("paper", "born_age") not in minibatch.node_features
        ages = minibatch.node_features["author", "born_age"] + minibatch.node_features["author", "born"]
        assert {*ages.long().tolist()} <= {*minibatch.timestamps[seed_type].tolist()}
        if disjoint:
            assert torch.equal(ages.long(), minibatch.timestamps[seed_type][minibatch.batch["author"]])
        assert all((hop[WRITES, "time_age"] > 0).all() for hop in minibatch.edge_features if (WRITES, "time") in hop)


def test_ages_come_from_workers():
    with dp.DataLoader(contract_chain(), num_workers=2) as loader:
        assert [minibatch.digest() for minibatch in loader] == digests(contract_chain())


def test_what_has_no_age_is_refused(refuses):
    graph, features = untyped()
    items = dp.ItemSet((torch.arange(40), torch.full((40,), 1_710_000_000)), ("seeds", "timestamps"))
    sampled = dp.ItemSampler(items, 8).temporal_sample_neighbor(graph, [3], edge_time_attr="time")
    fetched = sampled.fetch_feature(features, ["born", "born_missing"])
    plain = dp.ItemSampler(dp.ItemSet(40), 8).sample_neighbor(graph, [3]).fetch_feature(features, ["born"])

    def first(pipe, *names):
        return next(iter(pipe.add_ages(*names)))

    for pipe, names in (
        (fetched, ([],)),
        (fetched, (["time"],)),
        (fetched, (["born_missing"],)),
        (plain, (["born"],)),
        (dp.ItemSampler(items, 8), (["born"],)),
    ):
        refuses(ValueError, first, pipe, *names)
    refuses(ValueError, fetched.add_ages, ["born"], per=0)
    refuses(ValueError, first, fetched, ["born"], ["time"])
    typed_graph, typed_features = typed()
    seeds = dp.HeteroItemSet({"paper": dp.ItemSet((torch.arange(8), torch.full((8,), 10**9)), ("seeds", "timestamps"))})
    pipe = dp.ItemSampler(seeds, 8).temporal_sample_neighbor(
        typed_graph, [3], edge_time_attr="time", return_edge_ids=True
    )
    pipe = pipe.fetch_feature(typed_features, {}, {WRITES: ["time"]})
    refuses(ValueError, first, pipe, {}, {WRITES: ["tme"]})
    refuses(ValueError, first, pipe, {}, {("paper", "cites", "journal"): ["time"]})
