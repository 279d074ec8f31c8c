"""Progress of long calls: on a terminal, after a moment, and nowhere else."""

import io
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from pipelines import fetched, sampled

import datapipes as dp
from datapipes.base import progress


class Terminal(io.StringIO):
    """A stderr that says it is a terminal; `shown` is set once something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text.strip("\r "):
            self.shown.set()
        return super().write(text)


@pytest.fixture
def terminal(monkeypatch):
    made = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=made))  # pytest changes sys.stderr itself
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    return made


@pytest.mark.parametrize("stderr", [None, io.StringIO()])
def test_without_a_terminal_or_a_stderr_nothing_is_shown(monkeypatch, stderr):
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stderr))
    assert progress.terminal_bar() is None


def test_a_call_that_takes_long_is_shown_and_leaves_nothing(terminal):
    with progress.working("sort edges"):
        assert terminal.shown.wait(60)
    assert "sort edges ... 00:0" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    assert not [each for each in threading.enumerate() if each.name == "datapipes-progress"]


def test_a_call_that_is_soon_over_shows_nothing(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY_S", 3600.0)
    with pytest.raises(KeyError), progress.working("sort edges"):
        raise KeyError
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("how", ["hidden", "no terminal", "no tqdm"])
def test_elsewhere_nothing_is_shown_and_no_thread_runs(terminal, monkeypatch, how):
    if how == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
    if how == "no tqdm":
        monkeypatch.setitem(sys.modules, "tqdm", None)
    with progress.hidden() if how == "hidden" else progress.working(""), progress.working("sort edges"):
        assert not [each for each in threading.enumerate() if each.name == "datapipes-progress"]
        with progress.bars() as say:
            say("cut", 1, 2)
    assert terminal.getvalue() == ""


def test_partitioning_shows_its_steps(terminal, tmp_path):
    graph = dp.CSCGraph.from_edge_index(torch.randint(50, (2, 400), generator=torch.manual_seed(0)))
    dp.distributed.Partitioner(graph, 2, tmp_path / "parts", method="random").generate_partition()
    assert "write part 0" in terminal.getvalue()


def test_the_first_epoch_of_worker_processes_is_shown(terminal):
    with dp.DataLoader(sampled(), 1) as loader:
        list(loader)
        assert "start the worker processes (1)" in terminal.getvalue()
        terminal.truncate(0)
        list(loader)
        assert terminal.getvalue() == ""


def test_the_bar_of_a_loader_gives_its_minibatches(terminal):
    loader = dp.DataLoader(fetched())
    expected = [minibatch.digest() for minibatch in dp.DataLoader(fetched())]
    assert [each.digest() for each in loader.progress(bottleneck=True, desc="train", file=terminal)] == expected
    assert "train: " in terminal.getvalue()
    assert "6/6" in terminal.getvalue()
    assert "minibatches/s" in terminal.getvalue()
