"""The methods that choose the part of each node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from datapipes.base.checks import check_bool, check_choice, check_int, shown
from datapipes.base.progress import Progress
from datapipes.base.rng import MAX_SEED
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import MOST_PARTS, DenseMap
from datapipes.partition.methods.all_nodes import EVEN, AllNodes
from datapipes.partition.methods.empty_parts import fill_empty_parts
from datapipes.partition.methods.fennel_parts import fennel_parts
from datapipes.partition.methods.metis_parts import metis_parts, require_pymetis
from datapipes.partition.methods.random_parts import random_parts
from datapipes.partition.methods.range_parts import BY_ID, range_parts
from datapipes.partition.source import Source

METHODS = ("metis", "random", "range", "fennel")
BALANCED = ("metis", "fennel")  # the methods that balance what `balance` says

_NAME = "Partitioner"


class Assignment(NamedTuple):
    """The part of each node, and what a process of its own has used to choose it.

    Attributes:
        book: the parts, without an edge map.
        child_peak_bytes: the most private memory of that process; 0 without one.
    """

    book: PartitionBook
    child_peak_bytes: int = 0


def assign(source: Source, num_parts: int, **options: Any) -> PartitionBook:
    """Return the part of each node; the arguments and errors are those of `make_assignment`."""
    return make_assignment(source, num_parts, **options).book


def make_assignment(
    source: Source,
    num_parts: int,
    *,
    method: str,
    recursive: bool,
    rng_seed: int,
    progress: Progress,
    balance: Mapping[str, float] | None = None,
) -> Assignment:
    """Choose the part of each node. No part is empty.

    Args:
        num_parts: from 1 to the number of nodes, all types together, and to 32,768. With 1 no method runs.
        method: one of METHODS.
            "metis": METIS (`metis_parts`), which cuts the fewest edges, in a process of its own; needs pymetis.
            "fennel": a stream over the nodes, in few bytes a node (`fennel_parts`).
            "random": a random order dealt to the parts (`random_parts`).
            "range": contiguous ranges of each type (`range_parts`).
        recursive: METIS halves again and again, instead of making all parts at once. Only for "metis".
        rng_seed: in [0, 2^64). Equal seeds give equal parts; "range" uses none.
        balance: shares of "nodes", "edges" and "train" in what "metis" and "fennel" balance (all_nodes.py), numbers
            from 0, one of them above. What has no share does not count. None: 1.0 each.
    Raises:
        TypeError, ValueError: An argument is not as above, or the graph is corrupt.
        ModuleNotFoundError: method="metis", and pymetis is not installed.
        MemoryError, MetisError: METIS had too little memory, or its process was killed.
    """
    check_arguments(source, num_parts, method=method, recursive=recursive, rng_seed=rng_seed, balance=balance)
    if method not in BALANCED or num_parts == 1:
        nodes = AllNodes(source, BY_ID)
        if num_parts == 1 or method == "range":
            return Assignment(PartitionBook(num_parts, range_parts(nodes, num_parts)))
        return Assignment(PartitionBook(num_parts, random_parts(nodes, num_parts, rng_seed)))
    nodes = AllNodes(source, EVEN if balance is None else {name: float(share) for name, share in balance.items()})
    child_peak_bytes = 0
    if method == "metis":
        parts, child_peak_bytes = metis_parts(
            source.graph, nodes, num_parts, recursive=recursive, rng_seed=rng_seed, progress=progress
        )
    else:
        parts = fennel_parts(source.graph, nodes, num_parts, rng_seed=rng_seed, progress=progress)
    of_types = {each: parts[nodes.offsets[each] :][: nodes.counts[each]] for each in nodes.types}
    for of_type in of_types.values():
        if len(of_type) >= num_parts:
            fill_empty_parts(of_type, num_parts)
    fill_empty_parts(parts, num_parts)
    maps = {each: DenseMap(of_type, num_parts) for each, of_type in of_types.items()}
    return Assignment(PartitionBook(num_parts, maps), child_peak_bytes)


def check_arguments(
    source: Source,
    num_parts: int,
    *,
    method: str,
    recursive: bool,
    rng_seed: int,
    balance: Mapping[str, float] | None = None,
) -> None:
    """Raise the errors of `make_assignment` for arguments that have no allowed value."""
    check_choice(_NAME, "method", method, METHODS)
    if check_bool(_NAME, "recursive", recursive) and method != "metis":
        raise ValueError(
            f"{_NAME}: recursive=True is an option of method='metis', and the method is {method!r}. Leave it out."
        )
    _check_balance(method, balance)
    check_int(_NAME, "rng_seed", rng_seed, 0, MAX_SEED)
    check_int(_NAME, "num_parts", num_parts, 1, MOST_PARTS)
    total = sum(source.graph.num_nodes_of(node_type) for node_type in source.graph.node_types)
    if num_parts > total:
        raise ValueError(
            f"{_NAME}: num_parts is {num_parts}, and the graph has {total} nodes; each part needs one. Ask for "
            f"at most {total} parts."
            if total
            else f"{_NAME}: the graph has no nodes, so there is nothing to partition. Pass a graph with nodes."
        )
    if method == "metis" and num_parts > 1:
        require_pymetis()


def _check_balance(method: str, balance: Any) -> None:
    if balance is None:
        return
    if method not in BALANCED:
        raise ValueError(
            f"{_NAME}: balance is an option of method='metis' and of method='fennel', and the method is {method!r}. "
            "Leave it out."
        )
    measures = ", ".join(map(repr, EVEN))
    allowed = f"it must hold shares of {measures}, numbers from 0 to 1e100 and one of them above 0"
    if not isinstance(balance, Mapping) or not all(map(_is_share, balance.values())) or not any(balance.values()):
        raise ValueError(f"{_NAME}: balance is {shown(balance)}; {allowed}. Give 1.0 to what counts.")
    for name in balance:
        if name not in EVEN:
            raise ValueError(f"{_NAME}: balance has {shown(name)}; {allowed}. Name one of these.")


def _is_share(given: Any) -> bool:
    is_number = isinstance(given, (int, float, np.integer, np.floating)) and not isinstance(given, bool)
    return is_number and 0 <= (given if isinstance(given, int) else float(given)) <= 1e100
