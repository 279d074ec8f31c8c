"""Install wheels into empty environments, and run the golden digests away from the source tree.

An environment gets the wheel, what the wheel says it needs, at the versions of the lock files, and pytest. Then the
wheel is found by its name in its folder, where no index is asked. The tests are those of the sdist in that folder. The
Python is the one that the wheel is for, as tools/build_wheel.py finds it, unless one is given. With `--extras` each
extra is tried too, in an environment that has its packages beside those of the first.

With `--without-cuda` torch is installed without the libraries of CUDA, where the index has no build of torch without
them. The wheel of another machine is tried by qemu, in Debian's Python of that machine and with torch 2.6, whose builds
for aarch64 need no CUDA; that takes apt-get, dpkg and qemu-user-static, and installs nothing.

Run: make package, make try-wheels, or python tools/try_wheel.py [--without-cuda] [--python PYTHON] WHEEL...
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tarfile
import tempfile
import zipfile
from email.parser import BytesParser
from pathlib import Path

from build_wheel import HERE, interpreter
from ran import record

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements-run.lock", "requirements.lock")
TESTS = (
    "tests/test_golden.py",
    "tests/golden.json",
    "tests/support/golden_graphs.py",
    "tests/support/twin.py",
    "tests/support/twin_layer.py",
    "tests/support/twin_trees.py",
)
SUITES = {"3.11": "bookworm", "3.13": "trixie"}  # of Debian, by the Python that it has
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
EMULATED_PINS = {"torch": "torch==2.6.0", "numpy": "numpy==2.2.6"}
# What the wheel asks for and pytest, with what these need; of the lock files.
NEEDED = {"numpy", "torch", "torchdata", "pytest"} | {
    "filelock",
    "fsspec",
    "jinja2",
    "markupsafe",
    "mpmath",
    "networkx",
}
NEEDED |= {"sympy", "typing_extensions", "iniconfig", "packaging", "pluggy", "pygments"}
NEEDED |= {"exceptiongroup", "tomli"}  # for Python 3.10
WHAT = """
import datapipes
from datapipes.base.errors import DISTRIBUTION
from importlib.metadata import distribution, packages_distributions

print(datapipes.__file__)
print(distribution(DISTRIBUTION).name, *packages_distributions()["datapipes"])
"""


def try_wheel(wheel: Path, python: str | None, *, without_cuda: bool, extras: list[str], keep: bool) -> None:
    """Raise CalledProcessError if the wheel does not install, import or give the golden digests."""
    sdist = next(wheel.parent.glob("*.tar.gz"))
    version, machine = version_of(wheel), machine_of(wheel)
    python = python or interpreter(version, {})
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if machine == HERE:
            run, environment = installed(wheel, name_of(sdist), python, folder, without_cuda=without_cuda)
        else:
            run, environment = emulated(wheel, version, machine, python, folder)
        tests = folder / "tests"
        tests.mkdir()
        for test in TESTS:
            (tests / Path(test).name).write_bytes(file_of(sdist, test))
        what = subprocess.run([*run, "-c", WHAT], cwd=tests, env=environment, check=True, stdout=subprocess.PIPE)
        place, names = what.stdout.decode().splitlines()
        if not place.startswith(str(folder)):
            raise RuntimeError(f"the package was imported from {place}, not from the new environment")
        if set(names.split()) != {name_of(sdist)}:
            raise RuntimeError(f"the package was installed as {names}; the sdist's name is {name_of(sdist)}")
        run_digests(run, tests, environment)
        for extra in extras:
            with_extra = installed_extra(wheel, extra, Path(run[0]), folder)
            run_digests([str(with_extra)], tests, environment)
            command = [str(with_extra), str(Path(run[0]).with_name("datapipes")), "doctor", "--extra", extra]
            subprocess.run(command, cwd=tests, env=environment, check=True)
        if keep:
            what = "golden digests, alone and with each extra" if extras else "golden digests"
            record(what, run, "passed", environment)


def run_digests(run: list[str], tests: Path, environment: dict[str, str]) -> None:
    pytest = [*run, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    subprocess.run([*pytest, Path(TESTS[0]).name], cwd=tests, env=environment, check=True)


def extras_of(wheel: Path) -> list[str]:
    """Return the names of a wheel's extras."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = BytesParser().parsebytes(archive.read(metadata), headersonly=True)
    return [name for name in about.get_all("Provides-Extra", []) if name != "dev"]


def installed_extra(wheel: Path, extra: str, base: Path, folder: Path) -> Path:
    """Return the Python of an environment with what `extra` needs, beside all that the environment of `base` has."""
    environment = folder / extra
    subprocess.run([str(base), "-m", "venv", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (below,) = base.parents[1].glob("lib/python*/site-packages")
    (site / "below.pth").write_text(f"{below}\n", encoding="utf-8")
    run = environment / "bin" / "python"
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins()), encoding="utf-8")
    pip = [str(run), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", str(constraints)]
    subprocess.run([*pip, f"{wheel}[{extra}]"], check=True)
    return run


Place = tuple[list[str], dict[str, str]]  # the command of a Python that has the wheel, and its environment


def installed(wheel: Path, name: str, python: str, folder: Path, *, without_cuda: bool) -> Place:
    """Install a wheel into a new environment, by its path and by its name."""
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    run = str(folder / "venv" / "bin" / "python")
    pip = [run, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if without_cuda:
        from stand_in_for_cuda import stand_in_for_cuda

        subprocess.run([*pip, "--no-deps", *pins(NEEDED), str(wheel)], check=True)
        stand_in_for_cuda(next(folder.glob("venv/lib/python*/site-packages")))
    else:
        constraints = folder / "constraints.txt"
        constraints.write_text("\n".join(pins()), encoding="utf-8")
        subprocess.run([*pip, "--constraint", str(constraints), str(wheel), "pytest"], check=True)
    by_name = ["--no-index", "--find-links", str(wheel.parent), "--no-deps", "--force-reinstall"]
    subprocess.run([*pip, *by_name, name], check=True)
    return [run], {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def emulated(wheel: Path, version: str, machine: str, python: str, folder: Path) -> Place:
    """Unpack Debian's Python of another machine, and the wheel with what it needs beside it."""
    root, site = folder / "root", folder / "site"
    _unpack(root, SUITES[version], ARCHITECTURES[machine], [f"python{version}", "libstdc++6"])
    tags = [f"--platform=manylinux_{glibc}_{machine}" for glibc in ("2_28", "2_27", "2_26", "2_17")]
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    pip += ["--only-binary=:all:", f"--python-version={version}", *tags, f"--target={site}"]
    needed = [pin for pin in pins(NEEDED) if _named(pin) not in EMULATED_PINS]
    subprocess.run([*pip, *needed, *EMULATED_PINS.values(), str(wheel)], check=True)
    run = [f"qemu-{machine}-static", "-L", str(root), f"{root}/usr/bin/python{version}"]
    return run, {**os.environ, "PYTHONPATH": str(site)}


def _unpack(root: Path, suite: str, architecture: str, packages: list[str]) -> None:
    """Unpack Debian's packages, and those they depend on, into a folder; the lists of this machine stay as they are."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (root / "apt" / folder).mkdir(parents=True)
    question = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    site = subprocess.check_output(question, text=True).split()[0]
    sources = root / "apt" / "sources.list"
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [signed-by={key}] {site} {suite} main\n", encoding="utf-8")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache": root / "apt" / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State": root / "apt" / "state",
        "Dir::State::status": "/dev/null",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "install", "--download-only", "-y", "--no-install-recommends", *packages], check=True)
    for package in root.glob("apt/cache/archives/*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    if not (root / "lib").exists():  # newer packages leave this link to the system's first one
        (root / "lib").symlink_to("usr/lib")


def version_of(wheel: Path) -> str:
    """Return the version of Python that a wheel is for."""
    tag = wheel.stem.split("-")[2]
    return f"{tag[2]}.{tag[3:]}"


def machine_of(wheel: Path) -> str:
    """Return the processor that a wheel is for."""
    return next(name for name in ARCHITECTURES if wheel.stem.endswith(name))


def pins(names: set[str] | None = None) -> list[str]:
    """Return the pinned requirements of the lock files: those of these packages, or all."""
    lines = [line for lock in LOCKS for line in (ROOT / lock).read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "==" in line and (names is None or _named(line) in names)]


def _named(requirement: str) -> str:
    return requirement.partition("=")[0].lower()


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
    parser = argparse.ArgumentParser(description="Install wheels and run the golden digests.")
    parser.add_argument("--without-cuda", action="store_true", help="install torch without the libraries of CUDA")
    parser.add_argument("--record", action="store_true", help="keep in tools/ran.json that they passed")
    parser.add_argument("--extras", action="store_true", help="try each extra too, in an environment of its own")
    parser.add_argument("--python", help="the interpreter; without one, that of the wheel's version is looked for")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    options = parser.parse_args()
    for each in options.wheels:
        extras = extras_of(each) if options.extras and machine_of(each) == HERE else []
        print(f"== {each.name}", flush=True)
        if machine_of(each) != HERE and version_of(each) not in SUITES:
            print(f"not tried: no Debian has Python {version_of(each)} for {machine_of(each)}")
            continue
        try_wheel(each.resolve(), options.python, without_cuda=options.without_cuda, extras=extras, keep=options.record)
