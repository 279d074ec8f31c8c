"""What `datapipes partition` writes, prints and draws."""

import shutil
import sys

import pytest
import torch
from command_files import done, link_file, npz_file, rdf_folder, run, saved_graph, saved_library
from hetero_graphs import full_library
from scripts import run_script

import datapipes as dp
from datapipes.cli import command, partition
from datapipes.distributed import Part, Partitioner, PartitionReport
from datapipes.partition.layouts import layout_of

COSTS = ("seconds", "memory_bytes")  # differ from run to run


def without_costs(report: dict) -> dict:
    return {name: value for name, value in report.items() if name not in COSTS}


def made(capsys, tmp_path, *options, parts=2, method="range"):
    """Partition a saved graph; return what the command said, and the folder."""
    given = tmp_path / "graph"
    if not given.exists():
        saved_graph(given)
    out = tmp_path / "parts"
    return run(capsys, "partition", given, out, "--parts", parts, "--method", method, "--quiet", *options), out


def test_the_parts_are_those_of_a_partitioner(capsys, tmp_path):
    found, out = made(capsys, tmp_path, "--json")
    assert (found.code, found.err) == (0, "")
    graph = dp.CSCGraph.open(tmp_path / "graph")
    expected = Partitioner(graph, 2, tmp_path / "other", method="range").generate_partition().to_json()
    report = found.json.pop("report")
    assert without_costs(report) == without_costs(expected)
    assert {*report["seconds"]} == {*expected["seconds"]}
    assert found.json | {"report": None} == {
        "command": "partition",
        "in": str(tmp_path / "graph"),
        "out": str(out),
        "layouts": ["native", "pyg"],
        "png": None,
        "report": None,
    }
    for part in range(2):
        ours, theirs = Part.open(out, part, fingerprint=graph), Part.open(tmp_path / "other", part)
        assert torch.equal(ours.node_ids(), theirs.node_ids())
    assert (out / "META.json").exists()


def test_the_text_is_the_report_and_where_it_went(capsys, tmp_path):
    found, out = made(capsys, tmp_path)
    lines = found.out.splitlines()
    assert lines[0] == "2 parts by range: 1 of 8 edges are cut (12.5 %)"
    assert lines[1].split() == ["part", "nodes", "training", "nodes", "edges", "halo", "nodes"]
    assert lines[-1] == f"written to {out}: native and pyg layout"


def test_metis_is_the_default(capsys, tmp_path):
    saved_graph(tmp_path / "g")
    found = done(capsys, "partition", tmp_path / "g", tmp_path / "out", "--parts", 2, "--quiet", "--json")
    assert found.json["report"]["method"] == "metis"
    assert sum(found.json["report"]["nodes"]) == 5


def test_a_data_set_has_training_nodes_and_says_what_is_left_out(capsys, tmp_path):
    path = npz_file(tmp_path / "in")
    arguments = ("partition", path, tmp_path / "out", "--parts", 3, "--method", "range", "--quiet")
    found = run(capsys, *arguments, "--split", 1, "--json")
    assert found.code == 0
    assert sum(found.json["report"]["training_nodes"]) == 2
    part = Part.open(tmp_path / "out", 1)
    assert torch.equal(part.node_attributes_of(None)["y"], part.node_ids() % 2)
    assert torch.equal(part.node_attributes_of(None)["train_mask"], part.node_ids() % 3 == 2)
    links = ("partition", link_file(tmp_path / "links"), tmp_path / "out", "--parts", 2, "--method", "range", "--quiet")
    found = run(capsys, *links)
    assert found.code == 0
    assert "not in the parts: train_set, 14 links\n" in found.out


def test_graphs_with_types(capsys, tmp_path):
    saved_library(tmp_path / "g")
    options = ("--parts", 2, "--method", "random", "--seed", 3, "--quiet", "--layouts", "native")
    found = done(capsys, "partition", tmp_path / "g", tmp_path / "out", *options)
    assert "edge type" in found.out
    assert Part.open(tmp_path / "out", 0, fingerprint=full_library()).num_parts == 2
    found = run(capsys, "partition", rdf_folder(tmp_path / "rdf"), tmp_path / "o", *options, "--no-inverse-relations")
    assert found.code == 0


def with_wrong_edge_ids(folder):
    graph = dp.CSCGraph(torch.tensor([0, 1, 2]), torch.tensor([1, 0]), edge_ids=torch.tensor([0, 7]))
    graph.save(folder)
    return folder


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (rdf_folder, "the type ('entity', 'http://x/knows', 'entity') makes no name of a file; it may have no '/'"),
        (with_wrong_edge_ids, "found the id 7 among the edge ids; an edge map needs each of 0 to 1 once"),
    ],
)
def test_a_graph_that_does_not_fit_pyg_is_written_in_the_native_layout(capsys, tmp_path, make, why):
    given = ("partition", make(tmp_path / "in"), tmp_path / "out", "--parts", 2, "--method", "range", "--quiet")
    found = run(capsys, *given, "--json")
    assert (found.code, found.err, found.json["layouts"]) == (0, "", ["native"])
    assert found.json["report"]["left_out"][-1].startswith(f"PyG's layout: {why}")
    found = run(capsys, *given)
    assert f"\nnot in the parts: PyG's layout: {why}" in found.out
    assert found.out.endswith(f"\nwritten to {tmp_path / 'out'}: native layout\n")
    assert layout_of(tmp_path / "out") == {"native"}
    for asked in ("pyg", "native,pyg"):
        found = run(capsys, *given, "--layouts", asked)
        assert (found.code, found.out) == (1, "")
        assert why in found.err
        assert found.err.endswith(", or leave out PyG's layout with --layouts native.\n")


def test_layouts_are_named_in_any_order_and_the_help_says_so(capsys, tmp_path):
    found, out = made(capsys, tmp_path, "--layouts", "pyg,native", "--json")
    assert (found.code, found.err, found.json["layouts"]) == (0, "", ["native", "pyg"])
    assert Part.open(out, 1).num_parts == 2
    assert (out / "META.json").exists()
    text = " ".join(run(capsys, "partition", "--help").out.split())
    assert "native, pyg, or native,pyg for both; default: both, or native if pyg cannot hold the graph" in text


def test_every_option_reaches_the_partitioner(capsys, monkeypatch, tmp_path):
    given = {}
    report = (
        made(capsys, tmp_path)[0]
        and Partitioner(
            dp.CSCGraph.open(tmp_path / "graph"), 2, tmp_path / "other", method="range"
        ).generate_partition()
    )

    class Recorder:
        def __init__(self, data, num_parts, root, recursive, **options):
            given.update(options, data=data, num_parts=num_parts, root=root, recursive=recursive)

        def generate_partition(self) -> PartitionReport:
            return report

    monkeypatch.setattr(partition, "Partitioner", Recorder)
    options = ("--recursive", "--seed", 7, "--node-time-attr", "time", "--layouts", "pyg", "--edge-map")
    options += ("--balance", "nodes=1, edges=0.5")
    assert made(capsys, tmp_path, *options, parts=3, method="metis")[0].code == 0
    assert isinstance(given.pop("data"), dp.CSCGraph)
    assert callable(given.pop("progress"))
    assert given == {
        "num_parts": 3,
        "root": tmp_path / "parts",
        "recursive": True,
        "method": "metis",
        "node_time_attr": "time",
        "rng_seed": 7,
        "balance": {"nodes": 1.0, "edges": 0.5},
        "layouts": ("pyg",),
        "edge_map": True,
    }


@pytest.mark.parametrize(("option", "given"), [((), None), (("--edge-map",), True), (("--no-edge-map",), False)])
def test_the_edge_map_is_a_choice(capsys, tmp_path, monkeypatch, option, given):
    seen = []

    def recorder(*arguments, edge_map, **options):
        seen.append(edge_map)
        return Partitioner(*arguments, edge_map=edge_map, **options)

    monkeypatch.setattr(partition, "Partitioner", recorder)
    assert made(capsys, tmp_path, "--layouts", "native", *option)[0].code == 0
    assert seen == [given]


# --- errors


def test_what_partition_refuses(command_refuses, tmp_path):
    arguments = ("partition", saved_graph(tmp_path / "g"), tmp_path / "out")
    command_refuses(2, *arguments)
    command_refuses(2, *arguments, "--parts", "x")
    for options in (("--method", "guess"), ("--layouts", "dgl"), ("--largest-component",)):
        command_refuses(2, *arguments, "--parts", 2, *options)
    for balance in ("nodes", "edges=1,", "nodes=1,nodes=2", "node=1"):
        command_refuses(2, *arguments, "--parts", 2, "--balance", balance)
    command_refuses(1, *arguments, "--parts", 0, "--json")
    command_refuses(1, *arguments, "--parts", 6, "--json")
    for options in (("--method", "random", "--recursive"), ("--seed", -1), ("--node-time-attr", "when")):
        command_refuses(1, *arguments, "--parts", 2, *options, "--json")
    command_refuses(1, "partition", tmp_path, tmp_path / "out", "--parts", 2)  # a folder of something else
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    command_refuses(1, *arguments, "--parts", 2, "--method", "range", "--quiet")
    assert (tmp_path / "out" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("command", [("partition", "--parts", 2, "--method", "range", "--quiet"), ("convert",)])
def test_a_partition_is_no_input(capsys, command_refuses, monkeypatch, tmp_path, command):
    _, out = made(capsys, tmp_path)
    new = tmp_path / "new"
    command_refuses(2, *command, out, new)
    command_refuses(2, *command, out / "part_1", new)
    monkeypatch.chdir(out)
    command_refuses(2, *command, "book", new)
    assert not new.exists()


def test_an_older_partition_is_replaced(capsys, tmp_path):
    assert made(capsys, tmp_path, parts=3)[0].code == 0
    found, out = made(capsys, tmp_path, parts=2)
    assert found.code == 0
    assert Part.open(out, 1).num_parts == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph", "parts"]


def test_without_pymetis_the_extra_is_named(command_refuses, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pymetis", None)
    command_refuses(1, "partition", saved_graph(tmp_path / "g"), tmp_path / "out", "--parts", 2, "--quiet")
    assert not (tmp_path / "out").exists()


INTERRUPTED = """
import contextlib, os, signal, sys
from datapipes.cli import partition
from datapipes.cli.main import main

@contextlib.contextmanager
def ctrl_c_during(command, *, quiet):
    def say(text, done, total):
        if text.startswith({text!r}):
            signal.raise_signal(signal.SIGINT)
    yield say

partition.progress_of = ctrl_c_during
os.chdir({folder!r})
sys.exit(main("partition graph parts --parts 2 --json".split()))
"""


@pytest.mark.parametrize("text", ["make the undirected graph", "count edges", "write part 1 for PyG", "write part 0"])
def test_ctrl_c_leaves_the_older_partition_as_it_was(capsys, tmp_path, text):
    _, out = made(capsys, tmp_path)
    before = {each: each.read_bytes() for each in out.rglob("*") if each.is_file()}
    ended = run_script(INTERRUPTED.format(folder=str(tmp_path), text=text))
    assert ended == (130, "", "datapipes partition: interrupted\n")
    assert {each: each.read_bytes() for each in out.rglob("*") if each.is_file()} == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["graph", "parts"]


# --- the picture


def size_of_png(content: bytes) -> tuple[int, int]:
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_picture_is_a_png_and_replaces_a_file(capsys, tmp_path, parts):
    picture = tmp_path / "cut.png"
    picture.write_text("an older picture")
    found, out = made(capsys, tmp_path, "--png", picture, parts=parts)
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[-2:] == [f"written to {out}: native and pyg layout", f"drawn in {picture}"]
    assert min(size_of_png(picture.read_bytes())) > 300
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cut.png", "graph", "parts"]


def test_a_graph_without_edges_has_a_picture(capsys, tmp_path):
    none = torch.zeros(2, 0, dtype=torch.int64)
    dp.CSCGraph.from_edge_index(none, 20).save(tmp_path / "graph")
    found, _ = made(capsys, tmp_path, "--png", tmp_path / "cut.png", "--json", parts=20)
    assert found.code == 0
    assert found.json["png"] == str(tmp_path / "cut.png")
    assert size_of_png((tmp_path / "cut.png").read_bytes())


DRAWS = """
import os, sys
from datapipes.cli.main import main
import matplotlib

def settings():  # asking for the backend would choose one
    return {{name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}}

os.chdir({folder!r})
before = settings()
code = main([*"partition graph parts --parts 2 --method range --quiet --png cut.png".split()])
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
sys.exit(code)
"""


def test_drawing_changes_no_setting_of_matplotlib(tmp_path):
    saved_graph(tmp_path / "graph")
    ended = run_script(DRAWS.format(folder=str(tmp_path)))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_picture_that_cannot_be_made_is_refused_before_the_work(capsys, monkeypatch, tmp_path):
    for wrong in (tmp_path / "no" / "cut.png", tmp_path):
        found, out = made(capsys, tmp_path, "--png", wrong)
        assert (found.code, found.out) == (2, "")
        assert f"--png: {wrong} cannot be written: it must be a file" in found.err
        assert not out.exists()
    found, out = made(capsys, tmp_path, "--png", tmp_path / "cut.png", parts=257)
    assert (found.code, found.out) == (2, "")
    assert "--png shows up to 256 parts, --parts is 257" in found.err
    for name in ("cut.jpg", "cut", "png"):
        found, out = made(capsys, tmp_path, "--png", tmp_path / name)
        assert (found.code, found.out) == (2, "")
        assert f"--png: {tmp_path / name} must end in .png" in found.err
        assert not out.exists()
    assert made(capsys, tmp_path, "--png", tmp_path / "cut.PNG")[0].code == 0
    shutil.rmtree(out)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found, out = made(capsys, tmp_path, "--png", tmp_path / "cut.png")
    assert (found.code, found.out) == (1, "")
    assert "--png needs matplotlib, which cannot be imported" in found.err
    assert "pip install matplotlib (in the extra [viz] of" in found.err
    assert not out.exists()


def test_a_picture_in_the_place_of_the_partition_is_refused_before_the_work(capsys, tmp_path):
    assert made(capsys, tmp_path)[0].code == 0
    (tmp_path / "link").symlink_to("parts")
    for wrong in ("parts/cut.png", "parts/part_0/cut.png", "link/cut.png", "link/../parts/cut.png"):
        found, out = made(capsys, tmp_path, "--png", tmp_path / wrong, parts=3)
        assert (found.code, found.out) == (2, "")
        assert f"--png: {tmp_path / wrong} is in the folder of the partition {out}, which may hold nothing" in found.err
        assert Part.open(out, 0).num_parts == 2
    given = (
        "partition",
        tmp_path / "graph",
        "--parts",
        2,
        "--method",
        "range",
        "--quiet",
        "--png",
        tmp_path / "new.png",
    )
    for place in ("new.png", "new.png/parts"):
        found = run(capsys, *given, tmp_path / place)
        assert (found.code, found.out) == (2, "")
        assert "is in the folder of the partition" in found.err
    assert not (tmp_path / "new.png").exists()
    assert made(capsys, tmp_path, parts=3)[0].code == 0


def test_a_picture_that_fails_leaves_the_older_one_and_the_parts(capsys, monkeypatch, tmp_path):
    def fail(figure, path, **options):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    import matplotlib.figure

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    picture = tmp_path / "cut.png"
    picture.write_text("an older picture")
    found, out = made(capsys, tmp_path, "--png", picture)
    assert (found.code, found.out) == (1, "")
    assert picture.read_text() == "an older picture"
    assert Part.open(out, 0).num_parts == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cut.png", "graph", "parts"]


# --- progress


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_lines_are_few(capsys, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(command, "time", clock)
    with partition.progress_of("partition", quiet=False) as say:
        for moved, text, done, total in [
            (0, "cut", 0, 4),
            (1, "cut", 1, 4),
            (0.5, "write part 0", 0, 0),
            (1, "write part 1", 0, 0),
            (9, "write part 2", 5, 0),
            (1, "write part 3", 6, 12),
        ]:
            clock.now += moved
            say(text, done, total)
    assert capsys.readouterr() == (
        "",
        "datapipes partition: cut: 0 %\ndatapipes partition: write part 1\ndatapipes partition: write part 3: 50 %\n",
    )


def test_quiet_says_nothing(capsys):
    with partition.progress_of("partition", quiet=True) as say:
        say("cut", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_bars(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with partition.progress_of("partition", quiet=False) as say:
        say("cut", 1, 2)
        say("cut", 2, 2)
        say("write part 0", 0, 0)
        say("write part 1", 1, 4)
    out, err = capsys.readouterr()
    assert out == ""
    assert "cut:  50%|" in err
    assert "\rwrite part 0\r" in err  # only the text where the total is not known
    assert "write part 1:  25%|" in err
    assert err.endswith("\r")
    assert "it" not in err.replace("write", "")  # no unit, not even when a bar begins


def test_a_terminal_without_tqdm_shows_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with partition.progress_of("partition", quiet=False) as say:
        say("cut", 1, 2)
    assert capsys.readouterr() == ("", "datapipes partition: cut: 50 %\n")
