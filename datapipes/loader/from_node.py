"""FromNode: joins a torchdata node to a chain, after the cut.

torchdata's own nodes name no sources and do not pickle, so a FromNode starts a chain of its own: the node must give
MiniBatches. It keeps its own order and state; nothing reads ahead of it, since only the node knows where it stands
(use `torchdata.nodes.Prefetcher` inside).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torchdata.nodes import BaseNode

from datapipes.chain.epoch import EpochContext
from datapipes.chain.stage import Stage, StreamStage
from datapipes.minibatch import MiniBatch

__all__ = ["FromNode"]


class FromNode(StreamStage):
    """Starts a chain with a torchdata node that gives MiniBatches."""

    def __init__(self, node: BaseNode[MiniBatch]) -> None:
        super().__init__()
        if isinstance(node, Stage):
            raise TypeError(f"from_node: {type(node).__name__} is a Stage already; chain it directly.")
        if not isinstance(node, BaseNode):
            raise TypeError(
                f"from_node: node must be a torchdata.nodes.BaseNode, got {type(node).__name__}. Wrap it in one."
            )
        self.node = node

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        self.node.reset(context.node_state)
        if context.after_end:
            next(self.node, None)  # a state of an epoch's end leaves an empty rest; then the node's next epoch begins
            self.node.reset(None)
        return self._minibatches()

    def node_state(self) -> Any:
        """Return the node's own state."""
        return self.node.state_dict()

    def _minibatches(self) -> Iterator[MiniBatch]:
        for item in self.node:
            if not isinstance(item, MiniBatch):
                raise TypeError(
                    f"from_node: the node gave a {type(item).__name__}, only MiniBatch is allowed. Map it with "
                    "torchdata.nodes.Mapper."
                )
            yield item

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(
            "from_node: a torchdata node cannot be pickled, so FromNode stays in the caller's process. Put it after "
            "the cut."
        )
