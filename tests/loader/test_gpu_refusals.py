"""What the DataLoader refuses when it plans a chain for the fake GPU, and what it says to do."""

import gc
from collections.abc import Iterator

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import as_it_is, fetched, refused, sampled, small_store

import datapipes as dp
from datapipes.device import kernels

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

IN_THREADS = {"num_workers": 1, "worker_method": "thread", "cut": "end"}
BEHIND = r"Leave it out, or put fetch_feature behind copy_to: its features are page-locked"
PIN = r"Leave it out, or pin the features\."
FIRST_COPY = r"Leave it out, or put copy_to\('cuda'\) before fetch_feature and pin the features\."
UNUSED = {
    "pinned, in worker threads": (lambda gpu: sampled().fetch_feature(pinned(), ["feat"]), "cuda", IN_THREADS, BEHIND),
    "pinned, a stage between": (
        lambda gpu: sampled().fetch_feature(pinned(), ["feat"]).transform(as_it_is),
        *("cuda", {}, BEHIND),
    ),
    "pinned, no copy": (lambda gpu: sampled().fetch_feature(pinned(), ["feat"]), None, {}, FIRST_COPY),
    "no copy": (lambda gpu: fetched(), None, {}, FIRST_COPY),
    "not pinned": (lambda gpu: fetched(), "cuda", {}, PIN),
    "not pinned, in worker threads": (lambda gpu: fetched(), "cuda", IN_THREADS, PIN),
    "on the gpu": (lambda gpu: sampled().fetch_feature(on_gpu(gpu), ["feat"]), "cuda", {}, r"Leave it out\."),
    "nothing to read": (lambda gpu: sampled(), "cuda", {}, r"Leave it out\."),
}


@pytest.mark.parametrize("case", UNUSED)
def test_max_uva_threads_that_nothing_uses_says_what_would_use_it(gpu, case):
    build, device, options, remedy = UNUSED[case]
    chain = build(gpu) if device is None else build(gpu).copy_to(device)
    allowed = "allowed: 10240"
    with refused(ValueError, stage="data_loader", found="max_uva_threads is 64", allowed=allowed, remedy=remedy):
        dp.DataLoader(chain, max_uva_threads=64, **options)
    if remedy == BEHIND:
        dp.DataLoader(sampled().copy_to("cuda").fetch_feature(pinned(), ["feat"]), max_uva_threads=64, **options)


def test_max_uva_threads_without_triton_says_what_to_install(gpu, monkeypatch):
    monkeypatch.setattr(kernels, "HAS_TRITON", False)
    remedy = r"Leave it out, or install triton, .*: pip install datapipes\[gpu\]\."
    with refused(ValueError, stage="data_loader", found="is 64", allowed="allowed: 10240", remedy=remedy):
        dp.DataLoader(sampled().fetch_feature(pinned(), ["feat"]).copy_to("cuda"), max_uva_threads=64)
