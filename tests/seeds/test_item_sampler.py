"""ItemSampler: one order per epoch, cut into minibatches, each item once."""

import pytest
import torch
import twin
from amounts import ranked
from hypothesis import given
from hypothesis import strategies as st
from pipelines import refused, start_at

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
        with refused(ValueError, stage="item_sampler", found=f"of {num_items} items", allowed="at least one whole"):
            dp.ItemSampler(items, batch_size, drop_last=True)
        return
    sampler = dp.ItemSampler(items, batch_size, drop_last=True)
    assert [len(minibatch.seeds) for minibatch in sampler] == [batch_size] * whole == [batch_size] * len(sampler)


def test_labels_and_times_follow_their_seeds():
    ids = torch.arange(50) * 3
    items = dp.ItemSet((ids, ids.float() + 0.5, ids.reshape(50, 1) + 7, ids * 10))
    for minibatch in dp.ItemSampler(items, 8, shuffle=True, seed=1):
        assert torch.equal(minibatch.labels, minibatch.seeds + 0.5)
        assert torch.equal(minibatch.indexes[:, 0], minibatch.seeds + 7)
        assert torch.equal(minibatch.timestamps, minibatch.seeds * 10)


def test_fields_of_the_users_own_follow_their_seeds():
    ids = torch.arange(50) * 3
    items = dp.ItemSet((ids, ids / 2, ids.reshape(50, 1) + 7), names=("seeds", "weight", "labels"))
    made = list(dp.ItemSampler(items, 8, shuffle=True, seed=1))
    for minibatch in made:
        assert list(minibatch.extra) == ["weight"]
        assert torch.equal(minibatch.extra["weight"], minibatch.seeds / 2)
        assert torch.equal(minibatch.labels[:, 0], minibatch.seeds + 7)
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


@pytest.mark.parametrize(
    ("change", "error", "found", "allowed"),
    [
        ({"batch_size": 0}, ValueError, "got 0", "1 or more"),
        ({"batch_size": -1}, ValueError, "got -1", "1 or more"),
        ({"batch_size": 2.0}, TypeError, r"2\.0 \(float\)", "an int"),
        ({"batch_size": True}, TypeError, r"True \(bool\)", "an int"),
        ({"shuffle": 1}, TypeError, "got 1", "True or False"),
        ({"drop_last": "no"}, TypeError, "'no'", "True or False"),
        ({"seed": -1}, ValueError, "got -1", r"\[0, 18446744073709551615\]"),
        ({"seed": 2**64}, ValueError, str(2**64), r"\[0, 18446744073709551615\]"),
        ({"seed": 0.5}, TypeError, r"0\.5", "an int"),
        ({"seed": None}, TypeError, "None", "an int"),
        ({"item_set": torch.arange(3)}, TypeError, "got Tensor", "must be an ItemSet"),
        ({"item_set": dp.ItemSet(0)}, ValueError, "0 items", "at least 1"),
    ],
    ids=str,
)
def test_arguments_that_are_not_allowed_are_refused(change, error, found, allowed):
    with refused(error, stage="item_sampler", found=found, allowed=allowed):
        dp.ItemSampler(**{"item_set": dp.ItemSet(10), "batch_size": 2, **change})
