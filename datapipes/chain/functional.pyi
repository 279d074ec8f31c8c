"""Written by `make stubs`; do not edit."""

import collections.abc
import datapipes.device.copy_to
import datapipes.distributed.dist_graph
import datapipes.distributed.dist_neighbor_sampler
import datapipes.features.feature_fetcher
import datapipes.features.feature_store
import datapipes.graph.graph
import datapipes.loader.prefetcher
import datapipes.minibatch.minibatch
import datapipes.sampling.neighbor_sampler
import torch
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_Class = TypeVar("_Class", bound=type)

def register_stage(name: str) -> Callable[[_Class], _Class]: ...
def registered_stages() -> dict[str, type]: ...
def functional_name(cls: type) -> str: ...

class FunctionalForms:
    def copy_to(self, device: str | torch.device, *, non_blocking: bool = True) -> datapipes.device.copy_to.CopyTo: ...
    def dist_sample_neighbor(self, dist_graph: datapipes.distributed.dist_graph.DistGraph, fanouts: collections.abc.Sequence[int | collections.abc.Mapping[tuple[str, str, str], int] | collections.abc.Mapping[str, int]], *, concurrency: int = 8, replace: bool = False, return_edge_ids: bool = False, frontier: str = 'all') -> datapipes.distributed.dist_neighbor_sampler.DistNeighborSampler: ...
    def fetch_feature(self, feature_store: datapipes.features.feature_store.FeatureStore, node_feature_keys: collections.abc.Sequence[str] | collections.abc.Mapping[typing.Any, collections.abc.Sequence[str]] | None = None, edge_feature_keys: collections.abc.Sequence[str] | collections.abc.Mapping[typing.Any, collections.abc.Sequence[str]] | None = None) -> datapipes.features.feature_fetcher.FeatureFetcher: ...
    def prefetch(self, depth: int = 2, *, timeout: float | None = None) -> datapipes.loader.prefetcher.Prefetcher: ...
    def sample_neighbor(self, graph: datapipes.graph.graph.Graph, fanouts: collections.abc.Sequence[int | collections.abc.Mapping[tuple[str, str, str], int] | collections.abc.Mapping[str, int]], *, replace: bool = False, return_edge_ids: bool = False, frontier: str = 'all') -> datapipes.sampling.neighbor_sampler.NeighborSampler: ...
    def transform(self, *args: Any, **kwargs: Any) -> Any: ...
