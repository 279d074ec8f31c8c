"""What a server has: a part of a partition or a whole graph; and what it offers to chains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.cached import cached_property
from datapipes.base.checks import dtype_name, shown
from datapipes.base.codec import flat_bytes
from datapipes.chain.stage import Stage
from datapipes.distributed.connecting import Security, addresses_of_others, peers_at
from datapipes.distributed.dist_feature_store import DistFeatureStore
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.facts import PartitionFacts
from datapipes.features.feature_store import FeatureStore
from datapipes.features.tensor_feature import TensorFeature
from datapipes.graph.graph import Graph
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.saved import is_saved_graph, open_graph
from datapipes.minibatch import SparseRows
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import RangeMap
from datapipes.partition.native.native_book import identity_of, open_book
from datapipes.partition.native.part import Part
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet

_READ_BYTES = 2**26


class Served(NamedTuple):
    """A part, or a whole graph, and its facts; those of a whole graph are of a partition in one part."""

    facts: PartitionFacts
    part: Part | None
    graph: LocalGraph | None


@dataclass(frozen=True)
class Offers:
    """What a server has for chains.

    Attributes:
        graph: returns the graph.
        features: returns the store that has what `keys` names; None where there is none.
        keys: names of features that may be fetched; None for all of the store.
        content_id: tells these data from others.
    """

    graph: Callable[[], Graph]
    features: Callable[[], FeatureStore | Mapping[str, FeatureStore]] | None = None
    keys: Sequence[str] | None = None
    items: Mapping[str, ItemSet | HeteroItemSet] = field(default_factory=dict)
    stages: Sequence[type[Stage]] = ()
    content_id: str = ""


def served(where: str, root: Path | Part | LocalGraph, part: int | None, *, verify: bool, mmap: bool) -> Served:
    """Return what is in a folder, or was opened already.

    Raises:
        FileNotFoundError: `root` holds neither a native partition nor a saved graph, or files are missing.
        ValueError: The partition has several parts and none was named, or there is no such part; a file is not valid.
    """
    if isinstance(root, Path) and part is None and is_saved_graph(root):
        root = open_graph(root, mmap=mmap)
    if isinstance(root, Graph):
        return Served(_facts_of(root), None, root)
    if not isinstance(root, Part):
        root = Part.open(root, _only_part(where, root) if part is None else part, verify=verify, mmap=mmap)
    return Served(PartitionFacts.of(root), root, None)


def _only_part(where: str, root: Path) -> int:
    num_parts = open_book(root, verify=False).num_parts
    if num_parts != 1:
        raise ValueError(
            f"{where}: {root} has {num_parts} parts; a server has one of them. Pass part, in [0, {num_parts})."
        )
    return 0


def _facts_of(graph: LocalGraph) -> PartitionFacts:
    maps = {of: RangeMap(torch.tensor([0, graph.num_nodes_of(of)])) for of in graph.node_types}
    identity = identity_of(graph, PartitionBook(1, maps), None)
    return PartitionFacts(**vars(identity), index_dtype=graph.index_dtype, features=graph.forms())


class ChainOffers:
    """What the user said that chains may use, checked; graphs and stores are opened when the first chain needs them."""

    def __init__(
        self,
        where: str,
        stages: Any,
        items: Any,
        features: Any,
        namebook: Any,
        security: Security,
    ) -> None:
        self._where, self._namebook, self._security = where, namebook, security
        self._stages: Sequence[type[Stage]] = tuple(stages)
        wrong = [each for each in self._stages if not (isinstance(each, type) and issubclass(each, Stage))]
        if wrong:
            raise TypeError(f"{where}: stages must be classes of stages, got {shown(wrong[0])}. Pass [MyStage].")
        self._items: Mapping[str, ItemSet | HeteroItemSet] = dict(items or {})
        for name, each in self._items.items():
            if not isinstance(name, str) or not isinstance(each, (ItemSet, HeteroItemSet)):
                raise TypeError(f"{where}: items must be {{name: item set}}, got {shown(name)}: {type(each).__name__}.")
        self._names, self._stores = _features(where, features)

    def of(self, has: Served) -> Offers:
        """Return what a server offers that has this."""
        if has.part is not None and has.part.num_parts > 1 and self._namebook is None:
            raise ValueError(
                f"{self._where}: it has part {has.part.part} of {has.part.num_parts}, and no namebook of the others, "
                "which chains ask. Start it with namebook=, or --namebook."
            )
        unknown = sorted({*(self._names or ())} - {name for _, _, name in has.facts.features})
        if unknown:
            raise ValueError(
                f"{self._where}: features has {unknown}, which are no attributes; there are "
                f"{sorted({name for _, _, name in has.facts.features})}."
            )
        opened = _Opened(self._where, has, self._names, self._namebook, self._security)
        if self._stores is None:
            found: Callable[[], Any] | None = None if self._names is None else lambda: opened.store
            return Offers(lambda: opened.graph, found, self._names, self._items, self._stages, has.facts.content_id)
        stores = self._stores
        data = f"{has.facts.content_id} {_digest_of(stores)}"
        return Offers(lambda: opened.graph, lambda: stores, None, self._items, self._stages, data)


def _features(where: str, given: Any) -> tuple[Sequence[str] | None, Any]:
    """Return the names of attributes that may be fetched, and the stores that were given in their place."""
    if given is None:
        return None, None
    stores = given if isinstance(given, Mapping) and not isinstance(given, FeatureStore) else {None: given}
    if all(isinstance(each, FeatureStore) for each in stores.values()):
        return None, given
    if isinstance(given, (list, tuple)) and all(isinstance(each, str) for each in given):
        return tuple(given), None
    raise TypeError(
        f"{where}: features must be names of attributes, a FeatureStore, or {{name: FeatureStore}}, got {shown(given)}."
    )


class _Opened:
    """The graph and the store that chains read, each made when it is first asked for; by one thread at a time."""

    def __init__(self, where: str, has: Served, names: Any, namebook: Any, security: Security) -> None:
        self._where, self._has, self._names = where, has, names
        self._namebook, self._security = namebook, security

    @cached_property
    def graph(self) -> Graph:
        facts, part, graph = self._has
        if graph is not None:
            return graph
        assert part is not None
        where, namebook, security = self._where, {} if part.num_parts == 1 else self._namebook, self._security
        addresses = addresses_of_others(where, namebook, part.num_parts, part.part, security)
        return DistGraph(facts, part.book, peers_at(where, addresses, facts, namebook, security), part)

    @cached_property
    def store(self) -> FeatureStore:
        graph = self.graph
        if isinstance(graph, DistGraph):
            return DistFeatureStore(graph)
        features: dict[Any, Any] = {}
        for domain, of, name in graph.forms():
            if name in self._names:
                rows = graph.node_attributes_of(of)[name] if domain == "node" else _by_id(graph.relation(of), name)
                features[domain, of, name] = TensorFeature(rows)
        return FeatureStore(features)


def _by_id(relation: Any, name: str) -> Tensor:
    """Return an attribute of edges by edge id; a graph has it in the order of its edges."""
    values: Tensor = relation.edge_attributes[name]
    if relation.edge_ids is None or values.shape[0] == 0:
        return values
    rows = values.new_zeros((int(relation.edge_ids.max()) + 1, *values.shape[1:]))
    rows[relation.edge_ids] = values
    return rows


def _digest_of(stores: Any) -> str:
    """Return a digest of all rows of stores that were given; each is read once."""
    digest = hashlib.blake2b(digest_size=16)
    for name, store in ({None: stores} if isinstance(stores, FeatureStore) else stores).items():
        for key in sorted(store, key=str):
            feature = store[key]
            form = [name, *map(str, key), dtype_name(feature.dtype), [*feature.shape], feature.count]
            digest.update(json.dumps(form).encode())
            first = torch.arange(min(feature.count, 1000))
            step = max(_READ_BYTES * len(first) // max(feature.bytes_for(first), 1), 1)
            for begin in range(0, feature.count, step):
                rows: Any = feature.read(torch.arange(begin, min(begin + step, feature.count)))
                for each in rows._parts().values() if isinstance(rows, SparseRows) else [rows]:
                    digest.update(flat_bytes(each).data)
    return digest.hexdigest()
