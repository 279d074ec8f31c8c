"""Chains of every kind, as tests describe them and have them made elsewhere: {name: (graph, the chain over it)}."""

import torch
from pipelines import item_set, items, sampled, small_graph
from timed_pipelines import timed_graph as edge_timed_graph
from typed_pipelines import CITES, WRITES, WRITTEN, typed_graph, typed_items, typed_sampled
from weights import weighted_graph, weighted_typed_graph

import datapipes as dp


def timed_graph() -> dp.CSCGraph:
    graph = small_graph()
    times = {"time": torch.arange(graph.num_nodes) * 7 % 13}
    return dp.CSCGraph(graph.indptr, graph.indices, edge_ids=graph.edge_ids, node_attributes=times)


def by_time(graph: dp.CSCGraph) -> dp.Stage:
    timed = dp.ItemSet((torch.arange(22), torch.arange(22) % 13), names=("seeds", "timestamps"))
    return dp.ItemSampler(timed, 4).temporal_sample_neighbor(graph, [3, 2], node_time_attr="time")


def of_links(graph: dp.CSCGraph) -> dp.Stage:
    pairs = torch.stack([torch.arange(22), torch.arange(22) * 3 % 40], 1)
    pipe = dp.ItemSampler(dp.ItemSet(pairs), 5, shuffle=True, drop_last=True, seed=2**64 - 1)
    pipe = pipe.sample_uniform_negative(graph, 1.5, dst_weight=torch.arange(40).float())
    pipe = pipe.sample_neighbor(graph, [2, 2], disjoint=True, return_edge_ids=True)
    return pipe.exclude_seed_edges(include_reverse_edges=True)


def of_typed_links(graph: dp.HeteroCSCGraph) -> dp.Stage:
    weights = {"paper": torch.ones(40), "author": torch.arange(25).double()}
    links = dp.HeteroItemSet({WRITES: dp.ItemSet(torch.arange(18).view(9, 2))})
    pipe = dp.ItemSampler(links, 4, seed=1, weights={WRITES: torch.ones(9)})
    pipe = pipe.sample_uniform_negative(graph, 1, corrupt="both", src_weight=weights, dst_weight=weights)
    return pipe.sample_neighbor(graph, [3, 2]).exclude_seed_edges(True, {"author:writes:paper": WRITTEN})


def drawn_items(graph: dp.CSCGraph) -> dp.Stage:
    weights = torch.arange(22).half() % 5
    return sampled(dp.ItemSampler(item_set(), 4, weights=weights, replacement=True, num_items=30), graph)


def drawn_typed_items(graph: dp.HeteroCSCGraph) -> dp.Stage:
    sets = {
        name: dp.ItemSet((torch.arange(9), torch.arange(9) / 4), names=("seeds", "w")) for name in ("paper", "author")
    }
    return dp.ItemSampler(dp.HeteroItemSet(sets), 4, weights="w", seed=1).sample_neighbor(graph, [3, 2])


def in_batch(graph: dp.HeteroCSCGraph) -> dp.Stage:
    pipe = dp.ItemSampler(dp.HeteroItemSet({WRITES: dp.ItemSet(torch.arange(18).view(9, 2))}), 4, seed=1)
    return pipe.sample_in_batch_negative(2, corrupt="src", form="rows").sample_neighbor(graph, [3, 2])


def historical(graph: dp.CSCGraph) -> dp.Stage:
    links = dp.ItemSet((torch.arange(18).view(9, 2), torch.arange(9) * 9), names=("seeds", "timestamps"))
    return dp.ItemSampler(links, 4, seed=1).sample_historical_negative(graph, 2, edge_time_attr="at")


def walks_of_papers(graph: dp.HeteroCSCGraph) -> dp.Stage:
    papers = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(40)}), 9, seed=5)
    return papers.sample_random_walk(graph, 4, metapath=[WRITES, WRITTEN])


def of_clusters(graph: dp.CSCGraph) -> dp.Stage:
    return dp.ItemSampler(dp.ItemSet(5), 2).sample_induced_subgraph(graph, clusters=torch.arange(40) % 5)


CHAINS = {
    "items by weight": (small_graph, drawn_items),
    "typed items by weight": (typed_graph, drawn_typed_items),
    "neighbors": (small_graph, lambda graph: sampled(graph=graph, frontier="new")),
    "layers": (small_graph, lambda graph: items().sample_layer_neighbor(graph, [3, 2], batch_dependency=2)),
    "layers by weight": (weighted_graph, lambda graph: items().sample_layer_neighbor(graph, [3, 2], prob_name="w")),
    "weights": (weighted_graph, lambda graph: items().sample_neighbor(graph, [3, -1], prob_name="w", replace=True)),
    "times": (timed_graph, by_time),
    "links": (small_graph, of_links),
    "in-edges": (small_graph, lambda graph: items().sample_in_subgraph(graph)),
    "typed": (typed_graph, lambda graph: typed_items().sample_neighbor(graph, [{WRITES: 2, CITES: -1}, 3])),
    "typed weights": (weighted_typed_graph, lambda graph: typed_sampled(graph=graph, prob_name="w")),
    "typed in-edges": (typed_graph, lambda graph: typed_items().sample_in_subgraph(graph, edge_types=[WRITES, CITES])),
    "typed links": (typed_graph, of_typed_links),
    "links in batch": (typed_graph, in_batch),
    "links of the past": (edge_timed_graph, historical),
    "walks": (small_graph, lambda graph: items().sample_random_walk(graph, 3, p=0.5, walks_per_node=2)),
    "typed walks": (typed_graph, walks_of_papers),
    "shadows": (weighted_graph, lambda graph: items().sample_shadow(graph, [3, 2], prob_name="w")),
    "clusters": (small_graph, of_clusters),
}
