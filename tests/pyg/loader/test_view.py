"""A batch is, field by field, what PyG's own loader makes of the same sampler's output; for all options and data."""

import copy
import re
import warnings

import numpy as np
import pytest
import torch
from plain_cuda import needs_gpu
from pyg_cases import (
    CITES,
    WRITES,
    Data,
    HeteroData,
    OwnSampler,
    assert_same,
    merged,
    needs_torch_sparse,
    pyg,
    random_data,
    random_hetero,
    stores_of,
    without_edge_ids,
)

import datapipes as dp
from datapipes.pyg.loader import LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

pytestmark = pytest.mark.filterwarnings("ignore:.*positive links:UserWarning")  # these sample the links themselves

NegativeSampling = pyg.sampler.NegativeSampling
TIMES = torch.arange(40) % 25 + 3

NODES = {
    "plain": {},
    "replace": {"replace": True},
    "induced": {"subgraph_type": "induced"},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "trees": {"disjoint": True},
    "induced trees": {"disjoint": True, "subgraph_type": "induced"},
    "times of nodes": {"time_attr": "time"},
    "times of edges": {"time_attr": "edge_time", "input_time": TIMES},
    "last": {"time_attr": "time", "input_time": TIMES, "temporal_strategy": "last"},
    "weights": {"weight_attr": "edge_weight"},
    "mask": {"input_nodes": TIMES > 12},
    "ids": {"input_nodes": torch.tensor([3, 1, 3, 7])},
    "transforms": {"transform": lambda batch: batch, "transform_sampler_output": lambda out: out},
    "no hops": {"num_neighbors": []},
    "no neighbors": {"num_neighbors": [0, 0]},
}
LINKS = {
    "plain": {},
    "labels": {"edge_label": torch.arange(160) % 3},
    "binary": {"neg_sampling": NegativeSampling("binary", 1.5)},
    "binary of labels": {"edge_label": torch.arange(160) % 3, "neg_sampling_ratio": 1.0},
    "triplet": {"neg_sampling": NegativeSampling("triplet", 1)},
    "triplets": {"neg_sampling": NegativeSampling("triplet", 3, dst_weight=torch.arange(40).float()), "disjoint": True},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "times": {"time_attr": "time", "edge_label_time": torch.arange(160) + 30},
    "triplets at times": {
        "time_attr": "time",
        "edge_label_time": torch.arange(160) + 30,
        "neg_sampling": NegativeSampling("triplet", 2),
    },
}


def check_every_batch(loader, pygs) -> None:
    """Compare the batches of a loader with what `filter_fn` of PyG's class makes of the same outputs."""
    outputs = []
    sliced = loader.view.sliced
    loader.view.sliced = lambda out: sliced(outputs.append(copy.deepcopy(out)) or out)
    batches = list(loader)
    assert len(batches) == len(outputs) == len(loader)
    for batch, out in zip(batches, outputs, strict=True):
        assert_same(batch, pygs.filter_fn(loader, out))


@pytest.mark.parametrize("options", NODES.values(), ids=NODES)
def test_batches_of_nodes_are_those_of_pygs_class(options):
    data = random_data(1)
    data.seed_time = torch.arange(3)  # of the data itself: PyG's loader takes it away, or sets its own
    loader = NeighborLoader(data, **{"num_neighbors": [3, 2], "batch_size": 11, **options})
    check_every_batch(loader, pyg.loader.NodeLoader)


@pytest.mark.parametrize("options", LINKS.values(), ids=LINKS)
def test_batches_of_links_are_those_of_pygs_class(options):
    data = random_data(2)
    data.edge_label_index = data.edge_index[:, :5]
    check_every_batch(LinkNeighborLoader(data, [3, 2], batch_size=70, **options), pyg.loader.LinkLoader)


@pytest.mark.parametrize("name", ["plain", "induced", "bidirectional", "trees", "times of nodes", "weights", "no hops"])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
def test_batches_of_nodes_with_types_are_those_of_pygs_class(name):
    options = {"num_neighbors": [3, 2], "batch_size": 8, "input_nodes": "paper", **NODES[name]}
    check_every_batch(NeighborLoader(random_hetero(3), **options), pyg.loader.NodeLoader)


@pytest.mark.parametrize("name", ["plain", "binary", "triplet", "bidirectional", "times"])
@pytest.mark.parametrize("edge_type", [WRITES, CITES, ("author", "paper")])
@pytest.mark.filterwarnings("ignore:Cannot convert to bidirectional graph")
def test_batches_of_links_with_types_are_those_of_pygs_class(edge_type, name):
    options = {**LINKS[name]}
    if "edge_label_time" in options:
        options["edge_label_time"] = options["edge_label_time"][:90]
    loader = LinkNeighborLoader(random_hetero(4), [3, 2], edge_label_index=edge_type, batch_size=40, **options)
    check_every_batch(loader, pyg.loader.LinkLoader)


@pytest.mark.parametrize("options", [{}, {"time_attr": "time"}], ids=["plain", "times"])
def test_pairs_of_stores_give_what_pygs_class_makes_of_them(options):
    data = random_data(5)
    check_every_batch(
        NeighborLoader(stores_of(data, "coo"), [3, 2], input_nodes=torch.arange(40), batch_size=9, **options),
        pyg.loader.NodeLoader,
    )
    hetero = merged(random_hetero(5))
    stores = stores_of(hetero, ["coo", "csc", "coo"])
    check_every_batch(
        NeighborLoader(stores, [3, 2], input_nodes="paper", batch_size=9, **options), pyg.loader.NodeLoader
    )
    given = {
        **options,
        **({"edge_label_time": torch.full((len(hetero[WRITES].edge_index[0]),), 40)} if options else {}),
    }
    links = LinkNeighborLoader(stores, [2], edge_label_index=WRITES, batch_size=30, neg_sampling_ratio=1.0, **given)
    check_every_batch(links, pyg.loader.LinkLoader)


class OwnHetero(HeteroData):
    """A class that batches of stores are made of."""


def test_stores_give_the_edges_that_they_hold():
    hetero = merged(random_hetero(6))
    batch = NeighborLoader(stores_of(hetero, ["coo", "csc", "coo"]), [-1, -1], input_nodes="paper")(range(30))
    assert type(batch) is HeteroData
    given = {"input_nodes": "paper", "custom_cls": OwnHetero, "input_id": torch.arange(30) + 100}
    own = NeighborLoader(stores_of(hetero, ["coo", "csc", "coo"]), [-1, -1], **given)([7])
    assert isinstance(own, OwnHetero)
    whole = NeighborLoader(hetero, [-1, -1], input_nodes="paper")(range(30))
    for of in hetero.edge_types:
        assert batch[of].num_edges == whole[of].num_edges
        row, col = batch[of].edge_index
        pairs = torch.stack((batch[of[0]].n_id[row], batch[of[2]].n_id[col]))
        assert sorted(pairs.T.tolist()) == sorted(hetero[of].edge_index[:, whole[of].e_id].T.tolist())


@pytest.mark.parametrize("num_edges", [90, 40])
def test_stores_give_the_rows_of_edges_by_their_ids(num_edges):
    data, hetero = random_data(5, num_edges=num_edges), random_hetero(5)
    features, graph = stores_of(data, "coo")
    features.put_tensor(data.edge_attr, group_name=None, attr_name="edge_attr", index=None)
    for batch in NeighborLoader((features, graph), [3, 2], input_nodes=torch.arange(40), batch_size=9):
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    features, graph = stores_of(hetero, "coo")
    for of in (WRITES, CITES):
        features.put_tensor(hetero[of].edge_attr, group_name=of, attr_name="edge_attr", index=None)
    for batch in NeighborLoader((features, graph), [3, 2], input_nodes="paper", batch_size=9):
        for of in (WRITES, CITES):
            assert torch.equal(batch[of].edge_attr, hetero[of].edge_attr[batch[of].e_id])
    features.put_tensor(torch.rand(89, 3), group_name=CITES, attr_name="edge_attr", index=None)
    with pytest.raises(ValueError, match="edge_attr of paper:cites:paper has 89 rows for 90 edges"):
        NeighborLoader((features, graph), [-1], input_nodes="paper")
    size_of = features.get_tensor_size
    features.get_tensor_size = lambda attr: (90, 3) if attr.group_name == CITES else size_of(attr)
    with pytest.raises(
        IndexError, match=r"MyFeatureStore: gave \d+ rows of edge_attr of paper:cites:paper for \d+ ids"
    ):
        list(NeighborLoader((features, graph), [-1], input_nodes="paper", batch_size=30))
    features.put_tensor(torch.rand(9), group_name=("paper", "likes", "paper"), attr_name="w", index=None)
    with pytest.warns(
        UserWarning, match=r"has tensors of \[\('paper', 'likes', 'paper'\)\], which the graph store does"
    ):
        NeighborLoader((features, graph), [3], input_nodes="paper")


@pytest.mark.parametrize("links", [False, True])
def test_features_have_a_row_for_each_node_or_edge(links, refuses):
    for kind, name, rows in (
        (None, "edge_attr", 159),
        (None, "edge_weight", 40),
        (None, "x", 160),
        (CITES, "edge_attr", 91),
        (WRITES, "edge_weight", 22),
        ("paper", "x", 29),
    ):
        data = random_data(1) if kind is None else random_hetero(1)
        store = data if kind is None else data[kind]
        store.num_nodes = {None: 40, "paper": 30}.get(kind)
        store[name] = torch.rand(rows, 2)
        seeds = {} if kind is None else {"edge_label_index": WRITES} if links else {"input_nodes": "paper"}
        refuses(ValueError, LinkNeighborLoader if links else NeighborLoader, data, [1], **seeds)
        refuses(ValueError, (dp.CSCGraph if kind is None else dp.HeteroCSCGraph).from_pyg, data)


def test_a_data_in_the_place_of_a_store_is_told_what_it_cannot_do():
    data = random_hetero(1)
    with pytest.warns(UserWarning, match="no minibatch holds .*edge_attr of author:writes:paper"):
        NeighborLoader((data, data), [1], input_nodes="paper")
    with pytest.raises(ValueError, match="does not tell the size of its edges"):
        NeighborLoader((random_data(1), random_data(1)), [1])


def test_tensors_of_neither_nodes_nor_edges_are_named_in_one_warning():
    data, hetero = random_data(1), random_hetero(1)
    data.edge_kind, data.y, data.edge_label, data.edge_label_index = (
        torch.zeros(2, 159).long()[row] for row in (0,) * 4
    )
    hetero[CITES].kind, hetero["author"].age = torch.zeros(91), np.zeros(21)
    for given, options, text in (
        (data, {}, r"the whole of y \[159\], edge_kind \[159\], whose rows fit neither"),
        (hetero, {"input_nodes": "paper"}, r"whole of age of author \[21\], kind of paper:cites:paper \[91\], whose"),
    ):
        with pytest.warns(UserWarning, match=text) as caught:
            loader = NeighborLoader(given, [1], batch_size=10, **options)
        assert len(caught) == 1
        list(loader)  # warns of nothing more


@pytest.mark.parametrize("workers", [0, 2])
def test_minibatches_of_a_batch_of_graphs_count_their_seeds(workers):
    graphs = [Data(x=torch.randn(5, 2), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.ones(1)) for _ in range(3)]
    whole = pyg.data.Batch.from_data_list(graphs)
    with pytest.warns(
        UserWarning, match=r"a Batch of 3 graphs, .* is a Data: .* holds the whole of ptr, y \[3\]. Look"
    ):
        loader = NeighborLoader(whole, [2], batch_size=4, num_workers=workers, filter_per_worker=True)
    assert [batch.batch_size for batch in loader] == [4, 4, 4, 3]
    batch = loader([6])
    assert (type(batch), whole.batch[batch.n_id].unique().tolist()) == (Data, [1])
    assert (loader.data, whole.batch_size) == (whole, 3)
    typed = HeteroData({"a": {"x": torch.randn(5, 2)}, ("a", "to", "a"): {"edge_index": graphs[0].edge_index}})
    with pytest.warns(UserWarning, match="each minibatch is a HeteroData"):
        loader = NeighborLoader(pyg.data.Batch.from_data_list([typed, typed]), [2], input_nodes="a", batch_size=4)
    assert [(type(batch), batch["a"].batch_size) for batch in loader] == [(HeteroData, n) for n in (4, 4, 2)]


class OwnData(Data):
    """A subclass with a field that is joined along another dimension, and one that belongs to nobody."""

    def __cat_dim__(self, key, value, *args, **kwargs):
        return 1 if key == "sideways" else super().__cat_dim__(key, value, *args, **kwargs)


def test_fields_of_a_subclass_are_sliced_as_it_says():
    data = OwnData.from_dict(random_data(7).to_dict())
    data.sideways = torch.arange(3 * 40).view(3, 40)
    loader = NeighborLoader(data, [2], batch_size=15)
    check_every_batch(loader, pyg.loader.NodeLoader)
    batch = loader([4, 5])
    assert isinstance(batch, OwnData)
    assert torch.equal(batch.sideways, data.sideways[:, batch.n_id])


def test_mapped_arrays_gradients_and_empty_attributes_are_sliced_as_pyg_does(tmp_path):
    data = random_data(8)
    rows = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(40, 3))
    rows[:] = 7
    rows.flush()
    data.mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="r", shape=(40, 3))
    data.x.requires_grad_()
    data.nothing = torch.empty(40, 0)
    loader = NeighborLoader(data, [2], batch_size=15)
    check_every_batch(loader, pyg.loader.NodeLoader)
    batch = loader([0])
    assert isinstance(batch.mapped, torch.Tensor)
    batch.x.sum().backward()
    assert float(data.x.grad.sum()) == 5 * batch.num_nodes


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_attributes_are_sliced_on_their_device(device, num_workers):
    data = random_data(4)
    expected = [*NeighborLoader(data, [2, 2], batch_size=7)]
    for name in ("x", "y"):
        data[name] = data[name].to(device)
    found = [*NeighborLoader(data, [2, 2], batch_size=7, num_workers=num_workers)]
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert {batch.x.device.type, batch.y.device.type} == {device}
        assert batch.edge_index.device.type == "cpu"
        assert_same(batch.cpu(), other)


@needs_torch_sparse
def test_a_transposed_adjacency_is_sampled_and_sliced():
    from torch_sparse import SparseTensor

    data = random_data(9)
    columns = pyg.utils.coalesce(data.edge_index)
    matrix = SparseTensor(row=columns[1], col=columns[0], value=torch.arange(columns.shape[1]), sparse_sizes=(40, 40))
    sparse = Data(x=data.x, adj_t=matrix, num_nodes=40)
    loader = NeighborLoader(sparse, [-1], batch_size=10)
    batch = loader(range(10))
    row, col, value = batch.adj_t.t().coo()
    assert torch.equal(sorted_columns(columns[:, value]), sorted_columns(batch.n_id[torch.stack((row, col))]))
    assert batch.adj_t.sparse_sizes() == (batch.num_nodes, batch.num_nodes)


def sorted_columns(columns):
    return torch.tensor(sorted(columns.T.tolist()))


def test_data_is_live_and_other_data_is_refused_where_it_does_not_fit():
    data = random_data(10)
    loader = NeighborLoader(copy.copy(data), [-1], batch_size=10)
    del loader.data.x, loader.data.y
    loader.data.num_nodes = 40
    loader.data.n_id = torch.arange(40) + 100
    iterator = iter(loader)
    first = next(iterator)
    assert "x" not in first
    assert int(first.n_id.min()) >= 100  # an attribute of the data is sliced, and PyG's own name does not replace it
    loader.data = random_data(11, num_nodes=12, num_edges=160)
    with pytest.raises(IndexError, match=r"found an id without a row in .* build a new loader"):
        list(iterator)


def test_a_sampler_of_another_kind_must_return_an_output():
    with pytest.raises(TypeError, match="OwnSampler: returned a int; a SamplerOutput"):
        list(NodeLoader(random_data(1), OwnSampler(lambda index: 3), batch_size=4))


@pytest.mark.parametrize("edge", [{CITES: torch.tensor([5, 6])}, {CITES: None}, {}])
def test_a_type_of_which_a_users_sampler_tells_no_ends_has_no_edges(edge):
    def nodes_alone(index):
        return pyg.sampler.HeteroSamplerOutput({"paper": index.node}, {}, {}, edge, metadata=(index.input_id, None))

    (batch,) = NodeLoader(random_hetero(1), OwnSampler(nodes_alone), ("paper", torch.arange(4)), batch_size=4)
    assert all(batch[edge_type].edge_index.shape == (2, 0) for edge_type in batch.edge_types)
    assert batch["paper"].n_id.tolist() == [0, 1, 2, 3]


def test_a_permutation_of_a_users_sampler_is_applied():
    data = random_data(12)
    ours = NeighborSampler(data, [3], seed=0)

    def permuted(index):
        out = ours.sample_from_nodes(index)
        out.edge = 159 - out.edge
        return out

    class Permuted(OwnSampler):
        edge_permutation = torch.arange(160).flip(0)

    for batch in NodeLoader(data, Permuted(permuted), batch_size=10):
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


@pytest.mark.parametrize("data", [random_data(3), random_hetero(3)], ids=["plain", "types"])
def test_without_edge_ids_batches_have_no_attributes_of_edges(data):
    own = without_edge_ids(NeighborSampler(data, [2], seed=1))
    seeds = {"input_nodes": "paper"} if isinstance(data, HeteroData) else {}
    for batch in NodeLoader(data, own, batch_size=10, **seeds):
        assert batch.num_edges > 0
        for store in batch.edge_stores:
            if store.num_edges > 0:
                assert "e_id" not in store
                assert "edge_attr" not in store


def test_gathered_rows_are_the_same_with_every_number_of_threads():
    data = random_data(13, num_nodes=500, num_edges=4000)
    before = torch.get_num_threads()
    batches = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            batches.append(next(iter(NeighborLoader(data, [5, 5], batch_size=100))))
        finally:
            torch.set_num_threads(before)
    assert_same(*batches)


# --- leaks

PAIRS = torch.stack((torch.arange(40), (torch.arange(40) * 7 + 1) % 41))  # none has its reverse
BOTH_WAYS = torch.cat((PAIRS, PAIRS.flip(0)), 1)
REVERSE = ("paper", "written", "author")


def plain_links(edges=BOTH_WAYS, **options):
    return LinkNeighborLoader(Data(edge_index=edges, num_nodes=41, time=torch.arange(edges.size(1))), [-1], **options)


def typed_links(**options):
    data = HeteroData(author={"num_nodes": 41}, paper={"num_nodes": 41})
    data[REVERSE].edge_index = PAIRS.flip(0)
    data[WRITES].edge_index = PAIRS[:, 20:]
    return LinkNeighborLoader(data, [-1], edge_label_index=(WRITES, PAIRS[:, :20]), **options)


LEAKS = {
    "the edges of the data": (plain_links, "8 of the first 8 positive links are among"),
    "workers that slice": (
        lambda **given: plain_links(num_workers=1, transform=lambda batch: batch, **given),
        "8 of the first 8 positive links are among",
    ),
    "triplets": (lambda **given: plain_links(neg_sampling="triplet", **given), "8 of the first 8"),
    "negatives": (
        lambda **given: plain_links(edge_label=torch.arange(80) % 2, **given),
        "4 of the first 4 positive links are among",
    ),
    "reverses": (
        lambda **given: plain_links(PAIRS.flip(0), edge_label_index=PAIRS, **given),
        r"8 of the first 8 positive links have their reverse among .*is_undirected=True",
    ),
    "a type of reverses": (typed_links, "8 of the first 8 .* reverse of paper:written:author among .*rev_edge_types="),
    "a type of triplets": (lambda **given: typed_links(neg_sampling="triplet", **given), "8 of the first 8"),
    "links at their times": (
        lambda **given: plain_links(edge_label_time=torch.arange(80), time_attr="time", **given),
        "8 of the first 8 positive links are among",
    ),
}
QUIET = {
    "other edges": lambda **given: plain_links(PAIRS[:, :20], edge_label_index=PAIRS[:, 20:], **given),
    "a transform that takes them out": lambda **given: plain_links(transform=without_links, **given),
    "earlier edges of the same nodes": lambda **given: plain_links(
        torch.cat((PAIRS, PAIRS), 1), edge_label_time=torch.arange(80) - 1, time_attr="time", **given
    ),
    "nodes": lambda **given: NeighborLoader(Data(edge_index=PAIRS, num_nodes=41), [-1], **given),
}


def without_links(batch):
    links = {*zip(*BOTH_WAYS.tolist(), strict=True)}
    kept = [pair not in links for pair in zip(*batch.n_id[batch.edge_index].tolist(), strict=True)]
    batch.edge_index = batch.edge_index[:, torch.tensor(kept)]
    return batch


@pytest.mark.parametrize("loader", [NeighborLoader, NodeLoader, LinkNeighborLoader])
def test_seeds_that_no_sampled_edge_leads_to_are_told_once(loader):
    data = HeteroData(author={"num_nodes": 41}, paper={"num_nodes": 41})
    data[WRITES].edge_index = PAIRS
    seeds = {"input_nodes": "author"}
    if loader is LinkNeighborLoader:
        seeds = {"edge_label_index": (("author", "knows", "author"), PAIRS)}
    drawn = {"node_sampler": NeighborSampler(data, [-1])} if loader is NodeLoader else {"num_neighbors": [-1]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built = loader(data, **drawn, **seeds, batch_size=20)
        for _ in range(2):
            assert len([*built]) > 0
    assert [each.filename for each in caught] == [__file__]
    assert re.search(r"seeds of author.*sampled are \['author:writes:paper'\]", str(caught[0].message))


@pytest.mark.parametrize("name", [*LEAKS, *QUIET])
def test_links_among_the_edges_of_the_first_batch_are_told_once(name):
    make, expected = LEAKS.get(name) or (QUIET[name], None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = make(batch_size=8)
        for _ in range(2):
            assert len([*loader]) > 0
    assert [each.filename for each in caught] == ([] if expected is None else [__file__])
    assert all(re.search(expected, str(each.message)) for each in caught)
