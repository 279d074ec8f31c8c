"""What tests of builds share."""

import pytest

from datapipes.ingest import build


@pytest.fixture
def read(monkeypatch):
    """The number of edges of each chunk that is put into buckets."""
    found, columns_of = [], build._Relation._columns_of

    def counted(self, chunk, before):
        found.append(len(chunk.src))
        return columns_of(self, chunk, before)

    monkeypatch.setattr(build._Relation, "_columns_of", counted)
    return found
