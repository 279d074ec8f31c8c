"""A minibatch as a message, a flat `dict[str, Tensor]`, and back (docs/semantics.md, section 5).

Both directions work on fields by name, so that they do not need the class MiniBatch. A message has types in all of its
keys, or in none; nothing else in it says which. With types its fields are dicts, in the order of the types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key, split_key
from datapipes.base.types import EdgeType
from datapipes.minibatch.block import Block

SEED_FIELDS = ("seeds", "labels", "indexes", "timestamps", "compacted_seeds")  # rows belong to seeds, as `extra` does
NODE_FIELDS = ("input_nodes", "batch")  # rows belong to nodes
PLAIN_FIELDS = ("seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch")
HOP_PARTS = ("indptr", "indices", "num_src", "edge_ids")


# --- keys


def parts_of(key: str, value: object) -> list[str | tuple[str, ...]]:
    """Return the parts of the key of a message; `value` is what it holds there."""
    if not isinstance(value, Tensor):
        raise TypeError(
            f"MiniBatch.from_message: {key!r} must be a tensor, got {type(value).__name__}. Send what to_message() "
            "made."
        )
    try:
        return split_key(key)
    except ValueError as error:
        raise ValueError(f"MiniBatch.from_message: {error}. Send only what to_message() made.") from error


def is_typed(parts: Sequence[object]) -> bool:
    """Return whether a key has the form of those with types."""
    match parts:
        case [name, _]:
            return name in PLAIN_FIELDS
        case ["node_features" | "extra", _, _] | [_, _, tuple()] | [_, "edge_features", tuple(), _]:
            return True
    return False


def _is_untyped(parts: Sequence[object]) -> bool:
    """Return whether a key has the form of those without types."""
    match parts:
        case [name] if name in PLAIN_FIELDS:
            return True
        case ["node_features" | "extra", str()]:
            return True
        case [hop, part] if part in HOP_PARTS:
            return _is_hop(hop)
        case [hop, "edge_features", str()]:
            return _is_hop(hop)
    return False


def _is_type(type_: object) -> bool:
    """Return whether the part of a key is a node type or an edge type."""
    return bool(type_) and (isinstance(type_, str) or (isinstance(type_, tuple) and len(type_) == 3 and all(type_)))


def _is_hop(part: object) -> TypeGuard[str]:
    """Return whether the part of a key is "hop" and a number of at most three digits, written in one way."""
    if not isinstance(part, str) or not part.startswith("hop"):
        return False
    digits = part[3:]
    return digits.isascii() and digits.isdigit() and len(digits) < 4 and (digits == "0" or digits[0] != "0")


def number_of(key: str, value: Tensor) -> int:
    """Return the one integer that `key` holds."""
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise ValueError(
            f"MiniBatch.from_message: {key!r} must be one integer, got shape {list(value.shape)} of {value.dtype}. "
            "Send what to_message() made."
        )
    return int(value)


def _block_from(parts: dict[str, Tensor], hop: int, num_hops: int, type_: EdgeType | None = None) -> Block:
    """Return the Block of a hop, and with types of an edge type; refuse one of which a part is missing."""
    missing = [name for name in ("indptr", "indices", "num_src") if name not in parts]
    if missing:
        of_type = "" if type_ is None else f" for the edge type {type_}, which other parts of the message have"
        raise ValueError(
            f"MiniBatch.from_message: hop {hop} of {num_hops} lacks {missing}{of_type}. Send each hop whole, numbered "
            "from 0 at the seeds, with the same edge types in each."
        )
    num_src = number_of(f"hop{hop}.num_src", parts["num_src"])
    return Block(parts["indptr"], parts["indices"], num_src, parts.get("edge_ids"))


def _refuse_lost(message: Mapping[str, Tensor], lost: list[str]) -> None:
    """Raise ValueError if keys that each message has are missing."""
    if lost:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, which lacks {lost}; a minibatch has them. Send all "
            "that to_message() made."
        )


def _no_key(key: str) -> ValueError:
    """Return the error for a key that does not fit the grammar."""
    return ValueError(
        f"MiniBatch.from_message: key {key!r} is not one of a minibatch. Allowed: {', '.join(PLAIN_FIELDS)}, epoch, "
        "index, extra.NAME, node_features.NAME, hop0.indptr ..., and with types seeds.TYPE, extra.TYPE.NAME, "
        "hop0.indptr.SRC:REL:DST ... Send only what to_message() made."
    )


def mixed(key: str) -> ValueError:
    """Return the error for a key without types in a message with types."""
    return ValueError(
        f"MiniBatch.from_message: key {key!r} has no type, but others of the message have; a minibatch has types in "
        "all its fields or in none. Send what to_message() made of one minibatch."
    )


# --- both directions


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
            case [hop, "edge_features", str(name)] if _is_hop(hop):
                edge_features.setdefault(int(hop[3:]), {})[name] = value
            case [hop, str(part)] if part in HOP_PARTS and _is_hop(hop):
                hops.setdefault(int(hop[3:]), {})[part] = value
            case parts:
                if is_typed(parts):
                    return _typed_fields_of(message)
                raise _no_key(key)
    lost = [name for name in ("epoch", "index") if name not in fields]
    lost += [f"hop{hop}.indptr" for hop in edge_features if hop not in hops]
    _refuse_lost(message, lost)
    if hops:
        fields["blocks"] = [_block_from(hops.get(hop, {}), hop, len(hops)) for hop in reversed(range(len(hops)))]
    if node_features:
        fields["node_features"] = node_features
    if edge_features:
        fields["edge_features"] = [edge_features.get(hop, {}) for hop in reversed(range(len(hops)))]
    if extra:
        fields["extra"] = extra
    return fields


_Keyed = dict[tuple[Any, str], Tensor]


# --- with types


def _typed_fields_of(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a message with types; dicts are in the order of the types."""
    fields: dict[str, Any] = {}
    plain: dict[str, dict[Any, Tensor]] = {}
    extra: dict[str, dict[Any, Tensor]] = {}
    hops: dict[int, dict[EdgeType, dict[str, Tensor]]] = {}
    node_features: _Keyed = {}
    edge_features: dict[int, _Keyed] = {}
    for key, value in message.items():
        match parts_of(key, value):
            case [hop, str(part), (src, rel, dst)] if part in HOP_PARTS and _is_hop(hop) and src and rel and dst:
                hops.setdefault(int(hop[3:]), {}).setdefault((src, rel, dst), {})[part] = value
            case [("epoch" | "index") as name]:
                fields[name] = number_of(key, value)
            case [str(name), str(type_)] if name in NODE_FIELDS and type_:
                plain.setdefault(name, {})[type_] = value
            case [str(name), type_] if name in SEED_FIELDS and _is_type(type_):
                plain.setdefault(name, {})[type_] = value
            case ["node_features", str(type_), str(name)] if type_:
                node_features[type_, name] = value
            case ["extra", type_, str(name)] if _is_type(type_):
                extra.setdefault(name, {})[type_] = value
            case [hop, "edge_features", (src, rel, dst), str(name)] if _is_hop(hop) and src and rel and dst:
                edge_features.setdefault(int(hop[3:]), {})[(src, rel, dst), name] = value
            case parts:
                raise mixed(key) if _is_untyped(parts) else _no_key(key)
    by_seed = [*(plain.get(name, {}) for name in SEED_FIELDS), *extra.values()]
    if len({isinstance(type_, tuple) for types in by_seed for type_ in types}) > 1:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, in which values of seeds belong to node types and to "
            "edge types; seeds are nodes or pairs. Send what to_message() made of one minibatch."
        )
    lost = [name for name in ("epoch", "index") if name not in fields]
    lost += [
        join_key(f"hop{hop}", "indptr", type_)
        for hop, features in edge_features.items()
        for type_, _ in features
        if type_ not in hops.get(hop, {})
    ]
    _refuse_lost(message, lost)
    fields |= {name: in_order(types) for name, types in plain.items()}
    if extra:
        fields["extra"] = {name: in_order(types) for name, types in extra.items()}
    if hops:
        types = sorted({type_ for of_hop in hops.values() for type_ in of_hop})
        fields["blocks"] = [
            {type_: _block_from(hops.get(hop, {}).get(type_, {}), hop, len(hops), type_) for type_ in types}
            for hop in reversed(range(len(hops)))
        ]
    if node_features:
        fields["node_features"] = in_order_of_types(node_features)
    if edge_features:
        fields["edge_features"] = [in_order_of_types(edge_features.get(hop, {})) for hop in reversed(range(len(hops)))]
    return fields


def in_order(by_type: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a dict by type in the order of the types."""
    return {type_: by_type[type_] for type_ in sorted(by_type)}


def in_order_of_types(features: Mapping[tuple[Any, str], Tensor]) -> dict[tuple[Any, str], Tensor]:
    """Return features by (type, name) in the order of the types; those of one type keep theirs."""
    return dict(sorted(features.items(), key=lambda item: item[0][0]))
