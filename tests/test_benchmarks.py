"""Benchmarks: every stage has one, and each docstring has a question, a command and the last result."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import datapipes as dp
from datapipes.chain.functional import registered_stages

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HELPERS = {"common", "edge_values", "peer_graphbolt", "typed_split"}
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
@pytest.mark.parametrize("stage", STAGES)
def test_every_registered_stage_is_measured(stage):
    assert measured_by(stage), f"no benchmark's docstring names {stage}: measure it, and say so there"


@needs_sources
@pytest.mark.parametrize("stage", [dp.ItemSampler, dp.DistributedItemSampler, dp.DataLoader])
def test_every_stage_that_starts_or_ends_a_chain_is_measured(stage):
    assert measured_by(stage.__name__)


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


# --- the one run on a GPU


# What gpu_all.sh looks for in the figures, and in the names of tests: where it comes from.
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
    "tests/loader/test_on_a_gpu.py": ["test_10_000_small_minibatches", "test_200_full_minibatches"],
}


@needs_sources
@pytest.mark.parametrize("file", sorted(LOOKED_FOR))
def test_the_run_on_a_gpu_looks_for_what_is_there(file):
    script = (BENCHMARKS / "gpu_all.sh").read_text(encoding="utf-8")
    source = (BENCHMARKS.parent / file).read_text(encoding="utf-8")
    assert file.startswith("tests/") or file in script
    for text in LOOKED_FOR[file]:
        assert text in source
    for text in re.findall(r"[\w ,]*(?:ratio to|hidden share)[\w ,]*|test_\w+_minibatches", script):
        assert any(text.strip(" ,") in other for texts in LOOKED_FOR.values() for other in texts), text


SHARES = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gpu_copy import share_beside

def event(stream, category, begin, end):
    return {"ph": "X", "cat": category, "name": category, "ts": begin, "dur": end - begin, "args": {"stream": stream}}

model = [event(7, "kernel", 10 * i, 10 * i + 10) for i in range(4)]
copies = [event(20, "gpu_memcpy", 30, 50), event(20, "gpu_memcpy", 45, 60)]
gather = event(16, "kernel", 0, 10)
others = [{"ph": "i"}, {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 99, "args": {}}]
print(json.dumps([share_beside(each) for each in ([*model, *copies, gather, *others], model, [])]))
"""


@needs_sources
def test_the_share_of_copies_that_run_beside_the_model_is_that_of_the_trace():
    command = [sys.executable, "-c", SHARES, str(BENCHMARKS)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(shown.stdout) == [0.5, None, None]  # 20 of 40 microseconds


OF_A_GPU = ["uva", "gpu_copy", "gpu_end_to_end"]
ALL = "import runpy, sys\nfor file in sys.argv[1:]: sys.argv = [file]; runpy.run_path(file, run_name='__main__')"


@needs_sources
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_the_benchmarks_of_one_say_so_and_end_well():
    files = [str(BENCHMARKS / f"{name}.py") for name in OF_A_GPU]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n{ALL}", *files]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    lines = [f"{name}: there is no CUDA device here, so nothing is measured" for name in OF_A_GPU]
    assert shown.stdout.splitlines() == lines
