"""What `datapipes convert` writes."""

import pytest
import torch
from command_files import link_file, npz_file, rdf_folder, run, saved_graph
from hetero_graphs import expect_equal

import datapipes as dp
from datapipes.partition.source import source_of


def test_a_data_set_becomes_a_graph_that_opens(capsys, tmp_path):
    path, out = npz_file(tmp_path / "in"), tmp_path / "new" / "out"
    found = run(capsys, "convert", path, out)
    assert (found.code, found.err) == (0, "")
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
    found = run(capsys, "convert", path, out, "--json")
    assert (found.code, found.err) == (0, "")
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


def test_a_folder_that_holds_something_is_refused_and_stays(capsys, tmp_path):
    path, out = npz_file(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    found = run(capsys, "convert", path, out)
    assert (found.code, found.out) == (1, "")
    assert (
        f"convert: OUT: {out} holds 'mine.txt', which is not overwritten. Choose an empty or new folder." in found.err
    )
    assert (out / "mine.txt").read_text() == "mine"
    found = run(capsys, "convert", path, out / "mine.txt")
    assert found.code == 1
    assert "mine.txt is no folder; it is not overwritten." in found.err
    assert run(capsys, "convert", path, saved_graph(tmp_path / "g")).code == 1


def test_a_saved_graph_needs_no_conversion(capsys, tmp_path):
    folder = saved_graph(tmp_path / "g")
    found = run(capsys, "convert", folder, tmp_path / "out")
    assert (found.code, found.out) == (2, "")
    assert f"{folder} is a folder of a saved graph already" in found.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_conversion_leaves_nothing(capsys, monkeypatch, tmp_path, error):
    path, out = npz_file(tmp_path / "in"), tmp_path / "to" / "out"

    def save(graph, folder):
        (folder / "indptr.npy").touch()
        raise error

    monkeypatch.setattr(dp.CSCGraph, "save", save)
    assert run(capsys, "convert", path, out).code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert [*out.parent.iterdir()] == []


def test_a_missing_file(capsys, tmp_path):
    found = run(capsys, "convert", tmp_path / "none", tmp_path / "out")
    assert (found.code, found.out) == (1, "")
    assert "none does not exist" in found.err
    assert not (tmp_path / "out").exists()
