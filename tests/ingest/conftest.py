"""What tests of builds share."""

import pytest

from datapipes.ingest import buckets, build


@pytest.fixture
def read(monkeypatch):
    """The number of edges of each chunk that is put into buckets."""
    found, columns_of = [], build._Relation._columns_of

    def counted(self, chunk, before):
        found.append(len(chunk.src))
        return columns_of(self, chunk, before)

    monkeypatch.setattr(build._Relation, "_columns_of", counted)
    return found


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    """Let a build have a few bytes only, and four buckets."""
    monkeypatch.setattr(build, "LEAST_MEMORY", 1)
    monkeypatch.setattr(buckets, "_MOST_BUCKETS", 4)
