"""What `datapipes inspect` says about partitions of either layout."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from command_files import done, run, saved_graph, saved_library

import datapipes as dp
from datapipes.distributed import Partitioner, PartitionReport
from datapipes.partition.native.manifest import with_own_hash

COUNTS = ("num_parts", "nodes", "edges", "halo_nodes", "cut_edges", "edge_matrix", "edges_by_type")


def partitioned(tmp_path, kind="plain", name="parts", **options):
    """Write a partition; return its folder and the report."""
    folder = tmp_path / kind
    if not folder.exists():
        (saved_graph if kind == "plain" else saved_library)(folder)
    graph = (dp.CSCGraph if kind == "plain" else dp.HeteroCSCGraph).open(folder)
    given = {"method": "random", **options}
    return tmp_path / name, Partitioner(graph, 2, tmp_path / name, **given).generate_partition()


def test_a_partition_has_the_report_from_when_it_was_made(capsys, tmp_path):
    root, report = partitioned(tmp_path, node_time_attr="time")
    found = done(capsys, "inspect", root, "--json")
    facts = found.json["partition"]
    assert (found.json["kind"], facts["layouts"], facts["num_parts"]) == ("partition", ["native", "pyg"], 2)
    assert facts["fingerprint"] == dp.CSCGraph.open(tmp_path / "plain").digest()
    assert (facts["node_types"], facts["edge_types"], facts["node_time_attr"]) == ([[None, 5]], [[None, 8]], "time")
    assert {name: facts["report"][name] for name in COUNTS} == {name: report.to_json()[name] for name in COUNTS}
    assert facts["bytes"] == sum(each.stat().st_size for each in root.rglob("*") if each.is_file())
    text = run(capsys, "inspect", root).out
    assert text.startswith(f"a partition in native and pyg layout, {facts['bytes'] / 1024:.1f} KiB\n")
    assert f"graph {facts['fingerprint']}, partition {facts['partition_id']}\n" in text
    assert "each edge has the 'time' of its source\n2 parts by random: " in text


@pytest.mark.parametrize("kind", ["plain", "library"])
@pytest.mark.parametrize("layouts", [("native",), ("pyg",), ("native", "pyg")])
def test_verify_counts_and_checks_every_layout(capsys, tmp_path, kind, layouts):
    if kind == "library" and "pyg" in layouts:
        graph = dp.HeteroCSCGraph.open(saved_library(tmp_path / "full"))
        relations = {key: (graph.relation(key).indptr, graph.relation(key).indices) for key in graph.edge_types}
        dp.HeteroCSCGraph(relations, graph.num_nodes).save(tmp_path / "library")  # PyG needs edge ids from 0
    root, report = partitioned(tmp_path, kind, layouts=layouts)
    found = done(capsys, "inspect", root, "--verify", "--json")
    facts = found.json["partition"]
    assert facts["layouts"] == sorted(layouts)
    counted, expected = PartitionReport.from_json(facts["report"]), report
    for name in ("nodes", "edges", "halo_nodes", "cut_edges", "edge_matrix"):
        assert getattr(counted, name) == getattr(expected, name)
    assert dict(counted.edges_by_type) == dict(expected.edges_by_type)
    assert run(capsys, "inspect", root, "--verify").out.endswith(
        "every file was read and checked: they fit each other\n"
    )


def test_without_verify_pygs_layout_says_how_large_it_is(capsys, tmp_path):
    root, _ = partitioned(tmp_path, layouts=("pyg",))
    facts = run(capsys, "inspect", root, "--json").json["partition"]
    assert (facts["report"], facts["fingerprint"], facts["num_parts"]) == (None, None, 2)
    assert run(capsys, "inspect", root).out.endswith("2 parts of 5 nodes and 8 edges; --verify counts what is cut\n")


def test_a_changed_byte_is_found_by_verify(capsys, command_refuses, tmp_path):
    root, _ = partitioned(tmp_path)
    path = root / "part_1" / "arrays.npy"
    content = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    content[-1] ^= 1
    path.write_bytes(content.tobytes())
    assert run(capsys, "inspect", root).code == 0
    command_refuses(1, "inspect", root, "--verify", "--json")


def test_a_missing_file_is_found_by_verify(command_refuses, tmp_path):
    root, _ = partitioned(tmp_path)
    for name in ("book/book.json", "part_0/graph.pt", "part_1/part.json", "node_map.pt"):
        (root / name).rename(tmp_path / "away")
        command_refuses(1, "inspect", root, "--verify")
        (tmp_path / "away").rename(root / name)


def test_what_inspect_refuses_of_a_partition(command_refuses, tmp_path):
    root, _ = partitioned(tmp_path)
    command_refuses(2, "inspect", root, "--split", 0)
    command_refuses(2, "inspect", root / "part_0")
    (root / "part_1").rename(root / "part1")
    command_refuses(2, "inspect", root / "part1")
    (root / "part1").rename(root / "part_1")
    meta = json.loads((root / "META.json").read_text())
    (root / "META.json").write_text(json.dumps({**meta, "num_parts": 3}))
    command_refuses(1, "inspect", root, "--verify")
    other, _ = partitioned(tmp_path, name="other", method="range")
    for name in ("META.json", "node_map.pt", "edge_map.pt"):
        shutil.copy(other / name, root / name)
    command_refuses(1, "inspect", root, "--verify")
    (root / "partition.json").write_text("{")
    command_refuses(1, "inspect", root)


def retold(root, **changes):
    """Change the report in partition.json, whose own hash is right again."""
    header = json.loads((root / "partition.json").read_text())
    del header["hash"]
    header["report"].update(changes)
    (root / "partition.json").write_bytes(with_own_hash(header))


def test_what_a_header_says_reaches_the_terminal_with_escapes(capsys, tmp_path):
    root, _ = partitioned(tmp_path)
    retold(root, method="\x1b[31mred\nedges: 0", left_out=["\x9bK"])
    found = done(capsys, "inspect", root)
    assert r"2 parts by \x1b[31mred\nedges: 0: " in found.out
    assert r"not in the parts: \x9bK" in found.out
    retold(root, training_nodes="\x1b[31m")
    found = run(capsys, "inspect", root)
    assert (found.code, found.out) == (1, "")
    assert found.err.removesuffix("\n").isprintable()


def test_names_in_a_saved_graph_reach_the_terminal_with_escapes(capsys, tmp_path):
    dp.HeteroCSCGraph({}, {"a\x1b[31m\nb": 2}, node_attributes={"a\x1b[31m\nb": {"\r": torch.arange(2)}}).save(
        tmp_path / "g"
    )
    found = done(capsys, "inspect", tmp_path / "g")
    assert r"nodes of a\x1b[31m\nb: 2; \r int64 [2]" in found.out.split("\n")


def test_a_report_of_another_partition_is_refused(command_refuses, tmp_path):
    root, _ = partitioned(tmp_path)
    header = (root / "partition.json").read_bytes()
    one_part = {"num_parts": 1, "nodes_by_type": [[None, [5]]], "edges": [8], "halo_nodes": [0]}
    for changes in (
        {**one_part, "edge_matrix": None, "training_nodes": None},
        {"nodes_by_type": [[None, [10**18, 1]]]},
        {"nodes_by_type": [["a", [3, 2]]]},
        {"edges_by_type": [[["a", "r", "b"], 8, 0]], "edge_matrix": None},
        {"edges_by_type": [[None, 8, 24]]},
    ):
        (root / "partition.json").write_bytes(header)
        retold(root, **changes)
        command_refuses(1, "inspect", root)


def test_verify_compares_the_report_with_the_parts(capsys, command_refuses, tmp_path):
    root, report = partitioned(tmp_path)
    for nodes, edges in (([5, 0], report.edges), (report.nodes, [8, 0])):
        counts = {"nodes_by_type": [[None, list(nodes)]], "edges": list(edges)}
        retold(root, **counts, edge_matrix=None, halo_nodes=[0, 0], training_nodes=None)
        assert run(capsys, "inspect", root).code == 0
        command_refuses(1, "inspect", root, "--verify")


def test_verify_counts_what_a_partition_of_before_there_were_reports_does_not_say(capsys):
    old = Path(__file__).parents[1] / "corpus" / "folders" / "plain-parts"
    assert "--verify counts" in run(capsys, "inspect", old).out
    found = run(capsys, "inspect", old, "--verify")
    assert found.code == 0
    assert "--verify counts" not in found.out
