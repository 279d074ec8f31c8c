"""Values stored with fewer bits: what is stored is the twin's to the bit; columns that cannot be are named."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from pipelines import NUM_NODES, digests, sampled, small_graph
from worker_stages import RemoteStore

import datapipes as dp
from datapipes.base import sizes
from datapipes.device import runtime
from datapipes.features import stored_values
from datapipes.partition.source import graph_of_dataset
from datapipes.processes.sharing import pack

KINDS = [torch.float16, torch.bfloat16, torch.int8]
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = 1.401298464324817e-45


def bits_of(values: torch.Tensor) -> list[int]:
    return [bits % 2**32 for bits in values.view(torch.int32).flatten().tolist()]


def columns(low: int, high: int) -> st.SearchStrategy[list[float]]:
    """Finite float32 of all sizes between 2^low and 2^high, zeros among them."""
    sizes = st.builds(
        lambda m, e, s: s * m * 2.0**e, st.floats(1, 2, width=32), st.integers(low, high), st.sampled_from([-1, 1])
    )
    return st.lists(sizes | st.just(0.0), min_size=1, max_size=12)


@given(st.data(), st.sampled_from([torch.float16, torch.bfloat16]))
def test_halves_are_the_nearest_of_the_twin(data, kind):
    values = torch.tensor(data.draw(columns(-27, 14)))
    one = twin.encoded_float16 if kind == torch.float16 else twin.encoded_bfloat16
    feature = dp.TensorFeature(values, stored_as=kind)
    assert [bits % 2**16 for bits in feature.tensor.view(torch.int16).tolist()] == [
        one(bits) for bits in bits_of(values)
    ]
    back = twin.decoded_float16 if kind == torch.float16 else twin.decoded_bfloat16
    read = feature.read(torch.arange(len(values)))
    assert bits_of(read) == [back(one(bits)) for bits in bits_of(values)]


@given(st.sampled_from([(-149, -130), (-140, -110), (-3, 3), (100, 127), (-149, 127)]).flatmap(lambda r: columns(*r)))
def test_int8_and_its_scale_are_those_of_the_twin(column):
    values = torch.tensor(column, dtype=torch.float32).reshape(-1, 1)
    feature = dp.TensorFeature(values, stored_as=torch.int8)
    numbers, scale = twin.encoded_int8(bits_of(values))
    assert (feature.tensor.flatten().tolist(), bits_of(feature.scale)) == (numbers, [scale])
    read = feature.read(torch.arange(len(column)))
    assert [bits % 2**31 for bits in bits_of(read)] == [twin.decoded_int8(abs(number), scale) for number in numbers]
    assert bool(read.isfinite().all())


@pytest.mark.parametrize("value", [LARGEST, SMALLEST, 100 * SMALLEST, 150 * SMALLEST, 0.0])
def test_a_column_at_either_end_of_float32_stays_finite_in_int8(value):
    feature = dp.TensorFeature(torch.tensor([[value], [-value], [0.0]]), stored_as="int8")
    read = feature.read(torch.arange(3)).flatten()
    assert bool(read.isfinite().all())
    assert read[2] == 0
    assert read[0] == -read[1]
    assert feature.tensor.abs().max() <= 127


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (7, 2, 5), (0, 4), (7, 0), (0,), (3, 0, 2)])
def test_every_shape_is_stored_in_as_many_rows(shape, kind):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    feature, ids = dp.TensorFeature(values, stored_as=kind), torch.arange(shape[0]).flip(0)
    assert (feature.tensor.shape, feature.tensor.dtype, feature.stored_as) == (values.shape, kind, kind)
    assert (feature.count, feature.shape, feature.dtype) == (shape[0], shape[1:], torch.float32)
    for found in (ids, ids.int(), ids[:0]):
        read, out = feature.read(found), torch.full((len(found), *shape[1:]), 5.0)
        assert torch.equal(feature.read(found, out=out), read)
        assert read.shape == out.shape
        assert torch.equal(feature._read_stored(found), feature.tensor[found.long()])
        assert torch.equal(feature._decode(feature._read_stored(found)), read)
    assert (feature.scale is None) is (kind != torch.int8)
    if kind == torch.int8:
        assert (feature.scale.shape, feature.scale.dtype) == (values.shape[1:], torch.float32)
        assert bool(((feature.read(ids) - values[ids]).abs() <= feature.scale * 0.5001).all())


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_give_what_one_gives(kind, monkeypatch):
    values = torch.randn(1_000, 7, generator=torch.Generator().manual_seed(3))
    whole = dp.TensorFeature(values, stored_as=kind)
    monkeypatch.setattr(stored_values, "_PIECE_BYTES", 100)
    pieces = dp.TensorFeature(values, stored_as=kind)
    assert torch.equal(whole.tensor, pieces.tensor)
    assert kind != torch.int8 or torch.equal(whole.scale, pieces.scale)


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_lie_apart_and_mapped_files_are_stored_alike(kind, tmp_path):
    wide = torch.randn(40, 9, generator=torch.Generator().manual_seed(5))
    np.save(tmp_path / "rows.npy", wide[:, 2:6].numpy())
    mapped = dp.TensorFeature(np.load(tmp_path / "rows.npy", mmap_mode="r"), stored_as=kind)
    for given_rows in (wide[:, 2:6], wide[:, 2:6].contiguous()):
        feature = dp.TensorFeature(given_rows, stored_as=kind)
        assert torch.equal(feature.tensor, mapped.tensor)
    wide.zero_()
    assert bool(feature.read(torch.tensor([3])).any())  # the stored rows are memory of their own


def test_names_and_dtypes_say_the_same():
    values = torch.ones(2, 2)
    for kind in KINDS:
        assert dp.TensorFeature(values, stored_as=str(kind).removeprefix("torch.")).stored_as == kind
    plain = dp.TensorFeature(values)
    assert (plain.stored_as, plain.scale, plain.tensor.data_ptr()) == (None, None, values.data_ptr())
    ids = torch.tensor([1])
    assert torch.equal(plain._read_stored(ids), values[ids])
    assert plain._decode(values) is values


@pytest.mark.parametrize("kind", KINDS)
def test_a_stored_feature_pickles_copies_and_shows_itself(kind):
    feature, ids = dp.TensorFeature(torch.randn(5, 3), stored_as=kind), torch.tensor([4, 0])
    for again in (pickle.loads(pickle.dumps(feature)), copy.deepcopy(feature)):
        assert torch.equal(again.read(ids), feature.read(ids))
        assert (again.stored_as, again.dtype) == (kind, torch.float32)
    name = str(kind).removeprefix("torch.")
    assert repr(feature) == f"TensorFeature(5 rows of float32 [3], stored as {name})"
    assert len(pickle.dumps(feature)) < len(pickle.dumps(dp.TensorFeature(torch.randn(5, 3)))) + 600


def test_what_cannot_be_stored_so(refuses, monkeypatch):
    def stored(values, stored_as="int8"):
        return dp.TensorFeature(values, stored_as=stored_as)

    def ones_but(value, shape, *places):
        values = torch.ones(shape)
        for place in places:
            values[place] = value
        return values

    for no_form in ("half", torch.float32, torch.uint8, 16, ["int8"], int, b"int8"):
        refuses(ValueError, stored, torch.ones(2, 2), no_form)
    for dtype in (torch.float64, torch.float16, torch.int64, torch.complex64):
        refuses(TypeError, stored, torch.ones(2, 2, dtype=dtype))
    for value in (torch.nan, torch.inf, -torch.inf):
        refuses(ValueError, stored, ones_but(value, (4, 3), (1, 2)))
    refuses(ValueError, stored, ones_but(torch.nan, (4,), 3))
    refuses(ValueError, stored, ones_but(torch.nan, (4, 3, 2), (3, 1, 0)))
    refuses(ValueError, stored, ones_but(torch.nan, (3, 5), (0, 1), (1, 3), (2, 4)))
    refuses(ValueError, stored, ones_but(-65_520.0, (3, 4), (2, 3)), "float16")
    refuses(ValueError, stored, torch.tensor([1.0, LARGEST]), "bfloat16")
    rounds_to_the_largest = stored(ones_but(65_519.0, (3, 4), (2, 3)), "float16")
    assert rounds_to_the_largest.read(torch.tensor([2]))[0, 3] == 65_504
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (1000, "the test"))
    refuses(MemoryError, stored, torch.zeros(2**20, 2))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_halves_keep_nan_and_infinities(kind):
    read = dp.TensorFeature(torch.tensor([float("nan"), float("inf"), -float("inf")]), stored_as=kind).read(
        torch.arange(3)
    )
    assert bool(read[0].isnan())
    assert read[1:].tolist() == [float("inf"), -float("inf")]


def test_what_a_read_of_stored_rows_refuses(refuses):
    feature, ids = dp.TensorFeature(torch.ones(3, 2), stored_as="float16"), torch.tensor([0, 2])
    refuses(IndexError, feature.read, torch.tensor([3]))
    refuses(IndexError, feature._read_stored, torch.tensor([-1]))
    refuses(ValueError, feature.read, ids, out=torch.empty(2, 2, dtype=torch.float16))
    refuses(ValueError, feature._read_stored, ids, out=torch.empty(2, 2))
    out = torch.empty(2, 2, dtype=torch.float16)
    assert feature._read_stored(ids, out=out) is out
    assert bool((out == 1).all())


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_above_a_huge_page_is_stored_alike(kind):
    values = torch.randn(70_000, 33, generator=torch.Generator().manual_seed(7))
    feature, ids = dp.TensorFeature(values, stored_as=kind), torch.tensor([0, 69_999, 31_234])
    assert feature.tensor.nbytes > 2**21
    rows, scale = feature.tensor, feature.scale
    assert torch.equal(feature.read(ids), stored_values.decode(rows[ids], scale))
    del feature
    wanted = values.to(kind) if scale is None else values.div(scale).round().to(kind)
    assert torch.equal(rows, wanted)  # the memory lives as long as a tensor that views it


@pytest.mark.parametrize("kind", [torch.float16, torch.int8])
def test_workers_share_the_stored_rows(kind):
    values = torch.randn(NUM_NODES, 3_000, generator=torch.Generator().manual_seed(9))
    store = RemoteStore({("node", None, "feat"): dp.TensorFeature(values, stored_as=kind)})  # read in the workers
    chain = sampled().fetch_feature(store, node_feature_keys=["feat"])
    assert digests(dp.DataLoader(chain, num_workers=2)) == digests(dp.DataLoader(chain))
    packed = pack(store)
    assert len(packed.data) < 20_000
    assert [len(memory) for memory in packed.memories] == [store["node", None, "feat"].tensor.nbytes]


def test_a_partition_gets_the_values_of_stored_features():
    graph, count = small_graph(), small_graph().num_nodes
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(11))
    feature = dp.TensorFeature(values, stored_as="int8")
    edges = dp.TensorFeature(torch.randn(200, 2, generator=torch.Generator().manual_seed(12)), stored_as="float16")
    store = dp.FeatureStore({("node", None, "x"): feature, ("edge", None, "w"): edges})
    some = dp.ItemSet(torch.tensor([1, 2]))
    dataset = SimpleNamespace(graph=graph, features=store, train_set=some, validation_set=some, test_set=some)
    given_graph, _ = graph_of_dataset("test", dataset)
    assert torch.equal(given_graph.node_attributes["x"], feature.read(torch.arange(count)))
    assert given_graph.node_attributes["x"].dtype == torch.float32
    assert torch.equal(given_graph.edge_attributes["w"], edges.read(graph.edge_ids))


def test_the_scale_goes_to_a_device_once(monkeypatch):
    feature = dp.TensorFeature(torch.randn(5, 3), stored_as="int8")
    copies = []

    class Counts(runtime.Cuda):
        def copy(self, tensor, device, *, non_blocking):
            copies.append((tensor, device, non_blocking))
            return tensor.to(device)

    monkeypatch.setattr(runtime, "_current", Counts())
    rows = torch.empty(2, 3, dtype=torch.int8, device="meta")
    for _ in range(3):
        assert feature._decode(rows).device.type == "meta"
    assert [(device.type, non_blocking) for _, device, non_blocking in copies] == [("meta", False)]
    assert pickle.loads(pickle.dumps(feature))._scales == {}
