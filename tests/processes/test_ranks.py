"""Ranks hear of each other through the store: one that fails, or is killed, ends the others within the bound."""

import os
import re
import signal

import pytest
from amounts import amount, ranked
from rank_group import RankGroup, work

from datapipes.processes.ranks import Ranks

LONG_S, SHORT_S = 60.0, amount(4.0, 2.0)
SILENT = r"it has (given no sign of life|not begun this load) for \d+ s"  # a rank may die before its first heartbeat


def began(group, ranks, timeout_s):
    group.order(ranks, work, timeout_s)
    assert [group.answer(rank) for rank in ranks] == ["began"] * len(ranks)


def test_three_ranks_hear_of_each_other_through_a_store_that_outlives_them():
    with RankGroup(3, own_store=False) as group:
        for failing in (2, 0):
            began(group, [0, 1, 2], LONG_S)
            if failing == 2:
                group.tell(1, "done")  # one that has loaded hears of it too
            group.tell(failing, "fail")
            errors = [group.answer(rank) for rank in range(3)]
            assert errors[failing].failures == {"node": "its record 7 is broken"}
            for rank in {0, 1, 2} - {failing}:
                assert errors[rank].failed_ranks == {failing: "TFRecordLoadError: node could not be loaded"}
        began(group, [0, 1], SHORT_S)
        for rank in range(2):
            assert "rank 2: it has not begun this load for" in str(group.answer(rank))
        began(group, [0, 1], LONG_S)
        group.tell(1, "fail")
        assert group.answer(1).failed_ranks == {}
        group.order([2], work, LONG_S)  # one that comes when another has left is told why
        assert group.answer(2) == "began"
        for rank in (0, 2):
            assert group.answer(rank).failed_ranks == {1: "TFRecordLoadError: node could not be loaded"}
        began(group, [0, 1, 2], LONG_S)  # the rank that missed a call is with them again
        for rank in range(3):
            group.tell(rank, "done")
        assert [group.answer(rank) for rank in range(3)] == ["loaded"] * 3


@pytest.mark.parametrize(
    ("own_store", "text"), ranked([(True, "the store of torch.distributed is gone"), (False, SILENT)], 1)
)
def test_the_rank_that_gives_the_verdict_is_killed(own_store, text):
    with RankGroup(3 if own_store else 2, own_store=own_store) as group:
        others = range(1, len(group.processes))
        began(group, [0, *others], SHORT_S)
        group.tell(1, "done")
        group.kill(0)
        for rank in others:
            error = group.answer(rank)
            assert list(error.failed_ranks) == [0]
            assert re.search(text, str(error))


@pytest.mark.full
def test_a_store_that_hangs_is_not_waited_for_without_end():
    with RankGroup(2) as group:
        began(group, [0, 1], SHORT_S)
        group.tell(1, "done")
        os.kill(group.processes[0].pid, signal.SIGSTOP)
        assert re.search(r"rank 0: the store of torch.distributed has not answered for \d+ s", str(group.answer(1)))
        group.kill(0)  # it would not end by itself


def test_a_rank_that_loads_seldom_asks_the_store(monkeypatch):
    looks, ranks = [], Ranks("work", LONG_S)
    ranks.beat_s = 3600.0
    monkeypatch.setattr(ranks, "look", lambda: looks.append("look"))
    for _ in range(100):
        ranks.go_on()
    assert looks == ["look"]
