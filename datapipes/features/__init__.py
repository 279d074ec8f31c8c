"""Features of nodes and edges, the store that holds them and the stage that fetches them."""

from datapipes.features.age_adder import AgeAdder
from datapipes.features.cached_feature import CPUCachedFeature, count_accesses
from datapipes.features.disk_feature import DiskFeature
from datapipes.features.feature import Feature
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore
from datapipes.features.gpu_cached_feature import GPUCachedFeature
from datapipes.features.sparse_feature import SparseFeature
from datapipes.features.tensor_feature import TensorFeature

__all__ = [
    "AgeAdder",
    "CPUCachedFeature",
    "DiskFeature",
    "Feature",
    "FeatureFetcher",
    "FeatureStore",
    "GPUCachedFeature",
    "SparseFeature",
    "TensorFeature",
    "count_accesses",
]


def __dir__() -> list[str]:
    return [*__all__]
