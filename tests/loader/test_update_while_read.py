"""An update of a feature is refused while a chain of this process reads it, by name, and allowed before and after."""

import gc

import numpy as np
import pytest
import torch
from amounts import SPAWN, ranked
from pipelines import NUM_NODES, items, refused, small_graph

import datapipes as dp

IDS, NEW = torch.tensor([3, 5]), torch.tensor([[-1.0], [-2.0]])


class Reads(dp.MiniBatchTransformer):
    """A user's stage that reads a feature by itself."""

    draws = False

    def __init__(self, source, feature):
        super().__init__(source)
        self.feature = feature

    reads_from = property(lambda self: {"table": self.feature})

    def transform(self, minibatch):
        return minibatch.replace(node_features={"x": self.feature.read(minibatch.seeds)})


@pytest.fixture(params=["tensor", "disk"])
def feature(request, tmp_path):
    rows = torch.arange(float(NUM_NODES))[:, None]
    if request.param == "tensor":
        return dp.TensorFeature(rows)
    np.save(tmp_path / "x.npy", rows.numpy())
    return dp.DiskFeature(tmp_path / "x.npy")


def chain(feature):
    store = dp.FeatureStore({("node", None, "x"): feature})
    return items().sample_neighbor(small_graph(), [3]).fetch_feature(store, ["x"])


def begun(stage):
    """Begin an epoch, which is open as long as the iterator that is returned."""
    iterator = iter(stage)
    next(iterator)
    return iterator


def rows_of(minibatches):
    """Return what an epoch says that each node has."""
    found = {}
    for minibatch in minibatches:
        found.update(zip(minibatch.input_nodes.tolist(), minibatch.node_features["x"].flatten().tolist(), strict=True))
    return found


def expected(changed):
    return {node: float(node) for node in range(NUM_NODES)} | ({3: -1.0, 5: -2.0} if changed else {})


def assert_refused(feature, where="DataLoader"):
    before = feature.read(IDS)
    said = {
        "stage": r"^\w+Feature.update",
        "found": rf"an epoch is open of the chain that ends in {where}.* fetch_feature",
        "allowed": "'x'",
    }
    with refused(RuntimeError, **said, remedy="Read the epoch to its end"):
        feature.update(IDS, NEW)
    assert torch.equal(feature.read(IDS), before)


def assert_allowed(feature):
    feature.update(IDS, NEW)
    assert torch.equal(feature.read(IDS), NEW)


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_an_open_epoch_refuses_and_the_next_one_has_the_rows(feature, options):
    with dp.DataLoader(chain(feature), **options) as loader:
        iterator = iter(loader)
        found = rows_of([next(iterator)])
        assert_refused(feature)
        found |= rows_of(iterator)
        assert found.items() <= expected(False).items()
        assert_allowed(feature)  # the epoch has ended
        found = rows_of(loader)
        assert found.items() <= expected(True).items()
        assert found[3] == -1


@pytest.mark.parametrize("how", ["left", "closed", "another epoch", "dropped"])
def test_an_epoch_that_was_left_refuses_nothing(feature, how):
    loader = dp.DataLoader(chain(feature))
    iterator = begun(loader)
    assert_refused(feature)
    if how == "dropped":
        del loader
        assert_refused(feature)  # the iterator keeps it
    if how in ("left", "dropped"):
        del iterator
        gc.collect()
    elif how == "closed":
        loader.close()
    else:
        rows_of(loader)
    assert_allowed(feature)


def test_a_loop_refuses_until_it_is_left(feature):
    loader = dp.DataLoader(chain(feature))
    for _ in loader:
        assert_refused(feature)
        break
    assert_allowed(feature)
    assert rows_of(loader).items() <= expected(True).items()
    loader.close()


def test_other_features_may_be_updated_in_the_loop(feature):
    other = dp.TensorFeature(torch.zeros(NUM_NODES, 1))
    for minibatch in dp.DataLoader(chain(feature)):
        other.update(minibatch.input_nodes, minibatch.node_features["x"] + 1)
    done = other.read(torch.arange(NUM_NODES)).flatten()
    assert (done[done > 0] == torch.arange(NUM_NODES)[done > 0] + 1).all()
    assert (done > 0).sum() > 10


def test_chains_without_a_loader_and_stages_behind_one_are_seen(feature):
    for last in (chain(feature), chain(feature).prefetch(), dp.DataLoader(chain(feature)).transform(lambda each: each)):
        iterator = begun(last)
        assert_refused(feature, type(last).__name__)
        assert rows_of(iterator)
        feature.update(IDS, feature.read(IDS))
        last.close()


def test_caches_count_as_the_feature_under_them(feature):
    cached = dp.CPUCachedFeature(feature, "1MB")
    with dp.DataLoader(chain(cached)) as loader:
        iterator = begun(loader)
        for each in (feature, cached):
            assert_refused(each)
        rows_of(iterator)
        cached.update(IDS, NEW)
        assert rows_of(loader).items() <= expected(True).items()


def test_a_cache_over_the_feature_may_not_change_what_a_loader_reads_without_it(feature):
    cached = dp.CPUCachedFeature(feature, "1MB")
    with dp.DataLoader(chain(feature)) as loader:
        _open = begun(loader)
        assert_refused(cached)


def test_a_stage_of_ones_own_may_say_what_it_reads(feature, refuses):
    _open = begun(Reads(items(), feature))
    refuses(RuntimeError, feature.update, IDS, NEW)


@pytest.mark.parametrize(("method", "persistent"), ranked([(SPAWN, True), (SPAWN, False), ("fork", True)], 2))
def test_workers_with_a_copy_refuse_until_they_are_closed(feature, method, persistent):
    options = {"cut": "end", "multiprocessing_context": method, "persistent_workers": persistent}
    with dp.DataLoader(chain(feature), 1, **options) as loader:
        rows_of(loader)
        with pytest.raises(RuntimeError, match=r"Feature\.update: worker processes have a copy.* Close the loader"):
            feature.update(IDS, NEW)
    assert_allowed(feature)
    with dp.DataLoader(chain(feature), 1, **options) as loader:
        assert rows_of(loader).items() <= expected(True).items()
