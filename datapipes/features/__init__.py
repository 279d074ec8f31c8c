"""Features of nodes and edges, the store that holds them and the stage that fetches them."""

from datapipes.features.feature import Feature
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore
from datapipes.features.tensor_feature import TensorFeature

__all__ = [
    "Feature",
    "FeatureFetcher",
    "FeatureStore",
    "TensorFeature",
]


def __dir__() -> list[str]:
    return [*__all__]
