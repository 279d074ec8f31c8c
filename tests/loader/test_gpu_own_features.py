"""Features and stages of a user's own in chains that copy to the fake GPU: read as they say, shown as read."""

import gc
from collections.abc import Iterator

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import small_graph

import datapipes as dp

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(4))


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_cuda(interprets=False) as gpu:
        yield gpu
        gc.collect()


def fetched(features: dict[str, dp.Feature]) -> dp.Stage:
    store = dp.FeatureStore({("node", None, name): feature for name, feature in features.items()})
    return dp.ItemSampler(dp.ItemSet(20), 4).sample_neighbor(small_graph(), [2]).fetch_feature(store, [*features])


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
    loader = dp.DataLoader(fetched({"feat": feature}).copy_to("cuda"))
    for minibatch in loader:
        ids = minibatch.input_nodes.cpu()
        assert torch.equal(minibatch.node_features["feat"].cpu(), feature.read(ids))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_rows_are_copied_from_page_locked_memory(gpu):
    feature = dp.SparseFeature.from_tensor(ROWS.to_sparse_csr())
    loader = dp.DataLoader(fetched({"words": feature}).copy_to("cuda"))
    assert "into='page-locked memory'" in loader.explain()
    for minibatch in loader:
        rows = minibatch.node_features["words"]
        assert {each.device.type for each in (rows.indptr, rows.indices, rows.values)} == {"cuda"}
        assert torch.equal(rows.to("cpu").csr().to_dense(), ROWS[minibatch.input_nodes.cpu()])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_sparse_rows_are_not_read_with_ids_on_a_gpu(gpu):
    feature = dp.SparseFeature.from_tensor(ROWS.to_sparse_csr())
    chain = dp.ItemSampler(dp.ItemSet(20), 4).sample_neighbor(small_graph(), [2]).copy_to("cuda")
    chain = chain.fetch_feature(dp.FeatureStore({("node", None, "words"): feature}), ["words"])
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
    chain = fetched(features)
    loader = dp.DataLoader(chain.copy_to("cuda"))
    assert f"fetch_feature: FetchForCopy(node_feature_keys={[*features]}{into}\n" in loader.explain()
    (taken,) = [minibatch for minibatch in chain if minibatch.index == 0]
    (fetch,) = loader.rewritten().find(dp.FeatureFetcher)
    for name, rows in fetch.transform(taken).node_features.items():
        assert gpu.covers(rows) == (f"'{name}': 'page-locked" in into or "into='" in into)
