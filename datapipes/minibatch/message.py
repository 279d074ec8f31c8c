"""A minibatch as a message, a flat `dict[str, Tensor]`, and back (docs/semantics.md, section 5).

Both directions work on fields by name, so that they do not need the class MiniBatch. A message has types in all of its
keys, or in none; nothing else in it says which. typed_message.py reads one with types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key
from datapipes.base.types import EdgeType
from datapipes.minibatch.block import Block
from datapipes.minibatch.message_keys import (
    HOP_PARTS,
    PLAIN_FIELDS,
    block_from,
    is_hop,
    is_typed,
    no_key,
    number_of,
    parts_of,
    refuse_lost,
)
from datapipes.minibatch.typed_message import typed_fields_of


def to_message(
    *,
    epoch: int,
    index: int,
    plain: Mapping[str, Any],
    extra: Mapping[str, Any],
    blocks: list[Any],
    node_features: Mapping[Any, Tensor],
    edge_features: list[dict[Any, Tensor]],
) -> Message:
    """Return the message of these fields; copies nothing.

    Args:
        plain: those of PLAIN_FIELDS that are set: a tensor, or a dict of them by type.
        extra: such a value for each name.
        blocks, edge_features: one entry a hop, the input layer first.
    """
    message: Message = {"epoch": torch.tensor(epoch), "index": torch.tensor(index)}
    for name, value in plain.items():
        if isinstance(value, dict):
            for type_, tensor in value.items():
                message[join_key(name, type_)] = tensor
        else:
            message[name] = value
    for name, value in extra.items():
        if isinstance(value, dict):
            for type_, tensor in value.items():
                message[join_key("extra", type_, name)] = tensor
        else:
            message[join_key("extra", name)] = value
    for hop, block in enumerate(reversed(blocks)):
        if isinstance(block, dict):
            _add_typed_hop(message, hop, block)
            continue
        message[f"hop{hop}.indptr"] = block.indptr
        message[f"hop{hop}.indices"] = block.indices
        message[f"hop{hop}.num_src"] = torch.tensor(block.num_src)
        if block.edge_ids is not None:
            message[f"hop{hop}.edge_ids"] = block.edge_ids
    for key, value in node_features.items():
        message[join_key("node_features", *((key,) if isinstance(key, str) else key))] = value
    for hop, features in enumerate(reversed(edge_features)):
        for key, value in features.items():
            message[join_key(f"hop{hop}", "edge_features", *((key,) if isinstance(key, str) else key))] = value
    return message


def _add_typed_hop(message: Message, hop: int, blocks: Mapping[EdgeType, Block]) -> None:
    counts = torch.tensor([block.num_src for block in blocks.values()]).unbind()
    for (edge_type, block), num_src in zip(blocks.items(), counts, strict=True):
        text = join_key(edge_type)
        message[f"hop{hop}.indptr.{text}"] = block.indptr
        message[f"hop{hop}.indices.{text}"] = block.indices
        message[f"hop{hop}.num_src.{text}"] = num_src
        if block.edge_ids is not None:
            message[f"hop{hop}.edge_ids.{text}"] = block.edge_ids


def fields_of(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a MiniBatch by name; their tensors are those of the message.

    Raises:
        TypeError, ValueError: See MiniBatch.from_message.
    """
    fields: dict[str, Any] = {}
    hops: dict[int, dict[str, Tensor]] = {}
    edge_features: dict[int, dict[str, Tensor]] = {}
    node_features: dict[str, Tensor] = {}
    extra: dict[str, Tensor] = {}
    for key, value in message.items():
        match parts_of(key, value):
            case [("epoch" | "index") as name]:
                fields[name] = number_of(key, value)
            case [name] if name in PLAIN_FIELDS:
                fields[name] = value
            case ["node_features", str(name)]:
                node_features[name] = value
            case ["extra", str(name)]:
                extra[name] = value
            case [hop, "edge_features", str(name)] if is_hop(hop):
                edge_features.setdefault(int(hop[3:]), {})[name] = value
            case [hop, str(part)] if part in HOP_PARTS and is_hop(hop):
                hops.setdefault(int(hop[3:]), {})[part] = value
            case parts:
                if is_typed(parts):
                    return typed_fields_of(message)
                raise no_key(key)
    lost = [name for name in ("epoch", "index") if name not in fields]
    lost += [f"hop{hop}.indptr" for hop in edge_features if hop not in hops]
    refuse_lost(message, lost)
    if hops:
        fields["blocks"] = [block_from(hops.get(hop, {}), hop, len(hops)) for hop in reversed(range(len(hops)))]
    if node_features:
        fields["node_features"] = node_features
    if edge_features:
        fields["edge_features"] = [edge_features.get(hop, {}) for hop in reversed(range(len(hops)))]
    if extra:
        fields["extra"] = extra
    return fields
