"""SeedEdgeExcluder: what stays is what a plain search keeps, behind every sampler; nothing else changes."""

import numpy as np
import pytest
import torch
from dist_graphs import small_parts, typed_parts
from hypothesis import assume, given
from hypothesis import strategies as st
from link_chains import PAIRS, links_of_types, next_destination, next_source, pairs_chain
from pipelines import (
    assert_no_bit_changes,
    assert_states_are_apart,
    assert_states_move,
    digests,
    first,
    graph_of,
    items,
    small_graph,
    small_store,
)
from strategies import csc_graphs, random_graph, typed_graphs, typed_pairs
from twin_cases import typed_graph_of, typed_set_of
from typed_pipelines import CITES, NUM_NODES, REVIEWS, WRITES, WRITTEN, typed_graph, typed_items

import datapipes as dp

MAPPING = {WRITES: WRITTEN}


def contract_chain() -> dp.Stage:
    return sampled(small_graph()).exclude_seed_edges(include_reverse_edges=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.SeedEdgeExcluder(sampled(small_graph()), include_reverse_edges=True)


def edge_pairs(graph: dp.CSCGraph, step: int = 5) -> torch.Tensor:
    """Some edges of a graph, [n, 2]."""
    destinations = torch.repeat_interleave(torch.arange(graph.num_nodes), graph.indptr.diff())
    return torch.stack((graph.indices.long(), destinations), 1)[::step].contiguous()


def sampled(graph, **options: object) -> dp.Stage:
    pairs = edge_pairs(small_graph())
    pipe = dp.ItemSampler(dp.ItemSet(pairs), 8, shuffle=True, seed=5)
    return pipe.sample_neighbor(graph, [-1, 4], return_edge_ids=True, **options)


def kept_of(block: dp.Block, sources, destinations, is_out) -> tuple[list, list, list | None]:
    """A plain search: is_out(source, destination, edge id)."""
    indptr, indices, edge_ids = [0], [], []
    for column in range(block.num_dst):
        for p in range(int(block.indptr[column]), int(block.indptr[column + 1])):
            local = int(block.indices[p])
            edge_id = None if block.edge_ids is None else int(block.edge_ids[p])
            if not is_out(int(sources[local]), int(destinations[column]), edge_id):
                indices.append(local)
                edge_ids.append(edge_id)
        indptr.append(len(indices))
    return indptr, indices, None if block.edge_ids is None else edge_ids


def expect_kept(before: dp.MiniBatch, after: dp.MiniBatch, is_out) -> int:
    """Compare with the plain search; return how many edges were taken out. `is_out` has the edge type first."""
    taken = 0
    for hop, kept in zip(before.blocks, after.blocks, strict=True):
        typed = hop if isinstance(hop, dict) else {None: hop}
        for of, block in typed.items():
            found = kept[of] if isinstance(hop, dict) else kept
            nodes = before.input_nodes
            ends = (nodes, nodes) if of is None else (nodes[of[0]], nodes[of[2]])
            expected = kept_of(block, *ends, lambda u, v, e, of=of: is_out(of, u, v, e))
            ids = None if found.edge_ids is None else found.edge_ids.tolist()
            assert (found.indptr.tolist(), found.indices.tolist(), ids) == expected
            assert (found.num_src, found.num_dst, found.indices.dtype) == (
                block.num_src,
                block.num_dst,
                block.indices.dtype,
            )
            taken += block.num_edges - found.num_edges
    assert before.replace(blocks=None).digest() == after.replace(blocks=None).digest()
    return taken


def is_pair(pairs: torch.Tensor):
    wanted = {tuple(pair) for pair in pairs.tolist()}
    return lambda of, u, v, e: (u, v) in wanted


# --- against a plain search


@given(st.data(), csc_graphs(min_nodes=1))
def test_what_stays_is_what_a_plain_search_keeps(data, arrays):
    edge_ids = np.random.default_rng(1).permutation(arrays.num_edges) if data.draw(st.booleans()) else None
    graph = dp.CSCGraph(*arrays, edge_ids=edge_ids)
    node = st.integers(0, arrays.num_nodes - 1)
    width = data.draw(st.sampled_from([2, 2, 3, 4]))
    rows = torch.tensor(data.draw(st.lists(st.tuples(*[node] * width), min_size=1, max_size=6)))
    options = {"disjoint": data.draw(st.booleans()), "frontier": data.draw(st.sampled_from(["all", "new"]))}
    pipe = dp.ItemSampler(dp.ItemSet(rows), len(rows), seed=5)
    pipe = pipe.sample_neighbor(graph, [3, -1], return_edge_ids=data.draw(st.booleans()), **options)
    reverse, positive = data.draw(st.booleans()), data.draw(st.booleans())
    columns = [1] if positive else range(1, width)
    pairs = torch.cat([rows[:, [0, column]] for column in columns])
    if reverse:
        pairs = torch.cat((pairs, pairs.flip(1)))
    before = first(pipe)
    after = first(pipe.exclude_seed_edges(reverse, only_positive=positive))
    expect_kept(before, after, is_pair(pairs))


SAMPLERS = {
    "plain": lambda pipe, graph: pipe.sample_neighbor(graph, [-1, 4], return_edge_ids=True),
    "new": lambda pipe, graph: pipe.sample_neighbor(graph, [-1, 4], frontier="new"),
    "trees": lambda pipe, graph: pipe.sample_neighbor(graph, [-1, 4], disjoint=True),
    "replace": lambda pipe, graph: pipe.sample_neighbor(graph, [9, 9], replace=True),
    "weights": lambda pipe, graph: pipe.sample_neighbor(graph, [5, -1], prob_name="w"),
    "labor": lambda pipe, graph: pipe.sample_layer_neighbor(graph, [6, 6], return_edge_ids=True),
    "times": lambda pipe, graph: pipe.temporal_sample_neighbor(graph, [-1, 9], edge_time_attr="at"),
    "time trees": lambda pipe, graph: pipe.temporal_sample_neighbor(graph, [-1], edge_time_attr="at", disjoint=True),
    "in-subgraph": lambda pipe, graph: pipe.sample_in_subgraph(graph),
    "own": lambda pipe, graph: AllInEdges(pipe, graph, [-1, -1]),
}


class AllInEdges(dp.stages.Sampler):
    """A sampler of a user."""

    def draw(self, nodes, hop, rng):
        begins, ends = self.graph.indptr[nodes], self.graph.indptr[nodes + 1]
        positions = [torch.arange(int(b), int(e)) for b, e in zip(begins, ends, strict=True)]
        return dp.stages.Picks(torch.cat((torch.zeros(1).long(), (ends - begins).cumsum(0))), torch.cat(positions))


@pytest.mark.parametrize("name", SAMPLERS)
def test_it_stands_behind_every_sampler(name):
    plain = small_graph()
    attributes = {"w": torch.arange(200).float(), "at": torch.arange(200) * 7 % 50}
    graph = dp.CSCGraph(plain.indptr, plain.indices, edge_ids=plain.edge_ids, edge_attributes=attributes)
    pairs = edge_pairs(plain)
    set_of = dp.ItemSet((pairs, torch.arange(len(pairs)) % 3 * 20 + 9), names=("seeds", "timestamps"))
    pipe = SAMPLERS[name](dp.ItemSampler(set_of, 8, shuffle=True, seed=5), graph)
    taken = 0
    for before, after in zip(pipe, pipe.exclude_seed_edges(), strict=True):
        taken += expect_kept(before, after, is_pair(before.seeds))
    assert taken > 5


def test_negatives_count_unless_only_positives_are_taken_out():
    graph = small_graph()
    pairs = edge_pairs(graph)
    chain = dp.ItemSampler(dp.ItemSet(pairs), 8, seed=5)
    edges = edge_pairs(graph, 1)

    def near_edges(given, rng, edge_type, timestamps):
        return edges[torch.arange(len(given)) * 3 % len(edges)]

    paired = chain.sample_negative(2, near_edges, corrupt="both").sample_neighbor(graph, [-1, 4])
    rows = chain.sample_negative(2, next_destination, form="rows").sample_neighbor(graph, [-1, 4])
    before = first(paired)
    assert expect_kept(before, first(paired.exclude_seed_edges()), is_pair(before.seeds)) > 0
    positives = before.seeds[before.labels]
    fewer = expect_kept(before, first(paired.exclude_seed_edges(only_positive=True)), is_pair(positives))
    assert 0 < fewer < expect_kept(before, first(paired.exclude_seed_edges()), is_pair(before.seeds))
    before = first(rows)
    both = torch.cat((before.seeds[:, [0, 1]], before.seeds[:, [0, 2]], before.seeds[:, [0, 3]]))
    expect_kept(before, first(rows.exclude_seed_edges()), is_pair(both))
    expect_kept(before, first(rows.exclude_seed_edges(only_positive=True)), is_pair(before.seeds[:, :2]))


def test_rows_whose_negatives_are_sources():
    graph = small_graph()
    rows = pairs_chain().sample_negative(1, next_source, corrupt="src", form="rows").sample_neighbor(graph, [-1, -1])
    before = first(rows)
    both = torch.cat((before.seeds[:, [0, 1]], before.seeds[:, [2, 1]]))
    after = first(rows.exclude_seed_edges())
    expect_kept(before, after, is_pair(both))
    assert dp.exclude_seed_edges(before, negative_end="src").digest() == after.digest()


def test_labels_of_numbers_are_positive_above_0():
    graph = small_graph()
    pairs = edge_pairs(graph)
    labels = torch.arange(len(pairs)) % 3 - 1
    pipe = dp.ItemSampler(dp.ItemSet((pairs, labels)), 9).sample_neighbor(graph, [-1])
    before = first(pipe)
    after = first(pipe.exclude_seed_edges(only_positive=True))
    assert expect_kept(before, after, is_pair(before.seeds[before.labels > 0])) > 0


# --- by edge id


def parallel_graph() -> dp.CSCGraph:
    """Node 0 has three in-edges from node 1, with the ids 5, 2 and 7; and one from node 2."""
    return graph_of([[1, 1, 2, 1], [0], []], edge_ids=torch.tensor([5, 2, 1, 7, 0]))


def edges_with_ids() -> dp.ItemSampler:
    """Two of its edges, with their ids."""
    items_of = dp.ItemSet((torch.tensor([[1, 0], [0, 1]]), torch.tensor([2, 0])), names=("seeds", "edge_ids"))
    return dp.ItemSampler(items_of, 2)


def test_by_edge_id_parallel_edges_stay():
    pipe = edges_with_ids().sample_neighbor(parallel_graph(), [-1], return_edge_ids=True)
    before = first(pipe)
    assert sorted(first(pipe.exclude_seed_edges(by="edge_id")).blocks[0].edge_ids.tolist()) == [1, 5, 7]
    assert sorted(first(pipe.exclude_seed_edges()).blocks[0].edge_ids.tolist()) == [1]
    expect_kept(before, first(pipe.exclude_seed_edges(by="edge_id")), lambda of, u, v, e: e in (2, 0))


def test_ids_that_are_repeated_for_negatives_add_nothing():
    pipe = edges_with_ids().sample_negative(2, lambda pairs, *_: torch.tensor([[2, 0]] * 4), corrupt="both")
    pipe = pipe.sample_neighbor(parallel_graph(), [-1], return_edge_ids=True)
    assert sorted(first(pipe.exclude_seed_edges(by="edge_id")).blocks[0].edge_ids.tolist()) == [1, 5, 7]
    only = pipe.exclude_seed_edges(by="edge_id", only_positive=True)
    assert sorted(first(only).blocks[0].edge_ids.tolist()) == [1, 5, 7]


# --- with types


@given(st.data(), typed_graphs())
def test_what_stays_of_types_is_what_a_plain_search_keeps(data, arrays):
    pairs = data.draw(typed_pairs(arrays))
    assume(pairs)
    reverses = {of: [back for back in arrays.relations if back == (of[2], back[1], of[0])] for of in pairs}
    reverse = all(reverses.values()) and data.draw(st.booleans())
    mapping = {of: data.draw(st.sampled_from(reverses[of])) for of in pairs} if reverse else None
    pipe = dp.ItemSampler(typed_set_of(pairs), 40, seed=5)
    options = {"return_edge_ids": data.draw(st.booleans()), "disjoint": data.draw(st.booleans())}
    pipe = pipe.sample_neighbor(typed_graph_of(arrays), [2, -1], **options)
    wanted = {(of, *pair) for of, each in pairs.items() for pair in each}
    wanted |= {(mapping[of], v, u) for of, u, v in wanted} if mapping else set()
    expect_kept(first(pipe), first(pipe.exclude_seed_edges(reverse, mapping)), lambda of, u, v, e: (of, u, v) in wanted)


@pytest.mark.parametrize("reverse", [False, True])
def test_edges_of_types_are_taken_out_of_their_own_type(reverse):
    graph = typed_graph()
    sets = {}
    for of in (WRITES, CITES):
        relation = graph.relation(of)
        destinations = torch.repeat_interleave(torch.arange(NUM_NODES[of[2]]), relation.indptr.diff())
        sets[of] = dp.ItemSet(torch.stack((relation.indices, destinations), 1)[::4].contiguous())
    pipe = dp.ItemSampler(dp.HeteroItemSet(sets), 12, shuffle=True, seed=5)
    pipe = pipe.sample_neighbor(graph, [-1, -1], return_edge_ids=True)
    excluded = pipe.exclude_seed_edges(reverse, MAPPING if reverse else None)
    taken = 0
    for before, after in zip(pipe, excluded, strict=True):
        wanted = {(of, *pair) for of, seeds in before.seeds.items() for pair in seeds.tolist()}
        if reverse:
            wanted |= {(WRITTEN, v, u) for of, u, v in wanted if of == WRITES}
            wanted |= {(CITES, v, u) for of, u, v in wanted if of == CITES}
        taken += expect_kept(before, after, lambda of, u, v, e, wanted=wanted: (of, u, v) in wanted)
        assert REVIEWS in after.blocks[0]
    assert taken > 20


def test_none_says_that_a_type_has_no_reverses():
    for mapping, backs in (
        ({WRITES: None}, {CITES: CITES}),
        ({WRITES: WRITTEN, CITES: None}, MAPPING),
        ({WRITES: None, CITES: None}, {}),
    ):
        pipe = links_of_types().sample_neighbor(typed_graph(), [-1, -1])
        before, after = first(pipe), first(pipe.exclude_seed_edges(True, mapping))
        wanted = {(of, *pair) for of, seeds in before.seeds.items() for pair in seeds.tolist()}
        wanted |= {(backs[of], v, u) for of, u, v in wanted if of in backs}
        expect_kept(before, after, lambda of, u, v, e, wanted=wanted: (of, u, v) in wanted)
        assert after.digest() == dp.exclude_seed_edges(before, True, mapping).digest()
    assert dp.add_reverse_edges({WRITES: PAIRS}, {WRITES: None}).keys() == {WRITES}


def test_add_reverse_edges(refuses):
    pairs = torch.tensor([[0, 1], [2, 3]])
    assert dp.add_reverse_edges(pairs).tolist() == [[0, 1], [2, 3], [1, 0], [3, 2]]
    typed = {WRITES: pairs, WRITTEN: torch.tensor([[7, 8]]), CITES: pairs}
    found = dp.add_reverse_edges(typed, {WRITES: WRITTEN, WRITTEN: WRITES})
    assert found[WRITTEN].tolist() == [[7, 8], [1, 0], [3, 2]]
    assert found[WRITES].tolist() == [[0, 1], [2, 3], [8, 7]]
    assert found[CITES].tolist() == [[0, 1], [2, 3], [1, 0], [3, 2]]
    refuses(ValueError, dp.add_reverse_edges, {WRITES: pairs})
    refuses(ValueError, dp.add_reverse_edges, torch.arange(3))
    refuses(TypeError, dp.add_reverse_edges, torch.rand(3, 2))
    refuses(TypeError, dp.add_reverse_edges, pairs, {WRITES: WRITTEN})


# --- ids of any width, subgraphs alone


def test_ids_beyond_2_to_the_31_are_compared():
    big = 2**40
    nodes = torch.tensor([big + 1, 7, big + 2**32 + 1])  # equal in their lower 32 bits, but for the 7
    block = dp.Block(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 0]), 3, torch.tensor([big, big + 1, big + 2]))
    seeds = torch.tensor([[7, big + 1], [big + 1, 7]])
    minibatch = dp.MiniBatch(seeds=seeds, input_nodes=nodes, blocks=[block])
    kept = dp.exclude_seed_edges(minibatch).blocks[0]
    assert (kept.indptr.tolist(), kept.indices.tolist(), kept.edge_ids.tolist()) == ([0, 1, 1, 1], [2], [big + 1])
    by_id = minibatch.replace(extra={"edge_ids": torch.tensor([big + 1, 3])})
    assert dp.exclude_seed_edges(by_id, by="edge_id").blocks[0].edge_ids.tolist() == [big, big + 2]


def test_a_subgraph_alone(refuses):
    before = first(sampled(small_graph()))
    subgraph = before.sampled_subgraphs[0]
    kept = subgraph.exclude_edges(before.seeds.int())
    assert kept.block.num_edges < subgraph.block.num_edges
    assert torch.equal(kept.original_row_node_ids, subgraph.original_row_node_ids)
    assert kept.block.indices.tolist() == first(sampled(small_graph()).exclude_seed_edges()).blocks[0].indices.tolist()
    assert subgraph.exclude_edges(torch.empty(0, 2, dtype=torch.int64)) is subgraph
    refuses(ValueError, subgraph.exclude_edges, torch.arange(4))
    refuses(TypeError, subgraph.exclude_edges, torch.rand(2, 2))
    refuses(ValueError, subgraph.exclude_edges, [[0, 1]])


def test_blocks_without_such_edges_are_shared():
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([[0, 0]])), 1).sample_neighbor(parallel_graph(), [-1])
    before = first(pipe)
    after = dp.exclude_seed_edges(before)
    assert after.blocks[0] is before.blocks[0]


def test_what_blocks_are_refused(refuses):
    pair, two = torch.tensor([[1, 0]]), torch.tensor([0, 1])
    for block in (
        dp.Block(torch.tensor([0, 9]), torch.tensor([0]), 2),
        dp.Block(torch.tensor([0, 1]), torch.tensor([5]), 2),
        dp.Block(torch.tensor([0, 1]), torch.tensor([-1]), 2),
        dp.Block(torch.zeros(9).long(), torch.tensor([0]), 2),
        dp.Block(torch.empty(0).long(), torch.tensor([0]), 2),
        dp.Block(torch.tensor([0, 2]), two, 2, torch.tensor([0])),
        dp.Block(torch.tensor([0, 2]), two, 2, torch.empty(0).long()),
        dp.Block(torch.tensor([[0, 2]]), two, 2),
    ):
        minibatch = dp.MiniBatch(seeds=pair, input_nodes=two, blocks=[block])
        refuses(ValueError, dp.exclude_seed_edges, minibatch)
    for num_nodes in (4, 64, 4096):  # an indptr that descends beside the seeds
        block = dp.Block(torch.tensor([0, num_nodes - 1, 0, num_nodes]), torch.arange(num_nodes), num_nodes)
        subgraph = dp.SampledSubgraph(block, torch.arange(num_nodes))
        refuses(ValueError, subgraph.exclude_edges, torch.tensor([[num_nodes - 2, 0], [0, 2]]))
    indptr, indices = torch.tensor([0, 2], dtype=torch.int32), torch.tensor([0, 1, 1, 0])[:4:2]
    subgraph = dp.SampledSubgraph(dp.Block(indptr, indices, 2, indptr), two).exclude_edges(pair)
    assert (subgraph.block.indices.tolist(), subgraph.block.edge_ids.tolist()) == ([0], [0])
    refuses(TypeError, dp.SampledSubgraph(dp.Block(indptr.float(), indices, 2), two).exclude_edges, pair)


# --- one value


def test_parts_workers_and_threads_change_no_bit():
    expected = assert_no_bit_changes(lambda: sampled(small_graph()).exclude_seed_edges())
    for num_parts in (1, 2, 3, 4):
        assert digests(sampled(small_parts(num_parts, None)).exclude_seed_edges()) == expected
    typed = digests(links_of_types().sample_neighbor(typed_graph(), [3, 3]).exclude_seed_edges(True, MAPPING))
    parts = links_of_types().sample_neighbor(typed_parts(), [3, 3]).exclude_seed_edges(True, MAPPING)
    assert digests(parts) == typed


def test_a_state_moves_and_does_not_load_into_a_chain_without_exclusion():
    assert_states_move(
        lambda: [sampled(small_graph()).exclude_seed_edges(), sampled(small_parts(2)).exclude_seed_edges()]
    )
    assert_states_are_apart(
        [
            sampled(small_graph()),
            sampled(small_graph()).exclude_seed_edges(),
            sampled(small_graph()).exclude_seed_edges(True),
            sampled(small_graph()).exclude_seed_edges(only_positive=True),
        ]
    )


def test_large_minibatches_are_kept_as_a_plain_search_keeps_them():
    indptr, indices = random_graph(3_000, 40_000, rng_seed=4)
    graph = dp.CSCGraph(indptr, indices)
    pairs = edge_pairs(graph, 97)
    pipe = dp.ItemSampler(dp.ItemSet(pairs), 400).sample_neighbor(graph, [10, 10])
    before = first(pipe)
    after = first(pipe.exclude_seed_edges())
    assert expect_kept(before, after, is_pair(before.seeds)) > 400


def test_rows_of_edge_features_that_are_there_already_go_with_their_edges():
    left = first(
        unknown(sampled(small_graph()).fetch_feature(small_store(), ["feat"], ["weight"])).exclude_seed_edges()
    )
    for block, features in zip(left.blocks, left.edge_features, strict=True):
        assert torch.equal(features["weight"].long(), block.edge_ids)


# --- what is refused


def unknown(stage: dp.Stage) -> dp.Stage:
    """The stage behind a function, of whose minibatches nothing is known before they are there."""
    return stage.transform(lambda minibatch: minibatch)


def test_where_an_exclusion_is_refused(refuses):
    fetched = sampled(small_graph()).fetch_feature(small_store(), ["feat"], ["weight"])
    of_nodes = items().sample_neighbor(small_graph(), [2])
    for stage in (pairs_chain(), fetched, of_nodes, typed_items().sample_neighbor(typed_graph(), [2])):
        refuses(ValueError, stage.exclude_seed_edges)
    refuses(ValueError, first, unknown(pairs_chain()).exclude_seed_edges())
    refuses(ValueError, first, unknown(items()).sample_neighbor(small_graph(), [2]).exclude_seed_edges())
    only_nodes = first(sampled(small_graph()).fetch_feature(small_store(), ["feat"]).exclude_seed_edges())
    assert only_nodes.node_features["feat"].shape[0] == len(only_nodes.input_nodes)
    for wrong in (5, sampled(small_graph())):
        refuses(TypeError, dp.exclude_seed_edges, wrong)


def test_what_edge_ids_are_refused(refuses):
    pipe, graph = dp.ItemSampler(dp.ItemSet(PAIRS), 4), small_graph()
    without, sampled_ids = (pipe.sample_neighbor(graph, [2], return_edge_ids=with_ids) for with_ids in (False, True))
    typed = typed_items(links=True).sample_neighbor(typed_graph(), [2], return_edge_ids=True)
    for stage in (without, sampled_ids, typed):
        refuses(ValueError, stage.exclude_seed_edges, by="edge_id")
    refuses(ValueError, first, unknown(sampled_ids).exclude_seed_edges(by="edge_id"))
    floats = dp.ItemSampler(dp.ItemSet((PAIRS, torch.rand(22)), names=("seeds", "edge_ids")), 4)
    floats = floats.sample_neighbor(graph, [2], return_edge_ids=True).exclude_seed_edges(by="edge_id")
    refuses(ValueError, first, floats)
    with_ids = first(without).replace(extra={"edge_ids": torch.arange(4)})
    refuses(ValueError, dp.exclude_seed_edges, with_ids, by="edge_id")


def test_reverses_that_the_sampler_adds_must_go_too(refuses):
    pairs = dp.ItemSampler(dp.ItemSet(edge_pairs(small_graph())), 8)
    both = pairs.sample_neighbor(small_graph(), [4], subgraph_type="bidirectional")
    refuses(ValueError, both.exclude_seed_edges)
    known = dp.ItemSampler(dp.ItemSet.of_edges(small_graph()), 8)
    ids = known.sample_neighbor(small_graph(), [4], subgraph_type="bidirectional", return_edge_ids=True)
    refuses(ValueError, ids.exclude_seed_edges, by="edge_id")
    found = first(both.exclude_seed_edges(True))
    edges = {(int(found.input_nodes[u]), int(found.input_nodes[v])) for u, v in found.blocks[0].edge_index.t()}
    assert edges.isdisjoint({tuple(pair) for pair in [*found.seeds.tolist(), *found.seeds.flip(1).tolist()]})


def test_what_arguments_are_refused(refuses):
    pipe, typed = sampled(small_graph()), links_of_types().sample_neighbor(typed_graph(), [2])
    minibatch = first(pipe)
    refuses(ValueError, pipe.exclude_seed_edges, by="node")
    refuses(TypeError, pipe.exclude_seed_edges, 1)
    refuses(ValueError, pipe.exclude_seed_edges, True, by="edge_id")
    refuses(ValueError, pipe.exclude_seed_edges, False, MAPPING)
    refuses(TypeError, pipe.exclude_seed_edges, True, MAPPING)
    refuses(TypeError, dp.exclude_seed_edges, minibatch, True, MAPPING)
    refuses(ValueError, typed.exclude_seed_edges, True)
    refuses(ValueError, typed.exclude_seed_edges, True, {WRITES: ("paper", "likes", "author")})
    refuses(ValueError, typed.exclude_seed_edges, True, {WRITES: CITES})
    refuses(TypeError, typed.exclude_seed_edges, True, 7)
    refuses(ValueError, dp.exclude_seed_edges, minibatch.replace(labels=torch.ones(8, 2)), only_positive=True)
