"""What the DataLoader refuses when it plans a chain for the fake GPU, and what it says to do."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import as_it_is, fetched, items, sampled, small_graph, small_store

import datapipes as dp
from datapipes.device import kernels, runtime

CUDA = torch.device("cuda", 0)
ROWS = torch.arange(120.0).reshape(40, 3)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.setattr(kernels, "HAS_TRITON", True)
    with fake_cuda(num_devices=2, interprets=False) as gpu:
        yield gpu
        gc.collect()  # what is pinned ends on the fake


def pinned() -> dp.FeatureStore:
    return small_store().pin_memory_()


def on_gpu(gpu: FakeCuda, device: torch.device = CUDA) -> dp.FeatureStore:
    rows = gpu.copy(ROWS, device, non_blocking=False)
    return dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(rows)})


# --- max_uva_threads where nothing is read by UVA

IN_A_THREAD = {"num_workers": 1, "worker_method": "thread"}
IN_THREADS = {**IN_A_THREAD, "cut": "end"}
UNUSED = {
    "pinned, in worker threads": (lambda gpu: sampled().fetch_feature(pinned(), ["feat"]), "cuda", IN_THREADS),
    "pinned, a stage between": (
        lambda gpu: sampled().fetch_feature(pinned(), ["feat"]).transform(as_it_is),
        *("cuda", IN_A_THREAD),
    ),
    "pinned, no copy": (lambda gpu: sampled().fetch_feature(pinned(), ["feat"]), None, IN_A_THREAD),
    "no copy": (lambda gpu: fetched(), None, IN_A_THREAD),
    "not pinned": (lambda gpu: fetched(), "cuda", IN_A_THREAD),
    "not pinned, in worker threads": (lambda gpu: fetched(), "cuda", IN_THREADS),
    "on the gpu": (lambda gpu: sampled().fetch_feature(on_gpu(gpu), ["feat"]), "cuda", IN_A_THREAD),
    "on the gpu, behind the copy": (
        lambda gpu: sampled().copy_to("cuda").fetch_feature(on_gpu(gpu), ["feat"]),
        *(None, IN_A_THREAD),
    ),
    "nothing to read": (lambda gpu: sampled(), "cuda", IN_A_THREAD),
}


def test_max_uva_threads_that_nothing_uses_says_what_would_use_it(gpu, refuses, caplog):
    caplog.set_level("INFO", logger="datapipes")
    for build, device, options in UNUSED.values():
        chain = build(gpu) if device is None else build(gpu).copy_to(device)
        refuses(ValueError, dp.DataLoader, chain, max_uva_threads=64, **options)
        if options is IN_A_THREAD:
            caplog.clear()
            dp.DataLoader(chain, max_uva_threads=64)
            assert "max_uva_threads is 64, but no stage" in caplog.text
    for options in (IN_A_THREAD, IN_THREADS, {}):
        dp.DataLoader(sampled().copy_to("cuda").fetch_feature(pinned(), ["feat"]), max_uva_threads=64, **options)


def test_max_uva_threads_without_triton_says_what_to_install(gpu, monkeypatch, refuses):
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    chain = sampled().fetch_feature(pinned(), ["feat"]).copy_to("cuda")
    refuses(ValueError, dp.DataLoader, chain, max_uva_threads=64, **IN_A_THREAD)


# --- ids in the wrong memory


def to_gpu(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """A stage of the user's that copies by itself."""
    return minibatch.map_tensors(lambda tensor: runtime.cuda().copy(tensor, CUDA, non_blocking=False))


def to_host(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return minibatch.to("cpu")


LOADERS = [{}, {"overlap": False}, {"num_workers": 1, "worker_method": "thread"}, {"num_workers": 1}]


def own_sampler(source: dp.Stage, transform: Any = dp.stages.Sampler.transform) -> dp.stages.Sampler:
    """Return a sampler of the user's that draws nothing."""

    class Own(dp.stages.Sampler):
        def draw(self, nodes: torch.Tensor, hop: int, rng: Any) -> dp.stages.Picks:
            return dp.stages.Picks(torch.zeros(len(nodes) + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    Own.transform = transform
    return Own(source, small_graph(), [1])


def trees(source: dp.Stage) -> dp.stages.Sampler:
    return source.sample_neighbor(small_graph(), [2], disjoint=True)


def on_host(sampler: dp.stages.Sampler, minibatch: dp.MiniBatch) -> dp.MiniBatch:
    return dp.stages.Sampler.transform(sampler, to_host(minibatch))


@pytest.mark.parametrize("options", LOADERS, ids=str)
def test_a_sampler_behind_the_copy_is_refused(gpu, options, refuses):
    copied = items().copy_to("cuda:1")
    for chain in (copied, copied.prefetch()):
        for sampler in (sampled, trees, own_sampler):
            refuses(ValueError, dp.DataLoader, sampler(chain), **options)


SAMPLED_ON_HOST = {
    "a stage of the user's": lambda: sampled(items().copy_to("cuda").transform(to_host)),
    "a copy back": lambda: sampled(items().copy_to("cuda").copy_to("cpu")),
    "a sampler of the user's": lambda: own_sampler(items().copy_to("cuda"), on_host),
}


@pytest.mark.parametrize("name", SAMPLED_ON_HOST)
def test_a_sampler_that_gets_its_seeds_in_host_memory_is_not(gpu, name):
    assert len(list(dp.DataLoader(SAMPLED_ON_HOST[name]()))) == 6


@pytest.mark.parametrize("options", LOADERS, ids=str)
def test_rows_on_a_gpu_are_not_fetched_with_ids_in_host_memory(gpu, options, refuses):
    store = on_gpu(gpu, torch.device("cuda", 1))
    before_fetch = [
        *(sampled(), items(), sampled(items().transform(to_gpu).transform(to_host))),
        sampled().copy_to("cuda").copy_to("cpu"),
    ]
    for chain in before_fetch:
        refuses(ValueError, dp.DataLoader, chain.fetch_feature(store, ["feat"]), **options)
    chain = sampled().fetch_feature(store, ["feat"]).transform(as_it_is).copy_to("cuda")
    refuses(ValueError, dp.DataLoader, chain, **options)


def test_rows_on_a_gpu_are_not_fetched_in_worker_processes(gpu, refuses):
    refuses(ValueError, dp.DataLoader, sampled().fetch_feature(on_gpu(gpu), ["feat"]), 1, cut="end")


class OnGpu(dp.TensorFeature):
    """A feature of the user's that takes ids to its rows by itself."""

    def read(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().read(runtime.cuda().copy(ids, self.tensor.device, non_blocking=False))


class OwnStore(dp.FeatureStore):
    def read_many(self, requests: Any) -> Any:
        moved = [runtime.cuda().copy(request[3], CUDA, non_blocking=False) for request in requests]
        return super().read_many([(*request[:3], ids) for request, ids in zip(requests, moved, strict=True)])


@pytest.mark.skipif(not kernels.HAS_TRITON, reason="needs triton")
def test_rows_on_a_gpu_are_fetched_where_a_stage_a_store_or_a_feature_of_the_users_brings_the_ids_there(gpu):
    rows = gpu.copy(ROWS, CUDA, non_blocking=False)
    own_feature = dp.FeatureStore({("node", None, "feat"): OnGpu(rows)})
    own_store = OwnStore({("node", None, "feat"): dp.TensorFeature(rows)})
    chains = {
        "stage": sampled().transform(to_gpu).fetch_feature(on_gpu(gpu), ["feat"]),
        "feature": sampled().fetch_feature(own_feature, ["feat"]),
        "store": sampled().fetch_feature(own_store, ["feat"]),
        "inner loader": dp.DataLoader(sampled().fetch_feature(on_gpu(gpu), ["feat"]).copy_to("cuda")).transform(
            as_it_is
        ),
    }
    for name, chain in chains.items():
        for minibatch in dp.DataLoader(chain):
            taken = minibatch.input_nodes.cpu()
            assert torch.equal(minibatch.node_features["feat"].cpu(), ROWS[taken]), name
