"""Padder: gives all minibatches the shapes of a few buckets; `measure_sizes` finds buckets for a chain.

docs/semantics.md, section 5.1, fixes where padding lies. The stage stands between the sampler and the feature fetch, so
only ids are padded; rows of features for padding are zeros. If it alone reads from a stage of this package that samples
a whole graph, that stage numbers the nodes with padding at once (ChoiceSampler._made_for), and only the seeds are left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import check_int, dtype_name, shown
from datapipes.base.clock import NoClock
from datapipes.base.progress import working
from datapipes.base.sizes import check_memory
from datapipes.base.types import of_type, type_text
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.message import by_type
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
    with_padded_seeds,
)
from datapipes.sampling.sampler import (
    Sampler,
    all_known,
    fetched_before,
    nearest_before,
    negative_end_before,
    refuse_padding,
    refuse_padding_before,
)

__all__ = ["Padder", "measure_sizes"]

ROOM = 8  # rows for what is so rare that hardly a measured minibatch has it
BYTES_PER_ENTRY = 16  # of a padded minibatch: an edge has an index and an id, a node an id and an offset


@register_stage("pad")
class Padder(MiniBatchTransformer):
    """Add padding to sampled minibatches, so that all minibatches of a bucket have the same shapes: a model can then be
    compiled, or captured in a CUDA graph, once for each bucket.

    Each minibatch gets the sizes of the first bucket into which it fits, and the number of this bucket as its `bucket`.
    If it fits into none, it gets the smallest multiple of the last bucket into which it fits, with a number of its own:
    `len(sizes) + multiple - 2`. `DataLoader.stats()` counts the minibatches of each number.

    Real nodes and edges keep their order, so a model gives real nodes the same values, if each node's value depends on
    its own in-edges alone (sums, means, attention over edges). Ids of padding are -1, its features zeros, its labels
    -100 (integers) or 0; `minibatch.masks` tells what is real. Lists in `extra` and sparse features keep sizes of
    their own.

    Args:
        sizes: the buckets, smallest first, as `measure_sizes` returns them. A bucket is a dict: "seeds", the number of
            seeds; "nodes", a list with the number of nodes of each layer, from the seeds outwards; "edges", a list with
            the number of edges of each hop, from the seeds outwards (`fanouts` and `blocks` begin at the other end).
            With types, each number is a dict {type: number}; edge types are tuples, or "src:rel:dst". Seeds and each
            layer have at least one row of padding, which counts.
    Raises:
        TypeError, ValueError: `sizes` are no buckets, or a bucket is never used, since an earlier one is as large; or
            features were fetched or padding was added before. While running, a minibatch was not sampled, has other
            layers, hops or types than the buckets, has labels of integers without a sign, or is on a GPU.
        MemoryError: A bucket does not fit into memory. While running, a minibatch is so much larger than the buckets
            that its multiple does not.
    """

    _does = "sampling"
    _pads = True

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
        for number, bucket in enumerate(self._buckets):
            for earlier in self._buckets[:number]:
                if all(rows <= earlier[slot] for slot, rows in bucket.items()):
                    raise ValueError(
                        f"{self.name}: bucket {number} is never used, since an earlier bucket is as large. Give the "
                        "smallest bucket first."
                    )
        for bucket in sizes:
            if len(bucket["nodes"]) not in (1, len(bucket["edges"]) + 1):
                raise ValueError(
                    f"{self.name}: a bucket has {len(bucket['nodes'])} layers and {len(bucket['edges'])} hops; it "
                    "needs a layer more than hops, or one layer for a subgraph_type. Pass what measure_sizes returns."
                )
        self.sizes = [to_bucket(bucket) for bucket in self._buckets]
        self._has_one_layer = all(slot.place == 0 for slot in self._buckets[0])
        self._negative_end = negative_end_before(self.name, source)
        refuse_padding_before(self.name, source)
        if nearest_before(source, Sampler) is None and all_known(source):
            raise ValueError(f"{self.name}: found no sampler before it. Put pad behind the sampler.")
        if fetched := fetched_before(source):
            stage = next(iter(fetched.values()))
            raise ValueError(
                f"{self.name}: found {stage!r} before it, whose features have no rows for padding. Fetch features "
                "behind pad."
            )
        for bucket in self._buckets:
            self._check_memory(bucket)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        self._refuse(minibatch)
        if minibatch.bucket is not None:  # negative: from a sampler that knows the buckets
            number = -1 - minibatch.bucket
            made: MiniBatch = with_padded_seeds(minibatch, self._rows_of(number), number, self._negative_end)
            return made
        blocks: Any = minibatch.blocks
        block = next(iter(by_type(blocks[0]).values()))
        if block.indices.device.type != "cpu":
            raise ValueError(
                f"{self.name}: the blocks must be in host memory, found them on {block.indices.device}. Put copy_to "
                "behind pad."
            )
        sizes = sizes_of(minibatch, self._has_one_layer and has_one_layer(minibatch), self._negative_end)
        if sizes.keys() != self._buckets[0].keys():
            known, minibatch_is = self._buckets[0].keys(), f"minibatch {minibatch.index}"
            sides = {
                f"{minibatch_is} has {{}}, which the buckets lack": sizes.keys() - known,
                f"the buckets have {{}}, which {minibatch_is} lacks": known - sizes.keys(),
            }
            differ = "; ".join(text.format(shown(sorted(map(str, slots)))) for text, slots in sides.items() if slots)
            raise ValueError(f"{self.name}: {differ}. Measure the sizes of this chain: dp.measure_sizes(pipe).")
        for number, bucket in enumerate(self._buckets):
            if all(size + needs_row(slot) <= bucket[slot] for slot, size in sizes.items()):
                return self._padded(minibatch, sizes, bucket, number)
        multiple = max(-(-(size + needs_row(slot)) // bucket[slot]) for slot, size in sizes.items())
        number = len(self._buckets) + multiple - 2
        return self._padded(minibatch, sizes, self._rows_of(number), number)

    @property
    def _pads_to(self) -> list[Sizes] | None:
        return self._buckets if type(self).transform is Padder.transform else None

    def _rows_of(self, number: int) -> Sizes:
        """Return the sizes of the bucket with a number, which may be a multiple of the last one."""
        if number < len(self._buckets):
            return self._buckets[number]
        multiple = number - len(self._buckets) + 2
        return {slot: multiple * count for slot, count in self._buckets[-1].items()}

    def _padded(self, minibatch: MiniBatch, sizes: Sizes, rows: Sizes, number: int) -> MiniBatch:
        self._check_memory(rows)
        made: MiniBatch = padded(minibatch, sizes, rows, number, self._negative_end)
        return made

    def _check_memory(self, rows: Sizes) -> None:
        num_bytes = BYTES_PER_ENTRY * sum(rows.values())
        check_memory(self.name, f"a minibatch of {_total(rows, 'nodes')} nodes", num_bytes, "Measure the sizes anew.")

    def _refuse(self, minibatch: MiniBatch) -> None:
        if not minibatch.blocks or minibatch.input_nodes is None or minibatch.seeds is None:
            raise ValueError(
                f"{self.name}: found a minibatch without seeds or blocks. Put a sampler before this stage."
            )
        if minibatch.bucket is not None and minibatch.bucket >= 0:
            refuse_padding(self.name, minibatch)
        if minibatch.node_features:
            raise ValueError(f"{self.name}: found features, which have no rows for padding. Fetch features behind pad.")
        for type_, labels in by_type({} if minibatch.labels is None else minibatch.labels).items():
            if labels.dtype in (torch.uint8, torch.uint16, torch.uint32, torch.uint64):
                raise ValueError(
                    f"{self.name}: labels{of_type(type_)} are {dtype_name(labels.dtype)}, which has no number for "
                    "padding. Convert them to int64."
                )

    def fingerprint(self) -> Fingerprint:
        return {"sizes": [{_text(slot): count for slot, count in bucket.items()} for bucket in self._buckets]}

    def describe(self) -> dict[str, Any]:
        kinds = ("seeds", "nodes", "edges")
        return {"sizes": [{kind: _total(bucket, kind) for kind in kinds} for bucket in self._buckets]}


def _text(slot: Slot) -> str:
    return f"{slot.kind} {slot.place}" + ("" if slot.type_ is None else f" {type_text(slot.type_)}")


def _total(bucket: Sizes, kind: str) -> int:
    return sum(count for slot, count in bucket.items() if slot.kind == kind)


def measure_sizes(
    pipe: Stage, minibatches: int = 200, quantile: float = 0.9999, buckets: int = 1
) -> list[dict[str, Any]]:
    """Return buckets for `pad`: how many seeds, nodes and edges the minibatches of a chain have.

    Minibatches that are spread evenly over epoch 0 are made in this process; the state of the chain does not change,
    and all ranks get the same sizes. Keep them (`torch.save`): they are part of the state of a chain with `pad`.
    A feature fetch and what follows it do not run. The buckets split these minibatches, ordered by their nodes and
    edges, so that there is least padding. All buckets but the last have the largest sizes of their minibatches. For the
    last one each size is estimated: the median of its minibatches, and as many standard deviations above it as the
    quantile of a normal distribution is; and at least the largest size that was measured, and some room.

    Args:
        pipe: a chain with a sampler.
        minibatches: how many minibatches to make, of later epochs too if epoch 0 has fewer. If some edge type is rare,
            make more: a minibatch that exceeds the last bucket in one size gets a multiple of all its sizes.
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
        raise ValueError(
            f"{where}: quantile must be a float in [0.5, 1), got {shown(quantile)}. Leave it out: the last bucket has "
            "at least the largest sizes that were measured."
        )
    with working("measure_sizes: making minibatches"):
        measured = _measured(where, graph, minibatches)
    sampler = nearest_before(graph.root, Sampler)
    have_one_layer = all(is_one for is_one, _, _ in measured)
    if sampler is not None:  # it knows, whatever nodes its minibatches happen to have
        have_one_layer &= getattr(sampler, "subgraph_type", "directional") != "directional"
    sizes = [of_one_layer if have_one_layer else of_layers for _, of_one_layer, of_layers in measured]
    slots = [*sizes[0]]
    counts = np.array([[size[slot] for slot in slots] for size in sizes], np.int64)
    deviations = float(torch.special.ndtri(torch.tensor(quantile, dtype=torch.float64)))
    found = _split(counts, buckets, deviations) + np.array([needs_row(slot) for slot in slots])
    # Seeds and their layer stay equal, which to_pyg needs.
    found[-1] += np.array([ROOM if slot.kind == "edges" or slot.place > 0 else 0 for slot in slots])
    return [to_bucket(dict(zip(slots, np.maximum(row, 1).tolist(), strict=True))) for row in found]


def _before_padding(where: str, pipe: Any) -> StageGraph[Stage]:
    """Return the graph of a chain up to the stage that would be padded."""
    if not isinstance(pipe, Stage):
        raise TypeError(f"{where}: pipe must be a Stage, got {type(pipe).__name__}. Pass a chain with a sampler.")
    graph: StageGraph[Stage] = StageGraph(pipe)
    for stage in graph:
        if stage._fills or stage._pads:
            graph = StageGraph(stage.source)
            break
    graph.refuse_jumps(where)
    return graph


def _measured(where: str, graph: StageGraph[Stage], minibatches: int) -> list[tuple[bool, Sizes, Sizes]]:
    """Return (whether it has one layer, its sizes if all nodes are one layer, its sizes by layer) of minibatches."""
    evaluator, end = Evaluator(Calls(graph.numbering, NoClock())), negative_end_before(where, graph.root)
    start = graph.seed_stage
    # All ranks measure the same minibatches, and get the same sizes, unless each has items of its own.
    first, step = (start.rank, start.world_size) if getattr(start, "local_items", False) else (0, 1)
    indices = range(first, start.num_steps * start.world_size, step)
    found: list[tuple[bool, Sizes, Sizes]] = []
    for epoch in itertools.count():
        before = len(found)
        count = min(minibatches - before, len(indices))
        for i in range(count):
            minibatch = evaluator.minibatch(graph, epoch, indices[i * len(indices) // count])
            if minibatch is None:  # dropped by a stage
                continue
            if not minibatch.blocks or minibatch.input_nodes is None:
                raise ValueError(
                    f"{where}: {graph.root!r} gives minibatches without blocks. Pass a chain with a sampler."
                )
            found.append((has_one_layer(minibatch), sizes_of(minibatch, True, end), sizes_of(minibatch, False, end)))
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
        start, next_cost = [0], [math.inf]
        for i in range(1, len(counts)):
            through = cost[:i] + (i - np.arange(i)) * totals[i]
            start.append(int(through.argmin()))
            next_cost.append(through[start[-1]])
        starts.append(start)
        cost = np.array(next_cost)
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
