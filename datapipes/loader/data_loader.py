"""DataLoader: runs a chain so that the next minibatches are made while the consumer works.

It plans with an ordered list of pure passes over a copy of the chain (passes.py); the chain it was given is
untouched and can feed other loaders. It is a Stage itself: stages chained after it run in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datapipes.checks import check_bool, check_int
from datapipes.loader.explain import as_svg, as_text
from datapipes.loader.passes import overlap_fetch_with_sampling, overlap_with_consumer
from datapipes.loader.prefetcher import Prefetcher, check_timeout
from datapipes.minibatch import MiniBatch
from datapipes.rng import check_epoch
from datapipes.run import EpochPlan, Run, StageClock, one_minibatch
from datapipes.stage import Stage, StreamStage
from datapipes.stage_graph import StageGraph

PREFETCH_FACTOR = 2
TIMEOUT_S = 120.0


class DataLoader(StreamStage):
    """Iterate over the minibatches of a chain, prepared in the background.

    Each `iter(loader)` is the next epoch, also after a `break`; `len(loader)` counts its minibatches.

    Args:
        datapipe: the last stage of a chain; it stays as it is.
        num_workers: worker processes. This version runs in the caller's process: 0.
        prefetch_factor: minibatches held ready, 1 or more: that many sampled ones for the feature fetch, and that many
            whole ones for the consumer.
        timeout: seconds to wait for one minibatch before TimeoutError; None waits as long as the thread lives.
        overlap: make the next minibatches while the consumer works, in two threads: one fetches features while the
            other samples. False makes each one when it is asked for.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message says what is.
    """

    def __init__(
        self,
        datapipe: Stage,
        num_workers: int = 0,
        *,
        prefetch_factor: int = PREFETCH_FACTOR,
        timeout: float | None = TIMEOUT_S,
        overlap: bool = True,
    ) -> None:
        super().__init__(datapipe)
        if check_int("data_loader", "num_workers", num_workers, 0) != 0:
            raise ValueError(
                f"data_loader: num_workers is {num_workers}, but worker processes are not part of this version; "
                "allowed: 0. Leave it at 0: sampling and fetching then overlap with the consumer in threads."
            )
        self.num_workers = 0
        self.prefetch_factor = check_int("data_loader", "prefetch_factor", prefetch_factor, 1)
        self.timeout = check_timeout("data_loader", timeout)
        self.overlap = check_bool("data_loader", "overlap", overlap)
        self._clock = StageClock()
        ahead = len(self.rewritten().find(Prefetcher)) > len(StageGraph(datapipe).find(Prefetcher))
        if not ahead and (prefetch_factor, timeout) != (PREFETCH_FACTOR, TIMEOUT_S):
            raise ValueError(
                f"data_loader: prefetch_factor={prefetch_factor} and timeout={timeout} belong to the background "
                "threads, but this plan has none (overlap=False, a FromNode, or a join with a copy to a GPU). Leave "
                "them out."
            )

    def rewritten(self) -> StageGraph:
        """Return the rewritten chain, the one that runs."""
        graph = StageGraph(self.source)
        if not self.overlap:
            return graph
        fetching = overlap_fetch_with_sampling(graph, depth=self.prefetch_factor)
        planned = overlap_with_consumer(fetching, depth=self.prefetch_factor, timeout=self.timeout)
        return graph if planned is fetching else planned  # without a thread for the end, none in the middle

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], plan: EpochPlan) -> Iterator[MiniBatch]:
        return Run(self.rewritten().root, plan.epoch, plan.start, plan.node_state, self._clock)

    def minibatch(self, epoch: int, index: int) -> MiniBatch | None:
        """Return one minibatch again, by its epoch and global index, or None if a stage drops it; nothing else
        moves.
        """
        check_epoch("data_loader: minibatch", epoch)
        graph = StageGraph(self.source)
        graph.refuse_jumps("data_loader: minibatch")
        seed_stage = graph.seed_stage
        check_int("data_loader: minibatch", "index", index, 0, seed_stage.num_steps * seed_stage.world_size - 1)
        return one_minibatch(graph.root, epoch, index)

    def explain(self) -> str:
        """Return the rewritten chain as text: which stage runs where."""
        return as_text(repr(self), self.rewritten())

    def to_svg(self, path: str | Path) -> None:
        """Write the rewritten chain as an SVG picture."""
        Path(path).write_text(as_svg(repr(self), self.rewritten()), encoding="utf-8")

    def stats(self) -> dict[str, dict[str, float]]:
        """Return {"1 sample_neighbor": {"calls": n, "seconds": s}, ...} since the loader was built.

        "waiting for 2 fetch_feature" (the last stage that runs ahead) is the time the consumer waited: near 0, the
        consumer is the bottleneck. "waiting for 1 sample_neighbor" is the time the feature fetch waited for sampling.
        """
        return self._clock.stats()

    def describe(self) -> dict[str, Any]:
        return {"num_workers": self.num_workers, "prefetch_factor": self.prefetch_factor, "overlap": self.overlap}
