"""A minibatch as a message, a flat `dict[str, Tensor]`, and back (docs/semantics.md, section 5).

Messages are converted to and from {field name: value}, so this module does not need the class MiniBatch. A message has
types in all of its keys, or in none. Here a minibatch without types has the one type None, which is in no key. Fields
by type are in the order of the types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from datapipes.base.codec import Message, join_key, split_key
from datapipes.base.errors import sentence
from datapipes.base.types import EdgeType, NodeType
from datapipes.minibatch.block import Block
from datapipes.minibatch.sparse_rows import SparseRows

SEED_FIELDS = ("seeds", "labels", "indexes", "timestamps", "compacted_seeds")  # rows belong to seeds, as in `extra`
NODE_FIELDS = ("input_nodes", "batch")  # rows belong to nodes
PLAIN_FIELDS = ("seeds", "labels", "indexes", "compacted_seeds", "input_nodes", "timestamps", "batch")
HOP_PARTS = ("indptr", "indices", "num_src", "edge_ids")
SPARSE_PARTS = ("indptr", "indices", "num_columns", "values")

_Type = NodeType | EdgeType | None


# --- keys


class _Place(NamedTuple):
    """What a key of a message says about its tensor: where the tensor belongs in a minibatch.

    Attributes:
        field: the name of the field, or the part of a hop, such as "indptr".
        type_: the node or edge type; None without types.
        name: the name of a feature or of an entry of `extra`, else "".
        hop: index of the hop, 0 at the seeds; -1 if the field belongs to no hop.
        part: the part of SparseRows, such as "values", else "".
    """

    field: str
    type_: _Type
    name: str = ""
    hop: int = -1
    part: str = ""


@lru_cache(maxsize=2**13)  # the minibatches of a loader have the same keys
def _place_of(key: str) -> _Place:
    """Return the _Place that a key of a message names. Raise ValueError if `key` names none."""
    try:
        parts = split_key(key)
    except ValueError as error:
        raise ValueError(f"MiniBatch.from_message: {sentence(error)} Send only what to_message() made.") from error
    match parts:
        case [hop, str(part), *types] if part in HOP_PARTS and _is_hop(hop):
            return _Place(part, _type_in(key, part, types), "", int(hop[3:]))
        case [("epoch" | "index" | "bucket") as field]:
            return _Place(field, None)
        case [str(field), *types] if field in PLAIN_FIELDS:
            return _Place(field, _type_in(key, field, types))
        case [("node_features" | "extra") as field, *types, str(name)]:
            return _Place(field, _type_in(key, field, types), name)
        case [hop, ("edge_features" as field), *types, str(name)] if _is_hop(hop):
            return _Place(field, _type_in(key, field, types), name, int(hop[3:]))
        case [("node_features") as field, *types, (str(name), str(part))] if part in SPARSE_PARTS:
            return _Place(field, _type_in(key, field, types), name, part=part)
        case [hop, ("edge_features") as field, *types, (str(name), str(part))] if _is_hop(hop) and part in SPARSE_PARTS:
            return _Place(field, _type_in(key, field, types), name, int(hop[3:]), part)
    raise _no_key(key)


def _type_in(key: str, field: str, types: list[Any]) -> _Type:
    """Return the node type or edge type in a key of a message. None: the key has no type.

    Args:
        types: the parts of `key` between the field and the name.
    Raises:
        ValueError: There is more than one part, or the field cannot have such a type.
    """
    match types:
        case []:
            return None
        case [str(node_type)] if node_type and field not in (*HOP_PARTS, "edge_features"):
            return node_type
        case [(src, rel, dst)] if src and rel and dst and field not in (*NODE_FIELDS, "node_features"):
            return src, rel, dst
    raise _no_key(key)


def _is_hop(part: object) -> TypeGuard[str]:
    """Return whether `part`, a part of a key, names a hop: "hop" and a number of at most three digits without leading
    zeros.
    """
    return isinstance(part, str) and re.fullmatch("hop(0|[1-9][0-9]{0,2})", part) is not None


def _number_of(key: str, value: Tensor) -> int:
    """Return the integer in `value`, the tensor of a key that has a single number."""
    if value.numel() != 1 or value.is_floating_point() or value.is_complex():
        raise ValueError(
            f"MiniBatch.from_message: {key!r} must be one integer, got shape {list(value.shape)} of {value.dtype}. "
            "Send what to_message() made."
        )
    return int(value)


def _block_from(parts: Mapping[str, Tensor], hop: int, num_hops: int, type_: _Type) -> Block:
    """Return the Block of a hop and an edge type from its parts. Raise ValueError if a part is missing."""
    missing = [name for name in ("indptr", "indices", "num_src") if name not in parts]
    if missing:
        of_type = "" if type_ is None else f" for the edge type {type_}, which other parts of the message have"
        raise ValueError(
            f"MiniBatch.from_message: hop {hop} of {num_hops} lacks {missing}{of_type}. Send each hop whole, numbered "
            "from 0 at the seeds, with the same edge types in each."
        )
    num_src = _number_of(f"hop{hop}.num_src", parts["num_src"])
    return Block(parts["indptr"], parts["indices"], num_src, parts.get("edge_ids"))


def _rows_from(parts: Mapping[str, Tensor], name: str) -> SparseRows:
    """Return the SparseRows of the feature `name` from its parts. Raise ValueError if a part is missing, or the parts
    do not fit together.
    """
    if not {"indptr", "indices", "num_columns"} <= parts.keys():
        raise ValueError(
            f"MiniBatch.from_message: the sparse rows of the feature {name!r} have only {sorted(parts)}; indptr, "
            "indices and num_columns are needed. Send all that to_message() made."
        )
    num_columns = _number_of(f"{name}:num_columns", parts["num_columns"])
    rows = SparseRows(parts["indptr"], parts["indices"], num_columns, parts.get("values"))
    shapes = {part: list(value.shape) for part, value in parts.items()}
    one_each = shapes.get("values", shapes["indices"]) == shapes["indices"]
    if not one_each or rows.indices.ndim != 1 or rows.indptr.ndim != 1 or rows.indptr.shape[0] == 0 or num_columns < 0:
        raise ValueError(
            f"MiniBatch.from_message: the sparse rows of the feature {name!r} have the shapes {shapes} and num_columns "
            f"{num_columns}; indptr [n + 1], and indices and values of one length are needed. Send what to_message() "
            "made."
        )
    return rows


def _no_key(key: str) -> ValueError:
    """Return the error for `key`, a key of a message that cannot belong to a minibatch."""
    return ValueError(
        f"MiniBatch.from_message: key {key!r} is not one of a minibatch. Allowed: {', '.join(PLAIN_FIELDS)}, epoch, "
        "index, bucket, extra.NAME, node_features.NAME, hop0.indptr ..., and with types seeds.TYPE, extra.TYPE.NAME, "
        "hop0.indptr.SRC:REL:DST ... Send only what to_message() made."
    )


# --- both directions


def to_message(minibatch: Any) -> Message:
    """Return the message of a minibatch; copies nothing."""
    hops = [by_type(hop) for hop in reversed(minibatch.blocks or ())]
    counts = [block.num_src for hop in hops for block in hop.values()]
    # One call for all numbers is faster.
    first, second, *num_sources = torch.tensor([minibatch.epoch, minibatch.index, *counts]).unbind()
    message: Message = {"epoch": first, "index": second}
    if minibatch.bucket is not None:
        message["bucket"] = torch.tensor(minibatch.bucket)
    for name, value in minibatch._plain_fields().items():
        for type_, tensor in by_type(value).items():
            message[name if type_ is None else join_key(name, type_)] = tensor
    for name, value in minibatch.extra.items():
        for type_, tensor in by_type(value).items():
            message[join_key("extra", *_stated(type_), name)] = tensor
    left = iter(num_sources)
    for number, hop in enumerate(hops):
        for type_, block in hop.items():
            suffix = "" if type_ is None else f".{join_key(type_)}"
            message[f"hop{number}.indptr{suffix}"] = block.indptr
            message[f"hop{number}.indices{suffix}"] = block.indices
            message[f"hop{number}.num_src{suffix}"] = next(left)
            if block.edge_ids is not None:
                message[f"hop{number}.edge_ids{suffix}"] = block.edge_ids
    for key, value in (minibatch.node_features or {}).items():
        _put(message, ("node_features",), key, value)
    for number, features in enumerate(reversed(minibatch.edge_features or ())):
        for key, value in features.items():
            _put(message, (f"hop{number}", "edge_features"), key, value)
    return message


def _put(message: Message, field: tuple[str, ...], key: Any, value: Any) -> None:
    """Add a feature to a message; `key` is its name or (type, name). Each part of SparseRows gets a key of its own."""
    *types, name = (key,) if isinstance(key, str) else key
    if isinstance(value, SparseRows):
        for part, tensor in value._parts().items():
            message[join_key(*field, *types, (name, part))] = tensor
    else:
        message[join_key(*field, *types, name)] = value


def _add(features: dict[tuple[_Type, str], Any], place: _Place, value: Tensor) -> None:
    """Add the tensor `value` of a message to `features`, which is {(type, name): rows}.

    `value` is a whole feature, or one part of SparseRows. Parts are gathered in a dict {part: tensor} in place of the
    rows.
    """
    rows = features.setdefault((place.type_, place.name), {} if place.part else value)
    if place.part and isinstance(rows, dict):
        rows[place.part] = value
    elif rows is not value:
        raise ValueError(
            f"MiniBatch.from_message: the feature {place.name!r} has dense and sparse rows; only one is allowed. "
            "Send what to_message() made."
        )


def fields_of(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return {field of a MiniBatch: value}, without copying tensors.

    Raises:
        TypeError, ValueError: See MiniBatch.from_message.
    """
    fields: dict[str, Any] = {}
    plain: dict[str, dict[_Type, Tensor]] = {}
    extra: dict[str, dict[_Type, Tensor]] = {}
    hops: dict[int, dict[_Type, dict[str, Tensor]]] = {}
    node_features: dict[tuple[_Type, str], Any] = {}
    edge_features: dict[int, dict[tuple[_Type, str], Any]] = {}
    without_type: list[str] = []
    for key, value in message.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"MiniBatch.from_message: {key!r} must be a tensor, got {type(value).__name__}. Send what to_message() "
                "made."
            )
        field, type_, name, hop, _ = place = _place_of(key)
        if field in ("epoch", "index", "bucket"):
            fields[field] = _number_of(key, value)
            continue
        if type_ is None:
            without_type.append(key)
        if field in HOP_PARTS:
            hops.setdefault(hop, {}).setdefault(type_, {})[field] = value
        elif field == "node_features":
            _add(node_features, place, value)
        elif field == "edge_features":
            _add(edge_features.setdefault(hop, {}), place, value)
        elif field == "extra":
            extra.setdefault(name, {})[type_] = value
        else:
            plain.setdefault(field, {})[type_] = value
    if without_type and len(without_type) + len(fields) < len(message):
        raise ValueError(
            f"MiniBatch.from_message: key {without_type[0]!r} has no type, but others of the message have; a minibatch "
            "has types in all its fields or in none. Send what to_message() made of one minibatch."
        )
    by_seed = [*(plain.get(name, {}) for name in SEED_FIELDS), *extra.values()]
    if len({isinstance(type_, tuple) for types in by_seed for type_ in types}) > 1:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, in which values of seeds belong to node types and to "
            "edge types; seeds are nodes or pairs. Send what to_message() made of one minibatch."
        )
    lost = [name for name in ("epoch", "index") if name not in fields]
    lost += [
        join_key(f"hop{hop}", "indptr", *_stated(type_))
        for hop, features in edge_features.items()
        for type_ in dict.fromkeys(type_ for type_, _ in features)
        if type_ not in hops.get(hop, {})
    ]
    if lost:
        raise ValueError(
            f"MiniBatch.from_message: found {sorted(message)}, which lacks {lost}; a minibatch needs it. Send all "
            "that to_message() made."
        )
    fields |= {name: _as_field(by_type) for name, by_type in plain.items()}
    if extra:
        fields["extra"] = {name: _as_field(by_type) for name, by_type in extra.items()}
    if hops:
        types = sorted({type_ for of_hop in hops.values() for type_ in of_hop})  # type: ignore[type-var]  # or one None
        fields["blocks"] = [
            _as_field({type_: _block_from(hops.get(hop, {}).get(type_, {}), hop, len(hops), type_) for type_ in types})
            for hop in reversed(range(len(hops)))
        ]
    if node_features:
        fields["node_features"] = _as_features(node_features)
    if edge_features:
        fields["edge_features"] = [_as_features(edge_features.get(hop, {})) for hop in reversed(range(len(hops)))]
    return fields


# --- with types, and without


def by_type(value: Any) -> dict[Any, Any]:
    """Return the value of a field as {type: value}; without types, {None: value}."""
    return value if isinstance(value, dict) else {None: value}


def _stated(type_: _Type) -> tuple[NodeType | EdgeType, ...]:
    """Return what the key of a message contains for the type `type_`: (type_,); or () if `type_` is None, since keys
    without types contain nothing for it.
    """
    return () if type_ is None else (type_,)


def _as_field(by_type: Mapping[Any, Any]) -> Any:
    """Return the value of a field, given {type: value}: a dict in the order of the types; or if the one type is None,
    its value.
    """
    return by_type[None] if None in by_type else {type_: by_type[type_] for type_ in sorted(by_type)}


def _as_features(features: Mapping[tuple[Any, str], Any]) -> dict[Any, Any]:
    """Return features as a minibatch has them: {(type, name): rows}, or {name: rows} without types. Parts of sparse
    rows become SparseRows.
    """
    whole: dict[Any, Any] = {
        key: _rows_from(rows, key[1]) if isinstance(rows, dict) else rows for key, rows in features.items()
    }
    without_types = {name: value for (type_, name), value in whole.items() if type_ is None}
    return without_types or in_order_of_types(whole)


def in_order_of_types(features: Mapping[tuple[Any, str], Tensor]) -> dict[tuple[Any, str], Tensor]:
    """Return {(type, name): rows} in the order of the types; within a type the order stays."""
    return dict(sorted(features.items(), key=lambda item: item[0][0]))
