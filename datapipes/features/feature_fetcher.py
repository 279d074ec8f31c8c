"""FeatureFetcher: reads the features of a minibatch's nodes and edges.

A feature that is missing or too short is refused when the chain is built, as far as the sampler upstream tells: it
knows the graph, and whether the blocks have edge ids. A node feature with rows for more nodes than the graph has is
allowed, but the log says so: often it belongs to another graph.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.log import logger
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.features.feature_store import FeatureRequest, FeatureStore
from datapipes.graph import CSCGraph
from datapipes.minibatch import MiniBatch
from datapipes.sampling import Sampler

__all__ = ["FeatureFetcher"]

# The features, by name and number of rows, of which the log has said for a graph that they are too long. A chain is
# rebuilt often, by passes of the DataLoader and by copies; one word of it is enough.
_told: weakref.WeakKeyDictionary[CSCGraph, set[tuple[str, int]]] = weakref.WeakKeyDictionary()
_here = threading.local()  # `silent` while a stage is unpickled: the process that built the chain has said it


@register_stage("fetch_feature")
class FeatureFetcher(MiniBatchTransformer):
    """Fill `node_features` (rows of `input_nodes`) and `edge_features` (rows of each block's `edge_ids`).

    Args:
        feature_store: where the features are.
        node_feature_keys, edge_feature_keys: names of the features to read; None reads none. Features that an earlier
            stage fetched under other names stay. If nothing was sampled, node features are those of 1-D seeds. The log
            says once, at level WARNING, if a node feature has more rows than the sampled graph has nodes.
    Raises:
        KeyError: The store has no such feature.
        ValueError: A feature has fewer rows than the sampled graph has nodes or edge ids, or edge features are asked
            for and the sampler upstream does not return edge ids.
    """

    draws = False

    def __init__(
        self,
        source: Stage,
        feature_store: FeatureStore,
        node_feature_keys: Sequence[str] | None = None,
        edge_feature_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(source)
        if not isinstance(feature_store, FeatureStore):
            raise TypeError(
                f"fetch_feature: feature_store must be a FeatureStore, got {type(feature_store).__name__}. Wrap the "
                "features: dp.FeatureStore({('node', None, 'feat'): dp.TensorFeature(tensor)})."
            )
        self.feature_store = feature_store
        self.node_feature_keys = self._check_names("node", node_feature_keys)
        self.edge_feature_keys = self._check_names("edge", edge_feature_keys)
        fills = {"node_features": self.node_feature_keys, "edge_features": self.edge_feature_keys}
        self.fills = tuple(field for field, names in fills.items() if names)
        self._check_upstream()

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        edge_ids_of_blocks = self._edge_ids_of_blocks(minibatch) if self.edge_feature_keys else []
        requests: list[FeatureRequest] = []
        if self.node_feature_keys:
            nodes = _nodes_of(minibatch)
            requests += [("node", None, name, nodes) for name in self.node_feature_keys]
        for edge_ids in edge_ids_of_blocks:
            requests += [("edge", None, name, edge_ids) for name in self.edge_feature_keys]
        if not requests:
            return minibatch.replace()
        read = iter(self._read(requests))
        changes: dict[str, Any] = {}
        if self.node_feature_keys:
            of_nodes = {name: next(read) for name in self.node_feature_keys}
            changes["node_features"] = {**(minibatch.node_features or {}), **of_nodes}
        if self.edge_feature_keys:
            before = minibatch.edge_features or [{}] * len(edge_ids_of_blocks)
            of_edges = [{name: next(read) for name in self.edge_feature_keys} for _ in edge_ids_of_blocks]
            changes["edge_features"] = [{**old, **new} for old, new in zip(before, of_edges, strict=True)]
        return minibatch.replace(**changes)

    def _edge_ids_of_blocks(self, minibatch: MiniBatch) -> list[Tensor]:
        """Return the edge ids of each block."""
        if minibatch.blocks is None:
            raise ValueError(
                "fetch_feature: edge features need blocks, found none in the minibatch. Put a sampler before this "
                "stage."
            )
        found = [block.edge_ids for block in minibatch.blocks if block.edge_ids is not None]
        if len(found) < len(minibatch.blocks):
            raise ValueError(
                "fetch_feature: edge features need edge ids, found a block without. Sample with return_edge_ids=True."
            )
        return found

    def _read(self, requests: list[FeatureRequest]) -> list[Tensor]:
        """Return the rows of each request, by one call of the store."""
        try:
            found = self.feature_store.read_many(requests)
        except IndexError as error:
            raise IndexError(f"fetch_feature: {error}") from error
        if len(found) != len(requests):
            raise ValueError(
                f"fetch_feature: read_many gave {len(found)} tensors for {len(requests)} requests; one for each is "
                "needed. Correct the store's read_many()."
            )
        for (domain, _, name, ids), rows in zip(requests, found, strict=True):
            if not isinstance(rows, Tensor) or rows.ndim == 0 or rows.shape[0] != ids.shape[0]:
                given = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
                raise ValueError(
                    f"fetch_feature: {domain} feature {name!r} gave {given} for {ids.shape[0]} ids; a tensor with one "
                    "row for each is needed. Correct its read()."
                )
        return found

    def _check_names(self, domain: str, names: Sequence[str] | None) -> list[str]:
        if names is None:
            return []
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"fetch_feature: {domain}_feature_keys must be a list of names, got {shown(names)}. Write ['feat']."
            )
        for name in names:
            if (domain, None, name) not in self.feature_store:
                raise KeyError(
                    f"fetch_feature: no {domain} feature {shown(name)}; the store has "
                    f"{self.feature_store.names(domain)}. Add it to the store, or drop it from {domain}_feature_keys."
                )
        return list(names)

    def _check_upstream(self) -> None:
        """Check the features against the graph and the edge ids of the nearest sampler upstream."""
        samplers = StageGraph(self).find(Sampler)
        if not samplers:
            return
        graph, gives_edge_ids = samplers[-1].graph, samplers[-1].return_edge_ids
        for name in self.node_feature_keys:
            rows = self.feature_store["node", None, name].count
            if rows < graph.num_nodes:
                raise ValueError(
                    f"fetch_feature: node feature {name!r} has {rows} rows, but the sampled graph has "
                    f"{graph.num_nodes} nodes; one row for each is needed. Fill up the feature, or sample the graph it "
                    "belongs to."
                )
            if rows > graph.num_nodes:
                _tell_once(graph, name, rows)
        for name in self.edge_feature_keys:
            rows = self.feature_store["edge", None, name].count
            if rows <= graph.max_edge_id:
                raise ValueError(
                    f"fetch_feature: edge feature {name!r} has {rows} rows, but the sampled graph has edge ids up to "
                    f"{graph.max_edge_id}; one row for each is needed. Fill up the feature, or sample the graph it "
                    "belongs to."
                )
        if self.edge_feature_keys and not gives_edge_ids:
            raise ValueError(
                f"fetch_feature: edge features {self.edge_feature_keys} need edge ids, but the sampler upstream was "
                "built with return_edge_ids=False. Build it with return_edge_ids=True."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_silence, super().__reduce__()

    def describe(self) -> dict[str, Any]:
        keys = {"node": self.node_feature_keys, "edge": self.edge_feature_keys}
        return {f"{domain}_feature_keys": names for domain, names in keys.items() if names}


def _tell_once(graph: CSCGraph, name: str, rows: int) -> None:
    told = _told.setdefault(graph, set())
    if getattr(_here, "silent", False) or (name, rows) in told:
        return
    told.add((name, rows))
    logger.warning(
        "fetch_feature: node feature %r has %d rows, but the sampled graph has %d nodes; one row for each is expected, "
        "the others are never read. Check that the feature belongs to this graph.",
        *(name, rows, graph.num_nodes),
    )


def _in_silence(build: Callable[..., FeatureFetcher], arguments: tuple[Any, ...]) -> FeatureFetcher:
    """Unpickle a FeatureFetcher; a worker does not repeat what the log of its parent has said."""
    before = getattr(_here, "silent", False)
    _here.silent = True
    try:
        return build(*arguments)
    finally:
        _here.silent = before


def _nodes_of(minibatch: MiniBatch) -> Tensor:
    if minibatch.input_nodes is not None:
        return minibatch.input_nodes
    if minibatch.seeds is None or minibatch.seeds.ndim != 1:
        found = "no seeds" if minibatch.seeds is None else f"seeds of shape {list(minibatch.seeds.shape)}"
        raise ValueError(
            f"fetch_feature: node features need input_nodes, or 1-D seeds where nothing was sampled; found {found}. "
            "Put a sampler before this stage."
        )
    return minibatch.seeds
