"""FeatureFetcher: rows follow input nodes and edge ids; a missing feature is refused when the chain is built."""

import copy
import pickle
import re
import sys

import pytest
import torch
from counted_feature import CountingStore
from pipelines import NUM_NODES, fetched, items, sampled, small_graph, small_store

import datapipes as dp


def contract_chain() -> dp.Stage:
    return fetched()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    functional = sampled().fetch_feature(small_store(), node_feature_keys=["feat"])
    return functional, dp.FeatureFetcher(sampled(), small_store(), ["feat"])


def test_rows_follow_the_input_nodes_and_the_edge_ids():
    store = small_store()
    for minibatch in fetched():
        assert torch.equal(minibatch.node_features["feat"], store["node", None, "feat"].tensor[minibatch.input_nodes])
        for block, features in zip(minibatch.blocks, minibatch.edge_features, strict=True):
            assert torch.equal(features["weight"], store["edge", None, "weight"].tensor[block.edge_ids])


def test_only_what_is_asked_for_is_read():
    assert next(iter(sampled().fetch_feature(small_store(), ["feat"]))).edge_features is None
    assert next(iter(sampled().fetch_feature(small_store(), None, ["weight"]))).node_features is None
    minibatch = next(iter(sampled().fetch_feature(small_store())))
    assert (minibatch.node_features, minibatch.edge_features) == (None, None)


def test_without_a_sampler_the_rows_are_those_of_the_seeds():
    for minibatch in items().fetch_feature(small_store(), ["feat"]):
        assert torch.equal(minibatch.node_features["feat"][:, 0], 3.0 * minibatch.seeds)


def test_int32_ids_read_the_same_rows():
    narrow = sampled(graph=small_graph(torch.int32)).fetch_feature(small_store(), ["feat"])
    wide = sampled().fetch_feature(small_store(), ["feat"])
    for one, other in zip(narrow, wide, strict=True):
        assert torch.equal(one.node_features["feat"], other.node_features["feat"])


def test_a_feature_may_have_more_rows_than_the_graph_nodes():
    assert len(list(sampled().fetch_feature(small_store(NUM_NODES + 5), ["feat"]))) == 6


def test_what_a_sampler_refuses_behind_a_fetch(refuses):
    of_nodes, of_edges = (
        items().fetch_feature(small_store(), ["feat"]),
        sampled().fetch_feature(small_store(), None, ["weight"]),
    )
    for fetching in (of_nodes, of_edges):
        refuses(ValueError, sampled, fetching)
        refuses(ValueError, sampled, fetching.copy_to("cpu").prefetch())
    unseen = of_nodes.transform(lambda minibatch: minibatch.replace())
    unseen_of_edges = fetched().transform(lambda minibatch: minibatch.replace(node_features=None))
    for fetching in (unseen, unseen_of_edges):
        refuses(ValueError, next, iter(sampled(fetching)))


def test_features_that_are_taken_out_before_the_sampler_are_no_matter():
    def choose(minibatch):  # the rows decide which seeds stay
        kept = minibatch.node_features["feat"][:, 0] < 60
        seeds, labels = minibatch.seeds[kept], minibatch.labels[kept]
        return minibatch.replace(seeds=seeds, labels=labels, node_features=None) if len(seeds) else None

    chain = sampled(items().fetch_feature(small_store(), ["feat"]).transform(choose)).fetch_feature(
        small_store(), ["feat"]
    )
    found = [int(seed) for minibatch in chain for seed in minibatch.seeds]
    assert found
    assert max(found) < 20


def test_a_join_that_does_not_draw_may_stand_before_the_sampler():
    class First(dp.MiniBatchTransformer):
        draws = False

        def transform(self, minibatches):
            return minibatches[0]

    class FirstOfTwo(First):
        def transform(self, first, second):
            return first

    assert len(list(sampled(FirstOfTwo([items(), items()])))) == 6


def test_a_fetch_of_nothing_may_stand_before_the_sampler():
    assert len(list(sampled(items().fetch_feature(small_store())))) == 6


def said(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_more_rows_than_the_graph_nodes_are_named_in_the_log_once(caplog):
    store, graph = small_store(NUM_NODES + 5), small_graph()
    chain = sampled(graph=graph).fetch_feature(store, ["feat"], ["weight"])
    (text,) = said(caplog)
    assert re.search(r"fetch_feature: node feature 'feat' has 45 rows, .* 40 nodes; .*\. Check", text)
    list(chain)
    list(copy.copy(chain))
    list(chain.with_sources(chain.source))
    list(pickle.loads(pickle.dumps(chain)))
    list(dp.DataLoader(chain, 2, worker_method="thread"))
    list(dp.DataLoader(chain.copy_to("cpu"), cut="end"))
    chain.replaced(dp.NeighborSampler, lambda old: sampled(graph=old.graph))
    assert said(caplog) == [text]


def test_each_feature_that_is_too_long_for_a_graph_is_named_and_no_other(caplog):
    rows = {"long": 41, "longer": 42, "right": 40}
    store = dp.FeatureStore({("node", None, name): dp.TensorFeature(torch.zeros(n)) for name, n in rows.items()})
    sampled(graph=small_graph()).fetch_feature(store, ["long", "right", "longer"])
    assert [re.findall(r"'(\w+)' has (\d+) rows", text) for text in said(caplog)] == [
        [("long", "41")],
        [("longer", "42")],
    ]
    sampled(graph=small_graph()).fetch_feature(store, ["long"])  # another graph
    assert len(said(caplog)) == 3
    items().fetch_feature(store, ["long"])  # no graph is known
    assert len(said(caplog)) == 3


class Squares(dp.Feature):
    """A user-defined feature: the square of the id."""

    count, shape = 1000, ()

    def read(self, ids):
        return ids * ids


def test_the_features_of_a_store_are_read_and_not_set():
    feature = dp.TensorFeature(torch.rand(3, 2))
    store = dp.FeatureStore({("node", None, "feat"): feature})
    assert store.features == {("node", None, "feat"): feature}
    with pytest.raises(AttributeError):
        store.features = {}
    with pytest.raises(TypeError):
        store.features["node", None, "more"] = feature
    assert [*store] == [("node", None, "feat")]


def test_a_feature_of_ones_own_stands_in_a_store():
    store = dp.FeatureStore({("node", None, "square"): Squares()})
    minibatch = next(iter(sampled().fetch_feature(store, ["square"])))
    assert torch.equal(minibatch.node_features["square"], minibatch.input_nodes**2)


# --- refused when the chain is built


class SaysAsync(dp.FeatureStore):
    """Says that it reads asynchronously, and has no method that does."""

    reads_async = True


def test_what_a_fetch_refuses_when_the_chain_is_built(refuses):
    fetch, store = sampled().fetch_feature, small_store()
    for no_store in (torch.ones(3), {}, None, SaysAsync(store)):
        refuses(TypeError, fetch, no_store, ["feat"])
    for unknown in ("emb", "weight"):
        refuses(KeyError, fetch, store, [unknown])
    refuses(KeyError, fetch, store, None, ["feat"])
    for no_names in ("feat", [3], 3, {"feat"}):
        refuses(TypeError, fetch, store, no_names)
    refuses(TypeError, fetch, store, None, "weight")
    refuses(ValueError, sampled(return_edge_ids=False).fetch_feature, store, None, ["weight"])
    short = dp.FeatureStore({("edge", None, "weight"): dp.TensorFeature(torch.zeros(199))})
    refuses(ValueError, fetch, short, None, ["weight"])
    same = sampled().transform(lambda minibatch: minibatch)
    for chain in (sampled(), sampled().prefetch(), dp.DataLoader(sampled()), sampled().copy_to("cpu"), same):
        refuses(ValueError, chain.fetch_feature, small_store(NUM_NODES - 1), ["feat"])


# --- refused while running


class Short(dp.Feature):
    """Returns fewer rows than it is asked for."""

    count, shape = 1000, (2,)

    def read(self, ids):
        return torch.zeros(3, 2)


class Forgets(dp.FeatureStore):
    """Answers all requests but the first."""

    def read_many(self, requests):
        return super().read_many(requests)[1:]


def test_what_a_fetch_refuses_of_a_minibatch(refuses):
    store = small_store()
    pairs = dp.ItemSampler(dp.ItemSet(torch.zeros(4, 2).long()), 2)
    without_seeds = items().transform(lambda minibatch: dp.MiniBatch())
    short = dp.FeatureStore({("node", None, "feat"): Short()})
    for chain in (
        pairs.fetch_feature(store, ["feat"]),
        without_seeds.fetch_feature(store, ["feat"]),
        items().fetch_feature(store, None, ["weight"]),
        sampled().fetch_feature(short, ["feat"]),
        sampled().fetch_feature(Forgets(dict(store)), ["feat"]),
    ):
        refuses(ValueError, next, iter(chain))


def test_an_id_without_a_row_is_refused_and_the_feature_named():
    """A stage in between may change the ids, so `read` checks them."""
    chain = sampled().transform(lambda minibatch: minibatch.replace(input_nodes=minibatch.input_nodes + 1000))
    with pytest.raises(
        IndexError, match=r"fetch_feature: node feature 'feat': gather_rows: row id must be in"
    ) as caught:
        list(chain.fetch_feature(small_store(), ["feat"]))
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__[0].startswith("in stage 3 (fetch_feature), epoch 0, minibatch ")


def test_a_second_fetch_keeps_what_the_first_one_read():
    store = {("node", None, name): dp.TensorFeature(torch.arange(40) * factor) for name, factor in (("a", 1), ("b", 2))}
    store = dp.FeatureStore(store)
    minibatch = next(iter(sampled().fetch_feature(store, ["a"]).fetch_feature(store, ["b"])))
    assert torch.equal(minibatch.node_features["a"] * 2, minibatch.node_features["b"])


def test_one_call_of_the_store_reads_all_features_of_a_minibatch():
    store = CountingStore(dict(small_store()))
    (minibatch, *rest) = sampled().fetch_feature(store, ["feat"], ["weight"])
    nodes = ("node", None, "feat", minibatch.input_nodes.shape[0])
    assert store.asked[0] == [nodes, *(("edge", None, "weight", block.num_edges) for block in minibatch.blocks)]
    assert len(store.asked) == 1 + len(rest)


def test_what_is_stored_with_fewer_bits_is_shown_and_is_no_part_of_the_state():
    rows = torch.ones(NUM_NODES, 2)

    def chain(**stored_as: str) -> dp.Stage:
        names = ["x", "y"]
        features = {("node", None, name): dp.TensorFeature(rows, stored_as=stored_as.get(name)) for name in names}
        return sampled().fetch_feature(dp.FeatureStore(features), names)

    assert repr(chain()) == "FeatureFetcher(node_feature_keys=['x', 'y'])"
    stored = chain(y="int8")
    assert repr(stored) == "FeatureFetcher(node_feature_keys=['x', 'y'], stored_as={'y': 'int8'})"
    assert "stored_as={'y': 'int8'}" in dp.DataLoader(stored).explain()
    assert stored.state_dict() == chain().state_dict()
