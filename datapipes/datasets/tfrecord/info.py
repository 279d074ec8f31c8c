"""What to load from TFRecords: SerializedTFRecordInfo for one entity, SerializedGraphMetadata for a whole graph."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from datapipes.base.checks import check_int, check_names, shown
from datapipes.base.types import EdgeType, NodeType, by_edge_type, check_node_type, type_text
from datapipes.datasets.tfrecord.spec import INT64, MOST_VALUES, KeySpec, key_spec
from datapipes.graph.checks import check_mapping
from datapipes.ingest.remote import is_uri, local_path

__all__ = ["SerializedGraphMetadata", "SerializedTFRecordInfo"]

NUMBERS = (  # dtypes of features
    *(torch.float16, torch.float32, torch.float64),
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


@dataclass(frozen=True)
class SerializedTFRecordInfo:
    """The TFRecord files of one entity: the nodes of a type, the edges of a type, or their positive or negative labels.

    Fields and defaults are GiGL's; `feature_dtype` is added. Sequences become tuples.

    Attributes:
        tfrecord_uri_prefix: the folder of the files: a str, a path, or an object with `.uri`. A str may be a URI such
            as `gs://bucket/folder` whose scheme fsspec knows; its package must be installed.
        feature_keys: keys to load as features, in this order of columns. A key with k values takes k columns.
        feature_spec: {key: any object with shape and dtype}, such as `tf.io.FixedLenFeature`; dtype is int64 or
            float32, as TensorFlow, torch or NumPy have it, or as the text "int64" or "float32". All feature keys and
            label keys must be in it; entity keys may be left out. A record without a key gets the `default_value` of
            the key: one number, or as many as the shape says. None: the kind and the number of values of each key are
            taken from the first record of the first file that has records.
        feature_dim: number of columns of all feature keys together; must agree with the spec.
        entity_key: for nodes, the key of the node id, a str; for edges, (key of the source, key of the destination);
            each key has one int64.
        label_keys: keys to load as labels, in this order of columns.
        tfrecord_uri_pattern: regular expression for the names of the files; a match begins at the first character.
        packed_feature_key, packed_feature_dim: features that GiGL has quantised; not read here. Leave them out.
        feature_dtype: dtype of the features: float16, float32, float64, or an integer of 8 to 64 bits. A value outside
            the range of the dtype is an error. Floats may be rounded to a narrower float; integers must fit exactly.
    Raises:
        KeyError: feature_spec lacks a feature key or a label key.
        TypeError, ValueError: A field has a value that is not allowed.
    """

    tfrecord_uri_prefix: Any
    feature_keys: Sequence[str]
    feature_spec: Mapping[str, Any] | None
    feature_dim: int
    entity_key: str | tuple[str, str]
    label_keys: Sequence[str] = ()
    tfrecord_uri_pattern: str = r".*-of-.*\.tfrecord(\.gz)?$"
    packed_feature_key: str | None = None
    packed_feature_dim: int = 0
    feature_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        where = type(self).__name__
        _path_text(where, self.tfrecord_uri_prefix)
        for name in ("feature_keys", "label_keys"):
            object.__setattr__(self, name, tuple(check_names(where, name, getattr(self, name))))
        object.__setattr__(self, "entity_key", _entity_key(where, self.entity_key))
        _refuse_double(where, [*self.entity_keys, *self.feature_keys, *self.label_keys])
        check_int(where, "feature_dim", self.feature_dim, 0, MOST_VALUES)
        _check_pattern(where, self.tfrecord_uri_pattern)
        if self.packed_feature_key is not None or self.packed_feature_dim != 0:
            raise ValueError(
                f"{where}: packed_feature_key={shown(self.packed_feature_key)} and packed_feature_dim="
                f"{shown(self.packed_feature_dim)} ask for quantised features, which are not read here; only None and "
                "0 are allowed. Write the features as numbers, and name their keys in feature_keys."
            )
        if self.feature_dtype not in NUMBERS:
            raise ValueError(
                f"{where}: feature_dtype must be one of {list(NUMBERS)}, got {shown(self.feature_dtype)}. "
                "Choose one of these, and convert the loaded features."
            )
        if self.feature_spec is not None:
            check_keys(where, self, key_specs(where, self, self.feature_spec))

    @property
    def is_node_entity(self) -> bool:
        """Whether the entity is nodes; False for edges and for labels."""
        return isinstance(self.entity_key, str)

    @property
    def entity_keys(self) -> tuple[str, ...]:
        """The key of the node id, or the keys of source and destination, as a tuple."""
        return (self.entity_key,) if isinstance(self.entity_key, str) else self.entity_key

    @property
    def folder(self) -> str:
        """The folder of the files as text: a local path, or a URI."""
        return _path_text(type(self).__name__, self.tfrecord_uri_prefix)


def key_specs(where: str, info: SerializedTFRecordInfo, feature_spec: Any) -> list[KeySpec]:
    """Return a KeySpec (kind and number of values) for each key of `info`: keys of the entity, of features, of labels.

    They are taken from `feature_spec`. An entity key that is not in it has one int64.

    Raises:
        KeyError, TypeError, ValueError: The feature spec does not fit these keys.
    """
    check_mapping(where, "feature_spec", feature_spec, "by key, or None", optional=False)
    loaded = [key_spec(where, feature_spec, key) for key in (*info.feature_keys, *info.label_keys)]
    entities = [
        key_spec(where, feature_spec, key) if key in feature_spec else KeySpec(key, INT64, 1)
        for key in info.entity_keys
    ]
    return [*entities, *loaded]


def check_keys(where: str, info: SerializedTFRecordInfo, keys: Sequence[KeySpec]) -> None:
    """Raise ValueError if `keys`, the specs of the keys of `info` in the order of `key_specs`, do not fit `info`."""
    num_entities = len(info.entity_keys)
    for spec in keys[:num_entities]:
        if (spec.kind, spec.width) != (INT64, 1):
            raise ValueError(
                f"{where}: the entity key {spec.key!r} has {spec.width} values of {spec.kind}; one value of int64 "
                "is needed. Name the key of the ids."
            )
    features = keys[num_entities : num_entities + len(info.feature_keys)]
    width = sum(feature.width for feature in features)
    if width != info.feature_dim:
        widths = ", ".join(f"{feature.key!r}: {feature.width}" for feature in features)
        raise ValueError(
            f"{where}: feature_dim is {info.feature_dim}, but the feature keys have {width} values in a record "
            f"({widths}). Set feature_dim to {width}, or correct the keys."
        )
    for feature in features:
        if feature.kind != INT64 and not info.feature_dtype.is_floating_point:
            raise ValueError(
                f"{where}: feature_dtype is {info.feature_dtype}, but the feature key {feature.key!r} holds "
                f"{feature.kind}. Choose a float, or load only keys of int64."
            )


def _path_text(where: str, prefix: Any) -> str:
    path = getattr(prefix, "uri", prefix)
    if not isinstance(path, (str, os.PathLike)) or isinstance(text := os.fspath(path), bytes):
        raise TypeError(
            f"{where}: tfrecord_uri_prefix must be a str, a path, or an object with .uri, got {shown(prefix)}. Pass "
            "the folder."
        )
    if not text:
        raise ValueError(f"{where}: tfrecord_uri_prefix is empty; a folder is needed. Pass its path.")
    return text if is_uri(text) else local_path(where, "tfrecord_uri_prefix", text)


def _entity_key(where: str, keys: Any) -> str | tuple[str, str]:
    if isinstance(keys, str):
        return keys
    if not isinstance(keys, Sequence) or len(keys) != 2 or not all(isinstance(key, str) for key in keys):
        raise TypeError(
            f"{where}: entity_key must be a str (nodes) or two str (source, destination), got {shown(keys)}. Name the "
            "keys of the ids."
        )
    return keys[0], keys[1]


def _refuse_double(where: str, keys: Sequence[str]) -> None:
    double = sorted({key for key in keys if keys.count(key) > 1})
    if double:
        raise ValueError(
            f"{where}: the keys {double} are named more than once among entity_key, feature_keys and label_keys; each "
            "key is loaded once. Name it in one place."
        )


def _check_pattern(where: str, pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (TypeError, re.error) as error:
        raise ValueError(
            f"{where}: tfrecord_uri_pattern must be a regular expression, got {shown(pattern)} ({error}). Write one "
            "for the names of the files."
        ) from error


@dataclass(frozen=True)
class SerializedGraphMetadata:
    """The entities of a graph. Fields and defaults are GiGL's.

    Attributes:
        node_entity_info: the nodes: one info for a graph without types, or a dict by node type.
        edge_entity_info: the edges: one info for a graph without types, or a dict by edge type, a tuple (src, rel, dst)
            or the text "src:rel:dst".
        positive_label_entity_info, negative_label_entity_info: pairs of nodes that belong together (positive) or do not
            (negative): one info, or a dict by edge type. None, or None as the value of a type: no labels. The types
            may differ from those in edge_entity_info.
        node_quantization_metadata, edge_quantization_metadata: GiGL's records on features that it has quantised. Leave
            them out, since quantised features are not read here.
    Raises:
        TypeError, ValueError: A value is not allowed; nodes have the keys of edges, or edges the key of nodes; some
            fields have types and others none; an edge type has a node type without nodes.
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
        is_typed = isinstance(self.edge_entity_info, Mapping)
        if isinstance(self.node_entity_info, Mapping) != is_typed:
            raise ValueError(
                f"{where}: one of node_entity_info and edge_entity_info is a dict by type and the other is not. Give "
                "both by type, or both without types."
            )
        for name in ("positive_label_entity_info", "negative_label_entity_info"):
            labels = getattr(self, name)
            if isinstance(labels, Mapping):
                labels = {key: info for key, info in labels.items() if info is not None} or None
            object.__setattr__(self, name, None if labels is None else _entities(where, name, labels))
            labels = getattr(self, name)
            if isinstance(labels, Mapping) and not is_typed:
                raise ValueError(
                    f"{where}: {name} is a dict by type, and edge_entity_info is not. Give one info, or nodes "
                    "and edges by type."
                )
            if isinstance(labels, SerializedTFRecordInfo) and is_typed:
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


def _entities(where: str, name: str, infos: Any) -> Any:
    """Return `infos`, one info or a nonempty dict of infos by type, after checks.

    The infos must be of nodes if `name` begins with "node", else of edges.
    """
    about_nodes = name.startswith("node")
    if isinstance(infos, Mapping):
        if not infos:
            raise ValueError(f"{where}: {name} is an empty dict; at least one type is needed. Give the infos by type.")
        typed = {check_node_type(where, key): info for key, info in infos.items()} if about_nodes else None
        by_type: Mapping[Any, Any] = by_edge_type(where, infos) if typed is None else typed
        return {key: _checked(where, f"{name}[{key!r}]", info, about_nodes) for key, info in by_type.items()}
    return _checked(where, name, infos, about_nodes)


def _checked(where: str, name: str, info: Any, about_nodes: bool) -> SerializedTFRecordInfo:
    if not isinstance(info, SerializedTFRecordInfo):
        raise TypeError(f"{where}: {name} must be a SerializedTFRecordInfo, got {shown(info)}. Make one.")
    if info.is_node_entity != about_nodes:
        needed = "one str, the key of the node id" if about_nodes else "two str, the keys of source and destination"
        raise ValueError(f"{where}: the entity_key of {name} is {info.entity_key!r}; {needed}, is needed. Correct it.")
    return info
