"""The handshake as a message: what a server's part knows of the partition."""

from __future__ import annotations

from typing import Any

import torch

from datapipes.base.checks import dtype_name, shown
from datapipes.distributed.facts import PartitionFacts, RowForm
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, request_header
from datapipes.distributed.wire.tensor_buffers import check_form
from datapipes.distributed.wire.types_json import (
    edge_type_of,
    fields_of,
    list_of,
    node_type_of,
    type_to_json,
    whole_number,
)

_FIELDS = (
    "num_parts",
    "num_nodes",
    "num_edges",
    "index_dtype",
    "fingerprint",
    "partition_id",
    "content_id",
    "features",
)
_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1


def hello_to_message(meant: Meant) -> Message:
    """Return the request for the handshake."""
    return Message(request_header("hello", meant), {})


def greeting_to_message(part: int, facts: PartitionFacts) -> Message:
    """Return the answer of the server of a part."""
    values = {
        "num_parts": facts.num_parts,
        "num_nodes": [[type_to_json(of), count] for of, count in facts.num_nodes.items()],
        "num_edges": [[type_to_json(of), count] for of, count in facts.num_edges.items()],
        "index_dtype": dtype_name(facts.index_dtype),
        "fingerprint": facts.fingerprint,
        "partition_id": facts.partition_id,
        "content_id": facts.content_id,
        "features": [
            [domain, type_to_json(of), name, dtype_name(form.dtype), [*form.shape]]
            for (domain, of, name), form in facts.features.items()
        ],
        **({} if facts.node_time_attr is None else {"node_time_attr": facts.node_time_attr}),
    }
    return Message(answer_header("hello", part=part, facts=values), {})


def greeting_from_message(where: str, message: Message) -> tuple[int, PartitionFacts]:
    """Return the number of the part that a server has, and its facts. Versions were compared before.

    Raises:
        BadMessage: It is no such answer.
    """
    try:
        facts = _facts(message.header.get("facts"))
        return whole_number("part", message.header.get("part"), 0, facts.num_parts - 1), facts
    except ValueError as error:
        raise BadMessage(f"{where}: the answer to the handshake is not valid: {error}.") from error


def _facts(value: Any) -> PartitionFacts:
    times = value.get("node_time_attr") if isinstance(value, dict) else None  # not there unless edges have such times
    names = _FIELDS if times is None else (*_FIELDS, "node_time_attr")
    found = fields_of("facts", value, names)
    num_parts, nodes, edges, index, fingerprint, partition_id, content_id, features = found[: len(_FIELDS)]
    if index not in ("int32", "int64"):
        raise ValueError(f"index_dtype is {shown(index)}, allowed are int32 and int64")
    texts = {"fingerprint": fingerprint, "partition_id": partition_id, "content_id": content_id}
    for name, text in (texts if times is None else {**texts, "node_time_attr": times}).items():
        if not isinstance(text, str):
            raise ValueError(f"{name} is {shown(text)}, allowed are texts")
    num_nodes = dict(_counted("num_nodes", entry, node_type_of) for entry in list_of("num_nodes", nodes))
    num_edges = dict(_counted("num_edges", entry, edge_type_of) for entry in list_of("num_edges", edges))
    many = [count for count in num_nodes.values() if index == "int32" and count > _INT32_MAX]
    if many:
        raise ValueError(f"there are {many[0]} nodes of one type, and index_dtype is int32, which holds {_INT32_MAX}")
    # Without types there is one of each kind, None; with types there is no None.
    if (None in num_nodes or None in num_edges) and ([*num_nodes], [*num_edges]) != ([None], [None]):
        raise ValueError(f"the types are {shown([*num_nodes])} and {shown([*num_edges])}, partly without names")
    missing = [end for of in num_edges if of is not None for end in (of[0], of[2]) if end not in num_nodes]
    if missing:
        raise ValueError(f"an edge type ends at {shown(missing[0])}, which is no node type")
    return PartitionFacts(
        whole_number("num_parts", num_parts, 1, 2**31 - 1),
        num_nodes,
        num_edges,
        torch.int32 if index == "int32" else torch.int64,
        fingerprint,
        partition_id,
        content_id,
        dict(_feature(entry, {"node": num_nodes, "edge": num_edges}) for entry in list_of("features", features)),
        times,
    )


def _counted(name: str, value: Any, type_of: Any) -> tuple[Any, int]:
    of, count = _entries(name, value, 2)
    return type_of(of), whole_number(name, count, 0, _INT64_MAX)


def _feature(value: Any, types: dict[str, dict[Any, int]]) -> tuple[tuple[str, Any, str], RowForm]:
    domain, of, name, dtype, shape = _entries("a feature", value, 5)
    if domain not in ("node", "edge") or not isinstance(name, str):
        raise ValueError(f"a feature is {shown([domain, name])}, allowed is 'node' or 'edge' and a text")
    known = node_type_of(of) if domain == "node" else edge_type_of(of)
    if known not in types[domain]:
        raise ValueError(f"a feature is of {shown(known)}, which is no {domain} type")
    return (domain, known, name), RowForm(*check_form("facts", shown(name), dtype, shape))


def _entries(name: str, value: Any, count: int) -> list[Any]:
    entries = list_of(name, value)
    if len(entries) != count:
        raise ValueError(f"{name} is {shown(entries)}, it must have {count} entries")
    return entries
