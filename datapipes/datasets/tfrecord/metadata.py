"""SerializedGraphMetadata: the records of a whole graph, entity by entity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType, by_edge_type, check_node_type, type_text
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo

__all__ = ["SerializedGraphMetadata"]


@dataclass(frozen=True)
class SerializedGraphMetadata:
    """Where the records of a graph lie. Fields and defaults are GiGL's.

    Attributes:
        node_entity_info: the nodes: one info for a graph without types, or a dict by node type.
        edge_entity_info: the edges: one info for a graph without types, or a dict by edge type, a tuple (src, rel, dst)
            or the text "src:rel:dst".
        positive_label_entity_info, negative_label_entity_info: pairs of nodes that belong together, or do not: one
            info, or a dict by edge type; a type whose value is None has none. None: there are no such labels. The types
            need not be those of edges.
        node_quantization_metadata, edge_quantization_metadata: about features that GiGL has quantised, which are not
            read here. Leave them out.
    Raises:
        TypeError, ValueError: A field has a value that is not allowed; nodes with the keys of edges, or edges with the
            key of nodes; types in some of the fields and none in others; an edge type whose nodes are not given.
    """

    node_entity_info: SerializedTFRecordInfo | Mapping[NodeType, SerializedTFRecordInfo]
    edge_entity_info: SerializedTFRecordInfo | Mapping[EdgeType, SerializedTFRecordInfo]
    positive_label_entity_info: SerializedTFRecordInfo | Mapping[EdgeType, SerializedTFRecordInfo | None] | None = None
    negative_label_entity_info: SerializedTFRecordInfo | Mapping[EdgeType, SerializedTFRecordInfo | None] | None = None
    node_quantization_metadata: Any = None
    edge_quantization_metadata: Any = None

    def __post_init__(self) -> None:
        where = type(self).__name__
        for name in ("node_quantization_metadata", "edge_quantization_metadata"):
            value = getattr(self, name)
            if value is not None:
                raise ValueError(
                    f"{where}: {name}={shown(value)} is about quantised features, which are not read here; only None "
                    "is allowed. Write the features as numbers, and leave it out."
                )
        for name in ("node_entity_info", "edge_entity_info"):
            object.__setattr__(self, name, _entities(where, name, getattr(self, name)))
        for name in ("positive_label_entity_info", "negative_label_entity_info"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _labels(where, name, getattr(self, name)))
        if isinstance(self.node_entity_info, Mapping) != isinstance(self.edge_entity_info, Mapping):
            raise ValueError(
                f"{where}: one of node_entity_info and edge_entity_info is a dict by type and the other is not. Give "
                "both by type, or both without types."
            )
        for name in ("positive_label_entity_info", "negative_label_entity_info"):
            labels = getattr(self, name)
            if isinstance(labels, Mapping) and not isinstance(self.edge_entity_info, Mapping):
                raise ValueError(
                    f"{where}: {name} is a dict by type, and edge_entity_info is not. Give one info, or nodes "
                    "and edges by type."
                )
            if isinstance(labels, SerializedTFRecordInfo) and isinstance(self.edge_entity_info, Mapping):
                raise ValueError(
                    f"{where}: {name} is one info, and edge_entity_info is a dict by type. Give a dict by edge type."
                )
        if isinstance(self.node_entity_info, Mapping) and isinstance(self.edge_entity_info, Mapping):
            for edge_type in self.edge_entity_info:
                for end in (edge_type[0], edge_type[2]):
                    if end not in self.node_entity_info:
                        raise ValueError(
                            f"{where}: the edge type {type_text(edge_type)} ends at the node type {end!r}; "
                            f"node_entity_info has {shown([*self.node_entity_info])}. Add its nodes."
                        )


def _entities(where: str, name: str, given: Any) -> Any:
    """Return one info, or a dict by type that is not empty; all about nodes, or all about edges, as `name` says."""
    about_nodes = name.startswith("node")
    if isinstance(given, Mapping):
        if not given:
            raise ValueError(f"{where}: {name} is an empty dict; at least one type is needed. Give the infos by type.")
        typed = {check_node_type(where, key): info for key, info in given.items()} if about_nodes else None
        infos: Mapping[Any, Any] = by_edge_type(where, given) if typed is None else typed
        return {key: _checked(where, f"{name}[{key!r}]", info, about_nodes) for key, info in infos.items()}
    return _checked(where, name, given, about_nodes)


def _labels(where: str, name: str, given: Any) -> Any:
    if isinstance(given, Mapping):
        given = {key: info for key, info in given.items() if info is not None}
        return _entities(where, name, given) if given else None
    return _entities(where, name, given)


def _checked(where: str, name: str, info: Any, about_nodes: bool) -> SerializedTFRecordInfo:
    if not isinstance(info, SerializedTFRecordInfo):
        raise TypeError(f"{where}: {name} must be a SerializedTFRecordInfo, got {shown(info)}. Make one.")
    if info.is_node_entity != about_nodes:
        needed = "one str, the key of the node id" if about_nodes else "two str, the keys of source and destination"
        raise ValueError(f"{where}: the entity_key of {name} is {info.entity_key!r}; {needed}, is needed. Correct it.")
    return info
