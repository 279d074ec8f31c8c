"""Data sets as they were published, which some tests read where they are on the machine."""

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("DATAPIPES_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def published(name: str) -> Path:
    """Return the path of a file or folder below DATAPIPES_SHARED_DATA; without it, skip the test."""
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not on this machine (DATAPIPES_SHARED_DATA)")
    return SHARED / name
