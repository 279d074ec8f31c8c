"""to_partition: the tensors that each rank has loaded, as the shards of one partition.

Their columns are the attributes that a Partitioner makes of `LoadedGraphTensors.to_dataset()`: features are "feat",
weights "weight"; the nodes of the train set are in "train_mask", their labels in "y". So parts that ranks write
together equal those of one process that has all of the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.folder import check_root
from datapipes.base.types import ends_of, type_text
from datapipes.datasets.tfrecord.entity_task import TFRecordLoadError
from datapipes.datasets.tfrecord.graph_tensors import FIELDS, GraphTensors, field_text
from datapipes.datasets.tfrecord.tasks import has_labels, refuse_negative_alone
from datapipes.partition.across_ranks.exchange import Exchange, exchange
from datapipes.partition.across_ranks.placed_graph import Shard
from datapipes.partition.across_ranks.write_shards import write_shards
from datapipes.partition.layouts import PARTITION
from datapipes.partition.report import PartitionReport
from datapipes.partition.source import TRAIN_MASK

_WHERE = "to_partition"
_NO_ITEMS = ("val_mask", "test_mask")
_PAIRS = ("edge_index", "positive_label", "negative_label")


def to_partition(graph: GraphTensors, root: str | Path, rank_timeout_s: float) -> PartitionReport:
    """Write the shards of all ranks as a partition; see LoadedGraphTensors.to_partition."""
    with exchange(_WHERE, rank_timeout_s, TFRecordLoadError) as ranks:
        _refuse_other_ranks(graph)
        return write_tensors(ranks, graph, root)


def write_tensors(ranks: Exchange, graph: GraphTensors, root: str | Path) -> PartitionReport:
    """Write what this rank has loaded, together with the others."""
    path = check_root(_WHERE, root, replaced=PARTITION)
    _refuse_other_forms(_WHERE, ranks.gather(form_of(graph)))
    return write_shards(ranks, _shard_of(_WHERE, graph), path)


def _refuse_other_ranks(graph: GraphTensors) -> None:
    found = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if found else 1
    if graph._num_ranks not in (1, size):
        why = f"torch.distributed has {size}" if found else "torch.distributed is not initialised"
        raise ValueError(
            f"{_WHERE}: the graph was loaded by {graph._num_ranks} ranks, and {why}. Call "
            "torch.distributed.init_process_group in all processes that have loaded a shard, and in no other."
        )


def _shard_of(where: str, graph: GraphTensors) -> Shard:
    """Return the columns of what a rank has loaded; no tensor is copied, but for labels.

    Raises:
        ValueError: Tensors of one type have different lengths, or an edge type is of an unknown node type.
    """
    ids, edges = _sorted(graph.by_type("node_ids")), _sorted(graph.by_type("edge_index"))
    _check_ids(where, "node_ids", ids, 1)
    _check_ids(where, "edge_index", edges, 2)
    graph.refuse_mixed_types(where)
    for edge_type in edges:
        for end in ends_of(edge_type):
            if end not in ids:
                raise ValueError(
                    f"{where}: the edge type {type_text(edge_type)} has the node type {shown(end)}, of which no nodes "
                    f"were loaded; there are {shown([*ids])}. Load its nodes."
                )
    of_nodes: dict[Any, dict[str, Tensor]] = {kind: {} for kind in ids}
    of_edges: dict[Any, dict[str, Tensor]] = {kind: {} for kind in edges}
    num_nodes = {kind: int(each.shape[0]) for kind, each in ids.items()}
    num_edges = {kind: int(each.shape[1]) for kind, each in edges.items()}
    labels = graph.by_type("node_labels")
    _check_rows(where, "node_labels", labels, num_nodes)
    for field, name, counts, columns in (
        ("node_features", "feat", num_nodes, of_nodes),
        ("edge_weights", "weight", num_edges, of_edges),
        ("edge_features", "feat", num_edges, of_edges),
    ):
        _check_rows(where, field, graph.by_type(field), counts)
        for kind, rows in graph.by_type(field).items():
            columns[kind][name] = rows
    links, negative = graph.by_type("positive_label"), graph.by_type("negative_label")
    num_links = None
    if labels:
        if len({rows.dtype.is_floating_point for rows in labels.values()}) > 1:
            raise ValueError(
                f"{where}: the labels of node types are {shown({kind: rows.dtype for kind, rows in labels.items()})}; "
                "all must be whole numbers, which are classes, or all floats. Set node_labels to those of one task."
            )
        for kind, rows in labels.items():
            of_nodes[kind].update(_of_labels(rows))
    elif links or negative:
        refuse_negative_alone(where, links, negative)
        num_links = sum(int(pairs.shape[1]) for pairs in [*links.values(), *negative.values()])
    else:
        for kind, each in ids.items():
            of_nodes[kind].update(_masks(torch.ones(each.shape[0], dtype=torch.bool)))
    return Shard(ids, of_nodes, edges, of_edges, num_links)


def _of_labels(labels: Tensor) -> dict[str, Tensor]:
    """Return the masks and the labels "y" of nodes: to be trained on are those without NaN, or with labels >= 0."""
    rows = labels if labels.ndim == 2 else labels[:, None]
    trained = has_labels(rows)
    dtype, missing = (rows.dtype, float("nan")) if rows.dtype.is_floating_point else (torch.int64, -1)
    known = rows.to(dtype).where(trained[:, None], torch.tensor(missing, dtype=dtype))
    return {**_masks(trained), "y": known[:, 0] if known.shape[1] == 1 else known}


def _masks(trained: Tensor) -> dict[str, Tensor]:
    return {TRAIN_MASK: trained, **{name: torch.zeros_like(trained) for name in _NO_ITEMS}}


def form_of(graph: GraphTensors) -> dict[str, str]:
    """Return what must be equal on all ranks: {field and type: dtype and shape}, without the number of rows."""
    found = {}
    for name in FIELDS:
        for kind, values in graph.by_type(name).items():
            rows = "2, n" if name in _PAIRS else ", ".join(["n", *map(str, values.shape[1:])])
            found[field_text(name, kind)] = f"{dtype_name(values.dtype)} [{rows}]"
    return found


def _refuse_other_forms(where: str, forms: Sequence[Mapping[str, str]]) -> None:
    """Raise ValueError if a rank has other fields, types, dtypes or widths than rank 0; the message names one."""
    for rank, form in enumerate(forms):
        for name in sorted({*form, *forms[0]}):
            ours, first = form.get(name, "missing"), forms[0].get(name, "missing")
            if ours != first:
                raise ValueError(
                    f"{where}: {name} is {ours} on rank {rank}, {first} on rank 0; all ranks must have the same. Load "
                    "with the same metadata on all of them."
                )


def _sorted(given: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {kind: given[kind] for kind in sorted(given, key=lambda kind: kind or "")}


def _check_ids(where: str, name: str, given: Mapping[Any, Tensor], ndim: int) -> None:
    for kind, ids in given.items():
        if ids.dtype != torch.int64 or ids.ndim != ndim or (ndim == 2 and ids.shape[0] != 2):
            wanted = "[n]" if ndim == 1 else "[2, n]"
            raise ValueError(
                f"{where}: {field_text(name, kind)} is {dtype_name(ids.dtype)} {list(ids.shape)}; it must be int64 "
                f"{wanted}. Convert it."
            )


def _check_rows(where: str, name: str, given: Mapping[Any, Tensor], counts: Mapping[Any, int]) -> None:
    for kind, rows in given.items():
        if kind not in counts:
            raise ValueError(
                f"{where}: {field_text(name, kind)} is there, and no ids of this type; there are {shown([*counts])}. "
                "Load both together."
            )
        if rows.ndim == 0 or rows.shape[0] != counts[kind]:
            raise ValueError(
                f"{where}: {field_text(name, kind)} has the shape {list(rows.shape)} for {counts[kind]} rows. Load "
                "both together."
            )
