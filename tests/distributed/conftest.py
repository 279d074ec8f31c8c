"""What several tests of distributed/ start from; a file may have a fixture of its own under the same name."""

import contextlib

import pytest
import torch.distributed as dist
from certificates import Certificates, make_certificates
from parts_on_disk import a_graph, write

from datapipes.distributed import DistGraph


@pytest.fixture(scope="module")
def graph():
    """A small graph without types, with features of nodes and edges."""
    return a_graph()


@pytest.fixture(scope="module")
def root(tmp_path_factory, graph):
    """The folder of the graph in two parts."""
    return write(tmp_path_factory.mktemp("parts") / "root", graph)


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Certificates:
    """Certificates of the authority that is trusted."""
    return make_certificates(tmp_path_factory.mktemp("ours") / "tls")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Certificates:
    """Certificates of another authority."""
    return make_certificates(tmp_path_factory.mktemp("theirs") / "tls")


@pytest.fixture
def connected():
    """Connects graphs in parts, as DistGraph.connect does; they are closed in the end."""
    with contextlib.ExitStack() as stack:

        def connect(*arguments, **options) -> DistGraph:
            return stack.enter_context(contextlib.closing(DistGraph.connect(*arguments, **options)))

        yield connect


@pytest.fixture
def agent(monkeypatch):
    """What torchrun's agent gives its ranks: a store that it hosts, and where it is."""
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    return store
