"""DistributedItemSampler: the ranks together make what one process makes alone."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import digests, refused, sampled, start_at

import datapipes as dp


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


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 6))
def test_an_uneven_last_round_is_left_out_on_request(num_items, batch_size, world_size):
    expected = digests(alone(num_items, batch_size, shuffle=True))
    rounds = len(expected) // world_size
    if rounds == 0:
        with refused(ValueError, stage="distributed_item_sampler", found=f"of {len(expected)}", allowed="one round"):
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


def test_without_a_process_group_the_rank_must_be_given():
    with refused(ValueError, stage="distributed_item_sampler", found="no process group", allowed="rank and world_size"):
        dp.DistributedItemSampler(dp.ItemSet(10), 4)


@pytest.mark.parametrize(
    ("change", "error", "found", "allowed"),
    [
        ({"rank": None}, ValueError, "rank=None and world_size=2", "both, or neither"),
        ({"world_size": None}, ValueError, "rank=1 and world_size=None", "both, or neither"),
        ({"rank": 2}, ValueError, "got 2", r"\[0, 1\]"),
        ({"rank": -1}, ValueError, "got -1", r"\[0, 1\]"),
        ({"rank": 1.0}, TypeError, r"1\.0", "an int"),
        ({"rank": 0, "world_size": 0}, ValueError, "got 0", "1 or more"),
        ({"world_size": True}, TypeError, "True", "an int"),
        ({"drop_uneven": 1}, TypeError, "got 1", "True or False"),
    ],
    ids=str,
)
def test_arguments_that_are_not_allowed_are_refused(change, error, found, allowed):
    remedy = "pass both" if "neither" in allowed else r"\. [A-Z]\w+"
    with refused(error, stage="distributed_item_sampler", found=found, allowed=allowed, remedy=remedy):
        dp.DistributedItemSampler(dp.ItemSet(10), 2, **{"rank": 1, "world_size": 2, **change})


def test_samplers_of_different_ranks_are_not_joined():
    with refused(ValueError, stage="transform", found=r"rank 0 of 2.*rank 1 of 2", allowed="equally many"):
        dp.MiniBatchTransformer(ranks_of(30, 4, 2), lambda first, second: first)


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


@pytest.mark.parametrize(("steps", "world_size"), [(1, 4), (2, 3), (3, 4)])
def test_a_number_of_ranks_that_does_not_divide_the_finished_steps_is_refused(steps, world_size):
    rank = ranks_of(64, 4, world_size, shuffle=True)[0]
    with refused(
        ValueError,
        stage="distributed_item_sampler: load_state_dict",
        found=f"next_index {2 * steps}",
        allowed=f"multiple of world_size {world_size}",
        remedy="Resume with the world size",
    ):
        rank.load_state_dict(state_after(steps, world_size=2))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_padded_epoch_that_is_done_is_done_for_any_number_of_ranks(world_size):
    state = state_after(3, world_size=2, num_items=20)  # 5 minibatches in 3 rounds of 2
    rank = ranks_of(20, 4, world_size, shuffle=True)[0]
    rank.load_state_dict(state)
    assert list(rank) == []
    assert next(iter(rank)).epoch == 1
