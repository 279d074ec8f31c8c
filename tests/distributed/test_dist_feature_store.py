"""DistFeatureStore: the rows of a graph in parts are those of the whole graph, with one request per part."""

import asyncio
import pickle

import pytest
import torch
from amounts import examples
from dist_graphs import ChangedPeers, dist_graph_of, in_parts, new_root
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, expect_same_values, graphs
from pipelines import digests, items

import datapipes as dp
from datapipes import _core
from datapipes.distributed import DistFeatureStore, DistGraph, PartitionBook
from datapipes.distributed.hot_rows import HotTable
from datapipes.distributed.requests.rows import RowsRequest
from datapipes.graph.graph import Graph
from datapipes.partition.book import with_edge_map
from datapipes.processes.sharing import pack


def whole_features(graph: Graph) -> dict:
    """The twin: every attribute as a TensorFeature, those of edges by edge id."""
    found = {}
    for kind in graph.node_types:
        for name, values in graph.node_attributes_of(kind).items():
            found["node", kind, name] = dp.TensorFeature(values.contiguous())
    for key in graph.edge_types:
        relation = graph.relation(key)
        ids = torch.arange(relation.indices.shape[0]) if relation.edge_ids is None else relation.edge_ids
        for name, values in relation.edge_attributes.items():
            by_id = torch.empty_like(values.contiguous())
            by_id[ids] = values
            found["edge", key, name] = dp.TensorFeature(by_id)
    return found


def ids_below(draw, count: int) -> torch.Tensor:
    dtype = draw(st.sampled_from([torch.int32, torch.int64]))
    ids = draw(st.lists(st.integers(0, count - 1), max_size=20)) if count > 0 else []
    return torch.tensor(ids, dtype=dtype)


@examples(25)
@given(st.data())
def test_the_rows_of_parts_are_those_of_the_whole_graph(data):
    graph = data.draw(graphs())
    book = with_edge_map(data.draw(books(graph, most_parts=4)), graph)
    local = data.draw(st.one_of(st.none(), st.integers(0, book.num_parts - 1)))
    dist_graph = dist_graph_of(graph, book, new_root(), local)
    expected = dp.FeatureStore(whole_features(graph))
    store = DistFeatureStore(dist_graph)
    assert store.keys() == expected.keys()
    ids = {(domain, of): ids_below(data.draw, expected[domain, of, name].count) for domain, of, name in expected}
    requests = [(domain, of, name, ids[domain, of]) for domain, of, name in expected]
    for found in (store.read_many(requests), asyncio.run(store.read_many_async(requests))):
        for request, rows, wanted in zip(requests, found, expected.read_many(requests), strict=True):
            expect_same_values({request[2]: rows}, {request[2]: wanted})
    for key, feature in expected.items():
        assert (store[key].count, store[key].shape, store[key].dtype) == (feature.count, feature.shape, feature.dtype)
    dist_graph.close()


# --- what is asked


def plain_graph(num_nodes: int = 200, num_edges: int = 3000) -> dp.CSCGraph:
    made = torch.Generator().manual_seed(0)
    edges = (torch.rand(2, num_edges, generator=made) ** 2 * num_nodes).long()
    return dp.CSCGraph.from_edge_index(
        edges,
        num_nodes,
        node_attributes={"x": torch.randn(num_nodes, 5, generator=made), "y": torch.arange(num_nodes)},
        edge_attributes={"w": torch.randn(num_edges, 2, generator=made).half()},
    )


@pytest.fixture
def parts_of_graph():
    """Makes graphs in parts, which are closed in the end."""
    made = []

    def make(num_parts: int = 3, local_part: int | None = 0, graph=None) -> DistGraph:
        graph = graph or plain_graph()
        owners = torch.arange(graph.num_nodes) * 7 % 11 % num_parts
        made.append(
            dist_graph_of(graph, with_edge_map(PartitionBook(num_parts, owners), graph), new_root(), local_part)
        )
        return made[-1]

    yield make
    for dist_graph in made:
        dist_graph.close()


def reads(dist_graph) -> list[tuple[int, RowsRequest]]:
    return [each for each in dist_graph.peers.asked if isinstance(each[1], RowsRequest)]


@pytest.mark.parametrize(("local_part", "asked"), [(None, [0, 1, 2]), (1, [0, 2])])
def test_each_part_is_asked_once_for_all_features(parts_of_graph, local_part, asked):
    dist_graph = parts_of_graph(3, local_part)
    store = DistFeatureStore(dist_graph)
    nodes, edges = torch.arange(200), torch.arange(100, 400)
    requests = [
        ("node", None, "x", nodes),
        ("node", None, "y", nodes),
        ("edge", None, "w", edges),
        ("node", None, "x", nodes[:0]),
        ("edge", None, "w", edges[:50].int()),
    ]
    store.read_many(requests)
    assert [part for part, _ in reads(dist_graph)] == asked
    for _, request in reads(dist_graph):
        # The ids go once for both features of the nodes; other ids of edges go apart.
        assert [(each.domain, each.names) for each in request.rows] == [
            ("node", ("x", "y")),
            ("edge", ("w",)),
            ("edge", ("w",)),
        ]
    stats = store.stats()
    assert stats["requests"] == len(asked)
    assert stats["own"] + stats["asked"] == 200 + 300 + 50
    assert stats["cached"] == stats["cache_bytes"] == 0


def test_rows_of_the_own_part_ask_nobody(parts_of_graph):
    dist_graph = parts_of_graph(3, 1)
    store = DistFeatureStore(dist_graph)
    own = dist_graph.local_part.node_ids()
    assert torch.equal(store.read("node", None, "x", own), plain_graph().node_attributes["x"][own])
    assert store["node", None, "y"].read(own[:0]).shape == (0,)
    assert reads(dist_graph) == []


def test_rows_go_into_memory_that_is_given(parts_of_graph, refuses):
    feature = DistFeatureStore(parts_of_graph())["node", None, "x"]
    ids, out = torch.tensor([5, 199, 5]), torch.empty(3, 5)
    assert feature.read(ids, out) is out
    assert torch.equal(out, plain_graph().node_attributes["x"][ids])
    refuses(ValueError, feature.read, ids, out.double())


# --- refusals


def test_ids_outside_the_graph_are_named_with_the_feature(parts_of_graph, refuses):
    dist_graph = parts_of_graph()
    store = DistFeatureStore(dist_graph)
    for outside in (-1, 200, 2**40):
        refuses(IndexError, store.read_many, [("node", None, "x", torch.tensor([3, outside, -7]))])
    with refuses(IndexError):
        asyncio.run(store.read_many_async([("edge", None, "w", torch.tensor([3000]))]))
    assert reads(dist_graph) == []


def test_edge_features_need_an_edge_map(refuses):
    dist_graph = in_parts(plain_graph(), torch.arange(200) % 2, 2, 0)
    store = DistFeatureStore(dist_graph)
    ids = torch.tensor([1])
    assert torch.equal(store.read("node", None, "y", ids), ids)
    refuses(ValueError, store.read_many, [("edge", None, "w", ids)])
    sampled = items().dist_sample_neighbor(dist_graph, [2], return_edge_ids=True)
    refuses(ValueError, sampled.fetch_feature, store, None, ["w"])
    dist_graph.close()


def test_what_a_dist_feature_store_refuses(parts_of_graph, refuses):
    dist_graph = parts_of_graph()
    for error, cache_bytes in ((ValueError, -1), (ValueError, "much"), (TypeError, 1.5), (ValueError, 100)):
        refuses(error, DistFeatureStore, dist_graph, cache_bytes=cache_bytes)
    refuses(TypeError, DistFeatureStore, plain_graph())
    refuses(KeyError, DistFeatureStore(dist_graph).read_many, [("node", None, "z", torch.tensor([0]))])
    refuses(ValueError, DistFeatureStore, parts_of_graph(local_part=None), cache_bytes="1MB")
    x = ("node", None, "x")
    refuses(ValueError, DistFeatureStore, dist_graph, cache_by={})
    for error, cache_by in (
        (ValueError, {}),
        (TypeError, torch.ones(3)),
        (KeyError, {("node", None, "z"): torch.ones(200)}),
        (ValueError, {("edge", None, "w"): torch.ones(3000)}),
        (ValueError, {x: torch.arange(199)}),
        (TypeError, {x: torch.ones(200)}),
    ):
        refuses(error, DistFeatureStore, dist_graph, cache_bytes=1000, cache_by=cache_by)
    refuses(ValueError, DistFeatureStore, dist_graph, cache_bytes=100, cache_by={x: torch.arange(200)})


@pytest.mark.parametrize("is_async", [False, True])
def test_other_rows_than_asked_for_are_refused(parts_of_graph, refuses, is_async):
    dist_graph, ids = parts_of_graph(2), torch.arange(200)
    peers, requests = dist_graph.peers, [("node", None, "x", ids), ("node", None, "y", ids)]
    store = DistFeatureStore(dist_graph)
    for change in (
        lambda rows: rows[:-1],
        lambda rows: [*rows, rows[0]],
        lambda rows: [rows[0][:-1], rows[1]],
        lambda rows: [rows[0].double(), rows[1]],
        lambda rows: [rows[0], rows[1][:, None]],
        lambda rows: [rows[0], None],
    ):
        dist_graph.peers = ChangedPeers(peers, change)
        with refuses(ValueError):
            asyncio.run(store.read_many_async(requests)) if is_async else store.read_many(requests)
    dist_graph.peers = ChangedPeers(peers, lambda rows: [])  # also where the caller gives the memory
    refuses(ValueError, store.read, "node", None, "x", ids, out=torch.empty(200, 5))


@pytest.mark.parametrize("is_async", [False, True])
def test_the_error_of_a_part_reaches_the_caller(parts_of_graph, is_async):
    def fail(answer):
        raise TimeoutError("part 1 at 127.0.0.1:1 did not answer")

    dist_graph = parts_of_graph(3, 0)
    dist_graph.peers = ChangedPeers(dist_graph.peers, fail)
    store = DistFeatureStore(dist_graph)
    requests = [("node", None, "x", torch.arange(200))]
    with pytest.raises(TimeoutError, match="did not answer"):
        asyncio.run(store.read_many_async(requests)) if is_async else store.read_many(requests)
    with pytest.raises(TimeoutError, match="did not answer"):
        DistFeatureStore(dist_graph, cache_bytes=10_000)


# --- chains


def chain(graph, store, **arguments):
    source = items(num_items=22)
    sample = source.dist_sample_neighbor if isinstance(graph, DistGraph) else source.sample_neighbor
    return sample(graph, [3, 2], return_edge_ids=True, **arguments).fetch_feature(store, ["x", "y"], ["w"])


@pytest.mark.parametrize("num_parts", [1, 2, 4])
def test_chains_give_the_bits_of_one_machine(parts_of_graph, num_parts):
    graph = plain_graph()
    expected = digests(chain(graph, dp.FeatureStore(whole_features(graph))))
    for local_part in (None, num_parts - 1):
        dist_graph = parts_of_graph(num_parts, local_part)
        for cache_bytes in (0, "1KB", "1MB") if local_part else (0,):
            assert digests(chain(dist_graph, DistFeatureStore(dist_graph, cache_bytes=cache_bytes))) == expected


@pytest.mark.parametrize("worker_method", ["process", "thread"])
def test_workers_read_the_same_and_share_the_cache(parts_of_graph, worker_method):
    graph = plain_graph()
    expected = digests(chain(graph, dp.FeatureStore(whole_features(graph))))
    dist_graph = parts_of_graph(3, 1)
    store = DistFeatureStore(dist_graph, cache_bytes=3000)
    pipe = chain(dist_graph, store)
    with dp.DataLoader(pipe, num_workers=1, worker_method=worker_method) as loader:
        assert "fetch_feature" in loader.explain()
        assert [each.digest() for each in loader] == expected
    stats = store.stats()  # of the workers too
    assert min(stats[name] for name in ("own", "cached", "asked", "requests", "received_bytes")) > 0
    assert stats["requests"] <= 2 * len(expected)  # two peers


# --- the cache


def hot_of(dist_graph, num_bytes: int) -> set[int]:
    """The twin: nodes one by one, by count, as long as index and rows fit. All rows of the graph have 28 bytes."""
    ids, _ = dist_graph.local_part.hot_nodes()
    left = num_bytes - 64 - 64 * 3  # a line of the index for up to 384 nodes; three tensors, each aligned
    return set(ids.tolist()[: max(left // 28, 0)])


def counted(feature_graph, store, epochs: int = 2) -> dict:
    return dp.count_accesses(chain(feature_graph, store), epochs)


@pytest.mark.parametrize("local_part", [None, 1])
def test_accesses_of_parts_are_those_of_the_whole_graph(parts_of_graph, local_part):
    graph = plain_graph()
    expected = counted(graph, dp.FeatureStore(whole_features(graph)))
    dist_graph = parts_of_graph(3, local_part)
    store = DistFeatureStore(dist_graph)
    with dp.DataLoader(chain(dist_graph, store), num_workers=0) as loader:
        for found in (counted(dist_graph, store), dp.count_accesses(loader, 2)):
            assert found.keys() == expected.keys() == store.keys()
            for key, counts in expected.items():
                assert torch.equal(found[key], counts)
        assert len(list(loader)) > 0
    assert expected["node", None, "x"].max() > 2


def most_asked(counts: torch.Tensor, own: set[int], num_bytes: int, row_bytes: int, num_tables: int) -> set[int]:
    """The twin: nodes that are not in the own part one by one, by count, then id, as long as index and rows fit."""
    order = sorted((-count, node) for node, count in enumerate(counts.tolist()) if count > 0 and node not in own)
    return {node for _, node in order[: (num_bytes - 64 * (1 + num_tables) - 64) // row_bytes]}


@pytest.mark.parametrize(("by_counts", "local_part"), [(False, 2), (True, 2), (True, None)])
@pytest.mark.parametrize("cache_bytes", [284, 311, 312, 700, 2000, 10**9])
def test_the_cache_holds_the_hottest_rows_within_its_bytes(parts_of_graph, by_counts, local_part, cache_bytes):
    dist_graph, graph = parts_of_graph(3, local_part), plain_graph()
    own = set() if local_part is None else set(dist_graph.local_part.node_ids().tolist())
    if by_counts:
        counts = counted(dist_graph, DistFeatureStore(dist_graph))
        expected = most_asked(counts["node", None, "x"], own, cache_bytes, 28, 2)
    else:
        counts, expected = None, hot_of(dist_graph, cache_bytes)
    store = DistFeatureStore(dist_graph, cache_bytes=cache_bytes, cache_by=counts)
    assert expected
    assert 0 < store.stats()["cache_bytes"] <= cache_bytes
    before, ids = len(reads(dist_graph)), torch.arange(200)  # those before filled it
    for name in ("x", "y"):
        assert torch.equal(store.read("node", None, name, ids), graph.node_attributes[name])
    asked = {int(node) for _, request in reads(dist_graph)[before:] for node in request.rows[0].ids}
    assert asked == set(range(200)) - own - expected
    assert store.stats()["cached"] == 2 * len(expected)


@pytest.mark.parametrize("local_part", [None, 1])
def test_a_cache_by_counts_saves_what_was_counted_and_changes_no_bit(parts_of_graph, local_part):
    graph = plain_graph()
    expected = digests(chain(graph, dp.FeatureStore(whole_features(graph))))
    dist_graph, stats = parts_of_graph(3, local_part), {}
    counts = counted(dist_graph, DistFeatureStore(dist_graph), 1)
    for name, options in (("none", {}), ("some", {"cache_bytes": 900}), ("all", {"cache_bytes": "1MB"})):
        store = DistFeatureStore(dist_graph, **options, cache_by=counts if options else None)
        assert digests(chain(dist_graph, store)) == expected
        stats[name] = store.stats()
    own = torch.tensor([], dtype=torch.int64) if local_part is None else dist_graph.local_part.node_ids()
    away = counts["node", None, "x"].clone()
    away[own] = 0
    cached = most_asked(counts["node", None, "x"], set(own.tolist()), 900, 28, 2)
    assert stats["some"]["cached"] == int(away[sorted(cached)].sum()) > 0
    assert stats["none"]["asked"] - stats["some"]["asked"] == stats["some"]["cached"]
    assert stats["all"]["cached"] == int(away.sum())  # what is still asked for are rows of edges
    assert stats["all"]["requests"] <= stats["some"]["requests"] <= stats["none"]["requests"]
    assert stats["all"]["received_bytes"] < stats["some"]["received_bytes"] < stats["none"]["received_bytes"]


def test_features_without_counts_are_not_cached(parts_of_graph):
    dist_graph, graph = parts_of_graph(3, 2), plain_graph()
    counts = torch.zeros(200, dtype=torch.int32)
    counts[[0, 5, 7, 9, 11, 2]] = torch.tensor([4, 4, 9, 4, 1, 50], dtype=torch.int32)
    own = set(dist_graph.local_part.node_ids().tolist())
    store = DistFeatureStore(
        dist_graph, cache_bytes=64 * 3 + 3 * 20, cache_by={("node", None, "x"): counts, ("edge", None, "w"): None}
    )
    ids = torch.arange(200)
    requests = [("node", None, "x", ids), ("node", None, "y", ids)]
    for found, name in zip(store.read_many(requests), ("x", "y"), strict=True):
        assert torch.equal(found, graph.node_attributes[name])
    of_part = {("x",): set(), ("y",): set()}
    for _, request in reads(dist_graph)[-2:]:
        for each in request.rows:
            of_part[each.names] |= {*each.ids.tolist()}
    assert set(range(200)) - own - of_part["x",] == most_asked(counts, own, 64 * 3 + 3 * 20, 20, 1)
    assert of_part["y",] == set(range(200)) - own
    assert store.stats()["cached"] == 3
    nobody = DistFeatureStore(dist_graph, cache_bytes=1000, cache_by={("node", None, "x"): counts * 0})
    assert torch.equal(nobody.read("node", None, "x", ids), graph.node_attributes["x"])


def test_types_share_the_cache_by_count_for_each_byte():
    many, few = ("a", "r", "b"), ("c", "r", "b")
    graph = dp.HeteroCSCGraph.from_edge_index(
        {many: torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]), few: torch.tensor([[0, 1], [0, 0]])},
        {"a": 2, "b": 2, "c": 2},
    )
    graph = dp.HeteroCSCGraph(
        {key: (graph.relation(key).indptr, graph.relation(key).indices) for key in graph.edge_types},
        graph.num_nodes,
        node_attributes={"a": {"x": torch.randn(2, 100)}, "b": {}, "c": {"x": torch.randn(2, 10)}},
    )
    owners = {"a": torch.tensor([1, 1]), "b": torch.tensor([0, 0]), "c": torch.tensor([1, 1])}
    # a: 4 and 1 edges for 400 bytes, c: 1 and 1 for 40; an index and two aligned tensors take 64 + 128 each.
    for room, cached in ((192 + 40, 1), (192 + 80, 2), (192 + 80 + 400, 2), (384 + 80 + 400, 3), (384 + 80 + 800, 4)):
        dist_graph = in_parts(graph, owners, 2, 0)
        store = DistFeatureStore(dist_graph, cache_bytes=room)
        for kind in ("a", "c"):
            found = store.read("node", kind, "x", torch.tensor([1, 0]))
            assert torch.equal(found, graph.node_attributes_of(kind)["x"][[1, 0]])
        assert store.stats()["cached"] == cached
        dist_graph.close()


def test_the_cache_goes_to_processes_as_a_handle(parts_of_graph):
    graph = plain_graph(20_000, 100_000)
    dist_graph = parts_of_graph(2, 0, graph)
    store = DistFeatureStore(dist_graph, cache_bytes="64MB")
    assert store.stats()["cache_bytes"] > 100_000
    packed = pack(store)
    assert len(packed.data) < 50_000
    again = packed.unpack()
    ids = torch.arange(20_000)
    assert torch.equal(again.read("node", None, "x", ids), graph.node_attributes["x"])
    assert again.stats() == store.stats() != DistFeatureStore(dist_graph).stats()
    again.dist_graph.close()
    copied = pickle.loads(pickle.dumps(store))  # to another machine: by value
    assert torch.equal(copied.read("node", None, "x", ids[:99]), graph.node_attributes["x"][:99])
    copied.dist_graph.close()


def test_an_index_that_came_into_unaligned_memory_is_read():
    ids, num_ids = torch.tensor([3, 400, 999]), 1000
    size = _core.IdRank.size_bytes(num_ids)
    memory = torch.zeros(size + 8, dtype=torch.uint8)
    for begin in (0, 8):  # at most one of them is aligned
        lines = memory[begin : begin + size]
        _core.IdRank(ids.numpy(), num_ids).copy_lines(lines.numpy())
        assert HotTable(lines, num_ids, {}).rank.rows(torch.tensor([999, 5, 3]).numpy()).tolist() == [2, -1, 0]
