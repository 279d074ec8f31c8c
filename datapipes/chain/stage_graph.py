"""The graph of stages behind a chain. A walk asks each stage for its sources; a rewrite rebuilds stages.

Nothing here changes a stage: every operation returns a new graph. A graph that cannot run is refused when it is built,
for example if the sources of a join have unequal lengths, or if two stages read from a Prefetcher.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, cast, overload

from datapipes.base.cached import cached_property
from datapipes.base.checks import shown
from datapipes.chain.functional import names_of
from datapipes.chain.numbering import Numbering, Numbers
from datapipes.chain.stage_base import CarrierBase, SeedBase, StageBase, TransformerBase, is_async, walk_from

__all__ = ["StageGraph"]

_S = TypeVar("_S", bound=StageBase)
_K = TypeVar("_K", bound=StageBase)


class StageGraph(Generic[_S]):
    """The graph of stages that ends in `root`: `root` and all stages before it. Iterating a graph gives its stages."""

    def __init__(self, root: _S) -> None:
        if not isinstance(root, StageBase):
            raise TypeError(
                f"StageGraph: root must be a Stage, got {type(root).__name__}. Pass the last stage of a chain."
            )
        self.root = root
        self._walk = cast("tuple[_S, ...]", walk_from(root))
        self._check_consumers()
        self._check_lengths()

    def walk(self) -> tuple[_S, ...]:
        """Return the stages, each once, sources before their readers, `root` last."""
        return self._walk

    def __iter__(self) -> Iterator[_S]:
        return iter(self._walk)

    @overload
    def find(self, kind: str) -> list[_S]: ...

    @overload
    def find(self, kind: Callable[..., _K]) -> list[_K]: ...

    def find(self, kind: Any) -> list[Any]:
        """Return the stages that are a `kind`, a stage class or a functional name, in the order of the walk.

        A class finds stages of its subclasses too. A name finds the stages with that functional name.
        If the class of a stage is not registered, the name of its nearest registered base class finds the stage too.

        Raises:
            TypeError: `kind` is neither a stage class nor a functional name.
        """
        if isinstance(kind, str):
            return [stage for stage in self._walk if kind == stage.name or kind in names_of(type(stage))]
        if not isinstance(kind, type):
            raise TypeError(
                f"{self.root.name}: a stage class or a functional name finds stages of this chain, got {shown(kind)}. "
                f"Name one of {self.names()}."
            )
        return [stage for stage in self._walk if isinstance(stage, kind)]

    def only(self, kind: Any) -> _S:
        """Return the only stage that is a `kind`, see `find`.

        Raises:
            TypeError: `kind` is neither a stage class nor a functional name.
            KeyError: There is no such stage.
            ValueError: There are several such stages.
        """
        stages = self.find(kind)
        if not stages:
            raise KeyError(
                f"{self.root.name}: no {_shown(kind)} in this chain; it has {self.names()}. Name one of these."
            )
        if len(stages) > 1:
            raise ValueError(
                f"{self.root.name}: {len(stages)} stages of this chain are {_shown(kind)}; exactly 1 is allowed. "
                "StageGraph(pipe).find(...) returns all of them."
            )
        return cast("_S", stages[0])

    def _num_readers(self, stage: StageBase) -> int:
        """Return how many stages take minibatches from `stage`."""
        return sum(source is stage for reader in self._walk for source in reader.sources)

    @cached_property
    def _made_for_reader(self) -> dict[int, Callable[..., Any]]:
        """{id of a stage: what is called in its place, see StageBase._made_for}."""
        found = {}
        for reader in self._walk:
            if reader._pads_to is None or self._num_readers(reader.sources[0]) != 1:
                continue
            if (make := reader.sources[0]._made_for(reader)) is not None:
                found[id(reader.sources[0])] = make
        return found

    def names(self) -> list[str]:
        """Return the functional names of the stages, in the order of the walk."""
        return [stage.name for stage in self._walk]

    @cached_property
    def numbering(self) -> Numbering:
        """The Numbering of this graph: the label and the ordinal of each stage, for counts and random keys."""
        numbers: dict[int, Numbers] = {}
        place = ordinal = 0
        for stage in self._walk:
            works = not isinstance(stage, CarrierBase)
            draws = works and stage.draws
            label, where = (f"{place} {stage.name}", f"stage {place} ({stage.name})") if works else (stage.name,) * 2
            numbers[id(stage)] = Numbers(stage.name, label, where, ordinal if draws else None, works)
            place, ordinal = place + works, ordinal + draws
        seeds = self.find(SeedBase)
        return Numbering(numbers, seeds[0].rng_seed if seeds else None)

    def ordinal(self, stage: StageBase) -> int | None:
        """Return the stage's ordinal in the random key (docs/semantics.md, section 1.1). None: it does not draw."""
        return self.numbering.of(stage).ordinal

    @property
    def seed_stage(self) -> SeedBase:
        """The first ItemSampler, which gives the seed and the length.

        Raises:
            ValueError: The chain has no ItemSampler.
        """
        seed_stages = self.find(SeedBase)
        if not seed_stages:
            raise ValueError(
                f"{self.root.name}: no ItemSampler in this chain, found {self.names()}; its "
                "seed and length are needed. Start the chain with an ItemSampler."
            )
        return seed_stages[0]

    @property
    def num_steps(self) -> int:
        """Number of minibatches in an epoch on this rank."""
        if not self.find(SeedBase):
            raise TypeError(
                f"{self.root.name}: has no length, since no ItemSampler starts this chain. Count while iterating."
            )
        return self.seed_stage.num_steps

    def replace(self, old: StageBase, new: _S) -> StageGraph[_S]:
        """Return a graph with `new` in place of `old`; stages after `old` are rebuilt, the others are shared."""
        if not any(stage is old for stage in self._walk):
            raise ValueError(f"StageGraph.replace: {old!r} is not in this chain. Pass a stage that walk() gives.")
        return self._rebuild(lambda stage, rebuilt: new if stage is old else rebuilt)

    @overload
    def replace_each(self, kind: str, fn: Callable[[Any], _S]) -> StageGraph[_S]: ...

    @overload
    def replace_each(self, kind: type[_K], fn: Callable[[_K], _S]) -> StageGraph[_S]: ...

    def replace_each(self, kind: Any, fn: Callable[[Any], _S]) -> StageGraph[_S]:
        """Return a graph with `fn(stage)` in place of every stage that `find(kind)` gives.

        `fn` gets each stage already rebuilt over its new sources.

        Raises:
            TypeError: `kind` is neither a stage class nor a functional name, or `fn` is no function of a stage.
            ValueError: There is no such stage.
        """
        if not callable(fn):
            raise TypeError(
                f"replaced: found {type(fn).__name__} as the second argument; a function is needed that gets a stage "
                "and returns its replacement. Pass lambda stage: ..."
            )
        replaced = {id(stage) for stage in self.find(kind)}
        if not replaced:
            raise ValueError(f"replaced: no {_shown(kind)} in this chain; it has {self.names()}. Name one of these.")

        def swap(stage: _S, rebuilt: _S) -> _S:
            new: Any = fn(rebuilt) if id(stage) in replaced else rebuilt
            if not isinstance(new, StageBase):
                raise TypeError(
                    f"replaced: the function must return a Stage, got {type(new).__name__}. Return the new stage."
                )
            return cast("_S", new)

        return self._rebuild(swap)

    @cached_property
    def _is_async(self) -> bool:
        """Whether the calls of some stage are awaited."""
        return any(map(is_async, self._walk))

    @cached_property
    def _replays(self) -> list[CarrierBase]:
        """The stages that can replay a minibatch: return it for (epoch, index) without a call of the earlier stages."""
        return [stage for stage in self.find(CarrierBase) if stage._replays]

    @cached_property
    def own_orders(self) -> list[CarrierBase]:
        """The carriers without a source. Each keeps an order of its own, and decides itself which epoch comes next."""
        return [stage for stage in self.find(CarrierBase) if not stage.sources]

    def refuse_jumps(self, where: str) -> None:
        """Raise ValueError if the graph has a stage of `own_orders`: no caller can choose the epoch of such a stage."""
        for stage in self.own_orders:
            raise ValueError(
                f"{where}: no epoch can be chosen, since {stage.name} decides itself which epoch comes next. Iterate "
                "over its epochs in order, or go to a saved position with load_state_dict()."
            )

    def refuse_reused_memory(self, where: str) -> None:
        """Raise ValueError if a stage overwrites the minibatch that it returned before, for a caller that has several
        minibatches at once.
        """
        for stage in self._walk:
            if stage._reuses_memory:
                raise ValueError(
                    f"{where}: makes several minibatches at once, and {stage!r} before it overwrites each by the next. "
                    f"Put {stage.name} behind all that works ahead: a DataLoader, a Prefetcher, asynchronous stages."
                )

    def _rebuild(self, swap: Callable[[_S, _S], _S]) -> StageGraph[_S]:
        new: dict[int, _S] = {}
        for stage in self._walk:
            sources = [new[id(source)] for source in stage.sources]
            same = all(source is old for source, old in zip(sources, stage.sources, strict=True))
            new[id(stage)] = swap(stage, stage if same else stage.with_sources(*sources))
        return StageGraph(new[id(self.root)])

    def _check_consumers(self) -> None:
        for carrier in self.find(CarrierBase):
            if (count := self._num_readers(carrier)) > 1:
                raise ValueError(
                    f"{carrier.name}: feeds {count} stages, 1 is allowed: it can be read only once. Branch before it."
                )

    def _check_lengths(self) -> None:
        starts = [stage for stage in self._walk if not stage.sources]
        lengths = {(s.num_steps, s.rank, s.world_size) for s in starts if isinstance(s, SeedBase)}
        if len(lengths) > 1:
            counts = ", ".join(f"{steps} minibatches (rank {rank} of {size})" for steps, rank, size in sorted(lengths))
            raise ValueError(
                f"{self.root.name}: its ItemSamplers give {counts}; joined chains need equally many minibatches, and "
                "the same rank and world_size. Change batch_size, drop_last, rank or world_size."
            )
        for stage in self._walk:
            if (
                isinstance(stage, TransformerBase)
                and len(stage.sources) > 1
                and any(isinstance(source, CarrierBase) for source in walk_from(stage))
            ):
                raise ValueError(
                    f"{stage.name}: joins several sources behind a Prefetcher, FromNode or DataLoader; only sources "
                    "without such a stage can be joined. Join before the Prefetcher or DataLoader, or inside the node "
                    "of the FromNode."
                )


def _shown(kind: Any) -> str:
    return repr(kind) if isinstance(kind, str) else str(kind.__name__)


def refuse_join(where: str, called: Any, num_sources: int) -> None:
    """Raise TypeError if `called`, the function of a stage with `num_sources` sources, does not take that many
    minibatches.
    """
    try:
        taken = inspect.signature(called)
    except ValueError:  # a builtin without a signature
        return
    try:
        taken.bind(*range(num_sources))
    except TypeError:
        raise TypeError(
            f"{where}: got a list of {num_sources} sources, but its function or transform method does not take "
            f"{num_sources} minibatches. Pass as many sources as it takes minibatches, or another function."
        ) from None
