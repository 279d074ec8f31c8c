"""A FeatureFetcher over a store that reads asynchronously: the same bits, checks and errors; several in flight."""

import asyncio

import pytest
import torch
from pipelines import sampled, small_store

import datapipes as dp
from datapipes.chain.asynchronous import is_async

BOUND_S = 20.0


class AsyncStore(dp.FeatureStore):
    """Answers later requests first; its first reads wait until `concurrency` of them are in flight."""

    reads_async = True
    concurrency = 3

    def __init__(self, features):
        super().__init__(features)
        self.now = self.calls = 0
        self.met = asyncio.Event()

    async def read_many_async(self, requests):
        self.now += 1
        self.calls += 1
        if self.now == self.concurrency:
            self.met.set()
        await asyncio.wait_for(self.met.wait(), BOUND_S)
        for _ in range(20 - self.calls):
            await asyncio.sleep(0)
        self.now -= 1
        return self.read_many(requests)


class TooFew(AsyncStore):
    def read_many(self, requests):
        return super().read_many(requests)[:-1]


class ShortRows(AsyncStore):
    def read_many(self, requests):
        return [rows[:-1] for rows in super().read_many(requests)]


class LostRow(AsyncStore):
    def read_many(self, requests):
        raise IndexError("node feature 'feat': id 99 has no row")


def over(store):
    return sampled().fetch_feature(store, ["feat"], ["weight"])


def digests(stage):
    return [minibatch.digest() for minibatch in stage]


def test_the_store_decides_whether_a_fetch_is_asynchronous():
    here, far = over(small_store()), over(AsyncStore(small_store()))
    assert (is_async(here), is_async(far)) == (False, True)
    assert far.concurrency == 3
    assert is_async(far.with_sources(far.source))


def test_minibatches_are_the_same_and_several_are_read_at_once():
    store = AsyncStore(small_store())
    assert digests(over(store)) == digests(over(small_store()))
    assert store.calls == 6  # one for each minibatch


@pytest.mark.parametrize("store", [TooFew, ShortRows, LostRow])
def test_checks_are_those_of_a_synchronous_fetch(store):
    class Synchronous(store):
        reads_async = False

    texts = []
    for given in (Synchronous(small_store()), store(small_store())):
        given.met.set()
        with pytest.raises((ValueError, IndexError), match="fetch_feature: ") as caught:
            list(over(given))
        texts.append((type(caught.value), str(caught.value)))
    assert texts[0] == texts[1]


def test_the_base_reads_in_a_thread_beside_the_loop():
    store, ids = small_store(), torch.tensor([3, 1])
    requests = [("node", None, "feat", ids)]
    assert torch.equal(asyncio.run(store.read_many_async(requests))[0], store.read_many(requests)[0])


def test_a_transform_of_a_subclass_is_called_also_over_such_a_store():
    class Doubled(dp.FeatureFetcher):
        def transform(self, minibatch):
            fetched = super().transform(minibatch)
            return fetched.replace(node_features={"feat": 2 * fetched.node_features["feat"]})

    wanted = [2 * minibatch.node_features["feat"] for minibatch in over(small_store())]
    found = [m.node_features["feat"] for m in Doubled(sampled(), AsyncStore(small_store()), ["feat"])]
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
