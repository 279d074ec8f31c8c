"""What `datapipes bench` says; how fast anything is, no test asks."""

import html
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from amounts import ranked
from command_files import done, link_file, npz_file, rdf_folder, run, saved_graph, saved_library
from pipelines import BOUND_S
from scripts import run_program

import datapipes as dp
from datapipes.base import sizes
from datapipes.cli import bench, measuring, peer

FAST = ("--seconds", 0.001, "--workers", 0, "--batch-size", 2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(measuring, "BUFFER_BYTES", 2**20)
    monkeypatch.setattr(measuring, "READS", 2**8)
    monkeypatch.setattr(measuring, "ROUNDS", 1)


def numbers_in(figures: dict) -> list[float]:
    return [each for row in figures.values() for each in row.values() if each is not None]


def test_the_figures_of_a_saved_graph_as_json_and_as_a_page(capsys, tmp_path):
    folder, page = saved_graph(tmp_path / "<b>&g"), tmp_path / "page.html"
    found = done(capsys, "bench", folder, *FAST, "--json", "--html", page)
    values = found.json
    assert (values["graph"], values["nodes"], values["edges"], values["seeds"]) == (str(folder), 5, 8, 5)
    assert values["features"] == ["node: made float32 [5, 100]"]
    assert values["minibatch"]["edges"] > 0
    assert {"first_disk_bytes", "again_seconds"} <= {*values["first_minibatches"]}
    kinds = [
        "memcpy_gb_per_s",
        "lines_ns",
        "lines_of_the_graph_ns",
        "sampling_ns_per_edge",
        "sampling_million_edges_per_s",
    ]
    kinds += ["gather_gb_per_s", "index_select_gb_per_s", "gather_float16_gb_per_s", "gather_int8_gb_per_s"]
    assert [*values["figures"]] == [*kinds, "channel_gb_per_s", "hops_us"]
    assert all(each > 0 for each in numbers_in(values["figures"]))
    mapped = "num_workers=0, mmap=False"
    others = [f"{mapped}, {each}" for each in ("int32 neighbors", "stored_as='float16'", "stored_as='int8'")]
    assert [*values["minibatches_per_s"]] == ["num_workers=0", mapped, *others]
    assert values["bottleneck"]["of"] == "num_workers=0"
    assert values["advice"][0] == "Stay with num_workers=0."
    assert values["left_out"] == []
    text = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;&amp;g" in text
    assert "<b>&g" not in text
    assert html.escape(values["advice"][1], quote=False).replace("'", "&#39;") in text
    assert not re.search("https?:|src=|href=|url\\(", text)


def test_a_data_set_with_types_as_text_and_what_does_not_fit(capsys, monkeypatch, tmp_path):
    def refuse(where, what, num_bytes, remedy):
        if "neighbors" in what:
            raise MemoryError(f"{where}: {what}: none is left.")

    monkeypatch.setattr(measuring, "check_memory", refuse)
    found = done(capsys, "bench", rdf_folder(tmp_path), *FAST, "--fanouts", "2,-1", "--feature-dim", 3)
    lines = found.out.splitlines()
    assert lines[1].startswith("3 nodes, 6 edges, neighbors int64; ")
    assert "1 of 1 seeds a minibatch, fanouts [2, -1]: " in lines[2]
    assert "gather of features; limit: memcpy of as many bytes (GB/s)" in found.out
    assert "int32 neighbors  " not in found.out
    assert lines[-1] == "left out: int32 neighbors: bench: a copy of the neighbors: none is left."
    assert any(line.startswith("* Minibatches in an epoch: 1, so few that ") for line in lines)


@pytest.mark.full
@pytest.mark.parametrize("files", [npz_file, link_file, saved_library], ids=["features", "links", "types"])
def test_workers_and_inputs_of_every_kind(capsys, tmp_path, files):
    found = done(capsys, "bench", files(tmp_path), "--seconds", 0.001, "--workers", 2, "--batch-size", 2, "--json")
    workers = [f"num_workers={count}, worker_method='{how}'" for count in (1, 2) for how in ("thread", "process")]
    assert [*found.json["minibatches_per_s"]][-4:] == workers
    assert found.json["left_out"] == []


def test_what_bench_refuses(command_refuses, monkeypatch, tmp_path):
    monkeypatch.setattr(measuring.Made, "of", None)  # nothing is measured
    graph = saved_graph(tmp_path / "g")
    command_refuses(2, "bench", graph, "--batch-size", 0)
    command_refuses(2, "bench", graph, "--seconds", "nan")
    command_refuses(2, "bench", graph, "--workers", -1)
    command_refuses(2, "bench", graph, "--feature-dim", 0)
    command_refuses(2, "bench", graph, "--fanouts", "3,x")
    command_refuses(2, "bench", graph, "--fanouts=-2")
    command_refuses(2, "bench", graph, "--html", tmp_path)
    command_refuses(2, "bench", graph, "--html", tmp_path / "no" / "page.html")
    command_refuses(2, "bench", graph, "--split", 0)
    command_refuses(1, "bench", tmp_path / "missing", "--json")


def test_what_is_no_graph_with_seeds(capsys, command_refuses, tmp_path):
    run(capsys, "partition", saved_graph(tmp_path / "g"), tmp_path / "p", "--parts", 2, "--method", "fennel", "--quiet")
    command_refuses(2, "bench", tmp_path / "p")
    dp.CSCGraph(torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).save(tmp_path / "none")
    command_refuses(2, "bench", tmp_path / "none")
    dp.CSCGraph(torch.zeros(4, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)).save(tmp_path / "alone")
    command_refuses(1, "bench", tmp_path / "alone", *FAST)


def test_features_that_do_not_fit_are_refused_before_they_are_made(command_refuses, monkeypatch, tmp_path):
    monkeypatch.setattr(sizes, "UNCHECKED_BYTES", 0)
    monkeypatch.setattr(sizes._core, "memory_left", lambda: (1999, "the test"))
    monkeypatch.setattr(bench, "TensorFeature", None)
    command_refuses(1, "bench", saved_graph(tmp_path / "g"), "--json")


def test_columns_of_floats_are_features(capsys, tmp_path):
    graph = dp.CSCGraph.open(saved_graph(tmp_path / "g"))
    graph.node_attributes |= {"x": torch.ones(5, 2), "y": torch.ones(5), "z": torch.ones(5, 3, dtype=torch.int64)}
    assert [*measuring.features_of(graph)] == [("node", None, "x")]


# --- advice, of figures that are made up


def advice_of(rounds, *, rates=None, cost=None) -> tuple[str, list[str]]:
    graph = dp.CSCGraph.from_edge_index(torch.tensor([[0, 1], [1, 0]]))
    setting = measuring.Setting(graph, dp.ItemSet(5), {}, 1, [1])
    cost = {"first_disk_bytes": 0.0, "first_seconds": 4.0, "again_disk_bytes": 0.0, "again_seconds": 1.0} | (cost or {})
    made = measuring.Made([None] * 2, {}, cost)
    return bench._advice({"sampling 1": 1.0, "sampling all": 2.0} | (rates or {}), rounds, setting, made)


def test_advice_names_workers_only_if_they_pay_in_all_rounds_but_one():
    name = "num_workers=2, worker_method='process'"
    rounds = {"num_workers=0": [10.0] * 5, name: [12.0, 12.0, 9.0, 13.0, 12.0]}
    assert advice_of(rounds)[0] == name
    said = f"Give {name}: 1.20 (0.90 to 1.30) times as many minibatches/s as num_workers=0."
    assert advice_of(rounds)[1][0] == said
    for unsteady in ([12.0, 12.0, 9.0, 13.0, 9.0], [10.4] * 5):
        fastest, advice = advice_of({**rounds, name: unsteady})
        assert fastest == "num_workers=0"
        assert advice[0].startswith(f"Stay with num_workers=0: workers do not surely pay; {name} makes 1.")


def test_advice_compares_a_stored_form_with_the_graph_in_memory():
    rounds = {"num_workers=0": [10.0], "num_workers=0, mmap=False": [20.0]}
    rounds |= {
        "num_workers=0, mmap=False, int32 neighbors": [20.0],
        "num_workers=0, mmap=False, stored_as='int8'": [25.0],
    }
    advice = advice_of(rounds)[1]
    assert "Read the graph into memory, CSCGraph.open(path, mmap=False): 2.00 (2.00 to 2.00) times as" in advice[-4]
    assert (
        "It is not surely faster to store neighbors as int32, graph.with_index_dtype(torch.int32): 1.00 (" in advice[-3]
    )
    assert advice[-3].endswith(" MB less.")
    assert "Store float32 features rounded, TensorFeature(rows, stored_as='int8'): 1.25 (" in advice[-2]


@pytest.mark.alone
@pytest.mark.parametrize(
    ("gain", "said"), ranked([(1.5, "Leave torch.set_num_threads at 2"), (1.0, "More threads")], 1)
)
def test_advice_on_threads(gain, said):
    with measuring.threads(2):
        advice = advice_of({"num_workers=0": [1.0]}, rates={"sampling all": gain})[1]
    assert advice[1].startswith(said)
    assert advice[1].endswith(f"sampling on 2 threads is {gain:.2f} times as fast as on one.")


def test_advice_tells_what_came_from_the_disk():
    assert "disk" not in str(advice_of({"num_workers=0": [1.0]}))
    for again, remedy in ((0.0, "Read the files once before training."), (9e6, "Give the machine more memory.")):
        cost = {"first_disk_bytes": 1e7, "again_disk_bytes": again}
        advice = advice_of({"num_workers=0": [1.0]}, cost=cost)[1]
        said = "read 10.0 MB from the disk and took 2000.0 ms each, 500.0 ms when repeated. "
        assert advice[-1] == f"Not all was in memory: the first 2 minibatches {said}{remedy}"


# --- Ctrl-C

CTRL_C = """
import multiprocessing, signal, sys
from datapipes.cli import measuring
from datapipes.cli.main import main

measuring.BUFFER_BYTES, measuring.ROUNDS = 2**20, 1
rate, alternate = measuring.rate, measuring.alternate

def interrupted(work, seconds):
    work()
    if len(multiprocessing.active_children()) > 0:
        print("running")
        signal.raise_signal(signal.SIGINT)
    return 1.0

def alternated(sides, what, *rest):
    measuring.rate = interrupted if what == {what!r} else rate
    return alternate(sides, what, *rest)

measuring.alternate = alternated
if __name__ == "__main__":
    code = main(["bench", {folder!r}, "--seconds", "0.001", "--workers", "1"])
    print(multiprocessing.active_children())
    sys.exit(code)
"""


@pytest.mark.full
@pytest.mark.parametrize("what", ["kernels", "loaders"])
def test_ctrl_c_leaves_no_process(tmp_path, what):
    program = tmp_path / "program.py"
    program.write_text(CTRL_C.format(folder=str(saved_graph(tmp_path / "g")), what=what))
    ended = run_program(program, folder=tmp_path, timeout_s=BOUND_S)
    assert ended == (130, "running\n[]\n", "datapipes bench: interrupted\n")


@pytest.mark.full
def test_a_program_without_a_guard_is_told(tmp_path):
    given = str(saved_graph(tmp_path / "g"))
    program = tmp_path / "program.py"
    program.write_text(
        f"from datapipes.cli.main import main\nassert main(['bench', {given!r}, '--seconds', '0.001']) == 1\n"
    )
    ended = run_program(program, folder=tmp_path, timeout_s=BOUND_S)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (0, "", 1)
    assert "and would run line 2 of" in ended.stderr
    assert "or run it from a shell." in ended.stderr


# --- beside a peer

ANSWERS = """
import json, sys, pathlib
folder, work = sys.argv[1:]
job = json.loads((pathlib.Path(folder) / "job.json").read_text())
files = {path.name for path in pathlib.Path(folder).iterdir()}
assert files == {"indptr.npy", "indices.npy", "job.json", "seeds.npy", *(f"{name}.npy" for name in job["features"])}
for line in sys.stdin:
    print({"sample": 2e6, "gather": 3e9, "load": 4}[work], 0, 2.0, 0.1, flush=True)
"""


@pytest.fixture
def peer_program(monkeypatch, tmp_path):
    """A function that gives `bench` another program in the place of GraphBolt's."""

    def set_program(text: str) -> None:
        (tmp_path / "peer.py").write_text(text)
        monkeypatch.setattr(peer, "PROGRAM", tmp_path / "peer.py")
        monkeypatch.setattr(peer, "environment", lambda python: Path(sys.executable))

    return set_program


def test_a_peer_is_measured_beside_us_in_the_same_run(capsys, tmp_path, peer_program):
    peer_program(ANSWERS)
    arguments = ("bench", saved_graph(tmp_path / "g"), *FAST, "--peer", "graphbolt", "--html", tmp_path / "page.html")
    figures = done(capsys, *arguments, "--json").json["peer"]
    rates = {
        "sample and compact, one thread": 1.0,
        "gather features, one thread": 1.5,
        "the whole chain, no workers": 2,
    }
    assert {what: row[f"{peer.NAME}, as installed"] for what, row in figures.items()} == rates
    for row in figures.values():
        assert row["times keeps memory"] == pytest.approx([row["datapipes"] / row[f"{peer.NAME}, keeps memory"]] * 3)
    text = done(capsys, *arguments).out
    assert re.search(r"^the whole chain, no workers \(minibatches/s\) +\S+ +2 +\S+ \(", text, re.MULTILINE)
    assert f"datapipes {dp.__version__}, torch {torch.__version__}" in text
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert peer.NAME in page
    assert "the whole chain, no workers" in page


def test_a_peer_that_ends_ends_the_command(command_refuses, tmp_path, peer_program):
    peer_program("import sys; sys.exit('no library of this name')")
    command_refuses(1, "bench", saved_graph(tmp_path / "g"), *FAST, "--peer", "graphbolt")


def test_what_bench_refuses_of_peers(command_refuses, monkeypatch, tmp_path):
    graph = saved_graph(tmp_path / "g")
    command_refuses(2, "bench", graph, "--peer", "dgl")
    command_refuses(2, "bench", graph, *FAST, "--peer-python", sys.executable)
    command_refuses(2, "bench", saved_library(tmp_path / "t"), *FAST, "--peer", "graphbolt")
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3 7\n")
    old.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    for python in ("./nothing", "./python"):
        command_refuses(2, "bench", graph, *FAST, "--peer", "graphbolt", "--peer-python", python)


def test_a_peer_needs_room_for_its_copies(command_refuses, monkeypatch, tmp_path):
    graph = saved_graph(tmp_path / "g")
    monkeypatch.setattr(peer, "check_memory", partial(check_memory_of, 1000))
    command_refuses(1, "bench", graph, *FAST, "--peer", "graphbolt")


def check_memory_of(left: int, where: str, content: str, num_bytes: int, remedy: str) -> None:
    assert num_bytes > left
    raise MemoryError(f"{where}: {content} needs {num_bytes} bytes; {left} are left by the test. {remedy}")


def test_the_environment_of_a_peer_is_made_once_from_pinned_wheels(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    commands = []

    def run(command, **_):
        commands.append(command)
        if command[2] == "venv":
            Path(command[3]).mkdir(parents=True)
        elif fails:
            raise subprocess.CalledProcessError(1, command)

    process = SimpleNamespace(
        run=run, check_output=lambda *_, **__: "3 11\n", SubprocessError=subprocess.SubprocessError
    )
    monkeypatch.setattr(peer, "subprocess", process)
    fails = True
    with pytest.raises(RuntimeError, match=r"^GraphBolt 2\.1\.0 cannot be installed; the messages above say why\."):
        peer.environment(None)
    fails = False
    python = peer.environment(None)
    assert [command[:3] for command in commands[2:]] == [[sys.executable, "-m", "venv"], [str(python), "-m", "pip"]]
    assert commands[3][-len(peer.PINS) :] == peer.PINS
    assert all("==" in pin for pin in peer.PINS)
    assert peer.environment(None) == python
    assert len(commands) == 4
