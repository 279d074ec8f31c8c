"""Run the fast tests with the oldest and with the newest Python, torch and numpy, each against the wheel.

The cell `nightly` has the newest torch, released or not, that pip's indexes have.

A cell of the matrix has an environment in `.venv-matrix/`, kept until its requirements change, and the portable wheel
of its Python, kept until a file of the sdist changes. torch is installed without the libraries of CUDA. What is newest
is settled when the environment is made: delete its folder for a newer one.

Run: make matrix, or python tools/matrix.py [--python 3.11=/path/to/python]... [CELL]... [-- OPTIONS OF PYTEST]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from build_wheel import build_sdist, build_wheel, digest_of, interpreter
from ran import record
from stand_in_for_cuda import stand_in_for_cuda
from try_wheel import pins

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".venv-matrix"
SLOW = [  # processes that start and die, whole programs, and thousands of minibatches
    "tests/loader/workers",
    "tests/channel/test_shm_channel_faults.py",
    "tests/channel/test_shm_protocol.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_memory_growth.py",
]
VERSIONS = (
    "import numpy, sys, torch; print(sys.version.split()[0], 'torch', torch.__version__, 'numpy', numpy.__version__)"
)


class Cell(NamedTuple):
    """A Python, and the requirements that take the place of those of the lock files."""

    python: str
    requirements: tuple[str, ...]


CELLS = {
    "oldest": Cell(
        "3.11", ("torch==2.4.1", "torchdata==0.10.0", "numpy==1.26.4", "pandas==2.2.3", "pytz", "pyarrow==24.0.0")
    ),
    "newest": Cell("3.13", ("torch", "numpy")),
    # ".dev": torch before its release, too
    "nightly": Cell("3.13", ("torch>=2.4.dev0", "numpy", "torch-geometric", "pyarrow", "ray")),
}
RELEASED = ("oldest", "newest")


def environment(name: str, cell: Cell, python: str) -> Path:
    """Return the folder of a cell's environment; make it first if there is none with these requirements."""
    taken = {name_of(requirement) for requirement in cell.requirements}
    requirements = [*cell.requirements, *(pin for pin in pins() if name_of(pin) not in taken)]
    key = hashlib.sha256("\n".join([python, *requirements]).encode()).hexdigest()[:12]
    folder = CACHE / f"{name}-{key}"
    if not (folder / "done").exists():
        for old in CACHE.glob(f"{name}-*"):
            shutil.rmtree(old)
        subprocess.run([python, "-m", "venv", str(folder)], check=True)
        listed = folder / "requirements.txt"
        listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
        # All is listed, so nothing is lost without dependencies but the libraries of CUDA that torch's own build wants.
        pip_install(folder, "--requirement", str(listed))
        stand_in_for_cuda(next(folder.glob("lib/python*/site-packages")))
        (folder / "done").touch()
    return folder


def name_of(requirement: str) -> str:
    return re.split("[=>]", requirement)[0].lower()


def pip_install(folder: Path, *arguments: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", *arguments], check=True)


def wheel_of(sdist: Path, python: str, version: str) -> Path:
    """Return the portable wheel of an sdist for a Python; build it if the last one was of other files."""
    folder = CACHE / f"wheel-{version}"
    digest = folder / "digest"
    if not digest.exists() or digest.read_text(encoding="utf-8") != digest_of(sdist):
        shutil.rmtree(folder, ignore_errors=True)
        build_wheel(sdist, python, folder, portable=True)
        digest.write_text(digest_of(sdist), encoding="utf-8")
    return next(folder.glob("*.whl"))


def run_tests(folder: Path, sdist: Path, options: list[str]) -> int:
    """Run the tests of an sdist without its package, so that the wheel's is imported; return pytest's exit status."""
    with tempfile.TemporaryDirectory() as name:
        with tarfile.open(sdist) as archive:
            archive.extractall(name, filter="data")
        tree = next(Path(name).iterdir())
        shutil.rmtree(tree / "datapipes")
        counts = Path(name) / "counts.xml"
        command = [
            str(folder / "bin" / "python"),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={counts}",
        ]
        command += ["-m", "not alone and not full", "--numprocesses=3", "--dist=worksteal"]
        chosen = options or [f"--ignore={path}" for path in SLOW]
        data = os.environ.get("DATAPIPES_SHARED_DATA", str(ROOT.parent / "shared" / "data"))
        settings = {**os.environ, "OMP_NUM_THREADS": "1", "DATAPIPES_SHARED_DATA": data}
        status = subprocess.run([*command, *chosen], cwd=tree, env=settings).returncode
        if not counts.exists():
            return status or 1
        suite = ElementTree.parse(counts).getroot()[0]
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        if not options:
            passed = int(suite.get("tests", 0)) - int(suite.get("skipped", 0)) - failed
            record("fast tests", command[:1], f"{passed:,} passed" + (f", {failed} failed" if failed else ""))
        return status


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the fast tests in each cell of the matrix.")
    parser.add_argument("--python", action="append", default=[], metavar="VERSION=PATH", help="an interpreter")
    cells = f"{', '.join(CELLS)}; by default {' and '.join(RELEASED)}"
    parser.add_argument("cells", nargs="*", metavar="CELL", help=cells)
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:at])
    given = dict(each.split("=", 1) for each in options.python)
    sdist = build_sdist(CACHE)
    failed = []
    for name in options.cells or RELEASED:
        cell = CELLS[name]
        python = interpreter(cell.python, given)
        folder = environment(name, cell, python)
        pip_install(folder, "--force-reinstall", str(wheel_of(sdist, python, cell.python)))
        print(f"== {name}: Python, torch, numpy", flush=True)
        subprocess.run([str(folder / "bin" / "python"), "-c", VERSIONS], cwd=folder, check=True)
        if run_tests(folder, sdist, sys.argv[at + 1 :]):
            failed.append(name)
    if failed:
        raise SystemExit(f"matrix: failed in {', '.join(failed)}")


if __name__ == "__main__":
    main()
