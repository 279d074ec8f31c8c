"""SamplerPool: so many processes, one thread of torch, shared memory; errors and deaths reach the caller."""

import ast
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from pipelines import digests, sampled, small_graph, wait_until

import datapipes as dp
from datapipes.base.errors import RemoteTraceback
from datapipes.distributed import PartitionServer, SamplerPool


class Own(SamplerPool):
    """Each process writes one line of what `work` returns into a folder."""

    def __init__(self, folder, work=lambda pool: None):
        self.folder, self.work = Path(folder), work

    def worker(self, args):
        (self.folder / str(os.getpid())).write_text(repr((args, torch.get_num_threads(), self.work(self))))

    def told(self):
        return [ast.literal_eval(path.read_text()) for path in self.folder.iterdir()]


class Cannot(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_so_many_processes_run_worker_with_the_same_arguments(tmp_path):
    threads = torch.get_num_threads()
    pipe = sampled()
    Own(tmp_path, lambda _: digests(pipe)).start(3, {"epochs": 1})
    assert Own(tmp_path).told() == [({"epochs": 1}, 1, digests(sampled()))] * 3
    assert torch.get_num_threads() == threads


def private_bytes(_):
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))


def test_the_graph_is_not_copied(tmp_path):
    graph = dp.CSCGraph.from_edge_index(torch.randint(1000, (2, 8_000_000)), 1000)  # 64 MB

    def samples(pool):
        for _ in dp.ItemSampler(dp.ItemSet(1000), 100).sample_neighbor(graph, [3]):
            pass
        return private_bytes(pool)

    Own(tmp_path, samples).start(4)
    for _, _, num_bytes in Own(tmp_path).told():
        assert num_bytes < 32 * 2**20


def fails_in(number, how):
    """Return work that fails in one process and waits for ever in the others."""
    turn = multiprocessing.get_context("fork").Value("i", 0)

    def work(pool):
        with turn:
            turn.value += 1
            mine = turn.value
        if mine == number:
            how()
        signal.pause()

    return work


def test_an_error_reaches_the_caller_and_ends_the_others(tmp_path):
    def how():
        raise KeyError("no such node")

    with pytest.raises(KeyError, match="no such node") as raised:
        Own(tmp_path, fails_in(2, how)).start(3)
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    assert "in how" in str(raised.value.__cause__)
    assert "of a SamplerPool" in raised.value.__notes__[-1]
    assert multiprocessing.active_children() == []


def test_an_error_that_cannot_be_made_again_is_told(tmp_path):
    def how():
        raise Cannot("this", "that")

    with pytest.raises(dp.RemoteError, match="Cannot: this and that"):
        Own(tmp_path, fails_in(1, how)).start(2)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "it was killed by SIGKILL"),
        (lambda: sys.exit(3), "it exited with code 3"),
        (lambda: os._exit(0), r"its process ended before worker\(\) returned"),
    ],
)
def test_a_death_is_named_and_ends_the_others(tmp_path, how, text):
    with pytest.raises(dp.PeerDied, match=rf"worker \d \(pid \d+\) did not end well: {text}") as raised:
        Own(tmp_path, fails_in(2, how)).start(3)
    assert len(raised.value.pids) == 1
    assert multiprocessing.active_children() == []


def test_a_worker_may_leave_by_exit(tmp_path):
    Own(tmp_path, lambda _: sys.exit(0)).start(2)


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match="num_worker must be 1 or more, got 0"):
        Own(tmp_path).start(0)
    with pytest.raises(TypeError, match="abstract"):
        SamplerPool()
    with PartitionServer(small_graph(), chains=True), pytest.raises(RuntimeError, match="runs a PartitionServer"):
        Own(tmp_path).start(1)


def test_processes_end_with_their_parent(tmp_path):
    def starts():
        Own(tmp_path, lambda _: signal.pause()).start(2)

    parent = multiprocessing.get_context("fork").Process(target=starts)
    parent.start()
    children = f"/proc/{parent.pid}/task/{parent.pid}/children"
    wait_until(lambda: len(Path(children).read_text().split()) == 2)
    pids = [int(pid) for pid in Path(children).read_text().split()]
    parent.kill()
    parent.join()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
