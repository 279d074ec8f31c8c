"""Sampler: a sampler of a user's own needs `draw` and nothing private; what it returns is held against the graph."""

import numpy as np
import pytest
import torch
import twin
from pipelines import digests, items, refused, sampled, small_graph, small_store

import datapipes as dp


class TwinSampler(dp.stages.Sampler):
    """What NeighborSampler does, by the plain twin's picks."""

    def draw(self, nodes: torch.Tensor, hop: int, rng: dp.stages.RngKey) -> dp.stages.Picks:
        indptr, key, fanout = self.graph.indptr.tolist(), rng.hop_key(hop), self.fanouts[-1 - hop]
        picks = [twin.picks_of(indptr, v, fanout, False, key) for v in nodes.tolist()]
        ends = torch.tensor([0, *map(len, picks)]).cumsum(0)
        return dp.stages.Picks(ends, torch.tensor([place for row in picks for place in row], dtype=torch.int64))


class LastInEdges(dp.stages.Sampler):
    """Keeps the last `fanout` in-edges of each node."""

    def draw(self, nodes: torch.Tensor, hop: int, rng: dp.stages.RngKey) -> dp.stages.Picks:
        first, last = self.graph.indptr[nodes.long()], self.graph.indptr[nodes.long() + 1]
        counts = (last - first).clamp(max=self.fanouts[-1 - hop])
        ends = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        within = torch.arange(int(ends[-1])) - torch.repeat_interleave(ends[:-1], counts)
        return dp.stages.Picks(ends, torch.repeat_interleave(last - counts, counts) + within)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("with_edge_ids", [True, False])
def test_the_default_sample_numbers_nodes_as_the_core_does(dtype, with_edge_ids):
    graph = small_graph(dtype, with_edge_ids=with_edge_ids)
    ours = TwinSampler(items(), graph, [3, 2], return_edge_ids=True)
    assert digests(ours) == digests(sampled(graph=graph))


def test_what_is_no_graph_is_refused():
    with refused(
        TypeError, stage="sample_neighbor", found="got tuple", allowed="CSCGraph", remedy=r"see CSCGraph\.from"
    ):
        items().sample_neighbor(((0, 1), (1,)), [2])


def test_a_users_sampler_keeps_what_its_draw_says():
    graph = small_graph(with_edge_ids=False)
    for minibatch in LastInEdges(items(), graph, [2]):
        (hop,) = minibatch.sampled_subgraphs
        sources = hop.original_row_node_ids[hop.sampled_csc.indices.long()]
        for i, node in enumerate(hop.original_column_node_ids.tolist()):
            own = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
            begin, end = hop.sampled_csc.indptr[i], hop.sampled_csc.indptr[i + 1]
            assert torch.equal(sources[begin:end], own[-2:])
        assert torch.equal(minibatch.input_nodes[minibatch.compacted_seeds], minibatch.seeds)


def test_stages_after_a_users_sampler_know_what_it_gives():
    chain = LastInEdges(items(), small_graph(), [2], return_edge_ids=True)
    assert (chain.node_types, chain.edge_types) == ((None,), (None,))
    minibatch = next(iter(chain.fetch_feature(small_store(), ["feat"], ["weight"])))
    assert minibatch.edge_features[0]["weight"].shape[0] == minibatch.blocks[0].num_edges
    with refused(ValueError, stage="fetch_feature", found="'feat' has 39 rows", allowed="40 nodes"):
        chain.fetch_feature(small_store(39), ["feat"])
    without = LastInEdges(items(), small_graph(), [2])
    with refused(ValueError, stage="fetch_feature", found="return_edge_ids=False", allowed="need edge ids"):
        without.fetch_feature(small_store(), None, ["weight"])


def test_an_attribute_named_graph_makes_no_sampler():
    class HasAGraph(dp.MiniBatchTransformer):
        graph = small_graph()
        return_edge_ids = False

        def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
            return minibatch

    few_rows = small_store(39)
    HasAGraph(items()).fetch_feature(few_rows, ["feat"])
    HasAGraph(sampled()).fetch_feature(small_store(), None, ["weight"])  # the sampler before it gives edge ids


def test_a_users_sampler_runs_in_a_loader_and_resumes():
    chain = LastInEdges(items(), small_graph(), [2, 2]).fetch_feature(small_store(), ["feat"])
    expected = digests(chain)
    with dp.DataLoader(chain, 2, worker_method="thread") as loader:
        assert digests(loader) == expected
        loader.set_epoch(0)
        next(iter(loader))
        state = loader.state_dict()
    assert state["fingerprint"]["1.last_in_edges.fanouts"] == [2, 2]
    chain.load_state_dict(state)
    assert digests(chain) == expected[1:]


def test_arguments_are_refused_under_the_stages_own_name():
    with refused(TypeError, stage="last_in_edges", found="got int", allowed="CSCGraph"):
        LastInEdges(items(), 3, [2])
    with refused(ValueError, stage="last_in_edges", found="-2", allowed="-1 or more"):
        LastInEdges(items(), small_graph(), [-2])
    with refused(TypeError, stage="last_in_edges", found="got 1", allowed="True or False"):
        LastInEdges(items(), small_graph(), [2], return_edge_ids=1)
    nothing = items().transform(lambda minibatch: minibatch.replace(seeds=None))
    with refused(TypeError, stage="last_in_edges", found="NoneType", allowed="a tensor"):
        next(iter(LastInEdges(nothing, small_graph(), [2])))


def test_a_sampler_without_draw_or_sample_is_refused():
    class Nothing(dp.stages.Sampler):
        pass

    with refused(TypeError, stage="nothing", found="neither a draw nor a sample", allowed="one is needed"):
        Nothing(items(), small_graph(), [2])


def ends_of(nodes: torch.Tensor, each: int = 1) -> torch.Tensor:
    return torch.arange(nodes.shape[0] + 1) * each


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("seed", [40, -1, 2**32 + 1, 2**32 - 1])
def test_a_seed_outside_the_graph_is_refused_however_wide_its_ids_are(dtype, seed):
    chain = LastInEdges(dp.ItemSampler(dp.ItemSet(torch.tensor([3, seed])), 2), small_graph(dtype), [2])
    with refused(IndexError, stage="last_in_edges", found=f"got {seed}", allowed=r"\[0, 40\)"):
        next(iter(chain))


WRONG_PICKS = {
    "no dimension": (lambda nodes: (torch.tensor(0), torch.zeros(0).long()), ValueError, r"\[\]", "1 dimension"),
    "no picks": (lambda nodes: None, TypeError, "got NoneType", "Picks"),
    "lists": (lambda nodes: ([0], []), TypeError, "got tuple", "Picks"),
    "floats": (lambda nodes: (ends_of(nodes).float(), torch.zeros(4)), ValueError, "float32", "int64"),
    "too short": (lambda nodes: (ends_of(nodes)[:-1], torch.zeros(4).long()), ValueError, "length 4", "one entry more"),
    "empty": (lambda nodes: (torch.zeros(0).long(), torch.zeros(0).long()), ValueError, "length 0", "one entry more"),
    "too few": (lambda nodes: (ends_of(nodes), torch.zeros(3).long()), ValueError, "3 positions", "rise from 0"),
    "descending": (
        lambda nodes: (torch.tensor([0, 3, 1, 3, 4]), torch.zeros(4).long()),
        ValueError,
        "length 5",
        "rise from 0",
    ),
    "another's edge": (lambda nodes: (ends_of(nodes), torch.full((4,), 199)), ValueError, "position 199", "in-edges"),
    "negative": (lambda nodes: (ends_of(nodes), torch.full((4,), -1)), ValueError, "position -1", "in-edges"),
}


@pytest.mark.parametrize("kind", WRONG_PICKS)
def test_picks_that_are_no_in_edges_of_the_nodes_are_refused(kind):
    picks, error, found, allowed = WRONG_PICKS[kind]

    class Wrong(dp.stages.Sampler):
        def draw(self, nodes, hop, rng):
            return picks(nodes)

    first_four = dp.ItemSampler(dp.ItemSet(4), 4)
    indptr = np.arange(41) * 5
    graph = dp.CSCGraph(indptr, np.zeros(200, dtype=np.int64))
    with refused(error, stage="wrong", found=found, allowed=allowed):
        next(iter(Wrong(first_four, graph, [1])))


def test_a_subclass_of_a_sampler_of_the_package_fills_minibatches_its_own_way():
    class Counting(dp.NeighborSampler):
        def filled(self, minibatch, sampled):
            return super().filled(minibatch, sampled).replace(extra={"found": torch.full((4,), len(sampled.nodes))})

    for options in {}, {"disjoint": True}:
        minibatch = next(iter(Counting(items(), small_graph(), [2], **options)))
        assert minibatch.extra["found"].tolist() == [len(minibatch.input_nodes)] * 4
        assert (minibatch.batch is not None) == bool(options)
