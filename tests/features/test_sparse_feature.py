"""SparseFeature: the rows of scipy and of dense tensors, to the bit, wherever a minibatch is made and carried."""

import pickle

import numpy as np
import pytest
import scipy.sparse
import torch
from amounts import examples, ranked
from hypothesis import given
from hypothesis import strategies as st
from pipelines import NUM_NODES, digests, sampled, small_graph

import datapipes as dp
from datapipes import _core
from datapipes.distributed import PartitionServer, RemoteReceivingChannel, RemoteSource, ServerLimits, connect
from datapipes.partition.source import source_of
from datapipes.processes.sharing import pack

NUM_WORDS = 30
DTYPES = [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.int64, torch.complex64]


def matrix(num_rows=NUM_NODES, num_columns=NUM_WORDS, density=0.2, rng_seed=0):
    return scipy.sparse.random(
        num_rows, num_columns, density, format="csr", dtype=np.float32, random_state=np.random.default_rng(rng_seed)
    )


def words(**given) -> dp.SparseFeature:
    """Of 40 nodes; without values where `values=None`."""
    rows = matrix()
    return dp.SparseFeature(rows.indptr, rows.indices, **{"values": rows.data, "num_columns": NUM_WORDS, **given})


def store(feature=None) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "words"): feature or words()})


def chain(feature=None) -> dp.FeatureFetcher:
    return sampled().fetch_feature(store(feature), ["words"])


@st.composite
def sparse_features(draw):
    """A feature and its rows as a dense tensor; empty rows, no rows and no columns among them."""
    num_columns = draw(st.integers(0, 6))
    row = st.lists(st.integers(0, num_columns - 1), unique=True) if num_columns else st.just([])
    columns = draw(st.lists(row, max_size=6))
    indptr = np.cumsum([0, *map(len, columns)])
    indices = np.array([each for row in columns for each in row], dtype=draw(st.sampled_from([np.int32, np.int64])))
    dtype = draw(st.sampled_from([None, *DTYPES]))
    values = None if dtype is None else torch.arange(1, len(indices) + 1).to(dtype)
    feature = dp.SparseFeature(indptr, indices, values, num_columns=num_columns)
    dense = torch.zeros(len(columns), num_columns, dtype=dtype or torch.float32)
    for i, row in enumerate(columns):
        dense[i, row] = 1 if values is None else values[indptr[i] : indptr[i + 1]]
    return feature, dense


# --- rows


@examples(200)
@given(sparse_features(), st.data())
def test_rows_are_those_of_the_dense_tensor(made, data):
    feature, dense = made
    assert (feature.count, feature.shape, feature.dtype) == (dense.shape[0], dense.shape[1:], dense.dtype)
    ids = st.lists(st.integers(0, feature.count - 1), max_size=8) if feature.count else st.just([])
    wanted = torch.tensor(data.draw(ids), dtype=data.draw(st.sampled_from([torch.int32, torch.int64])))
    rows = feature.read(wanted)
    assert rows.csr().to_dense().tolist() == dense[wanted.long()].tolist()
    assert rows.indices.dtype == feature.rows.indices.dtype
    assert feature.bytes_for(wanted) == sum(
        each.nbytes for each in (rows.indptr, rows.indices, rows.values) if each is not None
    )
    for found, plain in zip(rows._parts().values(), feature.rows[wanted.long()]._parts().values(), strict=True):
        assert torch.equal(found, plain)  # entries keep their order


def test_bits_are_those_of_scipy_for_every_number_of_threads():
    rows = matrix(3000, 500, 0.05)
    feature = dp.SparseFeature.from_scipy(rows)
    ids = torch.randint(3000, (20_000,), generator=torch.Generator().manual_seed(1))
    expected, before = rows[ids.numpy()], torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found = feature.read(ids)
            assert np.array_equal(found.indptr.numpy(), expected.indptr)
            assert np.array_equal(found.indices.numpy(), expected.indices)
            assert np.array_equal(found.values.numpy(), expected.data)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("wrong", [-1, NUM_NODES, 2**40])
def test_an_id_without_a_row_is_named(wrong, refuses):
    refuses(IndexError, store().read_many, [("node", None, "words", torch.tensor([0, wrong, 1]))])
    assert words().bytes_for(torch.tensor([wrong])) == 16


def test_what_a_read_refuses(refuses):
    refuses(TypeError, words().read, [0])
    refuses(TypeError, words().read, torch.tensor([True]))
    refuses(ValueError, words().read, torch.tensor([[0]]))
    before = _core.limit_hops(64)
    try:
        refuses(MemoryError, words().read, torch.arange(40))
    finally:
        _core.limit_hops(before)


# --- what a feature is made of


def test_scipy_and_torch_give_the_same_feature():
    entries = scipy.sparse.coo_array(([1.0, 2.0, 4.0], ([1, 1, 0], [2, 2, 0])), shape=(2, 3))
    for form in (entries, entries.tocsc(), entries.tocsr()):
        feature = dp.SparseFeature.from_scipy(form)
        assert feature.read(torch.arange(2)).csr().to_dense().tolist() == [[4, 0, 0], [0, 0, 3]]
    unsorted = scipy.sparse.csr_matrix(([1.0, 2.0], [2, 0], [0, 2]), shape=(1, 3))
    assert dp.SparseFeature.from_scipy(unsorted).rows.indices.tolist() == [0, 2]
    assert unsorted.indices.tolist() == [2, 0]  # the caller's matrix is as it was
    tensor = torch.tensor([[4.0, 0, 0], [0, 0, 3]]).to_sparse_csr()
    feature = dp.SparseFeature.from_tensor(tensor)
    assert feature.read(torch.tensor([1, 1])).csr().to_dense().tolist() == [[0, 0, 3]] * 2
    assert feature.rows.values.data_ptr() == tensor.values().data_ptr()


def test_arrays_may_be_mapped_and_go_to_workers(tmp_path):
    rows = matrix()
    for name, array in {"indptr": rows.indptr.astype(np.int64), "indices": rows.indices, "values": rows.data}.items():
        np.save(tmp_path / f"{name}.npy", array)
    arrays = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices", "values")]
    feature = dp.SparseFeature(*arrays, num_columns=NUM_WORDS)
    parts = (feature.rows.indptr, feature.rows.indices, feature.rows.values)
    assert [part.data_ptr() for part in parts] == [array.ctypes.data for array in arrays]
    for copy in (pickle.loads(pickle.dumps(feature)), pack(feature).unpack()):
        assert torch.equal(copy.read(torch.arange(40)).csr().to_dense(), torch.from_numpy(rows.toarray()))
    assert repr(feature) == f"SparseFeature(SparseRows([40, 30], {rows.nnz} entries of float32))"


def test_what_are_no_rows_is_refused(refuses):
    def made(**others):
        arguments = {"indptr": [0, 1, 3], "indices": [0, 3, 1], "values": [1.0, 2.0, 3.0], **others}
        num_columns = arguments.pop("num_columns", 4)
        dp.SparseFeature(**{name: torch.tensor(rows) for name, rows in arguments.items()}, num_columns=num_columns)

    refuses(ValueError, dp.SparseFeature, torch.empty(0).long(), torch.empty(0).long(), num_columns=4)
    for indptr in ([1, 2, 3], [0, 2, 2], [0, 3, 1, 3]):
        refuses(ValueError, made, indptr=indptr)
    refuses(TypeError, made, indptr=[0.0, 3.0])
    for indices in ([0, 4, 1], [0, -1, 1]):
        refuses(IndexError, made, indices=indices)
    refuses(ValueError, made, indices=[[0], [1], [2]])
    refuses(ValueError, made, values=[1.0, 2.0])
    refuses(IndexError, made, num_columns=2)
    refuses(ValueError, made, num_columns=-1)
    refuses(TypeError, made, num_columns=4.0)
    refuses(TypeError, dp.SparseFeature.from_scipy, np.eye(1))
    for no_csr in (torch.eye(3), torch.eye(3).to_sparse_coo(), matrix()):
        refuses(TypeError, dp.SparseFeature.from_tensor, no_csr)


def test_values_that_lie_apart_are_copied():
    given = torch.tensor([1.0, 9.0, 2.0, 9.0, 3.0, 9.0])[::2]
    for values in (given, torch.ones(1).expand(3)):
        feature = dp.SparseFeature(torch.tensor([0, 3]), torch.tensor([0, 1, 2]), values, num_columns=3)
        assert feature.read(torch.tensor([0])).values.tolist() == values.tolist()


@pytest.mark.parametrize("part", ["indptr", "indices"])
def test_arrays_that_were_overwritten_are_an_error(part, refuses):
    arrays = {"indptr": np.array([0, 2, 3]), "indices": np.array([0, 1, 2])}
    feature = dp.SparseFeature(**arrays, num_columns=3)
    arrays[part][1] = 2**40
    refuses(ValueError, feature.read, torch.tensor([0]))


# --- where it cannot stand


def test_what_takes_equal_rows_refuses_it(refuses):
    refuses(TypeError, dp.CPUCachedFeature, words(), "1MB")
    refuses(TypeError, store().pin_memory_)
    none = dp.ItemSet(torch.arange(0))
    data = dp.datasets.Dataset("made", small_graph(), store(), none, none, none, 1, ("a",))
    refuses(TypeError, source_of, data, where="here")


# --- chains


@pytest.mark.parametrize("values", ["values", "ones"])
def test_bags_give_the_sums_of_the_dense_rows(values):
    feature = words() if values == "values" else words(values=None)
    dense = feature.rows.csr().to_dense()
    embedding = torch.nn.EmbeddingBag(NUM_WORDS, 4, mode="sum")
    for minibatch in dp.DataLoader(chain(feature)):
        rows = minibatch.node_features["words"]
        expected = dense[minibatch.input_nodes] @ embedding.weight
        assert torch.allclose(embedding(*rows.bag()), expected, atol=1e-6)
        assert torch.allclose(rows.csr() @ embedding.weight, expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    ranked(
        [
            {"num_workers": 2, "cut": "end", "multiprocessing_context": "fork"},
            {"num_workers": 2, "cut": "end", "channel": "mp", "multiprocessing_context": "fork"},
            {"num_workers": 2, "worker_method": "thread"},
            {"num_workers": 2, "cut": "end"},
        ],
        1,
    ),
)
def test_workers_and_channels_carry_the_bits(options):
    expected = digests(chain())
    with dp.DataLoader(chain(), **options) as loader:
        assert digests(loader) == expected
        assert loader.minibatch(epoch=0, index=3).digest() == expected[3]


def test_features_of_edges_and_of_types_are_fetched():
    of = ("paper", "cites", "paper")
    graph = dp.HeteroCSCGraph({of: (torch.arange(41), torch.arange(40).roll(3))}, num_nodes={"paper": 40})
    features = dp.FeatureStore({("node", "paper", "words"): words(), ("edge", of, "words"): words(values=None)})
    pipe = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(40, "seeds")}), 8)
    pipe = pipe.sample_neighbor(graph, [2, 2], return_edge_ids=True)
    for minibatch in pipe.fetch_feature(features, {"paper": ["words"]}, {of: ["words"]}).copy_to("cpu"):
        nodes = minibatch.node_features["paper", "words"]
        assert torch.equal(nodes.csr().to_dense(), words().rows[minibatch.input_nodes["paper"]].csr().to_dense())
        for block, found in zip(minibatch.blocks, minibatch.edge_features, strict=True):
            assert found[of, "words"].shape == (block[of].num_edges, NUM_WORDS)


def test_a_server_sends_the_bits_and_counts_their_bytes():
    """The rows of a minibatch as dense ones would take more than the server sends."""
    wide, most = words(num_columns=2**30), 2**20
    with (
        PartitionServer(
            small_graph(), chains=True, features=store(wide), limits=ServerLimits(max_answer_bytes=most)
        ) as server,
        connect({0: server.address}) as client,
    ):
        producer = client.create_producer(0, chain(wide))
        source = RemoteSource(chain(wide), RemoteReceivingChannel([0], [producer], client=client))
        assert digests(source) == digests(chain(wide))


def test_a_feature_that_gives_too_few_rows_is_refused(refuses):
    class Short(dp.Feature):
        count, shape, dtype = NUM_NODES, (NUM_WORDS,), torch.float32

        def read(self, ids):
            return words().read(ids[1:])

    refuses(ValueError, next, iter(chain(Short())))


@pytest.mark.full
def test_the_embedded_words_as_bags():
    dataset = dp.datasets.debian_packages()
    padded = dataset.features["node", None, "words"].tensor
    feat = dataset.features["node", None, "feat"]
    num_words = feat.shape[0]
    is_word = padded < num_words
    indptr = torch.cat((torch.zeros(1, dtype=torch.int64), is_word.sum(1).cumsum(0)))
    feature = dp.SparseFeature(indptr, padded[is_word].int(), num_columns=num_words)
    ids = torch.arange(0, feature.count, 97)
    assert torch.equal(feature.read(ids).csr().to_dense(), feat.read(ids).float())
    assert 8 * feature.bytes_for(ids) < feat.bytes_for(ids)
