"""What a DataLoader plans for a chain that copies to a GPU, and what it refuses; on the fake device."""

import gc
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import torch
from fake_device import FakeCuda, fake_cuda, train
from pipelines import digests, fetched, items, sampled, small_store
from plain_cuda import needs_interpreter

import datapipes as dp
from datapipes.device.gather import max_uva_threads

pytest.importorskip("triton")
pytestmark = needs_interpreter

CUDA = torch.device("cuda", 0)
T = TypeVar("T")
ROWS = torch.randn(20, 6, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_cuda(haste=0.0, interprets=False) as gpu:
        yield gpu
        gc.collect()  # what a test has locked, and errors kept, is let go while this device is there


def pinned(store: dp.FeatureStore | None = None) -> dp.FeatureStore:
    return (store or small_store()).pin_memory_()


def behind(store: dp.FeatureStore) -> dp.Stage:
    return sampled().copy_to("cuda").fetch_feature(store, ["feat"], ["weight"])


# --- max_uva_threads


def test_max_uva_threads_is_a_whole_number_from_1_on(gpu, refuses):
    chain = behind(pinned())
    for value in (0, -1):
        refuses(ValueError, dp.DataLoader, chain, max_uva_threads=value)
    for value in (True, 1.5):
        refuses(TypeError, dp.DataLoader, chain, max_uva_threads=value)


def test_max_uva_threads_is_refused_where_rows_have_no_values(gpu, refuses, caplog):
    without_values = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.ones(40, 0))})
    chain = sampled().copy_to("cuda").fetch_feature(without_values, ["feat"])
    refuses(ValueError, dp.DataLoader, chain, 1, max_uva_threads=64, worker_method="thread")
    caplog.set_level("INFO", logger="datapipes")
    dp.DataLoader(chain, max_uva_threads=64)
    assert "max_uva_threads is 64, but no stage" in caplog.text


def noted_reads(monkeypatch: pytest.MonkeyPatch, note: Callable[[], T] = max_uva_threads) -> list[T]:
    """Return a list to which each read of a feature adds what `note` gives then."""
    noted: list[T] = []
    read = dp.TensorFeature.read

    def noted_read(feature: dp.TensorFeature, ids: torch.Tensor) -> torch.Tensor:
        noted.append(note())
        return read(feature, ids)

    monkeypatch.setattr(dp.TensorFeature, "read", noted_read)
    return noted


def test_each_chain_has_its_own_max_uva_threads_and_the_chain_that_is_given_stays_as_it_is(gpu, monkeypatch):
    limits = noted_reads(monkeypatch)
    chain = behind(pinned())
    loaders = {cap: dp.DataLoader(chain, overlap=False, max_uva_threads=cap) for cap in (64, 512)}
    for streams in zip(*loaders.values(), strict=True):  # in turn, in one thread, with one fetcher between them
        for minibatch in streams:
            train(gpu, minibatch, [])
    caps = {cap: loader.rewritten().find(dp.FeatureFetcher)[0] for cap, loader in loaders.items()}
    assert limits == ([64] * 3 + [512] * 3) * len(chain)
    for cap, planned in caps.items():
        assert f"max_uva_threads={cap}" in repr(planned)
        assert planned is not chain
    assert "max_uva_threads" not in repr(chain)
    limits.clear()
    next(iter(chain))
    assert set(limits) == {10240}
    assert max_uva_threads() == 10240


class ScaledFetcher(dp.FeatureFetcher):
    """A stage of a user's, with an argument and a transform of its own."""

    def __init__(self, source: dp.Stage, store: dp.FeatureStore, *, scale: float) -> None:
        super().__init__(source, store, ["feat"])
        self.scale = scale

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        minibatch = super().transform(minibatch)
        return minibatch.replace(node_features={"feat": minibatch.node_features["feat"] * self.scale})


def test_a_fetcher_of_a_users_own_is_planned_with_its_arguments(gpu):
    wanted = digests(ScaledFetcher(sampled(), small_store(), scale=3.0))
    chain = ScaledFetcher(sampled().copy_to("cuda"), pinned(), scale=3.0)
    loader = dp.DataLoader(chain, max_uva_threads=64)
    (planned,) = loader.rewritten().find(ScaledFetcher)
    assert planned is not chain
    assert planned.scale == 3.0
    seen: list[str] = []
    for minibatch in loader:
        train(gpu, minibatch, seen)
    gpu.synchronize()
    assert seen == wanted


class ReadingFetcher(dp.FeatureFetcher):
    """A stage of a user's that reads by itself."""

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        rows = self.feature_store.read("node", None, "feat", minibatch.input_nodes)
        return minibatch.replace(node_features={"feat": rows})


@pytest.mark.parametrize("options", [{}, {"overlap": False}], ids=str)
def test_a_fetcher_with_a_transform_of_its_own_reads_within_max_uva_threads(gpu, monkeypatch, options):
    limits = noted_reads(monkeypatch)
    chain = ReadingFetcher(sampled().copy_to("cuda"), pinned(), ["feat"])
    wanted = digests(ReadingFetcher(sampled(), small_store(), ["feat"]))
    limits.clear()
    seen: list[str] = []
    for minibatch in dp.DataLoader(chain, max_uva_threads=64, **options):
        train(gpu, minibatch, seen)
    gpu.synchronize()
    assert seen == wanted
    assert limits == [64] * len(chain)


def test_loaders_of_one_chain_that_run_at_once_keep_their_caps_apart(gpu, monkeypatch):
    reads = noted_reads(monkeypatch, lambda: (threading.current_thread(), max_uva_threads()))
    chain = ScaledFetcher(sampled().copy_to("cuda"), pinned(), scale=3.0)
    loaders = [dp.DataLoader(chain, max_uva_threads=cap) for cap in (64, 512)]
    for minibatches in zip(*loaders, strict=True):
        for minibatch in minibatches:
            train(gpu, minibatch, [])
    assert sorted(cap for _, cap in set(reads)) == [64, 512]
    assert len({thread for thread, _ in reads}) == 2


# --- features on a GPU before the copy


def mixed(gpu: FakeCuda) -> dp.FeatureStore:
    """Return the small store with its node feature on the GPU and its edge feature in memory that is not locked."""
    weight = small_store()["edge", None, "weight"]
    on_gpu = dp.TensorFeature(gpu.copy(torch.ones(40, 3), CUDA, non_blocking=False))
    return dp.FeatureStore({("node", None, "feat"): on_gpu, ("edge", None, "weight"): weight})


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"num_workers": 1, "worker_method": "thread"}], ids=str)
def test_a_fetch_before_the_copy_of_rows_on_the_gpu_and_in_plain_memory_is_refused(gpu, options, refuses):
    store = mixed(gpu)
    chain = sampled().fetch_feature(store, ["feat"], ["weight"]).copy_to("cuda")
    refuses(ValueError, dp.DataLoader, chain, **options)
    apart = sampled().fetch_feature(store, None, ["weight"]).copy_to("cuda").fetch_feature(store, ["feat"])
    store["edge", None, "weight"].pin_memory_()
    seen: list[list[str]] = []
    for remedied in (apart, chain):
        seen.append([])
        for minibatch in dp.DataLoader(remedied, **options):
            train(gpu, minibatch, seen[-1])
    gpu.synchronize()
    assert seen[0] == seen[1]
    assert len(seen[0]) == len(chain)


def test_rows_on_the_gpu_that_are_fetched_before_a_fetch_in_plain_memory_are_refused(gpu, refuses):
    store = mixed(gpu)
    chain = sampled().fetch_feature(store, ["feat"]).fetch_feature(store, None, ["weight"]).copy_to("cuda")
    refuses(ValueError, dp.DataLoader, chain)


@pytest.mark.parametrize("rows", ["pinned", "on the device"])
def test_the_chain_of_a_loader_in_a_chain_is_planned_by_that_loader_alone(gpu, rows):
    feature = small_store()["node", None, "feat"]
    if rows == "pinned":
        feature.pin_memory_()
    else:
        feature = dp.TensorFeature(gpu.copy(feature.tensor, CUDA, non_blocking=False))
    store = dp.FeatureStore({("node", None, "feat"): feature})
    inner = dp.DataLoader(sampled().fetch_feature(store, ["feat"]).copy_to("cuda"))
    seen: list[list[str]] = []
    for loader in (inner, dp.DataLoader(inner.transform(lambda minibatch: minibatch), cut="end")):
        seen.append([])
        for minibatch in loader:
            train(gpu, minibatch, seen[-1])
        gpu.synchronize()
        loader.set_epoch(0)
    assert seen[0] == seen[1]
    assert len(seen[0]) == len(inner)


# --- devices that are not there


@pytest.mark.parametrize(
    ("num_devices", "device", "allowed"),
    [(0, "cuda", "allowed here: 'cpu'"), (1, "cuda:7", r"allowed are cuda:0 \.\. cuda:0\. Choose")],
)
def test_a_device_that_is_not_there_is_refused(num_devices, device, allowed):
    with fake_cuda(num_devices=num_devices), pytest.raises(ValueError, match=f"copy_to: .*'{device}'.*{allowed}"):
        sampled().copy_to(device)


# --- ids without a row


def reads(ids: list[int], gpu: FakeCuda) -> dp.Stage:
    """Return a chain of four minibatches that reads a pinned feature of 20 rows on the GPU, without a graph."""
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(ROWS).pin_memory_()})
    chain = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 2)
    return chain.copy_to("cuda").fetch_feature(store, ["feat"])


@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"num_workers": 2, "worker_method": "thread"}], ids=str)
def test_an_id_without_a_row_in_the_last_minibatch_is_raised_at_the_end_of_the_epoch(gpu, options, refuses):
    loader = dp.DataLoader(reads([0, 1, 2, 3, 4, 5, 6, 20], gpu), **options)
    for _ in range(2):  # the process lives, and so does the loader
        minibatches = iter(loader)
        given = [next(minibatches) for _ in range(4)]
        refuses(IndexError, next, minibatches)
        assert not given[-1].node_features["feat"].cpu()[1].any()


@pytest.mark.parametrize("in_loader", [True, False])
def test_an_id_without_a_row_in_the_first_minibatch_is_raised_by_a_later_fetch(gpu, in_loader, refuses):
    gpu.haste = 1.0
    chain = reads([0, -3, 2, 3, 4, 5, 6, 7], gpu)
    given = []
    with refuses(IndexError):
        for minibatch in dp.DataLoader(chain, overlap=False) if in_loader else chain:
            gpu.synchronize()
            given.append(minibatch)
    assert len(given) == 1


# --- a feature that is freed while a GPU may still read it


@pytest.mark.parametrize("rng_seed", range(3))
def test_a_feature_that_is_freed_in_the_middle_of_an_epoch_is_locked_until_its_reads_have_run(gpu, rng_seed):
    gpu.rng.seed(rng_seed)
    seen: list[str] = []
    store = pinned()
    loader = dp.DataLoader(behind(store))
    minibatches = iter(loader)
    for _ in range(2):
        train(gpu, next(minibatches), seen)
    loader.close()
    del loader, minibatches, store
    gc.collect()
    assert gpu.registered == {}  # unregistered, and not before what reads it: the fake would have said so
    assert seen == digests(fetched())[:2]


# --- what explain() says


def test_explain_shows_streams_and_what_is_read_how(gpu):
    shown = dp.DataLoader(behind(pinned()), max_uva_threads=64).explain()
    assert "on a GPU stream of its own" in shown
    assert "reads={'feat': 'uva', 'weight': 'uva'}, max_uva_threads=64" in shown
    shown = dp.DataLoader(fetched(sampled(items())).copy_to("cuda")).explain()
    assert "into='page-locked memory'" in shown
