"""The doctor: it says nothing of a healthy machine, and names the cause, and what to do, on each broken one."""

import json
import re
import resource
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from command_files import run
from pipelines import BOUND_S

from datapipes.base.errors import DISTRIBUTION
from datapipes.cli import doctor

ROOT = Path(__file__).parents[2]
GIB = 2**30
REQUIRED = [
    "torch>=2.4",
    "numpy>=1.26",
    'pymetis>=2025.2; extra == "distributed"',
    'pyarrow>=24; extra == "distributed"',
    "triton>=3.0; platform_system == 'Linux' and extra == 'gpu'",
    'ray>=2.40; extra == "ray"',
    'pyarrow>=24; extra == "ray"',
    'torch_geometric<2.9,>=2.8; extra == "pyg"',
    'pyyaml>=6; extra == "ondisk"',
    'pyarrow>=24; extra == "ondisk"',
    'graphviz>=0.20; extra == "viz"',
    'matplotlib>=3.8; extra == "viz"',
    'pytest==9.2.0; extra == "dev"',
]
EXTRAS = ("distributed", "gpu", "ondisk", "pyg", "ray", "viz")
Disk = namedtuple("Disk", "f_bavail f_frsize")


class Machine:
    """A machine that is well: its files and packages, in a folder, its limits, and what Python can import."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.site, self.patch = folder / "root", folder / "site", monkeypatch
        self.shared_bytes, self.faults, self.limits = 8 * GIB, {}, {}
        self.torch = json.dumps(["13.0", ""])
        self.write("proc/meminfo", f"MemAvailable: {8 * GIB // 1024} kB\n")
        self.write("proc/self/cgroup", "0::/job/worker\n")
        self.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        (self.root / "dev/shm").mkdir(parents=True)
        for requirement in REQUIRED:
            name, minimum = re.match(r"(\w+).*?[=>]=([\d.]+)", requirement).groups()
            self.install(name, doctor.TESTED.get(name.replace("_", "-"), minimum))
        self.remove("pytest")
        self.install(DISTRIBUTION, "0.1.0", REQUIRED)
        monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.12.1")
        monkeypatch.setattr(doctor, "_python", self.python)
        monkeypatch.setattr(doctor.os, "statvfs", lambda _: Disk(self.shared_bytes, 1))
        monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: range(8))
        monkeypatch.setattr(resource, "getrlimit", lambda which: (self.limits.get(which, -1), -1))
        for name in ("LD_PRELOAD", "CUDA_VISIBLE_DEVICES", *doctor._SLOW):
            monkeypatch.delenv(name, raising=False)

    def write(self, file: str, text: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def install(self, name: str, version: str, requirements: list[str] = ()) -> None:
        """Write the metadata of a package, in the place of what was there."""
        folder = self.site / f"{name}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requirements)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]))

    def remove(self, *names: str) -> None:
        for name in names:
            (self.site / f"{name}.dist-info" / "METADATA").unlink()

    def python(self, program: str) -> subprocess.CompletedProcess[str]:
        fault = self.faults.get(program.removeprefix("import "), "")
        return subprocess.CompletedProcess([], int(fault != ""), self.torch, fault)

    def add_gpu(self) -> None:
        text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.10  Release Build\n"
        self.write("proc/driver/nvidia/version", text)
        self.write("dev/nvidia0", "")

    @property
    def places(self) -> tuple[str, list[str]]:
        return str(self.root), [str(self.site)]

    def findings(self, *extras: str) -> list[str]:
        return [f"{finding.fault}. {finding.remedy}" for finding in doctor.examine(extras, *self.places)[0]]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_a_healthy_machine_has_no_findings(machine):
    assert machine.findings() == []
    machine.add_gpu()
    assert machine.findings() == []


def test_nobody_is_asked_for_extras_that_they_do_not_use(machine):
    assert doctor.examine((), *machine.places)[1]["extras"] == dict.fromkeys(EXTRAS, True)
    machine.remove("pymetis", "triton", "ray", "torch_geometric", "graphviz", "pyyaml")
    assert machine.findings() == []
    assert doctor.examine((), *machine.places)[1]["extras"] == dict.fromkeys(EXTRAS, False)


def test_an_extra_that_is_asked_for_must_work(machine):
    machine.remove("pymetis", "pyarrow", "ray")
    lines = machine.findings("distributed", "nothing")
    assert lines[0] == "there is no extra 'nothing'. Name one of distributed, gpu, ray, pyg, ondisk, viz."
    assert [line.split(";")[0] for line in lines[1:]] == ["pymetis is not installed", "pyarrow is not installed"]


def test_a_version_above_the_tested_ones_is_no_fault(machine):
    machine.install("torch", "2.99.0")
    (finding,), _ = doctor.examine((), *machine.places)
    assert not finding.is_fault
    machine.install("torch_geometric", "2.9.0")
    line = "torch-geometric is 2.9.0, too new: [pyg] needs one below 2.9. Run pip install 'torch-geometric>=2.8,<2.9'."
    for wanted in ((), ("pyg",)):  # only what is asked for, or what datapipes itself needs, is a fault
        findings, _ = doctor.examine(wanted, *machine.places)
        assert f"{findings[0].fault}. {findings[0].remedy}" == line
        assert findings[0].is_fault == bool(wanted)


def test_what_is_broken_in_the_metadata_is_passed_over(machine):
    machine.install("~umpy", "1.20")
    (machine.site / "~umpy.dist-info" / "METADATA").write_bytes(b"Name: \xe9\xff")
    (machine.site / "lost.dist-info").mkdir()
    (machine.site / "lost.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\n")
    assert machine.findings() == []


def test_a_driver_without_a_gpu_is_no_gpu(machine, monkeypatch):
    machine.add_gpu()
    machine.torch = json.dumps(["13.0", "No CUDA GPUs are available"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine.findings() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (machine.root / "dev/nvidia0").unlink()
    assert machine.findings() == []


def test_a_fault_that_others_inherit_is_named_once(machine):
    machine.faults.update(dict.fromkeys(("torch", "ray", "torch_geometric"), "OSError: libcudart.so.13: not there"))
    (line,) = machine.findings()
    assert line.startswith("torch ")
    machine.faults.update(dict.fromkeys(("ray", "torch"), "ModuleNotFoundError: No module named 'numpy'"))
    machine.faults["torch_geometric"] = ""
    machine.remove("numpy")
    (line,) = machine.findings()
    assert line.startswith("numpy is not installed; ")


BROKEN = {  # how a machine breaks, and the line that names it
    "no pyarrow": (
        lambda each: each.remove("pyarrow"),
        "pyarrow is not installed; it is needed for [distributed], [ray], [ondisk]. Run pip install 'pyarrow>=24'.",
    ),
    "old torch_geometric": (
        lambda each: each.install("torch_geometric", "2.4.1"),
        "torch-geometric is 2.4.1, older than 2.8, which is needed for [pyg]. "
        "Run pip install 'torch-geometric>=2.8,<2.9'.",
    ),
    "torch of tomorrow": (
        lambda each: each.install("torch", "2.99.0.dev1+cu130"),
        f"torch is 2.99.0.dev1+cu130, newer than {doctor.TESTED['torch']}, the newest that was tested. "
        f"If something fails, try again with torch {doctor.TESTED['torch']}.",
    ),
    "ray without one of its libraries": (
        lambda each: each.faults.update({"ray": "Traceback\nImportError: libray.so: no such file\n"}),
        f"ray {doctor.TESTED['ray']} cannot be imported: ImportError: libray.so: no such file. "
        "python -c 'import ray' shows all of it; most often it helps to install ray anew.",
    ),
    "a container's /dev/shm": (
        lambda each: setattr(each, "shared_bytes", 2**26),
        "/dev/shm has 64 MiB free; torch sends tensors through it (channel='mp' too). Enlarge it "
        "(docker run --shm-size=8g), or use channel='shm', the default, which needs none of it.",
    ),
    "64 descriptors": (
        lambda each: each.limits.update({resource.RLIMIT_NOFILE: 64}),
        "a process may open 64 files; each worker and each connection takes some. "
        "Run ulimit -n 1024 or more before the program.",
    ),
    "a cgroup of 1 GB": (
        lambda each: (
            each.write("sys/fs/cgroup/job/memory.max", "1000000000"),
            each.write("sys/fs/cgroup/job/memory.current", "0"),
        ),
        "954 MiB of memory are left by the memory limit of cgroup /job. "
        "Raise that limit, end other processes, or use fewer workers and smaller minibatches.",
    ),
    "half a processor": (
        lambda each: each.write("sys/fs/cgroup/job/cpu.max", "50000 100000"),
        "the cgroup grants the time of 0.5 processors, but 8 are to be seen. "
        "Use at most 1 workers and threads (torch.set_num_threads), or raise the quota.",
    ),
    "half a processor, of the first version of cgroups": (
        lambda each: (
            each.write("proc/self/cgroup", "4:cpu,cpuacct:/job\n"),
            each.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000"),
            each.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000"),
        ),
        "the cgroup grants the time of 0.5 processors, but 8 are to be seen. "
        "Use at most 1 workers and threads (torch.set_num_threads), or raise the quota.",
    ),
    "no huge pages": (
        lambda each: each.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
        "memory gets no huge pages (/sys/kernel/mm/transparent_hugepage/enabled: never), which makes random reads "
        "slower. As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled.",
    ),
    "torch without CUDA": (
        lambda each: (each.add_gpu(), setattr(each, "torch", json.dumps(["", "no CUDA"]))),
        "there is a GPU, and this torch is a build without CUDA. Install a build of torch with CUDA.",
    ),
    "an old driver": (
        lambda each: (each.add_gpu(), setattr(each, "torch", json.dumps(["13.0", "The driver is too old"]))),
        "torch, for CUDA 13.0, cannot use the GPU with driver 535.10: The driver is too old. "
        "Update the driver, or install a build of torch for an older CUDA.",
    ),
    "an allocator that is not there": (
        lambda each: each.patch.setenv("LD_PRELOAD", "/nowhere/libjemalloc.so.2"),
        "LD_PRELOAD names /nowhere/libjemalloc.so.2, which is not there, so it is not used. Correct the path.",
    ),
    "an allocator that looks for faults": (
        lambda each: each.patch.setenv("PYTHONMALLOC", "debug"),
        "PYTHONMALLOC=debug is set, which is for looking for faults, and slow. Unset PYTHONMALLOC.",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_machine_has_one_finding_with_its_cause_and_what_to_do(machine, how):
    break_it, line = BROKEN[how]
    break_it(machine)
    assert machine.findings() == [line]


def test_a_core_for_another_python(machine, monkeypatch):
    package = machine.root / "datapipes"
    (package / "base").mkdir(parents=True)
    (package / "base/errors.py").write_text(f"DISTRIBUTION = {DISTRIBUTION!r}")
    monkeypatch.setattr(doctor, "PACKAGE", package)
    (finding,) = machine.findings()
    assert f"in {package}: it is source, and may hide an installed package. Install " in finding
    (package / "_core.cpython-39-x86_64-linux-gnu.so").touch()
    (finding,) = machine.findings()
    assert re.fullmatch(
        rf"the C\+\+ core cannot be loaded: no _core\..+\.so in {package}: the core was built for another Python\. "
        r"Install the wheel of this Python, or build anew\.",
        finding,
    )


def test_the_tested_versions_are_those_of_the_lock_files():
    locks = [(ROOT / name).read_text(encoding="utf-8") for name in ("requirements-run.lock", "requirements.lock")]
    pins = dict(re.findall(r"^([\w.-]+)==(\d+\.\d+)(?!.*<)", "\n".join(locks), re.MULTILINE))
    newest = re.search(r"^PYTHONS \?=.* (\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert {name: pins.get(name, newest) for name in doctor.TESTED} == doctor.TESTED


def test_as_a_command(capsys, monkeypatch):
    """The script needs neither torch nor the package; with findings the exit code is 1."""
    script = [sys.executable, "-X", "importtime", Path(sys.executable).with_name("datapipes"), "doctor", "--help"]
    child = subprocess.run(script, capture_output=True, text=True, timeout=BOUND_S)
    assert child.returncode == 0
    assert child.stdout.startswith("usage: datapipes doctor ")
    assert not {"torch", "numpy", "datapipes"} & {*re.findall(r"\| +([\w.]+)$", child.stderr, re.MULTILINE)}
    finding = doctor.Finding("the moon is full", "Wait.")
    monkeypatch.setattr(doctor, "examine", lambda _: ([], {"processors": 2}))
    assert run(capsys, "doctor") == (0, "", "")
    monkeypatch.setattr(doctor, "examine", lambda _: ([finding], {"processors": 2}))
    assert run(capsys, "doctor") == (1, "the moon is full. Wait.\n", "")
    values = {"findings": [finding._asdict()], "facts": {"processors": 2}}
    assert run(capsys, "doctor", "--json").json == {"command": "doctor", **values}
    monkeypatch.setattr(sys, "argv", ["datapipes doctor", "--json"])
    assert doctor.main() == 1
    assert json.loads(capsys.readouterr().out) == {"command": "doctor", **values}
