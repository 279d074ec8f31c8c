"""to_partition: writes the tensors that each rank has loaded as one partition.

Parts have the attributes that a Partitioner makes of `LoadedGraphTensors.to_dataset()`: features are "feat", weights
"weight"; "train_mask" has the nodes of the train set, and "y" their labels. So the parts that ranks write together
equal the parts that one process would write of the whole graph.
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
from datapipes.base.types import ends_of, of_type, type_text
from datapipes.datasets.tfrecord.tasks import task_of
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import Shard
from datapipes.partition.across_ranks.write_shards import write_shards
from datapipes.partition.layouts import PARTITION
from datapipes.partition.partition_report import PartitionReport
from datapipes.partition.source import attributes_of_items

_WHERE = "to_partition"
_PAIRS = ("edge_index", "positive_label", "negative_label")


Fields = Mapping[str, Mapping[Any, Tensor]]  # {field of a LoadedGraphTensors: {type: tensor}}


def refuse_other_ranks(num_ranks: int) -> None:
    """Raise ValueError unless all ranks that loaded the graph can write it together.

    `num_ranks` is the number of these ranks. If it is above 1, torch.distributed must have as many.
    """
    has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if has_ranks else 1
    if num_ranks not in (1, size):
        why = f"torch.distributed has {size}" if has_ranks else "torch.distributed is not initialised"
        raise ValueError(
            f"{_WHERE}: the graph was loaded by {num_ranks} ranks, and {why}. Call "
            "torch.distributed.init_process_group in all processes that have loaded a shard, and in no other."
        )


def write_tensors(ranks: Exchange, fields: Fields, root: str | Path) -> PartitionReport:
    """Write the tensors of this rank as its part of the partition `root`, together with the other ranks.

    `fields` is {field of a LoadedGraphTensors: {type: tensor}}. Return the report on all parts.
    """
    path = check_root(_WHERE, root, replaced=PARTITION)
    _refuse_other_forms(ranks.gather(form_of(fields)))
    return write_shards(ranks, _shard_of(fields), path)


def _shard_of(fields: Fields) -> Shard:
    """Return this rank's tensors as a Shard, which write_shards takes. Only labels are copied.

    Raises:
        ValueError: Tensors of one type have different lengths, or an edge type has an unknown node type.
    """
    ids, edges = _sorted_ids(fields, "node_ids", 1), _sorted_ids(fields, "edge_index", 2)
    for edge_type in edges:
        for end in ends_of(edge_type):
            if end not in ids:
                raise ValueError(
                    f"{_WHERE}: the edge type {type_text(edge_type)} has the node type {shown(end)}, of which no nodes "
                    f"were loaded; there are {shown([*ids])}. Load its nodes."
                )
    of_nodes: dict[Any, dict[str, Tensor]] = {node_type: {} for node_type in ids}
    of_edges: dict[Any, dict[str, Tensor]] = {edge_type: {} for edge_type in edges}
    num_nodes = {node_type: int(rows.shape[0]) for node_type, rows in ids.items()}
    num_edges = {edge_type: int(pairs.shape[1]) for edge_type, pairs in edges.items()}
    for field, name, counts, columns in (
        ("node_features", "feat", num_nodes, of_nodes),
        ("edge_weights", "weight", num_edges, of_edges),
        ("edge_features", "feat", num_edges, of_edges),
    ):
        check_rows(_WHERE, field, fields[field], counts)
        for kind, rows in fields[field].items():
            columns[kind][name] = rows
    labels = {kind: rows if rows.ndim == 2 else rows[:, None] for kind, rows in fields["node_labels"].items()}
    check_rows(_WHERE, "node_labels", labels, num_nodes)
    links = [fields["positive_label"], fields["negative_label"]]
    no_links = ({edge_type: pairs[:, :0] for edge_type, pairs in by_type.items()} for by_type in links)
    # Nodes are named by their rows here, since a rank's ids may have gaps that other ranks fill.
    task = task_of(_WHERE, num_nodes, labels, *no_links)
    attributes_of_items(_WHERE, task, num_nodes, of_nodes)
    num_links = sum(int(pairs.shape[1]) for by_type in links for pairs in by_type.values())
    return Shard(ids, of_nodes, edges, of_edges, num_links if task["task"] == "link_prediction" else None)


def form_of(fields: Fields) -> dict[str, str]:
    """Return {field and type: dtype and shape} of a rank's tensors, all as texts, to compare it with other ranks.

    The number of rows is left out of the shape; the rest must be equal on all ranks.
    """
    form = {}
    for name, by_type in fields.items():
        for kind, values in by_type.items():
            rows = "2, n" if name in _PAIRS else ", ".join(["n", *map(str, values.shape[1:])])
            form[f"{name}{of_type(kind)}"] = f"{dtype_name(values.dtype)} [{rows}]"
    return form


def _refuse_other_forms(forms: Sequence[Mapping[str, str]]) -> None:
    """Raise ValueError if fields, types, dtypes or widths of a rank differ from those of rank 0.

    `forms` has the result of `form_of` of each rank.
    """
    for rank, form in enumerate(forms):
        for name in sorted({*form, *forms[0]}):
            ours, first = form.get(name, "missing"), forms[0].get(name, "missing")
            if ours != first:
                raise ValueError(
                    f"{_WHERE}: {name} is {ours} on rank {rank}, {first} on rank 0; all ranks must have the same. Load "
                    "with the same metadata on all of them."
                )


def _sorted_ids(fields: Fields, name: str, ndim: int) -> dict[Any, Tensor]:
    by_type = fields[name]
    for kind, ids in by_type.items():
        if ids.dtype != torch.int64 or ids.ndim != ndim or (ndim == 2 and ids.shape[0] != 2):
            wanted = "[n]" if ndim == 1 else "[2, n]"
            raise ValueError(
                f"{_WHERE}: {name}{of_type(kind)} is {dtype_name(ids.dtype)} {list(ids.shape)}; it must be int64 "
                f"{wanted}. Convert it."
            )
    return {kind: by_type[kind] for kind in sorted(by_type, key=lambda kind: kind or "")}


def check_rows(where: str, name: str, by_type: Mapping[Any, Tensor], counts: Mapping[Any, int]) -> None:
    """Raise ValueError unless each type in `by_type` has `counts[type]` rows, one for each node or edge."""
    for kind, rows in by_type.items():
        if kind not in counts or rows.shape[:1] != (counts[kind],):
            ids = f"{counts[kind]} ids" if kind in counts else f"no ids (there are ids of {shown([*counts])})"
            raise ValueError(
                f"{where}: {name}{of_type(kind)}: found rows of shape {list(rows.shape)} for {ids}; one row for each "
                "id is needed. Load both together."
            )
