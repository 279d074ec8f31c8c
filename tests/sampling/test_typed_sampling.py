"""Samplers over graphs with types: equal to the twin; fanouts and seeds by type; what does not fit is refused."""

import copy
import os
import pickle
import warnings
from pathlib import Path

import pytest
import torch
import twin
from hypothesis import assume, given
from hypothesis import strategies as st
from pipelines import digests, items, refused, sampled, small_graph, start_at
from strategies import rng_seeds, typed_graphs, typed_seeds
from twin_cases import by_hop, expect_the_twin, typed_fanouts, typed_graph_of, typed_set_of
from typed_pipelines import (
    CITES,
    EDGE_TYPES,
    FANOUTS,
    HOSTS,
    NUM_NODES,
    REVIEWS,
    WRITES,
    WRITTEN,
    typed_graph,
    typed_items,
    typed_sampled,
    typed_set,
)

import datapipes as dp


@given(st.data(), typed_graphs(), rng_seeds, st.integers(0, 2**32 - 1))
def test_the_stage_draws_what_the_twin_draws(data, arrays, rng_seed, epoch):
    graph = typed_graph_of(arrays)
    seeds = {of: ids for of, ids in data.draw(typed_seeds(arrays)).items() if ids}
    assume(seeds)
    fanouts = data.draw(typed_fanouts(graph))
    options = {"replace": data.draw(st.booleans()), "frontier": data.draw(st.sampled_from(["all", "new"]))}
    start = dp.ItemSampler(typed_set_of(seeds), 5, shuffle=True, seed=rng_seed)
    pipe = start.transform(lambda minibatch: minibatch)  # the sampler then has ordinal 2
    for minibatch in start_at(pipe.sample_neighbor(graph, fanouts, return_edge_ids=True, **options), epoch):
        rng = dp.stages.RngKey(rng_seed, epoch, minibatch.index, 2)
        expected = twin.sample_typed_neighbors(
            sorted(arrays.num_nodes),
            arrays.relations,
            {of: ids.tolist() for of, ids in minibatch.seeds.items()},
            fanouts=by_hop(fanouts, graph.edge_types),
            key_of=lambda number, ordinal, rng=rng: twin.hop_key(
                rng.seed, rng.epoch, rng.index, rng.stage, number, ordinal
            ),
            **options,
        )
        expect_the_twin(minibatch, expected)
        assert dp.MiniBatch.from_message(minibatch.to_message()).digest() == minibatch.digest()


def test_one_type_and_one_relation_give_the_minibatches_of_the_graph_without_types():
    plain, of = small_graph(), ("node", "to", "node")
    typed = dp.HeteroCSCGraph({of: (plain.indptr, plain.indices)}, {"node": 40}, edge_ids={of: plain.edge_ids})
    start = dp.ItemSampler(dp.HeteroItemSet({"node": items().item_set}), 4, shuffle=True, seed=5)
    for frontier in ("all", "new"):
        expected = list(sampled(frontier=frontier))
        for found, minibatch in zip(
            typed_sampled(start, typed, fanouts=[3, 2], frontier=frontier), expected, strict=True
        ):
            assert torch.equal(found.seeds["node"], minibatch.seeds)
            assert torch.equal(found.input_nodes["node"], minibatch.input_nodes)
            assert torch.equal(found.compacted_seeds["node"], minibatch.compacted_seeds)
            for blocks, block in zip(found.blocks, minibatch.blocks, strict=True):
                assert torch.equal(blocks[of].indptr, block.indptr)
                assert torch.equal(blocks[of].indices, block.indices)
                assert torch.equal(blocks[of].edge_ids, block.edge_ids)
                assert blocks[of].num_src == block.num_src


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_sampled_ids_have_the_dtype_of_the_graph(dtype):
    minibatch = next(iter(typed_sampled(graph=typed_graph(dtype))))
    found = [*minibatch.input_nodes.values(), *minibatch.compacted_seeds.values()]
    found += [block.indices for blocks in minibatch.blocks for block in blocks.values()]
    assert {tensor.dtype for tensor in found} == {dtype}
    wide = next(iter(typed_sampled(graph=typed_graph(torch.int64))))
    assert all(torch.equal(ids.long(), wide.input_nodes[of]) for of, ids in minibatch.input_nodes.items())


def test_every_minibatch_has_the_types_that_follow_from_the_arguments():
    chain = typed_sampled(fanouts=[{CITES: 2, HOSTS: 3}, {WRITES: 0, CITES: 1}])
    assert chain.node_types == ("author", "paper", "venue")
    assert chain.edge_types == (CITES, HOSTS)
    for minibatch in chain:
        assert list(minibatch.seeds) == list(minibatch.labels) == ["author", "paper"]
        assert list(minibatch.input_nodes) == ["author", "paper", "venue"]
        assert [list(blocks) for blocks in minibatch.blocks] == [[CITES, HOSTS]] * 2


def test_links_start_from_the_nodes_at_both_ends():
    for minibatch in typed_sampled(typed_items(links=True)):
        for (src, rel, dst), pairs in minibatch.seeds.items():
            local = minibatch.compacted_seeds[src, rel, dst]
            assert local.shape == pairs.shape
            assert torch.equal(minibatch.input_nodes[src][local[:, 0]], pairs[:, 0])
            assert torch.equal(minibatch.input_nodes[dst][local[:, 1]], pairs[:, 1])


def test_edge_ids_lead_back_to_the_edges():
    graph = typed_graph()
    edges = {}
    for of in graph.edge_types:
        relation = graph.relation(of)
        ends = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
        triples = zip(relation.edge_ids.tolist(), relation.indices.tolist(), ends.tolist(), strict=True)
        edges[of] = {i: (u, v) for i, u, v in triples}
    for minibatch in typed_sampled(graph=graph):
        for blocks in minibatch.blocks:
            for (src, rel, dst), block in blocks.items():
                sources, ends = block.edge_index
                pairs = zip(
                    minibatch.input_nodes[src][sources].tolist(), minibatch.input_nodes[dst][ends].tolist(), strict=True
                )
                assert [edges[src, rel, dst][i] for i in block.edge_ids.tolist()] == list(pairs)


# --- fanouts


def test_an_edge_type_may_be_written_as_text_and_a_missing_one_is_0():
    graph = typed_graph()
    chain = typed_sampled(graph=graph, fanouts=[{"paper:cites:paper": 2}, {CITES: 3}])
    assert chain.fanouts == [{**dict.fromkeys(EDGE_TYPES, 0), CITES: 2}, {**dict.fromkeys(EDGE_TYPES, 0), CITES: 3}]
    assert digests(chain) == digests(typed_sampled(graph=graph, fanouts=[{CITES: 2}, {CITES: 3}]))


def test_an_int_counts_for_each_edge_type():
    chain = typed_sampled(fanouts=[2, 3])
    assert chain.fanouts == [dict.fromkeys(EDGE_TYPES, 2), dict.fromkeys(EDGE_TYPES, 3)]
    assert "fanouts=[2, 3]" in repr(chain)


@pytest.mark.parametrize(
    ("fanouts", "error", "found", "allowed"),
    [
        ([{("paper", "cite", "paper"): 2}], ValueError, "cite", r"The nearest is \('paper', 'cites', 'paper'\)"),
        ([{"paper:cite:paper": 2}], ValueError, "'cite'", "known are .*'reviews'"),
        ([{"paper:rev:writes:author": 2}], ValueError, "more than one way", "tuple"),
        (
            [{"paper:cites": 2}],
            ValueError,
            "no edge type 'paper:cites'",
            r"The nearest is \('paper', 'cites', 'paper'\)",
        ),
        ([{"writes": 2}], ValueError, "no edge type 'writes'", "The nearest"),
        ([{("paper", "cites"): 2}], ValueError, r"\('paper', 'cites'\)", "three texts"),
        (["writes"], TypeError, "'writes'", "a dict"),
        ([{("paper", "", "paper"): 2}], ValueError, "empty name", "at least one character"),
        ([{CITES: 2, "paper:cites:paper": 3}], ValueError, "twice", "once"),
        ([{CITES: -2}], ValueError, "-2", "-1 or more"),
        ([{CITES: 1.5}], TypeError, "1.5", "an int"),
        ([{3: 2}], TypeError, "got 3", "a tuple"),
        ([{CITES: 0}, 0], ValueError, "no edge type has a fanout other than 0", "Known are"),
        ({CITES: [2, 2]}, TypeError, r"got \{", "one for each hop"),
        ([[2, 2]], TypeError, r"\[2, 2\]", "an int"),
    ],
)
def test_fanouts_that_are_not_allowed_are_refused(fanouts, error, found, allowed):
    with refused(error, stage="sample_neighbor", found=found, allowed=allowed):
        typed_sampled(fanouts=fanouts)


def test_fanouts_by_edge_type_need_a_graph_with_types():
    with refused(TypeError, stage="sample_neighbor", found=r"fanouts\[1\] is a dict", allowed="no edge types"):
        sampled(fanouts=[2, {CITES: 2}])


# --- seeds


def changed_seeds(change) -> dp.Stage:
    return typed_sampled(
        typed_items().transform(lambda minibatch: minibatch.replace(labels=None, extra=None, seeds=change))
    )


IDS = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("seeds", "error", "found", "allowed"),
    [
        (IDS, TypeError, "got Tensor", "a dict by type"),
        ({"papers": IDS}, ValueError, "no node type 'papers'", "The nearest is 'paper'"),
        ({("paper", "cited", "paper"): IDS.view(1, 2)}, ValueError, "'cited'", "The nearest is"),
        ({"paper": IDS.view(1, 2)}, ValueError, r"\[1, 2\]", r"shape \[n\]"),
        ({CITES: IDS}, ValueError, r"got \[2\]", r"pairs \[n, 2\]"),
        ({"paper": IDS.float()}, TypeError, "got float32", "int32 or int64"),
        ({"paper": IDS[:0], "author": IDS[:0]}, ValueError, "no seeds", "at least 1"),
    ],
)
def test_seeds_that_do_not_fit_are_refused(seeds, error, found, allowed):
    with refused(error, stage="sample_neighbor", found=found, allowed=allowed):
        next(iter(changed_seeds(seeds)))


@pytest.mark.parametrize("node_type", ["paper", "venue"])
def test_a_seed_outside_its_type_is_refused(node_type):
    with pytest.raises(
        IndexError, match=rf"^sample_neighbor, {node_type}: node id must be in \[0, {NUM_NODES[node_type]}\)"
    ):
        next(iter(changed_seeds({node_type: torch.tensor([40])})))


def test_seeds_and_graph_must_both_have_types_or_neither():
    with refused(TypeError, stage="sample_neighbor", found="got an ItemSet without types", allowed="HeteroItemSet"):
        typed_sampled(items())
    with refused(TypeError, stage="sample_neighbor", found="'author', 'paper'", allowed="the graph has none"):
        sampled(dp.ItemSampler(typed_set(), 4))


# --- a sampler of a user's own


class TwinSampler(dp.stages.Sampler):
    """What NeighborSampler does, by the plain twin's picks."""

    def draw(self, nodes: torch.Tensor, hop: int, rng: dp.stages.RngKey, edge_type=None) -> dp.stages.Picks:
        relation, ordinal = self.graph.relation(edge_type), self.graph.edge_types.index(edge_type)
        key, fanout = rng.hop_key(hop, ordinal), self.fanouts[-1 - hop]
        fanout = fanout if edge_type is None else fanout[edge_type]
        picks = [twin.picks_of(relation.indptr.tolist(), v, fanout, False, key) for v in nodes.tolist()]
        ends = torch.tensor([0, *map(len, picks)]).cumsum(0)
        return dp.stages.Picks(ends, torch.tensor([place for row in picks for place in row], dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("with_edge_ids", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_a_users_sampler_numbers_nodes_as_the_core_does(dtype, with_edge_ids, links):
    graph = typed_graph(dtype, with_edge_ids=with_edge_ids)
    ours = TwinSampler(typed_items(links=links), graph, FANOUTS, return_edge_ids=True)
    assert digests(ours) == digests(typed_sampled(typed_items(links=links), graph))
    assert digests(TwinSampler(items(), small_graph(), [3, 2], return_edge_ids=True)) == digests(sampled())


def test_a_users_sampler_whose_draw_knows_no_types_is_refused_over_a_graph_with_types():
    class Plain(dp.stages.Sampler):
        def draw(self, nodes, hop, rng):
            raise NotImplementedError

    Plain(items(), small_graph(), [2])
    with refused(TypeError, stage="plain", found="knows no edge types", allowed="edge_type"):
        Plain(typed_items(), typed_graph(), [2])


def test_a_users_draw_is_held_against_the_relation():
    class First(TwinSampler):
        def draw(self, nodes, hop, rng, edge_type=None):
            indptr, positions = super().draw(nodes, hop, rng, edge_type)
            return dp.stages.Picks(indptr, positions + 100 * (edge_type == WRITTEN))

    with refused(ValueError, stage="first", found="returned position 1", allowed="in-edges are at"):
        list(First(typed_items(), typed_graph(), [{WRITTEN: 1}]))
    seeds = typed_items().transform(
        lambda minibatch: minibatch.replace(labels=None, extra=None, seeds={"paper": IDS + 39})
    )
    with refused(IndexError, stage="twin_sampler", found=r"got \d+", allowed=r"seeds of paper must be in \[0, 40\)"):
        next(iter(TwinSampler(seeds, typed_graph(), [2])))


def test_the_fingerprint_tells_graphs_and_fanouts_apart():
    state = next_state(typed_sampled())
    assert state["fingerprint"]["1.sample_neighbor.num_nodes"] == dict(sorted(NUM_NODES.items()))
    assert state["fingerprint"]["1.sample_neighbor.fanouts"][0]["paper:cites:paper"] == 3
    for other in (typed_sampled(fanouts=[2, 3]), typed_sampled(graph=typed_graph(with_edge_ids=False))):
        with pytest.raises(ValueError, match="sample_neighbor"):
            other.load_state_dict(state)
    typed_sampled(graph=typed_graph(torch.int32)).load_state_dict(state)


def next_state(chain: dp.Stage) -> dict:
    next(iter(chain))
    return chain.state_dict()


def test_a_relation_that_is_not_sampled_changes_no_draw_of_the_others():
    """The edge type ordinal counts all edge types of the graph."""
    few, all_types = typed_sampled(fanouts=[{WRITTEN: 2}]), typed_sampled(fanouts=[{WRITTEN: 2, REVIEWS: -1}])
    for one, other in zip(few, all_types, strict=True):
        assert torch.equal(one.blocks[0][WRITTEN].edge_ids, other.blocks[0][WRITTEN].edge_ids)


def test_edge_types_whose_words_join_alike_are_told_apart_in_a_state():
    alike = [("a", "b:c", "a"), ("a:b", "c", "a")]
    relations = {of: ([0, 2, 2, 2], [1, 2]) if of[0] == "a" else ([0, 1, 1, 1], [0]) for of in alike}
    relations = {of: tuple(torch.tensor(array) for array in arrays) for of, arrays in relations.items()}
    graph = dp.HeteroCSCGraph(relations, {"a": 3, "a:b": 3})
    start = dp.ItemSampler(dp.HeteroItemSet({"a": dp.ItemSet(3)}), 1)
    one, other = (start.sample_neighbor(graph, [dict(zip(alike, n, strict=True))]) for n in ((1, 2), (5, 2)))
    with pytest.raises(ValueError, match="fanouts"):
        other.load_state_dict(next_state(one))


def test_types_that_no_node_is_found_of_cost_no_memory():
    """Their id maps would take 1 GiB."""
    relation = (torch.zeros(3, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    idle = {(f"t{i}", "to", "a"): relation for i in range(8)}
    graph = dp.HeteroCSCGraph(
        {("a", "to", "a"): (torch.tensor([0, 1, 2]), torch.tensor([1, 0])), **idle},
        {"a": 2, **{f"t{i}": 2**25 for i in range(8)}},
    )
    start = dp.ItemSampler(dp.HeteroItemSet({"a": dp.ItemSet(2)}), 2)
    before = resident_bytes()
    minibatch = next(iter(start.sample_neighbor(graph, [{("a", "to", "a"): -1}])))
    assert list(minibatch.input_nodes) == ["a", *(f"t{i}" for i in range(8))]
    assert resident_bytes() - before < 2**26


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("make", [small_graph, typed_graph])
def test_a_graph_whose_memory_torch_has_moved_is_sampled_where_it_is_now(make):
    chain = typed_sampled(graph=make()) if make is typed_graph else sampled(graph=make())
    expected = digests(chain)
    relation = chain.graph.relation(chain.edge_types[0])
    for tensor in (relation.indptr, relation.indices, relation.edge_ids):
        tensor.share_memory_()  # moves the values and frees where they were
    chain.set_epoch(0)
    assert digests(chain) == expected


def test_seeds_are_held_against_the_graph_when_the_chain_is_built():
    for of in ("papers", ("paper", "cited", "paper")):
        seeds = dp.HeteroItemSet({of: dp.ItemSet(torch.zeros(1 if of == "papers" else (1, 2), dtype=torch.int64))})
        with refused(ValueError, stage="sample_neighbor", found="no (node|edge) type", allowed="The nearest is"):
            typed_sampled(dp.ItemSampler(seeds, 1).copy_to("cpu"))


ENDLESS = {
    "an author of papers": ("author", [{WRITES: 2}, {CITES: 1}], "sampled are ['author:writes:paper', 'paper:"),
    "an edge type without edges": ("venue", [3], "to the seeds of venue"),
    "a link": (REVIEWS, [{HOSTS: 3}], "to the seeds of author:reviews:paper"),
    "a paper": ("paper", [{WRITES: 2}], None),
    "a link of which one end is reached": (WRITES, [{WRITES: 2}], None),
    "nothing is known of a function": ("author", [{WRITES: 2}], None),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_seeds_that_no_sampled_edge_leads_to_are_told_once(name):
    of, fanouts, expected = ENDLESS[name]
    graph = typed_graph()
    seeds = dp.ItemSet(torch.zeros(3, 2, dtype=torch.int64) if isinstance(of, tuple) else 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = dp.ItemSampler(dp.HeteroItemSet({of: seeds}), 2)
        start = start.transform(lambda minibatch: minibatch) if name.startswith("nothing") else start
        pipe = start.sample_neighbor(graph, fanouts)
        dp.DataLoader(pickle.loads(pickle.dumps(pipe)) if expected else pipe).close()
        copy.copy(pipe), dp.NeighborSampler(start, graph, fanouts), start.sample_layer_neighbor(graph, fanouts)
    assert [each.filename for each in caught] == ([] if expected is None else [__file__])
    assert expected is None or expected in str(caught[0].message)
