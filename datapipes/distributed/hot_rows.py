"""The cache of a DistFeatureStore: rows of nodes of other parts, in one piece of memory that worker processes map.

The cache has the rows with the most accesses per byte. The accesses to a node were counted by a loader, or are
estimated as the number of edges from the node into the local part. The cache is filled when the store is made, and only
read after that.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_index_tensor, shown
from datapipes.base.forms import RowForm
from datapipes.base.rows import new_rows
from datapipes.base.sizes import check_memory
from datapipes.base.types import NodeType
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.partition.native.part import Part
from datapipes.processes.copies import ALIGNED, zeros_together
from datapipes.processes.sharing import Together

AT_ONCE = 2**26  # bytes of rows that are asked for at a time while the cache is filled

Read = Callable[[NodeType | None, Tensor, Mapping[str, Tensor]], Any]  # (type, ids, {name: tensor to fill})


@dataclass(frozen=True)
class Hot:
    """Nodes of one type that are in the cache, or are candidates for it.

    Attributes:
        node_type: the type; None in a graph without types.
        num_ids: number of nodes of the type in the whole graph.
        forms: {name: dtype and shape of a row} of the features that are cached, sorted by name.
        ids: int64 [n], distinct. Candidates are sorted by descending count; the nodes in the cache by ascending id.
        counts: int64 [n], accesses to each node, counted or estimated.
    """

    node_type: NodeType | None
    num_ids: int
    forms: Mapping[str, RowForm]
    ids: Tensor
    counts: Tensor

    @property
    def row_bytes(self) -> int:
        """Bytes that one node takes in the cache: a row of each feature."""
        return sum(form.num_bytes for form in self.forms.values())

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not depend on the number of cached nodes: the index, and the alignment of tables."""
        return _core.IdRank.size_bytes(self.num_ids) + ALIGNED * (1 + len(self.forms))

    @property
    def num_bytes(self) -> int:
        """Bytes that a cache of all these nodes takes."""
        return self.fixed_bytes + self.row_bytes * self.ids.shape[0]

    def first(self, count: int) -> Hot:
        """Return a Hot with the first `count` nodes only, sorted by ascending id."""
        ids, order = self.ids[:count].sort()
        return Hot(self.node_type, self.num_ids, self.forms, ids, self.counts[:count][order])


def choose_hot(where: str, all_hot: list[Hot], cache_bytes: int) -> list[Hot]:
    """Choose which of the candidates `all_hot` go into a cache of `cache_bytes`: the nodes with the most accesses per
    byte. Return a Hot for each node type with such nodes, sorted by ascending id.

    A node is cached with all of its features in `all_hot`, or not at all.

    Raises:
        ValueError: There are candidates, but `cache_bytes` is too small for a single one.
    """
    all_hot = [hot for hot in all_hot if hot.row_bytes > 0 and hot.ids.shape[0] > 0]
    kept = all_hot
    while kept:
        counts = _prefixes(kept, cache_bytes - sum(hot.fixed_bytes for hot in kept))
        if all(count > 0 for count in counts):
            return [hot.first(count) for hot, count in zip(kept, counts, strict=True)]
        unused = [hot for hot, count in zip(kept, counts, strict=True) if count == 0]
        largest = max(unused, key=lambda hot: hot.fixed_bytes)  # its index takes room from other types
        kept = [hot for hot in kept if hot is not largest]
    if all_hot:
        least = min(hot.fixed_bytes + hot.row_bytes for hot in all_hot)
        raise ValueError(
            f"{where}: cache_bytes is {cache_bytes}, but a cache of one row takes {least} bytes with its index. Give "
            "more, or 0 for no cache."
        )
    return []


def hot_by_edges(facts: PartitionFacts, part: Part) -> list[Hot]:
    """Return the candidates for the cache if no accesses were counted: the nodes of other parts with edges into `part`,
    with all their features. The number of these edges stands for a node's accesses. The result has a Hot for each node
    type.
    """
    return [_hot_of(facts, node_type, None, *part.hot_nodes(node_type)) for node_type in part.node_types]


def hot_by_counts(where: str, facts: PartitionFacts, part: Part | None, counts: Any) -> list[Hot]:
    """Return the candidates for the cache if accesses were counted: the nodes of other parts that were accessed, most
    accessed first. The result has a Hot for each node type in `counts`.

    A node's accesses are the largest count among its features, so that a request for several features counts once.

    Args:
        part: the part in this process, whose own nodes are left out; None if there is none.
        counts: the argument `cache_by` of DistFeatureStore.
    Raises:
        TypeError, ValueError, KeyError: `counts` is invalid, or names an unknown feature.
    """
    if not isinstance(counts, Mapping):
        raise TypeError(f"{where}: cache_by must be a dict, got {shown(counts)}. Pass dp.count_accesses(loader).")
    by_type: dict[NodeType | None, dict[str, Tensor]] = {}
    for key, num_asked in counts.items():
        if key not in facts.features:
            raise KeyError(
                f"{where}: cache_by has counts for {shown(key)}, which is no feature of the store; it has "
                f"{shown([*facts.features])}. Pass dp.count_accesses(loader), with a loader that fetches these."
            )
        domain, node_type, name = key
        if domain == "node":
            wanted = check_index_tensor(f"{where}: cache_by", shown(key), num_asked)
            if wanted.shape[0] != facts.num_nodes[node_type]:
                raise ValueError(
                    f"{where}: cache_by has {wanted.shape[0]} counts for {shown(key)}, the whole graph has "
                    f"{facts.num_nodes[node_type]} such nodes; one for each is needed. Count the accesses of this "
                    "graph."
                )
            by_type.setdefault(node_type, {})[name] = wanted.long()
    if not by_type:
        raise ValueError(
            f"{where}: cache_by has no node feature, got {shown([*counts])}; only rows of nodes are cached. Count the "
            "accesses of a loader that fetches some, or leave cache_by out."
        )
    all_hot = []
    for node_type, by_name in by_type.items():
        most = torch.stack([*by_name.values()]).amax(0)
        if part is not None:
            most[part.node_ids(node_type)] = 0
        order = most.argsort(descending=True, stable=True)  # on ties the smaller ids come first
        ids = order[: int((most > 0).sum())]
        all_hot.append(_hot_of(facts, node_type, by_name, ids, most[ids]))
    return all_hot


def _hot_of(
    facts: PartitionFacts, node_type: NodeType | None, names: Container[str] | None, ids: Tensor, counts: Tensor
) -> Hot:
    """Return a Hot for the nodes `ids` with their `counts`, and with the features `names` of their type. If `names` is
    None, with all features.
    """
    forms = {
        name: form for (domain, type_, name), form in sorted(facts.features.items(), key=lambda entry: entry[0][2])
        if (domain, type_) == ("node", node_type) and (names is None or name in names)
    }  # fmt: skip
    return Hot(node_type, facts.num_nodes[node_type], forms, ids, counts)


def _prefixes(all_hot: list[Hot], num_bytes: int) -> list[int]:
    """Find how many nodes of each Hot fit into `num_bytes`, if nodes of all types are taken in the order of their
    accesses per byte. Return these numbers, one for each Hot. The nodes that fit are the first ones of the Hot.
    """
    numbers = torch.cat([torch.full(hot.ids.shape, number) for number, hot in enumerate(all_hot)])
    per_byte = torch.cat([hot.counts.double() / hot.row_bytes for hot in all_hot])
    order = per_byte.sort(descending=True, stable=True).indices  # stable: keeps the order within a type
    sizes = torch.tensor([hot.row_bytes for hot in all_hot])[numbers[order]]
    fitting = numbers[order][sizes.cumsum(0) <= num_bytes]
    return [int((fitting == number).sum()) for number in range(len(all_hot))]


class HotTable:
    """The cached rows of one node type.

    Attributes:
        tables: {feature name: rows, [number of cached nodes, ...]}, in ascending order of the nodes' ids.
        rank: C++ index from a node's id to its row in `tables`; -1 if the node is not cached.
    """

    def __init__(self, lines: Tensor, num_ids: int, tables: Mapping[str, Tensor]) -> None:
        self.tables = tables
        if lines.data_ptr() % ALIGNED != 0:  # a plain pickle was loaded into other memory
            lines = new_rows(lines.shape[0], (), torch.uint8).copy_(lines)
        self.rank = _core.IdRank.over(lines.numpy(), num_ids)


class HotRows:
    """The cached rows of all node types.

    Attributes:
        tables: {node type: its HotTable}; a type without cached rows is left out.
        num_bytes: bytes of the memory, index included.
    """

    def __init__(self, shapes: list[tuple[NodeType | None, int, list[str]]], tensors: Iterable[Tensor]) -> None:
        self._shapes, self._tensors = shapes, [*tensors]
        self.num_bytes = sum(tensor.nbytes for tensor in self._tensors)
        rest = iter(self._tensors)
        self.tables = {
            type_: HotTable(next(rest), num_ids, {name: next(rest) for name in names})
            for type_, num_ids, names in shapes
        }

    @classmethod
    def filled(cls, where: str, all_hot: Sequence[Hot], read: Read) -> HotRows:
        """Allocate the cache for the nodes in `all_hot`, fill it by calls of `read`, and return it.

        Args:
            all_hot: what `choose_hot` returned; ids must be sorted.
            read: function (node type, ids, {feature name: tensor to fill}). Each call reads about AT_ONCE bytes of
                rows.
        Raises:
            MemoryError: Too little memory is left.
            The errors of `read`.
        """
        check_memory(where, "the cache", sum(hot.num_bytes for hot in all_hot), "Give fewer cache_bytes.")
        forms: list[tuple[tuple[int, ...], torch.dtype]] = []
        for hot in all_hot:
            forms.append(((_core.IdRank.size_bytes(hot.num_ids),), torch.uint8))
            forms += [((hot.ids.shape[0], *form.shape), form.dtype) for form in hot.forms.values()]
        tensors = zeros_together(forms) if forms else []
        lines = iter(tensors)
        for hot in all_hot:
            _core.IdRank(hot.ids.numpy(), hot.num_ids).copy_lines(next(lines).numpy())
            outs = {name: next(lines) for name in hot.forms}
            step = max(AT_ONCE // hot.row_bytes, 1)
            for begin in range(0, hot.ids.shape[0], step):
                some = slice(begin, begin + step)
                read(hot.node_type, hot.ids[some], {name: out[some] for name, out in outs.items()})
        return cls([(hot.node_type, hot.num_ids, [*hot.forms]) for hot in all_hot], tensors)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle all tensors together, so that a worker process maps them as one piece of memory."""
        return HotRows, (self._shapes, Together(self._tensors))
