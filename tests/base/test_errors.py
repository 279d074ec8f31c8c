"""What docs/errors.md says: every error is named, what it carries, and after which the epoch goes on."""

import sys
import threading
from pathlib import Path

import pytest
from pipelines import BOUND_S, items, small_graph

import datapipes as dp

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ERRORS = {
    f"{space.__name__.replace('datapipes', 'dp')}.{name}": getattr(space, name)
    for space in (dp, dp.datasets)
    for name in dir(space)
    if isinstance(getattr(space, name), type) and issubclass(getattr(space, name), Exception)
}
FAILING = 2
LOADERS = {
    "chain": lambda chain: chain,
    "loader": dp.DataLoader,
    "in_the_callers_thread": lambda chain: dp.DataLoader(chain, overlap=False),
    "threads": lambda chain: dp.DataLoader(chain, 2, worker_method="thread"),
    "processes": lambda chain: dp.DataLoader(chain, 1, persistent_workers=False, multiprocessing_context="fork"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_page_names_every_error_with_its_attributes_and_bases(name):
    error = ERRORS[name]
    lines = [line for line in PAGE.splitlines() if f"`{name}`" in line]
    assert lines
    public = [attribute for attribute in ("pids", "epoch") if f"{attribute}:" in (error.__doc__ or "")]
    assert all(any(f"`{attribute}`" in line for line in lines) for attribute in public)
    if error.__base__ in (TimeoutError, ValueError):
        assert any(f"`{name}`, a `{error.__base__.__name__}`" in line for line in lines)


class OwnError(Exception):
    """An error of a user."""


@pytest.mark.parametrize("kind", LOADERS)
def test_after_the_error_of_a_stage_the_epoch_is_over_and_its_state_gives_the_rest(kind):
    broken = [True]  # processes are forked anew after it has changed

    def fail(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if broken[0] and minibatch.index == FAILING:
            raise OwnError("the disk is full")
        return minibatch

    with LOADERS[kind](items().transform(fail)) as loader:
        iterator = iter(loader)
        assert [next(iterator).index for _ in range(FAILING)] == [0, 1]
        with pytest.raises(OwnError, match="the disk is full") as first:
            next(iterator)
        if sys.version_info >= (3, 11):
            worker = kind in ("threads", "processes")
            assert first.value.__notes__[0] == f"in stage 1 (transform), epoch 0, minibatch {FAILING}"
            assert any(note.startswith("in worker ") for note in first.value.__notes__) == worker
        with pytest.raises(RuntimeError, match="broke off at an error") as second:
            next(iterator)
        assert second.value.__cause__ is first.value
        broken[0] = False
        loader.load_state_dict(loader.state_dict())
        assert [minibatch.index for minibatch in loader] == list(range(FAILING, len(loader)))


@pytest.mark.parametrize("overlap", [True, False])
def test_after_a_timeout_the_next_call_waits_on_and_nothing_is_lost(overlap):
    let_go = threading.Event()

    def hold(minibatch: dp.MiniBatch) -> dp.MiniBatch:
        assert minibatch.index != FAILING or let_go.wait(BOUND_S)
        return minibatch

    loader = dp.DataLoader(items().transform(hold), 1, worker_method="thread", timeout=0.05, overlap=overlap)
    with loader:
        seen, said = [], []
        iterator = iter(loader)
        while len(seen) < len(loader):
            try:
                seen.append(next(iterator).index)
            except TimeoutError as error:
                said.append(str(error))
                let_go.set()
    assert seen == list(range(len(loader)))
    assert said
    assert all("stage 1 (transform)" in text or "worker" in text for text in said)


def test_a_state_that_is_refused_leaves_the_loader_as_it_was():
    loader = items()
    iterator = iter(loader)
    assert next(iterator).index == 0
    other = items(batch_size=5)
    with pytest.raises(ValueError, match="another pipeline"):
        loader.load_state_dict(other.state_dict())
    assert next(iterator).index == 1


def test_an_unknown_feature_and_an_unknown_node_are_named():
    with pytest.raises(KeyError, match="'width'"):
        items().sample_neighbor(small_graph(), [1]).fetch_feature(dp.FeatureStore({}), ["width"])
    chain = dp.ItemSampler(dp.ItemSet(41), 41).sample_neighbor(small_graph(), [1])
    with pytest.raises(IndexError, match="40"):
        next(iter(chain))
