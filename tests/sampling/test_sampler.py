"""Sampler: a sampler of a user's own needs `draw` and nothing private; what it returns is held against the graph."""

import numpy as np
import pytest
import torch
import twin
from pipelines import digests, items, sampled, small_graph, small_store
from typed_pipelines import FANOUTS, WRITTEN, typed_graph, typed_items

import datapipes as dp


class TwinSampler(dp.stages.Sampler):
    """What NeighborSampler does, by the plain twin's picks."""

    def draw(self, nodes: torch.Tensor, hop: int, rng: dp.stages.RngKey, edge_type=None) -> dp.stages.Picks:
        relation, ordinal = self.graph.relation(edge_type), self.graph.edge_types.index(edge_type)
        key, fanout = rng.hop_key(hop, ordinal), self.fanouts[-1 - hop]
        fanout = fanout if edge_type is None else fanout[edge_type]
        picks = [twin.picks_of(relation.indptr.tolist(), v, fanout, False, key) for v in nodes.tolist()]
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


SEEDS = {"plain": items, "nodes of types": typed_items, "links of types": lambda: typed_items(links=True)}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("with_edge_ids", [True, False])
@pytest.mark.parametrize("seeds", SEEDS)
def test_the_default_sample_numbers_nodes_as_the_core_does(dtype, with_edge_ids, seeds):
    has_types = seeds != "plain"
    graph = (typed_graph if has_types else small_graph)(dtype, with_edge_ids=with_edge_ids)
    fanouts = FANOUTS if has_types else [3, 2]
    ours = TwinSampler(SEEDS[seeds](), graph, fanouts, return_edge_ids=True)
    assert digests(ours) == digests(SEEDS[seeds]().sample_neighbor(graph, fanouts, return_edge_ids=True))


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


def test_stages_after_a_users_sampler_know_what_it_gives(refuses):
    chain = LastInEdges(items(), small_graph(), [2], return_edge_ids=True)
    assert (chain.node_types, chain.edge_types) == ((None,), (None,))
    minibatch = next(iter(chain.fetch_feature(small_store(), ["feat"], ["weight"])))
    assert minibatch.edge_features[0]["weight"].shape[0] == minibatch.blocks[0].num_edges
    refuses(ValueError, chain.fetch_feature, small_store(39), ["feat"])
    without = LastInEdges(items(), small_graph(), [2])
    refuses(ValueError, without.fetch_feature, small_store(), None, ["weight"])


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


class Nothing(dp.stages.Sampler):
    """Lacks a draw."""


class WithoutTypes(dp.stages.Sampler):
    def draw(self, nodes, hop, rng):
        raise NotImplementedError


def test_what_a_users_sampler_refuses(refuses):
    graph = small_graph()
    refuses(TypeError, LastInEdges, items(), 3, [2])
    refuses(ValueError, LastInEdges, items(), graph, [-2])
    refuses(TypeError, LastInEdges, items(), graph, [2], return_edge_ids=1)
    refuses(TypeError, Nothing, items(), graph, [2])
    WithoutTypes(items(), graph, [2])
    refuses(TypeError, WithoutTypes, typed_items(), typed_graph(), [2])
    nothing = items().transform(lambda minibatch: minibatch.replace(seeds=None))
    refuses(TypeError, next, iter(LastInEdges(nothing, graph, [2])))
    for dtype in (torch.int32, torch.int64):
        for seed in (40, -1, 2**32 + 1, 2**32 - 1):  # however wide the ids of the graph are
            chain = LastInEdges(dp.ItemSampler(dp.ItemSet(torch.tensor([3, seed])), 2), small_graph(dtype), [2])
            refuses(IndexError, next, iter(chain))
    papers = typed_items().transform(
        lambda minibatch: minibatch.replace(labels=None, extra=None, seeds={"paper": torch.tensor([40, 41])})
    )
    refuses(IndexError, next, iter(TwinSampler(papers, typed_graph(), [2])))


def test_what_picks_are_refused(refuses):
    class Wrong(dp.stages.Sampler):
        picks: object = None

        def draw(self, nodes, hop, rng):
            return self.picks

    def refused_of_four_nodes(error: type[Exception], picks: object) -> None:
        graph = dp.CSCGraph(np.arange(41) * 5, np.zeros(200, dtype=np.int64))
        sampler = Wrong(dp.ItemSampler(dp.ItemSet(4), 4), graph, [1])
        sampler.picks = picks
        refuses(error, next, iter(sampler))

    ends, none, four = torch.arange(5), torch.zeros(0).long(), torch.zeros(4).long()
    refused_of_four_nodes(TypeError, None)
    refused_of_four_nodes(TypeError, ([0], []))
    for picks in (
        (torch.tensor(0), none),
        (ends.float(), torch.zeros(4)),
        (ends[:-1], four),
        (none, none),
        (ends, four[:3]),
        (torch.tensor([0, 3, 1, 3, 4]), four),
        (ends, torch.full((4,), 199)),  # another node's edge
        (ends, torch.full((4,), -1)),
    ):
        refused_of_four_nodes(ValueError, picks)


def test_a_users_draw_is_held_against_the_relation(refuses):
    class First(TwinSampler):
        def draw(self, nodes, hop, rng, edge_type=None):
            indptr, positions = super().draw(nodes, hop, rng, edge_type)
            return dp.stages.Picks(indptr, positions + 100 * (edge_type == WRITTEN))

    refuses(ValueError, list, First(typed_items(), typed_graph(), [{WRITTEN: 1}]))


def test_a_subclass_of_a_sampler_of_the_package_fills_minibatches_its_own_way():
    class Counting(dp.NeighborSampler):
        def filled(self, minibatch, sampled):
            return super().filled(minibatch, sampled).replace(extra={"found": torch.full((4,), len(sampled.nodes))})

    for options in {}, {"disjoint": True}:
        minibatch = next(iter(Counting(items(), small_graph(), [2], **options)))
        assert minibatch.extra["found"].tolist() == [len(minibatch.input_nodes)] * 4
        assert (minibatch.batch is not None) == bool(options)
