"""Stages and how they are chained: Stage, SeedStage, MiniBatchTransformer, StreamStage.

A stage names its inputs (`sources`); the graph of stages is walked by asking, never by pickling or scanning
attributes. Building a stage checks its arguments and starts nothing. A chain is rebuilt from constructor arguments, so
a stage keeps no state of its own:

* a SeedStage makes the minibatch of an index (ItemSampler);
* a MiniBatchTransformer makes one minibatch of one minibatch: a pure function of it;
* a StreamStage only carries minibatches (Prefetcher, FromNode, DataLoader).

A Stage is a `torchdata.nodes.BaseNode`, so a chain can stand in a torchdata `Loader`.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchdata.nodes import BaseNode

from datapipes.base.rng import RngKey, check_epoch
from datapipes.chain.functional import FunctionalForms, functional_name, register_stage
from datapipes.minibatch import MiniBatch

if TYPE_CHECKING:
    from datapipes.chain.run import EpochPlan, Run

_S = TypeVar("_S", bound="Stage")
Fingerprint = dict[str, Any]
State = dict[str, Any]


class Stage(FunctionalForms, BaseNode[MiniBatch]):  # type: ignore[misc]  # BaseNode comes without types
    """One step of an input pipeline.

    `iter(stage)` starts the next epoch (0, 1, 2 ...), also after a `break`; an older iterator of the same stage then
    ends with an error.
    """

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls: type[_S], *args: Any, **kwargs: Any) -> _S:
        stage: _S = super().__new__(cls)
        stage._arguments = _own_containers((args, kwargs))  # what the chain is rebuilt and pickled from
        return stage

    def __init__(self, *sources: Stage) -> None:
        super().__init__()
        for source in sources:
            if not isinstance(source, Stage):
                raise TypeError(
                    f"{self.name}: source must be a Stage, got {type(source).__name__}. Start the chain with an "
                    "ItemSampler, or join a torchdata node by dp.FromNode(node)."
                )
        self._sources = sources
        self._run: Run | None = None
        self._next_epoch = 0
        self._pending: State | None = None
        self._closed = False

    # --- structure ----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The functional name, such as "sample_neighbor"; used in errors, states and pictures."""
        return functional_name(type(self))

    @property
    def sources(self) -> tuple[Stage, ...]:
        """The stages that this one takes minibatches from."""
        return self._sources

    @property
    def source(self) -> Stage:
        """The only source.

        Raises:
            ValueError: The stage has none or several.
        """
        if len(self.sources) != 1:
            raise ValueError(
                f"{self.name}: has {len(self.sources)} sources, exactly 1 is needed for .source. Use .sources."
            )
        return self.sources[0]

    def with_sources(self: _S, *sources: Stage) -> _S:
        """Return this stage built anew over other inputs, with the same arguments otherwise."""
        if len(sources) != len(self.sources):
            raise ValueError(
                f"{self.name}: with_sources got {len(sources)} stages and needs {len(self.sources)}, one for each "
                "source."
            )
        new = {id(old): stage for old, stage in zip(self.sources, sources, strict=True)}
        args, kwargs = self._arguments
        return type(self)(*_swapped(args, new), **{key: _swapped(value, new) for key, value in kwargs.items()})

    def replaced(self, cls: type[_S], fn: Callable[[_S], Stage]) -> Stage:
        """Return a chain in which `fn(stage)` stands for every stage that is a `cls`; this chain stays as it is.

        `fn` sees each stage over its new sources. Raises ValueError when the chain has no such stage.
        """
        from datapipes.chain.stage_graph import StageGraph

        return StageGraph(self).replace_each(cls, fn).root

    def fingerprint(self) -> Fingerprint:
        """Return the arguments that decide which nodes and edges a minibatch holds, by name; part of the state."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        args, kwargs = self._arguments
        return (_rebuild, (type(self), args, kwargs))

    def __copy__(self: _S) -> _S:
        args, kwargs = self._arguments
        return type(self)(*args, **kwargs)

    def __repr__(self) -> str:
        details = ", ".join(f"{key}={value!r}" for key, value in self.describe().items())
        return f"{type(self).__name__}({details})"

    def describe(self) -> dict[str, Any]:
        """Return the arguments worth showing in `explain()`, short."""
        return {}

    # --- running ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Minibatches an epoch, before any are dropped."""
        from datapipes.chain.stage_graph import StageGraph

        return StageGraph(self).num_steps

    def __bool__(self) -> bool:
        return True  # a stage is not empty because its epoch is

    def __iter__(self) -> Iterator[MiniBatch]:
        self.reset(None)
        assert self._run is not None
        return _EpochIterator(self, self._run)

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where `initial_state` (from `state_dict()`) ended.

        Raises:
            ValueError: The state was saved by another pipeline; the message names what differs.
        """
        from datapipes.chain.run import Position, Run
        from datapipes.chain.state import parse_state

        if self._closed:
            raise RuntimeError(f"{self.name}: is closed and cannot start an epoch; build a new one.")
        super().reset(initial_state)
        self._end_run()
        state = self._pending if initial_state is None else initial_state
        self._pending = None
        position = Position(self._next_epoch) if state is None else parse_state(self, state)
        check_epoch(self.name, position.epoch)
        self._run = Run(self, position)
        self._next_epoch = position.epoch + 1

    def next(self) -> MiniBatch:
        """Return the next minibatch of the running epoch, or raise StopIteration at its end."""
        if self._run is None:
            raise StopIteration
        return next(self._run)

    def get_state(self) -> State:
        """Return (seed, epoch, next index, fingerprint) as plain values; it does not mention workers or threads."""
        from datapipes.chain.state import make_state

        return make_state(self, self._run, self._next_epoch, self._pending)

    def state_dict(self) -> State:
        """Return the state to resume from: where it is loaded, the next `iter` gives the rest, bit for bit."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` finish the epoch that `state` was saved in.

        Raises:
            TypeError, ValueError: The state is malformed, or another pipeline's; the message names what differs.
        """
        from datapipes.chain.state import parse_state

        parse_state(self, state)
        self._end_run()
        self._pending = dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter` start epoch `epoch`."""
        from datapipes.chain.stage_graph import StageGraph

        StageGraph(self).refuse_jumps(self.name)
        self._next_epoch = check_epoch(self.name, epoch)
        self._pending = None

    def close(self) -> None:
        """End the running epoch, its threads, and what this stage and those before it keep between epochs, as a
        DataLoader its workers; may be called twice. The stage cannot be iterated afterwards.
        """
        if self._run is not None and not self._run.finished:
            self._pending = self.get_state()  # state_dict() still tells where the epoch stood
        self._closed = True
        self._end_run()
        from datapipes.chain.stage_graph import StageGraph

        for stage in StageGraph(self):
            stage._end_kept()

    def _end_kept(self) -> None:
        """End what is kept between epochs; the next one starts it again."""

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class SeedStage(Stage):
    """A stage that starts minibatches: it maps (epoch, index) to seeds; its `rng_seed` decides all that is random."""

    rng_seed: int
    rank: int = 0
    world_size: int = 1

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Minibatches an epoch on this rank."""

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """Minibatches an epoch over all ranks, padding left out."""

    @abstractmethod
    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        """Return the minibatch of `rng.epoch` and the global position `rng.index`."""

    def index_of(self, step: int) -> int:
        """Return the global position of this rank's minibatch number `step`."""
        return step * self.world_size + self.rank


@register_stage("transform")
class MiniBatchTransformer(Stage):
    """One minibatch in, one new minibatch out, or None to drop it (its index stays used).

    Subclasses define `transform`, or pass `fn`. A stage of several sources takes them as a list and its `transform`
    gets one minibatch of each, of the same index. The result must depend on the minibatch alone; randomness comes
    from `minibatch.rng.hop_key()`.

    A stage that waits for others may define `async transform_async(minibatch)` instead and set `concurrency`: that
    many are kept in flight, and the minibatches still leave in order.
    """

    concurrency: int = 1

    def __init__(
        self, source: Stage | Sequence[Stage], fn: Callable[[MiniBatch], MiniBatch | None] | None = None
    ) -> None:
        sources: Any = tuple(source) if isinstance(source, (list, tuple)) else (source,)
        super().__init__(*sources)
        if not sources:
            raise ValueError(f"{self.name}: got no sources; at least 1 is needed. Start the chain with an ItemSampler.")
        if fn is not None and not callable(fn):
            raise TypeError(
                f"{self.name}: fn must be callable, got {type(fn).__name__}. Pass a function of a MiniBatch."
            )
        defines_own = type(self).transform is not MiniBatchTransformer.transform or hasattr(self, "transform_async")
        if fn is None and not defines_own:
            raise TypeError(
                f"{self.name}: found neither fn nor a transform method; one is needed. Pass fn, or define transform."
            )
        self.fn = fn
        if len(sources) > 1:
            from datapipes.chain.stage_graph import StageGraph

            StageGraph(self)  # refuses unequal lengths

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("transform")
        if own is not None:
            cls.transform = _chain_or_apply(own)  # type: ignore[method-assign]

    def transform(self, *args: Any, **kwargs: Any) -> Any:
        """Given a minibatch, return a new one, or None to drop it; subclasses define this.

        Given a function, chain it: `pipe.transform(fn)` is the functional form of MiniBatchTransformer.
        """
        if self.fn is None:
            raise TypeError(f"{self.name}: has no fn and no transform method of its own. Define transform.")
        return self.fn(*args, **kwargs)

    def rng_of(self, minibatch: MiniBatch) -> RngKey:
        """Return the key of this stage's random choices for `minibatch`, also where `transform` is called by hand.

        Raises:
            ValueError: No ItemSampler upstream gives a seed.
        """
        if minibatch.rng is not None:
            return minibatch.rng
        from datapipes.chain.stage_graph import StageGraph

        graph = StageGraph(self)
        return RngKey(graph.seed_stage.rng_seed, minibatch.epoch, minibatch.index, graph.ordinal(self))

    def describe(self) -> dict[str, Any]:
        return {} if self.fn is None else {"fn": getattr(self.fn, "__qualname__", type(self.fn).__name__)}


def _chain_or_apply(own: Callable[..., Any]) -> Callable[..., Any]:
    """Let one name be both: `transform(minibatch)`, which a stage defines, and `transform(fn)`, the functional form."""

    @functools.wraps(own)
    def transform(self: MiniBatchTransformer, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, MiniBatch) for value in (*args, *kwargs.values())):
            return own(self, *args, **kwargs)
        return MiniBatchTransformer(self, *args, **kwargs)

    return transform


MiniBatchTransformer.transform = _chain_or_apply(MiniBatchTransformer.transform)  # type: ignore[method-assign]


class StreamStage(Stage):
    """A stage that carries minibatches on without changing them, in its own way; it has no part in the random key.

    Attributes:
        window: It delivers a minibatch only when all that are `window` or more before it were delivered; 1 is in order.
    """

    window: int = 1

    @abstractmethod
    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], plan: EpochPlan) -> Iterator[MiniBatch]:
        """Return an iterator over the epoch from `plan.start`; calling one of `streams` starts that source's part.

        What it starts ends when the iterator is closed or collected.
        """

    def node_state(self) -> Any:
        """Return the position of a stage without sources, which keeps its own order."""
        return None


class _EpochIterator(Iterator[MiniBatch]):
    """One epoch of a stage. It ends with an error, not by taking over, once the stage has begun another."""

    def __init__(self, stage: Stage, run: Run) -> None:
        self._stage = stage
        self._run = run

    def __iter__(self) -> Iterator[MiniBatch]:
        return self

    def __next__(self) -> MiniBatch:
        if self._stage._run is not self._run:
            ended = "was closed" if self._stage._run is None else "began another epoch"
            raise RuntimeError(
                f"{self._stage.name}: this iterator ended when the stage {ended}. Keep one iterator at a time."
            )
        return self._stage.next()

    def __len__(self) -> int:
        return len(self._stage)


def _own_containers(value: Any) -> Any:
    """Return `value` with its lists, tuples and dicts copied, so that the caller may go on changing its own."""
    if type(value) in (list, tuple):
        return type(value)(_own_containers(item) for item in value)
    if type(value) is dict:
        return {key: _own_containers(item) for key, item in value.items()}
    return value


def _swapped(value: Any, new: dict[int, Stage]) -> Any:
    """Return `value` with other stages for those that `new` names."""
    if isinstance(value, Stage):
        return new.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_swapped(item, new) for item in value)
    return value


def _rebuild(cls: type[Stage], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Stage:
    return cls(*args, **kwargs)
