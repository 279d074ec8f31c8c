"""The fields of a message with types, as dicts in the order of the types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from datapipes.base.codec import join_key
from datapipes.base.types import EdgeType
from datapipes.minibatch.message_keys import (
    HOP_PARTS,
    NODE_FIELDS,
    SEED_FIELDS,
    block_from,
    is_hop,
    is_type,
    is_untyped,
    mixed,
    no_key,
    number_of,
    parts_of,
    refuse_lost,
)

_Keyed = dict[tuple[Any, str], Tensor]


def typed_fields_of(message: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the fields of a message with types; dicts are in the order of the types."""
    fields: dict[str, Any] = {}
    plain: dict[str, dict[Any, Tensor]] = {}
    extra: dict[str, dict[Any, Tensor]] = {}
    hops: dict[int, dict[EdgeType, dict[str, Tensor]]] = {}
    node_features: _Keyed = {}
    edge_features: dict[int, _Keyed] = {}
    for key, value in message.items():
        match parts_of(key, value):
            case [hop, str(part), (src, rel, dst)] if part in HOP_PARTS and is_hop(hop) and src and rel and dst:
                hops.setdefault(int(hop[3:]), {}).setdefault((src, rel, dst), {})[part] = value
            case [("epoch" | "index") as name]:
                fields[name] = number_of(key, value)
            case [str(name), str(type_)] if name in NODE_FIELDS and type_:
                plain.setdefault(name, {})[type_] = value
            case [str(name), type_] if name in SEED_FIELDS and is_type(type_):
                plain.setdefault(name, {})[type_] = value
            case ["node_features", str(type_), str(name)] if type_:
                node_features[type_, name] = value
            case ["extra", type_, str(name)] if is_type(type_):
                extra.setdefault(name, {})[type_] = value
            case [hop, "edge_features", (src, rel, dst), str(name)] if is_hop(hop) and src and rel and dst:
                edge_features.setdefault(int(hop[3:]), {})[(src, rel, dst), name] = value
            case parts:
                raise mixed(key) if is_untyped(parts) else no_key(key)
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
    refuse_lost(message, lost)
    fields |= {name: in_order(types) for name, types in plain.items()}
    if extra:
        fields["extra"] = {name: in_order(types) for name, types in extra.items()}
    if hops:
        types = sorted({type_ for of_hop in hops.values() for type_ in of_hop})
        fields["blocks"] = [
            {type_: block_from(hops.get(hop, {}).get(type_, {}), hop, len(hops), type_) for type_ in types}
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
