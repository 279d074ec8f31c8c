"""Stages, how they are chained, and the reading of one epoch of a chain."""

from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph

__all__ = [
    "MiniBatchTransformer",
    "SeedStage",
    "Stage",
    "StageGraph",
    "StreamStage",
    "register_stage",
]


def __dir__() -> list[str]:
    return [*__all__]
