"""Rows of padding are zeros, whatever kind of feature is read; rows of real ids are those of the feature."""

import numpy as np
import pytest
import torch
from dist_graphs import typed_parts
from pipelines import digests, items, sampled, small_store
from timed_pipelines import NODE_TIMES, temporal
from typed_pipelines import CITES, typed_fetched, typed_items, typed_sampled

import datapipes as dp

FEAT = torch.sin(torch.arange(40.0 * 3)).reshape(40, 3) + 2


class Own(dp.Feature):
    """A feature of a user, which knows nothing of padding, and whose rows may not be written."""

    count, shape = 40, (3,)

    def __init__(self, rows=FEAT):
        self.rows = rows

    def read(self, ids, out=None):
        assert len(ids) == 0 or ids.min() >= 0
        return self.rows[ids] if self.rows is FEAT else self.rows.expand(len(ids), 3)


def on_disk(tmp_path) -> dp.DiskFeature:
    np.save(tmp_path / "feat.npy", FEAT.numpy())
    return dp.DiskFeature(tmp_path / "feat.npy")


def words() -> dp.SparseFeature:
    has_word = (FEAT * 7).long() % 3 == 0
    return dp.SparseFeature(torch.tensor([0, *has_word.sum(1).cumsum(0)]), has_word.nonzero()[:, 1], num_columns=3)


FEATURES = {
    "float32": lambda folder: dp.TensorFeature(FEAT),
    "int64": lambda folder: dp.TensorFeature((FEAT * 100).long()),
    "bool": lambda folder: dp.TensorFeature(FEAT > 2),
    "uint16": lambda folder: dp.TensorFeature((FEAT * 100).to(torch.uint16)),
    "float8": lambda folder: dp.TensorFeature(FEAT.to(torch.float8_e5m2)),
    "one number": lambda folder: dp.TensorFeature(FEAT[:, 0].contiguous()),
    "of no width": lambda folder: dp.TensorFeature(FEAT[:, :0]),
    "stored as int8": lambda folder: dp.TensorFeature(FEAT, stored_as="int8"),
    "cached": lambda folder: dp.CPUCachedFeature(dp.TensorFeature(FEAT), "1KB"),
    "on a disk": on_disk,
    "sparse": lambda folder: words(),
    "of a user": lambda folder: Own(),
    "of a user, one row": lambda folder: Own(torch.ones(3)),
}


@pytest.mark.parametrize("kind", FEATURES)
def test_rows_of_padding_are_zeros_and_others_are_those_of_the_feature(tmp_path, kind):
    store = dp.FeatureStore({("node", None, "feat"): FEATURES[kind](tmp_path)})
    sizes = dp.measure_sizes(sampled(), 6)
    plain = list(sampled().fetch_feature(store, ["feat"]))
    for expected, minibatch in zip(plain, sampled().pad(sizes).fetch_feature(store, ["feat"]), strict=True):
        rows, known = minibatch.node_features["feat"], expected.node_features["feat"]
        is_real = minibatch.masks.nodes
        assert rows.dtype == known.dtype
        if isinstance(rows, dp.SparseRows):
            rows, known = rows.csr().to_dense(), known.csr().to_dense()
        assert rows.shape == (len(is_real), *known.shape[1:])
        real, rest = rows.float()[is_real], rows.float()[~is_real]  # not every torch indexes every dtype
        assert torch.equal(real, known.float())
        assert torch.equal(rest, torch.zeros_like(rest))
        assert 0 < len(rest) < len(rows)


@pytest.mark.parametrize("graph", [None, typed_parts], ids=["whole", "parts"])
def test_types_without_rows_and_edges_have_zeros_too(graph):
    pipe = typed_sampled(typed_items(), graph and graph())
    sizes = dp.measure_sizes(pipe, 6)
    for expected, minibatch in zip(typed_fetched(pipe), typed_fetched(pipe.pad(sizes)), strict=True):
        for (kind, _), rows in minibatch.node_features.items():  # no node is a venue, and its feature has no rows
            is_real = minibatch.masks.nodes[kind]
            assert torch.equal(rows[is_real], expected.node_features[kind, "feat"])
            assert rows[~is_real].count_nonzero() == 0 < (~is_real).sum()
        for masks, features, known in zip(
            minibatch.masks.edges, minibatch.edge_features, expected.edge_features, strict=True
        ):
            rows, is_real = features[CITES, "weight"], masks[CITES]
            assert torch.equal(rows[is_real], known[CITES, "weight"])
            assert rows[~is_real].count_nonzero() == 0


def test_no_cache_and_no_count_sees_padding():
    sizes = dp.measure_sizes(sampled(), 6)
    padded, plain = (pipe.fetch_feature(small_store(), ["feat"]) for pipe in (sampled().pad(sizes), sampled()))
    for (key, found), (_, expected) in zip(
        dp.count_accesses(padded).items(), dp.count_accesses(plain).items(), strict=True
    ):
        assert found.tolist() == expected.tolist(), key
    stats = []
    for pipe in (sampled().pad(sizes), sampled()):
        cached = dp.CPUCachedFeature(dp.TensorFeature(FEAT), "1KB")
        list(pipe.fetch_feature(dp.FeatureStore({("node", None, "feat"): cached}), ["feat"]))
        stats.append(dict(cached.stats()))
    assert stats[0] == stats[1]


class Shared(dp.FeatureStore):
    """A store of a user, which gives the same tensor again and again."""

    def read_many(self, requests):
        ((*_, ids),) = requests
        self.given = getattr(self, "given", FEAT.clone())
        return [self.given[: len(ids)]]


def test_what_a_store_of_a_user_gives_is_not_written():
    store = Shared({("node", None, "feat"): dp.TensorFeature(FEAT)})
    for minibatch in sampled().pad(dp.measure_sizes(sampled(), 6)).fetch_feature(store, ["feat"]):
        assert torch.equal(store.given, FEAT)
        assert minibatch.node_features["feat"][~minibatch.masks.nodes].count_nonzero() == 0


def test_other_ids_without_a_row_stay_errors():
    features = {"feat": dp.TensorFeature(FEAT), "none": dp.TensorFeature(FEAT[:0])}
    store = dp.FeatureStore({("node", None, name): feature for name, feature in features.items()})
    minibatch = next(iter(sampled().pad(dp.measure_sizes(sampled(), 6))))
    stage, of_none = (items().transform(dp.MiniBatch.replace).fetch_feature(store, [name]) for name in features)
    with pytest.raises(IndexError, match="got -7"):
        stage.transform(minibatch.replace(input_nodes=torch.cat((minibatch.input_nodes, torch.tensor([-7])))))
    with pytest.raises(IndexError):
        of_none.transform(minibatch)
    none = of_none.transform(minibatch.replace(input_nodes=torch.full((3,), -1))).node_features["none"]
    assert none.tolist() == [[0.0] * 3] * 3


def test_ids_of_padding_are_errors_where_nothing_was_padded():
    store = small_store()
    with pytest.raises(IndexError, match=r"must be in \[0, 40\), got -1"):
        store["node", None, "feat"].read(torch.tensor([-1]))
    minibatch = next(iter(sampled()))
    minibatch = minibatch.replace(input_nodes=torch.cat((minibatch.input_nodes, torch.tensor([-1]))))
    with pytest.raises(IndexError, match="got -1"):
        sampled().fetch_feature(store, ["feat"]).transform(minibatch)


@pytest.mark.parametrize(
    "options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}], ids=["times", "trees", "one"]
)
def test_ages_of_padding_are_zero_and_others_stay(options):
    store = dp.FeatureStore({("node", None, "since"): dp.TensorFeature(NODE_TIMES)})
    pipe = temporal(**options)
    padded = pipe.pad(dp.measure_sizes(pipe, 6)).fetch_feature(store, ["since"]).add_ages(["since"])
    for expected, found in zip(pipe.fetch_feature(store, ["since"]).add_ages(["since"]), padded, strict=True):
        ages = found.node_features["since_age"]
        assert torch.equal(ages[found.masks.nodes], expected.node_features["since_age"])
        assert ages[~found.masks.nodes].count_nonzero() == 0


def test_workers_give_the_same_padded_rows():
    sizes = dp.measure_sizes(sampled(), 6)
    pipe = sampled().pad(sizes).fetch_feature(small_store(), ["feat"], ["weight"])
    expected = digests(pipe)
    for workers in (0, 2):
        with dp.DataLoader(pipe, workers, multiprocessing_context="fork" if workers else None) as loader:
            assert digests(loader) == expected
    assert all(minibatch.input_nodes[-1] == -1 for minibatch in pipe)
