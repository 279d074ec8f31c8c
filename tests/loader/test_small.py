"""Small minibatches are made in the caller's thread, unless an option of the threads is given."""

import numpy as np
import pytest
import torch
import worker_stages as ws
from pipelines import fetched, items, sampled, small_graph, small_store
from typed_pipelines import typed_fetched, typed_sampled

import datapipes as dp
from datapipes.loader import passes

BOUND = 1_000_000


@pytest.fixture(autouse=True)
def _the_bound_that_users_have(monkeypatch):
    monkeypatch.setattr(passes, "MOST_BYTES", BOUND)


def has_threads(chain: dp.Stage, **options) -> bool:
    with dp.DataLoader(chain, **options) as loader:
        waits = any(isinstance(stage, dp.Prefetcher) for stage in loader.rewritten())
        assert ("  thread 1 (datapipes-prefetch-1)" in loader.explain()) == waits
        assert waits == any(name.startswith("waiting") for name in (list(loader), loader.stats())[1])
        return waits


class Own(dp.NeighborSampler):
    """A sampler of a user's."""


class Items(dp.ItemSet):
    """Items of a user's."""


class OwnGraph(dp.CSCGraph):
    """A graph of a user's."""


class Rows(dp.TensorFeature):
    """A feature of a user's."""


ROWS_OF_A_USER = {("node", None, "feat"): Rows(torch.ones(40))}
WITHOUT_THREADS = [
    *((items, {}), (sampled, {}), (fetched, {}), (fetched, {"overlap": False})),
    (lambda: fetched(fetched()), {}),
    (lambda: typed_sampled(fanouts=[2]), {}),
    (fetched, {"num_workers": 0, "max_restarts": 4}),  # of processes, which there are none
]
WITH_THREADS = [
    (typed_fetched, {}),  # it has the fanout -1
    *((fetched, {"overlap": True}), (fetched, {"timeout": 60.0}), (fetched, {"prefetch_factor": 1})),
    (lambda: fetched().transform(lambda minibatch: minibatch), {}),
    (lambda: fetched().copy_to("cpu"), {}),
    (lambda: fetched(ws.PassOnAsync(sampled())), {}),
    (lambda: sampled().fetch_feature(ws.RemoteAsyncStore(dict(small_store())), ["feat"]), {}),
    (lambda: Own(items(), small_graph(), [2]), {}),
    (lambda: items().fetch_feature(dp.FeatureStore(ROWS_OF_A_USER), ["feat"]), {}),
    (lambda: items().sample_neighbor(small_graph(), [-1]), {}),
    (lambda: items().sample_neighbor(small_graph(), [2], subgraph_type="induced"), {}),
    (lambda: items().sample_layer_neighbor(small_graph(), [2]), {}),  # it reads all in-edges
    (lambda: items().sample_neighbor(OwnGraph(small_graph().indptr, small_graph().indices), [2]), {}),
    (lambda: dp.ItemSampler(Items(40), 4), {}),
]


@pytest.mark.parametrize(
    ("chain", "options", "expected"),
    [*((*case, False) for case in WITHOUT_THREADS), *((*case, True) for case in WITH_THREADS)],
)
def test_a_chain_has_threads_unless_its_minibatches_are_known_to_be_small(chain, options, expected):
    assert has_threads(chain(), **options) is expected


def test_files_may_take_any_time(tmp_path):
    np.save(tmp_path / "feat.npy", np.ones((40, 2)))
    mapped = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(np.load(tmp_path / "feat.npy", mmap_mode="r"))})
    small_graph().save(tmp_path / "graph")
    assert has_threads(sampled().fetch_feature(mapped, ["feat"]))
    for mmap in (True, False):
        assert has_threads(sampled(graph=dp.CSCGraph.open(tmp_path / "graph", mmap))) is mmap


def wide(num_floats: int) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.ones(40, num_floats))})


@pytest.mark.parametrize(("beyond", "expected"), [(0, False), (1, True)])
def test_the_bound_counts_the_nodes_and_their_rows(monkeypatch, beyond, expected):
    nodes = 4 * (1 + 3) * (1 + 2)  # of minibatches of 4 seeds, each an id and a label
    monkeypatch.setattr(passes, "MOST_BYTES", 4 * (8 + 8 + 4) + nodes * (64 + 4 * 25) - beyond)
    assert has_threads(items().sample_neighbor(small_graph(), [2, 3]).fetch_feature(wide(25), ["feat"])) is expected


@pytest.mark.parametrize(("beyond", "expected"), [(0, False), (1, True)])
def test_pairs_count_as_two_seeds(monkeypatch, beyond, expected):
    pairs = dp.ItemSampler(dp.ItemSet(torch.zeros(12, 2, dtype=torch.int64)), 3)
    monkeypatch.setattr(passes, "MOST_BYTES", 3 * (8 + 16) + 2 * 3 * (1 + 2) * 64 - beyond)
    assert has_threads(pairs.sample_neighbor(small_graph(), [2])) is expected


def test_the_minibatches_are_the_same():
    threads, none = (list(dp.DataLoader(fetched(), overlap=overlap)) for overlap in (True, None))
    for with_threads, without in zip(threads, none, strict=True):
        assert with_threads.digest() == without.digest()


def test_an_epoch_goes_on_with_and_without_threads():
    expected = [minibatch.digest() for minibatch in fetched()]
    for first, then in ((None, True), (True, None)):
        loader = dp.DataLoader(fetched(), overlap=first)
        minibatches = iter(loader)
        got = [next(minibatches).digest() for _ in range(2)]
        rest = dp.DataLoader(fetched(), overlap=then)
        rest.load_state_dict(loader.state_dict())
        assert [*got, *(minibatch.digest() for minibatch in rest)] == expected
