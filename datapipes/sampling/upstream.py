"""What the stages before a stage certainly do with the minibatches that reach it, for checks when a chain is built.

A stage of the user's may do anything. So each question has an answer only as far as the stages in between are known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

from torch import Tensor

from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage
from datapipes.chain.stage_base import StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.seeds import ItemSampler

_S = TypeVar("_S", bound=Stage)


def fetched_before(source: Stage) -> dict[str, Stage]:
    """Return {field: stage} of the fields of features that certainly reach the stage over `source`, filled."""
    sources = [source]
    found: dict[str, Stage] = {}
    while sources:
        stage = sources.pop()
        found |= dict.fromkeys(stage._fills, stage)
        if not stage.draws and len(stage.sources) == 1:  # any other stage may take the features out again
            sources.append(stage.source)
    return found


def items_before(source: Stage) -> Any:
    """Return the item set whose seeds certainly reach the stage over `source`; None if that is not known."""
    while not source.draws and len(source.sources) == 1:
        source = source.source
    return source.item_set if isinstance(source, ItemSampler) else None


def items_at_start(source: Stage) -> dict[Any, Any]:
    """Return {type: ItemSet} of the seeds that a chain of known stages starts with, of None without types; else {}."""
    start = line_before(source)[-1]
    if not isinstance(start, ItemSampler) or not all_known(source):
        return {}
    items: Any = start.item_set
    found: dict[Any, Any] = getattr(items, "item_sets", {None: items})
    return found


def line_before(source: Stage) -> list[Stage]:
    """Return the stages before a stage, nearest first, up to a join or the start."""
    line = [source]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return line


def all_known(source: StageBase) -> bool:
    """Return whether all stages before a stage are classes of this package, which run no function of the user's."""
    stages = list(StageGraph(source))
    return all(
        type(stage).__module__.startswith("datapipes.")
        and (stage.sources or isinstance(stage, SeedStage))  # what a FromNode gives is not known
        and getattr(stage, "fn", None) is None
        and type(stage) is not MiniBatchTransformer
        for stage in stages
    )


def negative_end_before(where: str, source: Stage) -> str:
    """Return the end to which the columns of seeds [n, k] from column 2 on belong, "src" or "dst": that of the
    NegativeSampler that has made them.

    Raises:
        ValueError: Stages that are joined differ.
    """
    stages: StageGraph[Stage] = StageGraph(source)
    ends = sorted({end for stage in stages if (end := getattr(stage, "negative_end", None)) is not None})
    if len(ends) > 1:
        raise ValueError(
            f"{where}: found negatives for the source and negatives for the destination in the chains that are joined "
            "before it; rows [n, k] have one of the two. Sample the neighborhood of each before the join."
        )
    return ends[0] if ends else "dst"


def nearest_before(source: Stage, cls: type[_S]) -> _S | None:
    """Return the nearest stage of a class before a stage, up to a join; None if there is none."""
    return next((stage for stage in line_before(source) if isinstance(stage, cls)), None)


def rows_left_behind(where: str, found: str) -> str:
    """Return the error of a sampler behind fetched features."""
    return (
        f"{where}: found {found}; their rows belong to the nodes before sampling, not to input_nodes. Fetch features "
        "after the sampler; values of the seeds themselves go into labels, indexes or timestamps."
    )


def names_of(features: dict[Any, Tensor] | list[dict[Any, Tensor]]) -> Collection[Any]:
    """Return the names of features, of nodes or of the edges of each hop."""
    return {name for each in ([features] if isinstance(features, dict) else features) for name in each}
