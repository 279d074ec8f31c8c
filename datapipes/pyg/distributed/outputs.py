"""Labels for the outputs of a sampler over parts; and the form of an output as a message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key
from datapipes.base.types import of_type, values_of
from datapipes.pyg.torch_geometric_names import HeteroSamplerOutput


def labels_of(labels: Any, out: Any, input_type: Any, graph: Any) -> dict[Any, Tensor]:
    """Return the labels of the sampled nodes or edges, {type: labels}; {} without labels.

    Args:
        labels: [num_nodes], or {type: [num_nodes]}; or None.
        input_type: with types, the type of the seeds, to which labels in a plain tensor belong.
        graph: the graph of all parts.
    Raises:
        TypeError, ValueError: Labels are no tensors, have an unknown type, or do not cover the whole graph.
    """
    if labels is None:
        return {}
    by_type = labels if isinstance(labels, dict) and isinstance(out, HeteroSamplerOutput) else {input_type: labels}
    rows = {}
    for key, values in by_type.items():
        _refuse_labels(values, key, graph)
        ids = values_of(out.edge or {} if isinstance(key, tuple) else out.node, key)
        if ids is not None:
            rows[key] = values[ids.to(values.device)]
    return rows


def _refuse_labels(values: Any, key: Any, graph: Any) -> None:
    """Raise TypeError or ValueError if labels do not fit the node type or edge type `key`."""
    name, is_edge = f"feature_store.labels{of_type(key)}", isinstance(key, tuple)
    types = graph.edge_types if is_edge else graph.node_types
    if key not in types:
        raise ValueError(f"{name}: there is no such type, but {[*types]}. Name one of these.")
    if not isinstance(values, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(values).__name__}. Pass torch.as_tensor(labels).")
    count = graph.num_edges_of(key) if is_edge else graph.num_nodes_of(key)
    if values.ndim == 0 or len(values) != count:
        raise ValueError(
            f"{name} has the shape {list(values.shape)}, but the whole graph has {count}. Give the labels of all, not "
            "of this part alone."
        )


def moved(value: Any, device: Any) -> Any:
    """Return a tensor, or a dict, list or tuple of tensors, on a device; other values are returned as they are."""
    if isinstance(value, (list, tuple)) and any(isinstance(member, Tensor) for member in value):
        return type(value)(moved(member, device) for member in value)
    if isinstance(value, dict):
        return {key: moved(values, device) for key, values in value.items()}
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def to_message(out: Any) -> Message:
    """Return an output as a message of int64 tensors: node, row, col, edge, batch, num_sampled_nodes,
    num_sampled_edges; with types each under `join_key(name, type)`.
    """
    message = {}
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges"):
        value = getattr(out, name)
        for key, ids in value.items() if isinstance(value, dict) else [(None, value)]:
            if ids is not None:
                full_name = name if key is None else join_key(name, key)
                message[full_name] = torch.as_tensor(ids, dtype=torch.int64).cpu()
    return message
