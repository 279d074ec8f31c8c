"""Digests of what samplers draw by (times, weights) over a graph in parts: those of the parts add up to the whole one.

They are part of a sampler's fingerprint, so a state moves between the whole graph and any parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from datapipes.base.errors import add_note
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.server.answers import answer_digests
from datapipes.distributed.wire.requests import DigestRequest, Digests
from datapipes.graph.rows_digest import sum_of_digests
from datapipes.partition.native.choices import Choice


def digests_over_parts(
    where: str, graph: DistGraph, edge_types: Sequence[Any], choice: Choice
) -> dict[Any, list[str] | None]:
    """Return {edge type: digests of what the choice reads of its in-edges, None if there is nothing to read}.

    Every part is asked at once, and only when this is called first; the answers are kept with the graph.

    Raises:
        ValueError: The parts do not agree on what there is to read.
        What the requests raise, see DistGraph.connect. A note names the part.
    """
    kept = graph.digests
    request = DigestRequest(tuple(edge_types), choice.reads)
    if request not in kept:
        by_edge_type = zip(*_answers(graph, request), strict=True)
        kept[request] = {of: _sum(where, of, each) for of, each in zip(edge_types, by_edge_type, strict=True)}
    return kept[request]


@contextmanager
def noting_part(part: int) -> Iterator[None]:
    """Add to an error which part was asked."""
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {part}")
        raise


def _answers(graph: DistGraph, request: DigestRequest) -> list[Digests]:
    local, waiting = graph.local_part, {}
    for part in range(graph.facts.num_parts):
        if local is None or local.part != part:
            with noting_part(part):
                waiting[part] = graph.peers.digests(part, request)
    answers = []
    for part in range(graph.facts.num_parts):
        with noting_part(part):
            if part in waiting:
                answers.append(waiting[part].result())
            else:
                assert local is not None
                answers.append(answer_digests(local, request))
    return answers


def _sum(where: str, edge_type: Any, found: Sequence[list[str] | None]) -> list[str] | None:
    lengths = {None if each is None else len(each) for each in found}
    if len(lengths) > 1:
        raise ValueError(
            f"{where}: some parts have values of {edge_type} to draw by and others have none. Look at the servers: "
            "their versions, their files."
        )
    given = [each for each in found if each is not None]
    return [sum_of_digests(each) for each in zip(*given, strict=True)] if given else None
