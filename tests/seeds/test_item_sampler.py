"""ItemSampler: one order per epoch, cut into minibatches, each item once."""

import copy
import pickle

import pytest
import torch
import twin
from amounts import ranked
from chi_square import p_value
from hypothesis import given
from hypothesis import strategies as st
from pipelines import digests, start_at

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


# --- by weight, and with replacement

ONE_WEIGHT = st.one_of(st.just(0.0), st.floats(2.0**-30, 2.0**20, width=32))
WEIGHTS = st.lists(ONE_WEIGHT, min_size=1, max_size=40).filter(any)


def drawn_by_the_twin(n, weights, replacement, count, key) -> list[int]:
    if replacement:
        return [twin.drawn_item(n, weights, key, x) for x in range(count)]
    return twin.item_order(weights, count, key) if weights else twin.permutation(n, key)[:count]


@given(WEIGHTS, st.booleans(), st.integers(1, 60), st.integers(1, 20), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_items_are_drawn_by_weight_as_the_page_says(weights, replacement, count, batch_size, seed, epoch):
    n, drawable = len(weights), sum(twin.grows(twin.sums_of(weights), i) for i in range(len(weights)))
    count = count if replacement else min(count, drawable)
    options = {"weights": torch.tensor(weights), "replacement": replacement, "seed": seed}
    made = list(start_at(dp.ItemSampler(dp.ItemSet(n), batch_size, num_items=count, **options), epoch))
    key = twin.hop_key(seed, epoch, 0, 0, 0, 0)
    assert order_of(made) == drawn_by_the_twin(n, weights, replacement, count, key)
    assert [len(minibatch.seeds) for minibatch in made[:-1]] == [batch_size] * (-(-count // batch_size) - 1)
    assert dp.ItemSampler(dp.ItemSet(n), batch_size, **options).num_items == (n if replacement else drawable)


@given(st.integers(1, 60), st.integers(1, 60), st.booleans(), st.integers(0, 2**64 - 1))
def test_items_are_drawn_without_weights_as_the_page_says(n, count, replacement, seed):
    count = count if replacement else min(n, count)
    options = {"replacement": replacement, "shuffle": not replacement, "num_items": count, "seed": seed}
    made = order_of(dp.ItemSampler(dp.ItemSet(n), 7, **options))
    assert made == drawn_by_the_twin(n, None, replacement, count, twin.hop_key(seed, 0, 0, 0, 0, 0))
    if not replacement:
        assert order_of(dp.ItemSampler(dp.ItemSet(n), 7, num_items=count)) == list(range(count))


def test_the_order_of_weights_that_reject_many_draws_is_that_of_the_page():
    weights = [2.0 ** (-i // 3 % 50) for i in range(150)]
    made = order_of(dp.ItemSampler(dp.ItemSet(150), 32, weights=torch.tensor(weights), seed=4))
    assert made == twin.item_order(weights, 150, twin.hop_key(4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("replacement", [False, True])
def test_items_of_all_types_are_drawn_by_weight_as_one_set(replacement):
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    sets = {kind: dp.ItemSet(torch.arange(60).reshape(30, 2)) for kind in (cites, writes)}
    weights = {"paper:cites:paper": torch.arange(30).half() % 4, writes: torch.zeros(30)}
    weights[writes][3:9] = 0.7
    sampler = dp.ItemSampler(dp.HeteroItemSet(sets), 8, weights=weights, replacement=replacement, seed=6)
    together = [*weights[writes].tolist(), *weights["paper:cites:paper"].tolist()]  # in sorted order of the types
    places = drawn_by_the_twin(60, together, replacement, sampler.num_items, twin.hop_key(6, 0, 0, 0, 0, 0))
    for minibatch in sampler:
        batch = places[8 * minibatch.index : 8 * minibatch.index + 8]
        assert (minibatch.seeds[writes][:, 0] // 2).tolist() == [place for place in batch if place < 30]
        assert (minibatch.seeds[cites][:, 0] // 2).tolist() == [place - 30 for place in batch if place >= 30]


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 4.0, 2.5, 0.5, 2.0])], ids=["uniform", "weights"])
def test_draws_with_replacement_are_as_frequent_as_their_weights(weights):
    sampler = dp.ItemSampler(dp.ItemSet(6), 1000, weights=weights, replacement=True, num_items=30_000, seed=8)
    chances = torch.ones(6) / 6 if weights is None else weights / weights.sum()
    assert likelihood(order_of(sampler), chances) > 1e-4


def test_the_order_by_weight_begins_with_each_item_as_often_as_its_weight_says():
    weights = torch.tensor([1.0, 0.0, 4.0, 2.5, 0.5, 2.0])
    sampler = dp.ItemSampler(dp.ItemSet(6), 2, weights=weights, num_items=2, seed=8)
    orders = [order_of(start_at(sampler, epoch)) for epoch in range(1000)]
    assert likelihood([order[0] for order in orders], weights / 10) > 1e-4
    behind_2 = [order[1] for order in orders if order[0] == 2]
    weights[2] = 0
    assert likelihood(behind_2, weights / 6) > 1e-4


def likelihood(drawn: list[int], chances: torch.Tensor) -> float:
    counts = torch.bincount(torch.tensor(drawn), minlength=len(chances)).double()
    expected = chances[chances > 0].double() * len(drawn)
    assert counts[chances == 0].sum() == 0
    return p_value(float(((counts[chances > 0] - expected) ** 2 / expected).sum()), len(expected) - 1)


OF_MANY = torch.arange(9000).double() % 7  # whose sums workers share


@pytest.mark.parametrize("options", [{}, {"replacement": True, "num_items": 300}], ids=["order", "replacement"])
def test_workers_and_a_resumed_run_draw_alike(options):
    def loader(num_workers: int = 0, **other) -> dp.DataLoader:
        how = {"weights": OF_MANY, "num_items": 200, "seed": 5, **options, **other}
        return dp.DataLoader(dp.ItemSampler(dp.ItemSet(9000), 64, **how), num_workers=num_workers)

    expected = digests(loader())
    assert digests(loader(2)) == expected
    first = loader()
    begun = iter(first)
    begin = digests([next(begun), next(begun)])
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert begin + digests(second) == expected
    for other, name in (({"weights": OF_MANY + 1}, "weights_digest"), ({"num_items": 250}, "num_items")):
        with pytest.raises(ValueError, match=name):
            loader(**other).load_state_dict(state)


def test_weights_may_be_a_field_of_the_items_and_copies_share_the_sums():
    weights = torch.tensor([0.5, 0.0, 2.0, 1.0])
    items = dp.ItemSet((torch.arange(4), weights), names=("seeds", "w"))
    sampler = dp.ItemSampler(items, 2, weights="w", replacement=True, num_items=50)
    plain = dp.ItemSampler(items, 2, weights=weights.double(), replacement=True, num_items=50)
    assert digests(sampler) == digests(plain) == digests(pickle.loads(pickle.dumps(sampler)))
    assert sampler.fingerprint() == plain.fingerprint()
    assert copy.copy(sampler).weights is sampler.weights
    minibatch = next(iter(sampler))
    assert torch.equal(minibatch.extra["w"], weights[minibatch.seeds])
    shown = "batch_size=2, shuffle=False, drop_last=False, seed=0"
    assert f"{shown}, weights=<weights>, num_items=50, replacement=True)" in repr(sampler)
    assert repr(dp.ItemSampler(items, 2)).endswith(f"{shown})")
    assert sampler.fingerprint().keys() - dp.ItemSampler(items, 2).fingerprint().keys() == {
        *("weights_digest", "num_items", "replacement")
    }


def test_what_weights_of_items_refuse(refuses):
    items = dp.ItemSet((torch.arange(4), torch.arange(4)), names=("seeds", "w"))
    typed = dp.HeteroItemSet({"paper": dp.ItemSet(3), "author": dp.ItemSet(2)})
    of_types = {"paper": torch.ones(3), "author": torch.zeros(2)}
    weights = torch.tensor([0.0, 2.0, 1.0, 0.0])

    def sampler(item_set=items, **options) -> dp.ItemSampler:
        return dp.ItemSampler(item_set, 2, **options)

    for wrong in (torch.ones(3), torch.ones(4, 1), torch.tensor([1, -1.0, 1, 1]), torch.tensor([1, 1, 1, torch.inf])):
        refuses(ValueError, sampler, weights=wrong)
    refuses(ValueError, sampler, weights=torch.zeros(4))
    refuses(ValueError, sampler, weights=torch.full((4,), 1e308, dtype=torch.float64))
    refuses(ValueError, sampler, weights="other")
    for wrong in (torch.ones(4).long(), "w", of_types, 3):
        refuses(TypeError, sampler, weights=wrong)
    refuses(TypeError, sampler, typed, weights=torch.ones(5))
    refuses(ValueError, sampler, typed, weights={"paper": torch.ones(3)})
    refuses(ValueError, sampler, typed, weights={**of_types, "venue": torch.ones(1)})
    refuses(ValueError, sampler, typed, weights={**of_types, "author": torch.tensor([1.0, torch.nan])})
    refuses(ValueError, sampler, typed, weights="w")
    refuses(ValueError, sampler, weights=weights, shuffle=True)
    refuses(ValueError, sampler, replacement=True, shuffle=True)
    refuses(TypeError, sampler, replacement=1)
    refuses(ValueError, sampler, num_items=5)
    refuses(ValueError, sampler, num_items=3, weights=weights)
    refuses(ValueError, sampler, num_items=0, replacement=True)
    refuses(TypeError, sampler, num_items=2.0)
    refuses(ValueError, sampler, num_items=1, drop_last=True)
    made = sampler(weights=weights)
    refuses(ValueError, sampler, dp.ItemSet(5), weights=made.weights)
    weights[0] = 1
    with refuses(ValueError):
        next(iter(made))
