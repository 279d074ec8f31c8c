"""FromNode: starts a chain with a torchdata node.

torchdata's own nodes name no sources and do not pickle, so they cannot be stages of a chain. A FromNode is the start of
a chain instead, and its node must give MiniBatches. The node keeps its own order and state. Nothing reads ahead of it,
since only the node knows its position (use `torchdata.nodes.Prefetcher` inside the node).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.nodes import BaseNode

from datapipes.chain.epoch import EpochContext
from datapipes.chain.stage import Stage, StreamStage
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.aligned import NOTHING, check_aligned

__all__ = ["FromNode"]


class FromNode(StreamStage):
    """Starts a chain with a torchdata node that gives MiniBatches.

    Each item of the node is a MiniBatch with all fields that later stages read: `seeds`, and for a feature fetch
    1-D seeds or `input_nodes`. Its `epoch` and `index` stay as the node set them. The later stages may fetch, copy
    and transform. They cannot draw, since no ItemSampler gives a random seed. So put a sampler inside the node:
    `torchdata.nodes.Mapper(chain, fn)` is a node over a chain.

    Args:
        node: any `torchdata.nodes.BaseNode` but a Stage. Map a node of other items first:
            `torchdata.nodes.Mapper(node, lambda ids: dp.MiniBatch(seeds=ids))`.
    Raises:
        TypeError: `node` is a Stage, or no torchdata node. While running: an item of `node` was no MiniBatch.
    """

    def __init__(self, node: BaseNode[MiniBatch]) -> None:
        super().__init__()
        if isinstance(node, Stage):
            raise TypeError(f"from_node: {type(node).__name__} is a Stage already; chain it directly.")
        if not isinstance(node, BaseNode):
            raise TypeError(
                "from_node: node must be a torchdata.nodes.BaseNode that gives MiniBatches, got "
                f"{type(node).__name__}. Wrap it: torchdata.nodes.IterableWrapper(minibatches)."
            )
        self.node = node

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        self.node.reset(context.position.node_state)
        if context.position.after_end:
            next(self.node, None)  # the saved epoch had ended: take its empty rest, then begin the next epoch
            self.node.reset(None)
        return self._minibatches()

    def _node_state(self) -> Any:
        """Return the state_dict of the torchdata node."""
        return self.node.state_dict()

    def _minibatches(self) -> Iterator[MiniBatch]:
        for item in self.node:
            if not isinstance(item, MiniBatch):
                shape = f" of shape {list(item.shape)}" if hasattr(item, "shape") else ""
                raise TypeError(
                    f"from_node: {type(self.node).__name__} gave a {type(item).__name__}{shape}, only MiniBatch is "
                    "allowed. Map the items: torchdata.nodes.Mapper(node, lambda ids: dp.MiniBatch(seeds=ids))."
                )
            check_aligned(self, item, NOTHING)
            yield item

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "from_node: a FromNode cannot be pickled, since its torchdata node cannot. Build the chain in the process "
            "that runs it; in a DataLoader use num_workers=0."
        )
