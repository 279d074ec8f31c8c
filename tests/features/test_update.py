"""Feature.update: afterwards reads have the bits of a plain array that was changed so, in every form and cache."""

import pickle

import numpy as np
import pytest
import torch
from amounts import examples, ranked
from fake_device import fake_cuda
from hypothesis import given
from hypothesis import strategies as st
from plain_cuda import needs_interpreter
from updated_features import (
    COUNT,
    EVERYTHING,
    FORMS,
    KINDS,
    POLICIES,
    STORED,
    as_stored,
    cached,
    first_rows,
    made,
    same_bits,
    values_of,
)

import datapipes as dp
from datapipes.distributed.dist_feature_store import DistFeature

# --- the twin

STEPS = st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, COUNT - 1), max_size=12)), max_size=12)


@examples(60)
@given(steps=STEPS, shape=st.sampled_from([(), (3,), (2, 5), (1500,)]), small=st.booleans())
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("kind", "stored_as"), ranked(FORMS, 6))
def test_reads_have_the_bits_of_the_plain_twin(tmp_path_factory, kind, stored_as, policy, shape, small, steps):
    rows = first_rows(shape)
    feature = made(kind, tmp_path_factory.mktemp("rows"), rows, stored_as)
    twin = as_stored(rows, stored_as).numpy()
    asked = [feature] if policy is None else [feature, cached(feature, policy), cached(feature, "lru")]
    for seed, (is_update, ids) in enumerate(steps):
        given_ids = torch.tensor(ids, dtype=torch.int32 if small else torch.int64)
        if is_update:
            new = values_of(len(ids), shape, seed + 1)
            asked[seed % len(asked)].update(given_ids, new)
            for place, row in zip(ids, as_stored(new, stored_as), strict=True):
                twin[place] = row
        for each in asked:
            assert same_bits(each.read(given_ids), torch.from_numpy(twin[ids]))
    for each in asked:
        assert same_bits(each.read(EVERYTHING), torch.from_numpy(twin))


@pytest.mark.parametrize(("kind", "stored_as"), ranked(FORMS, 6))
def test_what_was_read_may_be_written_again(tmp_path, kind, stored_as):
    rows = first_rows((7,)) * torch.tensor([1e-44, 1e-39, 1e-30, 1, 1e3, 1e30, 0])[:, None].T
    rows = rows.clamp(-60000, 60000) if stored_as == "float16" else rows
    feature = made(kind, tmp_path, rows, stored_as)
    before = feature._read_stored(EVERYTHING)
    feature.update(EVERYTHING.flip(0), feature.read(EVERYTHING.flip(0)))
    assert same_bits(feature._read_stored(EVERYTHING).view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.uint16, torch.float8_e5m2, torch.complex64]
)
def test_any_dtype(dtype):
    expected = torch.zeros(6, 2)
    expected[[0, 5]] = 1
    for table in (torch.zeros(6, 2).to(dtype), torch.zeros(6, 3).to(dtype)[:, :2]):  # rows without and with gaps
        feature = dp.TensorFeature(table)
        feature.update(torch.tensor([5, 0]), torch.ones(2, 2).to(dtype))
        assert torch.equal(feature.read(torch.arange(6)).view(torch.uint8), expected.to(dtype).view(torch.uint8))


def test_a_store_updates_by_its_keys(tmp_path, refuses):
    feature = made("rows", tmp_path, first_rows((3,)))
    store = dp.FeatureStore(
        {("node", None, "x"): feature, ("edge", ("a", "to", "b"), "w"): dp.TensorFeature(EVERYTHING.clone())}
    )
    store.update("node", None, "x", torch.tensor([4]), torch.ones(1, 3))
    store.update("edge", "a:to:b", "w", torch.tensor([4]), torch.tensor([-1]))
    assert feature.read(torch.tensor([4])).tolist() == [[1, 1, 1]]
    assert store.read("edge", ("a", "to", "b"), "w", torch.tensor([4])).tolist() == [-1]
    refuses(KeyError, store.update, "node", None, "y", torch.tensor([4]), torch.ones(1, 3))
    refuses(IndexError, store.update, "node", None, "x", torch.tensor([30]), torch.ones(1, 3))


def test_values_may_overlap_the_rows_and_need_no_gradient():
    table = torch.arange(5.0)
    feature = dp.TensorFeature(table)
    feature.update(torch.arange(1, 5), table[:-1])
    assert table.tolist() == [0, 0, 1, 2, 3]
    new = torch.ones(2, requires_grad=True)
    feature.update(torch.tensor([0, 1]), new * 2)
    assert table.tolist() == [2, 2, 1, 2, 3]
    assert not feature.read(torch.tensor([0])).requires_grad
    with torch.inference_mode():
        made_there = torch.zeros(3)
    inferred = dp.TensorFeature(made_there)
    inferred.update(torch.tensor([1]), torch.ones(1))
    assert inferred.read(torch.arange(3)).tolist() == [0, 1, 0]


def test_a_file_that_is_mapped_for_writing_is_written(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    feature = dp.TensorFeature(np.load(tmp_path / "x.npy", mmap_mode="r+"))
    feature.update(torch.tensor([2]), torch.ones(1, 2))
    assert np.load(tmp_path / "x.npy")[:, 0].tolist() == [0, 0, 1, 0]


# --- caches


def test_caches_that_share_memory_and_caches_over_caches_are_told():
    one, other = dp.TensorFeature(torch.zeros(COUNT)), dp.TensorFeature(torch.zeros(COUNT))
    first = cached(one, "lru", slots=2 * COUNT)
    second = dp.CPUCachedFeature(other, share_with=first)
    over = cached(second, "static")
    for each in (first, second, over):
        each.read(EVERYTHING)
    other.update(torch.tensor([5]), torch.ones(1))
    for each, expected in ((first, 0), (second, 1), (over, 1)):
        assert each.read(torch.tensor([5])).tolist() == [expected]
    over.update(torch.tensor([5]), torch.full((1,), 2.0))
    assert [each.read(torch.tensor([5])).item() for each in (other, second, over, first)] == [2, 2, 2, 0]


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_static_cache_keeps_its_rows_and_another_reads_changed_ones_when_they_are_asked_for(policy):
    cache = cached(dp.TensorFeature(torch.zeros(COUNT)), policy)
    cache.read(EVERYTHING)
    before = cache.stats()
    assert before["cached"] > 0
    cache.update(EVERYTHING, EVERYTHING.float())
    assert cache.stats()["cached"] == (before["cached"] if policy == "static" else 0)
    assert torch.equal(cache.read(EVERYTHING), EVERYTHING.float())
    assert policy != "static" or cache.stats()["hits"] == 2 * before["hits"]


@pytest.mark.parametrize("policy", ["sieve", "lru"])
def test_rows_that_were_read_before_an_update_are_not_kept_after_it(policy):
    class Slow(dp.TensorFeature):
        """Is updated while it is read, as by another thread."""

        is_first = True

        def _read_stored(self, ids, out=None):
            rows = super()._read_stored(ids, out)
            if self.is_first:
                self.is_first = False
                self.update(torch.tensor([1]), torch.ones(1))
            return rows

    cache = cached(Slow(torch.zeros(COUNT)), policy)
    assert cache.read(torch.tensor([1])).item() == 0
    assert cache.read(torch.tensor([1])).item() == 1


# --- on a GPU


@pytest.mark.parametrize("stored_as", ranked(STORED, 1))
@needs_interpreter
def test_rows_on_a_gpu_are_written_after_reads_and_before_others(stored_as):
    pytest.importorskip("triton")
    with fake_cuda(rng_seed=3, haste=0.3, interprets=False) as gpu:
        device, rows = torch.device("cuda", 0), first_rows((4,))
        feature = dp.TensorFeature(gpu.copy(rows, device, non_blocking=False), stored_as=stored_as)
        twin = dp.TensorFeature(rows, stored_as=stored_as)
        ids = gpu.copy(torch.tensor([3, 9, 3]), device, non_blocking=False)
        new = gpu.copy(values_of(3, (4,), 1), device, non_blocking=False)
        expected_before = twin.read(torch.tensor([3, 9, 3]))
        with gpu.on(gpu.new_stream(device)):
            before = feature.read(ids)
        feature.update(ids, new)
        twin.update(torch.tensor([3, 9, 3]), values_of(3, (4,), 1))
        with gpu.on(gpu.new_stream(device)):
            after = feature.read(ids).cpu()
        gpu.synchronize()
        assert torch.equal(before.cpu(), expected_before)
        assert torch.equal(after, twin.read(torch.tensor([3, 9, 3])))
        with pytest.raises(IndexError, match="got 30"):
            feature.update(torch.tensor([30]), torch.ones(1, 4))


@needs_interpreter
def test_page_locked_rows_are_written_once_reads_are_over():
    pytest.importorskip("triton")
    with fake_cuda(haste=0.0, interprets=False) as gpu:
        device, table = torch.device("cuda", 0), torch.zeros(COUNT, 4)
        feature = dp.TensorFeature(table).pin_memory_()
        ids = gpu.copy(torch.tensor([3]), device, non_blocking=False)
        before = feature.read(ids)
        assert gpu.reads_of_host(table.data_ptr(), 4)
        feature.update(torch.tensor([3]), torch.ones(1, 4))
        assert before.cpu().tolist() == [[0] * 4]
        assert feature.read(ids).cpu().tolist() == [[1] * 4]
        feature.unpin_memory_()


# --- what is refused


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_arguments_change_nothing(tmp_path, kind, refuses):
    feature = made(kind, tmp_path, first_rows((3,)))
    over, one, rows = cached(feature, "static", slots=COUNT), torch.tensor([1]), torch.ones(2, 3)
    refuses(TypeError, over.update, torch.tensor([1.0]), rows[:1])
    refuses(ValueError, over.update, torch.tensor([[1]]), rows[:1])
    for outside in (-1, 30):
        refuses(IndexError, over.update, torch.tensor([1, outside]), rows)
    refuses(TypeError, over.update, one, rows[:1].double())
    refuses(ValueError, over.update, one, torch.ones(1, 4))
    refuses(ValueError, over.update, torch.tensor([1, 2]), torch.ones(3))
    refuses(TypeError, over.update, one, [[1.0, 1.0, 1.0]])
    assert torch.equal(feature.read(EVERYTHING), first_rows((3,)))
    assert torch.equal(over.read(EVERYTHING), first_rows((3,)))


@pytest.mark.parametrize("kind", ["tensor", "rows"])
@pytest.mark.parametrize(
    ("stored_as", "value"), [("int8", 50.3), ("int8", torch.nan), ("int8", -torch.inf), ("float16", 7e4)]
)
def test_a_value_that_the_stored_form_cannot_hold(tmp_path, kind, stored_as, value, refuses):
    feature = made(kind, tmp_path, first_rows((3,)), stored_as)
    before, new = feature.read(EVERYTHING), torch.zeros(2, 3)
    new[1, 2] = value
    refuses(ValueError, feature.update, torch.tensor([0, 1]), new)
    assert torch.equal(feature.read(EVERYTHING), before)


def test_a_static_cache_keeps_its_rows_when_an_update_is_refused():
    feature = dp.TensorFeature(first_rows((3,)), stored_as="int8")
    over = cached(feature, "static")
    before = over.stats()["cached"]
    with pytest.raises(ValueError, match="up to"):
        over.update(EVERYTHING, torch.full((COUNT, 3), 51.0))
    assert over.stats()["cached"] == before > 0


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
def test_features_that_are_read_only(tmp_path, refuses):
    class Own(dp.Feature):
        read = count = shape = None

    store = dp.FeatureStore({("node", None, "x"): Own()})
    refuses(TypeError, store.update, "node", None, "x", torch.tensor([0]), torch.ones(1))
    refuses(TypeError, object.__new__(DistFeature).update, torch.tensor([0]), torch.ones(1))
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for rows in (mapped, torch.as_tensor(mapped), np.frombuffer(bytes(32), np.float32).reshape(4, 2)):
        refuses(ValueError, dp.TensorFeature(rows).update, torch.tensor([0]), torch.ones(1, 2))
    pickled = pickle.loads(pickle.dumps(dp.TensorFeature(rows)))
    for own in (dp.TensorFeature(mapped, stored_as="bfloat16"), pickled):  # in memory of their own
        own.update(torch.tensor([0]), torch.ones(1, 2))
        assert own.read(torch.tensor([0])).tolist() == [[1, 1]]


def test_a_feature_of_ones_own_that_defines_write_rows_can_be_updated():
    class Own(dp.Feature):
        shape = (2,)

        def __init__(self):
            self.rows = {id: torch.zeros(2) for id in range(4)}

        def read(self, ids, out=None):
            return torch.stack([self.rows[each] for each in ids.tolist()]) if len(ids) else torch.empty(0, 2)

        def write_rows(self, ids, values):
            self.rows.update(zip(ids.tolist(), values, strict=True))

        count = property(lambda self: len(self.rows))

    feature = Own()
    over = cached(feature, "lru")
    over.read(torch.arange(4))
    feature.update(torch.tensor([3, 1, 3]), torch.tensor([[5.0, 5], [1, 1], [3, 3]]))
    assert over.read(torch.arange(4))[:, 0].tolist() == [0, 1, 0, 3]
