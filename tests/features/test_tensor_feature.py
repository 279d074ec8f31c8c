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
from pipelines import refused, small_store

import datapipes as dp

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([(), (1,), (3,), (2, 3), (0,), (2, 0)]), st.integers(0, 6))
def test_rows_equal_indexing(data, dtype, shape, count):
    rows = torch.arange(count * int(np.prod(shape))).reshape(count, *shape).to(dtype)
    ids = data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else []
    feature = dp.TensorFeature(rows)
    for id_dtype in (torch.int32, torch.int64):
        found = feature.read(torch.tensor(ids, dtype=id_dtype))
        assert (found.dtype, found.shape) == (dtype, (len(ids), *shape))
        assert torch.equal(found, rows[torch.tensor(ids, dtype=torch.int64)])
        assert found.is_contiguous()
    assert (feature.count, feature.shape) == (count, shape)


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
    ids=["every_second", "slice", "left_half", "one_column", "last_corner", "middle", "one_row"],
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


@pytest.mark.parametrize(
    ("rows", "error", "found", "allowed"),
    [
        (torch.tensor(3), ValueError, "0-d tensor", "at least 1 dimension"),
        (torch.ones(4).expand(3, 4), ValueError, r"\[3, 4\] with stride", "must be adjacent"),
        (np.asfortranarray(np.ones((4, 3))).view(np.memmap), ValueError, r"\[4, 3\]", "adjacent in a file"),
        (torch.ones(3, device="meta"), ValueError, "on meta", "host memory"),
        (torch.eye(3).to_sparse(), TypeError, "layout", "dense tensor"),
        ([1, 2], TypeError, "list", "a tensor or an array"),
        (np.array(["a"]), TypeError, "dtype <U1", "no tensor can hold"),
    ],
    ids=["0-d", "expanded", "mapped", "meta", "sparse", "list", "text"],
)
def test_tensors_whose_rows_cannot_be_read_are_refused(rows, error, found, allowed):
    with refused(error, stage="TensorFeature", found=found, allowed=allowed):
        dp.TensorFeature(rows)


@pytest.mark.parametrize("shape", [(3, 2), (3,), (3, 0), (0, 2), (0,)], ids=str)
@pytest.mark.parametrize("wrong", [3, -1, 2**40])
def test_an_id_outside_is_refused_by_number(shape, wrong):
    with pytest.raises(IndexError, match=str(wrong)):
        dp.TensorFeature(torch.ones(shape)).read(torch.tensor([wrong]))


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        (torch.tensor([1.0]), TypeError),
        (torch.tensor([True]), TypeError),
        (torch.tensor([[1]]), ValueError),
        (torch.arange(4)[::2], ValueError),
        ([1], TypeError),
    ],
    ids=str,
)
def test_ids_that_are_none_are_refused(ids, error):
    with refused(error, stage="TensorFeature", found="ids", allowed="must|contiguous"):
        dp.TensorFeature(torch.ones(4)).read(ids)


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


def test_a_feature_that_is_not_there_is_refused():
    with refused(KeyError, stage="FeatureStore", found=r"\('node', None, 'x'\)", allowed="the store has .*'feat'"):
        small_store()["node", None, "x"]


@pytest.mark.parametrize(
    ("features", "error", "found", "allowed"),
    [
        ([1], TypeError, "list", "must be a dict"),
        ({"feat": dp.TensorFeature(torch.ones(1))}, ValueError, "'feat'", "'node' or 'edge'"),
        ({("nodes", None, "feat"): dp.TensorFeature(torch.ones(1))}, ValueError, "'nodes'", "'node' or 'edge'"),
        ({("node", None, 3): dp.TensorFeature(torch.ones(1))}, ValueError, "3", "'node' or 'edge'"),
        ({("node", None, "feat"): torch.ones(1)}, TypeError, "got Tensor", "must be a Feature"),
    ],
    ids=["list", "plain_key", "unknown_domain", "number", "tensor"],
)
def test_what_is_no_store_is_refused(features, error, found, allowed):
    with refused(error, stage="FeatureStore", found=found, allowed=allowed):
        dp.FeatureStore(features)


def test_rows_may_be_shared_with_other_processes():
    rows = torch.arange(40.0).reshape(10, 4).share_memory_()
    assert dp.TensorFeature(rows).read(torch.tensor([9, 0])).tolist() == [[36, 37, 38, 39], [0, 1, 2, 3]]


# --- into given memory


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from([(), (3,), (2, 3), (0,)]), st.integers(0, 6))
def test_rows_go_into_given_memory(data, dtype, shape, count):
    rows = torch.arange(count * int(np.prod(shape))).reshape(count, *shape).to(dtype)
    ids = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), max_size=8)) if count else [], dtype=torch.int64)
    out = torch.ones((len(ids), *shape), dtype=dtype)
    assert dp.TensorFeature(rows).read(ids, out=out) is out
    assert torch.equal(out, rows[ids])


@pytest.mark.parametrize(
    ("out", "error", "found", "allowed"),
    [
        (torch.empty(3, 4), ValueError, r"shape \[3, 4\]", r"\[2, 4\]"),
        (torch.empty(2, 4, dtype=torch.float64), ValueError, "float64", "float32"),
        (torch.empty(4, 2).T, ValueError, r"stride \(1, 2\)", "contiguous"),
        (torch.empty(2, 4, device="meta"), ValueError, "meta", "host memory"),
        (torch.empty(2, 4, requires_grad=True), TypeError, "requires_grad=True", "without gradient"),
        (torch.eye(4)[:2].to_sparse(), TypeError, "sparse_coo", "dense"),
        (np.empty((2, 4), dtype=np.float32), TypeError, "ndarray", "a tensor"),
    ],
)
def test_given_memory_that_does_not_fit_is_refused(out, error, found, allowed):
    feature = dp.TensorFeature(torch.zeros(5, 4))
    with refused(error, stage="TensorFeature: out", found=found, allowed=allowed):
        feature.read(torch.tensor([0, 1]), out=out)


@pytest.mark.parametrize("stored_as", [None, "float16", "int8"])
def test_rows_that_torch_has_moved_are_read_where_they_are_now(stored_as):
    feature, ids = dp.TensorFeature(torch.rand(300_000, 4), stored_as=stored_as), torch.tensor([3, 299_999])
    expected = feature.read(ids)
    feature.tensor.share_memory_()  # as passing it to another process does: frees where the rows were
    assert torch.equal(feature.read(ids), expected)
    assert torch.equal(feature._decode(feature._read_stored(ids)), expected)


def test_given_memory_that_overlaps_what_is_read_is_refused():
    rows = torch.arange(20.0).reshape(5, 4)
    with pytest.raises(ValueError, match="out overlaps the rows"):
        dp.TensorFeature(rows).read(torch.tensor([3, 4]), out=rows[1:3])
    stored = dp.TensorFeature(rows, stored_as="int8")
    with pytest.raises(ValueError, match="out overlaps the scale"):
        stored.read(torch.tensor([3]), out=stored.scale[None])
    both = torch.zeros(101, dtype=torch.int64)  # the output would overwrite the ids
    with pytest.raises(ValueError, match="out overlaps the ids"):
        dp.TensorFeature(torch.full((100,), 2**50)).read(both[:-1], out=both[1:])


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


def test_an_id_without_a_row_names_the_feature_of_many():
    store = dp.FeatureStore(two_features())
    with pytest.raises(IndexError, match=r"edge feature 'b': .*4"):
        store.read_many([("node", None, "a", torch.tensor([0])), ("edge", None, "b", torch.tensor([4]))])


def test_a_store_reads_into_given_memory():
    out = torch.empty(2, dtype=torch.int64)
    assert dp.FeatureStore(two_features()).read("node", None, "a", torch.tensor([5, 1]), out=out) is out
    assert out.tolist() == [5, 1]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float64])
def test_a_feature_has_the_dtype_of_its_rows(dtype):
    class Plain(dp.Feature):
        count, shape = 3, ()

        def read(self, ids):
            return torch.zeros(ids.shape[0], dtype=dtype)

    assert dp.TensorFeature(torch.zeros(3, dtype=dtype)).dtype == dtype
    assert Plain().dtype == dtype


@pytest.mark.parametrize("stored_as", [torch.float16, torch.bfloat16, torch.int8])
def test_rows_stored_with_fewer_bits_are_read_as_float32(stored_as):
    rows = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(1))
    feature, ids = dp.TensorFeature(rows, stored_as=stored_as), torch.tensor([3, 0, 49, 3])
    read = feature.read(ids)
    assert (feature.dtype, feature.stored_as, feature.tensor.dtype) == (torch.float32, stored_as, stored_as)
    assert (feature.count, feature.shape, read.dtype) == (50, (3, 2), torch.float32)
    assert torch.equal(feature._read_stored(ids), feature.tensor[ids])
    assert torch.equal(feature._decode(feature._read_stored(ids)), read)
    assert (feature.scale is None) is (stored_as != torch.int8)
    torch.testing.assert_close(read, rows[ids], rtol=2**-8, atol=float(rows.abs().max()) / 254)
