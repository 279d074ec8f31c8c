"""The method "random": nodes are dealt to the parts in a random order."""

from __future__ import annotations

import numpy as np

from datapipes import _core
from datapipes.base.types import NodeType
from datapipes.partition.id_maps import DenseMap, IdMap, smallest_dtype
from datapipes.partition.methods.all_nodes import AllNodes

CHUNK = 2**22  # nodes that are dealt at once
STAGE = 2**16 - 1  # in the random key, where no chain has a stage


def random_parts(nodes: AllNodes, num_parts: int, rng_seed: int) -> dict[NodeType | None, IdMap]:
    """Deal the nodes to the parts as cards: first the training nodes, type by type, then all others.

    The nodes of a type come in the order of a seeded permutation. So two parts differ by at most one node, by at most
    one training node, and by at most one training node and one other node of each type.

    O(num_nodes), in 1 byte a node (2 for more than 256 parts) for the result and 64 MiB.
    """
    maps: dict[NodeType | None, IdMap] = {}
    next_training, next_other = 0, nodes.num_training
    for ordinal, node_type in enumerate(nodes.types):
        count, mask = nodes.counts[node_type], nodes.training(node_type)
        parts = np.empty(count, dtype=str(smallest_dtype(num_parts)).removeprefix("torch."))
        key = _core.hop_key(rng_seed, 0, ordinal, STAGE, 0, 0)
        for first in range(0, count, CHUNK):
            ids = _core.permutation_at(count, key, first, min(CHUNK, count - first))
            chosen = ids[:0] if mask is None else ids[mask[ids]]
            others = ids if mask is None else ids[~mask[ids]]
            parts[chosen] = np.arange(next_training, next_training + len(chosen)) % num_parts
            parts[others] = np.arange(next_other, next_other + len(others)) % num_parts
            next_training += len(chosen)
            next_other += len(others)
        maps[node_type] = DenseMap(parts, num_parts)
    return maps
