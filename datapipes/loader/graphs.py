"""Questions that several passes ask of a graph."""

from __future__ import annotations

from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo

Graph = StageGraph[Stage]


def copies_to_gpu(stage: Stage) -> bool:
    """Return whether `stage` is a CopyTo a CUDA device."""
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


def single_line(graph: Graph) -> list[Stage]:
    """Return the stages with one source that lead to the last stage, in the order in which a minibatch passes them."""
    line = [graph.root]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return [stage for stage in reversed(line) if len(stage.sources) == 1]
