"""to_partition in real processes over gloo: the same folder, and no rank that waits for one that has failed."""

import errno
import itertools
import os
import signal
import threading
import time

import pytest
import torch.distributed as dist
from amounts import ranked
from rank_group import run_ranks
from shards import cut, files_of, graph_with_types, graph_without_types, in_threads, write_whole

from datapipes.datasets import TFRecordLoadError
from datapipes.partition.across_ranks import write_shards
from datapipes.partition.layouts import layout_of

BOUND_S = 3.0  # without a sign of life


def write(rank, shard, root, timeout_s=30.0):
    return shard.to_partition(root, rank_timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("make", "num_ranks"), ranked([("types", 2), ("no types", 3), ("types", 3), ("no types", 1)], 1)
)
def test_processes_write_the_folder_of_one_process(tmp_path, num_ranks, make):
    graph = graph_with_types([17, 5, 2], [60, 20]) if make == "types" else graph_without_types(23, 90)
    arguments = [(shard, tmp_path / "parts") for shard in cut(graph, num_ranks)]
    reports = run_ranks(write, arguments, first_holds_store=num_ranks == 2)
    write_whole(graph, num_ranks, tmp_path / "whole")
    assert files_of(tmp_path / "parts") == files_of(tmp_path / "whole")
    assert [each.num_parts for each in reports] == [num_ranks] * num_ranks


# --- a rank that ends or fails


def fail(rank, victim, how, shard, root, timeout_s=BOUND_S):
    """Write the shard; the victim fails at `how`. Return the error and the seconds until it came."""
    if rank == victim:
        _FAILURES[how]()
    begin = time.monotonic()
    with pytest.raises((ValueError, OSError)) as caught:
        shard.to_partition(root, rank_timeout_s=timeout_s)
    return caught.value, time.monotonic() - begin


def _killed_when_it_writes():
    write_shards.write_part = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def _stopped_when_it_writes():
    write_shards.write_part = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)


def _killed_when_others_wait_for_its_rows(number=signal.SIGKILL):
    def carry(*arguments, **options):
        if next(calls) == 40:
            os.kill(os.getpid(), number)
        return plain(*arguments, **options)

    calls, plain = itertools.count(), dist.all_to_all_single
    dist.all_to_all_single = carry


def _stopped_when_others_wait_for_its_rows():
    _killed_when_others_wait_for_its_rows(signal.SIGSTOP)


def _disk_full():
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "part/arrays.npy")

    write_shards.write_part = full


def _killed_before_it_comes():
    os.kill(os.getpid(), signal.SIGKILL)


_FAILURES = {
    each.__name__: each
    for each in (
        _killed_when_it_writes,
        _stopped_when_it_writes,
        _killed_when_others_wait_for_its_rows,
        _stopped_when_others_wait_for_its_rows,
        _disk_full,
        _killed_before_it_comes,
    )
}


@pytest.mark.parametrize(
    ("how", "victim", "reason"),
    ranked(
        [
            (_disk_full, 0, "no room to write part/arrays.npy: No space left on device. Nothing at "),
            (_killed_when_it_writes, 1, "it has given no sign of life for 3 s"),
            (_stopped_when_others_wait_for_its_rows, 1, "it has ended, or does not answer any more"),
            (_killed_before_it_comes, 2, "it did not come for 3 s"),
            (_killed_when_it_writes, 0, "it has given no sign of life for 3 s"),
            (_stopped_when_it_writes, 2, "it has given no sign of life for 3 s"),
            (_killed_when_others_wait_for_its_rows, 1, "it has ended, or does not answer any more"),
            (_disk_full, 2, "no room to write part/arrays.npy: No space left on device. Nothing at "),
        ],
        small=1,
    ),
)
def test_a_rank_that_fails_ends_the_others(tmp_path, how, victim, reason):
    root, num_ranks = tmp_path / "parts", 3
    graph = graph_without_types(23, 90)
    write_whole(graph, 2, root)  # an older one, which stays
    older = files_of(root)
    arguments = [(victim, how.__name__, shard, root) for shard in cut(graph, num_ranks)]
    found = run_ranks(fail, arguments, stopped=victim if "stopped" in how.__name__ else None)
    for rank in {0, 1, 2} - {victim}:
        error, seconds = found[rank]
        assert isinstance(error, TFRecordLoadError), error
        assert f"rank {victim} has failed, so rank {rank} has stopped too" in str(error)
        assert [*error.failed_ranks] == [victim]
        assert reason in error.failed_ranks[victim]
        assert seconds < 3 * BOUND_S
    if how is _disk_full:
        assert isinstance(found[victim][0], OSError)
    else:
        assert found[victim] == -signal.SIGKILL
    assert files_of(root) == older
    assert not any(layout_of(folder) for folder in tmp_path.iterdir() if folder != root)
    in_threads(cut(graph, 2), [root] * 2)  # what a killed writer has left is cleared away
    assert files_of(root) == older
    assert [each.name for each in tmp_path.iterdir()] == ["parts"]


def work_long(rank, slow, shard, root):
    """Write the shard; the slow rank takes twice the time after which a rank without a sign of life is dead."""

    def place(ranks, shard):
        while ranks._add(f"beat/{rank}", 0) < 8:
            threading.Event().wait(0.05)
        return plain(ranks, shard)

    plain = write_shards.place
    if rank == slow:
        write_shards.place = place
    shard.to_partition(root, rank_timeout_s=2.0)


@pytest.mark.full
def test_a_rank_may_work_longer_than_the_bound(tmp_path):
    graph = graph_without_types(9, 9)
    assert run_ranks(work_long, [(1, shard, tmp_path / "parts") for shard in cut(graph, 2)]) == [None, None]
    assert layout_of(tmp_path / "parts") == {"native"}


def test_the_end_of_the_store_ends_all_ranks(tmp_path):
    arguments = [
        (0, "_killed_when_it_writes", shard, tmp_path / "parts") for shard in cut(graph_without_types(9, 9), 2)
    ]
    found = run_ranks(fail, arguments, first_holds_store=True)
    assert found[0] == -signal.SIGKILL
    error, seconds = found[1]
    assert isinstance(error, TFRecordLoadError)
    assert "the store of torch.distributed is gone" in error.failed_ranks[0]
    assert seconds < 3 * BOUND_S


def leave_by_an_error(rank, shard, root):
    """Rank 0, which holds the store, fails; rank 1 notices it late: two heartbeats of rank 0 later."""

    def place(ranks, shard):
        if rank == 0:
            raise OSError("its disk is broken")
        while ranks._add("ready", 0) < 2**40:
            threading.Event().wait(0.05)
        beats = ranks._add("beat/0", 0)
        while ranks._add("beat/0", 0) < beats + 2:
            threading.Event().wait(0.05)
        return plain(ranks, shard)

    plain, write_shards.place = write_shards.place, place
    with pytest.raises((OSError, TFRecordLoadError)) as caught:
        shard.to_partition(root, rank_timeout_s=BOUND_S)
    return caught.value


@pytest.mark.full
def test_the_rank_that_holds_the_store_leaves_last(tmp_path):
    arguments = [(shard, tmp_path / "parts") for shard in cut(graph_without_types(9, 9), 2)]
    own, other = run_ranks(leave_by_an_error, arguments, first_holds_store=True)
    assert isinstance(own, OSError)
    assert other.failed_ranks == {0: "OSError: its disk is broken"}


# --- what ranks refuse


def test_what_one_rank_refuses_all_refuse(tmp_path):
    """Only rank 1 sees the edge; rank 0 has its reason."""
    shards = cut(graph_without_types(9, 9), 2)
    shards[1].edge_index[1, 2] = 9
    found = run_ranks(fail, [(None, "", shard, tmp_path / "parts") for shard in shards])
    text = "edge 2 of rank 1 has the destination 9; the ids of nodes are in [0, 9)"
    assert [type(error) for error, _ in found] == [TFRecordLoadError, ValueError]
    assert all(text in str(error) for error, _ in found)
    assert not any(tmp_path.iterdir())
