"""The plans of chains that copy to a GPU, on the fake one."""

import gc
from collections.abc import Iterator

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import small_graph

import datapipes as dp
from datapipes.device import kernels

ROWS = torch.arange(120.0).reshape(40, 3)
needs_triton = pytest.mark.skipif(not kernels.HAS_TRITON, reason="needs triton")


@pytest.fixture(params=[0.0, 1.0], ids=["late", "at_once"])
def gpu(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    with fake_cuda(num_devices=2, interprets=False, haste=request.param) as fake:
        yield fake
        gc.collect()  # what is pinned ends on the fake


def sampled() -> dp.Stage:
    return dp.ItemSampler(dp.ItemSet(20), 4).sample_neighbor(small_graph(), [2])


def store_of(rows: torch.Tensor) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(rows)})


def check_rows(chain: dp.Stage, device: str) -> None:
    for minibatch in dp.DataLoader(chain):
        found = minibatch.node_features["feat"]
        assert found.device == torch.device(device)
        assert torch.equal(found.cpu(), ROWS[minibatch.input_nodes.cpu()])


def test_without_triton_pinned_features_are_fetched_before_the_copy(gpu, monkeypatch):
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    check_rows(sampled().fetch_feature(store_of(ROWS).pin_memory_(), ["feat"]).copy_to("cuda:0"), "cuda:0")


def test_without_triton_a_fetch_behind_the_copy_says_what_to_install(gpu, monkeypatch):
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    with pytest.raises(ImportError, match=r"pip install triton \(in the extra \[gpu\] of"):
        check_rows(sampled().copy_to("cuda:0").fetch_feature(store_of(ROWS).pin_memory_(), ["feat"]), "cuda:0")


@needs_triton
def test_a_fetch_between_copies_to_two_gpus_reads_with_the_ids_of_the_first(gpu):
    on_first = gpu.copy(ROWS, torch.device("cuda:0"), non_blocking=False)
    check_rows(sampled().copy_to("cuda:0").fetch_feature(store_of(on_first), ["feat"]).copy_to("cuda:1"), "cuda:1")


@needs_triton
def test_a_minibatch_made_again_says_itself_that_ids_have_no_row(gpu):
    def wrong(minibatch):
        return minibatch.replace(input_nodes=minibatch.input_nodes + 1000) if minibatch.index == 1 else minibatch

    chain = sampled().transform(wrong).copy_to("cuda:0").fetch_feature(store_of(ROWS).pin_memory_(), ["feat"])
    loader = dp.DataLoader(chain)
    with pytest.raises(IndexError, match="have no row, the smallest is 1"):
        loader.minibatch(0, 1)
    assert loader.minibatch(0, 2).index == 2


@needs_triton
def test_an_epoch_ends_with_all_that_its_ids_lack(gpu):
    def wrong(minibatch):
        return minibatch.replace(input_nodes=minibatch.input_nodes + 1000) if minibatch.epoch == 0 else minibatch

    features = {("node", None, name): dp.TensorFeature(ROWS) for name in ("one", "other")}
    sampled = dp.ItemSampler(dp.ItemSet(4), 4).sample_neighbor(small_graph(), [2])  # one minibatch, no read after it
    store = dp.FeatureStore(features).pin_memory_()
    loader = dp.DataLoader(sampled.transform(wrong).copy_to("cuda:0").fetch_feature(store, ["one", "other"]))
    with pytest.raises(IndexError, match="'one'"):
        list(loader)
    assert len(list(loader)) == 1


def test_a_channel_of_the_users_own_is_page_locked_too(gpu):
    chain = sampled().fetch_feature(store_of(ROWS), ["feat"]).copy_to("cuda:0")
    channel = dp.ShmChannel(16, "1MB")
    with dp.DataLoader(chain, 1, channel=channel, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 5
        assert sum(gpu.registered.values()) >= 2**20
    channel.close()
    assert gpu.registered == {}
