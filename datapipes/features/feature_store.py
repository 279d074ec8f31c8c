"""FeatureStore: features by (domain, type, name)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.other_names import OtherNames
from datapipes.features.feature import Feature

__all__ = ["FeatureStore"]

FeatureKey = tuple[str, Any, str]  # ("node" or "edge", type or None, name)
FeatureRequest = tuple[str, Any, str, Tensor]  # a key's parts, and ids


class FeatureStore(OtherNames, Mapping[FeatureKey, Feature]):
    """Features under keys ("node" or "edge", type or None, name); the type is None in a homogeneous graph.

    `fetch_in_worker` tells the DataLoader to read a store before the cut; it is False for stores in this machine's
    memory.
    """

    fetch_in_worker = False

    def __init__(self, features: Mapping[FeatureKey, Feature]) -> None:
        if not isinstance(features, Mapping):
            raise TypeError(
                f"FeatureStore: features must be a dict, got {type(features).__name__}. Pass {{(domain, type, name): "
                "feature}."
            )
        for key, feature in features.items():
            if not (
                isinstance(key, tuple) and len(key) == 3 and key[0] in ("node", "edge") and isinstance(key[2], str)
            ):
                raise ValueError(
                    f"FeatureStore: a key must be ('node' or 'edge', type or None, name), got {shown(key)}. Write it "
                    "so."
                )
            if not isinstance(feature, Feature):
                raise TypeError(
                    f"FeatureStore: {shown(key)} must be a Feature, got {type(feature).__name__}. Wrap a tensor: "
                    "dp.TensorFeature(tensor)."
                )
        self._features = dict(features)

    def __getitem__(self, key: FeatureKey) -> Feature:
        try:
            return self._features[key]
        except KeyError:
            raise KeyError(
                f"FeatureStore: no feature {shown(key)}; the store has "
                f"{shown(sorted(self._features, key=shown))}. Add it."
            ) from None

    def __iter__(self) -> Iterator[FeatureKey]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def names(self, domain: str, type_: Any = None) -> list[str]:
        """Return the names of the features of a domain and type, sorted."""
        return sorted(name for found_domain, found_type, name in self if (found_domain, found_type) == (domain, type_))

    def read(self, domain: str, type_: Any, name: str, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows of a feature at `ids`; see Feature.read."""
        feature = self[domain, type_, name]
        return feature.read(ids) if out is None else feature.read(ids, out=out)

    def read_many(self, requests: Sequence[FeatureRequest]) -> list[Tensor]:
        """Return the rows of each request (domain, type, name, ids), in their order; by default one `read` each.

        A FeatureFetcher makes one such call for a minibatch. A store whose rows lie in other processes overrides it,
        so that each peer gets one request.

        Raises:
            IndexError: An id has no row; the message names the feature.
        """
        found = []
        for domain, type_, name, ids in requests:
            try:
                found.append(self.read(domain, type_, name, ids))
            except IndexError as error:
                raise IndexError(f"{domain} feature {name!r}: {error}") from error
        return found

    def __repr__(self) -> str:
        return f"FeatureStore({self._features})"
