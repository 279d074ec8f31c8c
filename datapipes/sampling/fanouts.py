"""The fanouts of a sampler: how many in-edges each hop draws for a node. A fanout is one number, or a number for each
edge type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from datapipes.base.checks import check_int, shown
from datapipes.base.codec import join_key
from datapipes.base.types import EdgeType, by_edge_type, known_edge_type, unknown_type
from datapipes.graph.graph import Graph

MAX_HOPS = 256

Fanout = int | Mapping[EdgeType, int] | Mapping[str, int]


def check_fanouts(where: str, fanouts: Any, graph: Graph, least: int = 1) -> list[Any]:
    """Return `fanouts` as a list with an int for each hop; with types, {edge type: int} of all edge types.

    Each int is -1 or more. An edge type that a dict in `fanouts` lacks gets 0. There are `least` hops or more.
    """
    if isinstance(fanouts, Tensor):
        fanouts = fanouts.tolist()
    if isinstance(fanouts, (str, bytes)) or not isinstance(fanouts, Sequence):
        raise TypeError(
            f"{where}: fanouts must be a sequence of ints, one for each hop, got {shown(fanouts)}. Pass a list such as "
            "[10, 5], or by edge type [{('a', 'to', 'b'): 10}, {('a', 'to', 'b'): 5}]."
        )
    if not least <= len(fanouts) <= MAX_HOPS:
        raise ValueError(
            f"{where}: fanouts has {len(fanouts)} entries, allowed are 1 to {MAX_HOPS}, one for each hop. Add or drop "
            "some."
        )
    if not graph.is_heterogeneous:
        for i, fanout in enumerate(fanouts):
            if isinstance(fanout, Mapping):
                raise TypeError(
                    f"{where}: fanouts[{i}] is a dict, but the graph has no edge types. Pass an int, or sample a "
                    "HeteroCSCGraph."
                )
        return [check_int(where, f"fanouts[{i}]", fanout, -1) for i, fanout in enumerate(fanouts)]
    checked = [_by_edge_type(where, f"fanouts[{i}]", fanout, graph) for i, fanout in enumerate(fanouts)]
    if checked and all(number == 0 for fanout in checked for number in fanout.values()):
        raise ValueError(
            f"{where}: no edge type has a fanout other than 0 in any hop, so nothing would be sampled. Known are "
            f"{shown(list(graph.edge_types))}. Give one of them a fanout."
        )
    return checked


def sampled_edge_types(fanouts: list[Any], graph: Graph) -> tuple[Any, ...]:
    """Return the edge types that some hop draws from, in sorted order; (None,) for a graph without types. Without hops
    these are all.
    """
    if not graph.is_heterogeneous or not fanouts:
        return graph.edge_types
    return tuple(edge_type for edge_type in graph.edge_types if any(fanout[edge_type] != 0 for fanout in fanouts))


def _by_edge_type(where: str, name: str, fanout: Any, graph: Graph) -> dict[EdgeType, int]:
    if not isinstance(fanout, Mapping):
        if isinstance(fanout, bool) or not isinstance(fanout, (int, np.integer)):
            raise TypeError(
                f"{where}: {name} must be an int, for all edge types, or a dict {{edge type: int}}, got "
                f"{shown(fanout)}. Edge types are {shown(list(graph.edge_types))}."
            )
        number = check_int(where, name, fanout, -1)
        return {edge_type: number for edge_type in graph.edge_types if edge_type is not None}
    numbers: dict[Any, int] = dict.fromkeys(graph.edge_types, 0)
    for key in fanout:
        if isinstance(key, str) and key.count(":") < 2:  # only a relation or a node type, which other libraries allow
            raise unknown_type(f"{where}, {name}", "edge type", key, graph.edge_types)
    for edge_type, value in by_edge_type(f"{where}, {name}", fanout).items():
        known_edge_type(f"{where}, {name}", edge_type, numbers)
        numbers[edge_type] = check_int(where, f"{name}[{shown(edge_type)}]", value, -1)
    return numbers


def fingerprint_of_hops(graph: Graph, fanouts: list[Any], return_edge_ids: bool) -> dict[str, Any]:
    """Return the part of a fingerprint that all samplers have: the entries about the graph and the hops."""

    def by_text(numbers: Any) -> Any:
        return {join_key(kind): count for kind, count in numbers.items()} if graph.is_heterogeneous else numbers

    return {
        "num_nodes": by_text(graph.num_nodes),
        "num_edges": by_text(graph.num_edges),
        "fanouts": [by_text(fanout) for fanout in fanouts],
        "return_edge_ids": return_edge_ids,
        "graph_digest": graph.digest(),
    }


def shortened(fanouts: list[Any]) -> list[Any]:
    """Return `fanouts` in a short form for display. A hop is an int if all edge types have the same fanout, else a dict
    without the types that have 0.
    """
    return [_shortened(fanout) if isinstance(fanout, Mapping) else fanout for fanout in fanouts]


def _shortened(fanout: Mapping[Any, int]) -> Any:
    numbers = set(fanout.values())
    return numbers.pop() if len(numbers) == 1 else {edge_type: n for edge_type, n in fanout.items() if n != 0}
