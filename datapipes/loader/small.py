"""Whether minibatches are so small that making one takes less time than passing it from thread to thread."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

from datapipes.device.host_pages import mapped_in
from datapipes.features import FeatureFetcher, FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.loader.graphs import Graph
from datapipes.processes.mappings import extent
from datapipes.sampling import NeighborSampler
from datapipes.seeds import DistributedItemSampler, HeteroItemSet, ItemSampler, ItemSet

MOST_BYTES = 1_000_000  # benchmarks/small.py
NODE_BYTES = 64  # a cache line for each sampled node
ID_BYTES = 8


def makes_small(graph: Graph) -> bool:
    """Return whether each minibatch of a chain is known to read at most MOST_BYTES.

    This is known for items, `sample_neighbor` with bounded fanouts, and features, all in memory. It is not known for
    files, servers, other samplers, and a user's classes and functions.
    """
    nodes, num_bytes = 0.0, 0.0
    tensors: list[Tensor] = []
    for stage in graph:
        if type(stage) in (ItemSampler, DistributedItemSampler):
            items = stage.item_set
            sets = [*items.item_sets.values()] if type(items) is HeteroItemSet else [items]
            if any(type(of_type) is not ItemSet for of_type in sets):
                return False
            nodes = stage.batch_size * max(math.prod(of_type.seeds_shape) for of_type in sets)
            num_bytes += stage.batch_size * max(ID_BYTES + _row_bytes(of_type._tensors.values()) for of_type in sets)
            tensors += [tensor for of_type in sets for tensor in of_type._tensors.values()]
        elif type(stage) is NeighborSampler and type(stage.graph) in (CSCGraph, HeteroCSCGraph) and stage._form is None:
            for fanouts in stage.plan.fanouts:
                nodes *= 1 + sum(fanout if fanout >= 0 else math.inf for fanout in fanouts)
            num_bytes += nodes * NODE_BYTES
            relations = [stage.graph.relation(edge_type) for edge_type in stage.plan.edge_types]
            tensors += [tensor for relation in relations for tensor in (relation.indptr, relation.indices)]
        elif type(stage) is FeatureFetcher and type(stage.feature_store) is FeatureStore:
            features = [*stage.reads_from.values()]
            rows = [feature.tensor for feature in features if type(feature) is TensorFeature]
            if len(rows) < len(features):
                return False
            num_bytes += nodes * _row_bytes(rows)
            tensors += rows
        else:
            return False
    return num_bytes <= MOST_BYTES and not _lie_in_files(tensors)


def _row_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)


def _lie_in_files(tensors: Iterable[Tensor]) -> bool:
    """Return whether a tensor is mapped from a file; a tensor that processes share counts as mapped."""
    files = [mapped for mapped in mapped_in(0, 2**64) if mapped.is_file]
    bounds = [(tensor.data_ptr(), tensor.data_ptr() + extent(tensor)) for tensor in tensors]
    return any(file.begin < end and begin < file.end for begin, end in bounds for file in files)
