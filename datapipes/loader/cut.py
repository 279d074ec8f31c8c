"""Where a chain is cut: the stages before the cut run in workers, the others in the caller's process."""

from __future__ import annotations

from typing import Any

from datapipes.base.checks import shown
from datapipes.chain.functional import registered_stages
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.loader.graphs import Graph, Passage, copies_to_gpu, num_readers, single_line
from datapipes.loader.options import LoaderOptions


class Cut(Passage):
    """Marks the place of the cut."""


def cut(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Cut before the first stage that `options.cut` names; without workers, `graph` itself.

    `options.cut` is a functional name, a class (subclasses count) or "end". The default, "fetch_feature", means the
    first CopyTo to a GPU or the first FeatureFetcher whose store is not read in workers (`fetch_in_worker`), whichever
    comes first. If there is none, it means the first CopyTo; if there is none of these either, the end.

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
    if not any(stage is before for stage in single_line(graph)) or num_readers(graph, before.source) != 1:
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
        here: list[Stage] = [stage for stage in graph if _stays_here(stage)]
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


def _stays_here(stage: Stage) -> bool:
    """Return whether a stage belongs into the caller's process: it uses a GPU, or memory of this process."""
    return copies_to_gpu(stage) or (isinstance(stage, FeatureFetcher) and not stage.feature_store.fetch_in_worker)


def _check_before(graph: Graph) -> None:
    for stage in graph.find(StreamStage):
        raise ValueError(
            f"data_loader: {stage.name} stands before the cut, in the part that workers make minibatch by minibatch. "
            "Take it out (workers run ahead by prefetch_factor), move it behind the cut, or use num_workers=0."
        )
