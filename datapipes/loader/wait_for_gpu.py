"""WaitForGpu: the end of an epoch of a chain that copies to a GPU.

Reads on a GPU tell of ids without rows when they have run. So at the end of the epoch the last of them are waited for,
and an error comes there and not in the next epoch. The sources of the last copies are let go, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from datapipes.chain.epoch import EpochContext
from datapipes.chain.run import close_stream
from datapipes.chain.stage import StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.device.missing_ids import wait_for_all
from datapipes.features import FeatureFetcher
from datapipes.loader.graphs import Graph
from datapipes.minibatch import MiniBatch


class WaitForGpu(StreamStage):
    """Pass minibatches on; at the end of an epoch wait for the copies and reads of the stages before.

    Raises:
        IndexError: At the end of an epoch: ids that were read on a GPU had no rows.
    """

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return _Waiting(streams[0](), waits_of(StageGraph(self.source)))


def waits_of(graph: Graph) -> list[Callable[[], None]]:
    """Return the calls that wait for the copies and reads of a graph, for `wait_for_all`."""
    waits = [stage._finish for stage in graph.find(CopyTo)]
    return waits + [stage._finish_reads for stage in graph.find(FeatureFetcher)]


class _Waiting(Iterator[MiniBatch]):
    def __init__(self, minibatches: Iterator[MiniBatch], waits: list[Callable[[], None]]) -> None:
        self._minibatches, self._waits = minibatches, waits

    def __next__(self) -> MiniBatch:
        try:
            return next(self._minibatches)
        except StopIteration:
            wait_for_all(self._waits)
            raise

    def close(self) -> None:
        close_stream(self._minibatches)
