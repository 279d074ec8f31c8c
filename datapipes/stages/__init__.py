"""Public names to write your own stages, samplers and channels with; docs/your-own-stage.md is the guide."""

from typing import TYPE_CHECKING

from datapipes.base.rng import RngKey
from datapipes.chain.stage import SeedStage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.channel.base import ChannelBase
from datapipes.compat.other_names import missing_public_name
from datapipes.minibatch.block import CSC
from datapipes.sampling.sampler import Picks, Sampled, Sampler

__all__ = [
    "CSC",
    "ChannelBase",
    "Picks",
    "RngKey",
    "Sampled",
    "Sampler",
    "SeedStage",
    "StageGraph",
    "StreamStage",
]


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        raise missing_public_name(name, "datapipes.stages")
