"""The parts that the servers of these tests have; a file may have a fixture of its own under the same name."""

import pytest
from plain_clients import in_parts, plain_graph, typed_graph


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return in_parts(tmp_path_factory.mktemp("plain") / "root", plain_graph())


@pytest.fixture(scope="module")
def typed_root(tmp_path_factory):
    return in_parts(tmp_path_factory.mktemp("typed") / "root", typed_graph())
