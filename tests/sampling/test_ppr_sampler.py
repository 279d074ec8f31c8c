"""PprSampler equals the twin of docs/semantics.md, section 4.12, and is near the exact PageRank."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import twin_scored
from dist_graphs import LocalPeers, in_parts, small_parts
from hypothesis import given
from hypothesis import strategies as st
from pipelines import as_it_is, assert_no_bit_changes, digests, first, graph_of, items, small_graph
from strategies import ID_DTYPES, csc_graphs, random_graph
from typed_pipelines import typed_graph, typed_items

import datapipes as dp
from datapipes import _core

ALPHA = 0.15


def ranked(graph: Any = None, count: int = 5, **arguments: Any) -> dp.Stage:
    return items().sample_ppr(graph or small_graph(), count, **{"eps": 1e-3, **arguments})


def contract_chain() -> dp.Stage:
    return ranked()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.PprSampler(items(), small_graph(), 5, eps=1e-3)


def rows_of(graph: dp.CSCGraph) -> list[list[int]]:
    return [graph.indices[a:b].tolist() for a, b in itertools.pairwise(graph.indptr.tolist())]


def expect_ppr(
    minibatch: dp.MiniBatch, graph: dp.CSCGraph, count: int, alpha: float = ALPHA, eps: float = 1e-3
) -> None:
    """Check the fields of a minibatch against the twin."""
    rows, seeds = rows_of(graph), minibatch.seeds.view(-1).tolist()
    ids = minibatch.extra["ppr"].view(-1, count).tolist()
    scores = minibatch.extra["ppr_scores"].view(-1, count)
    for place, seed in enumerate(seeds):
        most = twin_scored.largest(twin_scored.ppr(rows, seed, alpha, eps)[0], count)
        assert ids[place] == [node for node, _ in most]
        assert torch.equal(
            scores[place], torch.tensor([mass * 2.0**-62 for _, mass in most], dtype=torch.float64).float()
        )


def test_neighbors_and_scores_are_those_of_the_twin():
    graph = small_graph()
    for minibatch in itertools.islice(ranked(graph), 2):
        expect_ppr(minibatch, graph, 5)
        (block,), (features,) = minibatch.blocks, minibatch.edge_features
        nodes = minibatch.input_nodes
        assert nodes[: block.num_dst].tolist() == [*dict.fromkeys(minibatch.seeds.tolist())]
        found = {seed: [] for seed in minibatch.seeds.tolist()}
        for source, destination in nodes[block.edge_index].t().tolist():
            found[destination].append(source)
        for place, seed in enumerate(minibatch.seeds.tolist()):
            ids = minibatch.extra["ppr"][place]
            assert found[seed] == ids[ids >= 0].tolist()
        if len(found) == len(minibatch.seeds):
            assert torch.equal(features["score"], minibatch.extra["ppr_scores"][minibatch.extra["ppr"] >= 0])


@given(st.data())
def test_drawn_graphs_are_ranked_as_the_twin_does(data):
    arrays = data.draw(csc_graphs())
    num_nodes = len(arrays.indptr) - 1
    if num_nodes == 0:
        return
    dtype = data.draw(st.sampled_from(ID_DTYPES))
    graph = dp.CSCGraph(torch.from_numpy(arrays.indptr), torch.from_numpy(arrays.indices.astype(dtype)))
    seeds = data.draw(st.lists(st.integers(0, num_nodes - 1), min_size=1, max_size=20))
    count = data.draw(st.integers(1, 6))
    alpha, eps = data.draw(st.sampled_from([(0.15, 1e-3), (2.0**-10, 0.03), (1.0, 1.0), (0.5, 2.0**-29)]))
    pipe = dp.ItemSampler(dp.ItemSet(torch.tensor(seeds)), len(seeds))
    made = first(pipe.sample_ppr(graph, count, alpha=alpha, eps=eps))
    expect_ppr(made, graph, count, alpha, eps)
    assert made.extra["ppr"].dtype == graph.index_dtype
    parts = in_parts(graph, torch.arange(num_nodes) % 3, 3)
    assert first(pipe.sample_ppr(parts, count, alpha=alpha, eps=eps)).digest() == made.digest()


def test_scores_are_within_eps_of_the_exact_rank():
    """What is missing is what walks from the residuals would add; on a symmetric graph at most eps * degree."""
    columns = [set() for _ in range(50)]
    for a, b in np.random.default_rng(3).integers(0, 50, (150, 2)).tolist():
        columns[a].add(b), columns[b].add(a)
    graph = graph_of([sorted(column) for column in columns])
    degrees = graph.indptr.diff().double()
    steps = torch.zeros(50, 50, dtype=torch.float64)  # from a row to its sources; a node without in-edges keeps all
    for node, sources in enumerate(rows_of(graph)):
        for source in sources:
            steps[node, source] += (1 - ALPHA) / len(sources)
    ends = torch.where(degrees > 0, ALPHA, 1.0).double()
    exact = torch.linalg.solve(torch.eye(50, dtype=torch.float64) - steps, torch.diag(ends))
    for eps in (1e-2, 1e-4, 1e-6):
        made = first(dp.ItemSampler(dp.ItemSet(50), 50).sample_ppr(graph, 50, eps=eps))
        scores = torch.zeros(50, 50, dtype=torch.float64)
        ids = made.extra["ppr"]
        scores[torch.arange(50)[:, None].expand_as(ids)[ids >= 0], ids[ids >= 0]] = made.extra["ppr_scores"][
            ids >= 0
        ].double()
        missing = exact - scores
        assert missing.min() > -1e-6
        assert (missing <= eps * degrees.clamp(min=1) + 1e-6).all()


def test_a_seed_with_too_many_in_edges_to_be_due_is_pushed_once():
    star = graph_of([[*range(1, 300)], *([] for _ in range(299))])
    made = first(dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1).sample_ppr(star, 3, eps=0.01))
    assert made.extra["ppr"].tolist() == [[0, -1, -1]]
    expect_ppr(made, star, 3, eps=0.01)


def test_scores_go_along_when_edges_are_taken_out_and_when_they_are_padded():
    graph, pairs = small_graph(), torch.tensor([[0, 1], [5, 7], [3, 2]])
    links = dp.ItemSampler(dp.ItemSet(pairs), 3).sample_ppr(graph, 4, eps=1e-3)

    def scored_edges(made: dp.MiniBatch) -> set[tuple[int, int, float]]:
        (block,), (features,) = made.blocks, made.edge_features
        ends = made.input_nodes[block.edge_index].t().tolist()
        return {(*pair, score) for pair, score in zip(ends, features["score"].tolist(), strict=True)}

    before, after = (
        scored_edges(first(links)),
        scored_edges(first(links.exclude_seed_edges(include_reverse_edges=True))),
    )
    taken_out = [*pairs.tolist(), *pairs.flip(1).tolist()]
    assert after == {edge for edge in before if [*edge[:2]] not in taken_out} != before
    padded, plain = first(ranked().pad(dp.measure_sizes(ranked(), minibatches=3))), first(ranked())
    num_real = int(padded.masks.edges[0].sum())
    score = padded.edge_features[0]["score"]
    assert torch.equal(score[:num_real], plain.edge_features[0]["score"])
    assert len(score) == padded.blocks[0].num_edges
    assert not score[num_real:].any()


def test_large_minibatches_are_the_same_for_any_threads_workers_and_resume():
    arrays = random_graph(3_000, 40_000, rng_seed=4)
    graph = dp.CSCGraph(*map(torch.from_numpy, arrays))

    def chain() -> dp.Stage:
        return dp.ItemSampler(dp.ItemSet(900), 300, shuffle=True, seed=1).sample_ppr(graph, 20)

    expected = assert_no_bit_changes(chain)
    pipe = chain()
    next(iter(pipe))
    again = chain()
    again.load_state_dict(pipe.state_dict())
    assert digests(again) == expected[1:]


def test_links_have_the_ranks_of_both_ends():
    graph = small_graph()
    pairs = torch.tensor([[3, 5], [5, 7]])
    made = first(dp.ItemSampler(dp.ItemSet(pairs), 2).sample_ppr(graph, 4, eps=1e-3))
    assert made.extra["ppr"].shape == made.extra["ppr_scores"].shape == (2, 2, 4)
    assert made.compacted_seeds.shape == (2, 2)
    expect_ppr(made, graph, 4)


# --- subgraphs


def test_an_induced_subgraph_has_all_edges_among_the_nodes():
    graph = small_graph()
    plain, made = first(ranked(graph)), first(ranked(graph, subgraph_type="induced", return_edge_ids=True))
    assert torch.equal(plain.input_nodes, made.input_nodes)
    (block,) = made.blocks
    place = {node: i for i, node in enumerate(made.input_nodes.tolist())}
    expected = [
        (place[source], place[node])
        for node in made.input_nodes.tolist()
        for source in rows_of(graph)[node]
        if source in place
    ]
    assert [*zip(*block.edge_index.tolist(), strict=True)] == expected
    assert made.edge_features is None
    assert torch.equal(graph.indices[torch.argsort(graph.edge_ids)][block.edge_ids], made.input_nodes[block.indices])


def test_each_seed_gets_a_tree_of_its_own():
    graph = small_graph()
    made = first(ranked(graph, subgraph_type="induced", disjoint=True))
    (block,) = made.blocks
    for place, seed in enumerate(made.seeds.tolist()):
        ids = made.extra["ppr"][place]
        nodes = [seed] + [node for node in ids.tolist() if node not in (-1, seed)]
        at = (made.batch == place).nonzero().view(-1)
        assert made.input_nodes[at].tolist() == nodes
        inside = torch.isin(block.edge_index[1], at)
        edges = made.input_nodes[block.edge_index[:, inside]].t().tolist()
        rows = rows_of(graph)
        assert edges == [[source, node] for node in nodes for source in rows[node] if source in nodes]
    assert made.compacted_seeds.tolist() == [*range(len(made.seeds))]


# --- over parts


@pytest.mark.parametrize("options", [{}, {"subgraph_type": "induced", "disjoint": True}], ids=["plain", "trees"])
def test_ranks_over_parts_are_those_of_the_whole_graph(options):
    graph = small_graph()
    expected = digests(ranked(graph, **options))
    for num_parts, local_part in ((1, None), (2, 0), (4, 1)):
        assert digests(ranked(small_parts(num_parts, local_part), **options)) == expected
    with dp.DataLoader(ranked(small_parts(), **options), 2, worker_method="thread") as loader:
        assert digests(loader) == expected


def test_parts_are_asked_once_a_round_and_send_no_row_of_a_hub_that_is_not_due():
    # 0 has one in-edge, from the hub 1, whose 200 in-edges are never due at this eps. A seed is due whatever it has.
    graph = graph_of([[1], [*range(2, 202)], *([0] for _ in range(200))])
    parts = in_parts(graph, torch.arange(202) % 2, 2)
    assert isinstance(parts.peers, LocalPeers)
    made = first(dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1).sample_ppr(parts, 3, eps=1 / 64))
    assert made.extra["ppr"].tolist() == [[0, -1, -1]]
    asked = [(request.ids.tolist(), request.most.tolist()) for _, request in parts.peers.asked]
    assert asked == [([0], [2**63 - 1]), ([1], [54])]
    assert [len(request.answered_by(parts.peers.parts[part]).sources) for part, request in parts.peers.asked] == [1, 0]


def test_more_seeds_than_are_pushed_at_once():
    arrays = random_graph(400, 3_000, rng_seed=6)
    graph = dp.CSCGraph(*map(torch.from_numpy, arrays))
    pipe = dp.ItemSampler(dp.ItemSet(400), 400)
    expected = first(pipe.sample_ppr(graph, 10)).digest()
    assert first(pipe.sample_ppr(in_parts(graph, torch.arange(400) % 3, 3, 0), 10)).digest() == expected


# --- refusals


def test_what_is_refused(refuses):
    pipe, graph = items(), small_graph()
    refuses(TypeError, pipe.sample_ppr, "graph", 3)
    for count in (0, 2.5, None, [3], 2**21):
        refuses((ValueError, TypeError), pipe.sample_ppr, graph, count)
    for options in (
        {"alpha": 0.0},
        {"alpha": 1.1},
        {"alpha": float("nan")},
        {"eps": 0.0},
        {"eps": 2.0},
        {"alpha": 2.0**-16, "eps": 2.0**-15},
        {"subgraph_type": "bidirectional"},
        {"disjoint": True},
        {"return_edge_ids": True},
        {"concurrency": 2},
    ):
        refuses(ValueError, pipe.sample_ppr, graph, 3, **options)
    for options in ({"alpha": "1"}, {"eps": True}, {"disjoint": 1}):
        refuses(TypeError, pipe.sample_ppr, graph, 3, **options)
    refuses(ValueError, typed_items().sample_ppr, typed_graph(), 3)
    refuses(ValueError, first, ranked().sample_ppr(graph, 3).transform(as_it_is).sample_ppr(graph, 3))
    pairs = dp.ItemSampler(dp.ItemSet(torch.tensor([[0, 1]])), 1)
    refuses(ValueError, first, pairs.sample_ppr(graph, 3, subgraph_type="induced", disjoint=True))
    for seed in (40, -1, 2**32 + 3):
        for of in (graph.with_index_dtype(torch.int32), small_parts()):
            refuses(IndexError, first, dp.ItemSampler(dp.ItemSet(torch.tensor([seed])), 1).sample_ppr(of, 3))
    twice = dp.ItemSet((torch.arange(4), torch.arange(4)), names=("seeds", "ppr"))
    refuses(ValueError, first, dp.ItemSampler(twice, 2).sample_ppr(graph, 3))


def test_states_name_what_decides():
    induced: dict[str, Any] = {"subgraph_type": "induced"}
    trees = induced | {"disjoint": True}
    changes = ({}, {"alpha": 0.2}, {"eps": 1e-2}, {"count": 4}, induced, trees, trees | {"return_edge_ids": True})
    assert len({str(ranked(**change).fingerprint()) for change in changes}) == len(changes)
    assert {"alpha": 0.15, "eps": 1e-3}.items() <= ranked().describe().items()


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_kernels_refuse_what_does_not_fit(refuses, dtype):
    indptr, indices = np.array([0, 2, 3]), np.array([1, 0, 1], dtype)
    options = {"keep": 2**30, "eps": 2**50, "count": 2}

    def ppr(seeds=(0,), indices=indices, indptr=indptr, **changes):
        graph = _core.Topology([("", 2)], [(0, 0, indptr, indices, None, "")])
        return _core.ppr(graph, np.array(seeds), **options | changes)

    assert ppr()[0].shape == (2,)
    for change in ({"keep": 0}, {"keep": 2**32 + 1}, {"eps": 2**21}, {"eps": 2**62 + 1}, {"count": 0}):
        refuses(ValueError, ppr, **change)
    refuses(IndexError, ppr, seeds=(2,))
    refuses(ValueError, ppr, indices=np.array([5, 5, 5], dtype))
    refuses(ValueError, ppr, indptr=np.array([0, 9, 3]))
    refuses(IndexError, _core.PprOverParts, np.array([2]), num_nodes=2, **options)
    pushes = _core.PprOverParts(np.array([0, 1]), num_nodes=2, **options)
    nodes, most = pushes.wanted()
    assert sorted(nodes.tolist()) == [0, 1]
    assert most.tolist() == [2**63 - 1] * 2
    for nodes, degrees, sources in (
        ([5], [1], [0]),
        ([0], [2], [0]),
        ([0], [1], [0, 1]),
        ([0], [-1], []),
        ([0, 1], [1], [0]),
    ):
        refuses(ValueError, pushes.give, np.array(nodes), np.array(degrees), np.array(sources, np.int64))
    refuses(ValueError, pushes.give, np.array([0]), np.array([1]), np.array([2]))
