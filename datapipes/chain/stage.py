"""Stages, as users chain and iterate them: Stage, SeedStage, MiniBatchTransformer, StreamStage.

stage_base.py defines stages; here they become `torchdata.nodes.BaseNode`s, so that they can be iterated, saved and
resumed, and can be read by a torchdata `Loader`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, overload

import torch
from torchdata.nodes import BaseNode

from datapipes.base.checks import check_bool, names_in_code
from datapipes.base.rng import RngKey, check_epoch
from datapipes.chain.epoch import Position
from datapipes.chain.explain import as_svg, as_text, line_of
from datapipes.chain.functional import FunctionalForms, register_stage
from datapipes.chain.run import Run
from datapipes.chain.stage_base import CarrierBase, SeedBase, StageBase, TransformerBase
from datapipes.chain.stage_graph import StageGraph, refuse_join
from datapipes.chain.state import State, make_position, make_state, parse_state
from datapipes.minibatch import MiniBatch

__all__ = ["MiniBatchTransformer", "SeedStage", "Stage", "StreamStage"]

_S = TypeVar("_S", bound="Stage")


class Stage(StageBase, FunctionalForms, BaseNode[MiniBatch]):  # type: ignore[misc]  # BaseNode comes without types
    """One step of an input pipeline.

    Each loop over a stage is the next epoch (0, 1, 2 ...), also after a `break`; an older iterator of the same stage
    then ends with an error. An epoch is used up by its first minibatch, or by its end if it gives none: an iterator
    that was never read, or that failed before its first minibatch, uses up no epoch.
    """

    def __init__(self, *sources: StageBase) -> None:
        super().__init__(*sources)
        self._run: Run | None = None
        self._next_epoch = 0
        self._pending: State | None = None
        self._closed = False
        self._state_error: Exception | None = None  # why a closed stage has no state

    @property
    def sources(self) -> tuple[Stage, ...]:
        """The stages that this one takes minibatches from."""
        return cast("tuple[Stage, ...]", self._sources)

    @property
    def source(self) -> Stage:
        """The only source.

        Raises:
            ValueError: The stage has no source or several.
        """
        if len(self.sources) != 1:
            raise ValueError(
                f"{self.name}: has {len(self.sources)} sources, exactly 1 is needed for .source. Use .sources."
            )
        return self.sources[0]

    @overload
    def replaced(self, kind: str, fn: Callable[[Any], Stage]) -> Stage: ...

    @overload
    def replaced(self, kind: type[_S], fn: Callable[[_S], Stage]) -> Stage: ...

    def replaced(self, kind: Any, fn: Callable[[Any], Stage]) -> Stage:
        """Return a chain with `fn(stage)` in the place of every stage that is a `kind`; this chain stays as it is.

        `fn` gets each stage already rebuilt over its new sources.

        Args:
            kind: a stage class or a functional name, see StageGraph.find.
        Raises:
            TypeError: `kind` is neither of the two, or `fn` is no function that returns a stage.
            ValueError: The chain has no such stage.
        """
        graph: StageGraph[Stage] = StageGraph(self)
        return graph.replace_each(kind, fn).root

    def explain(self) -> str:
        """Return the chain as text: which stage runs where. A DataLoader shows its rewritten chain."""
        return as_text(*self._shown())

    def to_svg(self, path: str | Path) -> None:
        """Write the lanes of `explain` as an SVG picture."""
        Path(path).write_text(as_svg(*self._shown()), encoding="utf-8")

    def _shown(self) -> tuple[str, Iterable[Stage]]:
        """Return (title, stages): what `explain` shows."""
        return "the chain as built", StageGraph(self)

    def mark_end(self: _S) -> _S:
        """Return this stage. GraphBolt's loader needs a mark at a chain's end; here a chain ends anywhere."""
        return self

    def __str__(self) -> str:
        """Return the chain as text, a line for each stage."""
        return "\n".join(line_of(stage) for stage in StageGraph(self))

    def __len__(self) -> int:
        """Number of minibatches in an epoch, before any are dropped."""
        return StageGraph(self).num_steps

    def __bool__(self) -> bool:
        return True  # a stage is not empty because its epoch is

    @overload
    def __getitem__(self, kind: str) -> Stage: ...

    @overload
    def __getitem__(self, kind: type[_S]) -> _S: ...

    def __getitem__(self, kind: Any) -> Any:
        """Return the stage of this chain that is a `kind`: a stage class or a functional name, see StageGraph.find.

        Raises:
            KeyError: The chain has no such stage.
            ValueError: The chain has several such stages.
            TypeError: `kind` is something else, such as the index that torch's DataLoader asks for.
        """
        if isinstance(kind, int):
            raise TypeError(
                f"{self.name}: a chain has no items by index, so torch.utils.data.DataLoader cannot read it, and each "
                "of its workers would repeat the epoch. Use datapipes.DataLoader(pipe, num_workers=4)."
            )
        return StageGraph(self).only(kind)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """Refuse torch's DataLoader, which takes a stage for a list of items and calls this."""
        return self[indices[0]]  # type: ignore[call-overload]

    def __iter__(self) -> Iterator[MiniBatch]:
        self.reset(None)
        assert self._run is not None
        iterator = _EpochIterator(self, self._run)
        self._run.consumer = weakref.ref(iterator)
        return iterator

    def reset(self, initial_state: Mapping[str, Any] | None = None) -> None:
        """Go to the next epoch, or to the position that `initial_state` (from `state_dict()`) names.

        Nothing runs before the first minibatch is asked for; until then `set_epoch` and `load_state_dict` still choose
        the position. With a state saved at the end of an epoch, this run gives no minibatch, as torchdata's Loader
        expects, and the following `iter` starts the next epoch.

        Raises:
            ValueError: The state was saved by another pipeline; the message names what differs.
        """
        if self._closed:
            raise RuntimeError(f"{self.name}: is closed and cannot start an epoch; build a new one.")
        super().reset(initial_state)
        if initial_state is not None:
            self.load_state_dict(initial_state)
        self._end_run()
        self._run = Run(empty_after_end=initial_state is not None)
        self._position()  # for its error, if no epoch can begin there
        graph: StageGraph[Stage] = StageGraph(self)
        for start in graph.find(SeedStage):
            start._refuse_start()
        if graph.own_orders:
            self._run.begin(self, self._position)  # only a node that has begun can tell its state

    def next(self) -> MiniBatch:
        """Return the next minibatch of the running epoch, or raise StopIteration at its end."""
        run = self._run
        if run is None:
            raise StopIteration
        if run.uses_up_epoch:
            return next(run)
        if not run.has_begun:
            run.begin(self, self._position)
        try:
            return next(run)
        finally:
            if run.uses_up_epoch and run is self._run and not self._closed:  # from now on `iter` begins another epoch
                self._next_epoch, self._pending = run.epoch + 1, None

    def get_state(self) -> State:
        """Return a dict of plain values: seed, epoch, next_index, fingerprint, ... Nothing in it names workers."""
        if self._state_error is not None:
            raise self._state_error
        return make_state(self, self._run, self._next_epoch, self._pending)

    def state_dict(self) -> State:
        """Return the state to resume from. Once it is loaded, `iter` gives the rest of the epoch, bit for bit."""
        return self.get_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter` finish the epoch in which `state` was saved; if that epoch had ended, begin the next
        one. An iterator that was not read yet does the same.

        Raises:
            TypeError, ValueError: The state is malformed, or another pipeline's; the message names what differs.
        """
        parse_state(self, state)
        if self._run is not None and self._run.has_begun:
            self._end_run()
        self._pending = dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter` over this stage start epoch `epoch`. An iterator that was not read yet does the same.

        A stage that is built over this one counts its own epochs.

        A loaded state of this same epoch that was not yet read from is kept: training loops call load_state_dict and
        then set_epoch.
        """
        StageGraph(self).refuse_jumps(self.name)
        self._next_epoch = check_epoch(self.name, epoch)
        if self._run is not None and self._run.has_begun and not self._run.uses_up_epoch:
            self._end_run()
        if self._pending is not None and (self._pending["epoch"] != epoch or self._pending.get("ended")):
            self._pending = None

    def close(self) -> None:
        """End the running epoch, its threads, and everything that this stage and the stages before it keep between
        epochs, such as workers of a DataLoader. May be called twice. The stage cannot be iterated afterwards.
        """
        try:
            if self._run is not None:
                # Afterwards state_dict() still returns this position, and computes the missing digests.
                self._pending = make_position(self, self._run, self._next_epoch, self._pending)
        except Exception as error:  # from a user's node
            self._state_error = error
        finally:
            self._closed = True
            self._end_run()
            for stage in StageGraph(self):
                stage._end_kept()

    def __enter__(self: _S) -> _S:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _position(self) -> Position:
        """Return the position (epoch and step) at which a run of this stage would begin now."""
        position = Position(self._next_epoch) if self._pending is None else parse_state(self, self._pending)
        if position.ended and self._run is not None and not self._run.empty_after_end:
            position = Position(position.epoch + 1, node_state=position.node_state, after_end=True)
        check_epoch(self.name, position.epoch)
        return position

    def _end_run(self) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None


class SeedStage(SeedBase, Stage):
    """A stage that starts minibatches; SeedBase lists the methods that a subclass defines."""


@register_stage("transform")
class MiniBatchTransformer(TransformerBase, Stage):
    """One minibatch in, one new minibatch out, or None to drop the minibatch. No other minibatch gets its index.

    Subclasses define `transform`, or pass `fn`. A stage of several sources takes a list of sources; its `transform`
    gets one minibatch from each source, all of the same index. The result must depend on the minibatch alone. Take
    random numbers from `self.generator(minibatch)` in `transform`, and from `minibatch.rng.generator()` in `fn`.

    A stage that waits for something else may define `async transform_async(minibatch)` instead. Up to `concurrency`
    calls of it are in flight, and the minibatches still leave in order.

    Args:
        fn: function (MiniBatch) -> new MiniBatch or None; not needed in a class that defines `transform`.
        may_drop_all: True allows an epoch in which every minibatch is dropped. Otherwise such an epoch ends in a
            RuntimeError that names the stage, since most likely a `return` is missing. May be a class attribute too.
    """

    def __init__(
        self,
        source: Stage | Sequence[Stage],
        fn: Callable[[MiniBatch], MiniBatch | None] | None = None,
        *,
        may_drop_all: bool = False,
    ) -> None:
        sources: Any = tuple(source) if isinstance(source, (list, tuple)) else (source,)
        super().__init__(*sources)
        if not sources:
            raise ValueError(f"{self.name}: got no sources; at least 1 is needed. Start the chain with an ItemSampler.")
        if fn is not None and not callable(fn):
            raise TypeError(f"{self.name}: fn must be callable, got {type(fn).__name__}. Pass a function.")
        defines_own = type(self).transform is not MiniBatchTransformer.transform or hasattr(self, "transform_async")
        if fn is None and not defines_own:
            raise TypeError(
                f"{self.name}: found neither fn nor a transform method; one is needed. Pass fn, or define transform."
            )
        own_classes = type(self).__mro__[: type(self).__mro__.index(MiniBatchTransformer)]
        if fn is not None and defines_own and "fn" not in names_in_code(own_classes):
            raise TypeError(
                f"{self.name}: got fn, but its own transform method uses no fn. Leave fn out, or add .transform(fn)."
            )
        self.fn = fn
        if fn is not None and type(self).transform is MiniBatchTransformer.transform:
            self._made_of = fn  # type: ignore[method-assign]  # skips transform(), which also takes functions to chain
        if len(sources) > 1:
            refuse_join(self.name, fn or getattr(self, "transform_async", self.transform), len(sources))
        self.may_drop_all = check_bool(self.name, "may_drop_all", may_drop_all) or self.may_drop_all
        if len(sources) > 1:
            StageGraph(self)  # refuses unequal lengths

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        method = cls.__dict__.get("transform")
        if method is not None:
            cls.transform = _chain_or_apply(method)  # type: ignore[method-assign]

    def transform(self, *args: Any, **kwargs: Any) -> Any:
        """Given a minibatch, return a new one, or None to drop it; subclasses define this.

        Given a function, chain it: `pipe.transform(fn)` is the functional form of MiniBatchTransformer.
        """
        if self.fn is None:
            raise TypeError(f"{self.name}: has no fn and no transform method of its own. Define transform.")
        return self.fn(*args, **kwargs)

    def rng_of(self, minibatch: MiniBatch) -> RngKey:
        """Return the key of this stage's random choices for `minibatch`, also if `transform` is called by hand.

        Raises:
            ValueError: No ItemSampler upstream gives a seed, or the class has `draws = False`.
        """
        if minibatch.rng is not None:
            return minibatch.rng
        graph = StageGraph(self)
        ordinal = graph.ordinal(self)
        if ordinal is None:
            raise ValueError(
                f"{self.name}: has no random key, since its class says draws = False; only a stage with draws = True "
                "may draw. Set draws = True in the class."
            )
        return RngKey(graph.seed_stage.rng_seed, minibatch.epoch, minibatch.index, ordinal)

    def generator(self, minibatch: MiniBatch, device: str | torch.device = "cpu") -> torch.Generator:
        """Return a new generator of torch for this stage's random choices at `minibatch`, seeded from `rng_of`: pass it
        as `generator=` to torch's functions. Each call returns a generator that begins anew.

        Raises:
            ValueError: As for `rng_of`.
        """
        return self.rng_of(minibatch).generator(device=device)

    def describe(self) -> dict[str, Any]:
        fn = {} if self.fn is None else {"fn": getattr(self.fn, "__qualname__", type(self.fn).__name__)}
        return {**fn, "may_drop_all": True} if self.may_drop_all else fn


def _chain_or_apply(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let `transform(minibatch)` call `method`, and `transform(fn)` chain `fn` behind the stage."""

    @functools.wraps(method)
    def transform(self: MiniBatchTransformer, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(first, MiniBatch):
            return method(self, *args, **kwargs)
        return MiniBatchTransformer(self, *args, **kwargs)

    return transform


MiniBatchTransformer.transform = _chain_or_apply(MiniBatchTransformer.transform)  # type: ignore[method-assign]


class StreamStage(CarrierBase, Stage):
    """A stage that passes minibatches on unchanged; CarrierBase lists the methods that a subclass defines."""

    _plans_its_source: bool = False  # whether the stage rewrites the chain before it, as a DataLoader does


class _EpochIterator(Iterator[MiniBatch]):
    """An iterator over one epoch of a stage. It raises once the stage has begun another epoch, which it never reads."""

    def __init__(self, stage: Stage, run: Run) -> None:
        self._stage = stage
        self._run = run

    def __iter__(self) -> Iterator[MiniBatch]:
        return self

    def __next__(self) -> MiniBatch:
        if self._stage._run is not self._run:
            why, how = "iter() was called on the stage again", "Read only the newest iterator."
            if self._stage._run is None:
                why = "close(), set_epoch() or load_state_dict() was called on the stage"
                how = "Call iter() for a new iterator; after close(), build the stage again."
            raise RuntimeError(f"{self._stage.name}: this iterator has ended, since {why}. {how}")
        return self._stage.next()

    def __len__(self) -> int:
        return len(self._stage)
