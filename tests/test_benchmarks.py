"""Benchmarks: every stage has one, and each docstring has a question, a command and the last result."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scripts import run_script

from datapipes.chain.functional import registered_stages

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HELPERS = {"common", "consumers", "draw", "edge_values", "gpu_tests", "make_graph"}
HELPERS |= {"peer_graphbolt", "table", "typed_split"}
DOCSTRINGS = {
    path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for path in sorted(BENCHMARKS.glob("*.py"))
    if path.stem not in HELPERS
}

STAGES = sorted(name for name, cls in registered_stages().items() if cls.__module__.startswith("datapipes."))

needs_sources = pytest.mark.skipif(not DOCSTRINGS, reason="the benchmarks are not beside the tests")


def measured_by(word: str) -> list[str]:
    return [name for name, text in DOCSTRINGS.items() if re.search(rf"\b{word}\b", text)]


@needs_sources
@pytest.mark.parametrize("stage", [*STAGES, "ItemSampler", "DistributedItemSampler", "DataLoader"])
def test_every_stage_is_measured(stage):
    assert measured_by(stage), f"no benchmark's docstring names {stage}: measure it, and say so there"


@needs_sources
@pytest.mark.parametrize("stage", ["transform", "prefetch", "copy_to"])
def test_stages_that_only_carry_are_measured_in_a_whole_chain(stage):
    assert "end_to_end" in measured_by(stage)


@needs_sources
@pytest.mark.parametrize("name", sorted(DOCSTRINGS))
def test_a_benchmark_asks_a_question_and_gives_its_command_and_its_last_result(name):
    text = DOCSTRINGS[name]
    assert "?" in text.splitlines()[0]
    assert f"Run: python benchmarks/{name}.py" in " ".join(text.split())
    result = text[text.index("\nResult (") :]
    assert re.search(r"commits? \w{7}", " ".join(result.split())), "a result names the commit that it was measured on"
    assert re.search(r"\d", result)


@needs_sources
def test_make_bench_runs_every_benchmark():
    command = ["make", "--dry-run", "bench"]
    shown = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, check=True, timeout=60)
    assert set(re.findall(r"benchmarks/(\w+)\.py", shown.stdout)) == set(DOCSTRINGS)


# --- the pieces for a machine with a GPU, and for one of many cores

SCRIPTS = ["gpu_all.sh", "many_cores.sh"]
MINUTES_OF_A_CALL, MINUTES_IN_ALL = 10, 40  # at most, on such a machine


def plan_of(script):
    """Return the minutes of each piece, from what `--plan` prints."""
    command = ["bash", str(BENCHMARKS / script), "--plan"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    plan = {name: int(minutes) for name, minutes in re.findall(r"^\d+ (\w+) +(\d+) min  \w", shown, re.MULTILINE)}
    assert shown.splitlines()[-1] == f"all: {sum(plan.values())} min"
    return plan


@needs_sources
def test_a_piece_ends_before_its_call_does_and_all_fit_into_the_minutes_of_a_machine():
    plans = [plan_of(script) for script in SCRIPTS]
    assert all(0 < minutes < MINUTES_OF_A_CALL for plan in plans for minutes in plan.values())
    assert all(sum(plan.values()) <= MINUTES_IN_ALL for plan in plans)


@needs_sources
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_piece_of_a_plan_is_there(script):
    functions = re.findall(r"^piece_(\w+)\(\)", (BENCHMARKS / script).read_text(encoding="utf-8"), re.MULTILINE)
    assert functions == list(plan_of(script))
    assert len(functions) >= 3


@needs_sources
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_piece_that_is_not_there_is_refused_and_no_argument_shows_the_plan(script):
    for given, expected in ((["--try", "tea"], "no piece 'tea'; there are all "), ([], "all: ")):
        command = ["bash", str(BENCHMARKS / script), *given]
        shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert shown.returncode == 2
        assert expected in shown.stdout + shown.stderr


PIECES = """#!/usr/bin/env bash
#   1 first     2 min  two steps
#   2 second    1 min  a step
NEEDED=(json)
. "$BENCHMARKS/pieces.sh"
piece_first() {
    step breaks 30 bash -c 'echo broken; exit 3'
    step holds 30 bash -c 'echo "{\\"a (s)\\": 2.0}" >"$0"/holds.json' "$steps"
}
piece_second() { step whole 30 true; }
run_pieces "$@"
"""
# Stands for a Python in which torch is imported: says that nothing is missing, and that there is no GPU.
QUICK_PYTHON = '#!/bin/sh\ncase "$1" in *table.py) exec "$REAL" "$@" ;; esac\n'


@needs_sources
def test_a_step_that_fails_leaves_the_others_and_the_exit_code_says_so(tmp_path):
    for name, text in (("pieces", PIECES), ("python", QUICK_PYTHON)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    folders = {name: str(tmp_path / name.lower()) for name in ("KEPT", "OUT", "GRAPHS")}
    environment = {**os.environ, **folders, "PYTHON": str(tmp_path / "python"), "REAL": sys.executable, "BUILD": "no"}
    environment["BENCHMARKS"] = str(BENCHMARKS)
    codes = []
    for given in (["1"], ["second"], ["all"]):
        command = ["bash", str(tmp_path / "pieces"), *given]
        shown = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
        codes.append(shown.returncode)
    assert codes == [1, 0, 1]
    assert "broken" in shown.stdout, "the last lines of a step that failed are shown"
    for folder in ("kept", "out"):
        found = json.loads((tmp_path / folder / "figures.json").read_text(encoding="utf-8"))
        steps = {
            name: (step["code"], step["figures"]) for piece in found.values() for name, step in piece["steps"].items()
        }
        assert steps == {"breaks": (3, {}), "holds": (0, {"a (s)": 2.0}), "whole": (0, {})}
    assert "broken" in (tmp_path / "out" / "log.txt").read_text(encoding="utf-8")


def a_table(folder, piece, *given):
    """Return the table after `piece` left its folder, and what was kept."""
    for each in ("kept", "out"):
        (folder / each).mkdir(exist_ok=True)
    paths = [f"--{each}={folder / each}" for each in ("work", "kept", "out")]
    command = [sys.executable, str(BENCHMARKS / "table.py"), piece, *paths, *given]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    text = (folder / "out" / "table.txt").read_text(encoding="utf-8")
    assert text == (folder / "kept" / "table.txt").read_text(encoding="utf-8")
    return [" ".join(line.split()) for line in text.splitlines()]


def leave(folder, steps, **files):
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "steps.txt").write_text("".join(f"{name} 7 {code}\n" for name, code in steps.items()), encoding="utf-8")
    for name, figures in files.items():
        (work / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")
    return work


@needs_sources
def test_the_table_says_what_is_met_and_a_step_that_failed_leaves_the_rows_of_the_others(tmp_path):
    key = "time of a step, ratio to on the GPU already"
    leave(
        tmp_path,
        {"uva": 0, "gpu_end_to_end": 124, "gpu_copy": 1},
        uva={"UVA, rows of 512 B, 16384 threads: ratio to a pinned copy": 0.91},
        gpu_end_to_end={f"UVA, float32: {key}": 1.3, "UVA, float16: failed": "MemoryError: no"},
    )
    shown = a_table(tmp_path, "copies", "--device=A", "--sources=5")
    assert shown[0] == "copies: A, sources 5; uva 7 s, gpu_end_to_end 7 s (no time left), gpu_copy 7 s (exit code 1)"
    assert "UVA, rows of 512 B, 8 SMs' worth of threads (16,384) >= 0.85 x met 0.910" in shown
    assert "training step with overlap: UVA, float32 <= 1.10 x NOT MET 1.300" in shown
    assert "training step with overlap: UVA, float16 <= 1.10 x owed not measured" in shown
    assert "gpu_end_to_end: UVA, float16 failed MemoryError: no" in shown
    assert "gpu_copy: gpu_copy not measured" in shown


@needs_sources
def test_the_table_has_the_outcome_of_each_test_also_of_one_that_was_not_run(tmp_path):
    work = leave(tmp_path, {"tests": 1})
    (work / "tests.txt").write_text("tests/a.py::one\ntests/a.py::two[x y]\ntests/a.py::three", encoding="utf-8")
    log = "tests/a.py::one PASSED\ntests/a.py::one ERROR [ 50%]\ntests/a.py::two[x y] PASSED\n"
    (work / "tests_0.log").write_text(log, encoding="utf-8")
    shown = a_table(tmp_path, "tests")
    assert "all tests marked gpu pass NOT MET 1 passed, 1 error, 1 not run" in shown
    assert "ERROR: tests/a.py::one" in shown


@needs_sources
def test_the_table_keeps_the_other_pieces_and_replaces_its_own(tmp_path):
    leave(
        tmp_path,
        {"threads": 0},
        threads={"sampling, 2 threads (M edges/s)": 80.0, "sampling, 2 threads: ratio to 1": 1.9},
    )
    a_table(tmp_path, "threads", "--tried")
    parts = {"parts, cache 1MB (minibatches/s)": 30.0, "parts, cache 1MB, ratio to undivided": 0.5}
    leave(tmp_path, {"parts_1": 0, "parts_2": 0}, parts_1=parts, parts_2={"parts, cache 1MB (minibatches/s)": 45.0})
    a_table(tmp_path, "parts")
    leave(tmp_path, {})
    shown = a_table(tmp_path, "training")
    assert "tried only: these figures mean nothing" in shown
    assert "sampling, 2 threads 80 M edges/s; ratio to 1 1.9" in shown
    assert "1 parts: parts, cache 1MB 30 minibatches/s; ratio to 1 part 1; ratio to undivided 0.5" in shown
    assert "2 parts: parts, cache 1MB 45 minibatches/s; ratio to 1 part 1.5" in shown
    assert "training not measured" in shown
    leave(tmp_path, {"parts_1": 0}, parts_1={"undivided (minibatches/s)": 50.0})
    again = a_table(tmp_path, "parts")
    assert "1 parts: undivided 50 minibatches/s; ratio to 1 part 1" in again
    assert not any("cache" in line for line in again)


# What the table looks for in the figures, and in the names of tests: where it comes from.
LOOKED_FOR = {
    "benchmarks/uva.py": ["threads: ratio to a pinned copy", "B: ratio to a device copy", "CAPS = (512,"],
    "benchmarks/gpu_end_to_end.py": [
        "time of a step, ratio to on the GPU already",
        '("UVA", "features on the GPU", "CPU fetch and copy")',
    ],
    "benchmarks/gpu_copy.py": [
        "hidden share, of what can be hidden",
        "hidden share in the trace",
        '"copy": ',
        '"ids and UVA": ',
    ],
    "benchmarks/gpu_captured.py": [
        ": captured step, ratio to alone",
        ": captured step, ratio to the eager model alone",
        " wide: ",
        '"features on the GPU"',
        '"float16 by UVA"',
    ],
    "benchmarks/distributed.py": [", ratio to undivided", " (minibatches/s)"],
    "tests/loader/test_on_a_gpu.py": ["test_10_000_small_minibatches", "test_200_full_minibatches"],
}


@needs_sources
@pytest.mark.parametrize("file", sorted(LOOKED_FOR))
def test_the_table_looks_for_what_is_there(file):
    scripts = "".join((BENCHMARKS / script).read_text(encoding="utf-8") for script in SCRIPTS)
    table = (BENCHMARKS / "table.py").read_text(encoding="utf-8")
    source = (BENCHMARKS.parent / file).read_text(encoding="utf-8")
    assert file.startswith("tests/") or file in scripts
    for text in LOOKED_FOR[file]:
        assert text in source
    for text in re.findall(r"[\w ,]*(?:ratio to [^1]|hidden share)[\w ,]*|test_\w+_minibatches", table):
        assert any(text.strip(" ,") in other for texts in LOOKED_FOR.values() for other in texts), text


SHARES = """
import json, sys
sys.path.insert(0, {benchmarks!r})
from gpu_copy import share_beside

def event(stream, category, begin, end):
    times = dict(ts=begin, dur=end - begin)
    return dict(ph="X", cat=category, name=category, args=dict(stream=stream), **times)

model = [event(7, "kernel", 10 * i, 10 * i + 10) for i in range(4)]
copies = [event(20, "gpu_memcpy", 30, 50), event(20, "gpu_memcpy", 45, 60)]
gather = event(16, "kernel", 0, 10)
others = [dict(ph="i"), dict(ph="X", cat="cpu_op", name="aten::add", ts=0, dur=99, args=dict())]
print(json.dumps([share_beside(each) for each in ([*model, *copies, gather, *others], model, [])]))
"""


@needs_sources
def test_the_share_of_copies_that_run_beside_the_model_is_that_of_the_trace():
    shown = run_script(SHARES.format(benchmarks=str(BENCHMARKS)))
    assert json.loads(shown.stdout) == [0.5, None, None], shown.stderr  # 20 of 40 microseconds


OF_A_GPU = ["uva", "gpu_copy", "gpu_end_to_end", "products_size"]
ALL = """
import runpy, sys
sys.path.insert(0, {benchmarks!r})
for name in {names}:
    sys.argv = [name]
    runpy.run_path(f"{benchmarks}/{{name}}.py", run_name="__main__")
"""


@needs_sources
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_the_benchmarks_of_one_say_so_and_end_well():
    shown = run_script(ALL.format(benchmarks=str(BENCHMARKS), names=OF_A_GPU))
    lines = [f"{name}: there is no CUDA device here, so nothing is measured" for name in OF_A_GPU]
    assert (shown.returncode, shown.stdout.splitlines()) == (0, lines), shown.stderr
