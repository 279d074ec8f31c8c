"""Dataset and datasets.open: each format is recognised, becomes a graph and items, and runs through a chain."""

from __future__ import annotations

import ast
import gzip
import pickle
import re
import shlex
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from published import published
from torch import Tensor

import datapipes as dp
from datapipes.cli.main import main

ENTITY = "entity"
LABEL = "http://swrc.ontoware.org/ontology#affiliation"


def rdf_folder(folder: Path, num_people: int = 10) -> Path:
    """Write a ring of people: person i knows person i + 1 and is in group i % 2."""
    folder.mkdir()
    lines = [f"<http://p/{i}> <http://x/knows> <http://p/{(i + 1) % num_people}> .\n" for i in range(num_people)]
    (folder / "ring.nt.gz").write_bytes(gzip.compress("".join(lines).encode()))
    for name, people in (("trainingSet", range(2, num_people)), ("testSet", range(2))):
        rows = [f"{i}\thttp://p/{i}\thttp://g/{i % 2}\n" for i in people]
        (folder / f"{name}.tsv").write_text("id\tperson\tlabel_affiliation\n" + "".join(rows))
    return folder


def edge_list(folder: Path, name: str = "tiny.txt") -> Path:
    """Write 20 edges over 5 nodes, one a second."""
    folder.mkdir(exist_ok=True)
    rated = name.endswith(".csv")
    rows = [(10 + i % 5, 10 + (i + 1) % 5, *([i % 3 - 1] if rated else []), 1000 + i) for i in range(20)]
    header = ",".join(("src", "dst", *(["rating"] if rated else []), "time")).replace(",", "," if rated else " ")
    (folder / name).write_text(
        f"{header}\n" + "".join(("," if rated else " ").join(map(str, row)) + "\n" for row in rows)
    )
    return folder


def ogb_folder(folder: Path) -> Path:
    """Write 6 nodes in a path, with links."""
    files = {
        "edge": "".join(f"{i},{i + 1}\n" for i in range(5)),
        "num-node-list": "6\n",
        "num-edge-list": "5\n",
        "node-feat": "".join(f"{i}.5\n" for i in range(6)),
    }
    (folder / "raw").mkdir(parents=True)
    (folder / "split").mkdir()
    for name, content in files.items():
        (folder / "raw" / f"{name}.csv.gz").write_bytes(gzip.compress(content.encode()))
    pairs = {
        f"{part}_{key}": np.array([[0, 3]]) + i
        for part in ("valid", "test")
        for i, key in enumerate(("edge", "edge_neg"))
    }
    np.savez(folder / "split" / "target.npz", **pairs)
    return folder


def heco_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pa.txt").write_text("0\t0\n1\t0\n2\t1\n3\t1\n")
    (folder / "ps.txt").write_text("0\t0\n1\t0\n2\t0\n3\t1\n")
    csr = {
        "indptr": np.arange(5),
        "indices": np.zeros(4, dtype=np.int64),
        "data": np.ones(4),
        "shape": np.array([4, 2]),
    }
    np.savez(folder / "p_feat.npz", **csr)
    np.save(folder / "labels.npy", np.array([0, 1, 0, 1]))
    for i, part in enumerate(("train", "val", "test")):
        for count in (20, 40, 60):
            np.save(folder / f"{part}_{count}.npy", np.array([(i + count // 20) % 4]))
    return folder


# What the parts are.


def test_rdf_becomes_a_graph_of_entities_with_their_names(tmp_path):
    data = dp.datasets.open(rdf_folder(tmp_path / "ring"))
    knows = (ENTITY, "http://x/knows", ENTITY)
    assert data.task == "node_classification"
    assert data.graph.edge_types == (knows, (ENTITY, "rev_http://x/knows", ENTITY))
    assert data.graph.num_nodes == {ENTITY: 10}
    assert data.training_graph is data.graph
    assert list(data.features.keys()) == []
    seeds = data.test_set.item_sets[ENTITY].take(torch.arange(2))["seeds"]
    assert [data.node_names[ENTITY][i] for i in seeds] == ["http://p/0", "http://p/1"]
    assert (len(data.train_set), len(data.validation_set), len(data.test_set)) == (8, 0, 2)
    plain = dp.datasets.open(tmp_path / "ring" / "ring.nt.gz", inverse_relations=False)
    assert plain.graph.edge_types == (knows,)


def test_a_temporal_list_trains_on_the_edges_of_its_first_part(tmp_path):
    data = dp.datasets.open(edge_list(tmp_path))
    assert (data.task, data.num_classes) == ("link_prediction", 0)
    assert (data.graph.num_edges, data.training_graph.num_edges) == (20, 14)
    assert data.train_set.names == ("seeds", "timestamps")
    assert data.graph.node_attributes["id"].tolist() == [10, 11, 12, 13, 14]
    for graph in (data.graph, data.training_graph):
        times = data.features["edge", None, "time"].read(graph.edge_ids)
        assert torch.equal(graph.edge_attributes["time"], times)
    assert sorted(data.training_graph.edge_ids.tolist()) == list(range(14))


def test_ratings_are_labels_and_a_feature_of_edges(tmp_path):
    data = dp.datasets.open(edge_list(tmp_path, "tiny.csv") / "tiny.csv")
    assert data.task == "edge_regression"
    taken = data.validation_set.take(torch.arange(3))
    assert taken["labels"].dtype == torch.float32
    assert taken["timestamps"].tolist() == [1014, 1015, 1016]
    assert torch.equal(taken["labels"], data.features["edge", None, "rating"].read(torch.tensor([14, 15, 16])))


def test_links_of_ogb_have_labels_but_in_training(tmp_path):
    data = dp.datasets.open(ogb_folder(tmp_path / "ogbl_ddi"))
    assert data.name == "ogbl-ddi"
    assert data.graph.num_edges == 10  # each edge and its inverse
    assert data.train_set.names == ("seeds",)
    assert data.test_set.take(torch.arange(2))["labels"].tolist() == [1, 0]
    assert dp.datasets.open(tmp_path / "ogbl_ddi", inverse_relations=False).graph.num_edges == 5


def test_each_split_of_acm_is_read(tmp_path):
    folder = heco_folder(tmp_path / "acm")
    for split in range(3):
        data = dp.datasets.open(folder, split=split)
        assert data.graph.node_types == ("author", "paper", "subject")
        taken = data.train_set.take(torch.arange(1))
        assert taken["seeds"]["paper"].tolist() == [split + 1]
        assert data.features["node", "paper", "feat"].shape == (2,)


# Through a chain.


def first(data: dp.datasets.Dataset, **keys: object) -> dp.MiniBatch:
    pipe = dp.ItemSampler(data.train_set, batch_size=3, shuffle=True, seed=0)
    pipe = pipe.sample_neighbor(data.graph, [2, 2], return_edge_ids=True)
    if isinstance(data.train_set, dp.ItemSet) and data.train_set.seeds_shape == (2,):
        pipe = pipe.exclude_seed_edges(True)
    pipe = pipe.fetch_feature(data.features, **keys)
    with dp.DataLoader(pipe) as loader:
        return next(iter(loader))


def test_seeds_of_each_kind_pass_the_chain(tmp_path):
    rdf = first(dp.datasets.open(rdf_folder(tmp_path / "ring")))
    assert rdf.labels[ENTITY].shape == rdf.seeds[ENTITY].shape == (3,)
    assert all(isinstance(block, dict) and len(block) == 2 for block in rdf.blocks)
    rated = first(dp.datasets.open(edge_list(tmp_path / "e", "a.csv")), edge_feature_keys=["time", "rating"])
    assert rated.seeds.shape == (3, 2)
    assert isinstance(rated.timestamps, Tensor)
    assert set(rated.edge_features[0]) == {"time", "rating"}
    links = first(dp.datasets.open(ogb_folder(tmp_path / "ogbl_ddi")), node_feature_keys=["feat"])
    assert torch.equal(links.node_features["feat"].ravel(), links.input_nodes + 0.5)


def test_a_data_set_with_types_pickles(tmp_path):
    data = dp.datasets.open(heco_folder(tmp_path / "acm"))
    again = pickle.loads(pickle.dumps(data))
    assert again.graph.digest() == data.graph.digest()
    assert again.train_set.digest() == data.train_set.digest()


# A validation part.


def seeds_of(items: dp.HeteroItemSet | dp.ItemSet) -> list[int]:
    taken = items.take(torch.arange(len(items)))["seeds"]
    return (taken[ENTITY] if isinstance(taken, dict) else taken).tolist()


def test_a_validation_part_is_cut_from_the_training_set(tmp_path):
    data = dp.datasets.open(rdf_folder(tmp_path / "ring", 52))
    cut = data.with_validation(0.3, seed=1)
    train, validation = seeds_of(cut.train_set), seeds_of(cut.validation_set)
    assert len(validation) == 15
    assert sorted(train + validation) == seeds_of(data.train_set)
    assert seeds_of(cut.test_set) == seeds_of(data.test_set)
    assert seeds_of(data.with_validation(0.3, seed=1).validation_set) == validation
    assert seeds_of(data.with_validation(0.3, seed=2).validation_set) != validation
    labels = cut.validation_set.take(torch.arange(15))["labels"][ENTITY]
    groups = [int(data.node_names[ENTITY][i].rpartition("/")[2]) % 2 for i in validation]
    assert labels.tolist() == groups


def test_a_type_of_which_no_item_is_drawn_is_not_in_the_validation_part(tmp_path):
    data = dp.datasets.open(heco_folder(tmp_path / "acm"))
    counts = {"author": 2, "paper": 4, "subject": 1}
    train = dp.HeteroItemSet({kind: dp.ItemSet(torch.arange(count), names="seeds") for kind, count in counts.items()})
    empty = dp.ItemSet(torch.arange(0), names="seeds")
    for share, kept, drawn in ((0.2, {"author", "paper", "subject"}, {"paper"}), (0.8, {"paper"}, set(counts))):
        cut = replace(data, train_set=train, validation_set=empty).with_validation(share)
        assert set(cut.train_set.item_sets) == kept
        assert set(cut.validation_set.item_sets) == drawn
        for part in (cut.train_set, cut.validation_set):
            batches = dp.ItemSampler(part, batch_size=2).sample_neighbor(data.graph, [2])
            assert sum(len(ids) for batch in batches for ids in batch.seeds.values()) == len(part)


# What is refused.


def test_a_second_validation_part_or_an_odd_share_is_refused(tmp_path, refuses):
    data = dp.datasets.open(rdf_folder(tmp_path / "ring"))
    refuses(ValueError, data.with_validation().with_validation)
    for share in (0, 1, -0.1, "half", float("nan")):
        refuses(ValueError, data.with_validation, share)
    refuses(TypeError, data.with_validation, seed=0.5)


@pytest.mark.parametrize("make", [rdf_folder, edge_list, ogb_folder, heco_folder])
def test_arguments_for_other_files_are_refused(tmp_path, make, refuses):
    folder = make(tmp_path / "data")
    refuses(ValueError, dp.datasets.open, folder, normalize_features=True)
    refuses(ValueError, dp.datasets.open, folder, largest_component=True)
    if make is not heco_folder:
        refuses(IndexError, dp.datasets.open, folder, split=1)
    if make is not edge_list:
        refuses(ValueError, dp.datasets.open, folder, columns=("src", "dst"))
    else:
        refuses(ValueError, dp.datasets.open, folder, inverse_relations=False)
        refuses(TypeError, dp.datasets.open, folder, inverse_relations=1)


def test_files_of_no_known_format_are_refused_with_what_is_known(tmp_path, refuses):
    (tmp_path / "a.parquet").write_text("")
    refuses(ValueError, dp.datasets.open, tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("")
    refuses(ValueError, dp.datasets.open, tmp_path)


def write_networkx(path):
    networkx = pytest.importorskip("networkx")
    graph = networkx.MultiDiGraph(
        [(*map(str, pair), {"weight": float(w)}) for pair, w in zip(EDGES.T, WEIGHTS, strict=True)]
    )
    getattr(networkx, f"write_{path.suffix[1:]}")(graph, path)


def write_table(path):
    pyarrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table({"src": EDGES[0], "dst": EDGES[1]}), path)


EDGES, WEIGHTS = np.array([[0, 1, 2, 3, 3], [1, 2, 0, 0, 4]]), np.arange(1.0, 6)
OTHERS = {
    "a.graphml": write_networkx,
    "a.gexf": write_networkx,
    "a.gml": write_networkx,
    "a b.parquet": write_table,
    "a.tsv": lambda path: np.savetxt(path, EDGES.T, "%d", "\t"),
    "a.npy": lambda path: np.save(path, EDGES),
    "wide.csv": lambda path: np.savetxt(path, np.r_[EDGES, EDGES, EDGES].T, "%d", ","),
    "wide.txt": lambda path: np.savetxt(path, np.r_[EDGES, EDGES, EDGES].T, "%d", header="u v a b c d", comments=""),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.filterwarnings("ignore:GML")
def test_the_error_of_another_file_has_the_line_that_reads_it(tmp_path, name):
    OTHERS[name](tmp_path / name)
    line = {}
    for path in (tmp_path / name, tmp_path):
        with pytest.raises(dp.datasets.DatasetFormatError) as caught:
            dp.datasets.open(path)
        line[path] = re.search(r"Read it by: (.*)\.$", str(caught.value))[1]
    assert len({*line.values()}) == 1
    line = line[tmp_path]
    if line.startswith("datapipes "):
        arguments = shlex.split(line.replace("OUT", str(tmp_path / "out")).replace("NUM_NODES", "5"))
        assert main(arguments[1:]) == 0
        graph = dp.CSCGraph.open(tmp_path / "out")
    else:
        names = {"dp": dp, "numpy": np}
        names.update((each, pytest.importorskip(each)) for each in ("scipy", "networkx") if each in line)
        if ";" in line:
            exec(line, names)
            graph = names["graph"]
        else:
            graph = eval(line, names)
    edges = [*map(tuple, EDGES.T.tolist())]
    relation = graph.relation(None)
    destinations = np.repeat(np.arange(5), np.diff(relation.indptr.numpy()))
    assert sorted(zip(relation.indices.tolist(), destinations.tolist(), strict=True)) == sorted(edges)


def test_columns_of_a_list_are_passed_on_and_checked(tmp_path, refuses):
    (tmp_path / "a.txt").write_text("7 5 0.5\n5 100 2\n")
    with pytest.raises(dp.datasets.DatasetFormatError, match="Pass columns=") as caught:
        dp.datasets.open(tmp_path)
    for columns in map(ast.literal_eval, re.findall(r"columns=(\(.*?\))", str(caught.value))):
        data = dp.datasets.open(tmp_path, columns=columns)
        assert data.task == {"time": "link_prediction", "weight": "all_nodes"}[columns[2]]
    assert data.features["edge", None, "weight"].read(data.graph.edge_ids).tolist() == [0.5, 2]
    assert data.graph.edge_attributes["weight"].tolist() == [0.5, 2]
    pipe = dp.ItemSampler(data.all_nodes_set, 3).sample_neighbor(data.graph, [1], prob_name="weight")
    assert next(iter(dp.DataLoader(pipe))).blocks[0].num_edges == 2
    for columns in ("src", ("src", "time"), ("src", "dst", "dst"), ("src", "dst", "times"), 3):
        refuses(ValueError, dp.datasets.open, tmp_path, columns=columns)


# --- objects of PyG


def pyg():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
        return pytest.importorskip("torch_geometric.data", reason="from_pyg takes a PyG Data")


PLACE = torch.arange(6)
MASKS = {"train_mask": PLACE < 3, "val_mask": PLACE == 3, "test_mask": PLACE > 3}
RING = torch.stack((PLACE.flip(0), PLACE.flip(0).roll(1)))
OF_NODES = {"x": torch.rand(6, 2), "y": PLACE % 2, "time": PLACE, **MASKS}


def test_a_data_of_pyg_is_a_data_set_in_a_line():
    edge_attr = torch.rand(6, 3)
    data = dp.datasets.Dataset.from_pyg(pyg().Data(edge_index=RING, edge_attr=edge_attr, **OF_NODES), name="ring")
    assert (data.name, data.task, data.num_classes, data.class_names) == ("ring", "node_classification", 2, ("0", "1"))
    assert [*data.graph.node_attributes] == ["time"]  # what is a feature, a label or a mask goes to no worker
    assert data.graph.edge_attributes == {}
    assert {*data.features} == {("node", None, "x"), ("edge", None, "edge_attr")}
    assert [[*map(int, item)] for item in data.train_set] == [[0, 0], [1, 1], [2, 0]]
    assert (len(data.validation_set), len(data.test_set)) == (1, 2)
    pipe = dp.ItemSampler(data.test_set, 2).sample_neighbor(data.graph, [-1], return_edge_ids=True)
    pipe = pipe.fetch_feature(data.features, node_feature_keys=["x"], edge_feature_keys=["edge_attr"])
    (minibatch,) = pipe
    (block,) = minibatch.blocks
    assert torch.equal(minibatch.node_features["x"], OF_NODES["x"][minibatch.input_nodes])
    columns = [RING[1].tolist().index(v) for v in minibatch.seeds.tolist()]
    assert block.edge_ids.tolist() == columns
    assert torch.equal(minibatch.edge_features[0]["edge_attr"], edge_attr[columns])


def test_labels_of_pyg_are_classes_or_values():
    def of(y):
        return dp.datasets.Dataset.from_pyg(pyg().Data(num_nodes=6, edge_index=RING, y=y, train_mask=PLACE < 2))

    for y, task, classes, dtype, shape in (
        (torch.rand(6, 1).double(), "node_regression", 0, torch.float32, (2,)),
        (torch.rand(6, 2), "node_regression", 0, torch.float32, (2, 2)),
        (PLACE.int().reshape(6, 1), "node_classification", 6, torch.int64, (2,)),
        (PLACE.reshape(6, 1).repeat(1, 4) % 2, "node_classification", 2, torch.int64, (2, 4)),
        (torch.full((6,), -1), "node_classification", 0, torch.int64, (2,)),
    ):
        data = of(y)
        assert (data.task, data.num_classes) == (task, classes)
        seeds, labels = data.train_set[:]
        assert (seeds.tolist(), labels.dtype, tuple(labels.shape)) == ([0, 1], dtype, shape)
        assert len(data.validation_set) == len(data.test_set) == 0
    assert len(of(PLACE).with_validation(0.5).validation_set) == 1


def typed_data():
    data = pyg().HeteroData()
    for name, value in OF_NODES.items():
        data["paper"][name] = value
    data["author"].num_nodes, data["author"].y = 4, torch.zeros(4)
    data["author", "writes", "paper"].edge_index = torch.tensor([[3, 0], [5, 1]])
    data["author", "writes", "paper"].edge_attr = torch.tensor([1.0, 2.0])
    data["paper", "cites", "paper"].edge_index = RING
    return data


def test_a_hetero_data_of_pyg_has_a_line_a_type():
    data = dp.datasets.Dataset.from_pyg(typed_data())
    assert data.train_set.types == ("paper",)
    assert [*data.graph.node_attributes_of("author")] == ["y"]  # without a mask they are no labels of the task
    assert data.features["edge", ("author", "writes", "paper"), "edge_attr"].read(PLACE[:2]).tolist() == [1.0, 2.0]
    assert data.describe() == (
        "data: node classification, 2 classes\n"
        "                           count  train  validation  test  features\n"
        "nodes author                   4      -           -     -\n"
        "nodes paper                    6      3           1     2  x float32 [6, 2]\n"
        "edges author:writes:paper      2      -           -     -  edge_attr float32 [2]\n"
        "edges paper:cites:paper        6      -           -     -\n"
        "training items of each class: 0 2, 1 1"
    )


def test_what_from_pyg_refuses(refuses):
    from_pyg = dp.datasets.Dataset.from_pyg
    for changes in (
        {"train_mask": None},
        {"y": None},
        {"y": torch.tensor([1])},
        {"val_mask": torch.ones(6, 2).bool()},
        {"test_mask": PLACE},
        {"y": PLACE + 2**40},
        {"edge_index": None},
    ):
        values = {"edge_index": RING, **OF_NODES, **changes}
        data = pyg().Data(**{name: value for name, value in values.items() if value is not None})
        refuses(ValueError, from_pyg, data)
    data = typed_data()
    data["author"].train_mask = torch.ones(4, dtype=torch.bool)
    refuses(ValueError, from_pyg, data)  # labels of two kinds are two tasks


# --- describe


def test_links_are_items_of_edges(tmp_path):
    data = dp.datasets.open(edge_list(tmp_path))
    assert data.describe() == (
        "tiny: link prediction\n"
        "       count  train  validation  test  features\n"
        "nodes      5      -           -     -\n"
        "edges     20     14           3     3  time int64 [20]"
    )


def test_of_many_types_the_first_are_shown_and_names_of_files_are_escaped():
    edges = {("a", f"r\x1b{number}", "a"): RING for number in range(40)}
    graph = dp.HeteroCSCGraph.from_edge_index(edges, {"a": 6})
    items = dp.HeteroItemSet({("a", "r\x1b0", "a"): dp.ItemSet(RING.T)})
    store = dp.FeatureStore({("edge", ("a", "r\x1b0", "a"), "w"): dp.TensorFeature(torch.ones(6))})
    data = dp.datasets.Dataset("many", graph, store, items, items, items, 0, (), task="link_prediction")
    lines = data.describe().splitlines()
    assert lines[3].split() == ["edges", r"a:r\x1b0:a", "6", "6", "6", "6", "w", "float32", "[6]"]
    assert (len(lines), lines[-1]) == (35, "... and 9 more")


# The real ones, through open.


@pytest.mark.parametrize(
    ("name", "task", "items"),
    [
        ("aifb", "node_classification", (140, 0, 36)),
        ("acm_heco", "node_classification", (60, 1000, 1000)),
        ("ogbl_ddi", "link_prediction", (1_067_911, 235_371, 229_088)),
        ("collegemsg", "link_prediction", (41_884, 8976, 8975)),
        ("bitcoin_otc", "edge_regression", (24_914, 5339, 5339)),
    ],
)
def test_the_real_files_are_recognised(name, task, items):
    data = dp.datasets.open(published(name))
    assert data.task == task
    assert (len(data.train_set), len(data.validation_set), len(data.test_set)) == items
