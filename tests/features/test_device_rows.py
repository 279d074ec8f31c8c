"""Features read with ids on a GPU: page-locked rows, rows in device memory, and what is refused."""

import gc
import pickle
import random

import pytest
import torch
from fake_device import FakeCuda, fake_cuda
from pipelines import refused
from plain_cuda import Place, needs_interpreter, on_gpu
from updated_features import same_bits

import datapipes as dp
from datapipes.device.gather import limited_to

ROWS = torch.randn(20, 6, generator=torch.Generator().manual_seed(3))
IDS = torch.tensor([3, 19, 0, 3, 7])


def feature_of(place: Place, where: str, **options) -> dp.TensorFeature:
    return dp.TensorFeature(place.table(ROWS.clone(), where), **options)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("where", "how"), [("host", "uva"), ("device", "device memory")])
def test_rows_are_read_where_they_lie(place: Place, where, how, dtype):
    feature = feature_of(place, where)
    assert feature.reads_on(place.device) == how
    assert same_bits(feature.read(place.ids(IDS.to(dtype))), ROWS[IDS])
    assert feature.read(place.ids(IDS[:0])).shape == (0, 6)
    feature._finish_reads()
    assert (feature.count, feature.shape, feature.dtype) == (20, (6,), torch.float32)


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16", "int8"])
def test_stored_rows_are_decoded_as_on_the_cpu(place: Place, stored_as):
    wanted = dp.TensorFeature(ROWS, stored_as=stored_as)
    feature = dp.TensorFeature(ROWS, stored_as=stored_as)
    feature._show(place.table(feature.tensor, "host"))
    for _ in range(2):
        assert same_bits(feature.read(place.ids(IDS)), wanted.read(IDS))
    assert same_bits(feature._read_stored(place.ids(IDS)), wanted._read_stored(IDS))


@on_gpu
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
        feature._finish_reads()


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_id_without_a_row_gives_zeros_and_is_raised_by_the_next_read_or_the_end(place: Place, where):
    feature = feature_of(place, where)
    wrong = torch.tensor([3, 20, 0, -5, 2**40])
    for end in (lambda: feature.read(place.ids(IDS)), feature._finish_reads):
        rows = feature.read(place.ids(wrong)).cpu()  # waits
        assert torch.equal(rows[[0, 2]], ROWS[[3, 0]])
        assert not rows[[1, 3, 4]].any()
        with refused(
            IndexError, stage="TensorFeature", found="3 of the ids .* the smallest is -5", allowed=r"\[0, 20\)"
        ):
            end()
        assert same_bits(feature.read(place.ids(IDS)), ROWS[IDS])
        feature._finish_reads()


def test_the_cap_of_threads_holds_for_host_memory_only(place: Place):
    if place.is_gpu:
        pytest.skip("the grids are seen by the stand-in only")
    rows = torch.zeros(2000, 128)
    for where, grid in [("host", (2,)), ("device", (125,))]:  # programs of 512 and of 128 threads
        feature = dp.TensorFeature(place.table(rows.clone(), where))
        with limited_to(1024):
            feature.read(place.ids(torch.arange(2000)))
        assert place.cuda.grids[-1] == grid


def test_a_pickled_feature_reads_and_leaves_counts_behind(place: Place):
    feature = feature_of(place, "host")
    feature.read(place.ids(torch.tensor([20])))
    again = pickle.loads(pickle.dumps(feature))
    again._finish_reads()
    assert torch.equal(again.read(IDS), ROWS[IDS])


def test_what_a_read_on_a_device_refuses(place: Place):
    host, ids = feature_of(place, "host"), place.ids(IDS)
    with refused(ValueError, stage="TensorFeature", found="ids in host memory", allowed="copy_to before"):
        feature_of(place, "device").read(IDS)
    with refused(ValueError, stage="TensorFeature: out", found="ids on", allowed="Pass out=None"):
        host.read(ids, out=torch.empty(5, 6))
    for wrong, error, found in (
        (place.ids(torch.tensor([1.0])), TypeError, "float32"),
        (place.ids(torch.tensor([[1]])), ValueError, r"\(1, 1\)"),
        (place.ids(torch.arange(4))[::2], ValueError, "stride"),
    ):
        with refused(error, stage="TensorFeature: ids", found=found, allowed="must|contiguous"):
            host.read(wrong)
    if not place.is_gpu:
        place.cuda.is_page_locked = False
    not_locked = dp.TensorFeature(ROWS.clone())
    assert not_locked.reads_on(place.device) is None
    with refused(ValueError, stage="TensorFeature", found="not page-locked", allowed="pin_memory_"):
        not_locked.read(ids)


def test_a_feature_of_a_users_own_reads_in_host_memory_only():
    class Plain(dp.Feature):
        count, shape = 3, ()

        def read(self, ids):
            return torch.zeros(ids.shape[0])

    assert Plain().reads_on(torch.device("cuda", 0)) is None
    Plain()._finish_reads()


# --- on a device that keeps its order


CUDA = torch.device("cuda", 0)


def on_the_fake(gpu: FakeCuda, rows: torch.Tensor, where: str) -> torch.Tensor:
    """Return rows in page-locked memory ("host"), or on the device, written on the current stream."""
    if where == "host":
        return gpu.empty_pinned(tuple(rows.shape), rows.dtype).copy_(rows)
    return gpu.copy(rows, CUDA, non_blocking=True)


@pytest.mark.parametrize("stored_as", ["float16", "bfloat16", "int8"])
@needs_interpreter
def test_rows_on_the_device_are_stored_there_with_fewer_bits(stored_as):
    pytest.importorskip("triton")
    wanted = dp.TensorFeature(ROWS, stored_as=stored_as)
    with fake_cuda() as gpu:
        feature = dp.TensorFeature(on_the_fake(gpu, ROWS, "device"), stored_as=stored_as)
        assert feature.reads_on(CUDA) == "device memory"
        assert same_bits(feature.tensor, wanted.tensor)
        ids = gpu.copy(IDS, CUDA, non_blocking=True)
        assert same_bits(feature._read_stored(ids), wanted._read_stored(IDS))
        assert same_bits(feature.read(ids), wanted.read(IDS))
        too_large = torch.tensor([[0.0, 1.0, torch.inf if stored_as == "int8" else torch.finfo(torch.float32).max]])
        with refused(ValueError, stage="TensorFeature", found=r"column 2 has (inf|3\.4\S+)\D", allowed="stored_as"):
            dp.TensorFeature(on_the_fake(gpu, too_large, "device"), stored_as=stored_as)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("rng_seed", range(6))
@needs_interpreter
def test_reads_on_any_stream_wait_for_what_made_the_rows(where, rng_seed):
    pytest.importorskip("triton")
    rng, seen = random.Random(rng_seed), []
    with fake_cuda(rng_seed=rng_seed) as gpu:
        streams = [gpu.new_stream(CUDA) for _ in range(3)]
        with gpu.on(streams[0]):
            feature = dp.TensorFeature(on_the_fake(gpu, ROWS, where))
        assert feature.reads_on(CUDA) == {"host": "uva", "device": "device memory"}[where]
        for _ in range(12):
            ids = torch.randint(20, (rng.randrange(1, 9),), generator=torch.Generator().manual_seed(rng_seed))
            with gpu.on(rng.choice(streams)):
                rows = feature.read(gpu.copy(ids, CUDA, non_blocking=True))
                gpu.call(lambda read, ids=ids: seen.append(torch.equal(read, ROWS[ids])), rows)
            del rows
        feature._finish_reads()
    assert seen == [True] * 12


@needs_interpreter
def test_a_read_waits_for_nothing_and_a_wrong_id_is_raised_when_it_is_known():
    pytest.importorskip("triton")
    with fake_cuda(haste=0.0) as gpu:
        feature = dp.TensorFeature(on_the_fake(gpu, ROWS, "host"))
        right, wrong = (gpu.copy(torch.tensor(ids), CUDA, non_blocking=True) for ids in ([1, 2], [1, 20]))
        feature.read(wrong)
        feature.read(wrong)  # the device has not begun
        gpu.synchronize()
        with pytest.raises(IndexError, match=r"2 of the ids that were read on cuda:0 .* the smallest is 20;"):
            feature.read(right)
        feature.read(right)
        feature._finish_reads()


@needs_interpreter
def test_finish_reads_waits_for_every_device_before_it_raises():
    pytest.importorskip("triton")
    with fake_cuda(num_devices=2, haste=0.0, interprets=False) as gpu:
        feature = dp.TensorFeature(on_the_fake(gpu, ROWS, "host"))
        devices = [torch.device("cuda", index) for index in range(2)]
        wrong, right = (
            [gpu.copy(torch.tensor(ids), device, non_blocking=False) for device in devices] for ids in ([1, 20], [1])
        )
        for ids in wrong:
            feature.read(ids)
        with pytest.raises(IndexError, match=r"read on cuda:0 .* the smallest is 20") as caught:
            feature._finish_reads()
        if hasattr(caught.value, "__notes__"):  # Python 3.10 has none
            assert "read on cuda:1" in caught.value.__notes__[0]
        for ids in right:
            feature.read(ids)
        feature._finish_reads()


@pytest.mark.parametrize("where", ["host", "device"])
@needs_interpreter
def test_rows_outlive_the_feature_until_its_last_read_has_run(where):
    pytest.importorskip("triton")
    seen: list[bool] = []
    with fake_cuda(haste=0.0) as gpu:
        stream, other = gpu.new_stream(CUDA), gpu.new_stream(CUDA)
        with gpu.on(stream):
            feature = dp.TensorFeature(on_the_fake(gpu, ROWS, where))
        with gpu.on(other):
            rows = feature.read(gpu.copy(IDS, CUDA, non_blocking=True))
        del feature
        gc.collect()
        with gpu.on(stream):
            again = [on_the_fake(gpu, -ROWS, place) for place in ("host", "device")]  # takes memory that is free
        with gpu.on(other):
            gpu.call(lambda read: seen.append(torch.equal(read, ROWS[IDS])), rows)
        gpu.synchronize()
        del again
    assert seen == [True]


def test_a_gpu_reads_no_memory_of_another():
    with fake_cuda(num_devices=2) as gpu:
        feature = dp.TensorFeature(on_the_fake(gpu, ROWS, "device"))
        other = torch.device("cuda", 1)
        assert (feature.reads_on(CUDA), feature.reads_on(other)) == ("device memory", None)
        with refused(ValueError, stage="TensorFeature", found="on cuda:0, the ids on cuda:1", allowed="only its own"):
            feature.read(gpu.copy(IDS, other, non_blocking=False))
