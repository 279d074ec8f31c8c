"""RemoteSource: the stage that takes the place of a chain, if servers run the chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from datapipes.base.array_digest import Hashed
from datapipes.base.rng import RngKey
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext
from datapipes.chain.pool import Task
from datapipes.chain.stage import SeedStage, Stage, StreamStage
from datapipes.chain.stage_base import Fingerprint
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.state import differences
from datapipes.distributed.chain_description import describe_chain
from datapipes.distributed.remote_receiving_channel import RemoteReceivingChannel
from datapipes.distributed.requests.chains import Made
from datapipes.distributed.wire.arrow_message import Message
from datapipes.minibatch import MiniBatch
from datapipes.seeds.item_sampler import ItemSampler

__all__ = ["RemoteSource"]

_NAME = "remote_source"
_LONG_S = 1e6  # no limit here, since each request has a deadline


class RemoteSource(StreamStage):
    """Takes the place of the chain `pipe`, which runs on servers. Stages after the RemoteSource run in this process.

    A RemoteSource has the seed, length and state of `pipe`, so a state that one of the two saved can be loaded into the
    other. No stage of `pipe` runs here, so all parts of its DistGraph may be behind servers. The DataLoader needs no
    workers: the servers are its workers, and the channel's `prefetch_size` is how many minibatches are requested ahead
    from each. A server that has ended, or gives no answer within the deadline, is left out for a minute. The other
    servers make its minibatches.

    Args:
        pipe: the chain that the producer was created from. It starts with an ItemSampler.
        channel: a RemoteReceivingChannel of the producer. Only its servers, `prefetch_size`, `in_order`, `rank` and
            `world_size` are used, not its `recv`. With several clients, each gets the minibatches with the indices
            rank, rank + world_size, ...
    Raises:
        TypeError, ValueError: `channel` is no RemoteReceivingChannel, has `num_expected`, or has a producer of another
            chain.
        ServerUnavailable: While running, no server gave an answer within the deadline of the client.
    """

    _plans_its_source = True
    _replays = True

    def __init__(self, pipe: Stage, channel: RemoteReceivingChannel) -> None:
        if not isinstance(channel, RemoteReceivingChannel):
            raise TypeError(
                f"{_NAME}: channel must be a RemoteReceivingChannel, got {type(channel).__name__}. Make one for "
                "the producer."
            )
        if channel.num_expected is not None:
            raise ValueError(
                f"{_NAME}: the channel has num_expected={channel.num_expected}, but an epoch here has all minibatches. "
                "Leave num_expected out."
            )
        graph: StageGraph[Stage] = StageGraph(pipe)
        if isinstance(graph.seed_stage, ItemSampler):  # else a loader, or this class, has replaced the ItemSampler
            self._refuse_other(pipe, channel)
        if channel.world_size > 1 and not graph.find(_OfRank):
            graph = graph.replace_each(SeedStage, lambda old: _OfRank(old, channel))  # type: ignore[type-abstract]
        super().__init__(graph.root)
        self._arguments = (graph.root, channel), {}
        self.channel = channel

    @staticmethod
    def _refuse_other(pipe: Stage, channel: RemoteReceivingChannel) -> None:
        described = channel.client.described(channel.server_ranks[0], channel.producer_id)
        differing = [] if described is None else _differences(described, pipe)
        count = StageGraph(pipe).seed_stage.num_batches
        if not differing and count != channel.num_batches:
            differing = [f"it has {channel.num_batches} minibatches in an epoch and here it has {count}"]
        if differing:
            raise ValueError(
                f"{_NAME}: the chain of {channel!r} is not the one given here: {'; '.join(differing)}. Pass the chain "
                "that the producer was created from."
            )

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return Dispatcher(
            self.channel._new_pool(),  # for this epoch alone: other readers may be in other epochs
            context,
            StageGraph(self.source).seed_stage._indices,
            context.calls.numbering.of(self.source).waiting,
            in_order=self.channel.in_order,
        )  # without a timeout: requests have their deadline

    def _replay(self, epoch: int, index: int) -> MiniBatch | None:
        """Ask a server once more for the minibatch with this index in this epoch. Return it; None if a stage
        drops it.
        """
        pool = self.channel._new_pool()
        pool.give(0, Task(pool.begin(), epoch, index))
        outcome = pool.receive(_LONG_S)
        assert outcome is not None
        return Made(outcome.minibatch, outcome.error).value()

    @property
    def window(self) -> int:  # type: ignore[override]
        channel = self.channel
        return 1 if channel.in_order else len(channel.server_ranks) * channel.prefetch_size

    @property
    def _lane(self) -> str:
        channel = self.channel
        order = "in order" if channel.in_order else "as made"
        servers = ", ".join(channel.client.where(rank) for rank in channel.server_ranks)
        return f"{servers}, each up to {channel.prefetch_size} minibatches ahead, {order}"

    def describe(self) -> dict[str, Any]:
        return {"servers": [*self.channel.server_ranks], "producer": self.channel.producer_id}


class _OfRank(SeedStage):
    """Seed stage for one of several clients that share the minibatches of `sampler`. It makes those with the indices
    rank, rank + world_size, ..., not padded.
    """

    def __init__(self, sampler: SeedStage, channel: RemoteReceivingChannel) -> None:
        super().__init__()
        self.sampler, self.rng_seed = sampler, sampler.rng_seed
        self.rank, self.world_size, self._num_steps = channel.rank, channel.world_size, channel.num_steps

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def num_steps(self) -> int:
        return self._num_steps

    @property
    def num_batches(self) -> int:
        return self.sampler.num_batches

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return self.sampler._hashed_inputs

    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        return self.sampler.make_minibatch(rng)

    def fingerprint(self) -> Fingerprint:
        return self.sampler.fingerprint()

    def describe(self) -> dict[str, Any]:
        return {**self.sampler.describe(), "rank": self.rank, "world_size": self.world_size}

    def __repr__(self) -> str:
        return repr(self.sampler)


def _differences(described: Message, pipe: Stage) -> list[str]:
    """Compare the chain that `described` describes with the chain `pipe`. Return a text for each difference; [] if
    there is none. Names of graphs, item sets and stores are not compared.

    Raises:
        TypeError, ValueError: A stage of `pipe` cannot be described.
    """
    here = describe_chain(pipe)
    differing = differences(described.header["fingerprint"], here.header["fingerprint"], "here it is")
    one, other = (
        [f"{stage['stage']}({_plain_arguments(stage)})" for stage in header["stages"]]
        for header in (described.header, here.header)
    )
    return differing or ([] if one == other else [f"it was {' '.join(one)} and here it is {' '.join(other)}"])


def _plain_arguments(stage: Mapping[str, Any]) -> str:
    shown_ = {name: value for name, value in stage["arguments"].items() if not _is_object(value)}
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(shown_.items()))


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) and not value.keys() <= {"tuple", "dict"}
