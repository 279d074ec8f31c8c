"""The data of a server: a part of a partition, or a whole graph. And the Offers: what the chains of clients may use on
this server.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
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
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.features.feature_store import FeatureStore
from datapipes.features.tensor_feature import TensorFeature
from datapipes.graph.graph import Graph
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.saved import is_saved_graph, open_graph
from datapipes.minibatch import SparseRows
from datapipes.partition.book import PartitionBook, RangeMap
from datapipes.partition.native.native_book import identity_of, open_book
from datapipes.partition.native.part import Part
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet

_READ_BYTES = 2**26


class Served(NamedTuple):
    """The data of a server: either a part or a whole graph (the other is None), and the facts of the partition.

    For a whole graph, the facts describe a partition with one part.
    """

    facts: PartitionFacts
    part: Part | None
    graph: LocalGraph | None


def served(where: str, root: Path | Part | LocalGraph, part: int | None, *, verify: bool, mmap: bool) -> Served:
    """Open the part or graph in the folder `root`, unless `root` itself is an open one. Return the part or graph with
    its facts.

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
    maps = {node_type: RangeMap(torch.tensor([0, graph.num_nodes_of(node_type)])) for node_type in graph.node_types}
    identity = identity_of(graph, PartitionBook(1, maps), None)
    return PartitionFacts(**vars(identity), index_dtype=graph.index_dtype, features=graph.forms())


class Offers:
    """What the chains of clients may use on a server: classes of stages, item sets, the graph, and features. See the
    arguments of PartitionServer. The constructor gets what the user offers; the method `over` then checks these offers
    against the server's data. `graph` and `features` are opened when they are first read; only one thread at a time may
    do this.

    Attributes:
        keys: the names of the graph's attributes that chains may fetch, if the user gave names. None in two other
            cases: the user gave nothing, and chains may fetch no feature; or the user gave feature stores, and chains
            may fetch all features in them.
        content_id: identifies the data; servers with other data have another id. Exists only in what `over` returns.
    """

    _has: Served
    content_id: str

    def __init__(self, where: str, stages: Any, items: Any, features: Any, namebook: Any, security: Security) -> None:
        self._where, self._namebook, self._security = where, namebook, security
        self.stages: Sequence[type[Stage]] = tuple(stages)
        wrong = [stage for stage in self.stages if not (isinstance(stage, type) and issubclass(stage, Stage))]
        if wrong:
            raise TypeError(f"{where}: stages must be classes of stages, got {shown(wrong[0])}. Pass [MyStage].")
        self.items: Mapping[str, ItemSet | HeteroItemSet] = dict(items or {})
        for name, value in self.items.items():
            if not isinstance(name, str) or not isinstance(value, (ItemSet, HeteroItemSet)):
                raise TypeError(
                    f"{where}: items must be {{name: item set}}, got {shown(name)}: {type(value).__name__}."
                )
        self.keys, self._stores = _features(where, features)

    def over(self, has: Served) -> Offers:
        """Check these offers against `has`, the data of the server; return a copy that uses this data.

        Raises:
            ValueError: There are several parts, but no namebook of the other parts. Or the data lack an attribute that
                `features` names.
        """
        where, part, names = self._where, has.part, {name for _, _, name in has.facts.features}
        if part is not None and part.num_parts > 1 and self._namebook is None:
            raise ValueError(
                f"{where}: it has part {part.part} of {part.num_parts}, and no namebook of the others, which chains "
                "ask. Start it with namebook=, or --namebook."
            )
        unknown = sorted({*(self.keys or ())} - names)
        if unknown:
            raise ValueError(f"{where}: features has {unknown}, which are no attributes; there are {sorted(names)}.")
        opened, content_id = copy.copy(self), has.facts.content_id
        opened._has = has
        opened.content_id = content_id if self._stores is None else f"{content_id} {_digest_of(self._stores)}"
        return opened

    @cached_property
    def graph(self) -> Graph:
        facts, part, graph = self._has
        if graph is not None:
            return graph
        assert part is not None
        where, security = self._where, self._security
        namebook = {} if part.num_parts == 1 else self._namebook
        addresses = addresses_of_others(where, namebook, part.num_parts, part.part, security)
        return DistGraph(facts, part.book, peers_at(where, addresses, facts, namebook, security), part)

    @cached_property
    def features(self) -> FeatureStore | Mapping[str, FeatureStore] | None:
        """The feature store that chains fetch from, or {name: store}; None if no features are offered."""
        if self.keys is None:
            stores: FeatureStore | Mapping[str, FeatureStore] | None = self._stores
            return stores
        graph = self.graph
        if isinstance(graph, DistGraph):
            return DistFeatureStore(graph)
        features: dict[Any, Any] = {}
        for domain, type_, name in graph.forms():
            if name in self.keys:
                is_node = domain == "node"
                rows = graph.node_attributes_of(type_)[name] if is_node else _by_id(graph.relation(type_), name)
                features[domain, type_, name] = TensorFeature(rows)
        return FeatureStore(features)


def _features(where: str, features: Any) -> tuple[Sequence[str] | None, Any]:
    """Find out what the user gave as `features`, and return (names, stores). Names of attributes: (names, None). One
    store or several: (None, the store or stores). Nothing: (None, None).
    """
    if features is None:
        return None, None
    stores = features if isinstance(features, Mapping) and not isinstance(features, FeatureStore) else {None: features}
    if all(isinstance(entry, FeatureStore) for entry in stores.values()):
        return None, features
    if isinstance(features, (list, tuple)) and all(isinstance(entry, str) for entry in features):
        return tuple(features), None
    raise TypeError(
        f"{where}: features must be names of attributes, a FeatureStore, or {{name: FeatureStore}}, got "
        f"{shown(features)}."
    )


def _by_id(relation: Any, name: str) -> Tensor:
    """Return the edge attribute `name` of a relation, with row i for the edge with the id i. In the graph, the rows are
    in the order in which edges are stored.
    """
    values: Tensor = relation.edge_attributes[name]
    if relation.edge_ids is None or values.shape[0] == 0:
        return values
    rows = values.new_zeros((int(relation.edge_ids.max()) + 1, *values.shape[1:]))
    rows[relation.edge_ids] = values
    return rows


def _digest_of(stores: Any) -> str:
    """Return a digest of all rows of a feature store, or of {name: store}. This reads each row once."""
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
                for tensor in rows._parts().values() if isinstance(rows, SparseRows) else [rows]:
                    digest.update(flat_bytes(tensor).data)
    return digest.hexdigest()
