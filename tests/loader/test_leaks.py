"""A loader warns once where the seeds of links are among the edges that are sampled for them."""

import re
import warnings

import pytest
import torch
from dist_graphs import small_parts, typed_parts
from pipelines import items, small_graph
from typed_pipelines import CITES, typed_graph

import datapipes as dp


def pairs_of(graph, count: int = 40) -> torch.Tensor:
    return dp.ItemSet.of_edges(graph)[:count][0]


def chain(graph) -> dp.Stage:
    return links(small_graph()).sample_neighbor(graph, [-1])


def warned(loader: dp.DataLoader, epochs: int = 1) -> list[str]:
    with warnings.catch_warnings(record=True) as caught, loader:
        warnings.simplefilter("always")
        for _ in range(epochs):
            assert len([*loader]) > 0
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_seeds_that_are_edges_are_told_once_with_the_line_that_mends_it(num_workers):
    (text,) = warned(dp.DataLoader(chain(small_graph()), num_workers), epochs=2)
    assert text.startswith(
        "data_loader: 16 of the first 16 positive seeds are among the edges that sample_neighbor sampled"
    )
    assert "Put exclude_seed_edges() behind the sampler" in text


def links(graph) -> dp.Stage:
    """Seeds that are edges of a graph, without a sampler."""
    return dp.ItemSampler(dp.ItemSet(pairs_of(graph)), 16)


def typed_seeds(graph) -> dp.Stage:
    return dp.ItemSampler(dp.ItemSet.of_edges(typed_graph()), 16, shuffle=True).sample_neighbor(graph, [-1])


def many_pairs() -> dp.Stage:
    pairs = pairs_of(small_graph(), 200).repeat(10, 1)
    return dp.ItemSampler(dp.ItemSet(pairs), 2_000).sample_neighbor(small_graph(), [-1])


def with_negatives(count: int, **form: str) -> dp.Stage:
    negatives = links(small_graph()).sample_negative(count, lambda pairs, *_: pairs, **form)
    return negatives.sample_neighbor(small_graph(), [-1])


TOLD = {
    "parts": (lambda: chain(small_parts(3, None)), 16),
    "parts, one of them here": (lambda: chain(small_parts(3, 0)), 16),
    "types count together": (lambda: typed_seeds(typed_graph()), 16),
    "types of parts": (lambda: typed_seeds(typed_parts()), 16),
    "at most 1024 are looked up": (many_pairs, 1024),
    "negatives do not count": (lambda: with_negatives(1), 16),
    "rows of negatives do not count": (lambda: with_negatives(3, form="rows"), 16),
    "edges of the time of the seed": (lambda: timed_chain(inclusive=True), 16),
    "trees": (lambda: links(small_graph()).sample_neighbor(small_graph(), [-1], disjoint=True), 16),
}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "worker_method": "thread"}], ids=["alone", "threads"])
@pytest.mark.parametrize("name", TOLD)
def test_edges_of_the_seeds_are_counted(name, options):
    make, count = TOLD[name]
    (text,) = warned(dp.DataLoader(make(), **options))
    assert f"{count} of the first {count}" in text


# --- reverses


def turned_chain(num_parts: int = 0) -> dp.Stage:
    """Seeds whose reverses are in the graph."""
    graph = small_graph().to_undirected()
    pipe = dp.ItemSampler(dp.ItemSet.of_edges(small_graph()), 16)
    sampled = graph if num_parts == 0 else small_parts(num_parts, None, graph)
    return pipe.sample_neighbor(sampled, [-1], return_edge_ids=True)


D, R = ("author", "writes", "paper"), ("paper", "written", "author")


def typed_split(of=D) -> dp.LinkSplit:
    """A split that leaves the reverses of the test links in the graph."""
    generator = torch.Generator().manual_seed(3)
    links = torch.stack((torch.randint(0, 25, (90,), generator=generator), torch.randperm(90, generator=generator)))
    graph = dp.HeteroCSCGraph.from_edge_index({D: links}).to_undirected({D: "written"})
    return dp.random_link_split(graph, 0.2, 0.2, seed=1, edge_types=[of], reverse_etypes_mapping={of: None})


def typed_chain(of=D) -> dp.Stage:
    split = typed_split(of)
    return dp.ItemSampler(split.test_set, 18).sample_neighbor(split.graph, [-1])


def cited_chain() -> dp.Stage:
    """Two types of a node type, of which one holds the reverses of the other."""
    edges = torch.stack((torch.arange(30), (torch.arange(30) * 7 + 1) % 31))
    graph = dp.HeteroCSCGraph.from_edge_index({CITES: edges, ("paper", "cited", "paper"): edges.flip(0)})
    return dp.ItemSampler(dp.HeteroItemSet({CITES: dp.ItemSet(edges.t().contiguous())}), 9).sample_neighbor(graph, [-1])


REVERSED = {
    "without types": (lambda: turned_chain().exclude_seed_edges(), "16 of the first 16", r"edges\(include_reverse"),
    "parts": (lambda: turned_chain(2).exclude_seed_edges(), "16 of the first 16", r"edges\(include_reverse"),
    "by id": (lambda: turned_chain().exclude_seed_edges(by="edge_id"), "16 of the first 16", r"edges\(include_reverse"),
    "a type of reverses": (typed_chain, "18 of the first 18", r"of paper:written:author among .*edges\(True, {\('aut"),
    "the other way": (lambda: typed_chain(R), "18 of the first 18", r"of author:writes:paper among .*, {\('paper'"),
    "another type of the same ends": (
        lambda: cited_chain().exclude_seed_edges(True),
        "9 of the first 9",
        "of paper:cited:paper among",
    ),
}


@pytest.mark.parametrize("name", REVERSED)
def test_reverses_that_are_left_are_told(name):
    make, count, remedy = REVERSED[name]
    (text,) = warned(dp.DataLoader(make()))
    assert f"{count} positive seeds have their reverse" in text
    assert re.search(remedy, text)


def split_chain() -> dp.Stage:
    split = dp.random_link_split(small_graph(), 0.1, 0.1, seed=1, supervision=0.3)
    return dp.ItemSampler(split.train_set, 16).sample_neighbor(split.graph, [3])


def timed_chain(**options: object) -> dp.Stage:
    plain = small_graph()
    graph = dp.CSCGraph(plain.indptr, plain.indices, edge_attributes={"at": torch.arange(200)})
    items_of = dp.ItemSet((pairs_of(plain), torch.arange(40)), names=("seeds", "timestamps"))
    return dp.ItemSampler(items_of, 16).temporal_sample_neighbor(graph, [-1], edge_time_attr="at", **options)


PATH = torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 4, 0]])  # and back at its start
QUIET = {
    "exclusion": lambda: chain(small_graph()).exclude_seed_edges(),
    "exclusion of reverses": lambda: turned_chain().exclude_seed_edges(True),
    "exclusion of a type of reverses": lambda: typed_chain().exclude_seed_edges(True, {D: R}),
    "a type without reverses": lambda: typed_chain().exclude_seed_edges(True, {D: None}),
    "the reverse of one seed of four": lambda: (
        dp.ItemSampler(dp.ItemSet(PATH.t()[:4].contiguous()), 4)
        .sample_neighbor(dp.CSCGraph.from_edge_index(PATH), [-1])
        .exclude_seed_edges()
    ),
    "nodes": lambda: items().sample_neighbor(small_graph(), [3]),
    "no sampler": lambda: links(small_graph()),
    "no edges": lambda: dp.ItemSampler(dp.ItemSet(torch.tensor([[0, 0], [39, 39]])), 2).sample_neighbor(
        small_graph(), [3]
    ),
    "exclusion by a function": lambda: chain(small_graph()).transform(dp.exclude_seed_edges),
    "no edges are sampled": lambda: links(small_graph()).sample_neighbor(small_graph(), [0]),
    "seeds that a stage made into other ids": lambda: chain(small_graph()).transform(
        lambda minibatch: minibatch.replace(seeds=minibatch.seeds + 1000)
    ),
    "seeds that a stage took out": lambda: chain(small_graph()).transform(
        lambda minibatch: minibatch.replace(seeds=None)
    ),
    "a graph without them": split_chain,
    "earlier edges only": timed_chain,
    "nodes of a graph with types": lambda: dp.ItemSampler(
        dp.HeteroItemSet({"paper": dp.ItemSet(torch.arange(9))}), 4
    ).sample_neighbor(typed_graph(), [{CITES: 2}]),
}


@pytest.mark.parametrize("name", QUIET)
def test_it_is_quiet(name):
    if name == "no edges":
        assert int(small_graph().has_edges(torch.tensor([[0, 0], [39, 39]])).counts.sum()) == 0
    assert warned(dp.DataLoader(QUIET[name]())) == []


def test_it_points_at_the_loop_over_the_loader():
    with warnings.catch_warnings(record=True) as caught, dp.DataLoader(chain(small_graph())) as loader:
        warnings.simplefilter("always")
        for _ in loader:
            break
    assert [each.filename for each in caught] == [__file__]


def test_the_state_and_the_minibatches_are_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [m.digest() for m in dp.DataLoader(chain(small_graph()))] == [m.digest() for m in chain(small_graph())]
