"""Attributes of batches that the data does not have: features of this package, in files, cached, sparse, stored."""

import pytest
import torch
from pyg_cases import Data, OwnSampler, assert_same, random_data, random_hetero, stores_of, without_edge_ids

import datapipes as dp
from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves

OPTIONS = [
    {"num_workers": 0},
    {"num_workers": 0, "fetch_ahead": True},
    {"num_workers": 2},
    {"num_workers": 2, "fetch_ahead": False},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "filter_per_worker": True},
]
WRITES = ("author", "writes", "paper")


def without(data, *keys):
    """A copy of the data without these tensors, (type or None, name), and the tensors; both then have num_nodes."""
    for store in data.node_stores:
        store.num_nodes = store.num_nodes
    less, taken = data.clone(), {}
    for group, name in keys:
        store = less if group is None else less[group]
        taken[group, name] = store[name]
        del store[name]
    return less, taken


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader])
def test_batches_are_those_of_the_data_that_has_them(loader, options):
    data = random_data(1)
    less, taken = without(data, (None, "x"), (None, "edge_attr"))
    features = {
        "x": dp.TensorFeature(taken[None, "x"]),
        ("edge", None, "edge_attr"): dp.TensorFeature(taken[None, "edge_attr"]),
    }
    given = {"batch_size": 7, "shuffle": True}
    expected = list(loader(data, [3, 2], **given))
    batches = list(loader(less, [3, 2], features=features, **given, **options))
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_batches_with_types_are_those_of_the_data_that_has_them(options):
    data = random_hetero(1)
    less, taken = without(data, ("paper", "x"), (WRITES, "edge_attr"))
    store = dp.FeatureStore(
        {
            ("node", "paper", "x"): dp.TensorFeature(taken["paper", "x"]),
            ("edge", WRITES, "edge_attr"): dp.TensorFeature(taken[WRITES, "edge_attr"]),
        }
    )
    given = {"input_nodes": "paper", "batch_size": 7}
    expected = list(NeighborLoader(data, [3, 2], **given))
    batches = list(NeighborLoader(less, [3, 2], features=store, **given, **options))
    for batch, other in zip(batches, expected, strict=True):
        assert_same(batch, other)


@pytest.mark.parametrize("options", OPTIONS[:-1], ids=str)
def test_rows_come_from_files_through_caches_which_count(tmp_path, options):
    data = random_data(1)
    less, taken = without(data, (None, "x"))
    on_disk = dp.DiskFeature.write(tmp_path / "x.rows", taken[None, "x"])
    features = {"x": dp.CPUCachedFeature(on_disk, "64 KiB")}
    loader = NeighborLoader(less, [3, 2], batch_size=6, features=features, **options)
    for _ in range(2):
        for batch in loader:
            assert torch.equal(batch.x, data.x[batch.n_id])
    (counts,) = (row for row in loader.stats().values() if "node feature 'x': hits" in row)
    assert counts["node feature 'x': hits"] > 0
    assert "pyg_fetch" in loader.explain()
    with pytest.raises(TypeError, match="a cache belongs to one process and cannot go to a worker"):
        next(iter(NeighborLoader(less, [3, 2], features=features, num_workers=1, filter_per_worker=True)))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_sparse_and_stored_rows_are_read():
    data = random_data(1)
    dense = torch.arange(40 * 3).reshape(40, 3).float() * (torch.arange(120).reshape(40, 3) % 2)
    rows = dense.to_sparse_csr()
    features = {
        "words": dp.SparseFeature(rows.crow_indices(), rows.col_indices(), rows.values(), num_columns=3),
        "half": dp.TensorFeature(dense, stored_as=torch.float16),
    }
    del data.half
    for batch in NeighborLoader(data, [3, 2], batch_size=6, features=features):
        assert batch.words.layout == torch.sparse_csr
        assert torch.equal(batch.words.to_dense(), dense[batch.n_id])
        assert torch.equal(batch.half, dense[batch.n_id])


def own_sampler(data):
    """One that draws by ours, which the loader does not know."""
    return OwnSampler(NeighborSampler(data, [3, 2], seed=1).sample_from_nodes)


class OwnFilter(NeighborLoader):
    def filter_fn(self, out):
        return super().filter_fn(out)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "make",
    [
        lambda data, **options: NodeLoader(data, own_sampler(data), **options),
        lambda data, **options: OwnFilter(data, [3, 2], **options),
        lambda data, **options: NeighborLoader(stores_of(data, node_names=()), [3, 2], torch.arange(40), **options),
        lambda data, **options: NeighborLoader(data, [3, 2], transform=lambda batch: batch, **options),
    ],
    ids=["sampler", "filter_fn", "stores", "transform"],
)
def test_code_of_the_users_meets_the_rows(make, workers):
    data = random_data(1)
    rows = torch.rand(40, 2)
    for batch in make(data, num_workers=workers, batch_size=6, features={"rows": dp.TensorFeature(rows)}):
        assert torch.equal(batch.rows, rows[batch.n_id])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_that_changes_the_output_in_the_loop_gets_its_rows(workers):
    data, rows = random_data(1), torch.rand(40, 2)
    loader = NeighborLoader(data, [3, 2], batch_size=2, num_workers=workers, features={"rows": dp.TensorFeature(rows)})

    def first_two(out):
        out.node, out.row, out.col, out.edge = out.node[:2], out.row[:0], out.col[:0], out.edge[:0]
        return out

    for step, batch in enumerate(loader):
        assert torch.equal(batch.rows, rows[batch.n_id])
        assert step == 0 or len(batch.n_id) == 2
        loader.transform_sampler_output = first_two


def feature(count):
    return dp.TensorFeature(torch.zeros(count, 1))


def test_features_that_do_not_fit_are_refused(refuses):
    data = random_data(1)
    for error, features in (
        (TypeError, [1]),
        (TypeError, {"z": torch.zeros(40, 1)}),
        (ValueError, {("node", "z"): feature(40)}),
        (ValueError, {"z": feature(39)}),
        (ValueError, {"z": feature(41)}),
        (ValueError, {("edge", None, "z"): feature(40)}),
        (ValueError, {("node", "paper", "z"): feature(40)}),
        (ValueError, {"n_id": feature(40)}),
        (ValueError, {"x": feature(40)}),
    ):
        for loader in (NeighborLoader, LinkNeighborLoader):
            refuses(error, loader, data, [2], features=features)
    papers = {("node", "papers", "z"): feature(30)}
    refuses(ValueError, NeighborLoader, random_hetero(1), [2], "paper", features=papers)
    loader = NeighborLoader(data, [2], features={"z": feature(40)})
    assert [*loader.features] == [("node", None, "z")]
    refuses(ValueError, setattr, loader, "features", {})


def test_features_that_do_not_fit_a_batch_are_refused():
    data = random_data(1)
    sampler = without_edge_ids(NeighborSampler(data, [3, 2]))
    loader = NodeLoader(data, sampler, features={("edge", None, "z"): feature(160)})
    with pytest.raises(ValueError, match="edge feature 'z' needs edge ids, which OwnSampler does not give"):
        next(iter(loader))
    loader = NeighborLoader(data, [2], features={"z": feature(40)})
    next(iter(loader))
    data.z = torch.zeros(40)
    with pytest.raises(ValueError, match="z was added to the data, but the loader has a node feature of this name"):
        next(iter(loader))


def test_a_data_without_any_tensor_is_enough():
    data = Data(edge_index=random_data(1).edge_index, num_nodes=40)
    batch = next(iter(NeighborLoader(data, [2], batch_size=4, features={"x": feature(40)})))
    assert batch.x.shape == (batch.num_nodes, 1)
