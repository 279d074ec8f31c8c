"""GPUCachedFeature: the bits of the feature under it, for any size; what is kept is what a plain twin keeps."""

import pickle
import random

import numpy as np
import pytest
import torch
from amounts import amount, examples, ranked
from at_once import at_once
from counted_feature import Counted
from fake_device import fake_cuda
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from pipelines import items, refused, small_graph
from plain_cuda import PLACES, Place, needs_interpreter, on_gpu
from updated_features import same_bits

import datapipes as dp
from datapipes.features.gpu_cached_feature import OF_SLOT, WAYS

CUDA = torch.device("cuda", 0)


class Twin:
    """The slow and obvious cache: sets of ways, each an id and the number of the read that asked for it last."""

    def __init__(self, slots, count):
        ways = max(way for way in (1, 2, 4, 8, WAYS) if way <= slots)
        num_sets = max(min(slots // ways, -(-count // ways)), 1)
        self.sets, self.now = [[[-1, 0] for _ in range(ways)] for _ in range(num_sets)], 0

    def lacks(self, ids):
        """Return the ids that are not there, ascending; keep them as far as there is room."""
        self.now += 1
        lacking = sorted(each for each in ids if not self._stamped(each))
        for number, of_set in enumerate(self.sets):
            by_age = sorted(range(len(of_set)), key=lambda way: (of_set[way][1], way))
            new = [each for each in lacking if each % len(self.sets) == number]
            for i, (way, id_) in enumerate(zip(by_age, new, strict=False)):
                if of_set[way][1] < self.now and (i == 0 or new[i - 1] != id_):
                    of_set[way][:] = id_, self.now
        return lacking

    def _stamped(self, id_):
        for slot in self.sets[id_ % len(self.sets)]:
            if slot[0] == id_:
                slot[1] = self.now
                return True
        return False


def bytes_for(slots, row_bytes):
    return slots * (row_bytes + OF_SLOT)


def on_host(place, rows, **options):
    """Return a feature whose rows a GPU can read, in page-locked memory."""
    feature = dp.TensorFeature(place.table(rows, "host"), **options)
    return feature if "stored_as" not in options or not place.is_gpu else feature.pin_memory_()


@st.composite
def traces(draw, count):
    """Minibatches of ids, a few of them often, some with repeats."""
    often = st.integers(0, max(count // 8, 1) - 1)
    some = often | st.integers(0, count - 1)
    return draw(st.lists(st.lists(some, max_size=24, unique=draw(st.booleans())), min_size=1, max_size=3))


@pytest.mark.parametrize("name", PLACES)
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), count=st.integers(1, 90), slots=st.integers(1, 100), by_uva=st.booleans())
def test_what_is_kept_is_what_the_twin_keeps(name, monkeypatch, data, count, slots, by_uva):
    pytest.importorskip("triton")
    with monkeypatch.context() as patch:
        place = Place(name, patch)
        rows = torch.arange(count * 3, dtype=torch.float32).reshape(count, 3)
        feature, twin = Counted(rows), Twin(slots, count)
        cached = dp.GPUCachedFeature(on_host(place, rows) if by_uva else feature, bytes_for(slots, 12))
        assert cached.reads_on(place.device) == ("uva" if by_uva else "device memory")
        misses = hits = 0
        for ids in data.draw(traces(count)):
            feature.asked.clear()
            dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
            assert same_bits(cached.read(place.ids(torch.tensor(ids, dtype=dtype))), rows[ids])
            lacking = twin.lacks(ids)
            assert by_uva or feature.asked == sorted(set(lacking))
            misses, hits = misses + len(lacking), hits + len(ids) - len(lacking)
            assert (cached.stats()["gpu_hits"], cached.stats()["gpu_misses"]) == (hits, misses)
        cached._finish_reads()


@pytest.mark.parametrize("slots", ranked([WAYS, 3, 40], 1))
def test_what_leaves_is_what_the_twin_says_for_long(place: Place, slots):
    generator, feature, twin = torch.Generator().manual_seed(1), Counted(torch.rand(70, 2)), Twin(slots, 70)
    cached = dp.GPUCachedFeature(feature, bytes_for(slots, 8))
    for _ in range(amount(80, 15)):
        ids = (torch.rand(9, generator=generator) ** 2 * 70).long()  # with repeats
        feature.asked.clear()
        cached.read(place.ids(ids))
        assert feature.asked == sorted(set(twin.lacks(ids.tolist())))


@pytest.mark.parametrize("slots", [1, 40, 500])
@pytest.mark.parametrize("stored_as", [None, "float16", "bfloat16", "int8"])
@pytest.mark.parametrize("kind", ["tensor", "locked", "disk", "cached"])
def test_any_feature_size_and_form_gives_the_bits_of_the_feature(place: Place, tmp_path, kind, stored_as, slots):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn((200, 4, 5), generator=generator)
    wanted = dp.TensorFeature(rows, stored_as=stored_as)
    if kind == "disk":
        feature = dp.DiskFeature.write(tmp_path / "x.rows", rows, stored_as=stored_as)
    elif kind == "cached":
        feature = dp.CPUCachedFeature(wanted, "4KB")
    elif kind == "locked":
        feature = on_host(place, rows, **({} if stored_as is None else {"stored_as": stored_as}))
    else:
        feature = wanted
    if not place.is_gpu:
        place.cuda.is_page_locked = kind == "locked"
    cached = dp.GPUCachedFeature(feature, bytes_for(slots, 20 * wanted._stored_dtype.itemsize))
    assert (cached.count, cached.shape, cached.dtype) == (200, (4, 5), torch.float32)
    assert cached.reads_on(place.device) == ("uva" if kind == "locked" else "device memory")
    assert not cached.reads_async
    for _ in range(2):
        ids = torch.randint(40, (16,), generator=generator)  # with repeats
        assert same_bits(cached.read(place.ids(ids)), wanted.read(ids))
        assert same_bits(cached._read_stored(place.ids(ids[:7].int())), wanted._read_stored(ids[:7]))
    cached._finish_reads()
    stats = cached.stats()
    assert stats["gpu_hits"] + stats["gpu_misses"] == 2 * 23
    assert slots == 1 or stats["gpu_hits"] > 0
    assert 0 < stats["gpu_cache_bytes"] <= cached.max_bytes


@pytest.mark.parametrize("dtype", ranked([torch.float8_e4m3fn, torch.bool, torch.int16, torch.complex128], 1), ids=str)
def test_rows_of_every_width_are_kept(place: Place, dtype):
    for shape in [(), (33,), (3, 0)]:
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        plain = torch.randint(0, 2 if dtype == torch.bool else 256, (30, num_bytes), dtype=torch.uint8)
        rows = plain.view(dtype).reshape(30, *shape) if num_bytes else torch.empty((30, *shape), dtype=dtype)
        cached = dp.GPUCachedFeature(Counted(rows), "1MB")
        ids = torch.tensor([3, 29, 0, 3])
        for _ in range(2):
            got = cached.read(place.ids(ids))
            assert (got.dtype, got.shape) == (dtype, (4, *shape))
            assert got.numel() == 0 or got.cpu().contiguous().reshape(4, -1).view(torch.uint8).equal(plain[ids])
        assert cached.read(place.ids(ids[:0])).shape == (0, *shape)
        cached._finish_reads()


def test_a_cache_as_large_as_the_feature_reads_each_row_once(place: Place):
    rows = torch.rand(100, 4)
    feature = Counted(rows)
    cached = dp.GPUCachedFeature(feature, "1MB")
    for step in (3, 1):
        assert same_bits(cached.read(place.ids(torch.arange(0, 100, step))), rows[::step])
    assert sorted(feature.asked) == list(range(100))
    assert cached.stats()["gpu_cache_bytes"] == 112 * 32  # 7 sets; no more than it needs


@pytest.mark.parametrize("stored_as", ranked([None, "float16"], 1))
def test_an_update_of_the_feature_is_seen(place: Place, tmp_path, stored_as):
    rows = torch.rand(100, 4)
    feature = dp.DiskFeature.write(tmp_path / "x.rows", rows, stored_as=stored_as)
    between = dp.CPUCachedFeature(feature, "1MB")
    cached = dp.GPUCachedFeature(between, "1MB")
    cached.read(place.ids(torch.arange(100)))
    for number, updated in enumerate((feature, between, cached)):
        ids = torch.tensor([7, 90 + number])
        updated.update(ids, torch.full((2, 4), float(number)))
        assert same_bits(cached.read(place.ids(torch.arange(100))), feature.read(torch.arange(100)))
        assert cached.read(place.ids(ids)).eq(number).all()


@pytest.mark.full  # the twin does so too
def test_rows_that_a_read_asks_for_do_not_leave_for_others_of_it(place: Place):
    feature = Counted(torch.rand(1000, 2))
    cached = dp.GPUCachedFeature(feature, bytes_for(WAYS, 8))
    often = torch.arange(10)
    cached.read(place.ids(often))
    for begin in (100, 200):
        feature.asked.clear()
        cached.read(place.ids(torch.cat([often, torch.arange(begin, begin + 40)])))
        assert feature.asked == list(range(begin, begin + 40))


# --- ids without rows


@pytest.mark.parametrize("by_uva", [False, True])
def test_an_id_without_a_row_gives_zeros_and_is_raised_later(place: Place, by_uva):
    rows = torch.rand(20, 6)
    cached = dp.GPUCachedFeature(on_host(place, rows) if by_uva else Counted(rows), "1MB")
    for there in (0, 3):  # the second time the rows of the others are in the cache
        got = cached.read(place.ids(torch.tensor([3, 20, 0, -5, 2**40, 3]))).cpu()
        assert torch.equal(got[[0, 2, 5]], rows[[3, 0, 3]])
        assert not got[[1, 3, 4]].any()
        with refused(IndexError, stage="Feature", found="3 of the ids .* the smallest is -5", allowed=r"\[0, 20\)"):
            cached._finish_reads() if there == 0 else cached.read(place.ids(torch.tensor([1])))
        assert cached.stats()["gpu_hits"] == there
    assert same_bits(cached.read(place.ids(torch.tensor([1, 3]))), rows[[1, 3]])
    cached._finish_reads()


def test_all_ids_may_be_without_rows(place: Place):
    for count in (0, 5):
        cached = dp.GPUCachedFeature(Counted(torch.rand(count, 6)), "1MB")
        assert not cached.read(place.ids(torch.tensor([5, -1, 7]))).any()
        with pytest.raises(IndexError, match=r"3 of the ids .* the smallest is -1"):
            cached._finish_reads()


# --- what is refused


def test_a_read_that_fails_keeps_nothing_of_it(place: Place):
    rows = torch.rand(50, 3)
    feature = Counted(rows)
    cached = dp.GPUCachedFeature(feature, "1MB")
    cached.read(place.ids(torch.tensor([1])))
    feature._read_stored = lambda ids: (_ for _ in ()).throw(OSError("no disk"))
    with pytest.raises(OSError, match="no disk"):
        cached.read(place.ids(torch.tensor([1, 2])))
    del feature._read_stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "datapipes.features.gpu_cached_feature.copy_rows", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            cached.read(place.ids(torch.tensor([2, 3])))
    feature.asked.clear()
    assert same_bits(cached.read(place.ids(torch.tensor([1, 2, 3]))), rows[1:4])
    assert feature.asked == [1, 2, 3]  # it was emptied: slots were given, and the rows not written


def test_what_is_refused(place: Place):
    feature, where = dp.TensorFeature(torch.rand(10, 4)), "^GPUCachedFeature"
    with refused(ValueError, stage=where, found="max_bytes=31", allowed="32 or more", remedy="Raise"):
        dp.GPUCachedFeature(feature, 31)
    with refused(TypeError, stage=where, found="tensor", allowed="Feature"):
        dp.GPUCachedFeature(torch.rand(3, 3), "1MB")
    cached = dp.GPUCachedFeature(feature, 32)
    assert "1 rows on" in repr(cached)
    on_gpu = dp.TensorFeature(place.table(torch.rand(10, 4), "device"))
    for other in (on_gpu, cached):
        with refused(ValueError, stage=where, found="on a GPU", allowed="host memory", remedy="Leave"):
            dp.GPUCachedFeature(other, "1MB")
    with refused(ValueError, stage=where, found="ids lie on cpu", allowed="kept on", remedy="copy_to"):
        cached.read(torch.tensor([1]))
    with refused(ValueError, stage=where, found="out is given", allowed="new", remedy="Pass out=None"):
        cached.read(place.ids(torch.tensor([1])), torch.empty(1, 4))
    with refused(TypeError, stage=where, found="float32", allowed="int64"):
        cached.read(place.ids(torch.tensor([1.0])))
    with refused(TypeError, stage=where, found="one process", allowed="behind the cut"):
        pickle.dumps(cached)


@needs_interpreter
def test_memory_that_is_not_there_is_refused(monkeypatch, refuses):
    pytest.importorskip("triton")
    feature = dp.TensorFeature(torch.rand(100, 4))
    with refused(ValueError, stage="^GPUCachedFeature", found="no CUDA device", allowed="", remedy="Leave the cache"):
        dp.GPUCachedFeature(feature, "1MB")
    cuda = Place("interpreter", monkeypatch).cuda
    cuda.bytes_left = 112 * 32
    assert dp.GPUCachedFeature(feature, "1MB").stats()["gpu_cache_bytes"] == 112 * 32
    cuda.bytes_left -= 1
    refuses(MemoryError, dp.GPUCachedFeature, feature, "1MB")
    cuda.bytes_left, error = 2**30, torch.cuda.OutOfMemoryError("in pieces")
    monkeypatch.setattr(cuda, "empty", lambda *_: (_ for _ in ()).throw(error))
    refuses(MemoryError, dp.GPUCachedFeature, feature, "1MB")
    monkeypatch.setattr("datapipes.device.kernels.HAS_TRITON", False)
    refuses(ImportError, dp.GPUCachedFeature, feature, "1MB")


# --- on a device that keeps its order


@pytest.mark.parametrize("by_uva", [False, True])
@pytest.mark.parametrize("rng_seed", ranked(range(8), 1))
@needs_interpreter
def test_reads_on_any_stream_find_only_rows_that_are_written(by_uva, rng_seed):
    pytest.importorskip("triton")
    rng, seen, rows = random.Random(rng_seed), [], torch.rand(40, 6)
    with fake_cuda(rng_seed=rng_seed) as gpu:
        streams = [gpu.new_stream(CUDA) for _ in range(3)]
        locked = gpu.empty_pinned((40, 6), torch.float32).copy_(rows)
        with gpu.on(streams[0]):
            cached = dp.GPUCachedFeature(dp.TensorFeature(locked) if by_uva else Counted(rows), bytes_for(16, 24))
        for turn in range(5):
            ids = torch.randint(40, (rng.randrange(1, 20),), generator=torch.Generator().manual_seed(turn))
            with gpu.on(rng.choice(streams)):
                got = cached.read(gpu.copy(ids, CUDA, non_blocking=True))
                gpu.call(lambda read, ids=ids: seen.append(torch.equal(read, rows[ids])), got)
            del got
        stats = cached.stats()
        assert stats["gpu_hits"] > 0
        with gpu.on(streams[1]):
            cached.read(gpu.copy(ids, CUDA, non_blocking=True))
        del cached, locked  # its memory is used by others only after the last read
        with gpu.on(streams[0]):
            gpu.copy(torch.rand(16 * 40 // 4), CUDA, non_blocking=True)
    assert seen == [True] * 5


@needs_interpreter
def test_a_gpu_that_reads_the_feature_itself_is_not_waited_for():
    pytest.importorskip("triton")
    with fake_cuda(haste=0.0) as gpu:
        cached = dp.GPUCachedFeature(dp.TensorFeature(gpu.empty_pinned((40, 6), torch.float32).zero_()), "1MB")
        ids = gpu.copy(torch.tensor([1, 2, 1]), CUDA, non_blocking=True)
        queued = len(gpu.current_stream(CUDA).queue)
        cached.read(ids)
        cached.read(ids)
        assert len(gpu.current_stream(CUDA).queue) > queued > 0  # nothing has run
        assert cached.reads_on(CUDA) == "uva"
        assert cached.stats()["gpu_hits"] == 3


@needs_interpreter
def test_a_loader_puts_the_fetch_behind_the_copy_and_gives_the_same_minibatches():
    pytest.importorskip("triton")
    graph = small_graph()
    rows = torch.rand(graph.num_nodes, 4)

    def chain(feature):
        store = dp.FeatureStore({("node", None, "x"): feature})
        return items(num_items=12).sample_neighbor(graph, [3, 3]).fetch_feature(store, ["x"])

    expected = [each.node_features["x"] for each in chain(dp.TensorFeature(rows))]
    with fake_cuda():
        cached = dp.GPUCachedFeature(dp.TensorFeature(rows), bytes_for(16, 16))
        with dp.DataLoader(chain(cached).copy_to("cuda"), num_workers=0) as loader:
            plan = loader.explain()
            assert plan.index("copy_to") < plan.index("fetch_feature")
            assert "reads={'x': 'device memory'}" in plan
            found = [each.node_features["x"].cpu() for each in loader]
            stats = loader.stats()
        assert cached.stats()["gpu_hits"] > 0
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert any("node feature 'x': gpu_hits" in row for row in stats.values())


# --- on a GPU


@on_gpu
@pytest.mark.parametrize("locked", [False, True])
def test_threads_on_streams_of_a_gpu_read_the_rows(locked):
    rows = torch.rand(20_000, 32)
    feature = dp.TensorFeature(rows)
    cached = dp.GPUCachedFeature(feature.pin_memory_() if locked else feature, "512KB")

    def is_right(seed):
        generator = torch.Generator().manual_seed(seed)
        draws = [(torch.rand(3000, generator=generator) ** 4 * 20_000).long() for _ in range(40)]
        with torch.cuda.stream(torch.cuda.Stream()):
            return all(torch.equal(cached.read(ids.cuda()).cpu(), rows[ids]) for ids in draws)

    assert all(at_once(is_right, 4))
    cached._finish_reads()
    assert cached.stats()["gpu_hits"] > 0
