"""PartitionFacts: the facts that all parts of a partition share. A server sends the facts in the handshake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch

from datapipes.base.checks import INT32_MAX, dtype_name, shown
from datapipes.base.errors import sentence
from datapipes.base.forms import RowForm
from datapipes.base.records import OMITTED, AnyType, Form, OptionalNodeType, from_json, one_of, to_json, whole
from datapipes.distributed.wire.arrow_message import Message, check_form
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, request_header
from datapipes.graph.graph import EarliestNode
from datapipes.partition.native.manifest import Identity, IndexDtype
from datapipes.partition.native.part import Part

_SENT = (  # the order on the wire
    *("num_parts", "num_nodes", "num_edges", "index_dtype", "fingerprint", "partition_id", "content_id"),
    *("features", "node_time_attr", "earliest_nodes"),
)


_ROW_FORM = Form(
    lambda name, values: RowForm(*check_form(name, "a row", *values)),
    lambda form: [dtype_name(form.dtype), [*form.shape]],
    width=2,
)

# {("node" or "edge", type or None, name): dtype and shape of a row}
FeatureForms = Mapping[tuple[Annotated[str, one_of("node", "edge")], AnyType, str], Annotated[RowForm, _ROW_FORM]]


@dataclass(frozen=True)
class PartitionFacts(Identity):
    """The facts of a partition, equal for all its parts: those of its base class Identity (ids, and how many parts,
    nodes and edges there are), and the following. Servers with equal facts give equal answers.

    Attributes:
        index_dtype: torch.int32 or torch.int64, the dtype of neighbors.
        features: the attributes that were partitioned: {("node" or "edge", type or None, name): dtype and shape of a
            row}.
        node_time_attr: the node attribute whose value at the source is stored with each edge, as the edge's time; None:
            no times are stored.
        earliest_nodes: {node type: its node with the earliest time, as an EarliestNode} for the types that have
            `node_time_attr`; None if the partition does not store them.
    Raises:
        ValueError: The graph lacks the type of a feature, or `index_dtype` is too small for the ids.
    """

    index_dtype: IndexDtype
    features: FeatureForms
    node_time_attr: Annotated[str | None, OMITTED] = None
    earliest_nodes: Annotated[Mapping[OptionalNodeType, EarliestNode] | None, OMITTED] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        many = [count for count in self.num_nodes.values() if self.index_dtype == torch.int32 and count > INT32_MAX]
        if many:
            raise ValueError(
                f"there are {many[0]} nodes of one type, and index_dtype is int32, which holds {INT32_MAX}"
            )
        for domain, type_, _ in self.features:
            if type_ not in (self.num_nodes if domain == "node" else self.num_edges):
                raise ValueError(f"a feature is of {shown(type_)}, which is no {domain} type")

    @classmethod
    def of(cls, part: Part) -> PartitionFacts:
        """Return the facts of the partition that `part` is from."""
        return cls(
            **vars(part.identity),
            index_dtype=part.index_dtype,
            features=part.forms(),
            node_time_attr=part.node_time_attr,
            earliest_nodes=part.earliest_nodes,
        )


def hello_to_message(meant: Meant) -> Message:
    """Return the first request on a connection, the handshake. `meant` is the part and partition that the
    client wants.
    """
    return Message(request_header("hello", meant), {})


def greeting_to_message(part: int, facts: PartitionFacts) -> Message:
    """Return the server's answer to the handshake: the id of its part, and the facts."""
    values = to_json(facts)
    values = {name: values[name] for name in _SENT if name in values}
    return Message(answer_header("hello", part=part, facts=values), {})


def greeting_from_message(where: str, message: Message) -> tuple[int, PartitionFacts]:
    """Read the server's answer to the handshake; return (id of its part, facts of its partition). The caller must have
    checked the versions in the header.

    Raises:
        BadMessage: `message` is no answer to the handshake.
    """
    try:
        facts = from_json(PartitionFacts, "facts", message.header.get("facts"))
        part: int = whole(0, facts.num_parts - 1).read("part", message.header.get("part"))
        return part, facts
    except ValueError as error:
        raise BadMessage(f"{where}: the answer to the handshake is not valid: {sentence(error)}") from error
