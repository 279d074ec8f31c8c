"""Build the C++ core; everything else about the package is in pyproject.toml."""

from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

ROOT = Path(__file__).parent
SOURCES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp") if "tests" not in path.parts)
HEADERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.h"))

ParallelCompile("DATAPIPES_BUILD_JOBS", default=0).install()

setup(
    ext_modules=[
        Pybind11Extension(
            "datapipes._core",
            SOURCES,
            include_dirs=["csrc"],
            depends=HEADERS,
            cxx_std=20,
            # -ffp-contract=off: equal bits on every machine, with or without fused multiply-add.
            extra_compile_args=["-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-g0"],
        )
    ]
)
