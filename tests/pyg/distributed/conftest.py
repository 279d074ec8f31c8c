"""Nothing is served any more when a test has ended."""

import warnings
from collections.abc import Iterator

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pytest.importorskip("torch_geometric", reason="datapipes.pyg derives from torch_geometric: the pyg extra")

from datapipes.pyg.distributed import shutdown_rpc


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    yield
    shutdown_rpc(graceful=False)
