"""`datapipes doctor`: what keeps datapipes from working on this machine, or from being fast, and what to do.

The script `datapipes` runs this file by its path and does not import the package, so it needs nothing but Python:
torch or the C++ core may be what is broken. Packages are imported in processes of their own, since an import can end
its process. Nothing on the machine is changed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import resource
import runpy
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.metadata import distributions
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[1]
# The newest versions that the tests have run with: those of the lock files.
TESTED = {
    "duckdb": "2.0",
    "fsspec": "2026.9",
    "numpy": "2.4",
    "pyarrow": "26.0",
    "pymetis": "2025.2",
    "python": "3.13",
    "ray": "2.60",
    "torch": "2.13",
    "torch-geometric": "2.8",
    "torchdata": "0.11",
    "triton": "3.7",
}
_MODULES = {"pyyaml": "yaml", "pytorch-frame": "torch_frame", "torch-geometric": "torch_geometric"}
_IMPORT_S = 120.0
_SHARED_BYTES, _MEMORY_BYTES, _DESCRIPTORS = 2**29, 2**31, 1024  # fewer are few
_SLOW = {  # values of variables that look for faults, and make all slow
    "CUDA_LAUNCH_BLOCKING": "1",
    "MALLOC_CHECK_": "[1-9].*",
    "MALLOC_PERTURB_": "[1-9].*",
    "PYTHONMALLOC": ".*debug",
}
_ASK_TORCH = """
import json, torch
error = ""
try:
    torch.cuda.init()
except Exception as raised:
    error = str(raised).splitlines()[0]
print(json.dumps([torch.version.cuda or torch.version.hip or "", error]))
"""


class Finding(NamedTuple):
    """What is wrong, and what to do; `is_fault` is False for what may be well."""

    fault: str
    remedy: str
    is_fault: bool = True


class Requirement(NamedTuple):
    """A package with its least version, the first that is too new ("" if there is none), and the extra that needs it.

    The extra is "" for what every installation needs.
    """

    name: str
    minimum: str
    below: str
    extra: str


Facts = dict[str, Any]


def examine(wanted: Iterable[str] = (), root: str = "/", path: list[str] | None = None) -> tuple[list[Finding], Facts]:
    """Return what is wrong with this machine, and the facts that were read, as JSON values.

    Args:
        wanted: extras that must work; others need to where their first package is installed.
        root: the folder that contains proc, sys and dev.
        path: the folders where packages are installed; by default those of this Python.
    """
    facts: Facts = {"system": platform.platform(), "processors": len(os.sched_getaffinity(0))}
    findings = [*_of_packages(facts, {*wanted}, sys.path if path is None else path), *_of_memory(facts, root)]
    findings += [*_of_limits(facts, root), *_of_settings(facts, root), *_of_gpu(facts, root)]
    return findings, facts


def _of_packages(facts: Facts, wanted: set[str], path: list[str]) -> Iterator[Finding]:
    own = _normal(runpy.run_path(str(PACKAGE / "base" / "errors.py"))["DISTRIBUTION"])
    installed, needed = {"python": platform.python_version()}, []
    for distribution in distributions(path=path):
        try:
            name, version = _normal(distribution.metadata["Name"]), distribution.version or ""
        except (TypeError, ValueError, KeyError):  # no name, or broken: what pip leaves when it is interrupted
            continue
        if name not in installed:  # the first of a name is the one that Python imports
            installed[name] = version
            needed += [*map(_requirement, distribution.requires or ())] if name == own else []
    if not needed:
        yield Finding(f"{own} is not installed, so nobody knows what it needs", "Install a wheel or the checkout.")
    extras = list(dict.fromkeys(package.extra for package in needed if package.extra not in ("", "dev")))
    owners: dict[str, str] = {}  # {package: extra}: whoever has the package uses the extra
    for extra in extras:
        owners.setdefault(next(package.name for package in needed if package.extra == extra), extra)
    for extra in wanted - {*extras}:
        yield Finding(f"there is no extra {extra!r}", f"Name one of {', '.join(extras)}.")
    have = {"", *wanted, *(extra for name, extra in owners.items() if name in installed)}
    used = [package for package in needed if package.extra in have]
    missing = []
    for name, minimum, below in dict.fromkeys(package[:3] for package in used):
        users = [package.extra for package in used if package[:3] == (name, minimum, below)]
        for_whom = "datapipes itself" if "" in users else f"[{'], ['.join(users)}]"
        remedy = f"Run pip install '{name}>={minimum}{below and f',<{below}'}'."
        fault = ""
        if name not in installed:
            missing.append(name)
            fault = f"{name} is not installed; it is needed for {for_whom}"
        elif _numbers(installed[name]) < _numbers(minimum):
            fault = f"{name} is {installed[name]}, older than {minimum}, which is needed for {for_whom}"
        elif below and _numbers(installed[name]) >= _numbers(below):
            fault = f"{name} is {installed[name]}, too new: {for_whom} needs one below {below}"
        if fault:
            yield Finding(fault, remedy, is_fault=not wanted.union({""}).isdisjoint(users))
    names = [name for name in ("python", *dict.fromkeys(package.name for package in used)) if name in installed]
    for name in names:
        tested = TESTED.get(name, installed[name])
        if _numbers(installed[name])[:2] > _numbers(tested):
            yield Finding(
                f"{name} is {installed[name]}, newer than {tested}, the newest that was tested",
                f"If something fails, try again with {name} {tested}.",
                is_fault=False,
            )
    with ThreadPoolExecutor(min(4, facts["processors"])) as pool:  # most load torch
        faults = dict(zip(names[1:], pool.map(_import_fault, names[1:]), strict=True))
    told = {""}
    for name, fault in faults.items():
        if fault not in told and not any(f"'{_module(other)}'" in fault for other in missing):
            told.add(fault)  # others that import this package have the same
            remedy = f"python -c 'import {_module(name)}' shows all of it; most often it helps to install {name} anew."
            yield Finding(f"{name} {installed[name]} cannot be imported: {fault}", remedy)
    facts["versions"] = {name: installed[name] for name in (own, *names) if name in installed}
    works = {name for name, fault in faults.items() if not fault}
    facts["extras"] = {
        extra: {package.name for package in needed if package.extra == extra} <= works for extra in extras
    }


def _of_memory(facts: Facts, root: str) -> Iterator[Finding]:
    file = next((file for suffix in EXTENSION_SUFFIXES if (file := PACKAGE / f"_core{suffix}").exists()), None)
    try:
        if file is None:
            others = next(PACKAGE.glob("_core.*.so"), None)
            why = (
                "the core was built for another Python" if others else "it is source, and may hide an installed package"
            )
            raise ImportError(f"no _core{EXTENSION_SUFFIXES[0]} in {PACKAGE}: {why}")
        loader = ExtensionFileLoader("datapipes._core", str(file))
        core: Any = module_from_spec(spec_from_loader(loader.name, loader))  # type: ignore[arg-type]
        loader.exec_module(core)
        facts["memory left"], limit = core.memory_left(root.rstrip("/"))
    except Exception as error:  # of a core that is damaged, or of another version, any
        yield Finding(f"the C++ core cannot be loaded: {error}", "Install the wheel of this Python, or build anew.")
    else:
        if facts["memory left"] < _MEMORY_BYTES:
            yield Finding(
                f"{_size(facts['memory left'])} of memory are left by {limit}",
                "Raise that limit, end other processes, or use fewer workers and smaller minibatches.",
            )
    shared = f"{root.rstrip('/')}/dev/shm"
    try:
        disk = os.statvfs(shared)
        facts["/dev/shm"] = disk.f_bavail * disk.f_frsize
        if not os.access(shared, os.W_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        yield Finding(f"/dev/shm: {error.strerror or error}", "Mount it: mount -t tmpfs -o size=50% tmpfs /dev/shm.")
    else:
        if facts["/dev/shm"] < _SHARED_BYTES:
            yield Finding(
                f"/dev/shm has {_size(facts['/dev/shm'])} free; torch sends tensors through it (channel='mp' too)",
                "Enlarge it (docker run --shm-size=8g), or use channel='shm', the default, which needs none of it.",
                is_fault=False,
            )


def _of_limits(facts: Facts, root: str) -> Iterator[Finding]:
    facts["descriptors"], most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= facts["descriptors"] < _DESCRIPTORS:
        if 0 <= most < _DESCRIPTORS:
            remedy = f"Raise the hard limit too, which is {most}: docker run --ulimit nofile=65536, or limits.conf."
        else:
            remedy = f"Run ulimit -n {_DESCRIPTORS} or more before the program."
        fault = f"a process may open {facts['descriptors']} files; each worker and each connection takes some"
        yield Finding(fault, remedy)
    quota = _quota(root)
    facts["processors granted"] = quota
    if quota is not None and quota < facts["processors"]:
        yield Finding(
            f"the cgroup grants the time of {quota:g} processors, but {facts['processors']} are to be seen",
            f"Use at most {max(int(quota), 1)} workers and threads (torch.set_num_threads), or raise the quota.",
            is_fault=False,
        )


def _of_settings(facts: Facts, root: str) -> Iterator[Finding]:
    setting = "sys/kernel/mm/transparent_hugepage/enabled"
    chosen = re.search(r"\[(\w+)\]", _read(Path(root, setting)))
    facts["huge pages"] = chosen[1] if chosen else "unknown"
    if facts["huge pages"] == "never":
        fault = f"memory gets no huge pages (/{setting}: never), which makes random reads slower"
        yield Finding(fault, f"As root: echo madvise > /{setting}.", is_fault=False)
    facts["allocator"] = preloaded = os.environ.get("LD_PRELOAD", "")
    for library in filter(None, re.split("[ :]+", preloaded)):
        if "/" in library and "$" not in library and not Path(library).exists():
            yield Finding(f"LD_PRELOAD names {library}, which is not there, so it is not used", "Correct the path.")
    for name, slow in _SLOW.items():
        if re.fullmatch(slow, os.environ.get(name, "")):
            yield Finding(
                f"{name}={os.environ[name]} is set, which is for looking for faults, and slow", f"Unset {name}."
            )


def _of_gpu(facts: Facts, root: str) -> Iterator[Finding]:
    driver = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _read(Path(root, "proc/driver/nvidia/version")))
    facts["driver"] = driver[1] if driver else ""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if not driver or is_hidden or not [*Path(root, "dev").glob("nvidia[0-9]*")]:
        return
    try:
        built_for, error = json.loads(_python(_ASK_TORCH).stdout)
    except (ValueError, subprocess.SubprocessError):
        return  # torch cannot be imported, which is a finding of its own
    facts["CUDA of torch"] = built_for
    if not built_for:
        yield Finding("there is a GPU, and this torch is a build without CUDA", "Install a build of torch with CUDA.")
    elif error:
        fault = f"torch, for CUDA {built_for}, cannot use the GPU with driver {driver[1]}: {error}"
        yield Finding(fault, "Update the driver, or install a build of torch for an older CUDA.")


def _requirement(line: str) -> Requirement:
    """Return a requirement as the metadata of a distribution has it: `name>=1.2; extra == "some"`."""
    name, versions, markers = re.fullmatch(r"([\w.-]+)([^;]*)(.*)", line).groups()  # type: ignore[union-attr]
    bounds = dict(re.findall(r"([<>=])=?([\d.]+)", versions))
    extra = re.search(r"extra == [\"']([\w-]+)", markers)
    return Requirement(_normal(name), bounds.get(">", ""), bounds.get("<", ""), extra[1] if extra else "")


def _import_fault(name: str) -> str:
    """Return why a package cannot be imported; "" if it can."""
    try:
        done = _python(f"import {_module(name)}")
    except subprocess.TimeoutExpired:
        return f"it takes more than {_IMPORT_S:.0f} s"
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"])[-1]


def _python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_IMPORT_S)


def _quota(root: str) -> float | None:
    """Return the processors whose time the cgroup of this process may use; None if it sets no limit."""
    texts = []
    for controllers, name in re.findall(r"^\d+:(.*?):/(.*)$", _read(Path(root, "proc/self/cgroup")), re.MULTILINE):
        groups, mounts = [Path(name), *Path(name).parents], Path(root, "sys/fs/cgroup")
        if controllers == "":  # the second version
            texts += [_read(mounts / mount / group / "cpu.max") for mount in ("", "unified") for group in groups]
        elif "cpu" in controllers.split(","):
            folders = [mounts / "cpu" / group for group in groups]
            texts += [f"{_read(at / 'cpu.cfs_quota_us').strip()} {_read(at / 'cpu.cfs_period_us')}" for at in folders]
    limits = [limit for text in texts if (limit := re.match(r"(\d+) (\d+)", text))]
    return min((int(limit[1]) / int(limit[2]) for limit in limits), default=None)


def _module(name: str) -> str:
    return _MODULES.get(name, name)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what follows them, such as rc1 or +cpu."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version)[0])))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def add_to(commands: Any) -> None:
    """Add `datapipes doctor` to the commands."""
    from datapipes.cli.command import add_command

    _add_option(add_command(commands, "doctor", _run, _TEXT))


def _add_option(parser: argparse.ArgumentParser) -> None:
    text = "an extra that must work; may be given again. Others need to where their first package is installed"
    parser.add_argument("--extra", action="append", default=[], metavar="NAME", help=text)


_TEXT = (
    "Look for what keeps datapipes from working on this machine, or from being fast: versions, packages of extras, "
    "memory, limits, GPU. Each line says what to do. Where all is well nothing is printed; the exit code is 1 if "
    "something is wrong, and not for a version that is only newer than what was tested."
)


def _run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    from datapipes.cli.command import DoneInPart

    text, values, is_wrong = _result(arguments.extra)
    if is_wrong:
        raise DoneInPart(text, values)
    return text, values


def _result(wanted: list[str]) -> tuple[str, dict[str, Any], bool]:
    """Examine; return (text, JSON values, whether something is wrong)."""
    findings, facts = examine(wanted)
    text = "\n".join(f"{finding.fault}. {finding.remedy}" for finding in findings)
    values = {"findings": [finding._asdict() for finding in findings], "facts": facts}
    return text, values, any(finding.is_fault for finding in findings)


def main() -> int:
    """Run the command alone, where the package may not be importable."""
    parser = argparse.ArgumentParser(prog="datapipes doctor", description=_TEXT, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="print findings and facts as one JSON object")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error, as always here")
    _add_option(parser)
    arguments = parser.parse_args()
    text, values, is_wrong = _result(arguments.extra)
    if arguments.json:
        text = json.dumps({"command": "doctor", **values})
    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
        if text:
            print(text, flush=True)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
