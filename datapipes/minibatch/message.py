"""A minibatch as a message, a flat `dict[str, Tensor]`, and back (docs/semantics.md, section 5).

Both directions work on fields by name, so that they do not need the class MiniBatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key, split_key
from datapipes.minibatch.block import Block

PLAIN_FIELDS = ("seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch")


def to_message(
    *,
    epoch: int,
    index: int,
    plain: Mapping[str, Tensor],
    blocks: list[Block],
    node_features: Mapping[str, Tensor],
    edge_features: list[dict[str, Tensor]],
) -> Message:
    """Return the message of these fields; copies nothing.

    Args:
        plain: those of PLAIN_FIELDS that are set.
        blocks, edge_features: one entry a hop, the input layer first.
    """
    message: Message = {"epoch": torch.tensor(epoch), "index": torch.tensor(index), **plain}
    for hop, block in enumerate(reversed(blocks)):
        message[f"hop{hop}.indptr"] = block.indptr
        message[f"hop{hop}.indices"] = block.indices
        message[f"hop{hop}.num_src"] = torch.tensor(block.num_src)
        if block.edge_ids is not None:
            message[f"hop{hop}.edge_ids"] = block.edge_ids
    for name, value in node_features.items():
        message[join_key("node_features", name)] = value
    for hop, features in enumerate(reversed(edge_features)):
        for name, value in features.items():
            message[join_key(f"hop{hop}", "edge_features", name)] = value
    return message


def fields_of(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a MiniBatch by name; their tensors are those of the message.

    Raises:
        TypeError, ValueError: See MiniBatch.from_message.
    """
    fields: dict[str, Any] = {}
    hops: dict[int, dict[str, Tensor]] = {}
    edge_features: dict[int, dict[str, Tensor]] = {}
    node_features: dict[str, Tensor] = {}
    for key, value in message.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"MiniBatch.from_message: {key!r} must be a tensor, got {type(value).__name__}. Send what "
                "to_message() made."
            )
        match split_key(key):
            case [("epoch" | "index") as name]:
                fields[name] = _number(key, value)
            case [name] if name in PLAIN_FIELDS:
                fields[name] = value
            case ["node_features", name]:
                node_features[name] = value
            case [hop, "edge_features", name] if _hop_number(hop) is not None:
                edge_features.setdefault(int(hop[3:]), {})[name] = value
            case [hop, ("indptr" | "indices" | "num_src" | "edge_ids") as part] if _hop_number(hop) is not None:
                hops.setdefault(int(hop[3:]), {})[part] = value
            case _:
                raise ValueError(
                    f"MiniBatch.from_message: key {key!r} is not one of a minibatch. Allowed: "
                    f"{', '.join(PLAIN_FIELDS)}, epoch, index, node_features.NAME, hop0.indptr ... Send only "
                    "what to_message() made."
                )
    lost = [name for name in ("epoch", "index") if name not in fields]
    lost += [f"hop{hop}.indptr" for hop in edge_features if hop not in hops]
    if lost:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, which lacks {lost}; a minibatch has them. Send all "
            "that to_message() made."
        )
    if hops:
        fields["blocks"] = [_block_from(hops, hop) for hop in reversed(range(len(hops)))]
    if node_features:
        fields["node_features"] = node_features
    if edge_features:
        fields["edge_features"] = [edge_features.get(hop, {}) for hop in reversed(range(len(hops)))]
    return fields


def _hop_number(part: str) -> int | None:
    digits = part.removeprefix("hop")
    written = digits.isascii() and digits.isdigit() and len(digits) < 4 and (digits == "0" or digits[0] != "0")
    return int(digits) if part.startswith("hop") and written else None


def _number(key: str, value: Tensor) -> int:
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise ValueError(
            f"MiniBatch.from_message: {key!r} must be one integer, got shape {list(value.shape)} of {value.dtype}. "
            "Send what to_message() made."
        )
    return int(value)


def _block_from(hops: dict[int, dict[str, Tensor]], hop: int) -> Block:
    parts = hops.get(hop, {})
    missing = [name for name in ("indptr", "indices", "num_src") if name not in parts]
    if missing:
        raise ValueError(
            f"MiniBatch.from_message: hop {hop} of {len(hops)} lacks {missing}. Send each hop whole, numbered from 0 "
            "at the seeds."
        )
    return Block(
        parts["indptr"], parts["indices"], _number(f"hop{hop}.num_src", parts["num_src"]), parts.get("edge_ids")
    )
