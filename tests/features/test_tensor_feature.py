"""TensorFeature and FeatureStore: rows by id, of any dtype and width."""

import logging
import pickle
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pipelines import small_store

import datapipes as dp

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 3), (0,), (2, 0)]), st.integers(0, 6))
def test_rows_equal_indexing_also_in_given_memory(data, dtype, shape, count):
    rows = torch.arange(count * int(np.prod(shape))).reshape(count, *shape).to(dtype)
    ids = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    feature, expected = dp.TensorFeature(rows), rows[torch.tensor(ids, dtype=torch.int64)]
    for id_dtype in (torch.int32, torch.int64):
        typed_ids, out = torch.tensor(ids, dtype=id_dtype), torch.ones((len(ids), *shape), dtype=dtype)
        read = feature.read(typed_ids)
        assert (read.dtype, read.shape) == (dtype, (len(ids), *shape))
        assert torch.equal(read, expected)
        assert read.is_contiguous()
        assert feature.read(typed_ids, out=out) is out
        assert torch.equal(out, expected)
    assert (feature.count, feature.shape, feature.dtype) == (count, shape, dtype)


@pytest.mark.parametrize(
    "rows",
    [
        torch.arange(40.0).reshape(10, 4)[::2],
        torch.arange(40.0).reshape(10, 4)[3:8],
        torch.arange(40.0).reshape(10, 4)[:, :2],
        torch.arange(40.0).reshape(10, 4)[2:7, 1],
        torch.arange(40.0).reshape(10, 4)[9:, 1:3],
        torch.arange(60.0).reshape(5, 3, 4)[:, 1],
        torch.arange(4.0).expand(1, 4),
    ],
)
def test_rows_may_lie_apart(rows):
    ids = torch.arange(len(rows)).flip(0)
    assert torch.equal(dp.TensorFeature(rows).read(ids), rows[ids])


def test_the_tensor_is_viewed_and_rows_read_are_new():
    rows = torch.zeros(4, 2)
    feature = dp.TensorFeature(rows)
    found = feature.read(torch.tensor([1]))
    rows[1] = 5
    assert found.tolist() == [[0, 0]]
    assert feature.read(torch.tensor([1])).tolist() == [[5, 5]]


def test_arrays_may_be_read_only_and_mapped(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(8, dtype=np.float16).reshape(4, 2))
    feature = dp.TensorFeature(np.load(tmp_path / "rows.npy", mmap_mode="r"))
    assert feature.read(torch.tensor([3, 0])).tolist() == [[6, 7], [0, 1]]


def test_conjugated_rows_are_read_as_their_values():
    rows = torch.tensor([[1 + 2j], [3 - 1j]])
    assert torch.equal(dp.TensorFeature(rows.conj()).read(torch.tensor([1])), rows.conj()[1:].resolve_conj())


@pytest.mark.parametrize("as_given", [torch.as_tensor, np.asarray], ids=["tensor", "array"])
@pytest.mark.parametrize("options", [{}, {"stored_as": "float16"}], ids=str)
def test_a_table_by_column_is_copied_and_told(caplog, as_given, options):
    table = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))  # as pandas' to_numpy of several columns
    table.flags.writeable = False
    with caplog.at_level(logging.WARNING, "datapipes"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        feature = dp.TensorFeature(as_given(table), **options)
    (text,) = [record.getMessage() for record in caplog.records]
    assert re.search(r"got shape \[4, 3\] with stride \(1, 4\).*copied by row, 48 bytes", text)
    assert feature.read(torch.tensor([3, 0])).tolist() == table[[3, 0]].tolist()
    feature.update(torch.tensor([1]), torch.full((1, 3), 7.0))
    assert (feature.read(torch.tensor([1])).tolist(), table[1].tolist()) == ([[7.0] * 3], [3.0, 4.0, 5.0])


def test_a_feature_pickles_and_shows_itself():
    feature = dp.TensorFeature(torch.arange(6).reshape(3, 2))
    again = pickle.loads(pickle.dumps(feature))
    assert again.read(torch.tensor([2])).tolist() == [[4, 5]]
    assert repr(again) == "TensorFeature(3 rows of int64 [2])"


def test_what_a_tensor_feature_refuses(refuses):
    by_column = np.asfortranarray(np.ones((4, 3)))
    for rows, error in (
        (torch.tensor(3), ValueError),
        (torch.ones(4).expand(3, 4), ValueError),
        (by_column.view(np.memmap), ValueError),
        (torch.ones(3, device="meta"), ValueError),
        (torch.eye(3).to_sparse(), TypeError),
        ([1, 2], TypeError),
        (np.array(["a"]), TypeError),
    ):
        refuses(error, dp.TensorFeature, rows)


def test_what_a_read_refuses(refuses):
    for shape in ((3, 2), (3,), (3, 0), (0, 2), (0,)):
        for outside in (3, -1, 2**40):
            refuses(IndexError, dp.TensorFeature(torch.ones(shape)).read, torch.tensor([outside]))
    feature = dp.TensorFeature(torch.ones(4, 4))
    for ids, error in (
        (torch.tensor([1.0]), TypeError),
        (torch.tensor([True]), TypeError),
        (torch.tensor([[1]]), ValueError),
        (torch.arange(4)[::2], ValueError),
        ([1], TypeError),
    ):
        refuses(error, feature.read, ids)
    for out, error in (
        (torch.empty(3, 4), ValueError),
        (torch.empty(2, 4, dtype=torch.float64), ValueError),
        (torch.empty(4, 2).T, ValueError),
        (torch.empty(2, 4, device="meta"), ValueError),
        (torch.empty(2, 4, requires_grad=True), TypeError),
        (torch.eye(4)[:2].to_sparse(), TypeError),
        (np.empty((2, 4), dtype=np.float32), TypeError),
    ):
        refuses(error, feature.read, torch.tensor([0, 1]), out=out)
    refuses(ValueError, feature.read, torch.tensor([2, 3]), out=feature.tensor[1:3])
    stored = dp.TensorFeature(torch.ones(4, 4), stored_as="int8")
    refuses(ValueError, stored.read, torch.tensor([3]), out=stored.scale[None])
    both = torch.zeros(101, dtype=torch.int64)  # the output would overwrite the ids
    refuses(ValueError, dp.TensorFeature(torch.full((100,), 2**50)).read, both[:-1], out=both[1:])


# --- FeatureStore


def test_a_store_is_a_mapping_and_names_what_it_has():
    store = small_store()
    assert list(store) == [("node", None, "feat"), ("edge", None, "weight")]
    assert (len(store), store.names("node"), store.names("edge"), store.names("node", "paper")) == (
        2,
        ["feat"],
        ["weight"],
        [],
    )
    assert torch.equal(store.read("node", None, "feat", torch.tensor([1])), torch.tensor([[3.0, 4, 5]]))
    assert pickle.loads(pickle.dumps(store)).names("node") == ["feat"]


def test_what_a_store_refuses(refuses):
    feature = dp.TensorFeature(torch.ones(1))
    refuses(TypeError, dp.FeatureStore, [1])
    for no_key in ("feat", ("nodes", None, "feat"), ("node", None, 3), ("node", "", "w"), ("edge", "a:r", "w")):
        refuses(ValueError, dp.FeatureStore, {no_key: feature})
    for no_type in (("node", ("a", "r", "b"), "w"), ("edge", 3, "w")):
        refuses(TypeError, dp.FeatureStore, {no_type: feature})
    refuses(ValueError, dp.FeatureStore, {("edge", "a:r:b", "w"): feature, ("edge", ("a", "r", "b"), "w"): feature})
    refuses(TypeError, dp.FeatureStore, {("node", None, "feat"): torch.ones(1)})
    store = dp.FeatureStore(two_features())
    with refuses(KeyError):
        store["node", None, "x"]
    refuses(
        IndexError, store.read_many, [("node", None, "a", torch.tensor([0])), ("edge", None, "b", torch.tensor([4]))]
    )


# --- into given memory


@pytest.mark.parametrize("stored_as", [None, "float16", "int8"])
def test_rows_that_torch_has_moved_are_read_where_they_are_now(stored_as):
    feature, ids = dp.TensorFeature(torch.rand(300_000, 4), stored_as=stored_as), torch.tensor([3, 299_999])
    expected = feature.read(ids)
    feature.tensor.share_memory_()  # as passing it to another process does: frees where the rows were
    assert torch.equal(feature.read(ids), expected)
    assert torch.equal(feature._decode(feature._read_stored(ids)), expected)


@pytest.mark.parametrize("width", [1, 4, 25, 128])
@pytest.mark.parametrize("offset", [0, 1])
def test_many_rows_go_into_given_memory_wherever_it_begins(width, offset):
    rows = torch.arange(30_000 * width, dtype=torch.float32).reshape(30_000, width)
    apart = torch.stack((rows, rows), 1)[:, 0]  # rows with gaps between them
    ids = torch.randint(30_000, (2_500_000 // width,), generator=torch.Generator().manual_seed(1))
    memory = torch.zeros(ids.numel() * width + offset)
    for table in (rows, apart):
        out = memory.zero_()[offset:].view(len(ids), width)
        assert torch.equal(dp.TensorFeature(table).read(ids, out=out), rows[ids])


class Doubled(dp.TensorFeature):
    """A subclass with its own `read`."""

    def read(self, ids, *, out=None):
        return 2 * super().read(ids, out=out)


def test_a_subclass_stays_one_when_it_is_pickled():
    feature = pickle.loads(pickle.dumps(Doubled(torch.arange(4.0))))
    assert type(feature) is Doubled
    assert feature.read(torch.tensor([3])).tolist() == [6]


# --- many reads in one call


def two_features() -> dict:
    return {
        ("node", None, "a"): dp.TensorFeature(torch.arange(6)),
        ("edge", None, "b"): dp.TensorFeature(torch.ones(4)),
    }


def test_read_many_gives_the_rows_of_each_request_in_their_order():
    store = dp.FeatureStore(two_features())
    edges, nodes, none = store.read_many(
        [
            ("edge", None, "b", torch.tensor([3])),
            ("node", None, "a", torch.tensor([5, 0])),
            ("node", None, "a", torch.zeros(0).long()),
        ]
    )
    assert (edges.tolist(), nodes.tolist(), none.tolist()) == ([1.0], [5, 0], [])
    assert store.read_many([]) == []


def test_a_store_reads_into_given_memory():
    out = torch.empty(2, dtype=torch.int64)
    assert dp.FeatureStore(two_features()).read("node", None, "a", torch.tensor([5, 1]), out=out) is out
    assert out.tolist() == [5, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_a_feature_of_ones_own_has_the_dtype_of_its_rows(dtype):
    class Plain(dp.Feature):
        count, shape = 3, ()

        def read(self, ids):
            return torch.zeros(ids.shape[0], dtype=dtype)

    assert Plain().dtype == dtype
