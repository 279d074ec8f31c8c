"""Build the C++ core; everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

if sys.platform != "linux":
    sys.exit(
        f"datapipes needs Linux, and this is {sys.platform}: its channels use memfd and futexes. "
        "Use a Linux machine, a container, or WSL 2."
    )

ROOT = Path(__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp"))
KERNELS = [str(path) for path in FILES if path.suffix == ".cpp" and path.parts[1] not in ("bindings", "tests")]
UNITS = ["csrc/bindings/module.cpp", "csrc/bindings/shm.cpp"]  # they include the other bindings: pybind11 is read twice
EXPORTS = "csrc/bindings/exports.map"

ParallelCompile("DATAPIPES_BUILD_JOBS", default=0).install()

setup(
    ext_modules=[
        Pybind11Extension(
            "datapipes._core",
            UNITS + KERNELS,
            include_dirs=["csrc"],
            depends=[EXPORTS, *(str(path) for path in FILES)],
            cxx_std=20,
            # -ffp-contract=off: equal bits on every machine, with or without fused multiply-add.
            # -falign-loops=32: where the linker puts a loop moves its rate no more; a gather had lost 10 % by chance.
            extra_compile_args=["-O3", "-ffp-contract=off", "-falign-loops=32", "-Wall", "-Wextra", "-g0"],
            extra_link_args=[f"-Wl,--version-script={EXPORTS}"],
        )
    ]
)
