"""CPUCachedFeature: the bits of the feature under it, for any policy and size; what leaves is as SIEVE and LRU say."""

import collections
import pickle

import numpy as np
import pytest
import torch
from amounts import examples
from at_once import at_once
from counted_feature import Counted
from hypothesis import given
from hypothesis import strategies as st
from pipelines import items, small_graph

import datapipes as dp
from datapipes import _core
from datapipes.base import sizes

POLICIES = ["sieve", "lru", "static"]


def bytes_for(slots, row_bytes, policy, count):
    return slots * _core.RowCache.bytes_of_slot(row_bytes) + count * _core.RowCache.bytes_of_id(policy)


class Sieve:
    """The plain twin: which of the ids that are asked for one after the other are there."""

    def __init__(self, slots):
        self.slots, self.queue, self.asked, self.hand = slots, [], {}, 0  # the oldest first
        self.counts = collections.Counter()

    def has(self, ids):
        if max(self.counts.values(), default=0) == 255:
            self.counts = collections.Counter({each: count // 2 for each, count in self.counts.items()})
        for each in ids:
            self.counts[each] = min(self.counts[each] + 1, 255)
        found = [each in self.asked for each in ids]
        for each in ids:
            if each in self.asked:
                self.asked[each] = True
        for each, there in zip(ids, found, strict=True):
            if not there:
                self._put(each)
        return found

    def _put(self, new):
        if len(self.queue) == self.slots:
            while self.asked[self.queue[self.hand]]:
                self.asked[self.queue[self.hand]] = False
                self.hand = (self.hand + 1) % self.slots
            if self.counts[self.queue[self.hand]] >= self.counts[new]:
                self.hand = (self.hand + 1) % self.slots
                return
            del self.asked[self.queue.pop(self.hand)]
            if self.hand == len(self.queue):
                self.hand = 0
        self.queue.append(new)
        self.asked[new] = False


class Lru:
    def __init__(self, slots):
        self.slots, self.order = slots, collections.OrderedDict()

    def has(self, ids):
        found = [each in self.order for each in ids]
        for each in ids:
            if each in self.order:
                self.order.move_to_end(each)
        for each, there in zip(ids, found, strict=True):
            if not there:
                if len(self.order) == self.slots:
                    self.order.popitem(last=False)
                self.order[each] = None
        return found


def traces(count):
    """Minibatches of distinct ids, a few of them often."""
    often = st.integers(0, max(count // 8, 1) - 1)
    return st.lists(st.lists(often | st.integers(0, count - 1), max_size=20, unique=True), max_size=30)


@examples(300)
@given(slots=st.integers(1, 40), trace=traces(60))
@pytest.mark.parametrize(("policy", "twin"), [("sieve", Sieve), ("lru", Lru)])
def test_what_leaves_is_what_the_twin_says(policy, twin, slots, trace):
    rows = torch.arange(60 * 3, dtype=torch.float32).reshape(60, 3)
    feature, expected = Counted(rows), twin(slots)
    cached = dp.CPUCachedFeature(feature, bytes_for(slots, 12, policy, 60), policy)
    for ids in trace:
        feature.asked.clear()
        assert torch.equal(cached.read(torch.tensor(ids, dtype=torch.int64)), rows[ids])
        assert feature.asked == [each for each, there in zip(ids, expected.has(ids), strict=True) if not there]


def test_full_counts_are_halved():
    rows = torch.rand(8, 2)
    feature, expected = Counted(rows), Sieve(2)
    cached = dp.CPUCachedFeature(feature, bytes_for(2, 8, "sieve", 8))
    generator = torch.Generator().manual_seed(0)
    for turn in range(1200):
        ids = [turn // 400 % 8, *torch.randint(8, (2,), generator=generator).tolist()]
        ids = [*dict.fromkeys(ids)]
        feature.asked.clear()
        cached.read(torch.tensor(ids))
        assert feature.asked == [each for each, there in zip(ids, expected.has(ids), strict=True) if not there]


def test_a_count_stays_at_its_bound_within_one_minibatch():
    feature = Counted(torch.rand(8, 2))
    cached = dp.CPUCachedFeature(feature, bytes_for(1, 8, "sieve", 8))
    for ids in ([0] * 256, [1]):
        cached.read(torch.tensor(ids))
    feature.asked.clear()
    cached.read(torch.tensor([0]))
    assert feature.asked == []  # 1 did not take its place


def test_a_feature_without_rows_can_be_cached(refuses):
    cached = dp.CPUCachedFeature(dp.TensorFeature(torch.zeros(0, 2)), 1000)
    assert cached.read(torch.empty(0, dtype=torch.int64)).shape == (0, 2)
    refuses(IndexError, cached.read, torch.tensor([0]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slots", [1, 37, 500])
@pytest.mark.parametrize("stored_as", [None, "float16", "int8"])
def test_any_policy_size_and_form_gives_the_bits_of_the_feature(policy, slots, stored_as):
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand((500, 4, 5), generator=generator)
    counts = torch.randint(9, (500,), generator=generator) if policy == "static" else None
    feature = dp.TensorFeature(rows, stored_as=stored_as)
    row_bytes = 20 * feature._stored_dtype.itemsize
    cached = dp.CPUCachedFeature(feature, bytes_for(slots, row_bytes, policy, 500), policy, counts=counts)
    for _ in range(20):
        ids = torch.randint(500, (100,), generator=generator)  # with repeats
        assert torch.equal(cached.read(ids), feature.read(ids))
        out = torch.empty(100, 4, 5)
        assert cached.read(ids.int(), out) is out
        assert torch.equal(out, feature.read(ids))
    stats = cached.stats()
    assert stats["hits"] + stats["misses"] == 20 * 200
    assert stats["hits"] > 0
    assert stats["cached"] <= slots


def test_a_static_cache_has_the_rows_with_the_most_accesses():
    rows = torch.arange(20.0).reshape(10, 2)
    feature = Counted(rows)
    counts = torch.tensor([0, 5, 5, 1, 9, 0, 0, 5, 0, 2])
    cached = dp.CPUCachedFeature(feature, bytes_for(3, 8, "static", 10), "static", counts=counts)
    assert feature.asked == [1, 2, 4]  # of equal ones those with the smaller ids
    for _ in range(2):
        feature.asked.clear()
        cached.read(torch.arange(10))
        assert feature.asked == [0, 3, 5, 6, 7, 8, 9]
    few = dp.CPUCachedFeature(Counted(rows), bytes_for(10, 8, "static", 10), "static", counts=counts)
    assert few.stats()["cached"] == 6  # what was never asked for is not read


@examples(200)
@given(counts=st.lists(st.integers(0, 6), min_size=1, max_size=40), slots=st.integers(1, 45))
def test_a_static_cache_keeps_what_a_sort_puts_first(counts, slots):
    feature = Counted(torch.rand(len(counts), 2))
    dp.CPUCachedFeature(feature, bytes_for(slots, 8, "static", len(counts)), "static", counts=torch.tensor(counts))
    order = sorted((-count, id_) for id_, count in enumerate(counts) if count > 0)
    assert feature.asked == sorted(id_ for _, id_ in order[:slots])


def test_features_share_a_cache():
    one, other = Counted(torch.rand(50, 4)), Counted(torch.rand(70, 4))
    cached = dp.CPUCachedFeature(one, bytes_for(200, 16, "sieve", 120))
    beside = dp.CPUCachedFeature(other, share_with=cached)
    again = dp.CPUCachedFeature(other, share_with=beside)
    for _ in range(2):
        for feature, rows in ((cached, one), (beside, other), (again, other)):
            ids = torch.arange(feature.count)
            assert torch.equal(feature.read(ids), rows._rows.read(ids))
    assert (len(one.asked), len(other.asked)) == (50, 140)
    assert cached.stats()["cached"] == 190


@pytest.mark.parametrize("name", ["max_bytes", "policy"])
def test_what_a_cache_was_built_with_is_read_and_not_set(name):
    feature = dp.TensorFeature(torch.rand(10, 4))
    cached = dp.CPUCachedFeature(feature, "1MB", "lru")
    for cache in (cached, dp.CPUCachedFeature(feature, share_with=cached)):
        with pytest.raises(AttributeError):
            setattr(cache, name, getattr(cache, name))
        assert (cache.max_bytes, cache.policy) == (2**20, "lru")


def test_threads_may_read_at_once():
    rows = torch.rand(5000, 16)
    cached = dp.CPUCachedFeature(dp.TensorFeature(rows), bytes_for(500, 64, "sieve", 500))

    def is_right(seed):
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.randint(5000, (400,), generator=generator) for _ in range(30)]
        return all(torch.equal(cached.read(ids), rows[ids]) for ids in draws)

    assert all(at_once(is_right, 6))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_loader_gives_the_same_minibatches(tmp_path, num_workers, policy):
    graph = small_graph()
    np.save(tmp_path / "x.npy", torch.rand(graph.num_nodes, 8).numpy())
    feature = dp.DiskFeature(tmp_path / "x.npy")

    def loader(feature):
        pipe = items().sample_neighbor(graph, [3, 3])
        store = dp.FeatureStore({("node", None, "x"): feature})
        return dp.DataLoader(pipe.fetch_feature(store, ["x"]), num_workers=num_workers)

    counts = None
    if policy == "static":
        counts = dp.count_accesses(loader(feature))["node", None, "x"]
        assert counts.sum() > 0
    cached = dp.CPUCachedFeature(feature, bytes_for(20, 32, policy, 100), policy, counts=counts)
    with loader(cached) as one, loader(feature) as other:
        for _ in range(2):
            assert [each.digest() for each in one] == [each.digest() for each in other]
        stats = one.stats()
    assert cached.stats()["hits"] > 0
    assert any("node feature 'x': hits" in row for row in stats.values())


def test_counts_of_two_fetches_come_from_one_pass_that_fetches_nothing():
    graph = small_graph()
    first, second = (Counted(torch.rand(graph.num_nodes, 2)) for _ in range(2))
    store = dp.FeatureStore({("node", None, "x"): first, ("node", None, "y"): second})
    pipe = items().sample_neighbor(graph, [3])
    expected = torch.zeros(graph.num_nodes, dtype=torch.int64)
    for minibatch in pipe:
        expected[minibatch.input_nodes.long()] += 1
    counts = dp.count_accesses(dp.DataLoader(pipe.fetch_feature(store, ["x"]).fetch_feature(store, ["y"])))
    assert [torch.equal(counts["node", None, name], expected) for name in ("x", "y")] == [True, True]
    assert first.asked == second.asked == []


def test_what_a_cache_refuses(refuses, monkeypatch):
    feature = dp.TensorFeature(torch.rand(10, 4))
    refuses(TypeError, dp.CPUCachedFeature, feature)
    refuses(TypeError, dp.CPUCachedFeature, torch.rand(3, 3), "1MB")
    for too_few in (10, 60):
        refuses(ValueError, dp.CPUCachedFeature, feature, too_few)
    refuses(ValueError, dp.CPUCachedFeature, feature, "1MB", "fifo")
    refuses(ValueError, dp.CPUCachedFeature, feature, "1MB", "static")
    refuses(ValueError, dp.CPUCachedFeature, feature, "1MB", "lru", counts=torch.ones(10, dtype=torch.int64))
    refuses(ValueError, dp.CPUCachedFeature, feature, "1MB", "static", counts=torch.ones(9, dtype=torch.int64))
    cached = dp.CPUCachedFeature(feature, "1MB")
    refuses(ValueError, dp.CPUCachedFeature, dp.TensorFeature(torch.rand(10, 5)), share_with=cached)
    refuses(ValueError, dp.CPUCachedFeature, feature, "1MB", share_with=cached)
    refuses(ValueError, dp.CPUCachedFeature, feature, policy="lru", share_with=cached)
    refuses(TypeError, pickle.dumps, cached)
    for outside in (-1, 10):
        refuses(IndexError, cached.read, torch.tensor([outside]))
    refuses(ValueError, dp.count_accesses, items())
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (8000, "the test"))
    refuses(MemoryError, dp.CPUCachedFeature, dp.TensorFeature(torch.zeros(1000, 2)), "1GB")


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_cache_goes_to_no_worker(context):
    graph = small_graph()
    cached = dp.CPUCachedFeature(dp.TensorFeature(torch.rand(graph.num_nodes, 4)), "1MB")
    pipe = items().sample_neighbor(graph, [2]).fetch_feature(dp.FeatureStore({("node", None, "x"): cached}), ["x"])
    with (
        pytest.raises(TypeError, match="a cache belongs to one process and cannot go to a worker"),
        dp.DataLoader(pipe, 1, cut="end", multiprocessing_context=context) as loader,
    ):
        next(iter(loader))
