"""Features whose rows are page-locked: in place, or in a copy whose rows begin at multiples of 128 bytes."""

import copy
import gc
import pickle
import resource
import sys

import numpy as np
import pytest
import torch
from fake_registration import in_forked_child, registering
from hypothesis import given
from hypothesis import strategies as st
from pipelines import digests, fetched, items, refused, sampled, small_store
from plain_cuda import needs_interpreter, on_gpu
from scripts import run_fresh, run_script

import datapipes as dp
from datapipes.device import host_memory, runtime
from datapipes.features.tensor_feature import padded_rows
from datapipes.processes.sharing import pack

WHERE = "TensorFeature.pin_memory_"
DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.float64, torch.complex128]


@pytest.fixture
def fake(monkeypatch):
    yield from registering(monkeypatch)


def feature(**options) -> dp.TensorFeature:
    return dp.TensorFeature(torch.randn(500, 25, generator=torch.Generator().manual_seed(4)), **options)


@pytest.mark.parametrize("stored_as", [None, "float16", "int8"])
def test_the_rows_are_locked_in_place_until_it_is_undone(fake, stored_as):
    found = feature(stored_as=stored_as)
    place = found.tensor.data_ptr()
    assert not found.is_pinned()
    assert found.reads_on(torch.device("cuda", 0)) is None
    assert found.pin_memory_() is found
    assert found.pin_memory_() is found
    assert found.is_pinned()
    assert fake.covers(found.tensor)
    assert (fake.calls, found.tensor.data_ptr()) == (["register"], place)
    assert found.reads_on(torch.device("cuda", 0)) == "uva"
    assert torch.equal(found.read(torch.arange(500)), feature(stored_as=stored_as).read(torch.arange(500)))
    assert found.unpin_memory_() is found
    assert not found.is_pinned()
    assert found.reads_on(torch.device("cuda", 0)) is None
    assert fake.calls == ["register", "synchronize", "unregister"]


def test_rows_that_begin_in_locked_ones_are_not_locked(fake):
    rows = torch.zeros(4096, 3)
    first = dp.TensorFeature(rows[:1000]).pin_memory_()
    second = dp.TensorFeature(rows[999:])
    assert fake.is_pinned(second.tensor.data_ptr())
    assert second.reads_on(torch.device("cuda", 0)) is None
    assert second.pin_memory_().reads_on(torch.device("cuda", 0)) == "uva"
    assert first.is_pinned()


def test_rows_that_another_feature_has_locked_are_not_its_own(fake):
    first = feature().pin_memory_()
    second = dp.TensorFeature(first.tensor)
    assert second.reads_on(torch.device("cuda", 0)) is None
    second.pin_memory_()
    first.unpin_memory_()
    assert second.reads_on(torch.device("cuda", 0)) == "uva"


def test_a_feature_that_is_collected_while_a_gpu_reads_is_unregistered_after_that(fake):
    found = feature().pin_memory_()
    fake.reads(found.tensor)
    del found
    gc.collect()
    assert fake.calls == ["register", "synchronize", "unregister"]


def test_rows_that_torch_has_locked_are_not_registered(fake):
    found = feature()
    fake.locked_by_torch.append((found.tensor.data_ptr(), found.tensor.nbytes))
    assert found.pin_memory_().is_pinned()
    assert fake.registered == {}
    assert found.reads_on(torch.device("cuda", 0)) == "uva"


@given(
    st.sampled_from(DTYPES),
    st.sampled_from([(), (1,), (3,), (2, 3), (0,), (128,), (33,), (4, 25)]),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_padded_rows_begin_at_multiples_of_128_bytes_and_are_the_same(dtype, shape, count, every, skipped):
    rows = torch.arange(float((count * every + skipped) * int(np.prod(shape)))).to(dtype)
    rows = rows.reshape(count * every + skipped, *shape)[skipped::every]
    padded = padded_rows("here", rows)
    assert torch.equal(padded, rows)
    assert (padded.shape, padded.dtype) == (rows.shape, rows.dtype)
    assert all(row.data_ptr() % 128 == 0 for row in padded if row.numel() > 0)
    ids = torch.arange(len(rows)).flip(0)
    assert torch.equal(dp.TensorFeature(padded).read(ids), rows[ids])
    assert padded_rows("here", padded) is padded


@pytest.mark.parametrize("stored_as", [None, "bfloat16", "int8"])
def test_rows_are_padded_on_request_whether_locked_before_or_not(fake, stored_as):
    ids = torch.tensor([3, 499, 0])
    wanted = feature(stored_as=stored_as).read(ids)
    for is_locked_before in (False, True):
        found = feature(stored_as=stored_as)
        if is_locked_before:
            found.pin_memory_()
        assert found.pin_memory_(pad_rows=True) is found
        assert found.tensor.stride(0) * found.tensor.element_size() % 128 == 0
        assert fake.covers(found.tensor[0])
        assert fake.covers(found.tensor[-1])
        assert torch.equal(found.read(ids), wanted)
        again = found.tensor
        assert found.pin_memory_(pad_rows=True).tensor is again
        assert found.pin_memory_().tensor is again
        found.unpin_memory_()


def test_sorting_is_as_the_last_call_says(fake):
    found = feature()
    for sort_ids in (True, False, None, True):
        assert found.pin_memory_(sort_ids=sort_ids)._sort_ids is sort_ids


@pytest.mark.parametrize(
    "copied",
    [copy.copy, lambda found: pickle.loads(pickle.dumps(found)), lambda found: pack(found).unpack()],
    ids=["copy", "pickle", "worker"],
)
@pytest.mark.parametrize("pad_rows", [False, True])
def test_a_copy_is_not_pinned_and_may_be(fake, copied, pad_rows):
    found = feature().pin_memory_(pad_rows=pad_rows)
    other = copied(found)
    assert not other.is_pinned()
    assert torch.equal(other.tensor, found.tensor)
    assert other.pin_memory_().is_pinned()
    found.unpin_memory_()
    assert fake.covers(other.tensor)


CHILD = """
import torch
from fake_registration import FakeRegistration
from datapipes.device import runtime
import datapipes as dp
runtime._current = fake = FakeRegistration()
feature = dp.TensorFeature(torch.load({path!r}, mmap=True))
assert feature.pin_memory_().is_pinned()
print(feature.read(torch.tensor([2])).tolist(), len(fake.registered))
"""


@pytest.mark.full
def test_several_processes_may_lock_one_file(fake, tmp_path):
    rows = torch.arange(6000.0).reshape(3, 2000)
    torch.save(rows, tmp_path / "rows.pt")
    here = dp.TensorFeature(torch.load(tmp_path / "rows.pt", mmap=True)).pin_memory_()
    child = run_script(CHILD.format(path=str(tmp_path / "rows.pt")))
    assert (child.returncode, child.stdout, child.stderr) == (0, f"{rows[2:].tolist()} 1\n", "")
    assert here.is_pinned()


def test_a_forked_child_reads_a_feature_that_is_pinned_here_and_undoes_nothing(fake):
    found = feature().pin_memory_()
    ids = torch.tensor([3, 499])
    wanted = found.read(ids)

    def in_child() -> bool:
        fake.registered.clear()  # CUDA knows nothing there
        has_no_lock = not found.is_pinned() and found.reads_on(torch.device("cuda", 0)) is None
        return has_no_lock and torch.equal(found.unpin_memory_().read(ids), wanted) and fake.calls == ["register"]

    assert in_forked_child(in_child) == 1
    assert found.is_pinned()


EXIT = """
import torch
import datapipes as dp
from datapipes.device import runtime
from fake_device import FakeCuda

class Told(FakeCuda):
    def synchronize(self): print("synchronized", flush=True)
    def unregister(self, address): print("unregistered", flush=True); return super().unregister(address)

runtime._current = gpu = Told(haste=0.0)
graph = dp.CSCGraph(torch.tensor([0, 1, 1]), torch.tensor([1])).pin_memory_()
feature = dp.TensorFeature(torch.ones(500, 25)).pin_memory_(pad_rows=True)
dp.FeatureStore({("node", None, "feat"): feature}).pin_memory_()
rows = feature.read(gpu.copy(torch.arange(9), torch.device("cuda", 0), non_blocking=True))
feature.me = feature  # found by the collector only, at the very end
print("read", rows.shape[0], feature.is_pinned(), graph.is_pinned(), flush=True)
"""


@pytest.mark.full
@needs_interpreter
def test_a_process_may_end_while_a_gpu_reads_what_it_has_pinned():
    pytest.importorskip("triton")
    child = run_fresh(EXIT)
    assert (child.returncode, child.stdout, child.stderr) == (0, "read 9 True True\n", "")


def test_workers_read_a_graph_and_a_store_that_are_pinned_here(fake):
    store = small_store().pin_memory_()
    sampler = sampled()
    sampler.graph.pin_memory_()
    chain = sampler.fetch_feature(store, ["feat"], ["weight"])
    with dp.DataLoader(chain, 1, cut="end") as loader:
        assert digests(loader) == digests(fetched(sampled(items())))


def test_what_cannot_be_locked_is_refused_and_stays(fake, monkeypatch):
    found = feature()
    before = found.tensor
    fake.refuse = 2
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1000, 1000))
    for options in ({}, {"pad_rows": True}, {"sort_ids": True}):
        with refused(MemoryError, stage=WHERE, found=r"\d+ bytes \(error 2\)", allowed="is 1000 bytes.*ulimit -l"):
            found.pin_memory_(**options)
        assert not found.is_pinned()
        assert found.tensor is before
    fake.refuse = 0
    found.pin_memory_()
    fake.refuse = 2
    with pytest.raises(MemoryError):
        found.pin_memory_(pad_rows=True)
    assert found.is_pinned()
    assert found.tensor is before


def test_what_pin_memory_refuses(fake, monkeypatch, refuses):
    unlocked = feature()
    refuses(TypeError, unlocked.pin_memory_, pad_rows=1)
    refuses(TypeError, unlocked.pin_memory_, sort_ids=1)
    monkeypatch.setattr(fake, "holds", lambda tensor: tensor is unlocked.tensor)
    refuses(ValueError, unlocked.pin_memory_)
    monkeypatch.setattr(fake, "device_count", lambda: 0)
    with refused(RuntimeError, stage=WHERE, found="offers no CUDA device", allowed="leave pin_memory_ out"):
        feature().pin_memory_()


# --- stores


def test_a_store_locks_every_feature(fake):
    store = small_store()
    assert not store.is_pinned()
    assert store.pin_memory_() is store
    assert store.is_pinned()
    assert all(fake.covers(store[key].tensor) for key in store)
    assert store.pin_memory_().unpin_memory_() is store
    assert not store.is_pinned()
    assert fake.registered == {}


class Computed(dp.Feature):
    count, shape = 5, ()

    def read(self, ids):
        return ids.float()


def test_a_store_names_the_features_that_cannot_be_locked(fake, refuses):
    store = dp.FeatureStore(
        {("node", None, "a"): feature(), ("node", None, "b"): Computed(), ("edge", None, "c"): Computed()}
    )
    refuses(TypeError, store.pin_memory_)
    assert not store.is_pinned()
    assert not store["node", None, "a"].is_pinned()
    store["node", None, "a"].pin_memory_()
    assert not store.is_pinned()
    store.unpin_memory_()


def test_a_store_that_fails_half_way_leaves_its_features_as_they_were(fake):
    features = {("node", None, name): feature() for name in "abc"}
    features["node", None, "a"].pin_memory_()
    fake.refuse, fake.refuse_after = 1, 1
    with pytest.raises(RuntimeError) as caught:
        dp.FeatureStore(features).pin_memory_()
    assert [found.is_pinned() for found in features.values()] == [True, False, False]
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [
            "This is the node feature 'c'; no feature of the store was locked by this call."
        ]


# --- on a GPU


@on_gpu
@pytest.mark.parametrize("pad_rows", [False, True])
def test_a_gpu_reads_locked_rows_and_torch_sees_them_locked(pad_rows):
    found = feature().pin_memory_(pad_rows=pad_rows)
    ids = torch.randint(0, 500, (2000,))
    assert runtime.Cuda().is_pinned(found.tensor.data_ptr())
    assert found.tensor.is_pinned() or pad_rows  # torch looks at the storage, which begins before padded rows
    assert torch.equal(found.read(ids.cuda()).cpu(), found.read(ids))
    found._finish_reads()
    rows = found.unpin_memory_().tensor
    assert not runtime.Cuda().is_pinned(rows.data_ptr())


@on_gpu
def test_a_refused_registration_leaves_no_error_for_the_next_kernel():
    rows = torch.zeros(4096, 100)
    other = runtime.Cuda()
    begin = rows.data_ptr() - rows.data_ptr() % 4096
    assert other.register(begin, 4096 * 10, read_only=False) == 0
    try:
        with pytest.raises(RuntimeError, match="other code has registered a part"):
            dp.TensorFeature(rows[1:]).pin_memory_()
        assert (torch.ones(3, device="cuda") + 1).tolist() == [2, 2, 2]
        torch.cuda.synchronize()
    finally:
        assert other.unregister(begin) == 0
    assert dp.TensorFeature(rows).pin_memory_().is_pinned()
    assert other.unregister(1 << 40) != 0
    assert (torch.ones(3, device="cuda") + 1).tolist() == [2, 2, 2]


@on_gpu
def test_mapped_rows_are_read_by_a_gpu(tmp_path):
    np.save(tmp_path / "rows.npy", np.arange(40000, dtype=np.float32).reshape(400, 100))
    ids = torch.randint(0, 400, (1000,))
    found = dp.TensorFeature(np.load(tmp_path / "rows.npy", mmap_mode="c")).pin_memory_()
    assert torch.equal(found.read(ids.cuda()).cpu(), found.read(ids))


@on_gpu
def test_a_feature_that_is_collected_while_a_gpu_reads_gives_its_rows():
    ids = torch.randint(0, 500, (100_000,), device="cuda")
    wanted = feature().tensor.cuda()[ids]
    gc.collect()
    before = [*host_memory._table.segments]  # of other tests
    for _ in range(20):
        rows = feature().pin_memory_().read(ids)  # its feature is gone at once
        assert torch.equal(rows, wanted)
    assert host_memory._table.segments == before


@on_gpu
def test_rows_in_one_page_are_locked_one_by_one_and_what_lies_between_is_copied_as_before():
    memory = torch.arange(4 * 1024, dtype=torch.float32)  # 4 pages
    first, between, last = memory[64:512], memory[576:1600], memory[1664:2048]
    features = [dp.TensorFeature(rows).pin_memory_() for rows in (first, last)]
    assert not between.is_pinned()
    assert torch.equal(between.cuda().cpu(), between)  # begins in a page that is locked, and ends in another
    for found, rows in zip(features, (first, last), strict=True):
        ids = torch.arange(found.count)
        assert torch.equal(found.read(ids.cuda()).cpu(), rows)
        found._finish_reads()
    features[0].unpin_memory_()
    assert features[1].is_pinned()
    assert torch.equal(first.cuda().cpu(), first)
