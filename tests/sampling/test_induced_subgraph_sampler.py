"""InducedSubgraphSampler equals the plain definitions of docs/semantics.md, section 4.14."""

import itertools
import pickle
from typing import Any

import pytest
import torch
from dist_graphs import small_parts, typed_parts
from pipelines import assert_no_bit_changes, digests, first, graph_of, items, small_graph, small_store, start_at
from typed_pipelines import WRITES, WRITTEN, typed_graph, typed_items

import datapipes as dp
from datapipes.sampling import induced_subgraph_sampler, measure_norms

CLUSTERS = torch.arange(40) * 7 % 5


def of_clusters(graph: Any = None, **arguments: Any) -> dp.Stage:
    numbers = dp.ItemSampler(dp.ItemSet(5), 2, shuffle=True, seed=5)
    return numbers.sample_induced_subgraph(graph or small_graph(), clusters=CLUSTERS, return_edge_ids=True, **arguments)


def of_walks(graph: Any = None, **arguments: Any) -> dp.Stage:
    graph = graph or small_graph()
    return items_without_labels().sample_random_walk(graph, 3).sample_induced_subgraph(graph, **arguments)


def items_without_labels() -> dp.ItemSampler:
    return dp.ItemSampler(dp.ItemSet(40), 4, shuffle=True, seed=5)


def contract_chain() -> dp.Stage:
    return of_clusters()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    numbers = dp.ItemSampler(dp.ItemSet(5), 2, shuffle=True, seed=5)
    return of_clusters(), dp.InducedSubgraphSampler(numbers, small_graph(), clusters=CLUSTERS, return_edge_ids=True)


def expect_all_edges(minibatch: dp.MiniBatch, graph: dp.CSCGraph) -> None:
    """Check that the block of a minibatch has all edges among its nodes, in order."""
    (block,), nodes = minibatch.blocks, minibatch.input_nodes.tolist()
    indptr, places = graph.indptr.tolist(), {node: i for i, node in enumerate(nodes)}
    positions = [at for node in nodes for at in range(indptr[node], indptr[node + 1])]
    kept = [at for at in positions if int(graph.indices[at]) in places]
    assert block.indices.tolist() == [places[int(graph.indices[at])] for at in kept]
    assert block.num_src == block.num_dst == len(nodes)
    if block.edge_ids is not None:
        assert block.edge_ids.tolist() == graph.edge_ids[kept].tolist()


def test_the_subgraph_of_seeds():
    graph = small_graph()
    seeds = torch.tensor([9, 4, 9, 0, 33, 21])
    made = first(dp.ItemSampler(dp.ItemSet(seeds), 6).sample_induced_subgraph(graph, return_edge_ids=True))
    assert made.input_nodes.tolist() == [9, 4, 0, 33, 21]
    assert made.compacted_seeds.tolist() == [0, 1, 0, 2, 3, 4]
    expect_all_edges(made, graph)


def test_the_subgraph_of_clusters_and_of_walks():
    graph = small_graph()
    numbers = [*dp.ItemSampler(dp.ItemSet(5), 2, shuffle=True, seed=5)]
    for minibatch, before in zip(of_clusters(graph), numbers, strict=True):
        expected = [node for node in range(40) if CLUSTERS[node] in before.seeds]
        assert minibatch.seeds.tolist() == minibatch.input_nodes.tolist() == expected
        expect_all_edges(minibatch, graph)
    walks = items_without_labels().sample_random_walk(graph, 3)
    for minibatch, before in zip(of_walks(graph, return_edge_ids=True), walks, strict=True):
        expected = sorted({*before.extra["walks"].flatten().tolist()} - {-1})
        assert minibatch.seeds.tolist() == minibatch.input_nodes.tolist() == expected
        expect_all_edges(minibatch, graph)
    fetched = first(of_clusters().fetch_feature(small_store(), ["feat"], ["weight"]))
    assert torch.equal(fetched.node_features["feat"][:, 0].long(), fetched.input_nodes * 3)
    assert torch.equal(fetched.edge_features[0]["weight"].long(), fetched.blocks[0].edge_ids)


def test_the_subgraph_of_seeds_with_types():
    graph = typed_graph()
    for of in (graph, typed_parts()):
        made = first(typed_items().sample_induced_subgraph(of))
        (hop,) = made.blocks
        assert {*hop} == {*graph.edge_types}
        for (src, rel, dst), block in hop.items():
            relation, sources = graph.relation((src, rel, dst)), made.input_nodes[src].tolist()
            expected = [
                [source, node]
                for node in made.input_nodes[dst].tolist()
                for source in relation.indices[relation.indptr[node] : relation.indptr[node + 1]].tolist()
                if source in sources
            ]
            src_ids, dst_ids = made.input_nodes[src][block.edge_index[0]], made.input_nodes[dst][block.edge_index[1]]
            assert torch.stack((src_ids, dst_ids), 1).tolist() == expected


@pytest.mark.parametrize("chain", [of_clusters, of_walks])
def test_bits_are_the_same_for_workers_parts_and_resume(chain):
    expected = assert_no_bit_changes(chain)
    for num_parts, local_part in ((1, None), (3, 1)):
        assert digests(chain(small_parts(num_parts, local_part))) == expected
    pipe, again = chain(), chain()
    next(iter(pipe))
    again.load_state_dict(pipe.state_dict())
    assert digests(again) == expected[1:]


def test_padding_fits_subgraphs():
    sizes = dp.measure_sizes(of_clusters(), minibatches=4)
    for made, plain in zip(of_clusters().pad(sizes), of_clusters(), strict=True):
        is_node, (is_edge,) = made.masks.nodes, made.masks.edges
        assert torch.equal(made.input_nodes[is_node], plain.input_nodes)
        edges, expected = (of.input_nodes[of.blocks[0].edge_index] for of in (made, plain))
        assert torch.equal(edges[:, is_edge], expected)


def test_a_random_partition_has_each_node_once_an_epoch():
    graph = small_graph()
    parts = [*dp.ItemSampler(dp.ItemSet(40), 10, shuffle=True, seed=3).sample_induced_subgraph(graph)]
    assert sorted(itertools.chain(*(part.input_nodes.tolist() for part in parts))) == [*range(40)]
    for part in parts:
        expect_all_edges(part, graph)


# --- norms


@pytest.mark.parametrize("chain", [of_clusters, of_walks])
def test_norms_are_those_of_a_plain_count(chain):
    graph, coverage = small_graph(), 3
    options = {} if chain is of_clusters else {"return_edge_ids": True}
    norms = measure_norms(chain(graph, **options), coverage)
    of_nodes, of_edges, num_minibatches, epoch = [0] * 40, [0] * 200, 0, 2**32 - 2
    loader = dp.DataLoader(chain(graph, **options))
    while sum(of_nodes) < coverage * 40:
        for index in range(len(loader)):
            minibatch = loader.minibatch(epoch, index)
            for node in minibatch.input_nodes.tolist():
                of_nodes[node] += 1
            for edge in minibatch.blocks[0].edge_ids.tolist():
                of_edges[edge] += 1
            num_minibatches += 1
            if sum(of_nodes) >= coverage * 40:
                break
        epoch -= 1
    expected = torch.tensor([num_minibatches / (max(count, 0.1) * 40) for count in of_nodes])
    torch.testing.assert_close(norms.node_norm, expected)
    into = {
        int(graph.edge_ids[at]): node for node in range(40) for at in range(graph.indptr[node], graph.indptr[node + 1])
    }
    weights = [min(of_nodes[into[edge]] / count, 1e4) if count else 0.1 for edge, count in enumerate(of_edges)]
    torch.testing.assert_close(norms.edge_norm, torch.tensor(weights))


def test_norms_of_what_occurs_never_or_hardly_ever(monkeypatch):
    graph = graph_of([[1], [], [1]])

    def made(nodes: list[int], edges: list[int]) -> dp.MiniBatch:
        ends = dp.Block(torch.tensor([0, len(edges)]), torch.tensor([1] * len(edges)), 2, torch.tensor(edges).long())
        return dp.MiniBatch(epoch=0, index=0, input_nodes=torch.tensor(nodes), blocks=[ends])

    alone = made([0], [])
    monkeypatch.setattr(
        induced_subgraph_sampler, "_minibatches_backwards", lambda _: [made([0, 1], [0]), *[alone] * 10_001]
    )
    norms = measure_norms(items_without_labels().sample_induced_subgraph(graph, return_edge_ids=True), 3335)
    torch.testing.assert_close(norms.node_norm, torch.tensor([1, 10_002, 10_002 / 0.1]) / 3)
    torch.testing.assert_close(norms.edge_norm, torch.tensor([1e4, 0.1]))


def test_norms_make_the_mean_of_losses_that_of_all_nodes():
    """The norms are an expectation: what is summed over a minibatch is on average the mean over all nodes."""
    chain = of_walks(return_edge_ids=True)
    norms = measure_norms(chain, 200)
    values = torch.arange(40.0)
    losses = [
        float((values[made.input_nodes] * norms.node_norm[made.input_nodes]).sum())
        for epoch in range(200)
        for made in start_at(chain, epoch)
    ]
    assert abs(sum(losses) / len(losses) - float(values.mean())) < 0.5


# --- refusals


def test_what_is_refused(refuses):
    graph, nodes = small_graph(), items_without_labels()
    for clusters in (CLUSTERS[:39], CLUSTERS.float(), CLUSTERS - 1, [0] * 40):
        refuses((TypeError, ValueError, IndexError), nodes.sample_induced_subgraph, graph, clusters=clusters)
    refuses(ValueError, nodes.sample_induced_subgraph, graph, clusters=CLUSTERS + (CLUSTERS > 2))
    refuses(TypeError, nodes.sample_induced_subgraph, "graph")
    refuses(ValueError, typed_items().sample_induced_subgraph, typed_graph(), clusters=CLUSTERS)
    authors = dp.ItemSampler(dp.HeteroItemSet({"author": dp.ItemSet(25)}), 9)
    walks = authors.sample_random_walk(typed_graph(), 2, metapath=[WRITTEN, WRITES])
    refuses(ValueError, first, walks.sample_induced_subgraph(typed_graph()))
    refuses(IndexError, first, nodes.sample_induced_subgraph(graph, clusters=CLUSTERS))
    refuses(ValueError, first, items().sample_induced_subgraph(graph, clusters=CLUSTERS))
    labels = dp.ItemSampler(dp.ItemSet((torch.arange(4), torch.arange(4))), 2)
    changed = CLUSTERS.clone()
    pipe = dp.ItemSampler(dp.ItemSet(5), 2).sample_induced_subgraph(graph, clusters=changed)
    changed[0] = 4
    for use in (first, lambda pipe: pipe.fingerprint(), pickle.dumps):
        refuses(ValueError, use, pipe)
    refuses(ValueError, first, labels.sample_random_walk(graph, 2).sample_induced_subgraph(graph))
    refuses(IndexError, first, dp.ItemSampler(dp.ItemSet(torch.tensor([40])), 1).sample_induced_subgraph(graph))
    refuses(ValueError, nodes.sample_neighbor, graph, [], subgraph_type="induced")
    for pipe in (
        of_walks(),
        items().sample_shadow(graph, [2]),
        items(),
        None,
        typed_items().sample_induced_subgraph(typed_graph()),
    ):
        refuses(ValueError, measure_norms, pipe)
    refuses(ValueError, measure_norms, of_clusters(), 0)


def test_states_name_what_decides():
    numbers = dp.ItemSampler(dp.ItemSet(5), 2, shuffle=True, seed=5)
    other = numbers.sample_induced_subgraph(small_graph(), clusters=CLUSTERS.flip(0), return_edge_ids=True)
    assert of_clusters().fingerprint() != other.fingerprint()
    assert of_clusters().describe()["clusters"] == 5
