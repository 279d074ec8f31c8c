"""Padder: gives all minibatches the shapes of a few buckets; `measure_sizes` finds buckets for a chain.

docs/semantics.md, section 5.1, fixes where padding lies. The stage stands between the sampler and the feature fetch, so
only ids are copied; rows of features for padding are zeros.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes.base.checks import check_int, shown
from datapipes.base.clock import NoClock
from datapipes.base.sizes import check_memory
from datapipes.base.types import type_text
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import CarrierBase, Fingerprint
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.padding import (
    Bucket,
    Sizes,
    Slot,
    from_bucket,
    has_one_layer,
    needs_row,
    padded,
    sizes_of,
    to_bucket,
)
from datapipes.sampling.sampler import fetched_before

__all__ = ["Padder", "measure_sizes"]

BYTES_PER_ENTRY = 16  # of a padded minibatch: an edge has an index and an id, a node an id and an offset


@register_stage("pad")
class Padder(MiniBatchTransformer):
    """Add padding to sampled minibatches, so that all minibatches of a bucket have the same shapes: a model can then be
    compiled, or captured in a CUDA graph, once for each bucket.

    Each minibatch gets the sizes of the first bucket into which it fits, and the number of this bucket as its `bucket`.
    If it fits into none, it gets the smallest multiple of the last bucket into which it fits, with a number of its own:
    `len(sizes) + multiple - 2`. `DataLoader.stats()` counts the minibatches of each number.

    Real nodes keep their order, and real edges their order and destinations, so a model gives real nodes the same
    values, if each node's value depends on its own in-edges alone (sums, means, attention over edges). Ids of padding
    are -1, its features zeros, its labels -100 (integers) or 0; `minibatch.masks` tells what is real.

    Args:
        sizes: the buckets, smallest first, as `measure_sizes` returns them. A bucket is a dict: "seeds", the number of
            seeds; "nodes", a list with the number of nodes of each layer, from the seeds outwards; "edges", a list with
            the number of edges of each hop, from the seeds outwards. With types, each number is a dict {type: number}.
            Seeds and each layer have at least one row of padding, which counts.
    Raises:
        TypeError, ValueError: `sizes` are no buckets, or features were fetched before; while running, a minibatch was
            not sampled, has other layers, hops or types than the buckets, is padded already, or is on a GPU.
        MemoryError: While running, a minibatch is so much larger than the buckets that its multiple does not fit into
            memory.
    """

    _does = "sampling"

    def __init__(self, source: Stage, sizes: Sequence[Bucket]) -> None:
        super().__init__(source)
        if not isinstance(sizes, (list, tuple)) or not sizes:
            raise TypeError(
                f"{self.name}: sizes must be a list of buckets, got {shown(sizes)}. Pass what dp.measure_sizes returns."
            )
        self._buckets = [from_bucket(self.name, bucket) for bucket in sizes]
        for bucket in self._buckets:
            if {*bucket} != {*self._buckets[0]}:
                slots = sorted(map(str, {*bucket} ^ {*self._buckets[0]}))
                raise ValueError(
                    f"{self.name}: only some of the buckets have {shown(slots)}; all need the same layers, hops and "
                    "types. Pass what dp.measure_sizes returns."
                )
        self.sizes = [to_bucket(bucket) for bucket in self._buckets]
        self._has_one_layer = all(slot.place == 0 for slot in self._buckets[0])
        if fetched := fetched_before(source):
            stage = next(iter(fetched.values()))
            raise ValueError(
                f"{self.name}: found {stage!r} before it, whose features have no rows for padding. Fetch features "
                "behind pad."
            )

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        self._refuse(minibatch)
        sizes = sizes_of(minibatch, self._has_one_layer and has_one_layer(minibatch))
        if sizes.keys() != self._buckets[0].keys():
            sides = {"has": sizes.keys() - self._buckets[0].keys(), "lacks": self._buckets[0].keys() - sizes.keys()}
            differ = " and ".join(f"{verb} {shown(sorted(map(str, slots)))}" for verb, slots in sides.items() if slots)
            raise ValueError(
                f"{self.name}: beside the buckets, minibatch {minibatch.index} {differ}. Measure the sizes of this "
                "chain: dp.measure_sizes(pipe)."
            )
        for number, bucket in enumerate(self._buckets):
            if all(size + needs_row(slot) <= bucket[slot] for slot, size in sizes.items()):
                return self._padded(minibatch, sizes, bucket, number)
        multiple = max(-(-(size + needs_row(slot)) // bucket[slot]) for slot, size in sizes.items())
        rows = {slot: multiple * count for slot, count in bucket.items()}
        return self._padded(minibatch, sizes, rows, len(self._buckets) + multiple - 2)

    def _padded(self, minibatch: MiniBatch, sizes: Sizes, rows: Sizes, number: int) -> MiniBatch:
        num_bytes = BYTES_PER_ENTRY * sum(rows.values())
        check_memory(self.name, f"a minibatch of {_total(rows, 'nodes')} nodes", num_bytes, "Measure the sizes anew.")
        made: MiniBatch = padded(minibatch, sizes, rows, number)
        return made

    def _refuse(self, minibatch: MiniBatch) -> None:
        if minibatch.blocks is None or minibatch.input_nodes is None:
            raise ValueError(f"{self.name}: found a minibatch without blocks. Put a sampler before this stage.")
        if minibatch.bucket is not None:
            raise ValueError(f"{self.name}: found a minibatch that is padded already. Pad once.")
        if minibatch.node_features or minibatch.edge_features:
            raise ValueError(f"{self.name}: found features, which have no rows for padding. Fetch features behind pad.")
        hop = minibatch.blocks[0]
        block = next(iter(hop.values())) if isinstance(hop, dict) else hop
        if block.indices.device.type != "cpu":
            raise ValueError(
                f"{self.name}: the blocks must be in host memory, found them on {block.indices.device}. Put copy_to "
                "behind pad."
            )

    def fingerprint(self) -> Fingerprint:
        return {"sizes": [{_text(slot): count for slot, count in bucket.items()} for bucket in self._buckets]}

    def describe(self) -> dict[str, Any]:
        return {"buckets": len(self.sizes), "nodes": [_total(bucket, "nodes") for bucket in self._buckets]}


def _text(slot: Slot) -> str:
    return f"{slot.kind} {slot.place}" + ("" if slot.type_ is None else f" {type_text(slot.type_)}")


def _total(bucket: Sizes, kind: str) -> int:
    return sum(count for slot, count in bucket.items() if slot.kind == kind)


def measure_sizes(
    pipe: Stage, minibatches: int = 200, quantile: float = 0.9999, buckets: int = 1
) -> list[dict[str, Any]]:
    """Return buckets for `pad`: how many seeds, nodes and edges the minibatches of a chain have.

    The first minibatches of the chain are made in this process, epoch 0 first; the state of the chain does not change.
    A feature fetch and what follows it do not run. The buckets split these minibatches, ordered by their nodes and
    edges, so that there is least padding. All buckets but the last have the largest sizes of their minibatches. For the
    last one each size is estimated: the median of its minibatches, and as many standard deviations above it as the
    quantile of a normal distribution is; and at least the largest size that was measured.

    Args:
        pipe: a chain with a sampler.
        minibatches: how many minibatches to make.
        quantile: between 0.5 and 1; about this share of minibatches stays within the sizes of the last bucket.
        buckets: how many buckets to return, at most; fewer if there are fewer different minibatches. One is enough if
            all seeds have similar neighborhoods.
    Raises:
        TypeError, ValueError: An argument is not allowed, the chain samples nothing, or its epochs can be iterated only
            once (FromNode).
    """
    where = "measure_sizes"
    graph = _before_padding(where, pipe)
    check_int(where, "minibatches", minibatches, 1)
    check_int(where, "buckets", buckets, 1)
    if isinstance(quantile, bool) or not isinstance(quantile, float) or not 0.5 <= quantile < 1:
        raise ValueError(f"{where}: quantile must be a float in [0.5, 1), got {shown(quantile)}. Leave it out.")
    sampled = _measured(where, graph, minibatches)
    have_one_layer = all(is_one for is_one, _, _ in sampled)
    sizes = [of_one_layer if have_one_layer else layered for _, of_one_layer, layered in sampled]
    slots = [*sizes[0]]
    counts = np.array([[size[slot] for slot in slots] for size in sizes], np.int64)
    deviations = statistics.NormalDist().inv_cdf(quantile)
    found = _split(counts, buckets, deviations) + np.array([needs_row(slot) for slot in slots])
    return [to_bucket(dict(zip(slots, np.maximum(row, 1).tolist(), strict=True))) for row in found]


def _before_padding(where: str, pipe: Any) -> StageGraph[Stage]:
    """Return the graph of a chain up to the stage that would be padded."""
    if not isinstance(pipe, Stage):
        raise TypeError(f"{where}: pipe must be a Stage, got {type(pipe).__name__}. Pass a chain with a sampler.")
    graph: StageGraph[Stage] = StageGraph(pipe)
    for stage in graph:
        if stage.sources and (stage._fills or isinstance(stage, (Padder, CarrierBase))):
            graph = StageGraph(stage.source)
            break
    graph.refuse_jumps(where)
    return graph


def _measured(where: str, graph: StageGraph[Stage], minibatches: int) -> list[tuple[bool, Sizes, Sizes]]:
    """Return (has_one_layer, sizes as one layer, sizes by layer) of the first minibatches of a chain."""
    evaluator = Evaluator(Calls(graph.numbering, NoClock()))
    start = graph.seed_stage
    found: list[tuple[bool, Sizes, Sizes]] = []
    for epoch in itertools.count():
        before = len(found)
        for step in range(start.num_steps):
            minibatch = evaluator.minibatch(graph, epoch, step * start.world_size + start.rank)
            if minibatch is None:  # dropped by a stage
                continue
            if minibatch.blocks is None or minibatch.input_nodes is None:
                raise ValueError(
                    f"{where}: {graph.root!r} gives minibatches without blocks. Pass a chain with a sampler."
                )
            found.append((has_one_layer(minibatch), sizes_of(minibatch, True), sizes_of(minibatch, False)))
            if len(found) == minibatches:
                return found
        if len(found) == before:
            raise ValueError(f"{where}: epoch {epoch} of the chain has no minibatches. Pass a chain that gives some.")
    raise AssertionError("epochs never end")


def _split(counts: NDArray[np.int64], buckets: int, deviations: float) -> NDArray[np.int64]:
    """Return the sizes of buckets, [at most `buckets`, slots], each at least as large as the one before.

    Args:
        counts: [minibatches, slots].
        deviations: how many standard deviations the last bucket goes beyond the median.
    """
    counts = counts[counts.sum(1).argsort(kind="stable")]
    largest = np.maximum.accumulate(counts)  # row i: the sizes of a bucket for the minibatches 0 .. i
    totals, places = largest.sum(1), np.arange(1, len(counts) + 1)
    # cost[i]: all entries of the minibatches 0 .. i with padding, in the best split into as many buckets as rounds are
    # done. The bucket of i begins behind the minibatch starts[round][i].
    cost, starts = (totals * places).astype(float), []
    for _ in range(min(buckets, len(counts)) - 1):
        through = [cost[:i] + (i - np.arange(i)) * totals[i] for i in range(1, len(counts))]
        starts.append([0, *(int(row.argmin()) for row in through)])
        cost = np.array([math.inf, *(row.min() for row in through)])
    ends = [len(counts) - 1]
    for start in reversed(starts):
        ends.insert(0, start[ends[0]])
    last = counts[ends[-2] + 1 :] if len(ends) > 1 else counts
    middle = np.median(last, axis=0)
    above = np.maximum(last - middle, 0)
    spread = np.sqrt((above**2).sum(0) / np.maximum((last >= middle).sum(0), 1))
    rows = largest[ends]
    rows[-1] = np.maximum(rows[-1], np.ceil(middle + deviations * spread).astype(np.int64))
    return np.unique(rows, axis=0)
