"""What `datapipes convert` writes."""

import pytest
import torch
from command_files import done, link_file, npz_file, rdf_folder, run, saved_graph
from hetero_graphs import expect_equal

import datapipes as dp
from datapipes.partition.source import source_of


def test_a_data_set_becomes_a_graph_that_opens(capsys, tmp_path):
    path, out = npz_file(tmp_path / "in"), tmp_path / "new" / "out"
    found = done(capsys, "convert", path, out)
    data, graph = dp.datasets.open(path), dp.CSCGraph.open(out).validate()
    assert graph.digest() == data.graph.digest()
    assert sorted(graph.node_attributes) == ["feat", "test_mask", "train_mask", "val_mask", "y"]
    assert torch.equal(graph.node_attributes["feat"], data.features["node", None, "feat"].tensor)
    assert graph.node_attributes["y"].tolist() == [0, 1, 0, 1, 0, 1]
    assert graph.node_attributes["train_mask"].nonzero().flatten().tolist() == [0, 3]
    lines = found.out.splitlines()
    assert lines[0] == f"{path} is now the graph {out}"
    assert lines[2].startswith("nodes: 6; feat float32 [6, 2], ")
    assert [each.name for each in out.parent.iterdir()] == ["out"]


def test_a_data_set_with_types(capsys, tmp_path):
    path, out = rdf_folder(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    found = done(capsys, "convert", path, out, "--json")
    expected = source_of(dp.datasets.open(path)).graph
    expect_equal(dp.HeteroCSCGraph.open(out), expected)
    assert (found.json["in"], found.json["out"], found.json["left_out"]) == (str(path), str(out), ["node_names"])
    assert found.json["graph"]["digest"] == expected.digest()


def test_options_choose_what_is_converted(capsys, tmp_path):
    path = npz_file(tmp_path / "in")
    assert run(capsys, "convert", path, tmp_path / "out", "--split", 1).code == 0
    mask = dp.CSCGraph.open(tmp_path / "out").node_attributes["train_mask"]
    assert mask.nonzero().flatten().tolist() == [2, 5]


def test_what_is_left_out_is_said(capsys, tmp_path):
    found = run(capsys, "convert", link_file(tmp_path / "in"), tmp_path / "out")
    assert found.code == 0
    assert "not in the graph: train_set, 14 links\n" in found.out
    assert "not in the graph: training_graph, which differs from graph\n" in found.out


def test_what_convert_refuses(command_refuses, tmp_path):
    path, out, graph = npz_file(tmp_path / "in"), tmp_path / "out", saved_graph(tmp_path / "g")
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    command_refuses(1, "convert", path, out)
    command_refuses(1, "convert", path, out / "mine.txt")
    command_refuses(1, "convert", path, graph)
    assert (out / "mine.txt").read_text() == "mine"
    command_refuses(2, "convert", graph, tmp_path / "new")  # it is a graph already
    command_refuses(1, "convert", tmp_path / "none", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_nothing(capsys, monkeypatch, tmp_path, error):
    path, out = npz_file(tmp_path / "in"), tmp_path / "to" / "out"

    def save(graph, folder):
        (folder / "indptr.npy").touch()
        raise error

    monkeypatch.setattr(dp.CSCGraph, "save", save)
    assert run(capsys, "convert", path, out).code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert [*out.parent.iterdir()] == []
