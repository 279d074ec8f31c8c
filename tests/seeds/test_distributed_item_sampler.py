"""DistributedItemSampler: the ranks together make what one process makes alone."""

import pickle
import re
import threading
from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import digests, sampled, start_at
from rank_group import RankGroup

import datapipes as dp
from datapipes.processes import ranks


def ranks_of(num_items: int, batch_size: int, world_size: int, **arguments) -> list[dp.DistributedItemSampler]:
    return [
        dp.DistributedItemSampler(dp.ItemSet(num_items), batch_size, rank=rank, world_size=world_size, **arguments)
        for rank in range(world_size)
    ]


def alone(num_items: int, batch_size: int, **arguments) -> dp.ItemSampler:
    return dp.ItemSampler(dp.ItemSet(num_items), batch_size, **arguments)


def interleaved(runs: list[list[dp.MiniBatch]]) -> list[dp.MiniBatch]:
    """The minibatches of all ranks, round by round; every rank has the same number."""
    return [minibatch for turn in zip(*runs, strict=True) for minibatch in turn]


# --- the share of a rank


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 5))
def test_the_ranks_interleave_to_the_order_of_one_process(num_items, batch_size, world_size, shuffle, drop_last, epoch):
    if drop_last and num_items < batch_size:
        return
    arguments = {"shuffle": shuffle, "drop_last": drop_last, "seed": 9}
    expected = list(start_at(alone(num_items, batch_size, **arguments), epoch))
    ranks = ranks_of(num_items, batch_size, world_size, **arguments)
    made = interleaved([list(start_at(rank, epoch)) for rank in ranks])
    assert digests(made[: len(expected)]) == digests(expected)
    assert [minibatch.index for minibatch in made] == list(range(len(made)))
    assert len(made) == -(-len(expected) // world_size) * world_size
    for padding in made[len(expected) :]:  # from the start of the order again, under a new index
        assert torch.equal(padding.seeds, expected[padding.index % len(expected)].seeds)
    assert [len(rank) for rank in ranks] == [len(made) // world_size] * world_size


@pytest.mark.parametrize("options", [{}, {"replacement": True, "num_items": 47}], ids=["order", "replacement"])
def test_ranks_share_the_items_that_are_drawn_by_weight(options):
    options = {"batch_size": 5, "weights": torch.arange(30).double() % 4, "seed": 3, **options}

    def of_ranks(**share) -> list[dp.DistributedItemSampler]:
        return [
            dp.DistributedItemSampler(dp.ItemSet(30), rank=rank, world_size=4, **options, **share) for rank in range(4)
        ]

    expected = list(dp.ItemSampler(dp.ItemSet(30), **options))
    ranks = of_ranks()
    made = interleaved([list(rank) for rank in ranks])
    assert digests(made[: len(expected)]) == digests(expected)
    assert ranks[0].num_batches == len(expected) < len(ranks[0]) * 4 == len(made)
    assert torch.equal(made[len(expected)].seeds, expected[0].seeds)
    own = [[minibatch.seeds.tolist() for minibatch in rank] for rank in of_ranks(local_items=True, num_steps=2)]
    assert own[0] == [minibatch.seeds.tolist() for minibatch in expected[:2]]
    assert len(set(map(str, own))) == 4  # each rank draws under a key of its own


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 6))
def test_an_uneven_last_round_is_left_out_on_request(num_items, batch_size, world_size):
    expected = digests(alone(num_items, batch_size, shuffle=True))
    rounds = len(expected) // world_size
    if rounds == 0:
        with pytest.raises(ValueError, match=f"of {len(expected)}.* one round"):
            ranks_of(num_items, batch_size, world_size, shuffle=True, drop_uneven=True)
        return
    ranks = ranks_of(num_items, batch_size, world_size, shuffle=True, drop_uneven=True)
    assert digests(interleaved([list(rank) for rank in ranks])) == expected[: rounds * world_size]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_a_sampled_minibatch_is_the_same_for_any_number_of_ranks(world_size):
    expected = digests(sampled(alone(38, 4, shuffle=True, seed=2)))
    made = interleaved([list(sampled(rank)) for rank in ranks_of(38, 4, world_size, shuffle=True, seed=2)])
    assert digests(made)[: len(expected)] == expected


def test_a_padding_minibatch_of_a_short_order_repeats_it():
    made = interleaved([list(rank) for rank in ranks_of(3, 2, 5)])
    assert [minibatch.seeds.tolist() for minibatch in made] == [[0, 1], [2], [0, 1], [2], [0, 1]]


# --- rank and world size


@pytest.fixture
def process_group():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_rank_and_world_size_come_from_the_process_group():
    sampler = dp.DistributedItemSampler(dp.ItemSet(10), 4, shuffle=True)
    assert (sampler.rank, sampler.world_size) == (0, 1)
    assert digests(sampler) == digests(alone(10, 4, shuffle=True))


@pytest.fixture
def as_rank(process_group, monkeypatch):
    """A function that makes this process rank 0 or 1 of a group of two, whose store is real."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    return lambda rank: monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)


def shared(as_rank, rank: int, items: dp.ItemSet, **arguments) -> dp.DistributedItemSampler:
    as_rank(rank)
    return dp.DistributedItemSampler(items, **{"batch_size": 4, "shuffle": True, **arguments})


IDS = torch.arange(40)
DIFFERENT = {
    "a share each": ({"items": IDS[:20]}, {"items": IDS[20:]}),
    "other sizes": ({"items": IDS[:16]}, {"items": IDS[16:]}),
    "labels": ({"items": (IDS, IDS)}, {"items": (IDS, IDS * 2)}),
    "other minibatches": ({"batch_size": 4}, {"batch_size": 5}),
    "other orders": ({"seed": 0}, {"seed": 1}),
    "another end": ({"drop_uneven": False}, {"drop_uneven": True}),
}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_that_cut_other_items_are_refused_whichever_comes_first(refuses, as_rank, name, first):
    one, other = ({**options, "items": dp.ItemSet(options.get("items", IDS))} for options in DIFFERENT[name])
    sampler = None
    for rank, arguments in ((first, one), (1 - first, other), (1 - first, other)):  # again, as in a notebook
        with nullcontext() if sampler is None else refuses(ValueError):
            sampler = shared(as_rank, rank, **arguments)
    as_rank(first)
    for pipe in (sampler, dp.DataLoader(sampler)):
        refuses(ValueError, iter, pipe)


def test_a_rank_alone_waits_for_nobody_and_stops_nobody(as_rank):
    train, held_out = dp.ItemSet(IDS), dp.ItemSet(IDS[:8])
    own = [shared(as_rank, 0, items) for items in (train, held_out, dp.ItemSet(IDS[:12]))]
    assert [len([*each]) for each in own] == [5, 1, 2]
    others = [shared(as_rank, 1, items) for items in (train, dp.ItemSet(IDS[:12]))]
    assert [len([*each]) for each in others] == [5, 2]
    copied = pickle.loads(pickle.dumps(others[0]))
    assert "same_items" not in own[0].explain() + others[0].explain() + copied.explain()
    assert shared(as_rank, 1, dp.ItemSet(IDS[:20]), seed=3, shuffle=False).num_steps == 3


def test_ranks_with_items_of_their_own_are_not_compared(as_rank):
    steps = [shared(as_rank, rank, own_items(rank), local_items=True, num_steps=3).num_steps for rank in (0, 1)]
    assert steps == [3, 3]


def test_it_is_told_where_nothing_was_compared(as_rank, monkeypatch):
    assert "same_items='not compared: no process group of these ranks'" in ranks_of(30, 4, 3)[1].explain()
    released = threading.Event()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "PrefixStore", lambda *_: Silent(released))
    for name in ("ANSWER_S", "_BEAT_S"):
        monkeypatch.setattr(ranks, name, 0.01)
    assert "not compared: the store of the process group" in shared(as_rank, 0, dp.ItemSet(IDS)).explain()
    released.set()


class Silent:
    """A store that is stopped."""

    def __init__(self, released: threading.Event) -> None:
        self.add = self.compare_set = lambda *_: released.wait(30)


def test_a_copy_keeps_the_rank_of_the_process_that_built_it(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(torch.distributed, "is_initialized", lambda: True)
        patched.setattr(torch.distributed, "get_rank", lambda: 2)
        patched.setattr(torch.distributed, "get_world_size", lambda: 3)
        sampler = dp.DistributedItemSampler(dp.ItemSet(30), 4, shuffle=True)
    copied = pickle.loads(pickle.dumps(sampler))
    rebuilt = sampled(sampler).with_sources(copied).source
    assert [(stage.rank, stage.world_size) for stage in (sampler, copied, rebuilt)] == [(2, 3)] * 3
    assert digests(copied) == digests(ranks_of(30, 4, 3, shuffle=True)[2])


def test_what_a_distributed_item_sampler_refuses(refuses):
    def sampler(items: object = 10, **changes) -> dp.DistributedItemSampler:
        return dp.DistributedItemSampler(dp.ItemSet(items), 2, **{"rank": 1, "world_size": 2, **changes})

    refuses(ValueError, sampler, rank=None, world_size=None)  # and there is no process group
    refuses(ValueError, sampler, rank=None)
    refuses(ValueError, sampler, world_size=None)
    refuses(ValueError, sampler, rank=2)
    refuses(ValueError, sampler, rank=-1)
    refuses(TypeError, sampler, rank=1.0)
    refuses(ValueError, sampler, rank=0, world_size=0)
    refuses(TypeError, sampler, world_size=True)
    refuses(TypeError, sampler, drop_uneven=1)
    refuses(ValueError, sampler, 3, drop_uneven=True, world_size=3)
    refuses(TypeError, sampler, local_items=1)
    refuses(ValueError, sampler, local_items=True)
    refuses(ValueError, sampler, local_items=True, drop_uneven=True)
    refuses(ValueError, sampler, local_items=True, drop_uneven=True, num_steps=3)
    refuses(ValueError, sampler, local_items=True, num_steps=3, drop_last=True, items=1)
    refuses(ValueError, sampler, local_items=True, num_steps=3, items=torch.arange(0))
    refuses(ValueError, sampler, num_steps=3)
    refuses(ValueError, sampler, num_steps=0, local_items=True)
    refuses(ValueError, dp.MiniBatchTransformer, ranks_of(30, 4, 2), lambda first, second: first)


# --- resuming with another number of ranks


def state_after(steps: int, world_size: int, num_items: int = 64):
    rank = ranks_of(num_items, 4, world_size, shuffle=True)[0]
    iterator = iter(rank)
    for _ in range(steps):
        next(iterator)
    return rank.state_dict()


@pytest.mark.parametrize(("steps", "world_size"), [(2, 1), (2, 4), (4, 8), (3, 3), (3, 6), (0, 5)])
def test_a_job_goes_on_with_another_number_of_ranks(steps, world_size):
    state = state_after(steps, world_size=2)
    ranks = ranks_of(64, 4, world_size, shuffle=True)
    for rank in ranks:
        rank.load_state_dict(state)
    rest = digests(alone(64, 4, shuffle=True))[2 * steps :]
    assert digests(interleaved([list(rank) for rank in ranks]))[: len(rest)] == rest


def test_a_number_of_ranks_that_does_not_divide_the_finished_steps_is_refused(refuses):
    for steps, world_size in ((1, 4), (2, 3), (3, 4)):
        rank = ranks_of(64, 4, world_size, shuffle=True)[0]
        refuses(ValueError, rank.load_state_dict, state_after(steps, world_size=2))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_padded_epoch_that_is_done_is_done_for_any_number_of_ranks(world_size):
    state = state_after(3, world_size=2, num_items=20)  # 5 minibatches in 3 rounds of 2
    rank = ranks_of(20, 4, world_size, shuffle=True)[0]
    rank.load_state_dict(state)
    assert list(rank) == []
    assert next(iter(rank)).epoch == 1


# --- items of a rank's own

LENGTHS = [9, 30, 1]  # items of three ranks: 3, 8 and 1 minibatches of 4


def own_items(rank: int, num_items: int | None = None) -> dp.ItemSet:
    return dp.ItemSet(torch.arange(LENGTHS[rank] if num_items is None else num_items) + 1000 * rank)


def local(rank: int, items: dp.ItemSet | None = None, **arguments) -> dp.DistributedItemSampler:
    """Make the sampler of a rank that has as many steps as minibatches, if `num_steps` says no other number."""
    items = own_items(rank) if items is None else items
    given = {"rank": rank, "world_size": 3, "shuffle": True, "seed": 9, "local_items": True, **arguments}
    if given["local_items"] and given.get("num_steps") is None:
        given["num_steps"] = max(-(-len(items) // 4), 1)
    return dp.DistributedItemSampler(items, 4, **given)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 6), st.booleans(), st.integers(0, 3))
def test_each_rank_visits_its_own_items_once_under_indices_of_its_own(lengths, batch_size, shuffle, epoch):
    seen = []
    for rank, length in enumerate(lengths):
        items = own_items(0, length)
        own = {"rank": rank, "world_size": len(lengths), "shuffle": shuffle, "local_items": True}
        own["num_steps"] = -(-length // batch_size)
        sampler = dp.DistributedItemSampler(items, batch_size, **own)
        made = list(start_at(sampler, epoch))
        assert len(sampler) == len(made) == -(-length // batch_size)
        visited = torch.cat([minibatch.seeds for minibatch in made])
        assert torch.equal(visited.sort().values, torch.arange(length))
        assert shuffle or torch.equal(visited, torch.arange(length))
        assert [minibatch.index for minibatch in made] == [rank + len(lengths) * step for step in range(len(made))]
        seen += [minibatch.index for minibatch in made]
    assert len(set(seen)) == len(seen)


def test_one_rank_with_its_own_items_is_a_single_process():
    one = dp.DistributedItemSampler(dp.ItemSet(30), 4, rank=0, world_size=1, shuffle=True, local_items=True)
    assert digests(sampled(one)) == digests(sampled(alone(30, 4, shuffle=True)))


def test_ranks_shuffle_equally_many_items_in_orders_of_their_own():
    items = dp.ItemSet(30)
    orders = [[m.seeds.tolist() for m in start_at(local(rank, items), epoch)] for rank in range(3) for epoch in (0, 1)]
    for number, order in enumerate(orders):
        assert order not in orders[:number]


def test_picks_of_ranks_with_the_same_items_differ():
    one, other = (list(sampled(local(rank, dp.ItemSet(30), shuffle=False))) for rank in range(2))
    assert [minibatch.seeds.tolist() for minibatch in one] == [minibatch.seeds.tolist() for minibatch in other]
    assert not set(digests(one)) & set(digests(other))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5])
def test_a_given_number_of_steps_makes_the_epochs_of_all_ranks_as_long(num_steps):
    for rank, cut in enumerate([3, 8, 1]):
        sampler = local(rank, num_steps=num_steps)
        made, whole = list(sampler), list(local(rank))
        assert len(sampler) == len(made) == num_steps
        assert digests(made[:cut]) == digests(whole[:num_steps])
        for step, minibatch in enumerate(made):  # from the start of the order again, under a new index
            assert torch.equal(minibatch.seeds, whole[step % cut].seeds)
            assert minibatch.index == 3 * step + rank


def test_a_short_last_minibatch_is_dropped_on_request():
    assert [minibatch.seeds.shape[0] for minibatch in local(0, drop_last=True, num_steps=2)] == [4, 4]


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("num_steps", [None, 6])
def test_a_state_goes_on_where_it_was_saved_also_in_workers(rank, num_steps):
    def chain():
        return sampled(local(rank, dp.ItemSet(torch.arange(LENGTHS[rank]) + rank), num_steps=num_steps))

    expected = [digests(start_at(chain(), epoch)) for epoch in (0, 1)]
    for steps in range(len(expected[0]) + 1):
        stage = chain()
        iterator = iter(stage)
        for _ in range(steps):
            next(iterator)
        state = stage.state_dict()
        for resumed in (chain(), dp.DataLoader(chain(), 2, worker_method="thread")):
            resumed.load_state_dict(state)
            assert digests(resumed) == expected[0][steps:]
            assert digests(resumed) == expected[1]


def test_a_state_belongs_to_its_rank_and_its_items(refuses):
    state = local(0).state_dict()
    local(0).load_state_dict(state)
    refuses(ValueError, local(1).load_state_dict, state)
    refuses(ValueError, local(0, own_items(0, 10)).load_state_dict, state)
    for change in ({"world_size": 4}, {"num_steps": 2}, {"local_items": False}):
        refuses(ValueError, local(0, **change).load_state_dict, state)


def test_only_minibatches_of_this_rank_can_be_made_again(refuses):
    loader = dp.DataLoader(local(1))
    assert loader.minibatch(0, 4).digest() == digests(local(1))[1]
    refuses(ValueError, loader.minibatch, 0, 5)


def test_items_with_types_are_cut_likewise():
    items = dp.HeteroItemSet({"paper": dp.ItemSet(5), "author": dp.ItemSet(4)})
    made = list(local(2, items, shuffle=False))
    assert [minibatch.index for minibatch in made] == [2, 5, 8]
    assert sum(len(seeds) for minibatch in made for seeds in minibatch.seeds.values()) == 9


def test_a_copy_keeps_its_own_items():
    copied = pickle.loads(pickle.dumps(local(1, num_steps=5)))
    assert digests(copied) == digests(local(1, num_steps=5))
    assert copied.describe()["local_items"] is True


# --- ranks that agree on the number of steps


def built(pipe, num_items: int, options: dict) -> dict:
    """Build the sampler of this rank of a process group; return what a test looks at."""
    rank = torch.distributed.get_rank()
    own = {"local_items": True, "shuffle": True, "seed": 9}
    sampler = dp.DistributedItemSampler(own_items(0, num_items), 4, **own, **options)
    told = dp.DistributedItemSampler(own_items(0, num_items), 4, **own, num_steps=sampler.num_steps)
    copied = pickle.loads(pickle.dumps(sampler))  # a copy, as a worker has it, asks nobody
    state = sampler.state_dict()
    told.load_state_dict(state)
    return {
        "indices": [minibatch.index - rank for minibatch in sampler],
        "as told": digests(told) == digests(copied) == digests(start_at(sampler, 0)),
        "steps": state["fingerprint"]["0.item_sampler.num_steps"],
    }


def test_ranks_agree_on_the_number_of_steps_where_they_have_a_process_group():
    with RankGroup(3) as group:

        def answers(ranks, lengths, **options):
            for rank, length in zip(ranks, lengths, strict=True):
                group.order([rank], built, length, options)
            return [group.answer(rank) for rank in ranks]

        ranks = range(3)
        for options, steps in [({}, 8), ({"drop_uneven": True}, 1), ({"num_steps": 5}, 5)]:
            found = answers(ranks, LENGTHS, **options)
            assert found == [{"indices": [3 * at for at in range(steps)], "as told": True, "steps": steps}] * 3

        # a rank that cannot build its sampler ends the others, which name it
        *others, empty = answers(ranks, [9, 30, 0])
        assert type(empty) is ValueError
        for error in others:
            assert isinstance(error, ValueError)
            assert re.search("rank 2 could not build its sampler.*0 items", str(error), re.DOTALL)
        # ranks of the caller's own counting are not those of the group
        for error in answers([0, 1], [9, 30], rank=0, world_size=2):
            assert re.search("rank 0 of 2.*rank [01] of 3.*same num_steps", str(error))
        assert [found["steps"] for found in answers(ranks, LENGTHS)] == [8] * 3
