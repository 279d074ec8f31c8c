"""FeatureStore and FeatureFetcher where nodes and edges have types."""

import re

import pytest
import torch
from pipelines import fetched, items, refused, sampled, small_graph, small_store
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


class CountingStore(dp.FeatureStore):
    """Remembers what each call asked for."""

    def __init__(self, features) -> None:
        super().__init__(features)
        self.asked = []

    def read_many(self, requests):
        self.asked.append([(domain, type_, name, len(ids)) for domain, type_, name, ids in requests])
        return super().read_many(requests)


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


@pytest.mark.parametrize(
    ("keys", "error", "found", "allowed"),
    [
        ([("edge", "a:r:b", "w"), ("edge", ("a", "r", "b"), "w")], ValueError, "given twice", "tuple and as text"),
        ([("edge", "a:r:b:c", "w")], ValueError, "more than one way", "src, rel, dst"),
        ([("edge", "a:r", "w")], ValueError, "'a:r'", "three texts"),
        ([("edge", ("a", "", "b"), "w")], ValueError, "empty name", "at least one"),
        ([("edge", 3, "w")], TypeError, "got 3", "a tuple"),
        ([("node", "", "w")], ValueError, "empty name", "at least one"),
        ([("node", ("a", "r", "b"), "w")], TypeError, r"got \('a'", "must be a str"),
    ],
    ids=str,
)
def test_types_that_are_none_are_refused_by_the_store(keys, error, found, allowed):
    with refused(error, stage="FeatureStore", found=found, allowed=allowed):
        dp.FeatureStore({key: feature_of(1) for key in keys})


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


@pytest.mark.parametrize(
    ("keys", "error", "found", "allowed"),
    [
        (
            {"node_feature_keys": ["feat"]},
            ValueError,
            r"is \['feat'\].*has the node types",
            "Write .*'author': .'feat'",
        ),
        ({"edge_feature_keys": ["weight"]}, ValueError, r"is \['weight'\].*has the edge types", "type: names"),
        ({"node_feature_keys": {"papers": ["feat"]}}, ValueError, "no node type 'papers'", "nearest is 'paper'"),
        (
            {"edge_feature_keys": {("paper", "cite", "paper"): ["weight"]}},
            ValueError,
            r"no edge type \('paper', 'cite', 'paper'\)",
            r"nearest is \('paper', 'cites', 'paper'\)",
        ),
        ({"edge_feature_keys": {"a:b:c:d": ["weight"]}}, ValueError, "more than one way", "Give the tuple"),
        ({"edge_feature_keys": {"paper": ["weight"]}}, ValueError, "'paper'", "three texts"),
        ({"node_feature_keys": {CITES: ["feat"]}}, TypeError, "node type must be a str", "must be a str"),
        ({"node_feature_keys": {"": ["feat"]}}, ValueError, "empty name", "at least one"),
        ({"node_feature_keys": {"paper": "feat"}}, TypeError, r"node_feature_keys\['paper'\]", "a list of names"),
        ({"node_feature_keys": {"paper": [3]}}, TypeError, r"got \[3\]", "a list of names"),
        ({"node_feature_keys": {"paper": ["emb"]}}, KeyError, "'emb' of the type 'paper'", r"store has \['feat'\]"),
        ({"edge_feature_keys": {CITES: ["emb"]}}, KeyError, "'emb' of the type", r"store has \['weight'\]"),
        (
            {"edge_feature_keys": {"paper:cites:paper": ["weight"], CITES: ["weight"]}},
            ValueError,
            "given twice",
            "as tuple and as text",
        ),
    ],
    ids=str,
)
def test_keys_that_do_not_fit_the_graph_or_the_store_are_refused(keys, error, found, allowed):
    with refused(error, stage="fetch_feature", found=found, allowed=allowed):
        slow_sampled().fetch_feature(hetero_store(), **keys)


@pytest.mark.parametrize("keys", [{"node_feature_keys": {"paper": ["b", "a"]}}, {"edge_feature_keys": {CITES: ["a"]}}])
def test_types_for_a_graph_without_are_refused(keys):
    with refused(
        ValueError, stage="fetch_feature", found="has no types", allowed="a list of names", remedy=r"Write \['a'"
    ):
        sampled().fetch_feature(small_store(), **keys)


def test_a_type_of_which_the_store_has_nothing_is_named_with_those_it_has():
    store = dp.FeatureStore({("node", "paper", "feat"): feature_of(12)})
    with refused(KeyError, stage="fetch_feature", found="'feat' of the type 'author'", allowed=r"types \['paper'\]"):
        slow_sampled().fetch_feature(store, {"author": ["feat"]})


def test_edge_features_of_a_type_that_the_sampler_does_not_draw_from_are_refused():
    sampler = slow_sampled(fanouts=[{CITES: 2, BY: 0}, {WRITES: 1}])
    sampler.fetch_feature(hetero_store(), NAMES, {CITES: ["weight"], WRITES: ["weight"]})
    with refused(ValueError, stage="fetch_feature", found=r"\('paper', 'by', 'author'\)", allowed="draws from"):
        sampler.fetch_feature(hetero_store(), None, {BY: ["weight"]})


def test_features_with_fewer_rows_than_their_type_are_refused():
    store = dp.FeatureStore({("node", "paper", "x"): feature_of(11), ("edge", CITES, "w"): feature_of(29)})
    with refused(ValueError, stage="fetch_feature", found="'x' of the type 'paper' has 11 rows", allowed="12 nodes"):
        slow_sampled().copy_to("cpu").fetch_feature(store, {"paper": ["x"]})
    with refused(ValueError, stage="fetch_feature", found=r"'w' of the type \('paper'.* has 29", allowed="up to 29"):
        slow_sampled().fetch_feature(store, None, {CITES: ["w"]})
    with refused(ValueError, stage="fetch_feature", found="return_edge_ids=False", allowed="need edge ids"):
        slow_sampled(return_edge_ids=False).fetch_feature(hetero_store(), None, {CITES: ["weight"]})


# --- refused with the first minibatch, where no sampler tells


def unknown(chain: dp.Stage) -> dp.Stage:
    """A stage behind which no graph is known."""
    minibatch = next(iter(chain))
    return items().transform(lambda _: minibatch)


@pytest.mark.parametrize(
    ("chain", "keys", "found", "allowed"),
    [
        (
            slow_sampled,
            {"node_feature_keys": ["feat"]},
            r"\['feat'\], but the minibatch has the node types",
            "type: names",
        ),
        (slow_sampled, {"edge_feature_keys": ["weight"]}, "the minibatch has the edge types", "type: names"),
        (sampled, {"node_feature_keys": {"paper": ["feat"]}}, "the minibatch has no types", "a list of names"),
        (sampled, {"edge_feature_keys": {CITES: ["weight"]}}, "the minibatch has no types", "a list of names"),
        (slow_sampled, {"node_feature_keys": {"papers": ["feat"]}}, "no node type 'papers'", "nearest is 'paper'"),
        (
            lambda: slow_sampled(fanouts=[{CITES: 1}]),
            {"edge_feature_keys": {BY: ["weight"]}},
            r"no edge type \('paper', 'by'",
            r"nearest is \('paper', 'cites', 'paper'\)",
        ),
        (
            lambda: slow_sampled(return_edge_ids=False),
            {"edge_feature_keys": {CITES: ["weight"]}},
            "a block without",
            "need edge ids",
        ),
        (lambda: typed_items({CITES: [[1, 2]]}), {"node_feature_keys": {"paper": ["feat"]}}, r"\[1, 2\]", "1-D seeds"),
    ],
)
def test_a_minibatch_that_does_not_fit_the_keys_is_refused(chain, keys, found, allowed):
    features = {**hetero_store(), **small_store(), ("node", "papers", "feat"): feature_of(3)}
    with refused(ValueError, stage="fetch_feature", found=found, allowed=allowed):
        next(iter(unknown(chain()).fetch_feature(dp.FeatureStore(features), **keys)))


def test_an_id_without_a_row_is_refused_with_feature_and_type():
    store = dp.FeatureStore({("node", "paper", "x"): feature_of(3)})
    with pytest.raises(IndexError, match="fetch_feature: node feature 'x' of the type 'paper': "):
        next(iter(typed_items({"paper": [3]}).fetch_feature(store, {"paper": ["x"]})))


def test_a_feature_that_gives_other_rows_than_asked_for_is_refused_with_its_type():
    class Short(dp.Feature):
        count, shape = 1000, (2,)

        def read(self, ids):
            return torch.zeros(99, 2)

    chain = slow_sampled().fetch_feature(dp.FeatureStore({("edge", CITES, "x"): Short()}), None, {CITES: ["x"]})
    with refused(
        ValueError, stage="fetch_feature", found=r"'x' of the type .* gave \[99, 2\]", allowed="one row for each"
    ):
        next(iter(chain))


def test_the_kind_of_the_graph_decides_and_not_the_store():
    """A store may hold features of a graph with types and of one without."""
    store = dp.FeatureStore({**hetero_store(), **small_store()})
    assert [*next(iter(sampled(graph=small_graph()).fetch_feature(store, ["feat"]))).node_features] == ["feat"]
    chain = SlowSampler(typed_items({"paper": [1]}), hetero_graph(), [every(1)]).fetch_feature(
        store, {"paper": ["feat"]}
    )
    assert [*next(iter(chain)).node_features] == [("paper", "feat")]
