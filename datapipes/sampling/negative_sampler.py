"""NegativeSampler: the base of stages that add negatives to the pairs of a minibatch; docs/semantics.md, section 4.7.

A subclass draws negatives by one method; this base places them in the minibatch, beside their positives.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import check_choice, shown
from datapipes.base.rng import RngKey
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, of_type
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.minibatch import MiniBatch
from datapipes.sampling.sampler import Sampler, items_before, nearest_before, refuse_padding_before
from datapipes.sampling.seed_ids import check_seeds

__all__ = ["NegativeSampler"]

MOST_KEPT = 4  # most _Places that a stage caches, each for one number of positives
BYTES_EACH = 64  # of memory for a negative: its ends, its places, and temporary draws
ENDS = {"src": (0,), "dst": (1,), "both": (0, 1)}  # the columns of pairs in which a negative differs
SampleFn = Callable[[Tensor, RngKey, "EdgeType | None", "Tensor | None"], Tensor]


class _Places(NamedTuple):
    """The arrays of a minibatch that depend only on P and N, its numbers of positives and negatives.

    Attributes:
        positive_of: int64 [N], for each negative the row of its positive.
        labels: bool [P + N], True for positives.
        indexes: int64 [P + N], for each pair the row of its positive; a positive has its own row.
    """

    positive_of: Tensor
    labels: Tensor
    indexes: Tensor


class Wanted(NamedTuple):
    """What a minibatch needs in order to draw the negatives of one edge type.

    Attributes:
        positives: ids [P, 2].
        places: the _Places, which say to which positive each negative belongs.
        times: [P], the times of the positives; None without times.
        first_slot: number of negatives of the edge types before this one.
    """

    positives: Tensor
    places: _Places
    times: Tensor | None
    first_slot: int = 0

    @property
    def number(self) -> int:
        """Number of negatives."""
        return int(self.places.positive_of.shape[0])

    def repeated(self) -> tuple[Tensor, Tensor | None]:
        """Return (pairs, times): the positive of each negative, ids [N, 2], and its time, [N]; None without times."""
        rows = self.places.positive_of
        return self.positives[rows], None if self.times is None else self.times[rows]


@register_stage("sample_negative")
class NegativeSampler(MiniBatchTransformer):
    """Add negatives to the pairs of a minibatch. Your own sampler derives from this class and defines `sample`, or
    passes `fn`.

    Args:
        negative_ratio: number of negatives for each positive, above 0. With form="pairs" it may be a fraction: P
            positives then get N = ceil(ratio * P) negatives, and negative j belongs to positive j * P // N.
        fn: a function with the arguments and the result of `sample`; not needed in a class that defines `sample`.
        corrupt: the end in which a negative differs from its positive: "dst", "src", or "both".
        form: "pairs" appends the negatives to the seeds: first all positives, then the negatives, row by row. It sets
            `labels`, True for positives, and `indexes`, the row of each pair's positive. Timestamps and `extra` of the
            item set are repeated for the negatives. So are `indexes` of the item set, if it has some; they then take
            the place of the rows. "rows" makes the seeds [P, 2 + ratio]: source, destination, and for each negative the
            node in place of the corrupted end.
    Attributes:
        negative_end: with form="rows", the end to which columns 2 and up belong, "src" or "dst"; else None.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds are no pairs, or have labels with
            form="pairs"; or the result of `sample` is not allowed.
    """

    def __init__(
        self,
        source: Stage,
        negative_ratio: float,
        fn: SampleFn | None = None,
        *,
        corrupt: str = "dst",
        form: str = "pairs",
    ) -> None:
        super().__init__(source, fn)  # type: ignore[arg-type]  # called by `sample`
        refuse_padding_before(self.name, source)
        kind = type(self)
        if fn is None and kind.sample is NegativeSampler.sample and kind._seeds is NegativeSampler._seeds:
            raise TypeError(
                f"{self.name}: found neither fn nor a sample method; one is needed. Pass fn, define sample(pairs, rng, "
                "edge_type, timestamps), or use sample_uniform_negative."
            )
        self.corrupt = check_choice(self.name, "corrupt", corrupt, [*ENDS])
        self.form = check_choice(self.name, "form", form, ("pairs", "rows"))
        self.negative_ratio = _checked_ratio(self.name, negative_ratio, form)
        if form == "rows" and corrupt == "both":
            raise ValueError(
                f"{self.name}: corrupt is 'both' and form is 'rows', but a row keeps one end of its positive. Set "
                "corrupt to 'dst' or 'src', or use form='pairs'."
            )
        self.negative_end = corrupt if form == "rows" else None
        other = nearest_before(source, NegativeSampler)
        if other is not None:
            raise ValueError(
                f"{self.name}: the earlier stage {other!r} adds negatives already; a chain has one such stage. Leave "
                "one of them out."
            )
        sampler = nearest_before(source, Sampler)
        if sampler is not None:
            raise ValueError(
                f"{self.name}: found {sampler!r} before it; the neighborhood of the negatives must be sampled too. Put "
                "the negative sampler before it."
            )
        items = items_before(source)
        if items is not None:
            _check_items(self.name, items, form)
        self._places: dict[int, _Places] = {}  # {number of positives: places}, the latest ones

    def sample(self, pairs: Tensor, rng: RngKey, edge_type: EdgeType | None, timestamps: Tensor | None) -> Tensor:
        """Return ids [n, 2]: a negative for each of `pairs`. Only the ends that `corrupt` names may differ. The result
        must depend on the arguments alone: random choices come from `rng`.

        Args:
            pairs: ids [n, 2], source and destination; each positive is repeated for each of its negatives.
            rng: the stage's random key at this minibatch, see RngKey.
            edge_type: the edge type of the pairs; None without types.
            timestamps: [n], the times of `pairs`; None without times.
        """
        assert self.fn is not None
        fn: Any = self.fn
        negatives: Tensor = fn(pairs, rng, edge_type, timestamps)
        return negatives

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        rng, wanted = self.rng_of(minibatch), self._wanted(minibatch)
        return self._filled(minibatch, wanted, {kind: self._seeds(links, rng, kind) for kind, links in wanted.items()})

    def _seeds(self, wanted: Wanted, rng: RngKey, edge_type: Any) -> Tensor:
        """Return the positives of one edge type and their negatives, in the layout `form`."""
        pairs, times = wanted.repeated()
        return self._formed(wanted, pairs, self.sample(pairs, rng, edge_type, times))

    def fingerprint(self) -> Fingerprint:
        return {"negative_ratio": self.negative_ratio, "corrupt": self.corrupt, "form": self.form}

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), **NegativeSampler.fingerprint(self)}

    def _wanted(self, minibatch: MiniBatch) -> dict[Any, Wanted]:
        if minibatch.blocks is not None or minibatch.input_nodes is not None:
            raise ValueError(
                f"{self.name}: the minibatch was sampled already; the neighborhood of the negatives must be sampled "
                "too. Put the negative sampler before the stage that samples."
            )
        if self.form == "pairs" and minibatch.labels is not None:
            raise _labels_given(self.name)
        seeds, times = minibatch.seeds, minibatch.timestamps
        if not isinstance(seeds, dict):
            return {None: self._wanted_of("seeds", seeds, times)}
        for kind in seeds:
            if not isinstance(kind, tuple):
                raise ValueError(_no_pairs(self.name, f"seeds of the node type {shown(kind)}"))
        times, first = times if isinstance(times, dict) else {}, 0
        wanted = {}
        for kind in sorted(seeds):
            wanted[kind] = self._wanted_of(f"seeds of {shown(kind)}", seeds[kind], times.get(kind), first)
            first += wanted[kind].number
        return wanted

    def _wanted_of(self, name: str, seeds: Any, times: Any, first_slot: int = 0) -> Wanted:
        pairs = check_seeds(self.name, name, seeds)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(_no_pairs(self.name, f"{name} of shape {list(pairs.shape)}"))
        return Wanted(pairs, self._places_of(int(pairs.shape[0])), times, first_slot)

    def _places_of(self, count: int) -> _Places:
        places = self._places.get(count)
        if places is None:
            ratio = self.negative_ratio
            number = math.ceil(ratio * count)
            check_memory(self.name, f"{number} negatives", BYTES_EACH * number, "Lower negative_ratio or batch_size.")
            positives = torch.arange(count)
            if isinstance(ratio, int):  # the formula below gives the same, in more time
                positive_of = positives.repeat_interleave(ratio)
            else:
                positive_of = torch.arange(number) * count // max(number, 1)
            labels = torch.arange(count + number) < count
            places = self._places[count] = _Places(positive_of, labels, torch.cat((positives, positive_of)))
            if len(self._places) > MOST_KEPT:
                self._places.pop(next(iter(self._places)), None)
        return places

    def _filled(self, minibatch: MiniBatch, wanted: dict[Any, Wanted], seeds: dict[Any, Tensor]) -> MiniBatch:
        """Return the minibatch with `seeds`, and for form="pairs" with the other fields of the negatives too.

        Args:
            wanted: {edge type: what was needed for its negatives}; the type is None without types.
            seeds: {edge type: the positives and their negatives}.
        """
        has_types = None not in wanted

        def typed(values: dict[Any, Any]) -> Any:
            return values if has_types else values[None]

        if self.form == "rows":
            return minibatch.replace(seeds=typed(seeds))

        def repeated(values: Any) -> Any:
            """Return a field of all seeds: the values of the positives, then for each negative the value of its
            positive.
            """
            by_type = values if has_types else {None: values}
            positive_of = {kind: links.places.positive_of for kind, links in wanted.items()}
            return typed({kind: torch.cat((rows, rows[positive_of[kind]])) for kind, rows in by_type.items()})

        indexes = {kind: links.places.indexes.clone() for kind, links in wanted.items()}
        if minibatch.indexes is not None:
            again = repeated(minibatch.indexes)
            indexes |= again if has_types else {None: again}
        times = minibatch.timestamps
        return minibatch.replace(
            seeds=typed(seeds),
            labels=typed({kind: links.places.labels.clone() for kind, links in wanted.items()}),
            indexes=typed(indexes),
            timestamps=None if times is None else repeated(times),
            extra={name: repeated(values) for name, values in minibatch.extra.items()},
        )

    def _formed(self, wanted: Wanted, pairs: Tensor, negatives: Any) -> Tensor:
        """Return the positives and `negatives` as seeds in the layout `self.form`. Raise TypeError or ValueError if
        `negatives` do not fit `pairs`.
        """
        if not isinstance(negatives, Tensor) or negatives.shape != pairs.shape:
            answer = f"a tensor {list(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
            raise ValueError(
                f"{self.name}: sample returned {answer}; it must return a tensor {list(pairs.shape)}, a negative for "
                "each of the given pairs. Return a changed copy of the pairs."
            )
        check_seeds(self.name, "the negatives", negatives.contiguous())
        if self.corrupt != "both":
            kept, end = (1, "destination") if self.corrupt == "src" else (0, "source")
            other = (negatives[:, kept] != pairs[:, kept]).nonzero()
            if other.numel() > 0:
                at = int(other[0])
                raise ValueError(
                    f"{self.name}: sample returned {negatives[at].tolist()} for the positive {pairs[at].tolist()}; "
                    f"with corrupt={self.corrupt!r} the {end} must stay. Keep it, or set corrupt='both' and "
                    "form='pairs'."
                )
        if self.form == "pairs":
            return torch.cat((wanted.positives, negatives))
        nodes = negatives[:, ENDS[self.corrupt][0]].reshape(len(wanted.positives), int(self.negative_ratio))
        return torch.cat((wanted.positives, nodes), dim=1)


def _checked_ratio(where: str, ratio: Any, form: str) -> int | float:
    wanted = "a number above 0" if form == "pairs" else "a whole number of negatives for each row, above 0"
    text = f"{where}: negative_ratio must be {wanted} and below 2^31, got {shown(ratio)}. Pass 1."
    if isinstance(ratio, bool) or not isinstance(ratio, numbers.Real):
        raise TypeError(text)
    number = float(ratio)
    if not 0 < number < 2**31 or (form == "rows" and number != int(number)):
        raise ValueError(text)
    return int(number) if number == int(number) else number


def _no_pairs(where: str, seeds: str) -> str:
    return f"{where}: found {seeds}; negatives belong to pairs [n, 2], source and destination. Give pairs as seeds."


def _labels_given(where: str) -> ValueError:
    return ValueError(
        f"{where}: the seeds have labels, but the form 'pairs' sets them: True for positives, False for negatives. "
        "Name yours otherwise in the item set (they become minibatch.extra), or use form='rows', which keeps them."
    )


def _check_items(where: str, items: Any, form: str) -> None:
    """Raise ValueError if the items of an item set are no pairs, or have labels, which form="pairs" would replace."""
    by_type = getattr(items, "item_sets", {None: items})
    for kind, item_set in by_type.items():
        if item_set.seeds_shape != (2,):
            raise ValueError(
                _no_pairs(where, f"seeds{of_type(kind)} of shape {[len(item_set), *item_set.seeds_shape]}")
            )
        if form == "pairs" and "labels" in item_set.names:
            raise _labels_given(where)
