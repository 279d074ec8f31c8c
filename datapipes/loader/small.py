"""Which minibatches are so small that making one takes less time than passing it from thread to thread."""

from __future__ import annotations

import math

from datapipes.features import FeatureFetcher, FeatureStore, TensorFeature
from datapipes.loader.graphs import Graph
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.seeds import HeteroItemSet, ItemSampler

MOST_BYTES = 1_000_000  # benchmarks/small.py
NODE_BYTES = 64  # a cache line for each node that is sampled


def makes_small(graph: Graph) -> bool:
    """Return whether each minibatch of a chain is known to read at most MOST_BYTES.

    That is known of seeds, samplers of this package over a whole graph, and features in memory; what a stage or a
    function of the user's takes, or a server, is not known.
    """
    nodes, num_bytes = 0.0, 0.0
    for stage in graph:
        if not type(stage).__module__.startswith("datapipes."):
            return False
        if isinstance(stage, ItemSampler):
            items = stage.item_set
            sets = [*items.item_sets.values()] if isinstance(items, HeteroItemSet) else [items]
            nodes = stage.batch_size * max(math.prod(of_type.seeds_shape) for of_type in sets)
        elif isinstance(stage, ChoiceSampler) and not stage.asynchronous:
            for fanouts in stage.plan.fanouts:
                nodes *= 1 + sum(fanout if fanout >= 0 else math.inf for fanout in fanouts)
            num_bytes += nodes * NODE_BYTES
        elif isinstance(stage, FeatureFetcher) and type(stage.feature_store) is FeatureStore:
            features = [*stage.reads_from.values()]
            if not all(type(feature) is TensorFeature for feature in features):
                return False
            num_bytes += nodes * sum(math.prod(feature.shape) * feature.dtype.itemsize for feature in features)
        else:
            return False
    return num_bytes <= MOST_BYTES
