"""A stage that forks and returns in both processes: the copy takes and sends nothing, and ends."""

import functools
import os
from pathlib import Path

import pytest
import worker_stages as ws
from pipelines import BOUND_S, as_it_is, digests, fetched, sampled, start_at, wait_until
from scripts import ended
from worker_ways import way

import datapipes as dp

WAYS = {"no workers": {}, "threads": way("thread"), "processes": way("fork")}


def clones(folder: Path) -> list[int]:
    """Wait until every process that was forked has ended; return their pids."""
    pids = [int(path.name) for path in folder.iterdir()]
    for pid in pids:
        wait_until(lambda pid=pid: ended(pid))
        if int((folder / str(pid)).read_text()) == os.getpid():
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    return pids


def fork_beside_the_loop(source: dp.Stage, folder: str) -> dp.Stage:
    """A synchronous stage that forks, beside an asynchronous one."""
    return ws.ForkAndGoOn(ws.PassOnAsync(source), folder)


@pytest.mark.parametrize("stage", [ws.ForkAndGoOn, ws.ForkAndGoOnAsync, fork_beside_the_loop])
@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_a_clone_sends_nothing_and_ends(tmp_path, options, stage):
    expected = [digests(start_at(sampled(), epoch)) for epoch in range(2)]
    with dp.DataLoader(stage(sampled(), str(tmp_path)).transform(as_it_is), timeout=BOUND_S, **options) as loader:
        assert [digests(loader), digests(loader)] == expected
        assert len(clones(tmp_path)) == 2


@pytest.mark.parametrize("options", [way("thread"), way("fork"), way("forkserver", 1)], ids=str)
def test_a_clone_of_worker_init_fn_ends(tmp_path, options):
    prepare = functools.partial(ws.fork_and_go_on, folder=str(tmp_path))
    with dp.DataLoader(sampled(), worker_init_fn=prepare, timeout=BOUND_S, **options) as loader:
        assert digests(loader) == digests(sampled())
        assert len(clones(tmp_path)) == options["num_workers"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_clone_of_the_consumer_goes_on_by_itself(tmp_path, asynchronous):
    here = os.getpid()
    stage = ws.ForkAndGoOnAsync if asynchronous else ws.ForkAndGoOn
    got = []
    try:
        got += digests(dp.DataLoader(stage(sampled(), str(tmp_path)), overlap=False))
    finally:
        if os.getpid() != here:
            os._exit(5 if got == digests(sampled()) else 6)
    assert got == digests(sampled())
    (clone,) = [int(path.name) for path in tmp_path.iterdir()]
    # An asynchronous stage runs in a thread of the package, so its clone has nobody to return to.
    assert os.waitstatus_to_exitcode(os.waitpid(clone, 0)[1]) == (1 if asynchronous else 5)


@pytest.mark.parametrize("method", ["thread", "fork"])
def test_a_clone_of_the_consumer_is_told_that_the_workers_are_its_parents(tmp_path, method):
    here = os.getpid()
    got = []
    with dp.DataLoader(ws.ForkAndGoOn(fetched(), str(tmp_path)), overlap=False, **way(method)) as loader:
        try:
            for minibatch in loader:
                got.append(minibatch.digest())
        except RuntimeError as error:
            if os.getpid() != here:
                os._exit(5 if "another process" in str(error) and got == digests(fetched())[: ws.BAD + 1] else 6)
            raise
        finally:
            if os.getpid() != here:
                os._exit(7)
    assert got == digests(fetched())
    (clone,) = [int(path.name) for path in tmp_path.iterdir()]
    assert os.waitstatus_to_exitcode(os.waitpid(clone, 0)[1]) == 5
