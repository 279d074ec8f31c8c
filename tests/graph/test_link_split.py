"""random_link_split: every edge in one split, parallel edges and both directions together; the graph that stays."""

import pytest
import torch
from dist_graphs import small_parts
from hypothesis import given
from hypothesis import strategies as st
from link_chains import edges_by_id
from pipelines import small_graph
from strategies import csc_graphs
from typed_pipelines import CITES, HOSTS, REVIEWS, WRITES, WRITTEN, typed_graph

import datapipes as dp
from datapipes.graph.edits import with_edges_kept

BY = ("paper", "by", "author")


def with_edges(graph, kept):
    return graph._of(with_edges_kept(graph._arrays(), kept))


def edges_of(graph, edge_type=None) -> dict[int, tuple[int, int]]:
    """{edge id: ends}."""
    if graph.num_edges_of(edge_type) == 0:
        return {}
    return of_set(dp.ItemSet.of_edges(graph, edge_type), edge_type)


def of_set(items, edge_type=None) -> dict[int, tuple[int, int]]:
    if items is None:
        return {}
    return edges_by_id(items if edge_type is None else items.item_sets[edge_type])


def links(edges: dict[int, tuple[int, int]]) -> set[tuple[int, ...]]:
    return {tuple(sorted(ends)) for ends in edges.values()}


@given(st.data(), csc_graphs(min_nodes=1))
def test_every_edge_is_in_one_split_and_the_graph_has_the_others(data, arrays):
    ids = torch.arange(arrays.num_edges).flip(0) + 7 if data.draw(st.booleans()) else None
    weights = torch.arange(arrays.num_edges) * 3
    graph = dp.CSCGraph(*arrays, edge_ids=ids, edge_attributes={"w": weights})
    whole = edges_of(graph)
    count = len(links(whole))
    if count < 3:
        return
    supervision = data.draw(st.sampled_from([1.0, 0.5]))
    split = dp.random_link_split(graph, 1, 1, seed=data.draw(st.integers(0, 2**64 - 1)), supervision=supervision)
    train, validation, test = (of_set(each) for each in split[:3])
    sampled = edges_of(split.graph)
    assert len(links(validation)) == len(links(test)) == 1
    if supervision == 1:
        assert train == sampled
    else:
        assert len(links(train)) == max((count - 2) // 2, 1)
    together = {**train, **validation, **test, **sampled}
    assert together == whole
    parts = [train, validation, test] if supervision == 1 else [train, validation, test, sampled]
    assert sum(len(links(each)) for each in parts) == count
    assert sum(map(len, parts)) == len(whole)
    at = {int(edge): int(w) for edge, w in zip(whole, graph.edge_attributes["w"], strict=True)}
    assert [at[edge] for edge in sampled] == split.graph.edge_attributes["w"].tolist()


def test_a_split_depends_on_the_seed_and_the_links_alone():
    graph = small_graph().to_undirected()
    first, again = (dp.random_link_split(graph, 0.1, 0.2, seed=3) for _ in range(2))
    assert first.test_set.digest() == again.test_set.digest()
    assert first.graph.digest() == again.graph.digest()
    other = dp.random_link_split(graph, 0.1, 0.2, seed=4)
    assert other.test_set.digest() != first.test_set.digest()
    narrow = dp.random_link_split(graph.with_index_dtype(torch.int32), 0.1, 0.2, seed=3)
    assert narrow.test_set[:][1].tolist() == first.test_set[:][1].tolist()
    count = len(links(edges_of(graph)))
    assert len(links(of_set(first.validation_set))) == int(0.1 * count)
    assert len(links(of_set(first.test_set))) == int(0.2 * count)


def test_the_split_of_a_known_graph_does_not_change():
    split = dp.random_link_split(small_graph(), 0.1, 0.2, seed=3)
    assert split.validation_set[:][1].tolist() == GOLDEN


def test_without_a_share_there_is_no_set():
    split = dp.random_link_split(small_graph(), 0, 0.0, seed=3)
    assert split.validation_set is None
    assert split.test_set is None
    assert split.graph.num_edges == 200
    assert len(split.train_set) == 200


def both_ways() -> dp.HeteroCSCGraph:
    """The small graph with types, and the reverses of all "writes"."""
    others = dict.fromkeys(typed_graph().edge_types)
    return typed_graph().to_undirected({**others, WRITES: "by"})


def test_reverses_follow_their_edges_and_are_no_items():
    graph = both_ways()
    for mapping in ({WRITES: BY}, {BY: WRITES}, {WRITES: BY, BY: WRITES}):
        split = dp.random_link_split(graph, 0.2, 0.2, seed=3, reverse_etypes_mapping=mapping)
        of = BY if mapping.get(BY) else WRITES
        of = min(WRITES, BY) if len(mapping) == 2 else of
        back = BY if of == WRITES else WRITES
        assert back not in split.train_set.types
        assert of in split.train_set.types
        kept = {*edges_of(split.graph, of).values()}
        assert {(v, u) for u, v in edges_of(split.graph, back).values()} == kept
        assert kept.isdisjoint(of_set(split.test_set, of).values())
        assert {*kept, *of_set(split.test_set, of).values(), *of_set(split.validation_set, of).values()} == {
            *edges_of(graph, of).values()
        }


@pytest.mark.parametrize("mapping", [{WRITES: BY}, {BY: WRITES}, {WRITES: BY, BY: WRITES}, {BY: WRITES, WRITES: BY}])
@pytest.mark.parametrize("chosen", [WRITES, BY])
def test_whichever_of_two_directions_is_split_the_other_follows(mapping, chosen):
    graph, other = both_ways(), BY if chosen == WRITES else WRITES
    split = dp.random_link_split(graph, 0.2, 0.2, seed=3, reverse_etypes_mapping=mapping, edge_types=[chosen])
    assert split.test_set.types == (chosen,)
    held_out = {*of_set(split.test_set, chosen).values(), *of_set(split.validation_set, chosen).values()}
    assert held_out.isdisjoint(edges_of(split.graph, chosen).values())
    assert {(v, u) for u, v in held_out}.isdisjoint(edges_of(split.graph, other).values())


def test_chosen_types_are_split_and_the_others_stay_whole():
    graph = both_ways()
    split = dp.random_link_split(graph, 0.2, 0.2, seed=3, edge_types=["paper:cites:paper"])
    assert split.train_set.types == split.test_set.types == (CITES,)
    for of in graph.edge_types:
        assert (split.graph.num_edges_of(of) < graph.num_edges_of(of)) == (of == CITES)
    assert links(edges_of(split.graph, CITES)).isdisjoint(links(of_set(split.test_set, CITES)))


def test_the_features_of_edges_are_addressed_as_before():
    graph = small_graph()
    split = dp.random_link_split(graph, 0.2, 0.2, seed=3)
    store = dp.FeatureStore({("edge", None, "w"): dp.TensorFeature(torch.arange(200.0))})
    pipe = dp.ItemSampler(split.train_set, 8).sample_neighbor(split.graph, [4], return_edge_ids=True)
    minibatch = next(iter(pipe.fetch_feature(store, [], ["w"])))
    assert torch.equal(minibatch.edge_features[0]["w"], minibatch.blocks[0].edge_ids.float())
    held_out = {*of_set(split.test_set)} | {*of_set(split.validation_set)}
    assert held_out.isdisjoint(minibatch.blocks[0].edge_ids.tolist())


# --- what is refused


@pytest.mark.parametrize("of", [WRITES, BY])
def test_reverses_that_the_mapping_does_not_name(refuses, of):
    graph, back = both_ways(), BY if of == WRITES else WRITES
    for options in ({"edge_types": [of]}, {"reverse_etypes_mapping": {CITES: CITES}}):
        refuses(ValueError, dp.random_link_split, graph, 0.1, 0.1, seed=1, **options)
    named = dp.random_link_split(graph, 0.1, 0.1, seed=1, reverse_etypes_mapping={of: None}, edge_types=[of])
    assert named.graph.num_edges_of(back) == graph.num_edges_of(back)
    others = with_edges(graph, {back: torch.arange(graph.num_edges_of(back)) > 0})  # one edge has no reverse
    assert dp.random_link_split(others, 0.1, 0.1, seed=1, edge_types=[of]).train_set.types == (of,)


def test_edges_without_the_reverses_that_the_mapping_names(refuses):
    def split(graph, back) -> None:
        mapping = {WRITES: back}
        dp.random_link_split(graph, 0.1, 0.1, seed=1, reverse_etypes_mapping=mapping, edge_types=[WRITES])

    graph = both_ways()
    refuses(ValueError, split, typed_graph(), WRITTEN)
    for edge_type in (WRITES, BY):
        numbers = torch.arange(graph.num_edges_of(edge_type))
        refuses(ValueError, split, with_edges(graph, {edge_type: numbers < 0}), BY)
        refuses(ValueError, split, with_edges(graph, {edge_type: numbers > 0}), BY)


def test_what_a_link_split_refuses(refuses):
    def split(graph, validation=0.1, test=0.1, seed=1, **options) -> None:
        dp.random_link_split(graph, validation, test, seed=seed, **options)

    graph, typed = small_graph(), typed_graph()
    for share in (1.0, -0.1, "0.1", None, True, float("nan")):
        refuses(ValueError, split, graph, share)
    refuses(ValueError, split, graph, test=-3)
    refuses(ValueError, split, graph, 0.5, 10_000)
    for supervision in (0, 1.5, "1", None, True):
        refuses(ValueError, split, graph, supervision=supervision)
    refuses(TypeError, split, small_parts(2))
    refuses(TypeError, split, graph, reverse_etypes_mapping={WRITES: WRITTEN})
    refuses(TypeError, split, graph, edge_types=[WRITES])
    for edge_types in (["author:likes:paper"], [], [WRITES, "author:writes:paper"], [HOSTS]):
        refuses(ValueError, split, typed, edge_types=edge_types)
    for edge_type in ("author:writes:paper", WRITES, 7):
        refuses(TypeError, split, typed, edge_types=edge_type)
    refuses(ValueError, split, typed, reverse_etypes_mapping={WRITES: WRITTEN, REVIEWS: WRITTEN})
    refuses(ValueError, split, both_ways(), reverse_etypes_mapping={WRITES: BY}, edge_types=[WRITES, BY])
    refuses(ValueError, split, graph, seed=-1)


GOLDEN = [71, 26, 166, 199, 192, 186, 65, 127, 91, 198, 180, 33, 90, 41, 60, 106, 46, 16, 130, 99]


# --- labels, and splits by time


def timed(num_edges=400, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, 30, (2, num_edges), generator=drawn)
    times = torch.randint(0, 50, (num_edges,), generator=drawn)
    return dp.CSCGraph.from_edge_index(ends, 30, edge_attributes={"time": times, "rating": times.float() / 2})


def test_items_have_the_labels_of_their_edges():
    graph = timed()
    ratings = graph.edge_attributes["rating"][graph.edge_ids.argsort()]
    split = dp.random_link_split(graph, 0.1, 0.2, seed=0, label_attr="rating")
    for items in split[:3]:
        rows = items.take(torch.arange(len(items)))
        assert torch.equal(rows["labels"], ratings[rows["edge_ids"]])
    plain = dp.random_link_split(graph, 0.1, 0.2, seed=0)
    assert torch.equal(plain.test_set[:][0], split.test_set[:][0])


def test_a_split_by_time_cuts_between_times():
    graph = timed()
    split = dp.time_link_split(graph, 0.2, 0.1, edge_time_attr="time", label_attr="rating")
    rows = [items.take(torch.arange(len(items))) for items in split[:3]]
    order = graph.edge_ids.argsort()
    times = graph.edge_attributes["time"][order]
    for part in rows:
        assert torch.equal(part["timestamps"], times[part["edge_ids"]])
        assert torch.equal(part["labels"], times[part["edge_ids"]] / 2)
    assert sorted(torch.cat([part["edge_ids"] for part in rows]).tolist()) == list(range(400))
    ends = [(int(part["timestamps"].min()), int(part["timestamps"].max())) for part in rows]
    assert ends[0][1] < ends[1][0] <= ends[1][1] < ends[2][0]
    assert 0.7 * 400 <= len(split.train_set) < 0.7 * 400 + 30
    assert int(split.graph.edge_attributes["time"].max()) == ends[0][1]
    assert split.graph.num_edges == len(split.train_set)


def test_a_split_by_time_of_types():
    ends, times = torch.tensor([[0, 1, 2], [1, 0, 0]]), torch.tensor([1, 2, 3])
    one, back, other = ("a", "to", "b"), ("b", "from", "a"), ("a", "of", "a")
    graph = dp.HeteroCSCGraph.from_edge_index(
        {one: ends, back: ends.flip(0), other: ends},
        {"a": 3, "b": 2},
        edge_attributes={one: {"time": times}, back: {"time": times}},
    )
    split = dp.time_link_split(graph, 0.0, 0.34, edge_time_attr="time", reverse_etypes_mapping={one: back})
    assert split.train_set.types == (one,)
    assert split.train_set.item_sets[one].take(torch.arange(2))["timestamps"].sort().values.tolist() == [1, 2]
    assert (len(split.test_set), split.validation_set) == (1, None)
    assert [split.graph.num_edges_of(kind) for kind in (one, back, other)] == [2, 2, 3]


def test_what_a_split_by_time_refuses(refuses):
    graph = timed()
    for wrong, split_of, validation, arguments in (
        (TypeError, 3, 0.1, {}),
        (ValueError, graph, 2, {}),
        (ValueError, graph, 0.95, {}),
        (ValueError, graph, 0.1, {"edge_time_attr": "when"}),
        (ValueError, graph, 0.1, {"edge_time_attr": "rating"}),
        (ValueError, graph, 0.1, {"label_attr": "stars"}),
    ):
        refuses(wrong, dp.time_link_split, split_of, validation, 0.1, **{"edge_time_attr": "time", **arguments})
    refuses(ValueError, dp.random_link_split, graph, 0.1, 0.1, seed=0, label_attr="stars")
