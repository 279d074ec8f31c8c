"""Chains as descriptions: they travel as bytes, are built over other objects, and give the same bits."""

import copy
import json
import random

import pytest
import torch
from amounts import amount
from described_chains import CHAINS, timed_graph
from dist_graphs import in_parts
from pipelines import digests, fetched, item_set, items, keep_most, sampled, small_graph, small_store
from typed_pipelines import typed_fetched, typed_graph, typed_store

import datapipes as dp
from datapipes.distributed import build_chain, describe_chain
from datapipes.distributed.chain_description import ChainBuilder
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.arrow_reading import from_bytes
from datapipes.sampling.node_values import NodeWeights
from datapipes.seeds.weights import Weights


def sent(message: Message) -> Message:
    """The message as it arrives."""
    return from_bytes("test", to_bytes("test", message), 2**26)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_built_again_with_the_same_bits(name):
    make_graph, chain = CHAINS[name]
    pipe = chain(make_graph())
    built = build_chain(sent(describe_chain(pipe)), graph=make_graph())
    assert str(built) == str(pipe)
    assert digests(built) == digests(pipe)
    built.load_state_dict(pipe.state_dict())
    assert to_bytes("test", describe_chain(built)) == to_bytes("test", describe_chain(pipe))


@pytest.mark.parametrize("is_typed", [False, True])
def test_features_are_those_of_the_other_process(is_typed):
    pipe, graph = (typed_fetched(), typed_graph()) if is_typed else (fetched(), small_graph())
    built = build_chain(sent(describe_chain(pipe)), graph=graph, features=typed_store() if is_typed else small_store())
    assert digests(built) == digests(pipe)


def test_over_parts_and_over_a_whole_graph_a_chain_has_one_description():
    graph = small_graph()
    parts = in_parts(graph, torch.arange(40) % 3, 3)
    whole = items().sample_neighbor(graph, [3, 2], return_edge_ids=True)
    named = items().dist_sample_neighbor(parts, [3, 2], return_edge_ids=True, concurrency=3)
    described = describe_chain(whole)
    assert to_bytes("test", describe_chain(named)) == to_bytes("test", described)
    over_parts = build_chain(described, graph=parts)
    assert over_parts.graph is parts
    assert digests(over_parts) == digests(whole) == digests(build_chain(describe_chain(named), graph=graph))


def test_lists_of_items_travel():
    lists = dp.SparseRows(torch.tensor([0, 2, 2, 5]), torch.arange(5), 5)
    pipe = dp.ItemSampler(dp.ItemSet((torch.arange(3), lists), ("seeds", "more")), 2)
    built = build_chain(sent(describe_chain(pipe)), graph=small_graph())
    assert digests(built) == digests(pipe)


def test_what_has_a_name_does_not_travel(refuses):
    graph, own, store = small_graph(), item_set(), small_store()
    pipe = dp.ItemSampler(own, 4).sample_neighbor(graph, [2]).fetch_feature(store, ["feat"])
    described = describe_chain(pipe, {"train": own, "follows": graph, "wide": store})
    assert described.tensors == {}
    assert all(f'"{name}"' in json.dumps(described.header) for name in ("train", "follows", "wide"))
    offers = {"graph": {"follows": graph, "cites": timed_graph()}, "features": {"wide": small_store()}}
    built = build_chain(described, items={"train": item_set()}, **offers)
    assert digests(built) == digests(pipe)
    refuses(ValueError, build_chain, described, **offers)
    refuses(ValueError, build_chain, described, items={"train": own}, graph=graph, features=store)
    other = {"train": dp.ItemSet((torch.arange(22), torch.ones(22)))}
    refuses(ValueError, build_chain, described, items=other, **offers)


def test_other_data_are_refused(refuses):
    described, graph, store = describe_chain(fetched()), small_graph(), small_store()
    other = dp.CSCGraph(graph.indptr, graph.indices.flip(0), edge_ids=graph.edge_ids)
    refuses(ValueError, build_chain, described, graph=other, features=store)
    wide = dp.FeatureStore({**store, ("node", None, "feat"): dp.TensorFeature(torch.rand(40, 9))})
    refuses(ValueError, build_chain, described, graph=graph, features=wide)
    refuses(ValueError, build_chain, described, graph=graph)


class Doubled(dp.MiniBatchTransformer):
    """A stage of the user's, with an argument."""

    def __init__(self, source, times=2):
        super().__init__(source)
        self.times = times

    def transform(self, minibatch):
        return minibatch.replace(labels=minibatch.labels * self.times)


class Greedy(dp.MiniBatchTransformer):
    def __init__(self, *sources, **options):
        super().__init__([*sources])

    def transform(self, minibatch):
        return minibatch


def test_stages_of_a_users_own_are_built_where_they_are_offered(refuses):
    pipe = Doubled(sampled(), times=3)
    described = sent(describe_chain(pipe))
    refuses(ValueError, build_chain, described, graph=small_graph())
    assert digests(build_chain(described, graph=small_graph(), stages=[Doubled])) == digests(pipe)


def test_joined_sources_are_described():
    graph, one = small_graph(), items()
    pipe = FirstOf([sampled(one, graph), one.sample_neighbor(graph, [1])])
    built = build_chain(describe_chain(pipe), graph=graph, stages=[FirstOf])
    assert digests(built) == digests(pipe)
    assert len(dp.stages.StageGraph(built).walk()) == 4


class FirstOf(dp.MiniBatchTransformer):
    def transform(self, first, *others):
        return first


def test_what_describe_chain_refuses(refuses):
    graph, one = small_graph(), item_set()
    refuses(ValueError, describe_chain, fetched().copy_to("cpu"))
    refuses(ValueError, describe_chain, dp.Prefetcher(sampled()))
    refuses(ValueError, describe_chain, dp.DataLoader(sampled()))
    refuses(ValueError, describe_chain, dp.DistributedItemSampler(one, 4, rank=0, world_size=2))
    refuses(TypeError, describe_chain, sampled().transform(keep_most))
    refuses(TypeError, describe_chain, Greedy(sampled()))
    refuses(ValueError, describe_chain, sampled(graph=graph).sample_neighbor(timed_graph(), [1]))
    refuses(ValueError, describe_chain, sampled(), {"other": graph})
    refuses(TypeError, describe_chain, sampled(), {"fn": keep_most})
    refuses(TypeError, describe_chain, [])
    refuses(TypeError, build_chain, describe_chain(sampled()), graph=small_store())


# --- hostile descriptions


def changed(described: Message, change) -> Message:
    header = json.loads(json.dumps(described.header))
    change(header["stages"])
    return Message(header, described.tensors)


def argument(stage: int, name: str, value):
    return lambda stages: stages[stage]["arguments"].__setitem__(name, value)


FIVE = {"item_set": [5, ["seeds"]]}
ALONE = {"stage": "item_sampler", "sources": [], "arguments": {"item_set": FIVE, "batch_size": 1}}
NESTED = [[[[[[[[[[1]]]]]]]]]]


def test_what_build_chain_refuses_of_a_hostile_description(refuses):
    for change in (
        lambda stages: stages.clear(),
        lambda stages: stages[1].update(stage="copy_to"),
        lambda stages: stages[1].update(stage="os.system"),
        lambda stages: stages[1].update(sources=[1]),
        lambda stages: stages[1].update(sources=[]),
        lambda stages: stages[1].update(sources=[-1]),
        lambda stages: stages[1].update(sources=[0, 0]),
        lambda stages: stages[2].update(sources=[1, 0]),
        lambda stages: stages.insert(1, ALONE),
        lambda stages: stages.insert(1, stages[0]),
        lambda stages: stages[1].update(more=1),
        argument(0, "item_set", {"item_set": [22, ["seeds"]]}),
        argument(0, "item_set", {"item_set": [5, ["seeds", "labels"]]}),
        argument(0, "item_set", {"items": "train"}),
        argument(0, "item_set", {"items": None}),
        argument(0, "rank", 1),
        argument(0, "batch_size", 0),
        argument(0, "batch_size", {"tensor": "t9"}),
        argument(1, "source", None),
        argument(1, "graph", {"graph": 5}),
        argument(1, "graph", {"graph": None, "more": 1}),
        argument(1, "fanouts", {"tuple": 5}),
        argument(1, "fanouts", {"dict": [[1, 2]]}),
        argument(1, "fanouts", {"dict": [["a", 2], ["a", 3]]}),
        argument(1, "fanouts", {"dict": [[{"tuple": [1]}, 2]]}),
        argument(1, "fanouts", {"pickle": "gASV"}),
        argument(1, "fanouts", NESTED),
        argument(1, "fanouts", [1]),
        argument(2, "feature_store", {"features": [None, [[1]]]}),
        argument(2, "feature_store", {"features": [None, [["node", None, "x", "float32", [3]]]]}),
        argument(2, "feature_store", {"features": [None, [["node", None, [], "float32", [3]]]]}),
    ):
        described = changed(describe_chain(fetched()), change)
        refuses(Exception, build_chain, described, graph=small_graph(), features=small_store())


VALUES = json.loads("""[
    null, true, 0, -1, 3, 9223372036854775808, -1e300, Infinity, NaN, "", "x", "paper", [], {}, [[]], [0, 0], [1, 2, 3],
    {"tuple": []}, {"dict": []}, {"graph": null}, {"features": [null, []]}, {"item_set": [5, ["seeds"]]},
    {"item_set": [{"tuple": [2, {"lists": [0, 1, 2]}]}, ["seeds", "more"]]}, {"item_set": [0, ["seeds"]]},
    {"item_set": [{"tuple": []}, []]}, {"item_sets": null},
    {"item_sets": {"dict": [["paper", {"item_set": [5, ["seeds"]]}]]}},
    {"dict": [[{"tuple": ["author", "writes", "paper"]}, 2]]}
]""")
SHAPES = ((), (0,), (5,), (22,), (25,), (40,), (9, 2), (40, 2), (3, 0))
DTYPES = (torch.int64, torch.int32, torch.int16, torch.bool, torch.float32, torch.float16, torch.complex64)


def test_descriptions_changed_at_random_end_in_typed_errors():
    """A value, a stage or a tensor is another one, is left out, stands twice, or is one of another description."""
    numbers = random.Random(5)
    bases = [(describe_chain(chain(make())), make(), None) for make, chain in CHAINS.values()]
    bases += [(describe_chain(fetched()), small_graph(), small_store())]
    bases += [(describe_chain(typed_fetched()), typed_graph(), typed_store())]
    texts = [json.dumps(described.header["stages"]) for described, *_ in bases]
    built = 0
    for _ in range(amount(20_000, 400)):
        place = numbers.randrange(len(bases))
        described, graph, store = bases[place]
        header, tensors = {**described.header, "stages": json.loads(texts[place])}, dict(described.tensors)
        for _ in range(numbers.choice((1, 1, 2))):
            if tensors and numbers.random() < 0.25:
                values = torch.zeros(numbers.choice(SHAPES), dtype=numbers.choice(DTYPES)) + numbers.choice((0, 1, 39))
                tensors[numbers.choice([*tensors])] = values.bool() if numbers.random() < 0.2 else values
            else:
                change_somewhere(header["stages"], json.loads(numbers.choice(texts)), numbers)
        try:
            built_chain = build_chain(Message(header, tensors), graph=graph, features=store)
            built += 1
            assert isinstance(built_chain, dp.Stage)
        except (ValueError, TypeError, LookupError):
            pass
    assert built < amount(20_000, 400) / 2


def places_in(values):
    """All places of values, at any depth: (list or dict, index or key)."""
    if not isinstance(values, (dict, list)):
        return []
    places = [(values, place) for place in (values if isinstance(values, dict) else range(len(values)))]
    return places + [inner for each, place in places for inner in places_in(each[place])]


def change_somewhere(values, others, numbers):
    if not (places := places_in(values)):
        return
    (where, place), draw = numbers.choice(places), numbers.random()
    if draw < 0.55:
        where[place] = copy.deepcopy(numbers.choice(VALUES))
    elif draw < 0.65:
        del where[place]
    elif draw < 0.75 and isinstance(where, list):
        where.insert(place, copy.deepcopy(numbers.choice(where)))
    else:
        other, at = numbers.choice(places_in(others))
        where[place] = other[at]


# --- what a chain will hold


def held_bytes(stage: dp.Stage) -> int:
    """The bytes of all tensors of item sets and of weights that a chain has."""
    total = 0
    for each in dp.stages.StageGraph(stage):
        items = getattr(each, "item_set", None)
        sets = getattr(items, "item_sets", {None: items}).values() if items is not None else ()
        total += sum(tensor.nbytes for one in sets for tensor, _ in one._hashed_arrays().values())
        kept = [value for value in vars(each).values() if isinstance(value, (NodeWeights, Weights))]
        for weights in [one for value in kept for one in getattr(value, "_of", {None: value}).values()]:
            tensors = [*weights._values.values(), *weights._made]
            total += sum(tensor.nbytes for tensor in tensors)
    return total


MASK = torch.arange(40) % 3 == 0
OFFERS = {"graph": small_graph(), "items": None, "features": None, "stages": ()}


@pytest.mark.parametrize(
    "items",
    [
        lambda: dp.ItemSet((torch.arange(40), torch.ones(40, 2)), names=("seeds", "labels")),
        lambda: dp.ItemSet(torch.arange(40).view(20, 2).int()),
        lambda: dp.ItemSet(7),
    ],
)
def test_what_a_chain_holds_is_counted_before_it_is_made(items):
    pipe = dp.ItemSampler(items(), 4)
    if items().seeds_shape == (2,):
        pipe = pipe.sample_uniform_negative(small_graph(), 1, dst_weight=torch.arange(40).half())
    told = []
    built = ChainBuilder(admit=told.append, **OFFERS).build(sent(describe_chain(pipe)))
    assert max(told) == held_bytes(built)


@pytest.mark.parametrize("weights", ["w", torch.ones(40)], ids=["field", "tensor"])
def test_sums_of_the_weights_of_items_count_too(weights):
    items = dp.ItemSet((torch.arange(40), torch.ones(40)), names=("seeds", "w"))
    told = []
    described = sent(describe_chain(dp.ItemSampler(items, 4, weights=weights)))
    built = ChainBuilder(admit=told.append, **OFFERS).build(described)
    assert max(told) > held_bytes(built)  # the order by weight is in it


def masked(values, names):
    """A description whose item set is one of a mask and what belongs to it; describe_chain sends the ids."""
    described = changed(
        describe_chain(items().sample_neighbor(small_graph(), [2])),
        argument(0, "item_set", {"item_set": [{"tuple": [{"tensor": f"t{i}"} for i in range(len(values))]}, names]}),
    )
    return Message(described.header, {f"t{number}": each for number, each in enumerate(values)})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ((MASK,), ["seeds"]),
        ((MASK, torch.rand(40, 3)), ["seeds", "labels"]),
        ((torch.arange(14), MASK), ["labels", "seeds"]),
        ((torch.arange(14), torch.ones(14).bool()), ["seeds", "labels"]),
        ((MASK & False,), ["seeds"]),
    ],
)
def test_a_mask_counts_as_the_ids_of_its_places(values, names):
    def refuse(held_bytes):
        raise MemoryError(held_bytes)

    with pytest.raises(MemoryError) as raised:
        ChainBuilder(admit=refuse, **OFFERS).build(masked(values, names))
    arrays = dp.ItemSet(values, names)._hashed_arrays()
    assert raised.value.args == (sum(tensor.nbytes for tensor, _ in arrays.values()),)
