"""Where a chain is cut: the stages before the cut run in workers, the others in the caller's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from datapipes.base.checks import shown
from datapipes.chain.epoch import EpochContext
from datapipes.chain.functional import registered_stages
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.loader.graphs import Graph, single_line
from datapipes.loader.options import LoaderOptions
from datapipes.minibatch import MiniBatch


class Cut(StreamStage):
    """Marks the place of the cut; it passes minibatches on unchanged."""

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return streams[0]()


def cut(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Cut before the first stage that `options.cut` names; without workers, `graph` itself.

    `options.cut` is a functional name, a class (subclasses count) or "end". The default, "fetch_feature", means the
    first FeatureFetcher whose store is not read in workers (`fetch_in_worker`). If there is none, it means the first
    CopyTo; if there is none of these either, the end.

    Raises:
        TypeError, ValueError: `options.cut` names no stage of the chain; sources are joined after the cut; or a stage
            before the cut cannot run in a worker.
    """
    before = _place_of(graph, options.cut)
    if options.num_workers == 0:
        return graph
    if before is None:
        _check_before(StageGraph(graph.root))
        return StageGraph(Cut(graph.root))
    if not any(stage is before for stage in single_line(graph)) or not _is_alone(graph, before):
        raise ValueError(
            f"data_loader: the chain cannot be cut before {before.name}, since sources are joined after it. Join "
            "before the cut, give cut='end', or use num_workers=0."
        )
    _check_before(StageGraph(before.source))
    return graph.replace(before, before.with_sources(Cut(before.source)))


def _place_of(graph: Graph, place: Any) -> Stage | None:
    """Return the stage before which the chain is cut; None for its end."""
    if not (isinstance(place, str) or (isinstance(place, type) and issubclass(place, Stage))):
        raise TypeError(
            f"data_loader: cut must be a functional name, a stage class or 'end', got {shown(place)}. Name a stage of "
            "the chain."
        )
    if place == "end":
        return None
    if place == LoaderOptions.cut:
        here = [stage for stage in graph.find(FeatureFetcher) if not stage.feature_store.fetch_in_worker]
        return next(iter([*here, *graph.find(CopyTo)]), None)
    kind: type | None = place if isinstance(place, type) else registered_stages().get(place)
    found = [] if kind is None else [stage for stage in graph if isinstance(stage, kind)]
    if not found:
        names = [stage.name for stage in graph if stage.sources]
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but this chain has no such stage; it has {names}. Name one of these, "
            "or 'end'."
        )
    if not found[0].sources:
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but no stage stands before it. Name a later stage, or 'end'."
        )
    return found[0]


def _check_before(graph: Graph) -> None:
    for stage in graph.find(StreamStage):
        raise ValueError(
            f"data_loader: {stage.name} stands before the cut, in the part that workers make minibatch by minibatch. "
            "Take it out (workers run ahead by prefetch_factor), move it behind the cut, or use num_workers=0."
        )


def _is_alone(graph: Graph, stage: Stage) -> bool:
    """Return whether `stage` is the only reader of its source."""
    return sum(stage.source is source for reader in graph for source in reader.sources) == 1
