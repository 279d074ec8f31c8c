"""How in-edges are drawn, as JSON; read strictly."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.records import list_of
from datapipes.distributed.wire.types_json import fields_of, whole_number
from datapipes.graph.choice import Choice
from datapipes.sampling.by_number import Numbered
from datapipes.sampling.by_time import ByTime
from datapipes.sampling.by_weight import ByWeight

_KINDS: dict[str, type[Choice]] = {"time": ByTime, "weight": ByWeight, "number": Numbered}
_INT32_MAX, _INT64_MAX, _UINT64_MAX = 2**31 - 1, 2**63 - 1, 2**64 - 1


def choice_to_json(choice: Choice) -> dict[str, Any]:
    """Return a choice as a JSON value."""
    (kind,) = (name for name, each in _KINDS.items() if isinstance(choice, each))
    values: dict[str, Any] = {"by": kind, **vars(choice)}
    if isinstance(choice, Numbered):
        values["keys"] = [[*each] for hop in choice.keys for each in hop]  # those of one hop
    return values


def choice_of(value: Any) -> Choice:
    """Return the choice that a JSON value says; ValueError if it says none."""
    kind = value.get("by") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"choice is {shown(value)}, it must be an object, by {' or '.join(_KINDS)}")
    _, *values = fields_of("choice", value, ("by", *(field.name for field in fields(_KINDS[kind]))))
    read: Any = {"time": _by_time, "weight": _by_weight, "number": _by_number}[kind]
    found: Choice = read(*values)
    return found


def _by_number(dependency: Any, until_next: Any, keys: Any) -> Numbered:
    whole_number("dependency", dependency, 1, _INT32_MAX)
    whole_number("until_next", until_next, 1, dependency)
    pairs = [list_of("an entry of keys", each, 2) for each in list_of("keys", keys)]
    if any(len(each) != 2 for each in pairs) or (dependency == 1 and pairs):
        raise ValueError(f"keys is {shown(keys)}, it must have two keys for each draw, none where the dependency is 1")
    checked = [tuple(whole_number("a key", key, 0, _UINT64_MAX) for key in each) for each in pairs]
    return Numbered(dependency, until_next, (tuple((one, other) for one, other in checked),) if checked else ())


def _by_weight(prob_name: Any) -> ByWeight:
    if not isinstance(prob_name, str):
        raise ValueError(f"prob_name is {shown(prob_name)}, allowed is a text")
    return ByWeight(prob_name)


def _by_time(edge_attr: Any, node_attr: Any, strategy: Any, inclusive: Any, window: Any) -> ByTime:
    for name in (edge_attr, node_attr):
        if name is not None and not isinstance(name, str):
            raise ValueError(f"an attribute of times is {shown(name)}, allowed are null and a text")
    if edge_attr is None and node_attr is None:
        raise ValueError("neither edges nor nodes have times")
    if strategy not in ("uniform", "last") or type(inclusive) is not bool:
        found = f"{shown(strategy)} and {shown(inclusive)}"
        raise ValueError(f"strategy and inclusive are {found}, allowed are 'uniform' or 'last', and a boolean")
    if window is not None:
        whole_number("time_window", window, 0, _INT64_MAX)
    return ByTime(edge_attr, node_attr, strategy, inclusive, window)
