"""What the outputs of a sampler over parts carry beside PyG's fields: labels; and an output as a message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.codec import Message, join_key
from datapipes.pyg.upstream import HeteroSamplerOutput


def labels_of(labels: Any, out: Any, input_type: Any, graph: Any) -> Any:
    """Return the labels of what was sampled; with types {type: labels}.

    Args:
        labels: [num_nodes], or {type: [num_nodes]}; or None.
        input_type: with types, that of the seeds, which a tensor of labels is of.
        graph: the graph of all parts.
    Raises:
        TypeError, ValueError: They are no tensors, of an unknown type, or not of all nodes.
    """
    if labels is None:
        return None
    has_types = isinstance(out, HeteroSamplerOutput)
    by_type = labels if has_types and isinstance(labels, dict) else {input_type: labels}
    found = {}
    for of, values in by_type.items():
        is_edge = isinstance(of, tuple)
        _refuse_labels(values, of, graph.edge_types if is_edge else graph.node_types, graph)
        ids = out.node if not has_types else (out.edge or {}).get(of) if is_edge else out.node.get(of)
        if ids is not None:
            found[of] = values[ids.to(values.device)]
    return found if has_types else found[input_type]


def _refuse_labels(values: Any, of: Any, known: Any, graph: Any) -> None:
    what = "feature_store.labels" if of is None else f"feature_store.labels of {shown(of)}"
    if of not in known:
        raise ValueError(f"{what}: there is no such type, but {[*known]}. Name one of these.")
    if not isinstance(values, Tensor):
        raise TypeError(f"{what} must be a tensor, got {type(values).__name__}. Pass torch.as_tensor(labels).")
    count = graph.num_edges_of(of) if isinstance(of, tuple) else graph.num_nodes_of(of)
    if values.ndim == 0 or len(values) != count:
        raise ValueError(
            f"{what} has the shape {list(values.shape)}, but the whole graph has {count}. Give the labels of all, not "
            "of this part alone."
        )


def moved(value: Any, device: Any) -> Any:
    """Return a tensor, or a dict of tensors, on a device; with None, and of another type, as it is."""
    if isinstance(value, (list, tuple)) and any(isinstance(each, Tensor) for each in value):
        return type(value)(moved(each, device) for each in value)
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    return value.to(device) if isinstance(value, Tensor) and device is not None else value


def to_message(out: Any) -> Message:
    """Return an output as a message of int64 tensors: node, row, col, edge, batch, num_sampled_nodes,
    num_sampled_edges; with types each under `join_key(name, type)`.
    """
    message = {}
    for name in ("node", "row", "col", "edge", "batch", "num_sampled_nodes", "num_sampled_edges"):
        value = getattr(out, name)
        for of, each in value.items() if isinstance(value, dict) else [(None, value)]:
            if each is not None:
                found = torch.as_tensor(each, dtype=torch.int64).cpu()
                message[name if of is None else join_key(name, of)] = found
    return message
