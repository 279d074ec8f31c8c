"""Folders whose files are told by their names, and `datapipes convert` of these and of GraphBolt's."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from amounts import ranked
from ondisk_folders import EDGES, NODES, heterogeneous, homogeneous

import datapipes as dp
from datapipes.cli.main import main
from datapipes.datasets import DatasetFormatError
from datapipes.datasets.ondisk_graph import FOLDER
from datapipes.ingest.table_files import TableFiles
from datapipes.partition.source import source_of

PAIRS = np.random.default_rng(0).integers(0, NODES, (EDGES, 2))
WEIGHTS = np.arange(EDGES) / 8
LABELS = np.arange(NODES) % 3
SPLIT = [("train", "valid", "test", None)[i % 4] for i in range(NODES)]


def edge_lines(header=True):
    rows = [f"{src},{dst},{weight}" for (src, dst), weight in zip(PAIRS, WEIGHTS, strict=True)]
    return "\n".join((["src,dst,w"] if header else []) + rows) + "\n"


def node_lines():
    rows = [f"{i},{i / 4},{LABELS[i]},{SPLIT[i] or ''}" for i in range(NODES)]
    return "\n".join(["id,age,label,split", *rows]) + "\n"


def plain(root, suffix=".csv"):
    """A folder without types."""
    root.mkdir(parents=True)
    if suffix == ".csv":
        (root / "edges.csv").write_text(edge_lines())
        (root / "nodes.csv").write_text(node_lines())
        return root
    table = {"src": PAIRS[:, 0], "dst": PAIRS[:, 1], "w": WEIGHTS}
    nodes = {"id": np.arange(NODES), "age": np.arange(NODES) / 4, "label": LABELS, "split": SPLIT}
    (root / "edges").mkdir()
    for part in range(2):  # in two files
        piece = {name: values[part * 50 : 50 if part == 0 else None] for name, values in table.items()}
        pa.parquet.write_table(pa.table(piece), root / "edges" / f"{part}.parquet")
    pa.parquet.write_table(pa.table(nodes), root / "nodes.parquet")
    return root


def typed(root):
    (root / "edges").mkdir(parents=True)
    (root / "nodes" / "author").mkdir(parents=True)
    (root / "edges" / "author__writes__paper.csv").write_text(edge_lines())
    np.save(root / "edges" / "paper__cites__paper.npy", PAIRS.T)
    (root / "nodes" / "paper.csv").write_text(node_lines())
    np.save(root / "nodes" / "author" / "feat.npy", np.ones((NODES, 2), np.float32))
    return root


def parts_of(data):
    return data.train_set, data.validation_set, data.test_set


MASKED = {"train": "train", "val": "valid", "test": "test"}


def assert_split(data):
    for items, word in zip(parts_of(data), MASKED.values(), strict=True):
        ids = [i for i in range(NODES) if SPLIT[i] == word]
        assert [values.tolist() for values in items[:]] == [ids, LABELS[ids].tolist()]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_folder_without_types(tmp_path, suffix):
    data = dp.datasets.open(plain(tmp_path / "a", suffix))
    expected = dp.CSCGraph.from_edge_index(
        torch.from_numpy(PAIRS.T.copy()), NODES, edge_attributes={"w": torch.from_numpy(WEIGHTS)}
    )
    assert torch.equal(data.graph.indices.long(), expected.indices)
    assert torch.equal(data.graph.edge_attributes["w"], expected.edge_attributes["w"])
    assert torch.equal(data.features["edge", None, "w"].read(torch.arange(EDGES)), expected.edge_attributes["w"])
    assert data.features["node", None, "age"].read(torch.arange(NODES)).tolist() == [i / 4 for i in range(NODES)]
    assert [*data.features] == [("node", None, "age"), ("edge", None, "w")]
    assert_split(data)
    assert (data.task, data.num_classes) == ("node_classification", 3)


def test_a_folder_with_types(tmp_path):
    data = dp.datasets.open(typed(tmp_path / "a"))
    writes = ("author", "writes", "paper")
    assert data.graph.edge_types == (writes, ("paper", "cites", "paper"))
    assert data.graph.num_nodes == {"author": NODES, "paper": NODES}
    assert [*data.graph.edge_attributes[writes]] == ["w"]
    assert isinstance(data.features["node", "author", "feat"], dp.DiskFeature)
    assert data.train_set.types == ("paper",)


def convert(folder, out, capsys):
    assert main(["convert", str(folder), str(out)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("make", ranked([typed, plain], 1))
def test_convert_streams_what_open_reads(tmp_path, capsys, make):
    folder = make(tmp_path / "a")
    assert convert(folder, tmp_path / "out", capsys) == convert(folder, tmp_path / "out", capsys)  # complete already
    assert not (folder / FOLDER[0]).exists()
    opened = dp.HeteroCSCGraph.open if make is typed else dp.CSCGraph.open
    expect_same(opened(tmp_path / "out"), source_of(dp.datasets.open(folder)).graph)


@pytest.mark.parametrize("make", ranked([homogeneous, heterogeneous], 1))
def test_convert_of_graphbolts_folders(tmp_path, capsys, make):
    folder = make(tmp_path / "a").root
    out = convert(folder, tmp_path / "out", capsys)
    assert "not in the graph: the task 'link_prediction'" in out
    opened = dp.CSCGraph.open if make is homogeneous else dp.HeteroCSCGraph.open
    graph = opened(tmp_path / "out").validate()
    expect_same(graph, source_of(dp.datasets.open(folder)).graph)
    assert main(["inspect", str(folder), "--json"]) == 0
    assert main(["partition", str(folder), str(tmp_path / "parts"), "--parts", "2", "--method", "random"]) == 0


def test_options_of_other_data_sets_are_refused(tmp_path, capsys, refuses):
    folder = plain(tmp_path / "a")
    assert main(["convert", str(folder), str(tmp_path / "out"), "--split", "1"]) == 2
    assert main(["inspect", str(folder), "--split", "1"]) == 1
    refuses(ValueError, dp.datasets.open, folder, normalize_features=True)


def expect_same(found, expected):
    assert found.edge_types == expected.edge_types
    for of in found.edge_types:
        one, other = found.relation(of), expected.relation(of)
        assert torch.equal(one.indptr, other.indptr)
        assert torch.equal(one.indices, other.indices)
        assert_equal_rows(one.edge_attributes, other.edge_attributes)
    for of in found.node_types:
        assert_equal_rows(found.node_attributes_of(of), expected.node_attributes_of(of))


def assert_equal_rows(one, other):
    assert {*one} == {*other}
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_bad_tables_are_refused(tmp_path, refuses):
    root = plain(tmp_path / "a")
    nodes, edges = root / "nodes.csv", root / "edges.csv"
    for file, old, new in (
        (nodes, "\n1,0.25,", "\n2,0.25,"),
        (nodes, "\n1,0.25,", "\n1,tall,"),
        (nodes, "\n1,0.25,", "\n1,,"),
        (nodes, "valid", "dev"),
        (nodes, "id,age", "id,node"),
        (nodes, "age", "val_mask"),
        (nodes, "age,label,split", "train_mask,label,x"),
        (nodes, node_lines(), ""),
        (edges, "0.125", "x"),
        (edges, "src", "from"),
    ):
        content = file.read_text()
        assert old in content
        file.write_text(content.replace(old, new))
        refuses(DatasetFormatError, dp.datasets.open, root)
        file.write_text(content)
    (root / "nodes").mkdir()
    np.save(root / "nodes" / "train_mask.npy", np.ones(NODES))
    refuses(DatasetFormatError, dp.datasets.open, root)
    (root / "nodes" / "train_mask.npy").unlink()
    (root / "nodes" / "more.csv").write_text("label\n" + "1\n" * NODES)
    refuses(DatasetFormatError, dp.datasets.open, root)
    (root / "edges.parquet").write_bytes(b"")
    refuses(DatasetFormatError, dp.datasets.open, root)


def test_what_arrow_says_of_a_bad_table_is_passed_on(tmp_path):
    root = plain(tmp_path / "a")
    (root / "nodes.csv").write_text(node_lines().replace("\n29,", "\n29,1,1,1,"))
    with pytest.raises(DatasetFormatError, match="CSV"):
        dp.datasets.open(root)
    (root / "nodes.csv").rename(root / "nodes.parquet")
    with pytest.raises(DatasetFormatError, match=r"is no whole table: .*Parquet magic bytes"):
        dp.datasets.open(root)


def test_folders_that_contradict_themselves(tmp_path, refuses):
    root = typed(tmp_path / "a")
    np.save(root / "nodes" / "author" / "more.npy", np.ones(NODES - 1))
    refuses(DatasetFormatError, dp.datasets.open, root)
    (root / "nodes" / "author" / "more.npy").unlink()
    np.save(root / "edges" / "author__likes__venue.npy", PAIRS.T)
    refuses(DatasetFormatError, dp.datasets.open, root)
    (root / "edges" / "author__likes__venue.npy").rename(root / "edges" / "likes.npy")
    refuses(DatasetFormatError, dp.datasets.open, root)


def test_labels_without_a_split_train_and_the_empty_ones_do_not(tmp_path):
    root = plain(tmp_path / "a")
    rows = [f"{'' if i % 2 else i % 5}" for i in range(NODES)]
    (root / "nodes.csv").write_text("label,x\n" + "".join(f"{label},{i}\n" for i, label in enumerate(rows)))
    data = dp.datasets.open(root)
    assert data.train_set[:][0].tolist() == [*range(0, NODES, 2)]
    assert len(data.test_set) == 0
    (root / "nodes.csv").unlink()
    (root / "nodes").mkdir()
    np.save(root / "nodes" / "x.npy", np.ones((NODES, 2)))
    data = dp.datasets.open(root)
    assert (len(data.train_set), data.task, data.graph.num_nodes) == (0, "all_nodes", NODES)


def test_edges_without_nodes_are_no_edge_list_of_snap(tmp_path):
    (tmp_path / "edges.csv").write_text("1,2,3,4\n2,1,3,5\n" * 4)
    with pytest.raises(DatasetFormatError, match=r"found no nodes\.csv and no folder nodes"):
        dp.datasets.open(tmp_path)
    (tmp_path / "edges.csv").rename(tmp_path / "ratings.csv")
    assert dp.datasets.open(tmp_path, columns=("src", "dst", "rating", "time")).task == "edge_regression"


def test_a_table_and_arrays_of_nodes_without_types(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    (tmp_path / "nodes.csv").write_text("age,label\n31,0\n44,1\n27,1\n")
    (tmp_path / "nodes").mkdir()
    np.save(tmp_path / "nodes" / "emb.npy", np.ones((3, 4), np.float32))
    data = dp.datasets.open(tmp_path)
    assert data.features.names("node") == ["age", "emb"]
    assert data.train_set[:][1].tolist() == [0, 1, 1]


SHUFFLED = np.random.default_rng(1).permutation(NODES)


@pytest.mark.parametrize("ids", ["id", "node_id", "node"])
def test_rows_belong_to_the_nodes_that_their_ids_name(tmp_path, capsys, ids):
    root = plain(tmp_path / "a")
    header, *rows = node_lines().splitlines()
    lines = [header.replace("id", ids, 1), *(rows[place] for place in SHUFFLED)]
    (root / "nodes.csv").write_text("\n".join(lines))
    data = dp.datasets.open(root)
    every = torch.arange(NODES)
    assert data.features.names("node") == ["age"]
    assert data.features["node", None, "age"].read(every).tolist() == [i / 4 for i in range(NODES)]
    assert_split(data)
    if ids == "id":
        convert(root, tmp_path / "out", capsys)
        assert dp.CSCGraph.open(tmp_path / "out").node_attributes["age"].tolist() == [i / 4 for i in range(NODES)]


@pytest.mark.parametrize("form", ranked([str, "parquet", bool], 2))
def test_masks_are_the_sets(tmp_path, form):
    root = plain(tmp_path / "a")
    masks = {f"{name}_mask": [SPLIT[i] == word for i in range(NODES)] for name, word in MASKED.items()}
    columns = {"node": SHUFFLED, "age": SHUFFLED / 4, "label": LABELS[SHUFFLED]}
    columns.update({name: np.array(values)[SHUFFLED] for name, values in masks.items()})
    if form == "parquet":
        columns = {name: values.astype(np.uint16) if name != "age" else values for name, values in columns.items()}
        (root / "nodes.csv").unlink()
        pa.parquet.write_table(pa.table(columns), root / "nodes.parquet")
    else:
        rows = [",".join(str(v if form is bool else v * 1) for v in row) for row in zip(*columns.values(), strict=True)]
        (root / "nodes.csv").write_text("\n".join([",".join(columns), *rows]))
    data = dp.datasets.open(root)
    assert data.features.names("node") == ["age"]
    assert_split(data)


def test_one_mask_without_labels_leaves_the_other_sets_empty(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n")
    (tmp_path / "nodes.csv").write_text("train_mask\n1\n\n0\n1\n")
    data = dp.datasets.open(tmp_path)
    assert [each[:].tolist() for each in parts_of(data)] == [[0, 2], [], []]
    assert data.features.names("node") == []


@pytest.mark.parametrize("content", ["", "src,dst,w\n"])
def test_a_relation_and_a_type_without_rows(tmp_path, content):
    root = typed(tmp_path / "a")
    (root / "edges" / "author__likes__paper.csv").write_text(content)
    (root / "nodes" / "venue.csv").write_text("id,x,label,split\n")
    (root / "edges" / "paper__in__venue").mkdir()
    (root / "edges" / "paper__in__venue" / "0.csv").write_text(content)
    data = dp.datasets.open(root)
    assert data.graph.num_nodes["venue"] == 0
    assert data.graph.num_edges["author", "likes", "paper"] == data.graph.num_edges["paper", "in", "venue"] == 0
    assert data.features["node", "venue", "x"].count == 0
    assert data.train_set.types == ("paper",)


def test_a_table_in_the_folder_of_a_type_states_its_task(tmp_path):
    root = typed(tmp_path / "a")
    (root / "nodes" / "author" / "more.csv").write_text("label\n" + "1\n" * NODES)
    data = dp.datasets.open(root)
    assert data.train_set.types == ("author", "paper")
    assert data.features.names("node", "author") == ["feat"]


def test_a_table_is_opened_as_often_for_many_columns_as_for_one(tmp_path, monkeypatch):
    opened, init = [], TableFiles.__init__

    def counted(self, *arguments):
        opened.append(arguments[1])
        init(self, *arguments)

    monkeypatch.setattr(TableFiles, "__init__", counted)
    counts = []
    for number, names in enumerate((["a"], [*"abcdefgh"])):
        root = tmp_path / str(number)
        root.mkdir()
        (root / "edges.csv").write_text("0,1\n1,2\n")
        lines = [",".join([*names, "label"]), *(",".join(["1"] * len(names) + ["0"]) for _ in range(3))]
        (root / "nodes.csv").write_text("\n".join(lines))
        opened.clear()
        assert dp.datasets.open(root).features.names("node") == names
        counts.append(sum(path.name == "nodes.csv" for path in opened))
    assert counts[0] == counts[1]
