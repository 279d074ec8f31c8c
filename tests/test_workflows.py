"""The workflows of .github/: every step is a make target or a pinned action, and they try what the docs promise.

That they are valid, and safe, is for `make check`: check-jsonschema and zizmor.
"""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".github" / "workflows"
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PINNED = re.compile(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


def jobs() -> dict[str, tuple[dict, dict]]:
    """Return {workflow/job: (the workflow, the job)}."""
    workflows = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))}
    assert {path.name for path in FOLDER.iterdir()} == {
        f"{name}.yml" for name in ("checks", "release", "site", "weekly")
    }
    return {
        f"{name}/{of}": (workflow, job) for name, workflow in workflows.items() for of, job in workflow["jobs"].items()
    }


def commands() -> dict[str, list[str]]:
    """Return {workflow/job: what its steps run}."""
    return {name: [step["run"] for step in job["steps"] if "run" in step] for name, (_, job) in jobs().items()}


def test_every_command_is_a_target_of_make():
    targets = {*re.search(r"^\.PHONY: (.*) \$\(BENCHMARKS\)$", MAKEFILE, re.MULTILINE)[1].split()}
    assert targets <= {*re.findall(r"^([\w-]+):(?!=)", MAKEFILE, re.MULTILINE)}
    wrong = {name: runs for name, runs in commands().items() if not {*runs} <= {f"make {target}" for target in targets}}
    assert wrong == {}
    used = {run for runs in commands().values() for run in runs}
    assert used >= {"make check", "make test", "make docs", "make matrix", "make test-all"}


def test_every_variable_of_a_job_is_one_of_make_or_pip():
    names = {name for workflow, job in jobs().values() for name in {**workflow.get("env", {}), **job.get("env", {})}}
    assert names - {"PIP_EXTRA_INDEX_URL"} == {"CELLS", "MACHINES", "TAG"}
    assert all(f"({name})" in MAKEFILE or f"$${name}" in MAKEFILE for name in names - {"PIP_EXTRA_INDEX_URL"})


def test_every_action_is_pinned_to_a_commit_with_its_version():
    lines = [
        line.strip("- ") for path in FOLDER.glob("*.yml") for line in path.read_text().splitlines() if "uses:" in line
    ]
    assert len(lines) > 10
    assert [line for line in lines if not PINNED.match(line)] == []
    assert len({line.split("@")[0] for line in lines}) == len({*lines}), "an action with two versions"


def test_the_pythons_machines_and_cells_are_those_of_the_makefile_and_the_tools():
    pythons = re.search(r"^PYTHONS \?= (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    own = {name: job for name, (_, job) in jobs().items()}
    assert own["checks/test"]["strategy"]["matrix"]["python"] == pythons
    set_up = next(step for step in own["release/wheels"]["steps"] if "setup-python" in step.get("uses", ""))
    assert set_up["with"]["python-version"].split() == pythons
    machines = [row["machine"] for row in own["release/wheels"]["strategy"]["matrix"]["include"]]
    assert machines == ["x86_64", "aarch64"]
    cells = re.findall(r'^    "(\w+)": Cell\(', (ROOT / "tools/matrix.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert [*own["checks/versions"]["strategy"]["matrix"]["cell"], own["weekly/nightly"]["env"]["CELLS"]] == cells


def test_only_what_was_tried_is_published():
    runs = commands()["release/wheels"]
    assert runs == ["make tag", "make wheels", "make try-wheels"]
    publish = jobs()["release/publish"][1]
    assert publish["needs"] == "wheels"
    assert "run" not in {key for step in publish["steps"] for key in step}
    assert publish["permissions"] == {"id-token": "write", "attestations": "write"}
