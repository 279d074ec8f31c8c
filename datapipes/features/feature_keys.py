"""The names of features that a FeatureFetcher reads: a list, or {type: names} where the graph has types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from datapipes.base.checks import check_names, shown
from datapipes.base.types import by_edge_type, check_node_type
from datapipes.minibatch.message import in_order_of_types

Keys = Sequence[str] | Mapping[Any, Sequence[str]]  # as a user gives them
Names = list[str] | dict[Any, list[str]]  # as the stage has them


class Wanted(NamedTuple):
    """A feature to read: its type (None without types), its name, and its key in the minibatch."""

    type_: Any
    name: str
    key: Any


def check_keys(domain: str, keys: Any) -> Names:
    """Return the names, or {type: names} in the order of the types; edge types are tuples."""
    if isinstance(keys, Mapping):
        if domain == "edge":
            keys = by_edge_type("fetch_feature", keys)
        for type_ in keys if domain == "node" else ():
            check_node_type("fetch_feature", type_)
        name = f"{domain}_feature_keys"
        return {type_: check_names("fetch_feature", f"{name}[{type_!r}]", keys[type_]) for type_ in sorted(keys)}
    return [] if keys is None else check_names("fetch_feature", f"{domain}_feature_keys", keys)


def wanted_of(keys: Names) -> list[Wanted]:
    """Return the features one by one, in the order in which they are read."""
    if isinstance(keys, dict):
        return [Wanted(type_, name, (type_, name)) for type_, names in keys.items() for name in names]
    return [Wanted(None, name, name) for name in keys]


def merged(old: Mapping[Any, Tensor], new: Mapping[Any, Tensor], keys: Names) -> dict[Any, Tensor]:
    """Return the features of both; with types in their order, as a message gives them back."""
    features = {**old, **new}
    return in_order_of_types(features) if isinstance(keys, dict) else features


def other_form(domain: str, keys: Names, what: str, types: Sequence[Any] | None) -> ValueError:
    """Return the error for keys with types where there are none (`types` is None), or without where there are some."""
    if types is None:
        names = sorted({name for of_type in keys.values() for name in of_type}) if isinstance(keys, dict) else keys
        return ValueError(
            f"fetch_feature: {domain}_feature_keys is {shown(keys)}, but {what} has no types; a list of names is "
            f"needed. Write {names}."
        )
    write = {type_: [*keys] for type_ in types[:1]}
    return ValueError(
        f"fetch_feature: {domain}_feature_keys is {shown(keys)}, but {what} has the {domain} types "
        f"{shown([*types])}; {{type: names}} is needed. Write {write} ..."
    )
