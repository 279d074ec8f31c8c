"""HeteroItemSet: item sets of several types as one, permuted as one, in minibatches of mixed types."""

import pickle

import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import digests, start_at

import datapipes as dp

PAIRS = torch.tensor([[0, 1], [2, 3], [4, 5]])


def node_sets() -> dict[str, dp.ItemSet]:
    """Three node types; only one has labels, two have a field of the user's own."""
    papers = torch.arange(30) * 3
    return {
        "paper": dp.ItemSet((papers, papers.float(), papers + 0.5), names=("seeds", "labels", "weight")),
        "author": dp.ItemSet((torch.arange(20, dtype=torch.int32), torch.arange(20) + 0.5), names=("seeds", "weight")),
        "venue": dp.ItemSet(5),
    }


def one_by_one(item_sets: dict, order: list[int], batch_size: int) -> list[dict]:
    """The slow and obvious way: list all items by type, in sorted order; go through the order item by item."""
    numbered = [(kind, place) for kind in sorted(item_sets) for place in range(len(item_sets[kind]))]
    minibatches = []
    for first in range(0, len(order), batch_size):
        places = {kind: [] for kind in sorted(item_sets)}
        for number in order[first : first + batch_size]:
            kind, place = numbered[number]
            places[kind].append(place)
        minibatches.append(
            {kind: item_sets[kind].take(torch.tensor(at, dtype=torch.int64)) for kind, at in places.items()}
        )
    return minibatches


def by_type(minibatch: dp.MiniBatch) -> dict:
    """{type: {name: rows}} of the seeds and what belongs to them."""
    fields = {name: getattr(minibatch, name) for name in ("seeds", "labels", "indexes", "timestamps")}
    fields.update(minibatch.extra)
    return {
        kind: {name: rows[kind].tolist() for name, rows in fields.items() if rows is not None and kind in rows}
        for kind in minibatch.seeds
    }


def as_lists(minibatches: list[dict]) -> list[dict]:
    return [
        {kind: {name: rows.tolist() for name, rows in each.items()} for kind, each in minibatch.items()}
        for minibatch in minibatches
    ]


# --- the order


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d:e", "ä"]), st.integers(1, 12), min_size=1),
    st.integers(1, 12),
    st.booleans(),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
)
def test_minibatches_are_those_of_one_permutation_over_all_types(sizes, batch_size, shuffle, seed, epoch):
    item_sets = {
        kind: dp.ItemSet((torch.arange(size) + 100 * number, torch.arange(size)), names=("seeds", "mine"))
        for number, (kind, size) in enumerate(sizes.items())
    }
    sampler = dp.ItemSampler(dp.HeteroItemSet(item_sets), batch_size, shuffle=shuffle, seed=seed)
    num_items = sum(sizes.values())
    key = twin.hop_key(seed, epoch, 0, 0, 0, 0)
    order = twin.permutation(num_items, key) if shuffle else list(range(num_items))
    made = [by_type(minibatch) for minibatch in start_at(sampler, epoch)]
    assert made == as_lists(one_by_one(item_sets, order, batch_size))
    assert [list(minibatch) for minibatch in made] == [sorted(sizes)] * len(made)


@pytest.mark.parametrize("sizes", [(2**16, 1), (1, 70_000, 3)], ids=str)
def test_of_a_large_set_a_minibatch_is_made_from_its_own_places_only(sizes, monkeypatch):
    item_sets = {f"t{number}": dp.ItemSet(size) for number, size in enumerate(sizes)}
    sampler = dp.ItemSampler(dp.HeteroItemSet(item_sets), 500, shuffle=True, seed=3)
    key = twin.hop_key(3, 0, 0, 0, 0, 0)
    asked = []
    at = dp.seeds.item_sampler._core.permutation_at

    def counted(num_items, key, first, count):
        asked.append(count)
        return at(num_items, key, first, count)

    monkeypatch.setattr(dp.seeds.item_sampler._core, "permutation_at", counted)
    made = [by_type(minibatch) for _, minibatch in zip(range(2), start_at(sampler, 0), strict=False)]
    monkeypatch.undo()
    order = [twin.permutation_at(sum(sizes), key, place) for place in range(1000)]
    assert made == as_lists(one_by_one(item_sets, order, 500))
    assert set(asked) == {500}


def test_labels_and_own_fields_are_there_for_the_types_that_have_them():
    sampler = dp.ItemSampler(dp.HeteroItemSet(node_sets()), 16, shuffle=True, seed=1)
    for minibatch in sampler:
        assert list(minibatch.seeds) == ["author", "paper", "venue"]
        assert list(minibatch.labels) == ["paper"]
        assert torch.equal(minibatch.labels["paper"], minibatch.seeds["paper"].float())
        assert {name: sorted(rows) for name, rows in minibatch.extra.items()} == {"weight": ["author", "paper"]}
        for kind, rows in minibatch.extra["weight"].items():
            assert torch.equal(rows, minibatch.seeds[kind] + 0.5)
        assert minibatch.indexes is None


def test_the_order_of_the_dict_does_not_matter():
    one, other = dp.HeteroItemSet(node_sets()), dp.HeteroItemSet(dict(reversed(node_sets().items())))
    assert one.types == other.types == ("author", "paper", "venue")
    assert one.digest() == other.digest()
    assert digests(dp.ItemSampler(one, 9, shuffle=True)) == digests(dp.ItemSampler(other, 9, shuffle=True))


def test_a_type_without_seeds_in_the_minibatch_has_an_empty_tensor_of_its_own_dtype():
    items = dp.HeteroItemSet(node_sets())
    first = next(iter(dp.ItemSampler(items, 1)))
    assert {kind: (rows.tolist(), rows.dtype) for kind, rows in first.seeds.items()} == {
        "author": ([0], torch.int32),
        "paper": ([], torch.int64),
        "venue": ([], torch.int64),
    }
    assert first.labels["paper"].shape == (0,)
    last = list(dp.ItemSampler(items, 1))[-1]
    assert (last.seeds["author"].dtype, last.seeds["author"].shape) == (torch.int32, (0,))
    links = dp.HeteroItemSet({"a:r:b": dp.ItemSet(PAIRS), "a:s:b": dp.ItemSet(PAIRS.int())})
    first = next(iter(dp.ItemSampler(links, 1)))
    assert {kind: (rows.shape, rows.dtype) for kind, rows in first.seeds.items()} == {
        ("a", "r", "b"): ((1, 2), torch.int64),
        ("a", "s", "b"): ((0, 2), torch.int32),
    }


# --- what the item sets may be


def test_masks_and_ints_stand_for_ids_of_their_type():
    items = dp.HeteroItemSet({"a": dp.ItemSet(torch.tensor([False, True, True])), "b": dp.ItemSet(2)})
    taken = items.take(torch.tensor([3, 1, 2, 0]))["seeds"]
    assert {kind: rows.tolist() for kind, rows in taken.items()} == {"a": [2, 1], "b": [1, 0]}


def test_a_text_is_an_edge_type_where_its_seeds_are_pairs_and_a_node_type_where_they_are_ids():
    text = "http://x:y"  # two colons
    assert dp.HeteroItemSet({text: dp.ItemSet(3), "b": dp.ItemSet(2)}).types == ("b", text)
    links = {"a:r:b": dp.ItemSet(PAIRS), ("a", "q", "b"): dp.ItemSet(PAIRS)}
    assert dp.HeteroItemSet(links).types == (("a", "q", "b"), ("a", "r", "b"))


def test_what_item_sets_are_refused(refuses):
    ids, links, table = dp.ItemSet(2), dp.ItemSet(PAIRS), dp.ItemSet(torch.ones(2, 3).long())
    refuses(TypeError, dp.HeteroItemSet, {})
    refuses(TypeError, dp.HeteroItemSet, [("a", ids)])
    refuses(TypeError, dp.HeteroItemSet, ids)
    refuses(TypeError, dp.HeteroItemSet, {"a": torch.arange(2)})
    refuses(ValueError, dp.HeteroItemSet, {"": ids})
    refuses(TypeError, dp.HeteroItemSet, {3: ids})
    refuses(ValueError, dp.HeteroItemSet, {("a", "", "b"): links})
    refuses(ValueError, dp.HeteroItemSet, {("a", "b"): links})
    refuses(ValueError, dp.HeteroItemSet, {"a": links})
    refuses(ValueError, dp.HeteroItemSet, {"http://a:r:b": links})
    refuses(ValueError, dp.HeteroItemSet, {"a": table})
    refuses(ValueError, dp.HeteroItemSet, {("a", "r", "b"): ids})
    refuses(ValueError, dp.HeteroItemSet, {("a", "r", "b"): table})
    refuses(ValueError, dp.HeteroItemSet, {"a": ids, "a:r:b": links})
    refuses(ValueError, dp.HeteroItemSet, {"a:r:b": links, ("a", "r", "b"): links})
    refuses(ValueError, dp.HeteroItemSet, {"a:r:b": table})
    refuses(ValueError, dp.HeteroItemSet, {"paper": dp.ItemSet(torch.ones(4, 3).long())})


def test_what_is_refused_of_items_with_types(refuses):
    items = dp.HeteroItemSet(node_sets())
    for place in (-1, 55, 2**40):
        refuses(IndexError, items.take, torch.tensor([3, place, 4]))
    assert all(len(rows) == 0 for rows in items.take(torch.zeros(0, dtype=torch.int64))["seeds"].values())
    refuses(IndexError, items.__getitem__, 55)
    for of_one_type in (dp.ItemSet(3), dp.ItemSet(torch.arange(3))):
        refuses(IndexError, dp.HeteroItemSet({"paper": of_one_type}).take, torch.tensor([0, 3]))
    empty = dp.HeteroItemSet({"a": dp.ItemSet(2), "b": dp.ItemSet(torch.zeros(4, dtype=torch.bool))})
    refuses(ValueError, dp.ItemSampler, empty, 2)
    refuses(TypeError, dp.DistributedItemSampler, {"paper": dp.ItemSet(5)}, 2, rank=0, world_size=1)


# --- digest, state, ranks


def test_the_digest_sees_types_and_items():
    ids = torch.arange(4)
    sets = [
        {"a": dp.ItemSet(ids), "b": dp.ItemSet(ids)},
        {"a": dp.ItemSet(ids), "c": dp.ItemSet(ids)},
        {"a": dp.ItemSet(ids), "b": dp.ItemSet(ids + 1)},
        {"a": dp.ItemSet(ids)},
        {"a": dp.ItemSet((ids, ids)), "b": dp.ItemSet(ids)},
        {("a", "r", "b"): dp.ItemSet(PAIRS)},
        {("a", "r", "c"): dp.ItemSet(PAIRS)},
    ]
    assert len({dp.HeteroItemSet(each).digest() for each in sets}) == len(sets)
    items = dp.HeteroItemSet(sets[0])
    assert pickle.loads(pickle.dumps(items)).digest() == items.digest() == dp.HeteroItemSet(sets[0]).digest()


def test_an_epoch_goes_on_where_its_state_was_taken_and_not_over_other_items():
    def chain(sets: dict[str, dp.ItemSet]) -> dp.Stage:
        return dp.ItemSampler(dp.HeteroItemSet(sets), 8, shuffle=True, seed=4)

    expected = digests(chain(node_sets()))
    first = chain(node_sets())
    running = iter(first)
    begun = [next(running).digest() for _ in range(3)]
    state = first.state_dict()
    again = chain(node_sets())
    again.load_state_dict(state)
    assert begun + digests(again) == expected
    other = chain({**node_sets(), "venue": dp.ItemSet(torch.arange(5) + 1)})
    with pytest.raises(ValueError, match="item_digest"):
        other.load_state_dict(state)


def test_the_ranks_share_the_minibatches_of_one_process():
    items = dp.HeteroItemSet(node_sets())
    alone = digests(dp.ItemSampler(items, 8, shuffle=True, seed=2))
    ranks = [
        digests(dp.DistributedItemSampler(items, 8, rank=rank, world_size=2, shuffle=True, seed=2)) for rank in (0, 1)
    ]
    together = [each for pair in zip(*ranks, strict=True) for each in pair]
    assert together[: len(alone)] == alone


def test_the_repr_counts_items_and_types():
    assert repr(dp.HeteroItemSet(node_sets())) == "HeteroItemSet(55 items of 3 node types)"
    assert repr(dp.HeteroItemSet({"a:r:b": dp.ItemSet(PAIRS)})) == "HeteroItemSet(3 items of 1 edge types)"


def test_items_are_taken_one_by_one_type_by_type():
    labelled = dp.ItemSet((torch.tensor([5, 6]), torch.tensor([0.5, 0.25])))
    items = dp.HeteroItemSet({"b": labelled, "a": dp.ItemSet(2)})
    expected = [{"a": 0}, {"a": 1}, {"b": (5, 0.5)}, {"b": (6, 0.25)}]
    for found in ([*items], [items[i] for i in range(4)], [items[i - 4] for i in range(4)]):
        assert [{kind: one(item) for kind, item in each.items()} for each in found] == expected
    assert items[:2].keys() == {"a"}
    found = items[torch.tensor([3, 0, 2])]
    assert found["a"].tolist() == [0]
    assert [rows.tolist() for rows in found["b"]] == [[6, 5], [0.25, 0.5]]


def one(item):
    return tuple(each.item() for each in item) if isinstance(item, tuple) else item.item()
