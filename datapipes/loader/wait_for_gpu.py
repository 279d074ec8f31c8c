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
from datapipes.features import FeatureFetcher
from datapipes.minibatch import MiniBatch


class WaitForGpu(StreamStage):
    """Pass minibatches on; at the end of an epoch wait for the copies and reads of the stages before.

    Raises:
        IndexError: At the end of an epoch: ids that were read on a GPU had no rows.
    """

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        graph = StageGraph(self.source)
        ends = [stage.finish for stage in graph.find(CopyTo)]
        ends += [stage.finish_reads for stage in graph.find(FeatureFetcher)]
        return _Waiting(streams[0](), ends)


class _Waiting(Iterator[MiniBatch]):
    def __init__(self, minibatches: Iterator[MiniBatch], ends: list[Callable[[], None]]) -> None:
        self._minibatches, self._ends = minibatches, ends

    def __next__(self) -> MiniBatch:
        try:
            return next(self._minibatches)
        except StopIteration:
            for end in self._ends:
                end()
            raise

    def close(self) -> None:
        close_stream(self._minibatches)
