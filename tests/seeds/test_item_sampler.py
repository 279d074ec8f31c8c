"""ItemSampler: one order per epoch, cut into minibatches, each item once."""

import pytest
import torch
import twin
from amounts import ranked
from hypothesis import given
from hypothesis import strategies as st
from pipelines import start_at

import datapipes as dp


def order_of(minibatches) -> list[int]:
    return [seed for minibatch in minibatches for seed in minibatch.seeds.tolist()]


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_an_epoch_holds_each_item_once_in_the_order_of_the_page(num_items, batch_size, shuffle, seed, epoch):
    sampler = dp.ItemSampler(dp.ItemSet(num_items), batch_size, shuffle=shuffle, seed=seed)
    made = list(start_at(sampler, epoch))
    key = twin.hop_key(seed, epoch, 0, 0, 0, 0)
    assert order_of(made) == (twin.permutation(num_items, key) if shuffle else list(range(num_items)))
    assert [len(minibatch.seeds) for minibatch in made[:-1]] == [batch_size] * (len(made) - 1)
    assert len(sampler) == len(made) == -(-num_items // batch_size)
    assert [(minibatch.epoch, minibatch.index) for minibatch in made] == [(epoch, g) for g in range(len(made))]


@given(st.integers(1, 60), st.integers(1, 20))
def test_a_short_last_minibatch_is_left_out_on_request(num_items, batch_size):
    items = dp.ItemSet(num_items)
    whole = num_items // batch_size
    if whole == 0:
        with pytest.raises(ValueError, match=f"of {num_items} items.* at least one whole"):
            dp.ItemSampler(items, batch_size, drop_last=True)
        return
    sampler = dp.ItemSampler(items, batch_size, drop_last=True)
    assert [len(minibatch.seeds) for minibatch in sampler] == [batch_size] * whole == [batch_size] * len(sampler)


def test_fields_follow_their_seeds():
    ids = torch.arange(50) * 3
    items = dp.ItemSet(
        (ids, ids.float() + 0.5, ids.reshape(50, 1) + 7, ids * 10, ids / 2),
        names=("seeds", "labels", "indexes", "timestamps", "weight"),
    )
    for minibatch in dp.ItemSampler(items, 8, shuffle=True, seed=1):
        assert torch.equal(minibatch.labels, minibatch.seeds + 0.5)
        assert torch.equal(minibatch.indexes[:, 0], minibatch.seeds + 7)
        assert torch.equal(minibatch.timestamps, minibatch.seeds * 10)
        assert list(minibatch.extra) == ["weight"]
        assert torch.equal(minibatch.extra["weight"], minibatch.seeds / 2)
    plain = next(iter(dp.ItemSampler(dp.ItemSet(ids), 8)))
    without = plain.replace(extra=None)  # as older code says it
    assert plain.extra == without.extra == dp.MiniBatch.from_message(plain.to_message()).extra == {}
    assert (without.digest(), "extra" in repr(plain)) == (plain.digest(), False)


def test_pairs_of_a_transposed_edge_index_stay_together():
    edge_index = torch.stack((torch.arange(30), torch.arange(30) * 2))
    made = list(dp.ItemSampler(dp.ItemSet(edge_index.t()), 7, shuffle=True))
    pairs = torch.cat([minibatch.seeds for minibatch in made])
    assert sorted(pairs.tolist()) == edge_index.t().tolist()
    assert all(minibatch.seeds.is_contiguous() for minibatch in made)


def test_epochs_and_seeds_give_orders_of_their_own():
    sampler = dp.ItemSampler(dp.ItemSet(50), 8, shuffle=True, seed=1)
    orders = [order_of(sampler) for _ in range(3)]
    orders.append(order_of(dp.ItemSampler(dp.ItemSet(50), 8, shuffle=True, seed=2)))
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize("num_items", ranked([2**16 + 1, 2**16, 100_003], 1))
def test_a_large_set_is_shuffled_as_the_page_says(num_items):
    sampler = dp.ItemSampler(dp.ItemSet(num_items), 9_999, shuffle=True, seed=3)
    made = list(start_at(sampler, 2))
    order = torch.cat([minibatch.seeds for minibatch in made])
    assert torch.equal(order.sort().values, torch.arange(num_items))
    key = twin.hop_key(3, 2, 0, 0, 0, 0)
    if num_items > 2**16:
        for place in [*range(0, num_items, 9_973), num_items - 1]:
            assert int(order[place]) == twin.permutation_at(num_items, key, place)
    else:
        assert order.tolist() == twin.permutation(num_items, key)


def test_changing_a_minibatch_does_not_change_the_next_epoch():
    sampler = dp.ItemSampler(dp.ItemSet(10), 5, shuffle=True)
    expected = [order_of(start_at(sampler, epoch)) for epoch in (0, 0)]
    for minibatch in start_at(sampler, 0):
        minibatch.seeds.zero_()
    assert [order_of(start_at(sampler, 0)), expected[1]] == expected


def test_two_epochs_may_run_side_by_side_over_one_item_set():
    items = dp.ItemSet(20)
    one, other = (iter(dp.ItemSampler(items, 3, shuffle=True, seed=seed)) for seed in (1, 2))
    together = [(next(one).seeds.tolist(), next(other).seeds.tolist()) for _ in range(7)]
    alone = [[minibatch.seeds.tolist() for minibatch in dp.ItemSampler(items, 3, shuffle=True, seed=s)] for s in (1, 2)]
    assert [list(column) for column in zip(*together, strict=True)] == alone


def test_what_an_item_sampler_refuses(refuses):
    def sampler(**changes) -> dp.ItemSampler:
        return dp.ItemSampler(**{"item_set": dp.ItemSet(10), "batch_size": 2, **changes})

    refuses(ValueError, sampler, batch_size=0)
    refuses(ValueError, sampler, batch_size=-1)
    refuses(TypeError, sampler, batch_size=2.0)
    refuses(TypeError, sampler, batch_size=True)
    refuses(TypeError, sampler, shuffle=1)
    refuses(TypeError, sampler, drop_last="no")
    refuses(ValueError, sampler, drop_last=True, batch_size=11)
    refuses(ValueError, sampler, seed=-1)
    refuses(ValueError, sampler, seed=2**64)
    refuses(TypeError, sampler, seed=0.5)
    refuses(TypeError, sampler, seed=None)
    refuses(TypeError, sampler, item_set=torch.arange(3))
    refuses(TypeError, sampler, item_set={"paper": dp.ItemSet(5)})
    refuses(ValueError, sampler, item_set=dp.ItemSet(0))
