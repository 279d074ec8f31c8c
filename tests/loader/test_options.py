"""LoaderOptions: every option acts, or is refused; where num_workers is swept to 0, the log names it instead."""

import inspect
import logging
import threading
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from pipelines import fetched, sampled

import datapipes as dp
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.workers import Workers

KINDS = {
    "process": {"num_workers": 2, "multiprocessing_context": "fork"},
    "thread": {"num_workers": 2, "worker_method": "thread"},
    "none": {"num_workers": 0},
}
ACTS, REFUSED, LOGGED = "acts", "refused", "logged"

# For each option a value that is not its default, and the effect of this value under each of KINDS.
AWAY = {
    "persistent_workers": (False, ACTS, ACTS, LOGGED),
    "max_uva_threads": (64, REFUSED, REFUSED, LOGGED),
    "worker_method": ("thread", ACTS, ACTS, LOGGED),
    "prefetch_factor": (5, ACTS, ACTS, ACTS),
    "in_order": (False, ACTS, ACTS, LOGGED),
    "timeout": (33.0, ACTS, ACTS, ACTS),
    "multiprocessing_context": ("spawn", ACTS, REFUSED, LOGGED),
    "worker_init_fn": (print, ACTS, ACTS, LOGGED),
    "channel": ("mp", ACTS, REFUSED, LOGGED),
    "shm_size": ("1MB", ACTS, REFUSED, LOGGED),
    "max_restarts": (7, ACTS, REFUSED, LOGGED),
    "cut": ("sample_neighbor", ACTS, ACTS, LOGGED),
    "overlap": (False, ACTS, ACTS, ACTS),
}
CASES = [(name, kind) for name in AWAY for kind in KINDS]


def shown_of(loader: dp.DataLoader) -> list[tuple]:
    """Return the options of a plan, stage by stage, also those that explain() does not show."""
    shown = []
    for stage in loader.rewritten():
        options = stage.options if isinstance(stage, Workers) else None
        ahead = (stage.depth, stage.timeout) if isinstance(stage, dp.Prefetcher) else None
        shown.append((stage.name, ahead, options and (options, stage.timeout, stage.context, stage.window)))
    return shown


def test_every_option_has_a_case():
    assert [*AWAY] == [field.name for field in fields(LoaderOptions)][1:]


def test_the_loader_has_the_options_and_their_defaults():
    parameters = list(inspect.signature(dp.DataLoader.__init__).parameters.values())[2:]
    assert [(each.name, each.default) for each in parameters] == [
        (each.name, each.default) for each in fields(LoaderOptions)
    ]


def test_options_are_frozen():
    with pytest.raises(FrozenInstanceError):
        LoaderOptions().num_workers = 3


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_option_acts_is_refused_or_is_logged(name, kind, caplog):
    caplog.set_level(logging.INFO, logger="datapipes")
    value, *expected = AWAY[name]
    fate = expected[list(KINDS).index(kind)]
    given = {**KINDS[kind], name: value}
    if name == "worker_method":
        given.pop("multiprocessing_context", None)
    if fate == REFUSED:
        with pytest.raises(ValueError, match=rf"data_loader: .*{name}.* Leave"):
            dp.DataLoader(fetched(), **given)
        return
    loader = dp.DataLoader(fetched(), **given)
    assert getattr(loader.options, name) == (2**20 if name == "shm_size" else value)
    plain = dp.DataLoader(fetched(), **KINDS[kind])
    if fate == LOGGED:
        assert shown_of(loader) == shown_of(plain)
        (record,) = [each for each in caplog.records if name in each.getMessage()]
        assert record.levelno == logging.INFO
    elif (name, kind) != ("worker_method", "thread"):  # this option makes the kind itself
        assert shown_of(loader) != shown_of(plain)


def test_options_of_threads_are_logged_where_there_are_none(caplog):
    caplog.set_level(logging.INFO, logger="datapipes")
    loader = dp.DataLoader(fetched(), overlap=False, prefetch_factor=5, timeout=33.0)
    assert shown_of(loader) == shown_of(dp.DataLoader(fetched(), overlap=False))
    (record,) = caplog.records
    assert "prefetch_factor=5 and timeout=33.0 belong to the background threads" in record.getMessage()


@pytest.mark.parametrize("method", ["process", "thread"])
def test_what_acts_on_workers_reaches_them(method):
    kind = KINDS[method]
    ahead = {"prefetch_factor": 5, "overlap": False}
    with dp.DataLoader(fetched(), **kind, **ahead, in_order=False, persistent_workers=False) as loader:
        (workers,) = loader.rewritten().find(Workers)
        assert workers.window == 2 * 6
        for _ in loader:
            assert workers._running.pool.tasks_each == 6
        assert workers._running.pool is None  # the workers end with the epoch
    with dp.DataLoader(sampled(), **kind, timeout=33.0) as loader:
        list(loader)
        (workers,) = loader.rewritten().find(Workers)
        assert workers.timeout == 33.0
        assert workers._running.pool is not None
    assert not [each for each in threading.enumerate() if each.name.startswith("datapipes-worker")]


def test_numbers_of_numpy_become_ints():
    options = LoaderOptions(num_workers=np.int8(2), prefetch_factor=np.int8(127), max_restarts=np.int64(1))
    assert [type(value) for value in (options.num_workers, options.prefetch_factor, options.max_restarts)] == [int] * 3
