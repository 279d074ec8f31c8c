"""Minibatches with types: the same bits for any workers, channels and threads, after kills and resumed."""

import functools

import numpy as np
import pytest
import torch
import worker_stages as ws
from pipelines import digests
from strategies import random_graph
from typed_pipelines import typed_fetched, typed_items, typed_links, typed_sampled

import datapipes as dp
from datapipes.processes.sharing import Together

# The seeds of the links are edges by chance.
pytestmark = pytest.mark.filterwarnings("ignore:data_loader. .* positive seeds are among")

CHAINS = {"nodes": typed_fetched, "links": typed_links}


@functools.cache
def expected(name: str) -> list[list[str]]:
    chain = CHAINS[name]()
    return [digests(chain) for _ in range(2)]


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("channel", ["shm", "mp"])
def test_a_killed_worker_changes_nothing(tmp_path, caplog, channel, name):
    def sampled() -> dp.Stage:
        return typed_sampled(typed_items(links=name == "links"), frontier="new")

    chain = typed_fetched(ws.DieOnce(sampled(), str(tmp_path / "mark")))
    with dp.DataLoader(chain, 2, multiprocessing_context="fork", channel=channel) as loader:
        got = digests(loader)
    assert (tmp_path / "mark").exists()
    assert "killed by SIGKILL" in caplog.text
    assert got == digests(typed_fetched(sampled()))


def test_a_minibatch_can_be_made_again_alone():
    for name, make in CHAINS.items():
        assert [dp.DataLoader(make()).minibatch(1, i).digest() for i in (5, 0)] == [
            expected(name)[1][i] for i in (5, 0)
        ]


def large_chain() -> dp.Stage:
    """A chain whose blocks are large enough for several threads."""
    relations, num_nodes = {}, {"a": 9_000, "b": 9_000}
    for number, of in enumerate([("a", "r", "a"), ("a", "r", "b"), ("b", "r", "a"), ("b", "s", "a")]):
        graph = random_graph(9_000, 200_000, rng_seed=number)
        relations[of] = (graph.indptr, graph.indices)
    items = dp.HeteroItemSet({"a": dp.ItemSet(9_000), "b": dp.ItemSet(torch.arange(0, 9_000, 3))})
    features = {
        ("node", of, "feat"): dp.TensorFeature(torch.from_numpy(np.arange(9_000 * 40.0).reshape(-1, 40))) for of in "ab"
    }
    chain = dp.ItemSampler(items, 3_000, shuffle=True, seed=5)
    chain = chain.sample_neighbor(dp.HeteroCSCGraph(relations, num_nodes), [10, 10], return_edge_ids=True)
    return chain.fetch_feature(dp.FeatureStore(features), {"a": ["feat"], "b": ["feat"]})


def test_a_minibatch_is_the_same_for_any_number_of_threads(torch_threads):
    torch_threads(1)
    chain = large_chain()
    made = digests(chain)  # of epoch 0
    assert min(block.num_edges for block in next(iter(chain)).blocks[0].values()) > 2 * 16_384
    for threads in (2, 7):
        torch_threads(threads)
        assert digests(large_chain()) == made


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_trial_when_a_loader_is_built_copies_no_graph(monkeypatch):
    """It used to pickle the arrays of all relations by value."""

    def copied(self):
        raise AssertionError("the tensors were pickled")

    monkeypatch.setattr(Together, "__reduce__", copied)
    dp.DataLoader(typed_fetched(), 2).close()
