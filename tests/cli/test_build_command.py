"""What `datapipes build` writes."""

import numpy as np
import pytest
import torch
from command_files import done
from remote_files import place_of

import datapipes as dp


@pytest.fixture
def files(tmp_path):
    random = np.random.default_rng(0)
    edges = random.integers(0, 20, (2, 100))
    np.save(tmp_path / "edges.npy", edges)
    np.save(tmp_path / "w.npy", random.random((100, 2), dtype=np.float32))
    np.save(tmp_path / "x.npy", random.random((20, 3), dtype=np.float32))
    return tmp_path


def test_tables_at_a_uri(capsys, files):
    pytest.importorskip("pyarrow", reason="tables need pyarrow")
    rows = "".join(f"{src},{dst}\n" for src, dst in np.load(files / "edges.npy").T.tolist())
    with place_of("http", files / "served") as place:
        place.put("year=2020/e.csv", rows.encode())
        uri = f"{place.uri}/year=2020/e.csv"
        for name, edges, nodes in (("one", [uri], [20]), ("typed", [f"a:to:a={uri}"], ["a=20"])):
            options = [each for pair in (("--edges", edges), ("--nodes", nodes)) for each in (pair[0], *pair[1])]
            done(capsys, "build", files / name, *options)
    expected = dp.CSCGraph.from_edge_index(np.load(files / "edges.npy"), 20)
    assert torch.equal(dp.CSCGraph.open(files / "one").indices, expected.indices.int())
    assert dp.HeteroCSCGraph.open(files / "typed").num_edges == {("a", "to", "a"): 100}


def read(path):
    return torch.from_numpy(np.load(path))


def test_edges_of_a_file_become_a_graph_that_opens(capsys, files):
    out = files / "new" / "out"
    options = ["--nodes", 20, "--edge-ids", "--index-dtype", "int64", "--max-memory", "16MB"]
    attributes = ["--node-attribute", f"x={files / 'x.npy'}", "--edge-attribute", f"w={files / 'w.npy'}"]
    for _ in range(2):  # a second call finds the graph complete, as after a kill at its very end
        found = done(capsys, "build", out, "--edges", files / "edges.npy", *options, *attributes)
    values = {kind: {name: read(files / f"{name}.npy")} for kind, name in (("node", "x"), ("edge", "w"))}
    expected = dp.CSCGraph.from_edge_index(
        np.load(files / "edges.npy"), 20, node_attributes=values["node"], edge_attributes=values["edge"]
    )
    graph = dp.CSCGraph.open(out, verify=True)
    assert graph.digest() == expected.digest()
    assert torch.equal(graph.edge_attributes["w"], expected.edge_attributes["w"])
    assert torch.equal(graph.node_attributes["x"], expected.node_attributes["x"])
    assert found.out.splitlines()[0] == f"{out} is the graph"
    assert "edges: 100, 5.00 a node" in found.out


def test_a_graph_with_types(capsys, files):
    types = [f"a:to:b={files / 'edges.npy'}", f"b:of:a={files / 'edges.npy'}"]
    edges = [option for each in types for option in ("--edges", each)]
    attributes = ["--node-attribute", f"a/x={files / 'x.npy'}", "--edge-attribute", f"b:of:a/w={files / 'w.npy'}"]
    found = done(capsys, "build", files / "out", *edges, "--nodes", "a=20", "--nodes", "b=21", *attributes, "--json")
    graph = dp.HeteroCSCGraph.open(files / "out")
    assert graph.num_nodes == {"a": 20, "b": 21}
    assert graph.num_edges == {("a", "to", "b"): 100, ("b", "of", "a"): 100}
    assert found.json["graph"]["digest"] == graph.digest()
    assert [*graph.edge_attributes["b", "of", "a"]] == ["w"]


def test_what_build_refuses(command_refuses, files):
    arguments = ("build", files / "out", "--edges", files / "edges.npy", "--nodes")
    command_refuses(2, *arguments, "many")
    command_refuses(2, *arguments[:4])
    command_refuses(2, *arguments, 20, "--tables", files)
    command_refuses(2, "build", files / "out")
    command_refuses(1, "build", files / "out", "--tables", files / "none.csv")
    command_refuses(2, *arguments, "a=20")
    command_refuses(2, *arguments, 20, "--nodes", 21)
    command_refuses(2, *arguments, 20, "--node-attribute", "x.npy")
    command_refuses(2, *arguments, 20, "--node-attribute", "x=1", "--node-attribute", "x=2")
    command_refuses(1, *arguments, 5)
    command_refuses(1, *arguments, 20, "--max-memory", "much")
    command_refuses(1, *arguments, 20, "--edge-attribute", "w=none.npy")
    assert sorted(path.name for path in files.iterdir()) == ["edges.npy", "w.npy", "x.npy"]
