"""The base classes of stages: a stage has a name, sources and arguments, and does something with minibatches.

Every stage is of exactly one of three kinds:

* SeedBase starts the minibatch of an index (ItemSampler);
* TransformerBase makes one minibatch from one minibatch per source, by a pure function;
* CarrierBase delivers minibatches unchanged: from its source (Prefetcher, DataLoader), or from outside of the chain
  (FromNode).

QueuesOnStreams is a mixin of stages that use a GPU.

The graph of stages, the evaluator, the run and the state use these classes. stage.py derives the public classes from
these and adds iteration. Building a stage checks its arguments and starts nothing. A copy of a chain is built from
the constructors' arguments alone, so data that a stage gathers while it runs may not change its minibatches.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import names_in_code, refuse_more_by_position, refuse_other_keywords
from datapipes.base.rng import RngKey
from datapipes.chain.epoch import EpochContext
from datapipes.chain.functional import functional_name
from datapipes.minibatch import MiniBatch

_B = TypeVar("_B", bound="StageBase")
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Fingerprint = dict[str, Any]


class StageBase(ABC):
    """The structure of a stage. The constructor's arguments are fixed once the stage is built.

    Attributes:
        draws: whether the stage may make random choices. Only such stages have an ordinal in the random key, and only
            their fingerprints are part of the state. Stages that merely move data (FeatureFetcher, CopyTo) set it to
            False, so that adding or moving one changes no bit of any other stage.
        may_drop_all: True allows an epoch in which every minibatch is dropped; otherwise such an epoch is an error.
    """

    draws: bool = True
    may_drop_all: bool = False
    _does: str = ""  # for reports: "seeds", "sampling", "gather", "copy" or "loader"
    # Fields that the stage fills with rows for the nodes and edges so far; a sampler after this stage is refused.
    _fills: tuple[str, ...] = ()
    _pads: bool = False  # whether the stage adds padding; stages that sample or change edges are refused behind it
    _reuses_memory: bool = False  # whether the next minibatch overwrites one that the stage has returned
    _arguments: Arguments
    _fixed = frozenset({"rng_seed"})  # names of fixed arguments; ItemSampler's `seed` is its attribute rng_seed

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._fixed = frozenset(name for base in cls.__bases__ for name in getattr(base, "_fixed", ()))
        if cls.__module__.startswith("datapipes.") and "__init__" in vars(cls):
            cls._fixed |= inspect.signature(cls.__init__).parameters.keys()

    def __new__(cls: type[_B], *args: Any, **kwargs: Any) -> _B:
        refuse_other_keywords(functional_name(cls), cls, kwargs)
        refuse_more_by_position(functional_name(cls), cls, args)
        stage: _B = super().__new__(cls)
        stage._arguments = _own_containers((args, kwargs), {})
        return stage

    def __init__(self, *sources: StageBase) -> None:
        super().__init__()
        for source in sources:
            if not isinstance(source, StageBase):
                raise TypeError(
                    f"{self.name}: source must be a Stage, got {type(source).__name__}. Start the chain with an "
                    "ItemSampler, or join a torchdata node by dp.FromNode(node)."
                )
        self._sources = sources

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless it is an argument that is fixed.

        Workers and loaders build copies of the chain from the constructors' arguments and would not see the change.
        Arguments of a user's own class are not fixed.

        Raises:
            AttributeError: The stage has a fixed argument `name`, and `value` is another value. Or a stage before this
                one has a fixed argument `name`, and the code of this class does not use the name: most likely the
                earlier stage was meant.
        """
        if name in self._fixed and self.__dict__.get(name, value) is not value:
            raise _fixed_argument(self, name, self)
        if not (name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)):
            before = [stage for source in getattr(self, "_sources", ()) for stage in reversed(walk_from(source))]
            taken_by = next((stage for stage in before if name in stage._fixed), None)
            if taken_by is not None and name not in names_in_code(type(self).__mro__):
                raise _fixed_argument(self, name, taken_by)
        super().__setattr__(name, value)

    @property
    def name(self) -> str:
        """The functional name, such as "sample_neighbor"; used in errors, states and pictures."""
        return functional_name(type(self))

    @property
    def _state_name(self) -> str:
        """The name in a saved state. Stages that give the same minibatches share a name, so that one can load the state
        of another.
        """
        return self.name

    @property
    def _pads_to(self) -> Any:
        """The sizes to which this stage pads, for the stage before it; None: it pads nothing, or in its own way."""
        return None

    def _made_for(self, reader: StageBase) -> Callable[..., Any] | None:
        """Return what is called in place of this stage if `reader` is the only stage that takes its minibatches: a
        function like `transform` that makes part of what `reader` adds. None: there is no such function.
        """
        return None

    @property
    def sources(self) -> tuple[StageBase, ...]:
        """The stages that this one takes minibatches from."""
        return self._sources

    @property
    def arguments(self) -> Arguments:
        """The constructor's (args, kwargs); the stage is copied, pickled and rebuilt from them."""
        return self._arguments

    def with_sources(self: _B, *sources: StageBase) -> _B:
        """Return a new stage over other sources, with otherwise the same arguments."""
        if len(sources) != len(self.sources):
            raise ValueError(
                f"{self.name}: with_sources got {len(sources)} stages; needed: {len(self.sources)}, as many as this "
                "stage has sources. Pass one stage for each source."
            )
        new = {id(old): stage for old, stage in zip(self.sources, sources, strict=True)}
        args, kwargs = _own_containers(self._arguments, new)
        return type(self)(*args, **kwargs)

    def fingerprint(self) -> Fingerprint:
        """Return {name: argument} of the arguments that decide which nodes and edges are in a minibatch.

        The dict is part of the state.
        """
        return {}

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        """The inputs of which the fingerprint contains a digest in place of their values, such as large arrays.

        A background thread computes the digests during an epoch.
        """
        return ()

    @property
    def reads_from(self) -> Mapping[str, object]:
        """Return {text: feature} of the features that the stage reads. While it reads them, `update` refuses to change
        them, with an error that has the text.
        """
        return {}

    def describe(self) -> dict[str, Any]:
        """Return the arguments worth showing in `explain()`, as short values."""
        return {}

    def _end_kept(self) -> None:
        """End whatever the stage keeps between epochs, such as worker processes; the next epoch starts it again."""

    def __reduce__(self) -> tuple[Any, ...]:
        args, kwargs = self._arguments
        return (_rebuild, (type(self), args, kwargs))

    def __copy__(self: _B) -> _B:
        return self._with()

    def _with(self: _B, **changed: Any) -> _B:
        """Return a new stage with the same arguments except the given ones."""
        args, kwargs = self._arguments
        return type(self)(*args, **{**kwargs, **changed})

    def __repr__(self) -> str:
        details = ", ".join(f"{key}={value!r}" for key, value in self.describe().items())
        return f"{type(self).__name__}({details})"


class SeedBase(StageBase):
    """Starts minibatches: maps (epoch, index) to seeds. Its `rng_seed` decides every random choice of the chain."""

    _does = "seeds"
    rng_seed: int
    rank: int = 0
    world_size: int = 1

    @property
    @abstractmethod
    def num_steps(self) -> int:
        """Number of minibatches in an epoch on this rank."""

    @property
    @abstractmethod
    def num_batches(self) -> int:
        """Number of minibatches in an epoch over all ranks, padding left out."""

    @abstractmethod
    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        """Return the minibatch of `rng.epoch` and the global position `rng.index`."""

    @property
    def _indices(self) -> range:
        """The global positions of this rank's minibatches, in their order."""
        return range(self.rank, self.rank + self.num_steps * self.world_size, self.world_size)

    def _refuse_start(self) -> None:
        """Raise an error if no epoch may begin; by default there is no reason. Called in the process that reads the
        epoch.
        """


class TransformerBase(StageBase):
    """Base of the stages that make one minibatch from one minibatch of each source.

    A stage that waits for something else (a server, a disk) defines `async transform_async(*minibatches)` instead of
    `transform`; up to `concurrency` of its calls are in flight at once. A stage that defines both methods is
    asynchronous if its attribute `asynchronous` is true. Each instance may set this attribute when it is built.
    """

    concurrency: int = 1
    asynchronous: bool = True  # has a meaning only for a stage that defines transform_async

    @abstractmethod
    def transform(self, *minibatches: Any) -> Any:
        """Return a new minibatch, made of one minibatch of each source; or None to drop it."""

    def _made_of(self, *minibatches: Any) -> Any:
        """Return the result of `transform`. Evaluators call this method, so that a subclass can do something around
        `transform`.
        """
        return self.transform(*minibatches)


class CarrierBase(StageBase):
    """Base of carriers: stages that pass minibatches on unchanged, from their source or from outside of the chain.

    Attributes:
        window: how far minibatches come out of order. Step i, the i-th minibatch of the epoch, is delivered only after
            every step <= i - window; 1 means in order.
    """

    draws = False
    window: int = 1
    _replays: bool = False  # whether `_replay` can give a minibatch; earlier stages are then not called

    @property
    def _lane(self) -> str:
        """What runs the stages before this one, in words: a thread, or workers. "": the thread that reads this stage
        runs them.
        """
        return ""

    def _pages(self) -> str:
        """Return the sentence that `explain` prints about the memory pages of the inputs that earlier stages read. "":
        there is none.
        """
        return ""

    @abstractmethod
    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        """Return an iterator over the epoch from step `context.position.step` on.

        Calling one of `streams` starts the stream of that source. Everything that `open` starts ends when the iterator
        is closed or collected.
        """

    def _replay(self, epoch: int, index: int) -> MiniBatch | None:
        """Return the minibatch of (epoch, global index) without calling the earlier stages. None: an earlier stage
        drops it.

        Only a stage whose attribute `_replays` is true defines this.
        """
        raise NotImplementedError

    def _node_state(self) -> Any:
        """Return the state of this stage itself. None, the default: it has none.

        Only a stage without sources, which decides the order of its minibatches itself, has such a state.
        """
        return None


class QueuesOnStreams(StageBase):
    """Base of stages whose minibatches wait for work on streams of a GPU. Threads of an event loop do not have the
    streams of the thread that reads the epoch, so such work is handed over at both ends of the loop.
    """

    @abstractmethod
    def _enter_loop(self, minibatch: MiniBatch) -> None:
        """Hand a minibatch over to the threads of an event loop. `minibatch` has what the stages so far have made."""

    @abstractmethod
    def _leave_loop(self, minibatch: MiniBatch) -> None:
        """Take a minibatch over from the threads of an event loop. Called in the thread that reads the epoch."""


def is_async(stage: StageBase) -> bool:
    """Return whether the calls of this stage are awaited: it defines `transform_async`, and its attribute
    `asynchronous` is true, as it is by default.
    """
    return isinstance(stage, TransformerBase) and hasattr(stage, "transform_async") and bool(stage.asynchronous)


def _fixed_argument(stage: StageBase, name: str, taken_by: StageBase) -> AttributeError:
    who = "the stage" if taken_by is stage else f"{taken_by.name}, which takes it,"
    return AttributeError(
        f"{stage.name}: {name} is fixed since {who} was built, and the copies of the chain that loaders and workers "
        "have would not see a new value. Build a new chain, or exchange the stage: "
        f"pipe.replaced({taken_by.name!r}, lambda old: ...).",
        name=name,
        obj=stage,
    )


def walk_from(root: StageBase) -> tuple[StageBase, ...]:
    """Return `root` and all stages before it, each once, sources before their readers."""
    order: dict[int, StageBase] = {}
    stack: list[tuple[StageBase, bool]] = [(root, False)]
    while stack:
        stage, expanded = stack.pop()
        if id(stage) in order:
            continue
        if expanded:
            order[id(stage)] = stage
        else:
            stack.append((stage, True))
            stack.extend((source, False) for source in reversed(stage.sources))
    return tuple(order.values())


def _own_containers(value: Any, new: Mapping[int, StageBase]) -> Any:
    """Return `value` with its lists, tuples and dicts copied, so that the caller may change the originals. Each stage
    in `value` is replaced by `new[id(stage)]`, if present.
    """
    if isinstance(value, StageBase):
        return new.get(id(value), value)
    if type(value) in (list, tuple):
        return type(value)(_own_containers(entry, new) for entry in value)
    if type(value) is dict:
        return {key: _own_containers(entry, new) for key, entry in value.items()}
    return value


def _rebuild(cls: type[StageBase], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StageBase:
    return cls(*args, **kwargs)
