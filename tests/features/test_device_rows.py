"""Features read with ids on a GPU: page-locked rows, rows in device memory, and what is refused."""

import pickle

import pytest
import torch
from pipelines import refused
from plain_cuda import Place

import datapipes as dp
from datapipes.device import uva_threads

ROWS = torch.randn(20, 6, generator=torch.Generator().manual_seed(3))
IDS = torch.tensor([3, 19, 0, 3, 7])


def feature_of(place: Place, where: str, **options) -> dp.TensorFeature:
    return dp.TensorFeature(place.table(ROWS.clone(), where), **options)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.cpu().view(torch.uint8), b.cpu().view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("where", "how"), [("host", "uva"), ("device", "device memory")])
def test_rows_are_read_where_they_lie(place: Place, where, how, dtype):
    feature = feature_of(place, where)
    assert feature.reads_on(place.device) == how
    assert same_bits(feature.read(place.ids(IDS.to(dtype))), ROWS[IDS])
    assert feature.read(place.ids(IDS[:0])).shape == (0, 6)
    feature.finish_reads()
    assert (feature.count, feature.shape, feature.dtype) == (20, (6,), torch.float32)


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16", "int8"])
def test_stored_rows_are_decoded_as_on_the_cpu(place: Place, stored_as):
    wanted = dp.TensorFeature(ROWS, stored_as=stored_as)
    feature = dp.TensorFeature(ROWS, stored_as=stored_as)
    feature.tensor = place.table(feature.tensor, "host")
    feature._view_rows()
    for _ in range(2):
        assert same_bits(feature.read(place.ids(IDS)), wanted.read(IDS))
    assert same_bits(feature.read_stored(place.ids(IDS)), wanted.read_stored(IDS))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stored_as", ["float16", "bfloat16", "int8"])
def test_rows_on_a_gpu_may_be_stored_with_fewer_bits(stored_as):
    feature = dp.TensorFeature(ROWS.cuda(), stored_as=stored_as)
    assert feature.reads_on(torch.device("cuda")) == "device memory"
    assert same_bits(feature.read(IDS.cuda()), dp.TensorFeature(ROWS, stored_as=stored_as).read(IDS))


def test_rows_without_values_are_read_too(place: Place):
    for shape in [(4, 0), (4, 2, 0)]:
        feature = dp.TensorFeature(torch.empty(shape))
        assert feature.reads_on(place.device) == "uva"
        assert feature.read(place.ids(torch.tensor([3, 0]))).shape == (2, *shape[1:])
        feature.finish_reads()


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_id_without_a_row_gives_zeros_and_is_raised_by_the_next_read(place: Place, where):
    feature = feature_of(place, where)
    wrong = torch.tensor([3, 20, 0, -5, 2**40])
    rows = feature.read(place.ids(wrong)).cpu()  # waits
    assert torch.equal(rows[[0, 2]], ROWS[[3, 0]])
    assert not rows[[1, 3, 4]].any()
    with refused(IndexError, stage="TensorFeature", found="3 of the ids .* the smallest is -5", allowed=r"\[0, 20\)"):
        feature.read(place.ids(IDS))
    assert same_bits(feature.read(place.ids(IDS)), ROWS[IDS])
    feature.finish_reads()


def test_finish_reads_raises_for_the_last_read(place: Place):
    feature = feature_of(place, "host")
    feature.read(place.ids(torch.tensor([20])))
    with pytest.raises(IndexError, match=r"1 of the ids .* the smallest is 20"):
        feature.finish_reads()
    feature.finish_reads()


def test_the_cap_of_threads_holds_for_host_memory_only(place: Place):
    if place.is_gpu:
        pytest.skip("the grids are seen by the stand-in only")
    rows = torch.zeros(2000, 128)
    for where, grid in [("host", (2,)), ("device", (125,))]:  # programs of 512 and of 128 threads
        feature = dp.TensorFeature(place.table(rows.clone(), where))
        with uva_threads.limited_to(1024):
            feature.read(place.ids(torch.arange(2000)))
        assert place.cuda.grids[-1] == grid


def test_a_pickled_feature_reads_and_leaves_counts_behind(place: Place):
    feature = feature_of(place, "host")
    feature.read(place.ids(torch.tensor([20])))
    again = pickle.loads(pickle.dumps(feature))
    again.finish_reads()
    assert torch.equal(again.read(IDS), ROWS[IDS])


def test_rows_that_are_not_page_locked_are_refused(place: Place):
    if not place.is_gpu:
        place.cuda.is_page_locked = False
    feature = dp.TensorFeature(ROWS.clone())
    assert feature.reads_on(place.device) is None
    with refused(ValueError, stage="TensorFeature", found="not page-locked", allowed="pin_memory_"):
        feature.read(place.ids(IDS))


def test_ids_in_host_memory_of_rows_on_a_device_are_refused(place: Place):
    feature = feature_of(place, "device")
    with refused(ValueError, stage="TensorFeature", found="ids in host memory", allowed="copy_to before"):
        feature.read(IDS)


@pytest.mark.parametrize(
    ("ids", "error", "found"),
    [
        (torch.tensor([1.0]), TypeError, "float32"),
        (torch.tensor([[1]]), ValueError, r"\(1, 1\)"),
        (torch.arange(4)[::2], ValueError, "stride"),
    ],
)
def test_ids_on_a_device_that_are_none_are_refused(place: Place, ids, error, found):
    put = place.ids(torch.arange(4))[::2] if ids.stride() == (2,) else place.ids(ids)
    with refused(error, stage="TensorFeature: ids", found=found, allowed="must|contiguous"):
        feature_of(place, "host").read(put)


def test_memory_for_rows_is_refused_with_ids_on_a_device(place: Place):
    with refused(ValueError, stage="TensorFeature: out", found="ids on", allowed="Leave out"):
        feature_of(place, "host").read(place.ids(IDS), out=torch.empty(5, 6))


def test_a_feature_of_a_users_own_reads_in_host_memory_only():
    class Plain(dp.Feature):
        count, shape = 3, ()

        def read(self, ids):
            return torch.zeros(ids.shape[0])

    assert Plain().reads_on(torch.device("cuda", 0)) is None
    Plain().finish_reads()
