"""assign: chooses the part of each node by one of four methods. The short methods are in this module.

"metis" has a module of its own (metis_parts.py). "range" gives each part one contiguous range of each type's nodes;
"random" deals nodes to the parts in a random order; "fennel" streams over the nodes, for graphs that METIS cannot hold.
If a method has left parts empty, each of them gets one node.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice, check_int, shown
from datapipes.base.progress import Progress, now_and_then
from datapipes.base.rng import MAX_SEED
from datapipes.base.types import NodeType
from datapipes.graph.graph import Graph
from datapipes.partition.book import MOST_PARTS, IdMap, PartitionBook, RangeMap, smallest_dtype
from datapipes.partition.methods.all_nodes import EVEN, STAGE, AllNodes
from datapipes.partition.methods.metis_parts import even_at_last, even_parts, metis_parts, require_pymetis
from datapipes.partition.source import Source

METHODS = ("metis", "random", "range", "fennel")
BALANCED = ("metis", "fennel")  # the methods that take `balance`

DEALT = 2**22  # nodes that "random" deals at once
COUNTED = 2**17  # nodes that are counted at once: bincount makes int64 of them
MOST_PASSES = 10  # of "fennel"
FEW = 1000  # a pass that moves fewer than one node in FEW is the last
BLOCKS_AT_ONCE = 256  # up to 2^18 nodes; Ctrl-C is checked in between

BY_ID = {"nodes": 1.0, "train": 1.0}  # shares without edges: ranks place edges when the owners of nodes are known

_NAME = "Partitioner"


def assign(source: Source, num_parts: int, **options: Any) -> PartitionBook:
    """Choose the part of each node, and return the PartitionBook.

    `make_assignment` has the same arguments and errors.
    """
    return make_assignment(source, num_parts, **options)[0]


def make_assignment(
    source: Source,
    num_parts: int,
    *,
    method: str,
    recursive: bool,
    rng_seed: int,
    progress: Progress,
    balance: Mapping[str, float] | None = None,
) -> tuple[PartitionBook, int]:
    """Choose the part of each node of the graph in `source`; return (book, peak bytes of METIS). No part is empty.

    Args:
        num_parts: 1 up to the number of nodes of all types, at most 32,768. With 1, no method runs.
        method: one of METHODS.
            "metis": METIS (`metis_parts`), which cuts the fewest edges, in a process of its own; needs pymetis.
            "fennel": a stream over the nodes, in few bytes a node (`fennel_parts`).
            "random": the nodes in a random order, dealt to the parts in turn (`random_parts`).
            "range": contiguous ranges of each type (`range_parts`).
        recursive: (only for "metis") METIS halves the graph again and again, instead of making all parts at once.
        rng_seed: in [0, 2^64). Equal seeds give equal parts; "range" uses none.
        balance: {measure: share} in the weight that "metis" and "fennel" balance (all_nodes.py). The measures are
            "nodes", "edges" and "train"; a share is a number >= 0, and one is above 0. A measure that is left out has
            the share 0. None: 1.0 each.
    Returns:
        (book, peak): the PartitionBook, without an edge map, and the peak private memory of METIS's process in bytes,
        or 0 if METIS did not run.
    Raises:
        TypeError, ValueError: An argument is not as above, or the graph is corrupt.
        ModuleNotFoundError: method="metis", and pymetis is not installed.
        MemoryError, MetisError: METIS had too little memory, or its process was killed.
    """
    check_arguments(source, num_parts, method=method, recursive=recursive, rng_seed=rng_seed, balance=balance)
    if method not in BALANCED or num_parts == 1:
        nodes = AllNodes(source, BY_ID)
        if num_parts == 1 or method == "range":
            return PartitionBook(num_parts, range_parts(nodes, num_parts)), 0
        return PartitionBook(num_parts, random_parts(nodes, num_parts, rng_seed)), 0
    nodes = AllNodes(source, EVEN if balance is None else {name: float(share) for name, share in balance.items()})
    child_peak_bytes = 0
    if method == "metis":
        parts, child_peak_bytes = metis_parts(
            source.graph, nodes, num_parts, recursive=recursive, rng_seed=rng_seed, progress=progress
        )
    else:
        parts = fennel_parts(source.graph, nodes, num_parts, rng_seed=rng_seed, progress=progress)
    of_types = {kind: parts[nodes.offsets[kind] :][: nodes.counts[kind]] for kind in nodes.types}
    for of_type in of_types.values():
        if len(of_type) >= num_parts:
            fill_empty_parts(of_type, num_parts)
    fill_empty_parts(parts, num_parts)
    maps = {kind: IdMap(of_type, num_parts) for kind, of_type in of_types.items()}
    return PartitionBook(num_parts, maps), child_peak_bytes


def check_arguments(
    source: Source,
    num_parts: int,
    *,
    method: str,
    recursive: bool,
    rng_seed: int,
    balance: Mapping[str, float] | None = None,
) -> None:
    """Check the arguments of `make_assignment`; raise its TypeError or ValueError for a value that is not allowed."""
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
        raise ValueError(f"{_NAME}: balance is {shown(balance)}; {allowed}. Give 1.0 to each that counts.")
    for name in balance:
        if name not in EVEN:
            raise ValueError(f"{_NAME}: balance has {shown(name)}; {allowed}. Name one of these.")


def _is_share(share: Any) -> bool:
    is_number = isinstance(share, (int, float, np.integer, np.floating)) and not isinstance(share, bool)
    return is_number and 0 <= (share if isinstance(share, int) else float(share)) <= 1e100


# --- the methods "random" and "fennel"


def random_parts(nodes: AllNodes, num_parts: int, rng_seed: int) -> dict[NodeType | None, IdMap]:
    """Deal the nodes to the parts in turn, like cards; return {node type: IdMap}.

    First come the training nodes, type by type, then all others. The nodes of a type come in the order of a seeded
    permutation. So two parts differ by at most one node, by at most one training node, and by at most one training node
    and one other node of each type.

    Time O(num_nodes); memory: 1 byte a node (2 for more than 256 parts) for the result, and 64 MiB.
    """
    maps: dict[NodeType | None, IdMap] = {}
    next_training, next_other = 0, nodes.num_training
    for ordinal, node_type in enumerate(nodes.types):
        count, mask = nodes.counts[node_type], nodes.training(node_type)
        parts = np.empty(count, dtype=str(smallest_dtype(num_parts)).removeprefix("torch."))
        key = _core.hop_key(rng_seed, 0, ordinal, STAGE, 0, 0)
        for first in range(0, count, DEALT):
            ids = _core.permutation_at(count, key, first, min(DEALT, count - first))
            chosen = ids[:0] if mask is None else ids[mask[ids]]
            others = ids if mask is None else ids[~mask[ids]]
            parts[chosen] = np.arange(next_training, next_training + len(chosen)) % num_parts
            parts[others] = np.arange(next_other, next_other + len(others)) % num_parts
            next_training += len(chosen)
            next_other += len(others)
        maps[node_type] = IdMap(parts, num_parts)
    return maps


def fennel_parts(graph: Graph, nodes: AllNodes, num_parts: int, *, rng_seed: int, progress: Progress) -> NDArray[Any]:
    """Choose parts by Fennel: return the part of each node, indexed by its number in `nodes`.

    The dtype is uint8 for up to 255 parts, else int16.

    A node goes to the part that has most of its neighbors, less a penalty for the weight that the part has already.
    This is Fennel with gamma = 2. Up to MOST_PASSES passes go over all nodes, and each pass starts from the parts of
    the pass before. The last pass is one that moves fewer than 1 / FEW of the nodes. csrc/partition/fennel.h has all
    rules. The rows of the graph are read in stretches of up to 1,024 nodes in a random order, so a mapped graph may be
    larger than memory; each pass reads the whole graph.

    The weight of a part is at most 1.03 times the mean, or the mean plus the weight of the heaviest node if that is
    more. Then `even_parts` balances each measure of the weight (nodes, in-edges, training nodes) by itself.

    Time O(edges + nodes log num_parts) a pass. Memory: 5 bytes a node for up to 255 parts, else 8; one more if a mask
    of training nodes is not contiguous. After the passes: 1 or 2 bytes a node, and the memory of `even_parts`.

    Sources: Tsourakakis, Gkantsidis, Radunovic, Vojnovic: FENNEL: streaming graph partitioning for massive scale
    graphs, WSDM 2014. Nishimura, Ugander: Restreaming graph partitioning, KDD 2013. Boyer, Moore: MJRTY, 1991 (how to
    count neighbors along out-edges without a list of out-edges).

    Raises:
        ValueError: The graph is corrupt.
    """
    kernel = _core.Fennel(
        graph.topology(),
        num_parts=num_parts,
        key=_core.hop_key(rng_seed, 0, 0, STAGE, 2, 0),
        **nodes.combined._asdict(),
        training=nodes.training_bytes(),
    )
    progress = now_and_then(progress)
    for turn in range(MOST_PASSES):
        for first in range(0, kernel.num_blocks, BLOCKS_AT_ONCE):
            progress(f"stream the nodes, pass {turn + 1} of up to {MOST_PASSES}", first, kernel.num_blocks)
            kernel.visit(first, min(BLOCKS_AT_ONCE, kernel.num_blocks - first))
        if kernel.end_pass() * FEW < nodes.total:
            break
    stored = kernel.parts()
    del kernel  # frees its memory
    parts = stored if stored.dtype == np.uint8 else stored.view(np.int16)
    even_at_last(graph, nodes, parts, num_parts, even_parts(graph, nodes, parts, num_parts))
    return parts


def fill_empty_parts(parts: NDArray[Any], num_parts: int) -> None:
    """Give each empty part one node, by changing `parts` in place.

    In ascending order, each empty part takes the last node of the part that has the most nodes at that time. Among
    equally large parts, the part with the lowest id gives its node. If no part is empty, nothing changes.

    Args:
        parts: integers [num_nodes], each in [0, num_parts); num_nodes >= num_parts.
    Time O(num_nodes); memory: 16 bytes a node if a part is empty.
    """
    counts = np.zeros(num_parts, dtype=np.int64)
    for first in range(0, len(parts), COUNTED):
        counts += np.bincount(parts[first : first + COUNTED], minlength=num_parts)
    empty = np.flatnonzero(counts == 0)
    if len(empty) == 0:
        return
    nodes = np.argsort(parts, kind="stable")  # the nodes of part 0, ascending, then of part 1, ...
    ends = np.cumsum(counts)
    largest = [(-int(count), part) for part, count in enumerate(counts)]
    heapq.heapify(largest)
    for part in empty.tolist():
        count, giver = largest[0]
        ends[giver] -= 1
        parts[nodes[ends[giver]]] = part
        heapq.heapreplace(largest, (count + 1, giver))


# --- the method "range"


def range_parts(nodes: AllNodes, num_parts: int) -> dict[NodeType | None, IdMap]:
    """Cut the nodes of each type, in the order of their ids, into ranges of equal weight; return {node type: RangeMap}.

    Part p begins at the first node that has at least p / num_parts of the type's weight before it. A type with
    num_parts nodes or more gives each part at least one node. A type with fewer nodes gives them, one each, to
    successive parts; the next such type begins with the part after these. So no part is empty.

    Time O(num_nodes); memory: 8 bytes for each type and part for the result, and 16 MiB.
    """
    return {
        node_type: RangeMap(bounds)
        for node_type, bounds in range_bounds(nodes.counts, num_parts, lambda key: _cut(nodes, key, num_parts)).items()
    }


def range_bounds(
    counts: Mapping[NodeType | None, int], num_parts: int, cut: Callable[[NodeType | None], NDArray[np.int64]]
) -> dict[NodeType | None, NDArray[np.int64]]:
    """Cut the ids of each type into ranges, and return {node type: offsets}, int64 [num_parts + 1].

    Part p has the ids in [offsets[p], offsets[p + 1]). A type with at least `num_parts` nodes is cut by `cut`. The
    nodes of smaller types go to parts one by one.

    Args:
        counts: {node type: number of nodes}, sorted.
        cut: function (node type) -> offsets.
    """
    bounds = {}
    turn = 0
    for node_type, count in counts.items():
        if count < num_parts:
            sizes = np.zeros(num_parts, dtype=np.int64)
            sizes[(turn + np.arange(count)) % num_parts] = 1
            turn += count
            bounds[node_type] = np.concatenate(([0], np.cumsum(sizes)))
        else:
            bounds[node_type] = cut(node_type)
    return bounds


def _cut(nodes: AllNodes, node_type: NodeType | None, num_parts: int) -> NDArray[np.int64]:
    """Return the offsets of ranges of equal weight, int64 [num_parts + 1]; the type has `num_parts` nodes or more."""
    total = sum(int(weights.sum()) for weights in nodes.weights(node_type))
    bounds, _ = cut_by_weight(nodes.weights(node_type), total, num_parts)
    return with_a_node_each(bounds, nodes.counts[node_type])


def cut_by_weight(
    weights: Iterable[NDArray[np.int64]], total: int, num_parts: int, before: int = 0, first: int = 0
) -> tuple[NDArray[np.int64], int]:
    """Find where parts of equal weight begin among some successive nodes of a type; return (begins, weight).

    The nodes need not be all nodes of the type: several ranks may each find the parts that begin among some of the
    nodes.

    Args:
        weights: the weights of these nodes, in pieces; the first is the weight of node `first`.
        total: the weight of all nodes of the type.
        before: the weight of the nodes before `first`.
    Returns:
        begins: int64 [num_parts + 1], the first node of each part; 0 for a part that does not begin among these nodes.
        weight: `before` plus the weight of these nodes.
    """
    # The weight before the first node of each part: Python's integers, since total * num_parts may exceed int64.
    wanted = np.array([-(-total * part // num_parts) for part in range(num_parts + 1)], dtype=np.int64)
    bounds = np.zeros(num_parts + 1, dtype=np.int64)
    for some in weights:
        upto = before + np.cumsum(some)
        here = (wanted > before) & (wanted <= upto[-1])
        bounds[here] = first + np.searchsorted(upto, wanted[here]) + 1
        before, first = int(upto[-1]), first + len(some)
    return bounds, before


def with_a_node_each(bounds: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Move the offsets `bounds` as little as needed to give each part a node, and return them.

    `num_nodes` is at least the number of parts.
    """
    num_parts = len(bounds) - 1
    turns = np.arange(num_parts + 1)
    return np.minimum(np.maximum.accumulate(bounds - turns) + turns, num_nodes - num_parts + turns)
