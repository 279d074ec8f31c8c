"""The plans of chains that copy to a GPU, on the fake one: features of a user's own are read as they say."""

import gc
from collections.abc import Iterator

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import small_graph

import datapipes as dp
from datapipes.device import kernels

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(4))
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


# --- features of a user's own, and sparse ones


def read(features: dict[str, dp.Feature]) -> dp.Stage:
    store = dp.FeatureStore({("node", None, name): feature for name, feature in features.items()})
    return sampled().fetch_feature(store, [*features])


class OwnDecode(dp.TensorFeature):
    def _decode(self, rows: torch.Tensor) -> torch.Tensor:
        return super()._decode(rows) + 1


class OwnScale(dp.TensorFeature):
    def _scale_on(self, device: torch.device) -> torch.Tensor | None:
        return torch.ones(3)


class OwnStored(dp.TensorFeature):
    def _read_stored(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return super()._read_stored(ids, out) + 1


@pytest.mark.parametrize(("kind", "stored_as"), [(OwnDecode, "int8"), (OwnScale, "int8"), (OwnStored, None)])
def test_a_subclass_with_a_part_of_its_own_gives_the_values_of_its_read(gpu, kind, stored_as):
    feature = kind(ROWS, stored_as=stored_as)
    for minibatch in dp.DataLoader(read({"feat": feature}).copy_to("cuda")):
        ids = minibatch.input_nodes.cpu()
        assert torch.equal(minibatch.node_features["feat"].cpu(), feature.read(ids))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_rows_are_copied_from_page_locked_memory(gpu):
    feature = dp.SparseFeature.from_tensor(ROWS.to_sparse_csr())
    loader = dp.DataLoader(read({"words": feature}).copy_to("cuda"))
    assert "into='page-locked memory'" in loader.explain()
    for minibatch in loader:
        rows = minibatch.node_features["words"]
        assert {each.device.type for each in (rows.indptr, rows.indices, rows.values)} == {"cuda"}
        assert torch.equal(rows.to("cpu").csr().to_dense(), ROWS[minibatch.input_nodes.cpu()])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_rows_are_not_read_with_ids_on_a_gpu(gpu):
    feature = dp.SparseFeature.from_tensor(ROWS.to_sparse_csr())
    chain = sampled().copy_to("cuda").fetch_feature(dp.FeatureStore({("node", None, "words"): feature}), ["words"])
    with pytest.raises(ValueError, match="'words' is read only with ids in host memory"):
        list(dp.DataLoader(chain))


class Plain(dp.Feature):
    """A feature of the user's, which gives ordinary memory."""

    count, shape = 40, (3,)

    def read(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return ROWS[ids]


class OwnRead(dp.TensorFeature):
    def read(self, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().read(ids) * 2


@pytest.mark.parametrize(
    ("features", "into"),
    [
        ({"a": dp.TensorFeature(ROWS)}, ", into='page-locked memory')"),
        ({"a": dp.TensorFeature(ROWS), "b": Plain(), "c": OwnRead(ROWS)}, ", into={'a': 'page-locked memory'})"),
        ({"b": Plain()}, ")"),
        ({"c": OwnRead(ROWS)}, ")"),
    ],
)
def test_explain_names_what_is_read_into_page_locked_memory_and_nothing_else(gpu, features, into):
    chain = read(features)
    loader = dp.DataLoader(chain.copy_to("cuda"))
    assert f"fetch_feature: FetchForCopy(node_feature_keys={[*features]}{into}\n" in loader.explain()
    (taken,) = [minibatch for minibatch in chain if minibatch.index == 0]
    (fetch,) = loader.rewritten().find(dp.FeatureFetcher)
    for name, rows in fetch.transform(taken).node_features.items():
        assert gpu.covers(rows) == (f"'{name}': 'page-locked" in into or "into='" in into)
