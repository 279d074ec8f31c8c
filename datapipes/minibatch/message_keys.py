"""What the keys of a message may be, and the errors about those that are not (docs/semantics.md, section 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from torch import Tensor

from datapipes.base.codec import split_key
from datapipes.base.types import EdgeType
from datapipes.minibatch.block import Block

SEED_FIELDS = ("seeds", "labels", "indexes", "timestamps", "compacted_seeds")  # rows belong to seeds, as `extra` does
NODE_FIELDS = ("input_nodes", "batch")  # rows belong to nodes
PLAIN_FIELDS = ("seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch")
HOP_PARTS = ("indptr", "indices", "num_src", "edge_ids")


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


def is_untyped(parts: Sequence[object]) -> bool:
    """Return whether a key has the form of those without types."""
    match parts:
        case [name] if name in PLAIN_FIELDS:
            return True
        case ["node_features" | "extra", str()]:
            return True
        case [hop, part] if part in HOP_PARTS:
            return is_hop(hop)
        case [hop, "edge_features", str()]:
            return is_hop(hop)
    return False


def is_type(type_: object) -> bool:
    """Return whether the part of a key is a node type or an edge type."""
    return bool(type_) and (isinstance(type_, str) or (isinstance(type_, tuple) and len(type_) == 3 and all(type_)))


def is_hop(part: object) -> TypeGuard[str]:
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


def block_from(parts: dict[str, Tensor], hop: int, num_hops: int, type_: EdgeType | None = None) -> Block:
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


def refuse_lost(message: Mapping[str, Tensor], lost: list[str]) -> None:
    """Raise ValueError if keys that each message has are missing."""
    if lost:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, which lacks {lost}; a minibatch has them. Send all "
            "that to_message() made."
        )


def no_key(key: str) -> ValueError:
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
