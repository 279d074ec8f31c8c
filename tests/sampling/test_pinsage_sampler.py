"""PinSageSampler equals the twin of docs/semantics.md, section 4.13."""

import itertools
from typing import Any

import pytest
import torch
import twin
import twin_scored
from dist_graphs import small_parts, typed_parts
from pipelines import as_it_is, assert_no_bit_changes, digests, first, items, small_graph
from strategies import random_graph
from twin_walks import Rows, rows_of
from typed_pipelines import CITES, WRITES, WRITTEN, typed_graph, typed_items

import datapipes as dp

OPTIONS = {"num_walks": 6, "walk_length": 3, "restart_prob": 0.3}


def visited(graph: Any = None, counts: Any = (3, 4), **arguments: Any) -> dp.Stage:
    return items().sample_pinsage(graph or small_graph(), counts, **{**OPTIONS, **arguments})


def contract_chain() -> dp.Stage:
    return visited()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return contract_chain(), dp.PinSageSampler(items(), small_graph(), (3, 4), *OPTIONS.values())


def papers(num_papers: int = 40) -> dp.ItemSampler:
    return dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(num_papers)}), 9, shuffle=True, seed=5)


def expect_visits(
    nodes: list[int], blocks: list[Any], visits: list[Any], rows: list[Rows], keys: list[list[int]], counts: Any
) -> None:
    """Check hops against the twin; `blocks`, `visits` and `keys` (of the steps) are in the order of the hops.

    Args:
        rows: of the steps of a traversal.
    """
    for hop, (block, found) in enumerate(zip(blocks, visits, strict=True)):
        steps = rows * OPTIONS["walk_length"]
        walker = twin_scored.Traversals(steps, keys[hop], OPTIONS["restart_prob"], len(rows))
        indptr = block.indptr.tolist()
        for place, (begin, end) in enumerate(itertools.pairwise(indptr)):
            most = twin_scored.largest(walker.visits(nodes[place], range(place * 6, place * 6 + 6)), counts[-1 - hop])
            edges = zip((nodes[i] for i in block.indices[begin:end].tolist()), found[begin:end].tolist(), strict=True)
            assert [*edges] == [entry for entry in most if entry[0] >= 0]
        assert block.num_src == (blocks[hop + 1].num_dst if hop + 1 < len(blocks) else len(nodes))


def test_neighbors_are_the_nodes_that_the_twin_visits_most():
    graph = small_graph()
    for index, minibatch in enumerate(itertools.islice(visited(graph), 2)):
        keys = [[twin.hop_key(5, 0, index, 1, hop, 0)] * 3 for hop in range(2)]
        visits = [features["visits"] for features in minibatch.edge_features[::-1]]
        rows = [rows_of(graph.relation(None))]
        expect_visits(minibatch.input_nodes.tolist(), minibatch.blocks[::-1], visits, rows, keys, (3, 4))
        assert minibatch.input_nodes[minibatch.compacted_seeds].tolist() == minibatch.seeds.tolist()


@pytest.mark.parametrize("metapath", [[CITES], [WRITES, WRITTEN]])
def test_a_traversal_is_a_metapath(metapath):
    graph = typed_graph()
    pipe = papers().sample_pinsage(graph, 4, metapath=metapath, **OPTIONS)
    made = first(pipe)
    edge_type = ("paper", "pinsage", "paper")
    steps = [{":".join(of): of for of in graph.edge_types}.get(of, of) for of in metapath]
    keys = [[twin.hop_key(5, 0, 0, 1, 0, graph.edge_types.index(of)) for of in steps] * 3]
    visits = [made.edge_features[0][edge_type, "visits"]]
    rows = [rows_of(graph.relation(of)) for of in steps]
    expect_visits(made.input_nodes["paper"].tolist(), [made.blocks[0][edge_type]], visits, rows, keys, [4])
    assert {*made.input_nodes} == {*graph.node_types}
    again = papers().sample_pinsage(typed_parts(), 4, metapath=metapath, **OPTIONS)
    assert first(again).digest() == made.digest()
    features = {("node", "paper", "x"): dp.TensorFeature(torch.arange(40.0))}
    fetched = first(pipe.fetch_feature(dp.FeatureStore(features), {"paper": ["x"]}))
    assert torch.equal(fetched.node_features["paper", "x"].long(), made.input_nodes["paper"])


def test_walks_that_cannot_end_count_all_their_nodes():
    ring = dp.CSCGraph.from_edge_index(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
    made = first(dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1).sample_pinsage(ring, 9, 5, 8, 0.0))
    assert made.input_nodes.tolist() == [0, 1, 2, 3]
    assert made.edge_features[0]["visits"].tolist() == [10.0, 10.0, 10.0]
    for walk_length in (8, 1):  # more neighbors are asked for than walks have nodes
        made = first(dp.ItemSampler(dp.ItemSet(torch.tensor([0])), 1).sample_pinsage(ring, 9, 5, walk_length, 1.0))
        assert made.input_nodes.tolist() == [0, 3]


def test_a_node_without_in_edges_has_no_neighbors():
    graph = dp.CSCGraph.from_edge_index(torch.tensor([[0], [1]]))
    made = first(dp.ItemSampler(dp.ItemSet(2), 2).sample_pinsage(graph, [2, 2], 3, 2, 0.5))
    assert [block.num_edges for block in made.blocks] == [1, 1]


def test_large_minibatches_are_the_same_for_any_threads_workers_and_resume():
    arrays = random_graph(3_000, 40_000, rng_seed=4)
    graph = dp.CSCGraph(*map(torch.from_numpy, arrays)).with_index_dtype(torch.int32)

    def chain() -> dp.Stage:
        source = dp.ItemSampler(dp.ItemSet(600), 200, shuffle=True, seed=1)
        return source.sample_pinsage(graph, [5, 10], num_walks=20, walk_length=3, restart_prob=0.5)

    expected = assert_no_bit_changes(chain)
    pipe = chain()
    next(iter(pipe))
    again = chain()
    again.load_state_dict(pipe.state_dict())
    assert digests(again) == expected[1:]


def test_visits_over_parts_are_those_of_the_whole_graph():
    expected = digests(visited())
    for num_parts, local_part in ((1, None), (2, 0), (4, 1)):
        assert digests(visited(small_parts(num_parts, local_part))) == expected
    with dp.DataLoader(visited(small_parts()), 2, worker_method="thread") as loader:
        assert digests(loader) == expected


def test_what_is_refused(refuses):
    graph = small_graph()
    refuses(TypeError, visited, "graph")
    for change in (
        {"num_walks": 0},
        {"num_walks": 2**22, "walk_length": 2},
        {"walk_length": 0},
        {"restart_prob": 1.5},
        {"counts": 0},
        {"counts": []},
        {"metapath": [CITES]},
    ):
        refuses(ValueError, visited, **change)
    for change in ({"num_walks": 1.5}, {"restart_prob": None}, {"counts": 2.5}, {"counts": ["3"]}):
        refuses(TypeError, visited, **change)
    typed = {"num_neighbors": 3, **OPTIONS}
    refuses(TypeError, typed_items().sample_pinsage, typed_graph(), **typed)
    refuses(ValueError, papers().sample_pinsage, typed_graph(), metapath=[WRITES], **typed)
    refuses(ValueError, typed_items().sample_pinsage, typed_graph(), metapath=[CITES], **typed)
    unknown = typed_items().transform(as_it_is)
    refuses(ValueError, first, unknown.sample_pinsage(typed_graph(), metapath=[CITES], **typed))
    refuses(IndexError, first, dp.ItemSampler(dp.ItemSet(torch.tensor([40])), 1).sample_pinsage(graph, **typed))


def test_states_name_what_decides():
    changes = ({}, {"num_walks": 7}, {"walk_length": 4}, {"restart_prob": 0.2}, {"counts": [3, 5]})
    assert len({str(visited(**change).fingerprint()) for change in changes}) == len(changes)
    typed = [
        papers().sample_pinsage(typed_graph(), 3, metapath=path, **OPTIONS) for path in ([CITES], [WRITES, WRITTEN])
    ]
    assert typed[0].fingerprint() != typed[1].fingerprint()
