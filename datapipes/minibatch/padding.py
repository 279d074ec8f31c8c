"""Padding: rows and edges that stand for nothing, so that all minibatches of a bucket have the same shapes.

A bucket says how many seeds, nodes and edges a padded minibatch has, for each layer, hop and type. docs/semantics.md,
section 5.1, fixes where padding lies and what it contains. Nodes keep their order within their layer. A layer is the
seeds, or the nodes that one hop found; if a block has all nodes as destinations (an induced subgraph), there is one
layer. Each layer ends with at least one row of padding; edges of padding end there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, shown
from datapipes.base.threads import num_threads
from datapipes.base.types import by_edge_type, check_node_type, ends_of, of_type
from datapipes.minibatch.block import Block
from datapipes.minibatch.flat import count_seeds, sizes_of_nodes
from datapipes.minibatch.message import by_type

NO_ID = -1  # the id of a seed, node or edge of padding
NO_CLASS = -100  # the label of a seed of padding, which torch's losses ignore

Bucket = Mapping[str, Any]
_KINDS = ("seeds", "nodes", "edges")


class Slot(NamedTuple):
    """What one number of a bucket counts.

    Attributes:
        kind: "seeds", "nodes" or "edges".
        place: the layer of the nodes, or the hop of the edges, from the seeds outwards; 0 for seeds.
        type_: the node or edge type; None without types.
    """

    kind: str
    place: int
    type_: Any

    def __str__(self) -> str:
        where = {"seeds": "seeds", "nodes": f"nodes of layer {self.place}", "edges": f"edges of hop {self.place}"}
        return where[self.kind] + of_type(self.type_)


Sizes = dict[Slot, int]


class Masks:
    """Which entries of a minibatch are real, and not padding. Each mask is bool, on the device of the minibatch, and
    computed when it is read, without waiting for a GPU.
    """

    def __init__(self, minibatch: Any) -> None:
        self._minibatch = minibatch

    @property
    def seeds(self) -> Any:
        """[n], of the seeds; with types {type: mask}. None if there are no seeds."""
        return self._of_ids(self._minibatch.seeds)

    @property
    def nodes(self) -> Any:
        """[num_nodes], of `input_nodes`; with types {node type: mask}. None before sampling."""
        return self._of_ids(self._minibatch.input_nodes)

    @property
    def edges(self) -> list[Any]:
        """[num_edges] for each of `blocks`; with types {edge type: mask}."""
        return [_of_each(hop, self._of_edges) for hop in self._minibatch.blocks or ()]

    def _of_ids(self, ids: Any) -> Any:
        def is_real(type_: Any, part: Tensor) -> Tensor:
            first = part if part.ndim == 1 else part[:, 0]
            is_padded = self._minibatch.bucket is not None
            return first != NO_ID if is_padded else torch.ones_like(first, dtype=torch.bool)

        return None if ids is None else _of_each(ids, is_real)

    def _of_edges(self, edge_type: Any, block: Block) -> Tensor:
        places = torch.arange(block.num_edges, device=block.indptr.device)
        # The last row has the edges of padding.
        return places < block.indptr[-2] if self._minibatch.bucket is not None else places >= 0


# --- buckets


def to_bucket(sizes: Mapping[Slot, int]) -> dict[str, Any]:
    """Return sizes in the form in which users see them: {"seeds": n, "nodes": [n for each layer], "edges": [n for each
    hop]}; with types, each n is {type: n}.
    """
    bucket: dict[str, Any] = {"seeds": {}, "nodes": [], "edges": []}
    for (kind, place, type_), count in sizes.items():
        places = bucket[kind]
        if kind != "seeds":
            places += [{} for _ in range(place + 1 - len(places))]
            places = places[place]
        places[type_] = int(count)

    def plain(counts: dict[Any, int]) -> Any:
        return counts.get(None, counts)

    return {kind: plain(value) if kind == "seeds" else [*map(plain, value)] for kind, value in bucket.items()}


def from_bucket(where: str, bucket: Any) -> Sizes:
    """Return the numbers of a bucket, which a user gave, by slot.

    Raises:
        TypeError, ValueError: It is no bucket.
    """
    if not isinstance(bucket, Mapping) or {*bucket} != {*_KINDS}:
        found = f"the keys {shown([*bucket])}" if isinstance(bucket, Mapping) else shown(bucket)
        raise TypeError(f"{where}: found {found}; a dict with seeds, nodes and edges is needed. Use dp.measure_sizes.")
    sizes: Sizes = {}
    for kind in _KINDS:
        places = [bucket[kind]] if kind == "seeds" else bucket[kind]
        if not isinstance(places, Sequence) or isinstance(places, str) or not places:
            raise TypeError(
                f"{where}: {kind} must be a list with a number for each {'layer' if kind == 'nodes' else 'hop'}, got "
                f"{shown(places)}. Use dp.measure_sizes."
            )
        for place, counts in enumerate(places):
            for type_, count in _by_type(where, kind, counts, bucket["nodes"]).items():
                slot = Slot(kind, place, type_)
                sizes[slot] = check_int(where, str(slot), count, 1)
    return sizes


def _by_type(where: str, kind: str, counts: Any, layers: Any) -> Mapping[Any, Any]:
    """Return the numbers of a layer or hop as {type: number}. `layers`, the numbers of nodes, tell the node types, so
    that a text in `counts` can be told from an edge type.
    """
    if not isinstance(counts, Mapping):
        return {None: counts}
    node_types = layers[0] if isinstance(layers, Sequence) and layers else ()
    if kind == "nodes" or (kind == "seeds" and isinstance(node_types, Mapping) and {*counts} <= {*node_types}):
        return {check_node_type(where, type_): counts[type_] for type_ in sorted(counts, key=str)}
    return by_edge_type(where, counts)


# --- sizes of a minibatch


def has_one_layer(minibatch: Any) -> bool:
    """Return whether the blocks of a minibatch have all nodes as sources and as destinations."""
    if len(minibatch.blocks) != 1:
        return False
    nodes = by_type(minibatch.input_nodes)
    return all(
        (block.num_src, block.num_dst) == tuple(len(nodes[end]) for end in ends_of(edge_type))
        for edge_type, block in by_type(minibatch.blocks[0]).items()
    )


def sizes_of(minibatch: Any, one_layer: bool, negative_end: str) -> Sizes:
    """Return how many seeds, nodes and edges a minibatch has, which was sampled and not padded.

    Args:
        one_layer: count all nodes as one layer.
        negative_end: "src" or "dst", the end to which the columns from 2 on of seeds [n, k] belong.
    """
    hops = [by_type(hop) for hop in reversed(minibatch.blocks)]
    nodes, seeds = by_type(minibatch.input_nodes), by_type(minibatch.seeds)
    sizes = {Slot("seeds", 0, type_): len(ids) for type_, ids in seeds.items()}
    sources = {ends_of(edge_type)[0] for edge_type in hops[0]}
    compacted = {} if minibatch.compacted_seeds is None else by_type(minibatch.compacted_seeds)
    first: Mapping[Any, int] = {}
    if not one_layer and sources - {ends_of(edge_type)[1] for edge_type in hops[0]}:
        first = count_seeds(compacted, seeds, nodes, negative_end)[0]
    for type_, ids in nodes.items():
        if one_layer or type_ not in sources:
            sizes[Slot("nodes", 0, type_)] = len(ids)
            continue
        reached = [0, *sizes_of_nodes(hops, type_, len(ids), first)]
        for layer, (before, after) in enumerate(itertools.pairwise(reached)):
            sizes[Slot("nodes", layer, type_)] = after - before
    for place, hop in enumerate(hops):
        for edge_type, block in hop.items():
            sizes[Slot("edges", place, edge_type)] = block.num_edges
    return sizes


def needs_row(slot: Slot) -> int:
    """Return how many rows a bucket must have beyond what is real: 1 for seeds and for nodes, 0 for edges."""
    return 0 if slot.kind == "edges" else 1


# --- padded


def padded(minibatch: Any, sizes: Sizes, rows: Sizes, bucket: int, negative_end: str) -> Any:
    """Return a minibatch with padding.

    Args:
        sizes: what the minibatch has; the result of `sizes_of`.
        rows: what the result has: for each slot at least the size, and `needs_row` more.
        bucket: the number for the field `bucket` of the result.
        negative_end: as for `sizes_of`.
    """
    layers = {node_type: _layers(sizes, rows, node_type) for node_type in by_type(minibatch.input_nodes)}
    hops = [
        _of_each(hop, lambda edge_type, block, place=place: _block(edge_type, block, place, layers, rows))
        for place, hop in enumerate(reversed(minibatch.blocks))
    ]
    changes: dict[str, Any] = {"blocks": hops[::-1]}
    if minibatch.edge_features:
        changes["edge_features"] = [
            {
                key: _filled(values, by_type(hop)[None if isinstance(key, str) else key[0]].num_edges, 0)
                for key, values in features.items()
            }
            for hop, features in zip(changes["blocks"], minibatch.edge_features, strict=True)
        ]
    for name, fill in (("input_nodes", NO_ID), ("batch", 0)):
        if (values := getattr(minibatch, name)) is not None:
            changes[name] = _of_each(
                values, lambda node_type, part, fill=fill: _by_layer(part, layers[node_type], fill)
            )
    return with_padded_seeds(minibatch.replace(**changes), rows, bucket, negative_end)


def with_padded_seeds(minibatch: Any, rows: Sizes, bucket: int, negative_end: str) -> Any:
    """Pad the seeds of a minibatch whose blocks, nodes and `batch` have their padding. In `batch` any valid row may
    stand for padding; it becomes the last seed.

    Args:
        rows, bucket, negative_end: as for `padded`.
    """
    lengths = {slot.type_: rows[slot] for slot in rows if slot.kind == "seeds"}
    nodes = by_type(minibatch.input_nodes)

    def seed_rows(values: Any, fill: int) -> Any:
        return _of_each(values, lambda type_, part: _filled(part, lengths[type_], fill))

    changes: dict[str, Any] = {"bucket": bucket}
    for name, fill in (("seeds", NO_ID), ("labels", NO_CLASS), ("indexes", NO_ID), ("timestamps", 0)):
        if (values := getattr(minibatch, name)) is not None:
            changes[name] = seed_rows(values, fill)
    changes["extra"] = {name: seed_rows(values, NO_ID) for name, values in minibatch.extra.items()}
    if minibatch.compacted_seeds is not None:

        def local_seeds(type_: Any, local: Tensor) -> Tensor:
            ends = [type_, type_, type_]
            if isinstance(type_, tuple):
                ends = [type_[0], type_[2], type_[0 if negative_end == "src" else 2]]
            last_rows = [rows[Slot("nodes", 0, end)] - 1 for end in ends]
            return _local_seeds(local, lengths[type_], last_rows, nodes.get(type_))

        changes["compacted_seeds"] = _of_each(minibatch.compacted_seeds, local_seeds)
    if minibatch.batch is not None:
        seeds = by_type(minibatch.seeds)  # perhaps in another order
        trees = _moved_trees([len(seeds[type_]) for type_ in lengths], [*lengths.values()])
        last = sum(lengths.values()) - 1
        changes["batch"] = _of_each(
            minibatch.batch, lambda node_type, tree: trees[tree].masked_fill_(nodes[node_type] == NO_ID, last)
        )
    return minibatch.replace(**changes)


class _Layers(NamedTuple):
    """How many nodes of a type each layer has, and how many rows with the padding."""

    nodes: list[int]
    rows: list[int]


def _layers(sizes: Sizes, rows: Sizes, node_type: Any) -> _Layers:
    slots = [slot for slot in sizes if slot.kind == "nodes" and slot.type_ == node_type]
    return _Layers([sizes[slot] for slot in slots], [rows[slot] for slot in slots])


def _of_each(value: Any, fn: Any) -> Any:
    """Return `fn(type, part)` for the value of a field; with types {type: fn(type, part)}."""
    return {type_: fn(type_, part) for type_, part in value.items()} if isinstance(value, dict) else fn(None, value)


def _filled(values: Tensor, count: int, fill: int) -> Tensor:
    """Return `values` with rows up to `count`: rows of `fill` for integers with a sign, else of 0."""
    if values.dtype in (torch.int32, torch.int64):
        if values.ndim == 1:
            return _by_layer(values, _Layers([len(values)], [count]), fill)
        layers = _Layers([values.numel()], [count * math.prod(values.shape[1:])])
        return _by_layer(values.reshape(-1), layers, fill).reshape(count, *values.shape[1:])
    longer = values.new_full((count, *values.shape[1:]), fill if values.dtype in (torch.int8, torch.int16) else 0)
    longer[: len(values)] = values
    return longer


def _by_layer(values: Tensor, layers: _Layers, fill: int) -> Tensor:
    """Return `values`, one for each node, with the values `fill` for the rows of padding."""
    return torch.from_numpy(_core.pad_values(values.contiguous().numpy(), layers, fill))


def _local_seeds(local: Tensor, count: int, last_rows: list[int], nodes: Tensor | None) -> Tensor:
    """Return compacted seeds with rows up to `count`.

    Nodes of the first layer stay where they are. Seeds [n] of padding are the rows of padding behind them, one after
    the other as long as there are some. All others, such as the ends of pairs, are the last row of the layer.

    Args:
        last_rows: the last row of layer 0, of the node type of each column; the last entry is for all further columns.
        nodes: for seeds [n], the padded nodes of their type.
    """
    longer = _filled(local, count, last_rows[0])
    rest = longer[len(local) :]
    if local.ndim > 1:
        for column in range(1, local.shape[1]):
            rest[:, column] = last_rows[min(column, len(last_rows) - 1)]
    elif len(rest) > 1 and nodes is not None:
        num_nodes = int((nodes[: last_rows[0]] != NO_ID).sum())
        torch.arange(num_nodes, num_nodes + len(rest) - 1, out=rest[:-1]).clamp_(max=last_rows[0])
    return longer


def _moved_trees(counts: list[int], lengths: list[int]) -> Tensor:
    """Return where each seed is among the padded seeds, int64 [number of seeds]; both are counted over all types."""
    starts = [0, *itertools.accumulate(lengths)]
    return torch.cat([torch.arange(start, start + count) for start, count in zip(starts, counts, strict=False)])


def _block(edge_type: Any, block: Block, hop: int, layers: Mapping[Any, _Layers], rows: Sizes) -> Block:
    src, dst = ends_of(edge_type)
    to, from_ = _first(layers[dst], hop + 1), _first(layers[src], hop + 2)
    as_id = Tensor.int if block.indices.dtype == torch.int32 else Tensor.long
    indptr, indices, edge_ids = _core.pad_block(
        block.indptr.long().contiguous().numpy(),
        as_id(block.indices).contiguous().numpy(),
        None if block.edge_ids is None else block.edge_ids.long().contiguous().numpy(),
        to,
        from_,
        rows[Slot("edges", hop, edge_type)],
        num_threads=num_threads(),
    )
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), sum(from_.rows), ids)


def _first(layers: _Layers, count: int) -> _Layers:
    return _Layers(layers.nodes[:count], layers.rows[:count])
