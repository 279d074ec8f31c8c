"""Arguments of the loaders: each form of a value gives the same batches; anything else is refused in words."""

import copy

import numpy as np
import pytest
import torch
from pyg_cases import (
    CITES,
    WRITES,
    WRITTEN,
    Data,
    HeteroData,
    digests,
    merged,
    pyg,
    random_data,
    random_hetero,
    stores_of,
)

import datapipes as dp
from datapipes.pyg.loader import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves
pd = pytest.importorskip("pandas")
NegativeSampling, NumNeighbors = pyg.sampler.NegativeSampling, pyg.sampler.base.NumNeighbors
DATA, HETERO, TYPELESS = random_data(1), random_hetero(1), HeteroData({"a": {"num_nodes": 3}, "b": {"num_nodes": 4}})
LINKS, IDS, TIMES = DATA.edge_index[:, :12], torch.tensor([3, 1, 3, 7]), torch.arange(40) + 5
SAMPLER = NeighborSampler(DATA, [2])


TYPED_STORES, STORES = stores_of(merged(HETERO), "coo"), stores_of(merged(DATA), "coo")


def nodes(data=DATA, **given):
    return NeighborLoader(data, **{"num_neighbors": [2], "batch_size": 30, **given})


def links(data=DATA, **given):
    default = {"edge_label_index": LINKS} if data is DATA else {}
    return LinkNeighborLoader(data, **{"num_neighbors": [2], "batch_size": 100, **default, **given})


def node_loader(data=DATA, node_sampler=SAMPLER, **given):
    return NodeLoader(data, node_sampler, **given)


def link_loader(data=DATA, link_sampler=SAMPLER, **given):
    return LinkLoader(data, link_sampler, **given)


# --- what is taken

FORMS = [lambda ids: ids.numpy(), lambda ids: ids.tolist(), lambda ids: pd.Series(ids.numpy(), index=ids.numpy() + 9)]


@pytest.mark.parametrize("form", FORMS, ids=["array", "list", "column"])
def test_numbers_in_any_form_give_the_batches_of_the_tensor(form):
    def with_attributes(make):
        data = copy.copy(DATA)
        data.edge_weight, data.time = make(DATA.edge_weight), make(DATA.time)
        return data

    cases = [
        (nodes, {"input_nodes": IDS, "input_id": IDS + 70}),
        (nodes, {"data": STORES, "input_nodes": IDS}),
        (nodes, {"input_time": TIMES, "time_attr": "time"}),
        (
            links,
            {"edge_label": TIMES[:12], "edge_label_time": TIMES[:12], "time_attr": "time", "neg_sampling_ratio": 1},
        ),
    ]
    for make, given in cases:
        other = {name: form(value) if isinstance(value, torch.Tensor) else value for name, value in given.items()}
        assert digests(make(**other)) == digests(make(**given))
    data = with_attributes(form)
    for options in ({"weight_attr": "edge_weight"}, {"time_attr": "time"}) if form is not FORMS[2] else ():
        for batch, expected in zip(nodes(data, **options), nodes(**options), strict=True):
            assert torch.equal(batch.e_id, expected.e_id)
    typed = {"data": HETERO, "input_nodes": ("paper", IDS)}
    assert digests(nodes(**{**typed, "input_nodes": ["paper", form(IDS)]})) == digests(nodes(**typed))


def test_seeds_keep_their_own_form_as_attributes_of_the_loader():
    assert nodes(input_nodes=[3, 1]).input_nodes == [3, 1]
    assert nodes(HETERO, input_nodes="paper").input_nodes == "paper"
    assert links(HETERO, edge_label_index=CITES).edge_label_index == CITES
    assert nodes(input_id=TIMES)([2, 0]).input_id.tolist() == [7, 5]


def test_a_type_alone_stands_for_all_its_nodes_or_edges_also_in_stores():
    for data in (HETERO, TYPED_STORES):
        expected = digests(nodes(data, input_nodes=("author", torch.arange(22))))
        assert digests(nodes(data, input_nodes=("author", None))) == expected
        assert digests(nodes(data, input_nodes="author")) == expected
        one, *others = (
            digests(links(data, edge_label_index=of)) for of in (CITES, [*CITES], ("paper", "paper"), (CITES, None))
        )
        assert others == [one] * 3
    assert digests(nodes(STORES)) == digests(nodes(STORES, input_nodes=torch.arange(40)))
    assert digests(links(STORES)) == digests(links(STORES, edge_label_index=merged(DATA).edge_index))


def test_links_of_a_type_that_the_data_does_not_have_need_ids():
    given = {"edge_label_index": (("author", "likes", "author"), LINKS % 22)}
    assert "edge_label_index" in next(iter(links(HETERO, **given)))["author", "likes", "author"]


@pytest.mark.parametrize("graph", [HETERO, dp.HeteroCSCGraph.from_pyg(HETERO)], ids=["HeteroData", "HeteroCSCGraph"])
def test_each_edge_type_may_name_its_weights(graph):
    one_name = copy.copy(HETERO)
    other = copy.copy(HETERO)
    for name, of in (("a", WRITES), ("weight", WRITTEN)):  # "weight" is also the name within
        other[of][name] = other[of].edge_weight + (of == WRITES)
        one_name[of].edge_weight = other[of][name]
    del one_name[CITES].edge_weight
    given = other if graph is HETERO else dp.HeteroCSCGraph.from_pyg(other)
    named = NeighborSampler(given, [2, 2], weight_attr={WRITES: "a", "paper:rev_writes:author": "weight"}, seed=1)
    expected = NeighborSampler(one_name, [2, 2], weight_attr="edge_weight", seed=1)
    inputs = pyg.sampler.NodeSamplerInput(None, torch.arange(20), None, "paper")
    for _ in range(3):
        found, wanted = (sampler.sample_from_nodes(inputs) for sampler in (named, expected))
        for of in HETERO.edge_types:
            assert torch.equal(found.edge[of], wanted.edge[of])


@pytest.mark.parametrize("num_neighbors", [[2], [2, 2], {}, NumNeighbors({}, default=[2, 2])])
def test_types_without_edges_are_sampled_as_their_seeds(num_neighbors):
    batch = next(iter(nodes(TYPELESS, num_neighbors=num_neighbors, input_nodes="b")))
    assert batch["b"].n_id.tolist() == [0, 1, 2, 3]
    num_hops = len(num_neighbors) if isinstance(num_neighbors, (list, dict)) else 2
    assert batch.num_sampled_nodes_dict == {"a": [0] * (num_hops + 1), "b": [4] + [0] * num_hops}


def test_numbers_of_neighbors_serve_several_graphs():
    given = NumNeighbors([2])
    assert len(list(nodes(num_neighbors=given))) == 2
    assert len(list(nodes(HETERO, num_neighbors=given, input_nodes="paper"))) == 1


def test_an_empty_set_of_links_has_labels_and_negatives():
    none = torch.empty(2, 0, dtype=torch.int64)
    assert list(links(edge_label_index=none, edge_label=torch.empty(0), neg_sampling="binary")) == []


def test_lists_and_strings_of_nodes_and_edges_are_sliced():
    data = copy.copy(DATA)
    data.name, data.of_edge = [f"node {i}" for i in range(40)], np.array([f"edge {i}" for i in range(160)])
    for workers in (0, 1):
        batch = next(iter(nodes(data, num_workers=workers, filter_per_worker=workers > 0)))
        assert batch.name == [f"node {i}" for i in batch.n_id]
        assert batch.of_edge.tolist() == [f"edge {i}" for i in batch.e_id]


def test_workers_are_threads_where_the_user_says_so(caplog):
    given = {"transform": lambda batch: batch, "num_workers": 1}
    with pytest.raises(TypeError, match=r"cannot be pickled.* worker_method='thread'"):
        next(iter(nodes(multiprocessing_context="spawn", **given)))
    loader = nodes(worker_method="thread", **given)
    assert "1 worker thread" in loader.explain()
    assert digests(loader) == digests(nodes())
    assert caplog.messages == []


# --- what is refused

NOT_NUMBERS = ({1, 2}, {1: 2}, 3, iter([1]), b"ab", object())
NO_PAIR_OF_TYPE_AND_IDS = (["paper", "author"], ["paper"] * 3, ["paper"], ("paper", IDS, 3), (), [1, 2], (None, IDS))
NO_PAIR_OF_TYPE_AND_LINKS = (None, 3, (), ["paper"], (1, 2, 3), (None, LINKS), ({"paper"}, LINKS), (("paper",), LINKS))


@pytest.fixture
def refused(refuses):
    """A function that makes a loader of arguments, which it or its first batch refuses."""

    def refuse(error, make, *data, **given):
        with refuses(error):
            next(iter(make(*data, **given)))

    return refuse


def test_what_are_no_seeds_is_refused(refused):
    for no_numbers in NOT_NUMBERS:
        refused(TypeError, nodes, input_nodes=no_numbers)
    refused(ValueError, nodes, input_nodes=np.int64(3))
    refused(ValueError, nodes, input_nodes=IDS.view(-1, 1))
    refused(TypeError, nodes, input_nodes="paper")
    refused(TypeError, nodes, input_nodes=[0.5, 1.0])
    refused(TypeError, nodes, input_nodes=torch.ones(40, dtype=torch.uint8))
    refused(ValueError, nodes, input_nodes=torch.ones(40, 1, dtype=torch.bool))
    refused(ValueError, nodes, STORES, input_nodes=torch.ones(3, dtype=torch.bool))
    for data in (HETERO, TYPED_STORES):
        for no_pair in (*NO_PAIR_OF_TYPE_AND_IDS, None, IDS):
            refused(TypeError, nodes, data, input_nodes=no_pair)
        for no_pair in (*NO_PAIR_OF_TYPE_AND_LINKS, ("a",) * 4):
            refused(TypeError, links, data, edge_label_index=no_pair)
        for ends in (("paper", "likes", "paper"), ("author", "author")):
            refused(ValueError, links, data, edge_label_index=ends)
    refused(ValueError, nodes, TYPED_STORES, input_nodes="papers")
    refused(TypeError, nodes, TYPED_STORES, input_nodes=("paper", {1}))
    refused(TypeError, links, STORES, edge_label_index={1})
    for ragged, text in (([1, [2]], "makes no array of numbers"), (["a", "b"], "no tensor can hold")):
        with pytest.raises(TypeError, match=text):  # what NumPy and torch say stands in it
            nodes(input_nodes=ragged)


def test_values_that_do_not_belong_to_the_seeds_are_refused(refused):
    refused(ValueError, nodes, input_id=[1, 2])
    refused(TypeError, nodes, input_time=5, time_attr="time")
    refused(ValueError, nodes, input_time=torch.tensor(5), time_attr="time")
    for name in ("edge_label", "input_id"):
        refused(TypeError, links, **{name: 3})
    refused(TypeError, links, edge_label_time="x", time_attr="time")
    refused(ValueError, links, input_id=IDS)


def test_what_no_sampler_can_be_made_of_is_refused(refused):
    refused(TypeError, nodes, HETERO, num_neighbors={WRITES: 2}, input_nodes="paper")
    refused(ValueError, nodes, TYPELESS, num_neighbors={CITES: [2]}, input_nodes="b")
    for name in ("disjoint", "is_sorted", "directed", "filter_per_worker"):
        refused(TypeError, nodes, **{name: "no"})
    for subgraph_type in (None, 1, "INDUCED"):
        refused(ValueError, nodes, subgraph_type=subgraph_type)
    refused(TypeError, nodes, time_attr=["time"])
    refused(ValueError, nodes, time_attr="x")
    refused(TypeError, nodes, weight_attr=["edge_weight"])
    refused(ValueError, nodes, weight_attr={CITES: "edge_weight"})
    for weight_attr in ({}, {CITES: "w"}, {"a:b:c": "w"}):
        refused(ValueError, nodes, HETERO, input_nodes="paper", weight_attr=weight_attr)
    refused(TypeError, links, neg_sampling=NegativeSampling("triplet", 1, dst_weight=[1.0]))
    for ratio in (-1, "1", [1], float("inf")):
        refused(ValueError, links, neg_sampling_ratio=ratio)
    refused(ValueError, links, neg_sampling="triplet", neg_sampling_ratio=2.0)
    for make in (node_loader, link_loader):
        for no_data in (None, [3], {}, 3):
            refused(ValueError, make, no_data)
    for no_sampler in (None, NeighborSampler, 3):
        refused(TypeError, node_loader, node_sampler=no_sampler)
    refused(TypeError, link_loader, link_sampler=3)


BINARY_OF_NO_NUMBER = (("binary", "1"), ("binary", float("nan")), ("binary", -1))


def test_what_pyg_refuses_is_refused_with_its_words():
    with pytest.raises(TypeError, match="must be a list, or a dict"):
        nodes(num_neighbors=NumNeighbors(3))
    with pytest.raises(ValueError, match="no edge types"):
        nodes(HETERO, num_neighbors={"cites": [2]}, input_nodes="paper")
    for no_sampling in ("x", 1.0, (), *BINARY_OF_NO_NUMBER, {"mod": 1}, ["binary", 2]):
        with pytest.raises(ValueError, match="neg_sampling must be 'binary', 'triplet', or"):
            links(neg_sampling=no_sampling)


def test_what_no_loop_can_be_made_of_is_refused(refused):
    for name in ("transform", "transform_sampler_output"):
        refused(TypeError, nodes, **{name: 1})
    for no_class in (1, HeteroData, Data()):
        refused(TypeError, nodes, STORES, custom_cls=no_class)
    refused(TypeError, nodes, TYPED_STORES, custom_cls=Data, input_nodes="paper")
    for no_generator in (1, "cpu"):
        refused(TypeError, nodes, generator=no_generator)
    for no_number in ("2", None, 1.5):
        refused(TypeError, nodes, num_workers=no_number)
    for no_seconds in ("2", None):
        refused(TypeError, nodes, timeout=no_seconds)
    refused(TypeError, nodes, worker_init_fn=3)
    for name in ("sampler", "batch_sampler"):
        for no_order in (3, "a"):
            refused(TypeError, nodes, **{name: no_order})
    refused(TypeError, nodes, batch_sampler=[1, 2], batch_size=1)
    refused(TypeError, nodes, sampler=[0.5])
    refused(ValueError, nodes, worker_method="fork")
    refused(ValueError, nodes, worker_method="thread", multiprocessing_context="fork", num_workers=1)
