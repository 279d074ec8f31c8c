"""Install a wheel into an empty environment, and run the golden digests away from the source tree.

The environment gets the wheel, what the wheel says it needs, at the versions of the lock files, and pytest. Then the
wheel is found by its name in its folder, where no index is asked. The tests are those of the sdist.

Run: make package, or python tools/try_wheel.py WHEEL SDIST [PYTHON]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from email.parser import BytesParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements-run.lock", "requirements.lock")
TESTS = ("tests/test_golden.py", "tests/support/twin.py")
WHAT = """
import datapipes
from datapipes.base.errors import DISTRIBUTION
from importlib.metadata import distribution, packages_distributions

print(datapipes.__file__)
print(distribution(DISTRIBUTION).name, *packages_distributions()["datapipes"])
"""


def try_wheel(wheel: Path, sdist: Path, python: str) -> None:
    """Raise CalledProcessError if the wheel does not install, import or give the golden digests."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
        run = str(folder / "venv" / "bin" / "python")
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pins()), encoding="utf-8")
        pip = [run, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(constraints)]
        subprocess.run([*pip, str(wheel), "pytest"], check=True)
        name = name_of(sdist)
        by_name = ["--no-index", "--find-links", str(wheel.parent), "--no-deps", "--force-reinstall"]
        subprocess.run([*pip, *by_name, name], check=True)
        tests = folder / "tests"
        tests.mkdir()
        for test in TESTS:
            (tests / Path(test).name).write_bytes(file_of(sdist, test))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        what = subprocess.run([run, "-c", WHAT], cwd=tests, env=environment, check=True, stdout=subprocess.PIPE)
        place, names = what.stdout.decode().splitlines()
        if not place.startswith(str(folder)):
            raise RuntimeError(f"the package was imported from {place}, not from the new environment")
        if set(names.split()) != {name}:
            raise RuntimeError(f"the package was installed as {names}; the sdist's name is {name}")
        pytest = [run, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
        subprocess.run([*pytest, Path(TESTS[0]).name], cwd=tests, env=environment, check=True)


def pins() -> list[str]:
    """Return the pinned requirements of the lock files."""
    lines = [line for lock in LOCKS for line in (ROOT / lock).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "==" in line]


def name_of(sdist: Path) -> str:
    """Return the name of the distribution of an sdist."""
    about = BytesParser().parsebytes(file_of(sdist, "PKG-INFO"), headersonly=True)
    return str(about["Name"])


def file_of(sdist: Path, name: str) -> bytes:
    """Return the content of a file of an sdist."""
    with tarfile.open(sdist) as archive:
        content = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/{name}")
        assert content is not None
        return content.read()


if __name__ == "__main__":
    try_wheel(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else sys.executable)
