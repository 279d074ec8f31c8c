"""FeatureFetcher: reads the features of a minibatch's nodes and edges.

What is missing or too short is refused when the chain is built, as far as the stages upstream tell: the graph that
is sampled, and whether edge ids are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.features.feature_store import FeatureStore
from datapipes.minibatch import MiniBatch


@register_stage("fetch_feature")
class FeatureFetcher(MiniBatchTransformer):
    """Fill `node_features` (rows of `input_nodes`) and `edge_features` (rows of each block's `edge_ids`).

    Args:
        feature_store: where the features are.
        node_feature_keys, edge_feature_keys: names of the features to read; None reads none. What an earlier stage
            fetched under other names stays. Where nothing was sampled, node features are those of 1-D seeds.
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
        self._check_upstream()

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        changes: dict[str, Any] = {}
        if self.node_feature_keys:
            nodes = _nodes_of(minibatch)
            read = {name: self._read("node", name, nodes) for name in self.node_feature_keys}
            changes["node_features"] = {**(minibatch.node_features or {}), **read}
        if self.edge_feature_keys:
            if minibatch.blocks is None:
                raise ValueError(
                    "fetch_feature: edge features need blocks, found none in the minibatch. Put a sampler before "
                    "this stage."
                )
            features = []
            fetched_before = minibatch.edge_features or [{}] * len(minibatch.blocks)
            for block, before in zip(minibatch.blocks, fetched_before, strict=True):
                if block.edge_ids is None:
                    raise ValueError(
                        "fetch_feature: edge features need edge ids, found a block without. Sample with "
                        "return_edge_ids=True."
                    )
                read = {name: self._read("edge", name, block.edge_ids) for name in self.edge_feature_keys}
                features.append({**before, **read})
            changes["edge_features"] = features
        return minibatch.replace(**changes)

    def _read(self, domain: str, name: str, ids: Tensor) -> Tensor:
        try:
            rows = self.feature_store.read(domain, None, name, ids)
        except IndexError as error:
            raise IndexError(f"fetch_feature: {domain} feature {name!r}: {error}") from error
        if not isinstance(rows, Tensor) or rows.ndim == 0 or rows.shape[0] != ids.shape[0]:
            found = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise ValueError(
                f"fetch_feature: {domain} feature {name!r} gave {found} for {ids.shape[0]} ids; a tensor with one row "
                "for each is needed. Correct its read()."
            )
        return rows

    def _check_names(self, domain: str, names: Sequence[str] | None) -> list[str]:
        if names is None:
            return []
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"fetch_feature: {domain}_feature_keys must be a list of names, got {names!r}. Write ['feat']."
            )
        for name in names:
            if (domain, None, name) not in self.feature_store:
                raise KeyError(
                    f"fetch_feature: no {domain} feature {name!r}; the store has {self.feature_store.names(domain)}. "
                    f"Add it to the store, or drop it from {domain}_feature_keys."
                )
        return list(names)

    def _check_upstream(self) -> None:
        upstream = list(reversed(StageGraph(self).walk()))
        graph = next((stage.graph for stage in upstream if hasattr(stage, "graph")), None)
        num_nodes = getattr(graph, "num_nodes", None)
        for name in self.node_feature_keys:
            rows = self.feature_store["node", None, name].count
            if isinstance(num_nodes, int) and rows < num_nodes:
                raise ValueError(
                    f"fetch_feature: node feature {name!r} has {rows} rows, but the sampled graph has {num_nodes} "
                    "nodes; one row for each is needed. Fill up the feature, or sample the graph it belongs to."
                )
        last_edge = getattr(graph, "max_edge_id", -1) if self.edge_feature_keys else -1
        for name in self.edge_feature_keys:
            rows = self.feature_store["edge", None, name].count
            if rows <= last_edge:
                raise ValueError(
                    f"fetch_feature: edge feature {name!r} has {rows} rows, but the sampled graph has edge ids up to "
                    f"{last_edge}; one row for each is needed. Fill up the feature, or sample the graph it belongs to."
                )
        edge_ids = next((stage.return_edge_ids for stage in upstream if hasattr(stage, "return_edge_ids")), True)
        if self.edge_feature_keys and not edge_ids:
            raise ValueError(
                f"fetch_feature: edge features {self.edge_feature_keys} need edge ids, but the sampler upstream was "
                "built with return_edge_ids=False. Build it with return_edge_ids=True."
            )

    def describe(self) -> dict[str, Any]:
        shown = {"node": self.node_feature_keys, "edge": self.edge_feature_keys}
        return {f"{domain}_feature_keys": names for domain, names in shown.items() if names}


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
