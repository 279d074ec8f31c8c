"""Split the edges of a graph, at random or by time, into links for training, validation and test."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, dtype_name, shown
from datapipes.base.rng import RngKey, check_seed
from datapipes.base.types import ends_of, listed_edge_types, of_type, type_text
from datapipes.graph.edits import with_edges_kept
from datapipes.graph.graph import LINK_FIELDS, destinations_of, items_of
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.reverses import checked_mapping
from datapipes.seeds import HeteroItemSet, ItemSet

__all__ = ["LinkSplit", "random_link_split", "time_link_split"]

_SPLIT, _BY_TIME = "random_link_split", "time_link_split"


class LinkSplit(NamedTuple):
    """The result of `random_link_split` or `time_link_split`: three item sets of links, and the graph to sample.

    An item is an edge: (source, destination), and the edge id, which minibatches have as `extra["edge_ids"]`; with
    `label_attr` also its label, and in a split by time its time.

    Attributes:
        train_set, validation_set, test_set: ItemSet, with types HeteroItemSet; None: the split has no links.
        graph: the graph to sample: without the edges of the validation and test sets, and with `supervision` below 1
            also without the edges of the training set. Edges keep their ids and attributes.
    """

    train_set: Any
    validation_set: Any
    test_set: Any
    graph: Any


def random_link_split(
    graph: LocalGraph,
    validation: float,
    test: float,
    *,
    seed: int,
    reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    supervision: float = 1.0,
    edge_types: Iterable[Any] | None = None,
    label_attr: str | None = None,
) -> LinkSplit:
    """Split the edges of a graph at random into training, validation and test links; also return the graph to sample.

    All edges between two nodes, parallel edges and both directions, are one link, so they fall into the same split. An
    item is an edge, so a link of an undirected graph gives an item for each direction. Time O(E log E); memory: about
    100 bytes an edge.

    Args:
        graph: a CSCGraph or HeteroCSCGraph, not partitioned; partition the graph that the split returns.
        validation, test: a float in [0, 1) is a share of the links, an int a number of links. A link counts once,
            however many edges it has.
        seed: the random seed; equal seeds give equal splits, on any machine.
        reverse_etypes_mapping: {edge type: the type of its reverses}, as tuples or "src:rel:dst". A reverse falls into
            the split of its edge and is no item. Each edge must have its reverse. A type that the mapping does not name
            is split independently. But if another type has exactly its reverses, this is an error; to allow it, where
            the reverses reveal nothing, pass {edge type: None}.
        supervision: the share of the training links that are items. Below 1, the edges of the items are taken out of
            the graph, so only the other training links are sampled. With 1, all training links are items and stay in
            the graph, so put exclude_seed_edges behind the sampler.
        edge_types: for a graph with types, the edge types to split; the others stay whole. None splits all types except
            those that the mapping names as reverses.
        label_attr: the edge attribute with the label of each edge, such as a rating; None: no labels.
    Raises:
        TypeError, ValueError: An argument is not allowed, nothing is left for training, an edge lacks its reverse, or
            reverses are not named.
    """
    _check_graph(_SPLIT, graph)
    key = RngKey(check_seed(_SPLIT, seed), 0, 0, 0)
    if not isinstance(supervision, numbers.Real) or isinstance(supervision, bool) or not 0 < supervision <= 1:
        raise ValueError(f"{_SPLIT}: supervision must be a share in (0, 1], got {shown(supervision)}. Pass 1.0.")
    backs: dict[Any, Any] = checked_mapping(_SPLIT, reverse_etypes_mapping, graph.edge_types) or {}
    mapping = {one: back for one, back in backs.items() if back is not None}
    # Of two edge types that are mapped to each other, keep one.
    mapping = {one: back for one, back in mapping.items() if mapping.get(back) != one or one <= back}
    for back in mapping.values():
        both = sorted(type_text(one) for one in mapping if mapping[one] == back)
        if len(both) > 1:
            raise ValueError(
                f"{_SPLIT}: reverse_etypes_mapping says that {type_text(back)} holds the reverses of {shown(both)}; a "
                "reverse follows one edge into its split. Give each a type of reverses of its own."
            )
    chosen = [one for one in graph.edge_types if mapping.get(one) == one or one not in mapping.values()]
    if edge_types is not None:
        chosen = sorted(listed_edge_types(_SPLIT, edge_types, graph.edge_types))
    partners = {one: back for one, back in mapping.items() if one != back}
    partners |= {back: one for one, back in partners.items()}  # if one is split, the other follows
    for edge_type in chosen:
        if edge_type in partners and partners[edge_type] in chosen:
            raise ValueError(
                f"{_SPLIT}: edge_types has {type_text(edge_type)} and {type_text(partners[edge_type])}, which "
                "reverse_etypes_mapping says are reverses of each other; they are split together. Name one of the two."
            )
    chosen = [one for one in chosen if graph.num_edges_of(one) + graph.num_edges_of(partners.get(one, one)) > 0]
    if not chosen:
        raise ValueError(f"{_SPLIT}: found no edges to split; at least 1 is needed. Name another edge type.")
    kept: dict[Any, Tensor] = {}
    sets: list[dict[Any, ItemSet]] = [{}, {}, {}]
    for edge_type in chosen:
        links, link_of, count = _links(graph, edge_type)
        if edge_type in partners:
            followers = _reversed_links(graph, edge_type, partners[edge_type], links)
        elif edge_type not in backs:
            _refuse_reverses(graph, edge_type, links)
        sizes = _sizes(validation, test, count, edge_type)
        hop_key = key.hop_key(0, graph.edge_types.index(edge_type))
        order = torch.from_numpy(_core.permutation_at(count, hop_key, 0, count))
        split = torch.zeros(count, dtype=torch.int8)  # 0: training, 1: validation, 2: test, 3: training, sampled only
        split[order[: sizes[0]]] = 1
        split[order[sizes[0] : sum(sizes)]] = 2
        num_train = count - sum(sizes)
        if supervision < 1:
            split[order[sum(sizes) + max(int(supervision * num_train), 1) :]] = 3
        attributes = {} if label_attr is None else {"labels": label_attr}
        _add_items(_SPLIT, sets, graph, edge_type, split[link_of], attributes)
        stays = split == 3 if supervision < 1 else split == 0
        kept[edge_type] = stays[link_of]
        if edge_type in partners:
            kept[partners[edge_type]] = stays[followers]
    return _split_of(sets, graph, kept)


def time_link_split(
    graph: LocalGraph,
    validation: float,
    test: float,
    *,
    edge_time_attr: str,
    reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    edge_types: Iterable[Any] | None = None,
    label_attr: str | None = None,
) -> LinkSplit:
    """Split the edges of a graph by time: the earliest train, then come validation and test.

    Edges of equal time are in one part: a cut that falls among them moves behind them. Items have the times of their
    edges as `timestamps`. The graph to sample has the edges up to the last time of training; over the whole graph, a
    sampler by time hides from each seed what is later, too. Time O(E log E).

    Args:
        graph, label_attr: as for random_link_split.
        validation, test: the share of the edges, in [0, 1), that validate and test. Two edges of one link are split
            apart if their times are.
        edge_time_attr: the edge attribute with the times, int64.
        reverse_etypes_mapping: {edge type: the type of its reverses}; reverses are no items.
        edge_types: the edge types to split; None: all that have this attribute, except reverses. All are cut at the
            same times. Other types stay whole, unless they are reverses.
    Raises:
        TypeError, ValueError: An argument is not allowed, an edge type has no such times, or nothing is left to train.
    """
    _check_graph(_BY_TIME, graph)
    backs: dict[Any, Any] = checked_mapping(_BY_TIME, reverse_etypes_mapping, graph.edge_types) or {}
    for name, share in (("validation", validation), ("test", test)):
        if not isinstance(share, (float, np.floating)) or not 0 <= share < 1:
            raise ValueError(f"{_BY_TIME}: {name} must be a float in [0, 1), a share, got {shown(share)}. Pass 0.15.")
    timed = [one for one in graph.edge_types if edge_time_attr in graph.relation(one).edge_attributes]
    chosen = [one for one in timed if one not in {back for one, back in backs.items() if back != one}]
    if edge_types is not None:
        chosen = sorted(listed_edge_types(_BY_TIME, edge_types, graph.edge_types))
    times = {one: _times(graph, one, edge_time_attr) for one in chosen}
    every = np.sort(torch.cat([*times.values()]).numpy()) if times else np.empty(0, np.int64)
    if len(every) == 0 or validation + test >= 1:
        raise ValueError(
            f"{_BY_TIME}: validation={validation} and test={test} leave for training none of the {len(every)} edges "
            f"with the attribute {edge_time_attr!r}; at least 1 is needed. Lower the shares, or name another attribute."
        )
    cuts = [every[max(round(share * len(every)), 1) - 1] for share in (1 - validation - test, 1 - test)]
    kept: dict[Any, Tensor] = {}
    sets: list[dict[Any, ItemSet]] = [{}, {}, {}]
    attributes = {"timestamps": edge_time_attr} | ({} if label_attr is None else {"labels": label_attr})
    for edge_type in chosen:
        parts = torch.from_numpy(np.searchsorted(cuts, times[edge_type].numpy(), side="left"))
        _add_items(_BY_TIME, sets, graph, edge_type, parts, attributes)
        back = backs.get(edge_type)
        for one in [edge_type] if back is None else [edge_type, back]:
            kept[one] = _times(graph, one, edge_time_attr) <= int(cuts[0])
    return _split_of(sets, graph, kept)


def _check_graph(where: str, graph: Any) -> None:
    if not isinstance(graph, LocalGraph):
        raise TypeError(
            f"{where}: graph must be a CSCGraph or HeteroCSCGraph, got {type(graph).__name__}. Split the whole graph, "
            "then partition the graph that the split returns."
        )


def _times(graph: LocalGraph, edge_type: Any, name: str) -> Tensor:
    return _attribute(_BY_TIME, graph, edge_type, name, "edge_time_attr", torch.int64)


def _attribute(
    where: str, graph: LocalGraph, edge_type: Any, name: Any, argument: str, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the edge attribute `name`; raise ValueError if there is none, or if it is not of `dtype` [num_edges]."""
    attributes = graph.relation(edge_type).edge_attributes
    rows: Tensor | None = attributes.get(name)
    if rows is None or (dtype is not None and (rows.dtype != dtype or rows.ndim != 1)):
        found = "" if rows is None else f", {dtype_name(rows.dtype)} {[*rows.shape]}"
        how = "Name one of them" if attributes else "Add one to the graph"
        raise ValueError(
            f"{where}: {argument} is {shown(name)}{found}; the edges{of_type(edge_type)} have the attributes "
            f"{shown(sorted(attributes))}{'' if dtype is None else '; times must be int64 [num_edges]'}. {how}."
        )
    return rows


def _add_items(
    where: str,
    sets: list[dict[Any, ItemSet]],
    graph: LocalGraph,
    edge_type: Any,
    parts: Tensor,
    attributes: Mapping[str, str],
) -> None:
    """Add the edges of a type to the item sets; `parts` [num_edges] has the number of a set, or another number.

    Args:
        attributes: {field of the items: edge attribute}.
    """
    pairs, ids = items_of(where, graph.relation(edge_type), None, None)
    fields = {"labels": "label_attr", "timestamps": "edge_time_attr"}
    values = [_attribute(where, graph, edge_type, name, fields[field]) for field, name in attributes.items()]
    for number, items in enumerate(sets):
        mask = parts == number
        if bool(mask.any()):
            rows = (pairs[mask], ids[mask], *(value[mask] for value in values))
            items[edge_type] = ItemSet(rows, names=(*LINK_FIELDS, *attributes))


def _split_of(sets: list[dict[Any, ItemSet]], graph: LocalGraph, kept: Mapping[Any, Tensor]) -> LinkSplit:
    whole: list[Any] = [None if not items else items[None] if None in items else HeteroItemSet(items) for items in sets]
    return LinkSplit(whole[0], whole[1], whole[2], graph._of(with_edges_kept(graph._arrays(), kept)))


def _numbers(graph: LocalGraph, edge_type: Any, *, turn: bool) -> Tensor:
    """Return a code for each edge, int64 [num_edges]: source * (number of destination nodes) + destination.

    Parallel edges have equal codes. With `turn`, return for each edge the code of its reverse.
    """
    (src, dst), relation = ends_of(edge_type), graph.relation(edge_type)
    sources: Tensor = relation.indices.long()
    destinations = destinations_of(relation, None)
    if turn:
        sources, destinations, src, dst = destinations, sources, dst, src
    return sources * graph.num_nodes_of(dst) + destinations


def _links(graph: LocalGraph, edge_type: Any) -> tuple[Tensor, Tensor, int]:
    """Find the distinct links of an edge type: all edges between two nodes are one. Return (links, link_of, count).

    `links` is int64 [count], ascending: the code of each link, as `_numbers` makes it from the ends of an edge. Between
    nodes of one type, it is the smaller of the codes of both directions. `link_of` is int64 [num_edges]: the position
    in `links` of each edge's link.
    """
    src, dst = ends_of(edge_type)
    ends = _numbers(graph, edge_type, turn=False)
    if src == dst:
        ends = torch.minimum(ends, _numbers(graph, edge_type, turn=True))  # both directions are one link
    links, link_of = np.unique(ends.numpy(), return_inverse=True)
    return torch.from_numpy(links), torch.from_numpy(link_of.reshape(-1)), len(links)


def _reversed_links(graph: LocalGraph, edge_type: Any, back: Any, links: Tensor) -> Tensor:
    """Return, for each edge of type `back`, the position in `links` of the link that it reverses: int64 [num_edges].

    Args:
        edge_type: the type whose links are `links`.
        back: the type of the reverses of `edge_type`.
    Raises:
        ValueError: An edge has no reverse, or a reverse has no edge.
    """
    place, ends, alone, missing = _matched(graph, edge_type, back, links)
    for places, number, a, b in ((alone, ends, back, edge_type), (missing, links, edge_type, back)):
        if places.numel() > 0:
            u, v = divmod(int(number[int(places[0])]), graph.num_nodes_of(edge_type[2]))
            pair = (u, v) if a == edge_type else (v, u)
            raise ValueError(
                f"{_SPLIT}: the edge {pair} of {type_text(a)} has no reverse in {type_text(b)}, but "
                "reverse_etypes_mapping says that each edge has one. Add the reverses to the graph, or leave the type "
                "out of the mapping."
            )
    return place


def _refuse_reverses(graph: LocalGraph, edge_type: Any, links: Tensor) -> None:
    """Raise ValueError if another edge type has exactly the reverses of `links`, the links of `edge_type`."""
    for back in graph.edge_types:
        if back in (None, edge_type) or ends_of(back) != ends_of(edge_type)[::-1] or graph.num_edges_of(back) == 0:
            continue
        _, _, alone, missing = _matched(graph, edge_type, back, links)
        if alone.numel() == missing.numel() == 0:
            raise ValueError(
                f"{_SPLIT}: {type_text(back)} holds the reverse of each edge of {type_text(edge_type)}, but "
                "reverse_etypes_mapping does not name it, so the reverses of the test links would stay in the graph. "
                f"Add {{{edge_type}: {back}}}, or {{{edge_type}: None}} if the reverses tell nothing."
            )


def _matched(graph: LocalGraph, edge_type: Any, back: Any, links: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Match the edges of type `back`, which may be reverses, with the links of `edge_type`.

    Args:
        links: the codes of the links of `edge_type`, as `_links` returns them.
    Returns:
        (place, ends, alone, missing). `ends` has for each edge of `back` the code of the link that it would reverse,
        and `place` the position of this code in `links`. `alone` lists the edges of `back` whose code is not in
        `links`. `missing` lists the positions in `links` of codes that no edge of `back` has.
    """
    ends = _numbers(graph, back, turn=True)
    if edge_type[0] == edge_type[2]:
        ends = torch.minimum(ends, _numbers(graph, back, turn=False))
    place = torch.searchsorted(links, ends)
    is_link = torch.cat((links, torch.tensor([-1])))[place] == ends  # -1: the place behind the last link
    there = torch.zeros(len(links), dtype=torch.bool)
    there[place[is_link]] = True
    return place, ends, (~is_link).nonzero(), (~there).nonzero()


def _sizes(validation: Any, test: Any, count: int, edge_type: Any) -> tuple[int, int]:
    """Return (number of validation links, number of test links), given shares or numbers of the `count` links."""
    sizes = []
    for name, share in (("validation", validation), ("test", test)):
        if isinstance(share, (int, np.integer)) and not isinstance(share, bool):
            sizes.append(check_int(_SPLIT, name, share, 0))
        elif isinstance(share, (float, np.floating)) and 0 <= share < 1:
            sizes.append(int(share * count))
        else:
            raise ValueError(
                f"{_SPLIT}: {name} must be a share of the links (a float in [0, 1)) or their number (an int), got "
                f"{shown(share)}. Pass 0.1, for example."
            )
    if sum(sizes) >= count:
        raise ValueError(
            f"{_SPLIT}: validation and test take {sum(sizes)} of {count} links{of_type(edge_type)}; at least 1 must be "
            "left for training. Lower validation or test."
        )
    return sizes[0], sizes[1]
