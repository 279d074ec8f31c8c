"""The sdist: it holds every file of the repository and nothing else, and refuses systems where nothing would build."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
IMPORTS = "import pybind11.setup_helpers, runpy, setuptools, sys"  # before sys.platform says what is not so
GENERATED = {"PKG-INFO", "setup.cfg"}

needs_sources = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the sources are not beside the tests")


def run_setup(*arguments: str, system: str = sys.platform) -> subprocess.CompletedProcess[str]:
    """Run setup.py as if on `system`."""
    code = f"{IMPORTS}; sys.platform = {system!r}; runpy.run_path('setup.py', run_name='__main__')"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def git_files(*options: str) -> set[str]:
    """Return the files that git lists and that are there; skip where these files are no checkout."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("git knows which files there are; this is no checkout, or git is not installed")
    command = ["git", "ls-files", "-z", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


@needs_sources
def test_the_sdist_holds_every_file_and_nothing_that_git_ignores(tmp_path):
    tracked = git_files()
    child = run_setup("-q", "egg_info", "--egg-base", str(tmp_path), "sdist", "--dist-dir", str(tmp_path))
    assert child.returncode == 0, child.stderr
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert tracked - packed == set(), "name them in MANIFEST.in"
    extra = packed - tracked - git_files("--others", "--exclude-standard") - GENERATED
    assert {name for name in extra if ".egg-info/" not in name} == set(), "exclude them in MANIFEST.in"


@needs_sources
@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_setup_refuses_other_systems_in_one_sentence(system):
    child = run_setup("--version", system=system)
    assert child.returncode == 1
    assert child.stderr == (
        f"datapipes needs Linux, and this is {system}: its channels use memfd and futexes. "
        "Use a Linux machine, a container, or WSL 2.\n"
    )
