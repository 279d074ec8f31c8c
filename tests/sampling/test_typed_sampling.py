"""Samplers over graphs with types: equal to the twin; fanouts and seeds by type; what does not fit is refused. And what
samplers give alike over graphs with types and without.
"""

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
from pipelines import digests, items, sampled, small_graph, start_at
from strategies import rng_seeds, typed_graphs, typed_seeds
from twin_cases import by_hop, expect_the_twin, typed_fanouts, typed_graph_of, typed_set_of
from typed_pipelines import (
    CITES,
    EDGE_TYPES,
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
from weights import weights_for

import datapipes as dp
from datapipes.base.types import ends_of


@pytest.mark.parametrize("weighted", [False, True])
@given(data=st.data(), arrays=typed_graphs(), rng_seed=rng_seeds, epoch=st.integers(0, 2**32 - 1))
def test_the_stage_draws_what_the_twin_draws(data, arrays, rng_seed, epoch, weighted):
    num_edges = {of: len(indices) for of, (_, indices, _) in arrays.relations.items()} if weighted else {}
    weights = {of: data.draw(weights_for(count)) for of, count in num_edges.items()}
    graph = typed_graph_of(arrays, edge_attributes={of: {"w": values} for of, values in weights.items()})
    seeds = {of: ids for of, ids in data.draw(typed_seeds(arrays)).items() if ids}
    assume(seeds)
    fanouts = data.draw(typed_fanouts(graph))
    options = {"replace": data.draw(st.booleans()), "frontier": data.draw(st.sampled_from(["all", "new"]))}
    start = dp.ItemSampler(typed_set_of(seeds), 5, shuffle=True, seed=rng_seed)
    pipe = start.transform(lambda minibatch: minibatch)  # the sampler then has ordinal 2
    pipe = pipe.sample_neighbor(graph, fanouts, prob_name="w" if weighted else None, return_edge_ids=True, **options)
    options |= {"weights": {of: values.tolist() for of, values in weights.items()}} if weighted else {}
    for minibatch in start_at(pipe, epoch):
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


with_types_or_none = pytest.mark.parametrize(
    ("sampled_over", "graph_of"),
    [(sampled, small_graph), (typed_sampled, typed_graph)],
    ids=["plain", "types"],
)


def by_type(value) -> dict:
    return value if isinstance(value, dict) else {None: value}


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@with_types_or_none
def test_sampled_ids_have_the_dtype_of_the_graph(sampled_over, graph_of, dtype):
    minibatch = next(iter(sampled_over(graph=graph_of(dtype))))
    nodes, seeds = by_type(minibatch.input_nodes), by_type(minibatch.compacted_seeds)
    blocks = [block for hop in minibatch.blocks for block in by_type(hop).values()]
    assert {ids.dtype for ids in (*nodes.values(), *seeds.values(), *(block.indices for block in blocks))} == {dtype}
    assert {block.indptr.dtype for block in blocks} == {torch.int64}
    wide = by_type(next(iter(sampled_over(graph=graph_of(torch.int64)))).input_nodes)
    assert all(torch.equal(ids.long(), wide[node_type]) for node_type, ids in nodes.items())


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


@pytest.mark.parametrize("with_edge_ids", [True, False])
@with_types_or_none
def test_edge_ids_lead_back_to_the_edges(sampled_over, graph_of, with_edge_ids):
    graph = graph_of(with_edge_ids=with_edge_ids)
    edges = {}
    for edge_type in graph.edge_types:
        relation = graph.relation(edge_type)
        ends = torch.repeat_interleave(torch.arange(len(relation.indptr) - 1), relation.indptr.diff())
        ids = relation.edge_ids if with_edge_ids else torch.arange(len(ends))
        triples = zip(ids.tolist(), relation.indices.tolist(), ends.tolist(), strict=True)
        edges[edge_type] = {i: (u, v) for i, u, v in triples}
    for minibatch in sampled_over(graph=graph):
        nodes = by_type(minibatch.input_nodes)
        for hop in minibatch.blocks:
            for edge_type, block in by_type(hop).items():
                (src, dst), (sources, ends) = ends_of(edge_type), block.edge_index
                pairs = zip(nodes[src][sources].tolist(), nodes[dst][ends].tolist(), strict=True)
                assert [edges[edge_type][i] for i in block.edge_ids.tolist()] == list(pairs)


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


def test_what_fanouts_are_refused(refuses):
    def sampler(fanouts: object) -> dp.Stage:
        return typed_sampled(fanouts=fanouts)

    for edge_type in (
        ("paper", "cite", "paper"),
        "paper:cite:paper",
        "paper:rev:writes:author",
        "paper:cites",
        "writes",
        ("paper", "cites"),
        ("paper", "", "paper"),
    ):
        refuses(ValueError, sampler, [{edge_type: 2}])
    refuses(ValueError, sampler, [{CITES: 2, "paper:cites:paper": 3}])
    refuses(ValueError, sampler, [{CITES: -2}])
    refuses(ValueError, sampler, [{CITES: 0}, 0])
    for fanouts in (["writes"], [{CITES: 1.5}], [{3: 2}], {CITES: [2, 2]}, [[2, 2]]):
        refuses(TypeError, sampler, fanouts)


# --- seeds


def changed_seeds(change) -> dp.Stage:
    return typed_sampled(
        typed_items().transform(lambda minibatch: minibatch.replace(labels=None, extra=None, seeds=change))
    )


IDS = torch.tensor([1, 2])


def test_what_seeds_are_refused(refuses):
    refuses(TypeError, next, iter(changed_seeds(IDS)))
    refuses(TypeError, next, iter(changed_seeds({"paper": IDS.float()})))
    for seeds in (
        {"papers": IDS},
        {("paper", "cited", "paper"): IDS.view(1, 2)},
        {"paper": IDS.view(1, 2)},
        {CITES: IDS},
        {"paper": IDS[:0], "author": IDS[:0]},
    ):
        refuses(ValueError, next, iter(changed_seeds(seeds)))
    for node_type in ("paper", "venue"):
        refuses(IndexError, next, iter(changed_seeds({node_type: torch.tensor([40])})))
    refuses(TypeError, typed_sampled, items())
    refuses(TypeError, sampled, dp.ItemSampler(typed_set(), 4))
    for seed_type, shape in (("papers", 1), (("paper", "cited", "paper"), (1, 2))):  # when the chain is built
        unknown = dp.HeteroItemSet({seed_type: dp.ItemSet(torch.zeros(shape, dtype=torch.int64))})
        refuses(ValueError, typed_sampled, dp.ItemSampler(unknown, 1).copy_to("cpu"))


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
