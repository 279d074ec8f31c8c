"""Subgraph forms: induced and bidirectional edges are those of the twin, with types, trees, times and weights; of PyG's
functions; over parts.
"""

from typing import Any

import pytest
import torch
import twin_links
from dist_graphs import small_parts, typed_parts
from hypothesis import given
from link_chains import links_of_types
from pipelines import (
    assert_no_bit_changes,
    assert_states_are_apart,
    assert_states_move,
    digests,
    first,
    graph_of,
    items,
    small_graph,
)
from strategies import random_graph
from tree_cases import Case, by_package, by_twin, can_be_sampled, cases, relations_of
from twin_trees import PLAIN
from typed_pipelines import CITES, NUM_NODES, WRITES, WRITTEN, typed_graph, typed_items

import datapipes as dp

MAPPING = {WRITES: WRITTEN, WRITTEN: WRITES}
SOME = [{WRITES: 2, CITES: 3}, {WRITES: 2, WRITTEN: 3}]


def moments_of_trees(case: Case) -> list[tuple[int, int | None]]:
    """The time and the window of each tree, in the order of their numbers."""
    found = []
    for of in sorted(case.seeds):
        windows = case.windows[of].tolist() if case.windows else [case.rule.window] * len(case.seeds[of])
        for row, time, window in zip(case.seeds[of], case.timestamps[of].tolist(), windows, strict=True):
            found += [(time, window)] * row.size
    return found


def expected_of(case: Case, reverses: dict[Any, Any] | None, want_ids: bool) -> tuple[Any, dict[Any, list]]:
    trees, relations, moments = by_twin(case), relations_of(case), moments_of_trees(case)

    def moment_of(group: Any) -> tuple[int, int | None]:
        return moments[group] if case.disjoint else group

    sampled = [of for of in sorted(relations) if any(fanout.get(of, 0) != 0 for fanout in case.fanouts)]
    if not case.has_types:
        sampled = [PLAIN]
    types = sampled if reverses is None else {*sampled, *(reverses[of] for of in sampled)}
    among = {of: twin_links.edges_among(trees, relations, of, case.rule, moment_of) for of in types}
    if reverses is None:
        return trees, among
    return trees, twin_links.both_ways(trees, among, {of: reverses[of] for of in sampled}, want_ids=want_ids)


def expect_edges(found: dp.MiniBatch, trees: Any, edges: dict[Any, list], case: Case, want_ids: bool) -> None:
    nodes = found.input_nodes if case.has_types else {"": found.input_nodes}
    assert {of: ids.tolist() for of, ids in nodes.items()} == trees.nodes
    (hop,) = found.blocks
    blocks = hop if case.has_types else {PLAIN: hop}
    assert [*blocks] == sorted(edges)
    for of, block in blocks.items():
        assert (block.num_src, block.num_dst) == (len(trees.nodes[of[0]]), len(trees.nodes[of[2]]))
        assert block.edge_index.t().tolist() == [[u, v] for u, v, _ in edges[of]]
        if want_ids:
            assert block.edge_ids.tolist() == [edge_id for _, _, edge_id in edges[of]]
        else:
            assert block.edge_ids is None


@pytest.mark.parametrize("temporal", [False, True])
def test_induced_edges_are_those_of_the_twin(temporal):
    @given(cases(temporal=temporal).filter(can_be_sampled))
    def expect(case):
        trees, edges = expected_of(case, None, True)
        expect_edges(by_package(case, subgraph_type="induced"), trees, edges, case, True)

    expect()


@pytest.mark.parametrize("temporal", [False, True])
@pytest.mark.parametrize("want_ids", [False, True])
def test_bidirectional_edges_are_those_of_the_twin(temporal, want_ids):
    @given(cases(temporal=temporal).filter(can_be_sampled))
    def expect(case):
        reverses = reverses_in(case)
        if reverses is None:
            return
        options = {"subgraph_type": "bidirectional", "return_edge_ids": want_ids}
        if case.has_types:
            options["reverse_etypes_mapping"] = reverses
        try:
            trees, edges = expected_of(case, reverses, want_ids)
        except KeyError:
            with pytest.raises(ValueError, match="is no edge of the graph that can be drawn"):
                by_package(case, **options)
            return
        expect_edges(by_package(case, **options), trees, edges, case, want_ids)

    expect()


def test_a_tree_keeps_the_ids_of_the_parallel_edges_that_it_drew():
    graph = dp.CSCGraph(torch.tensor([0, 9]), torch.zeros(9, dtype=torch.int64))
    trees = dp.ItemSampler(dp.ItemSet(torch.zeros(20, dtype=torch.int64)), 20, seed=5)
    options = {"disjoint": True, "return_edge_ids": True}
    drawn = first(trees.sample_neighbor(graph, [1], **options)).blocks[0].edge_ids
    assert len(drawn.unique()) > 1
    both = first(trees.sample_neighbor(graph, [1], subgraph_type="bidirectional", **options)).blocks[0]
    assert both.edge_ids.tolist() == drawn.tolist()


def reverses_in(case: Case) -> dict[Any, Any] | None:
    """For each edge type one that can hold its reverses; None if there is none for some."""
    types = sorted(case.graph.relations)
    found = {}
    for of in types:
        fitting = [other for other in types if (other[0], other[2]) == (of[2], of[0])]
        if not fitting:
            return None
        found[of] = fitting[-1]
    return found


# --- PyG's functions


def plain_both_ways(num_nodes: int = 60) -> dp.CSCGraph:
    return dp.CSCGraph(*random_graph(num_nodes, 240, rng_seed=3)).to_undirected(merge=True)


@pytest.mark.parametrize("disjoint", [False, True])
def test_induced_edges_are_those_of_pygs_subgraph(disjoint):
    utils = pytest.importorskip("torch_geometric.utils")
    graph = plain_both_ways()
    destinations = torch.repeat_interleave(torch.arange(60), graph.indptr.diff())
    edge_index = torch.stack((graph.indices.long(), destinations))
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([3, 17, 40])), 3)
    found = first(pipe.sample_neighbor(graph, [3, 4], return_edge_ids=True, disjoint=disjoint, subgraph_type="induced"))
    (block,) = found.blocks
    trees = found.batch if disjoint else torch.zeros(len(found.input_nodes), dtype=torch.int64)
    ours = {(int(trees[v]), int(found.input_nodes[u]), int(found.input_nodes[v])) for u, v in block.edge_index.t()}
    theirs = set()
    for tree in trees.unique():
        kept, ids = utils.subgraph(
            found.input_nodes[trees == tree], edge_index, torch.arange(240 * 2)[: len(destinations)]
        )
        theirs |= {(int(tree), *pair) for pair in kept.t().tolist()}
        assert {*ids.tolist()} <= {*block.edge_ids.tolist()}
    assert ours == theirs
    assert len(ours) == block.num_edges


def test_bidirectional_edges_are_to_undirected_of_the_directional_ones():
    utils = pytest.importorskip("torch_geometric.utils")
    graph = dp.CSCGraph(*random_graph(60, 240, rng_seed=3))
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([3, 17, 40])), 3)
    hops = first(pipe.sample_neighbor(graph, [3, 4]))
    found = first(pipe.sample_neighbor(graph, [3, 4], subgraph_type="bidirectional"))
    theirs = utils.to_undirected(torch.cat([block.edge_index for block in hops.blocks], 1))
    (block,) = found.blocks
    assert {*map(tuple, block.edge_index.t().tolist())} == {*map(tuple, theirs.t().tolist())}
    assert block.num_edges == theirs.shape[1]


# --- parallel edges, types


def test_of_parallel_edges_the_first_that_was_drawn_gives_the_id():
    # node 0 has the in-edges 1, 1, 1; node 1 has 0, 0; ids are not positions
    graph = graph_of([[1, 1, 1], [0, 0]], edge_ids=torch.tensor([9, 4, 7, 3, 8]))
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1, seed=3)
    options = {"return_edge_ids": True, "subgraph_type": "bidirectional"}
    found = first(pipe.sample_neighbor(graph, [-1], **options)).blocks[0]
    assert (found.edge_index.tolist(), found.edge_ids.tolist()) == ([[1, 0], [0, 1]], [9, 3])
    for seed in range(8):
        pipe = dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1, seed=seed)
        (drawn,) = first(pipe.sample_neighbor(graph, [1], return_edge_ids=True)).blocks[0].edge_ids.tolist()
        assert first(pipe.sample_neighbor(graph, [1], **options)).blocks[0].edge_ids.tolist() == [drawn, 3]


def test_reverses_go_into_the_type_that_the_mapping_names():
    graph = typed_graph().to_undirected(
        {
            WRITES: "by",
            CITES: None,
            WRITTEN: None,
            ("author", "reviews", "paper"): None,
            ("venue", "hosts", "paper"): None,
        }
    )
    by = ("paper", "by", "author")
    pipe = typed_items().sample_neighbor(
        graph, [{WRITES: 3}], subgraph_type="bidirectional", reverse_etypes_mapping={WRITES: by}, return_edge_ids=True
    )
    assert pipe.edge_types == (WRITES, by)
    for found in pipe:
        (hop,) = found.blocks
        assert [*hop] == [WRITES, by]
        assert {(u, v) for u, v in hop[WRITES].edge_index.t().tolist()} == {
            (v, u) for u, v in hop[by].edge_index.t().tolist()
        }
    plain = typed_items().sample_neighbor(graph, [{WRITES: 3}])
    without = typed_items().sample_neighbor(
        graph, [{WRITES: 3}], subgraph_type="bidirectional", reverse_etypes_mapping={WRITES: None}
    )
    assert without.edge_types == (WRITES,)
    for drawn, found in zip(plain, without, strict=True):
        edges = [{*zip(*each.blocks[0][WRITES].edge_index.tolist(), strict=True)} for each in (drawn, found)]
        assert edges[0] == edges[1]


def test_features_of_edges_and_nodes_fit_the_form():
    graph = small_graph().to_undirected()
    store = dp.FeatureStore(
        {
            ("node", None, "feat"): dp.TensorFeature(torch.arange(40.0)),
            ("edge", None, "w"): dp.TensorFeature(torch.arange(400.0)),
        }
    )
    for form in ("induced", "bidirectional"):
        pipe = items().sample_neighbor(graph, [2, 2], return_edge_ids=True, subgraph_type=form)
        found = first(pipe.fetch_feature(store, ["feat"], ["w"]))
        assert torch.equal(found.edge_features[0]["w"], found.blocks[0].edge_ids.float())
        assert torch.equal(found.node_features["feat"], found.input_nodes.float())


def test_to_pyg_has_no_numbers_of_hops():
    pytest.importorskip("torch_geometric")
    found = first(items().sample_neighbor(small_graph(), [2, 2], subgraph_type="induced"))
    data = found.to_pyg()
    assert "num_sampled_nodes" not in data
    assert "num_sampled_edges" not in data
    assert torch.equal(data.edge_index, found.blocks[0].edge_index)
    plain = first(items().sample_neighbor(small_graph(), [2])).to_pyg()
    assert len(plain.num_sampled_edges) == 1


# --- one value

FORMS = {
    "induced": lambda pipe, graph: pipe.sample_neighbor(graph, [2, 3], return_edge_ids=True, subgraph_type="induced"),
    "bidirectional": lambda pipe, graph: pipe.sample_neighbor(graph, [2, 3], subgraph_type="bidirectional"),
    "ids of reverses": lambda pipe, graph: pipe.sample_neighbor(
        graph, [2, 3], return_edge_ids=True, subgraph_type="bidirectional"
    ),
    "trees": lambda pipe, graph: pipe.sample_neighbor(graph, [2, 3], disjoint=True, subgraph_type="induced"),
    "labor": lambda pipe, graph: pipe.sample_layer_neighbor(graph, [2, 3], subgraph_type="induced"),
}


@pytest.mark.parametrize("name", FORMS)
def test_parts_workers_and_threads_change_no_bit(name):
    graph = small_graph().to_undirected()
    chain = FORMS[name]
    expected = assert_no_bit_changes(lambda: chain(items(), graph))
    for num_parts in (1, 2, 3, 4):
        assert digests(chain(items(), small_parts(num_parts, 0, graph))) == expected
    assert first(chain(items(), small_parts(2, None, graph))).digest() == expected[0]


def test_parts_of_types_change_no_bit():
    for options in (
        {"subgraph_type": "induced", "return_edge_ids": True},
        {"subgraph_type": "bidirectional", "reverse_etypes_mapping": MAPPING},
    ):
        expected = digests(links_of_types().sample_neighbor(typed_graph(), SOME, **options))
        assert digests(links_of_types().sample_neighbor(typed_parts(), SOME, **options)) == expected
        assert digests(links_of_types().dist_sample_neighbor(typed_parts(), SOME, **options)) == expected


def test_states_move_and_those_of_hops_do_not_load():
    graph = small_graph().to_undirected()
    for chain in FORMS.values():
        assert_states_move(lambda chain=chain: [chain(items(), graph), chain(items(), small_parts(2, 0, graph))])
    chains = [chain(items(), graph) for chain in FORMS.values()]
    assert_states_are_apart([*chains, items().sample_neighbor(graph, [2, 3], return_edge_ids=True)])


def test_a_sampler_without_a_form_has_the_fingerprint_of_before():
    assert "subgraph_type" not in items().sample_neighbor(small_graph(), [2]).fingerprint()


# --- what is refused


def test_what_forms_are_refused(refuses):
    refuses(ValueError, items().sample_neighbor, small_graph(), [2], subgraph_type="undirected")
    mapping = {"reverse_etypes_mapping": MAPPING}
    refuses(TypeError, items().sample_neighbor, small_graph(), [2], subgraph_type="bidirectional", **mapping)
    for form in ("directional", "induced", "bidirectional"):  # the mapping lacks one of the types
        refuses(ValueError, typed_items().sample_neighbor, typed_graph(), [2], subgraph_type=form, **mapping)


def test_weights_are_needed_for_the_types_of_reverses_too(refuses):
    graph = typed_graph()
    relation = graph.relation(WRITES)
    weighted = dp.HeteroCSCGraph(
        {of: (graph.relation(of).indptr, graph.relation(of).indices) for of in graph.edge_types},
        NUM_NODES,
        edge_attributes={WRITES: {"w": torch.ones(relation.indices.shape[0])}},
    )
    options = {"prob_name": "w", "subgraph_type": "bidirectional", "reverse_etypes_mapping": MAPPING}
    typed_items().sample_neighbor(weighted, [{WRITES: 2}], **options)  # without edge ids nothing is read there
    refuses(ValueError, typed_items().sample_neighbor, weighted, [{WRITES: 2}], return_edge_ids=True, **options)
