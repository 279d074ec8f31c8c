"""FeatureStore and FeatureFetcher where nodes and edges have types."""

import re

import pytest
import torch
from counted_feature import CountingStore
from pipelines import fetched, items, sampled, small_graph, small_store
from slow_hetero import (
    BY,
    CITES,
    NUM_EDGES,
    NUM_NODES,
    OF,
    WRITES,
    SlowSampler,
    every,
    hetero_graph,
    hetero_store,
    slow_sampled,
    typed_items,
)

import datapipes as dp

NAMES = {kind: ["feat"] for kind in NUM_NODES}
WEIGHTS = {kind: ["weight"] for kind in NUM_EDGES}


def feature_of(count: int) -> dp.TensorFeature:
    return dp.TensorFeature(torch.arange(count))


# --- the store


def test_an_edge_type_may_be_written_as_text_wherever_a_key_is_given():
    store = dp.FeatureStore({("edge", "a:r:b", "w"): feature_of(3), ("node", "a", "x"): feature_of(2)})
    assert [*store] == [("edge", ("a", "r", "b"), "w"), ("node", "a", "x")]
    assert store["edge", "a:r:b", "w"] is store["edge", ("a", "r", "b"), "w"]
    assert ("edge", "a:r:b", "w") in store
    assert ("edge", "a:r:c", "w") not in store
    assert store.names("edge", "a:r:b") == store.names("edge", ("a", "r", "b")) == ["w"]
    assert store.read("edge", "a:r:b", "w", torch.tensor([2])).tolist() == [2]
    assert (store.types("edge"), store.types("node")) == ([("a", "r", "b")], ["a"])


def test_a_node_type_may_hold_colons():
    store = dp.FeatureStore({("node", "http://x/y:z", "w"): feature_of(3)})
    assert store.names("node", "http://x/y:z") == ["w"]


# --- what is fetched


@pytest.mark.parametrize("as_text", [False, True])
def test_rows_follow_the_nodes_and_edge_ids_of_their_type(as_text):
    store = hetero_store()
    weights = {":".join(kind): names for kind, names in WEIGHTS.items()} if as_text else WEIGHTS
    minibatch = next(iter(slow_sampled().fetch_feature(store, NAMES, weights)))
    assert [*minibatch.node_features] == [(kind, "feat") for kind in sorted(NUM_NODES)]
    for (kind, name), rows in minibatch.node_features.items():
        assert torch.equal(rows, store["node", kind, name].tensor[minibatch.input_nodes[kind]])
    for hop, features in zip(minibatch.blocks, minibatch.edge_features, strict=True):
        assert [*features] == [(kind, "weight") for kind in sorted(NUM_EDGES)]
        for (kind, name), rows in features.items():
            assert torch.equal(rows, store["edge", kind, name].tensor[hop[kind].edge_ids])
    assert minibatch.node_features["empty", "feat"].shape == (0, 3)


def test_one_call_of_the_store_reads_all_types_of_a_minibatch():
    store = CountingStore(dict(hetero_store()))
    (minibatch,) = slow_sampled().fetch_feature(store, {"paper": ["feat"], "author": ["feat"]}, {CITES: ["weight"]})
    wanted = [("node", kind, "feat", len(minibatch.input_nodes[kind])) for kind in ("author", "paper")]
    wanted += [("edge", CITES, "weight", hop[CITES].num_edges) for hop in minibatch.blocks]
    assert store.asked == [wanted]


def test_only_what_is_asked_for_is_read_and_an_earlier_fetch_stays():
    store = hetero_store()
    chain = (
        slow_sampled().fetch_feature(store, {"paper": ["feat"], "field": []}).fetch_feature(store, {"author": ["feat"]})
    )
    minibatch = next(iter(chain))
    assert [*minibatch.node_features] == [("author", "feat"), ("paper", "feat")]
    assert minibatch.edge_features is None
    chain = chain.fetch_feature(store, None, {OF: ["weight"]}).fetch_feature(store, None, {CITES: ["weight"]})
    assert [[*features] for features in next(iter(chain)).edge_features] == [[(OF, "weight"), (CITES, "weight")]] * 2


def test_without_a_sampler_the_rows_are_those_of_the_seeds():
    store = hetero_store()
    minibatch = next(iter(typed_items({"paper": [3, 1], "author": [2]}).fetch_feature(store, {"paper": ["feat"]})))
    assert torch.equal(minibatch.node_features["paper", "feat"], store["node", "paper", "feat"].tensor[[3, 1]])


def test_the_picture_of_a_chain_shows_what_is_fetched_of_each_type():
    told = slow_sampled().fetch_feature(hetero_store(), {"paper": ["feat"]}, {CITES: ["weight"]}).describe()
    assert told == {
        "node_feature_keys": {"paper": ["feat"]},
        "edge_feature_keys": {CITES: ["weight"]},
    }
    assert fetched().describe() == {"node_feature_keys": ["feat"], "edge_feature_keys": ["weight"]}


def test_a_feature_that_is_too_long_for_its_type_is_named_in_the_log_once(caplog):
    store = dp.FeatureStore(
        {("node", kind, "x"): feature_of(NUM_NODES[kind] + (kind == "field")) for kind in NUM_NODES}
    )
    chain = slow_sampled().fetch_feature(store, {"field": ["x"], "paper": ["x"]})
    next(iter(chain.copy_to("cpu")))
    (text,) = [record.getMessage() for record in caplog.records]
    assert re.search("node feature 'x' of the type 'field' has 5 rows, .* 4 nodes", text)


# --- refused when the chain is built


def test_what_a_typed_fetch_refuses_when_the_chain_is_built(refuses):
    sampler, store = slow_sampled(fanouts=[{CITES: 2, BY: 0}, {WRITES: 1}]), hetero_store()
    fetch, fetch_without_types = sampler.fetch_feature, sampled().fetch_feature
    refuses(ValueError, fetch, store, ["feat"])
    refuses(ValueError, fetch, store, None, ["weight"])
    refuses(ValueError, fetch, store, {"papers": ["feat"]})
    refuses(ValueError, fetch, store, None, {("paper", "cite", "paper"): ["weight"]})
    refuses(ValueError, fetch, store, None, {"a:b:c:d": ["weight"]})
    refuses(TypeError, fetch, store, {CITES: ["feat"]})
    for no_names in ("feat", [3]):
        refuses(TypeError, fetch, store, {"paper": no_names})
    refuses(KeyError, fetch, store, {"paper": ["emb"]})
    refuses(KeyError, fetch, store, None, {CITES: ["emb"]})
    refuses(ValueError, fetch, store, None, {"paper:cites:paper": ["weight"], CITES: ["weight"]})
    refuses(ValueError, fetch_without_types, small_store(), {"paper": ["b", "a"]})
    refuses(ValueError, fetch_without_types, small_store(), None, {CITES: ["a"]})
    fetch(store, NAMES, {CITES: ["weight"], WRITES: ["weight"]})  # the types that it draws from
    refuses(ValueError, fetch, store, None, {BY: ["weight"]})
    without_ids = slow_sampled(return_edge_ids=False)
    refuses(ValueError, without_ids.fetch_feature, store, None, {CITES: ["weight"]})
    short = dp.FeatureStore({("node", "paper", "x"): feature_of(11), ("edge", CITES, "w"): feature_of(29)})
    refuses(ValueError, sampler.copy_to("cpu").fetch_feature, short, {"paper": ["x"]})
    refuses(ValueError, fetch, short, None, {CITES: ["w"]})
    refuses(KeyError, fetch, short, {"author": ["x"]})


# --- refused with the first minibatch


def unknown(chain: dp.Stage) -> dp.Stage:
    """A stage behind which no graph is known."""
    minibatch = next(iter(chain))
    return items().transform(lambda _: minibatch)


class Short(dp.Feature):
    """Returns 99 rows for any ids."""

    count, shape = 1000, (2,)

    def read(self, ids):
        return torch.zeros(99, 2)


def test_what_a_fetch_refuses_of_a_minibatch(refuses):
    store = dp.FeatureStore(
        {
            **hetero_store(),
            **small_store(),
            ("node", "papers", "feat"): feature_of(3),
            ("node", "paper", "few"): feature_of(3),
            ("edge", CITES, "short"): Short(),
        }
    )
    without_ids, links = slow_sampled(return_edge_ids=False), typed_items({CITES: [[1, 2]]})
    for chain, names, edge_names in (
        (slow_sampled(), ["feat"], None),
        (slow_sampled(), None, ["weight"]),
        (sampled(), {"paper": ["feat"]}, None),
        (sampled(), None, {CITES: ["weight"]}),
        (slow_sampled(), {"papers": ["feat"]}, None),
        (slow_sampled(fanouts=[{CITES: 1}]), None, {BY: ["weight"]}),
        (without_ids, None, {CITES: ["weight"]}),
        (links, {"paper": ["feat"]}, None),
        (slow_sampled(), None, {CITES: ["short"]}),
    ):
        refuses(ValueError, next, iter(unknown(chain).fetch_feature(store, names, edge_names)))
    refuses(IndexError, next, iter(typed_items({"paper": [3]}).fetch_feature(store, {"paper": ["few"]})))


def test_the_kind_of_the_graph_decides_and_not_the_store():
    """A store may hold features of a graph with types and of one without."""
    store = dp.FeatureStore({**hetero_store(), **small_store()})
    assert [*next(iter(sampled(graph=small_graph()).fetch_feature(store, ["feat"]))).node_features] == ["feat"]
    chain = SlowSampler(typed_items({"paper": [1]}), hetero_graph(), [every(1)]).fetch_feature(
        store, {"paper": ["feat"]}
    )
    assert [*next(iter(chain)).node_features] == [("paper", "feat")]
