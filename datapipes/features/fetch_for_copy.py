"""FetchForCopy and Decode: a feature fetch on the CPU whose rows are copied to a GPU next.

The fetch reads into page-locked memory, so that the copy runs while the next minibatch is fetched. Features stored with
fewer bits are copied as they are stored and decoded on the GPU. A DataLoader's plan puts these stages in the place of a
FeatureFetcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from torch import Tensor

from datapipes.chain.functional import functional_name
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.device.runtime import cuda
from datapipes.features.feature import Feature
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureKey, FeatureRequest, FeatureStore, by_name, naming
from datapipes.features.sparse_feature import SparseFeature
from datapipes.features.tensor_feature import TensorFeature
from datapipes.minibatch import MiniBatch, SparseRows


class FetchForCopy(FeatureFetcher):
    """A FeatureFetcher that gives rows as they are stored, in page-locked memory."""

    @classmethod
    def can_replace(cls, stage: Stage) -> bool:
        """Return whether a FetchForCopy can take the place of `stage`: it is a FeatureFetcher, not a subclass, that
        reads synchronously, one feature after the other.
        """
        if type(stage) is not FeatureFetcher or stage.asynchronous:
            return False
        store = type(stage.feature_store)
        return store.read_many is FeatureStore.read_many and store.read is FeatureStore.read

    @classmethod
    def of(cls, stage: FeatureFetcher, source: Stage) -> FetchForCopy:
        """Return a FetchForCopy over `source` that fetches what the FeatureFetcher `stage` fetches."""
        return cls(source, stage.feature_store, stage.node_feature_keys, stage.edge_feature_keys)

    @property
    def name(self) -> str:
        """The functional name of a FeatureFetcher, in whose place this stage stands."""
        return functional_name(FeatureFetcher)

    def _read_many(self, requests: list[FeatureRequest]) -> Any:
        return [self._read(*request) for request in requests]

    def _read(self, domain: str, type_: Any, name: str, ids: Tensor) -> Any:
        feature = self.feature_store[domain, type_, name]
        with naming(domain, type_, name):
            if not reads_into(feature):
                rows: Any = feature.read(ids)
                return rows.map_tensors(_page_locked) if isinstance(rows, SparseRows) else rows
            out = cuda().empty_pinned((int(ids.shape[0]), *feature.shape), feature.tensor.dtype)
            return feature._read_stored(ids, out=out)

    def describe(self) -> dict[str, Any]:
        details, where = super().describe(), "page-locked memory"
        store = self.feature_store
        locked = [key for key in self.feature_keys if reads_into(store[key]) or isinstance(store[key], SparseFeature)]
        if len(locked) == len(self.feature_keys):
            return {**details, "into": where}
        return {**details, "into": by_name(dict.fromkeys(locked, where))} if locked else details


Stored = tuple[FeatureKey, TensorFeature]

# Methods by which a TensorFeature is read. A subclass that overrides one of these is read by its own `read` instead.
_READS = ("read", "_read_stored", "_decode", "_scale_on")


class Decode(MiniBatchTransformer):
    """Turn stored rows into values, on the device on which the rows lie.

    Args:
        stored: (key in the store, feature) of each feature whose rows arrive as they are stored.
    """

    draws = False

    def __init__(self, source: Stage, stored: Sequence[Stored]) -> None:
        super().__init__(source)
        self._stored: dict[str, dict[Any, TensorFeature]] = {"node": {}, "edge": {}}
        for key, feature in stored:
            self._stored[key[0]].update(by_name({key: feature}))

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        of_nodes, of_edges = self._stored["node"], self._stored["edge"]
        changes: dict[str, Any] = {}
        if of_nodes and minibatch.node_features:
            changes["node_features"] = _decoded(of_nodes, minibatch.node_features)
        if of_edges and minibatch.edge_features:
            changes["edge_features"] = [_decoded(of_edges, features) for features in minibatch.edge_features]
        return minibatch.replace(**changes)

    def describe(self) -> dict[str, Any]:
        return {f"{domain}_features": [*features] for domain, features in self._stored.items() if features}


def stored_in(fetches: Sequence[FetchForCopy]) -> list[Stored]:
    """Return (key in the store, feature) of each feature whose rows `fetches` leave as they are stored, to be decoded
    later.
    """
    last: dict[FeatureKey, Feature] = {}  # a later fetch of the same name replaces an earlier fetch
    for fetch in fetches:
        last.update({key: fetch.feature_store[key] for key in fetch.feature_keys})
    return [(key, feature) for key, feature in last.items() if reads_into(feature) and feature.stored_as is not None]


def lies_on_gpu(feature: Feature) -> TypeGuard[TensorFeature]:
    """Return whether a feature's rows lie on a GPU, out of reach of ids in host memory."""
    return reads_into(feature) and cuda().holds(feature.tensor)


def reads_into(feature: Feature) -> TypeGuard[TensorFeature]:
    """Return whether a feature is a TensorFeature whose stored rows can be read into given memory; False for a subclass
    that reads otherwise.
    """
    reads_alike = all(getattr(type(feature), name, None) is getattr(TensorFeature, name) for name in _READS)
    return isinstance(feature, TensorFeature) and reads_alike


def _page_locked(tensor: Tensor) -> Tensor:
    return cuda().empty_pinned(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def _decoded(stored: dict[Any, TensorFeature], features: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {key: stored[key]._decode(rows) if key in stored else rows for key, rows in features.items()}
