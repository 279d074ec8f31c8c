"""Names of PyG, GraphBolt and torch: the error says what they are called here. All other errors are Python's."""

import copy
import pickle
import re
import weakref

import pytest
import torch
from pipelines import fetched, item_set, items, sampled, small_graph, small_store
from slow_hetero import hetero_graph

import datapipes as dp
from datapipes.chain import functional
from datapipes.compat.name_tables import ATTRIBUTES, KEYWORDS

GRAPH, STORE = small_graph(), small_store()
MINIBATCH = next(iter(fetched()))
DATASET = dp.datasets.Dataset("tiny", GRAPH, STORE, item_set(), item_set(), item_set(), 2, ("a", "b"))
FEATURE = STORE["node", None, "feat"]

PAIRS = torch.zeros(4, 2, dtype=torch.int64)
OWNERS = {
    "MiniBatch": MINIBATCH,
    "Block": MINIBATCH.blocks[0],
    "SampledSubgraph": MINIBATCH.sampled_subgraphs[0],
    "Stage": fetched(),
    "ItemSet": item_set(),
    "CSCGraph": GRAPH,
    "HeteroCSCGraph": hetero_graph(),
    "FeatureStore": STORE,
    "Feature": FEATURE,
    "Dataset": DATASET,
    "OnDiskDataset": dp.datasets.OnDiskDataset("folder"),
    "datapipes": dp,
    "datapipes.distributed": dp.distributed,
    "datapipes.datasets": dp.datasets,
    "datapipes.channel": dp.channel,
}
MODULES = {name for name in OWNERS if name.startswith("datapipes")}

BUILDERS = {
    "Stage": lambda **given: items().prefetch(**given),
    "ItemSampler": lambda **given: dp.ItemSampler(item_set(), 4, **given),
    "NeighborSampler": lambda **given: items().sample_neighbor(GRAPH, **given),
    "TemporalNeighborSampler": lambda **given: items().temporal_sample_neighbor(
        GRAPH, **{"fanouts": [2], "edge_time_attr": "at", **given}
    ),
    "InSubgraphSampler": lambda **given: items().sample_in_subgraph(GRAPH, **given),
    "RandomWalkSampler": lambda **given: items().sample_random_walk(GRAPH, **{"walk_length": 3, **given}),
    "PinSageSampler": lambda **given: items().sample_pinsage(
        GRAPH, **{"num_neighbors": 2, "num_walks": 3, "walk_length": 3, "restart_prob": 0.5, **given}
    ),
    "PprSampler": lambda **given: items().sample_ppr(GRAPH, **{"num_neighbors": 2, **given}),
    "LayerNeighborSampler": lambda **given: items().sample_layer_neighbor(GRAPH, **given),
    "FeatureFetcher": lambda **given: sampled().fetch_feature(STORE, **given),
    "MiniBatchTransformer": lambda **given: items().transform(**given),
    "Prefetcher": lambda **given: items().prefetch(**given),
    "DataLoader": lambda **given: dp.DataLoader(fetched(), **given),
    "DistNeighborSampler": lambda **given: items().dist_sample_neighbor(GRAPH, **given),
    "DistTemporalNeighborSampler": lambda **given: items().dist_temporal_sample_neighbor(GRAPH, **given),
    "NegativeSampler": lambda **given: dp.NegativeSampler(dp.ItemSampler(dp.ItemSet(PAIRS), 4), fn=len, **given),
    "SeedEdgeExcluder": lambda **given: dp.ItemSampler(dp.ItemSet(PAIRS), 4).exclude_seed_edges(**given),
    "MiniBatch": MINIBATCH.replace,
}

# What the words of the tables stand for.
WORDS = {
    "dp": dp,
    "minibatch": MINIBATCH,
    "block": MINIBATCH.blocks[0],
    "subgraph": MINIBATCH.sampled_subgraphs[0],
    "pipe": fetched(),
    "item_set": item_set(),
    "graph": GRAPH,
    "store": STORE,
    "feature": FEATURE,
    "dataset": DATASET,
}


def expect_names_that_exist(ours: str) -> None:
    """The text of a row names only what there is, so a row goes stale no more than a link does."""
    for word, attributes in re.findall(rf"\b({'|'.join(WORDS)})\.(\w+(?:\.\w+)*)", ours):
        found = WORDS[word]
        for attribute in attributes.split("."):
            assert hasattr(found, attribute), f"{ours!r} names {attribute!r}, which {found!r} does not have"
            found = getattr(found, attribute)


@pytest.mark.parametrize("owner", ATTRIBUTES)
def test_an_attribute_of_another_library_is_missing_as_any_other_and_the_error_names_ours(owner):
    found, names = OWNERS[owner], dir(OWNERS[owner])
    for name, ours in ATTRIBUTES[owner].items():
        assert not hasattr(found, name)
        assert getattr(found, name, "default") == "default"
        assert name not in names
        with pytest.raises(AttributeError) as caught:
            getattr(found, name)
        assert str(caught.value).endswith(f" has no {name!r}. Here: {ours}.")
        assert caught.value.name == name
        expect_names_that_exist(ours)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_an_import_of_a_name_of_another_library_says_what_it_is_here(module):
    for name, ours in ATTRIBUTES[module].items():
        with pytest.raises(ImportError) as caught:
            exec(f"from {module} import {name} as other")
        assert str(caught.value) == f"cannot import name {name!r} from {module!r}. Here: {ours}."
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec(f"from {module} import nonsense")


@pytest.mark.parametrize("owner", KEYWORDS)
def test_a_keyword_of_another_library_is_refused_and_the_error_names_ours(owner):
    for name, ours in KEYWORDS[owner].items():
        with pytest.raises(TypeError) as caught:
            BUILDERS[owner](**{name: 1})
        built = "Prefetcher" if owner == "Stage" else owner
        assert re.fullmatch(rf"\w+: {built} takes no '{name}'\. Here: {re.escape(ours)}\.", str(caught.value))
        expect_names_that_exist(ours)
        keyword = re.match(r"([a-z_]+)(?:,|$)", ours)
        if owner != "MiniBatch" and keyword is not None:
            with pytest.raises((TypeError, ValueError), match=f"{keyword[1]}.* must |multiple values .*'{keyword[1]}'"):
                BUILDERS[owner](**{keyword[1]: ...})


def test_arguments_by_position_that_are_too_many_are_refused(refuses):
    """In GraphBolt's order."""
    refuses(TypeError, dp.ItemSampler, item_set(), 4, None, True)
    refuses(TypeError, dp.DistributedItemSampler, item_set(), 4, None, True)
    refuses(TypeError, items().sample_neighbor, GRAPH, [2], True, "w")
    refuses(TypeError, items().sample_layer_neighbor, GRAPH, [2], True)
    refuses(TypeError, items().temporal_sample_neighbor, GRAPH, [2], True, None, "t")
    refuses(TypeError, sampled().copy_to, "cpu", False)
    refuses(TypeError, sampled().fetch_feature, STORE, ["feat"], None, True)
    refuses(TypeError, dp.DataLoader, fetched(), 0, True, 10240, "end")


def test_a_feature_cannot_be_put_into_a_store_and_the_error_has_a_line_that_makes_another(refuses):
    key = ("node", None, "new")
    with refuses(AttributeError):
        STORE[key] = FEATURE
    assert dp.FeatureStore({**STORE, key: FEATURE})[key] is FEATURE


def test_samplers_of_parts_refuse_the_same_keywords(refuses):
    refuses(TypeError, items().dist_sample_layer_neighbor, GRAPH, [2], importance_sampling=1)
    refuses(TypeError, items().dist_sample_neighbor, GRAPH, [2], weight_attr="w")


def test_every_class_of_the_tables_is_public():
    assert set(ATTRIBUTES) == set(OWNERS)
    assert set(KEYWORDS) == set(BUILDERS)
    public = {name for module in (dp, dp.datasets, dp.distributed) for name in module.__all__}
    assert {*ATTRIBUTES, *KEYWORDS} - MODULES <= public


@pytest.mark.parametrize("owner", OWNERS)
def test_any_other_name_gives_pythons_own_error(owner):
    kind = f"module {owner!r}" if owner in MODULES else f"'{type(OWNERS[owner]).__name__}' object"
    with pytest.raises(AttributeError, match=f"^{kind} has no attribute 'nonsense'"):
        _ = OWNERS[owner].nonsense


@pytest.mark.parametrize("owner", BUILDERS)
def test_any_other_keyword_gives_pythons_own_error(owner):
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        BUILDERS[owner](nonsense=1)


@pytest.mark.parametrize("owner", sorted(OWNERS.keys() - MODULES))
def test_copies_and_pickles_are_as_before(owner):
    found = OWNERS[owner]
    for again in (copy.copy(found), copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert type(again) is type(found)
        assert not hasattr(again, "nonsense")
        assert repr(again) == repr(found)


class Filtered(dp.MiniBatchTransformer):
    """A stage of a user that has names of the tables, and an attribute that fails for a reason of its own."""

    map = "mine"

    def __init__(self, source: dp.Stage, fanout: int, batch_size: int = 1, **others: int) -> None:
        super().__init__(source)
        self.fanout, self.batch_size, self.others = fanout, batch_size, others

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return minibatch

    @property
    def width(self) -> int:
        return self.fanout.nonsense

    @property
    def wait(self) -> int:
        return self.fanout.nonsense

    @property
    def buffer(self) -> int:
        return torch.float32.itemsize


def test_a_class_that_has_such_a_name_keeps_it():
    stage = Filtered(items(), fanout=3, batch_size=4, buffer_size=5)
    assert (stage.fanout, stage.batch_size, stage.others) == (3, 4, {"buffer_size": 5})
    assert (stage.map, stage.buffer) == ("mine", 4)
    stage.filter = "mine too"
    assert stage.filter == "mine too"
    assert items().batch_size == 4


@pytest.mark.parametrize("name", ["width", "wait"])  # the second is a name of the tables
def test_a_property_that_fails_keeps_its_own_error(name):
    with pytest.raises(AttributeError, match="'int' object has no attribute 'nonsense'"):
        getattr(Filtered(items(), fanout=3), name)


def test_the_error_keeps_no_stage_alive():
    stage = items()
    gone = weakref.ref(stage)
    with pytest.raises(AttributeError):
        stage.map  # noqa: B018
    del stage
    assert gone() is None


def test_a_stage_with_transform_async_is_still_found():
    class Waits(dp.MiniBatchTransformer):
        async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
            return minibatch.replace(labels=None)

    class Lends(dp.MiniBatchTransformer):
        def __init__(self, source: dp.Stage, other: Waits) -> None:
            self.transform_async = other.transform_async
            super().__init__(source)

    for stage in (Waits(items()), Lends(items(), Waits(items()))):
        assert all(minibatch.labels is None for minibatch in stage)


def test_a_stage_that_is_registered_under_such_a_name_takes_its_place(monkeypatch):
    missing = vars(functional.FunctionalForms)["batch"]
    monkeypatch.setattr(functional, "_registry", dict(functional._registry))
    monkeypatch.setattr(functional, "_names", dict(functional._names))
    try:
        dp.register_stage("batch")(Filtered)
        assert type(items().batch(3)) is Filtered
    finally:
        functional.FunctionalForms.batch = missing
