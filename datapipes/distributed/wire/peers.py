"""Peers: the other parts, as the sampler and the feature store see them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from torch import Tensor

from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import (
    DigestRequest,
    Digests,
    Drawn,
    DrawRequest,
    EdgesRequest,
    RowsRequest,
    TakeRows,
)


class Peers(Protocol):
    """Asks the owners of parts. Many requests can be in flight; each ends within a bound, with an answer or an error.

    It goes to worker processes as arguments only: each process connects for itself, when it first asks. The errors are
    typed and name the part; those of the server come with its reason.
    """

    def draw(self, part: int, request: DrawRequest) -> Future[list[Drawn]]:
        """Ask a part for a hop; return at once."""

    def rows(self, part: int, request: RowsRequest, take: TakeRows | None = None) -> Future[list[Tensor]]:
        """Ask a part for rows of features; return at once. With `take` the rows go there, and the answer is []."""

    def edges(self, part: int, request: EdgesRequest) -> Future[FoundEdges]:
        """Ask a part whether pairs are edges; return at once."""

    def digests(self, part: int, request: DigestRequest) -> Future[Digests]:
        """Ask a part for digests of what it draws by; return at once."""

    def close(self) -> None:
        """End all connections of this process; may be called twice. The next request connects again."""
