"""What becomes of an error of a stage: the same, whoever called the stage."""

import asyncio
import bdb
import contextlib
from concurrent.futures import ThreadPoolExecutor

import pytest
import worker_stages as ws
from pipelines import digests, fetched, sampled
from worker_ways import way

import datapipes as dp
from datapipes.loader import prefetcher

WAYS = {
    "no workers": {},
    "no threads": {"overlap": False},
    "threads": way("thread"),
    "processes": way("fork"),
}
NO_ERRORS = [SystemExit, KeyboardInterrupt, GeneratorExit]
PLACE = f"in stage 2 (raises), epoch 0, minibatch {ws.BAD}"


def read(chain: dp.Stage, options: dict) -> tuple[list[int], BaseException]:
    """Read an epoch; return the indices that came and the error that ended it."""
    got = []
    with dp.DataLoader(chain, **options) as loader:
        iterator = iter(loader)
        with pytest.raises(BaseException) as caught:  # noqa: PT011  the caller looks at it
            got.extend(minibatch.index for minibatch in iterator)
        with pytest.raises(RuntimeError, match="broke off at an error"):
            next(iterator)
    return got, caught.value


@pytest.mark.parametrize("kind", [*NO_ERRORS, asyncio.CancelledError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("stage", [ws.Raises, ws.RaisesAsync])
@pytest.mark.parametrize("options", [way for name, way in WAYS.items() if name != "no threads"], ids=str)
def test_what_is_no_error_becomes_one(options, stage, kind):
    got, raised = read(fetched(stage(sampled(), kind, "enough")), options)
    assert got == [0, 1, 2]
    assert type(raised) is RuntimeError
    cancelled = stage is ws.RaisesAsync and kind is asyncio.CancelledError
    who = "raises_async: its transform_async" if cancelled else "a stage"
    assert str(raised) == f"{who} raised {kind.__name__}: enough. Raise an error, or return None to drop the minibatch."
    assert PLACE.replace("raises", "raises_async" if stage is ws.RaisesAsync else "raises") in raised.__notes__


@pytest.mark.parametrize("kind", NO_ERRORS, ids=lambda kind: kind.__name__)
def test_only_what_a_signal_may_raise_passes_and_only_in_the_main_thread(kind):
    def raised() -> BaseException:
        return read(fetched(ws.Raises(sampled(), kind, "enough")), {"overlap": False})[1]

    here = raised()
    assert type(here) is (RuntimeError if kind is GeneratorExit else kind)
    assert PLACE in here.__notes__
    with ThreadPoolExecutor(1) as thread:
        assert type(thread.submit(raised).result()) is RuntimeError


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_an_error_that_cannot_be_made_again_does_not_end_the_consumer(options):
    got, raised = read(fetched(ws.Raises(sampled(), ws.HostileError, "one", "two")), options)
    assert got == [0, 1, 2]
    assert type(raised) is (dp.RemoteError if "multiprocessing_context" in options else ws.HostileError)
    assert "'one', 'two'" in str(raised)
    assert PLACE in raised.__notes__


def test_a_debugger_that_has_no_terminal_says_where_it_has_one():
    _, raised = read(ws.Raises(sampled(), bdb.BdbQuit), way("fork"))
    assert any("Debug with num_workers=0" in note for note in raised.__notes__)


# --- timeouts


@pytest.mark.parametrize("kind", [TimeoutError, dp.LoaderTimeoutError], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("options", WAYS.values(), ids=str)
def test_a_stages_own_timeout_cannot_be_waited_out(options, kind):
    chain = fetched(ws.Raises(sampled(), kind, "the server is slow"))
    for persistent in (True, False):
        workers = {"persistent_workers": persistent} if "num_workers" in options else {}
        got, raised = read(chain, {**options, **workers})
        assert got == [0, 1, 2]
        assert type(raised) is TimeoutError
        assert str(raised) == "the server is slow"
        assert PLACE in raised.__notes__


def test_workers_of_one_epoch_end_with_a_stages_own_timeout():
    chain = ws.Raises(sampled(), TimeoutError, "the server is slow")
    with dp.DataLoader(chain, persistent_workers=False, **way("fork")) as loader:
        with pytest.raises(TimeoutError, match="the server is slow"):
            list(loader)
        assert loader._plan.root._running.pool is None


@pytest.mark.parametrize("options", [{}, way("thread"), way("fork")], ids=["no workers", "threads", "processes"])
def test_the_loaders_timeout_can_be_waited_out(tmp_path, options):
    go = tmp_path / "go"
    chain = ws.Wait(sampled(), 2, str(go))
    with dp.DataLoader(chain, timeout=0.2, **options) as loader:
        iterator, got = iter(loader), []
        while len(got) < 2:  # workers that start may take longer
            with contextlib.suppress(dp.LoaderTimeoutError):
                got.append(next(iterator))
        with pytest.raises(dp.LoaderTimeoutError):
            next(iterator)
        go.touch()
        while len(got) < 6:
            try:
                got.append(next(iterator))
            except dp.LoaderTimeoutError:
                continue
    assert digests(got) == digests(sampled())


def test_the_timeout_of_an_inner_prefetch_ends_the_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(prefetcher, "JOIN_S", 0.0)
    go = tmp_path / "go"
    chain = ws.Wait(sampled(), 2, str(go)).prefetch(timeout=0.2)
    with dp.DataLoader(chain) as loader:
        with pytest.raises(TimeoutError, match=r"^prefetch: no minibatch came within 0.2 s") as caught:
            list(loader)
        go.touch()
    assert type(caught.value) is TimeoutError
