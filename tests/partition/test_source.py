"""What may be partitioned, and what becomes of its features and items."""

import dataclasses
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from amounts import amount
from hetero_graphs import AGAIN, CITES, KNOWS, WRITES, expect_equal, full_library, library
from hypothesis import given
from partitions import graphs
from pipelines import small_graph
from scripts import run_script

import datapipes as dp
from datapipes.partition.source import source_of

with warnings.catch_warnings():  # PyG is built of parts that torch has deprecated
    warnings.simplefilter("ignore")
    pyg = pytest.importorskip("torch_geometric.data", reason="source_of takes objects of PyG: install the pyg extra")

EDGES = torch.tensor([[0, 1, 2, 3, 0, 1], [3, 3, 0, 2, 0, 3]])  # 4 nodes; CSC order differs from that of the columns


def items(ids, labels=None, **further) -> dp.ItemSet:
    fields = {"seeds": torch.tensor(ids, dtype=torch.int64)}
    if labels is not None:
        fields["labels"] = labels if isinstance(labels, torch.Tensor) else torch.tensor(labels)
    fields.update({name: torch.tensor(rows) for name, rows in further.items()})
    return dp.ItemSet(tuple(fields.values()), tuple(fields))


def dataset(**changed) -> dp.datasets.Dataset:
    graph = changed.get("graph", dp.CSCGraph.from_edge_index(EDGES, 4))
    given = {
        "name": "made",
        "graph": graph,
        "features": dp.FeatureStore({}),
        "train_set": items([2, 0], [1, 0]),
        "validation_set": items([1], [3]),
        "test_set": items([], torch.empty(0, dtype=torch.int64)),
        "num_classes": 4,
        "class_names": ("a", "b", "c", "d"),
    }
    return dp.datasets.Dataset(**{**given, **changed})


def store(domain, name, rows, kind=None) -> dp.FeatureStore:
    return dp.FeatureStore({(domain, kind, name): rows if isinstance(rows, dp.Feature) else dp.TensorFeature(rows)})


class Counted(dp.Feature):
    """Rows that are computed: three numbers for each id."""

    count, shape = 4, (3,)

    def read(self, ids, out=None):
        return ids[:, None] * torch.tensor([1, 10, 100])


# --- graphs


@pytest.mark.parametrize("graph", [small_graph(), full_library()], ids=["without types", "with types"])
def test_a_graph_is_its_own_source(graph):
    source = source_of(graph)
    assert source.graph is graph
    assert (source.node_types, source.edge_types) == (graph.node_types, graph.edge_types)
    assert (source.training_nodes, source.left_out) == ({}, ())


def test_training_nodes_are_the_bool_masks_of_that_name():
    mask = torch.tensor([True, False, True, True])
    given = {"paper": {"train_mask": mask}, "author": {"train_mask": torch.ones(3, 2).bool()}}
    source = source_of(library(node_attributes=given))
    assert [*source.training_nodes] == ["paper"]
    assert torch.equal(source.training_nodes["paper"], mask)
    assert source.left_out == (
        "the balance of training nodes of author, since 'train_mask' is bool [3, 2] and not bool [3]",
    )
    source = source_of(dp.CSCGraph.from_edge_index(EDGES, 4, node_attributes={"train_mask": mask.long()}))
    assert source.training_nodes == {}
    assert source.left_out == ("the balance of training nodes, since 'train_mask' is int64 [4] and not bool [4]",)


def test_anything_else_is_refused_with_what_is_allowed(refuses):
    for data in (None, 3, [small_graph()], dp.datasets.Dataset, torch.zeros(2, 3), small_graph):
        refuses(TypeError, source_of, data, where="here")


def test_a_graph_is_looked_at_without_importing_pyg():
    ended = run_script(
        "import sys, torch, datapipes as dp\n"
        "from datapipes.partition.source import source_of\n"
        "graph, items = dp.CSCGraph(torch.tensor([0, 1, 1]), torch.tensor([1])), dp.ItemSet(torch.arange(2))\n"
        "source_of(dp.datasets.Dataset('two', graph, dp.FeatureStore({}), items, items, items, 1, ('a',)))\n"
        "assert 'torch_geometric' not in sys.modules"
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# --- features of a Dataset


def test_node_features_are_viewed_and_may_be_mapped(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(8.0).reshape(4, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    found = source_of(dataset(features=store("node", "x", mapped))).graph
    assert found.node_attributes["x"].data_ptr() == mapped.ctypes.data
    assert torch.equal(found.node_attributes["x"], torch.arange(8.0, dtype=torch.float64).reshape(4, 2))


def test_features_of_other_classes_are_read_in_pieces(monkeypatch):
    monkeypatch.setattr("datapipes.partition.source._PIECE_BYTES", 50)  # two rows
    rows = source_of(dataset(features=store("node", "x", Counted()))).graph.node_attributes["x"]
    assert rows.tolist() == [[i, 10 * i, 100 * i] for i in range(4)]


@pytest.mark.parametrize("piece_bytes", [1, 2**24])
def test_edge_features_move_to_the_order_of_the_graph(monkeypatch, piece_bytes):
    monkeypatch.setattr("datapipes.partition.source._PIECE_BYTES", piece_bytes)
    rows = torch.arange(12.0).reshape(6, 2)
    graph = dp.CSCGraph.from_edge_index(EDGES, 4, edge_attributes={"same": rows})
    found = source_of(dataset(graph=graph, features=store("edge", "w", rows))).graph
    assert torch.equal(found.edge_attributes["w"], rows[graph.edge_ids])
    assert torch.equal(found.edge_attributes["w"], found.edge_attributes["same"])
    assert found.digest() == graph.digest()


def test_edge_features_stay_where_edges_are_numbered_by_their_places():
    rows, ids = torch.arange(6.0), torch.arange(6)
    graph = dp.CSCGraph.from_edge_index(EDGES, 4)
    for edge_ids in (None, ids):
        numbered = dp.CSCGraph(graph.indptr, graph.indices, edge_ids=edge_ids)
        found = source_of(dataset(graph=numbered, features=store("edge", "w", rows))).graph
        assert found.edge_attributes["w"].data_ptr() == rows.data_ptr()


def test_edges_that_share_an_id_share_a_row():
    graph = dp.CSCGraph.from_edge_index(EDGES, 4)
    shared = dp.CSCGraph(graph.indptr, graph.indices, edge_ids=torch.tensor([0, 2, 1, 0, 1, 2]))
    found = source_of(dataset(graph=shared, features=store("edge", "w", torch.tensor([5, 6, 7])))).graph
    assert found.edge_attributes["w"].tolist() == [5, 7, 6, 5, 6, 7]


@given(graphs())
def test_the_row_of_each_edge_is_that_of_its_id(graph):
    counts = {kind: graph.max_edge_id_of(kind) + 1 for kind in graph.edge_types}
    features = {("edge", kind, "number"): dp.TensorFeature(torch.arange(count)) for kind, count in counts.items()}
    sets = dict.fromkeys(("train_set", "validation_set", "test_set"), dp.ItemSet(0))
    made = source_of(SimpleNamespace(graph=graph, features=dp.FeatureStore(features), **sets))
    for kind in graph.edge_types:
        relation, ids = made.graph.relation(kind), graph.relation(kind).edge_ids
        expected = torch.arange(graph.num_edges_of(kind)) if ids is None else ids
        assert torch.equal(relation.edge_attributes.pop("number"), expected)
        assert relation.edge_attributes.keys() == graph.relation(kind).edge_attributes.keys()


def test_features_of_another_count_or_an_unknown_type_are_refused(refuses):
    for domain, count in (("node", 3), ("node", 5), ("edge", 5), ("edge", 7)):
        refuses(ValueError, source_of, dataset(features=store(domain, "x", torch.zeros(count))), where="here")
    for domain, kind in (("node", "paper"), ("edge", ("a", "r", "b"))):
        refuses(ValueError, source_of, dataset(features=store(domain, "x", torch.zeros(4), kind)))


@pytest.mark.parametrize("domain", ["node", "edge"])
def test_a_feature_with_the_name_of_an_attribute_must_have_its_values(domain):
    rows = torch.tensor([0.0, float("nan"), 2, 3, 4, 5])[: 4 if domain == "node" else 6]
    given = {f"{domain}_attributes": {"x": rows}}
    graph = dp.CSCGraph.from_edge_index(EDGES, 4, **given)
    mine = graph.node_attributes if domain == "node" else graph.edge_attributes
    found = source_of(dataset(graph=graph, features=store(domain, "x", rows.clone()))).graph
    theirs = found.node_attributes if domain == "node" else found.edge_attributes
    assert theirs["x"].data_ptr() == mine["x"].data_ptr()
    for other in (rows + 1, rows.double(), rows[:, None]):
        with pytest.raises(ValueError, match=f"the {domain} feature 'x' has the name of a {domain} attribute"):
            source_of(dataset(graph=graph, features=store(domain, "x", other)))


# --- items of a Dataset


def test_items_become_masks_and_labels():
    source = source_of(dataset())
    found = source.graph.node_attributes
    assert found["train_mask"].tolist() == [True, False, True, False]
    assert found["val_mask"].tolist() == [False, True, False, False]
    assert found["test_mask"].tolist() == [False] * 4
    assert (found["y"].tolist(), found["y"].dtype) == ([0, 3, 1, -1], torch.int64)
    assert source.training_nodes[None] is found["train_mask"]
    assert source.left_out == ()


def test_float_labels_of_several_tasks_are_nan_where_there_are_none():
    labels = torch.tensor([[0.5, float("nan")], [1, 0]])
    given = dataset(train_set=items([3, 0], labels), validation_set=items([3], labels[:1]), test_set=items([]))
    found = source_of(given).graph.node_attributes["y"]
    expected = torch.full((4, 2), float("nan"))
    expected[[3, 0]] = labels
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, rtol=0, atol=0, equal_nan=True)


def test_labels_of_two_dtypes_take_one_that_holds_both():
    given = dataset(train_set=items([0], torch.tensor([True])), validation_set=items([1], torch.tensor([7]).byte()))
    assert source_of(given).graph.node_attributes["y"].tolist() == [1, 7, -1, -1]
    given = dataset(train_set=items([0], [1]), validation_set=items([1], [0.5]), test_set=items([]))
    assert source_of(given).graph.node_attributes["y"].nan_to_num(9).tolist() == [1, 0.5, 9, 9]


def test_times_of_items_become_seed_times():
    given = dataset(train_set=items([2, 0], [1, 0], timestamps=[30, 10]))
    assert source_of(given).graph.node_attributes["seed_time"].tolist() == [10, -1, 30, -1]


def test_items_without_labels_make_masks_only():
    given = dataset(train_set=dp.ItemSet(2), validation_set=items([3]), test_set=items([]))
    found = source_of(given).graph.node_attributes
    assert sorted(found) == ["test_mask", "train_mask", "val_mask"]
    assert found["train_mask"].tolist() == [True, True, False, False]


def test_items_that_disagree_or_are_no_nodes_are_refused(refuses):
    for sets in (
        {"train_set": items([2, 0], [1, 0]), "test_set": items([3, 2], [0, 2])},
        {"train_set": items([2, 2], [1, 0])},
        {"train_set": items([2, 2], [1, 1], timestamps=[3, 4])},
        {"train_set": items([2], torch.zeros(1, 2))},
    ):
        refuses(ValueError, source_of, dataset(**sets))
    for node in (4, -1):
        refuses(IndexError, source_of, dataset(test_set=items([node], [0])))


def test_attributes_that_agree_with_the_items_stay():
    mask, labels = torch.tensor([True, False, True, False]), torch.tensor([0, 3, 1, 2], dtype=torch.uint8)
    graph = dp.CSCGraph.from_edge_index(EDGES, 4, node_attributes={"train_mask": mask, "y": labels})
    found = source_of(dataset(graph=graph)).graph.node_attributes
    assert [found[name].data_ptr() for name in ("train_mask", "y")] == [mask.data_ptr(), labels.data_ptr()]
    assert found["y"].tolist() == [0, 3, 1, 2]  # it knows the label of node 3 too
    graph = dp.CSCGraph.from_edge_index(EDGES, 4, node_attributes={"y": torch.tensor([0, 3, 1, 0.5])})
    assert source_of(dataset(graph=graph)).graph.node_attributes["y"].tolist() == [0, 3, 1, 0.5]


def test_attributes_and_features_that_contradict_the_items_are_refused(refuses):
    for name, rows in (
        ("y", torch.tensor([1, 3, 1, 0])),
        ("y", torch.zeros(4, 2)),
        ("val_mask", torch.zeros(4).bool()),
        ("train_mask", torch.tensor([1, 0, 1, 0])),
        ("y", torch.tensor([0, 3, 1.7, 0])),
        ("y", torch.tensor([0.5, 3, 1, 0])),
        ("y", torch.tensor([float("nan"), 3, 1, 0])),
        ("y", torch.tensor([0, 3, 1 + 2j, 0])),
    ):
        graph = dp.CSCGraph.from_edge_index(EDGES, 4, node_attributes={name: rows})
        refuses(ValueError, source_of, dataset(graph=graph))
        refuses(ValueError, source_of, dataset(features=store("node", name, rows)))


@pytest.mark.parametrize(
    ("attribute", "labels"),
    [(torch.float32, torch.int64), (torch.int64, torch.float32), (torch.float64, torch.float32)],
)
def test_values_are_compared_exactly_where_dtypes_differ(attribute, labels):
    near = 2**24 + 1  # float32 has its neighbors only
    for value, other in ((near, near - 1), (near - 1, near)):
        rows = torch.tensor([value] * 4, dtype=torch.float64).to(attribute)
        graph = dp.CSCGraph.from_edge_index(EDGES, 4, node_attributes={"y": rows})
        nothing = items([], torch.empty(0, dtype=labels))
        given = dataset(
            graph=graph,
            train_set=items([2], torch.tensor([other]).to(labels)),
            validation_set=nothing,
            test_set=nothing,
        )
        if int(rows[0]) == int(torch.tensor([other]).to(labels)):
            assert source_of(given).graph.node_attributes["y"] is not None
        else:
            with pytest.raises(ValueError, match="the labels of the data set would become the node attribute 'y'"):
                source_of(given)


def test_what_does_not_go_into_parts_is_named():
    links = dp.ItemSet(torch.tensor([[0, 3], [1, 3]]))
    given = dataset(
        train_set=items([2, 0, 0], [1, 0, 0], weights=[1.0, 2.0, 2.0]),
        test_set=links,
        training_graph=dp.CSCGraph.from_edge_index(EDGES[:, :3], 4),
        node_names={None: ("a", "b", "c", "d")},
    )
    source = source_of(given)
    assert source.left_out == (
        "test_set, 2 links",
        "train_set, items of a node that has one: 1",
        "train_set, the field 'weights'",
        "training_graph, which differs from graph",
        "node_names",
    )
    assert sorted(source.graph.node_attributes) == ["train_mask", "val_mask", "y"]


def typed_dataset(**changed) -> dp.datasets.Dataset:
    nothing = torch.empty(0, dtype=torch.int64)
    return dataset(
        **{
            "graph": full_library(),
            "train_set": dp.HeteroItemSet({"paper": items([1], [5]), "author": items([0, 2], [1, 0])}),
            "validation_set": dp.HeteroItemSet({"paper": items([0], [2])}),
            "test_set": dp.HeteroItemSet({"paper": items([], nothing)}),
            **changed,
        }
    )


def test_types_have_masks_and_features_of_their_own():
    features = dp.FeatureStore(
        {
            ("node", "author", "x"): dp.TensorFeature(torch.arange(3)),
            ("edge", "author:writes:paper", "v"): dp.TensorFeature(torch.arange(5) * 10),
            ("edge", CITES, "v"): dp.TensorFeature(torch.arange(10)),
            ("edge", AGAIN, "v"): dp.TensorFeature(torch.zeros(0, 2)),
            ("edge", KNOWS, "v"): dp.TensorFeature(torch.ones(1)),
        }
    )
    given = typed_dataset(features=features)
    source = source_of(given)
    papers, authors = source.graph.node_attributes["paper"], source.graph.node_attributes["author"]
    assert {*papers} == {"train_mask", "val_mask", "test_mask", "y", *given.graph.node_attributes["paper"]}
    assert papers["y"].tolist() == [2, 5, -1, -1]
    assert (authors["x"].tolist(), authors["y"].tolist()) == ([0, 1, 2], [1, -1, 0])
    assert authors["val_mask"].tolist() == [False] * 3
    assert {*source.graph.node_attributes["venue"]} == {"x"}
    assert sorted(source.training_nodes) == ["author", "paper"]
    assert source.graph.edge_attributes[WRITES]["v"].tolist() == [40, 0, 10, 20, 30]
    assert source.graph.edge_attributes[CITES]["v"].tolist() == [9, 8, 7]
    assert source.graph.digest() == given.graph.digest()


def test_items_of_an_unknown_type_and_links_by_type():
    with pytest.raises(ValueError, match=r"an item set has the node type 'papers'; the graph has \['author', 'paper'"):
        source_of(typed_dataset(train_set=dp.HeteroItemSet({"papers": items([1], [5])})))
    links = dp.HeteroItemSet({WRITES: dp.ItemSet(torch.tensor([[0, 1]]))})
    source = source_of(typed_dataset(train_set=links, validation_set=links, test_set=links))
    assert source.left_out == ("train_set, 1 links", "validation_set, 1 links", "test_set, 1 links")
    expect_equal(source.graph, full_library())


def test_an_object_with_the_attributes_of_a_dataset_is_one():
    @dataclasses.dataclass
    class Own:
        graph: object
        features: object
        train_set: object
        validation_set: object
        test_set: object

    given = dataset()
    own = Own(given.graph, given.features, given.train_set, given.validation_set, given.test_set)
    assert source_of(own).graph.node_attributes["y"].tolist() == [0, 3, 1, -1]


def test_the_embedded_graphs_become_sources():
    for with_types in (True, False)[: amount(2, 1)]:
        data = dp.datasets.debian_packages(heterogeneous=with_types)
        source = source_of(data)
        kind = "package" if data.graph.is_heterogeneous else None
        attributes = source.graph.node_attributes_of(kind)
        assert attributes["feat"].data_ptr() == data.features["node", kind, "feat"].tensor.data_ptr()
        assert int(source.training_nodes[kind].sum()) == len(data.train_set)
        assert source.graph.digest() == data.graph.digest()


# --- PyG


def test_data_of_pyg():
    mask = torch.tensor([True, False, False, True])
    data = pyg.Data(
        x=torch.arange(4.0)[:, None], edge_index=EDGES, edge_attr=torch.arange(6), train_mask=mask, title="t"
    )
    source = source_of(data)
    assert isinstance(source.graph, dp.CSCGraph)
    assert torch.equal(source.graph.edge_attributes["edge_attr"], source.graph.edge_ids)
    assert torch.equal(source.training_nodes[None], mask)
    assert source.left_out == ("'title', no tensor of its nodes or edges",)


class OwnData(pyg.Data):
    """A user's class."""


def test_a_class_that_derives_from_data_is_one():
    assert source_of(OwnData(edge_index=EDGES, num_nodes=4)).graph.num_nodes == 4


def test_hetero_data_keeps_the_order_of_its_types():
    data = pyg.HeteroData()
    data["paper"].x = torch.zeros(4, 2)
    data["author"].train_mask = torch.tensor([True, False])
    data["author"].names, data["author"].num_nodes = ["a", "b"], 2
    data["paper", "to", "venue"].edge_index = torch.tensor([[0, 1], [0, 2]])
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [3, 2]])
    data["author", "writes", "paper"].note = "n"
    data.title = "t"
    source = source_of(data)
    assert source.node_types == ("paper", "author", "venue")
    assert source.edge_types == (("paper", "to", "venue"), ("author", "writes", "paper"))
    assert source.graph.num_nodes == {"author": 2, "paper": 4, "venue": 3}
    assert source.training_nodes["author"].tolist() == [True, False]
    assert source.left_out == (
        "'title', no tensor of its nodes or edges",
        "'names' of author, no tensor of its nodes or edges",
        "'note' of author:writes:paper, no tensor of its nodes or edges",
    )
