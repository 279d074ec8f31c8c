"""Checks that the fields of a minibatch belong to each other: equal lengths where rows stand for the same things.

With types all fields are dicts; aligned_types.py compares them.
"""

from __future__ import annotations

from torch import Tensor

from datapipes.minibatch.aligned_rows import Named, check_is, compare, length_of, misaligned, no_tensor
from datapipes.minibatch.aligned_types import check_types
from datapipes.minibatch.block import Block
from datapipes.minibatch.minibatch import MiniBatch

TENSOR_OR_NONE = (Tensor, type(None))
NOTHING = MiniBatch()  # what a stage that starts minibatches is given


def check_aligned(stage: Named, minibatch: MiniBatch, given: MiniBatch) -> None:
    """Raise ValueError if a field of the minibatch has another length than what its rows belong to.

    It compares shapes and reads no values. Without types it skips labels whose tensor and seeds are those of `given`,
    which was checked before; docs/decisions/009 says what that costs.
    """
    seeds, nodes, blocks = minibatch.seeds, minibatch.input_nodes, minibatch.blocks
    if not isinstance(seeds, TENSOR_OR_NONE) or not isinstance(nodes, TENSOR_OR_NONE):
        if isinstance(seeds, dict) or isinstance(nodes, dict):
            return check_types(stage, minibatch)
        name, value = ("input_nodes", nodes) if isinstance(seeds, TENSOR_OR_NONE) else ("seeds", seeds)
        raise no_tensor(stage, (name,), value)
    if seeds is not None:
        changed = seeds is not given.seeds
        labels, indexes, timestamps = minibatch.labels, minibatch.indexes, minibatch.timestamps
        if labels is not None and (changed or labels is not given.labels):
            compare(stage, ("labels",), labels, length_of(seeds), "seeds")
        if indexes is not None and (changed or indexes is not given.indexes):
            compare(stage, ("indexes",), indexes, length_of(seeds), "seeds")
        if timestamps is not None and (changed or timestamps is not given.timestamps):
            compare(stage, ("timestamps",), timestamps, length_of(seeds), "seeds")
        extra = minibatch.extra
        if extra is not None:  # a dict, which may have been changed in place
            for name, rows in extra.items():
                compare(stage, ("extra", name), rows, length_of(seeds), "seeds")
        compacted = minibatch.compacted_seeds
        if compacted is not None and getattr(compacted, "shape", None) != seeds.shape:
            if not isinstance(compacted, Tensor):
                raise no_tensor(stage, ("compacted_seeds",), compacted)
            raise misaligned(stage, ("compacted_seeds",), compacted, f"seeds {list(seeds.shape)}")
    if nodes is not None:
        num_nodes, of = length_of(nodes), "input_nodes"
        if minibatch.batch is not None:
            compare(stage, ("batch",), minibatch.batch, num_nodes, of)
        if blocks and getattr(blocks[0], "num_src", None) != num_nodes:
            check_is(stage, ("blocks", 0), blocks[0], Block)
            raise misaligned(stage, ("blocks[0].num_src",), blocks[0].num_src, f"{num_nodes} {of}")
    elif seeds is not None and seeds.ndim == 1:
        num_nodes, of = length_of(seeds), "seeds (nothing was sampled)"
    else:
        num_nodes, of = -1, ""
    if minibatch.node_features and of:
        for name, rows in minibatch.node_features.items():
            compare(stage, ("node_features", name), rows, num_nodes, of)
    if minibatch.edge_features and blocks is not None:
        if len(minibatch.edge_features) != len(blocks):
            raise misaligned(stage, ("edge_features",), len(minibatch.edge_features), f"{len(blocks)} blocks")
        for hop, block in enumerate(blocks):
            if not isinstance(block, Block):
                check_is(stage, ("blocks", hop), block, Block)
            for name, rows in minibatch.edge_features[hop].items():
                compare(stage, ("edge_features", hop, name), rows, block.num_edges, "edges of its block")
