"""Benchmarks: every stage has one, and each docstring has a question, a command and the last result."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import datapipes as dp
from datapipes.chain.functional import registered_stages

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
HELPERS = {"common", "peer_graphbolt", "typed_split"}
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
