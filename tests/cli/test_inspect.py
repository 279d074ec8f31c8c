"""What `datapipes inspect` says."""

import json

import numpy as np
from command_files import done, link_file, npz_file, rdf_folder, run, saved_graph, saved_library
from hetero_graphs import full_library

import datapipes as dp


def test_a_saved_graph(capsys, tmp_path):
    folder = saved_graph(tmp_path / "g")
    graph = dp.CSCGraph.open(folder)
    found = done(capsys, "inspect", folder, "--json")
    assert found.json == {
        "command": "inspect",
        "path": str(folder),
        "kind": "graph",
        "verified": False,
        "graph": {
            "class": "CSCGraph",
            "index_dtype": "int64",
            "digest": graph.digest(),
            "node_types": [
                {
                    "type": None,
                    "nodes": 5,
                    "attributes": [
                        {"name": "train_mask", "dtype": "bool", "shape": [5]},
                        {"name": "time", "dtype": "int64", "shape": [5]},
                    ],
                }
            ],
            "edge_types": [
                {
                    "type": None,
                    "edges": 8,
                    "mean_in_degree": 1.6,
                    "max_in_degree": 3,
                    "nodes_without_in_edges": 0,
                    "has_edge_ids": True,
                    "attributes": [{"name": "w", "dtype": "float32", "shape": [8, 1]}],
                }
            ],
        },
    }
    assert run(capsys, "inspect", folder).out.splitlines() == [
        f"CSCGraph: neighbors int64, digest {graph.digest()}",
        "nodes: 5; train_mask bool [5], time int64 [5]",
        "edges: 8, 1.60 a node, at most 3, 0 nodes without, own edge ids; w float32 [8, 1]",
    ]


def test_a_saved_graph_with_types(capsys, tmp_path):
    folder = saved_library(tmp_path / "g")
    found = run(capsys, "inspect", folder, "--json").json["graph"]
    assert (found["class"], found["digest"]) == ("HeteroCSCGraph", full_library().digest())
    assert [each["type"] for each in found["node_types"]] == ["author", "paper", "venue"]
    assert found["edge_types"][-1]["type"] == ["paper", "cites", "paper"]
    text = run(capsys, "inspect", folder).out
    assert "nodes of venue: 1; x float32 [1, 1]\n" in text
    assert "edges of paper:cites:paper: 3, 0.75 a node, at most 2, 2 nodes without, own edge ids\n" in text


def test_a_data_set(capsys, tmp_path):
    path = npz_file(tmp_path)
    facts = run(capsys, "inspect", path, "--json").json["dataset"]
    assert (facts["name"], facts["task"], facts["num_classes"]) == ("ring", "node_classification", 2)
    assert facts["items"] == {"train_set": 2, "validation_set": 2, "test_set": 2}
    feat = {"domain": "node", "type": None, "name": "feat", "dtype": "float32", "shape": [6, 2]}
    assert facts["features"] == [feat]
    assert facts["graph"]["edge_types"][0]["edges"] == 12
    assert [line.split() for line in run(capsys, "inspect", tmp_path).out.splitlines()[:4]] == [
        ["ring:", "node", "classification,", "2", "classes"],
        ["count", "train", "validation", "test", "features"],
        ["nodes", "6", "2", "2", "2", "feat", "float32", "[6,", "2]"],
        ["edges", "12", "-", "-", "-"],
    ]


def test_data_sets_with_types_and_of_links(capsys, tmp_path):
    facts = run(capsys, "inspect", rdf_folder(tmp_path / "rdf"), "--json").json["dataset"]
    assert facts["graph"]["class"] == "HeteroCSCGraph"
    assert len(facts["graph"]["edge_types"]) == 4
    text = done(capsys, "inspect", link_file(tmp_path / "links"))
    title, _, _, edges, *_ = text.out.splitlines()
    assert title == "talk: link prediction"
    assert edges.split()[:3] == ["edges", "20", "14"]
    assert edges.endswith("time int64 [20]")


def test_options_of_data_sets_are_passed_on(capsys, command_refuses, tmp_path):
    rdf = rdf_folder(tmp_path / "rdf")
    facts = run(capsys, "inspect", rdf, "--json", "--no-inverse-relations").json["dataset"]
    assert len(facts["graph"]["edge_types"]) == 2
    command_refuses(1, "inspect", npz_file(tmp_path), "--split", 2)
    command_refuses(1, "inspect", npz_file(tmp_path), "--normalize-features")
    assert run(capsys, "inspect", npz_file(tmp_path), "--split", 1, "--largest-component").code == 0


def test_verify_reads_everything(capsys, command_refuses, tmp_path):
    folder = saved_graph(tmp_path / "g")
    found = run(capsys, "inspect", folder, "--verify")
    assert (found.code, found.out.splitlines()[-1]) == (0, "all edges were read: they are valid")
    assert run(capsys, "inspect", folder, "--verify", "--json").json["verified"] is True
    entry = next(
        each for each in json.loads((folder / "graph.json").read_text())["arrays"] if each["kind"] == "indices"
    )
    arrays = np.load(folder / "arrays.npy", mmap_mode="r+")
    arrays[entry["offset"] :].view(entry["dtype"])[3] = 9
    arrays.flush()
    assert run(capsys, "inspect", folder).code == 0
    command_refuses(1, "inspect", folder, "--verify")
    assert run(capsys, "inspect", npz_file(tmp_path / "n"), "--verify").code == 0


def test_what_inspect_refuses(capsys, command_refuses, tmp_path):
    graph = saved_graph(tmp_path / "g")
    command_refuses(2, "inspect", graph, "--split", 0, "--largest-component")
    content = (graph / "arrays.npy").read_bytes()
    (graph / "arrays.npy").write_bytes(content[:-1])
    command_refuses(1, "inspect", graph, "--json")
    broken = ["", "[1]", "{}", '{"format": 3}', '{"format": "datapipes-hetero-csc-graph", "version": 9}']
    for header in broken:
        (graph / "graph.json").write_text(header)
        command_refuses(1, "inspect", graph)
    (graph / "graph.json").write_text("[" * 10**5)
    assert "graph.json is not a valid header: found values nested too deep" in run(capsys, "inspect", graph).err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").touch()
    command_refuses(1, "inspect", tmp_path / "other")
    command_refuses(1, "inspect", tmp_path / "other", "--json")
