"""What the outputs of a sampler over parts carry beside PyG's fields: labels; and an output as a message."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key
from datapipes.pyg.upstream import HeteroSamplerOutput


def labels_of(labels: Any, out: Any, input_type: Any) -> Any:
    """Return the labels of what was sampled; with types {type: labels}.

    Args:
        labels: [num_nodes], or {type: [num_nodes]}; or None.
        input_type: with types, that of the seeds, which a tensor of labels is of.
    """
    if labels is None:
        return None
    if not isinstance(out, HeteroSamplerOutput):
        return labels[out.node.to(labels.device)]
    by_type = labels if isinstance(labels, dict) else {input_type: labels}
    found = {}
    for of, values in by_type.items():
        ids = (out.edge or {}).get(of) if isinstance(of, tuple) else out.node.get(of)
        if ids is not None:
            found[of] = values[ids.to(values.device)]
    return found


def moved(value: Any, device: Any) -> Any:
    """Return a tensor, or a dict of tensors, on a device; None leaves it, and so is everything else left."""
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
