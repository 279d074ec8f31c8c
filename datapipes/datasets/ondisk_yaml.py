"""Description: says which files of a folder contain the graph, the features and the tasks of a data set.

It is read here from GraphBolt's metadata.yaml; by_name.py makes a Description from file names instead. ondisk.py reads
the files.

Invariant: the types of a Description fit each other, each path lies in the folder, and nothing is named twice. A YAML
that breaks this, or has an unknown key, an alias or a Python tag, raises a DatasetFormatError.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from datapipes.base.checks import shown
from datapipes.base.errors import not_installed
from datapipes.base.records import OMITTED, Form, from_json, one_of, plain, whole
from datapipes.base.types import check_edge_type, ends_of
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, content_of
from datapipes.graph.checks import MAX_NODES

WHERE = "OnDiskDataset"
YAML = "metadata.yaml"
SETS = ("train_set", "validation_set", "test_set")
TABLES = ("csv", "parquet")
SEEDS = ("seeds", "seed_nodes", "node_pairs")  # names that mean seeds
NEGATIVES = ("negative_srcs", "negative_dsts")
MOST_YAML_BYTES = 2**20


def is_inside(path: Any) -> bool:
    """Return whether a relative path stays within its folder. Symbolic links are not checked, but followed."""
    if not isinstance(path, str) or not path or "\0" in path or os.path.isabs(path):
        return False
    return os.path.normpath(path).split(os.sep)[0] != os.pardir


_Path = Annotated[str, plain("paths below the folder", is_inside)]
_Type = Annotated[str | None, OMITTED]  # of nodes or edges


@dataclass(frozen=True)
class EdgeFile:
    """The file with the edges of one type; `path` may also be a folder of such files."""

    format: Annotated[str, one_of("numpy", *TABLES)]
    path: _Path
    type: _Type = None


@dataclass(frozen=True)
class RowsFile:
    """The file with an array, such as a feature. If the file is a table, the array is its column `name`."""

    name: str
    format: Annotated[str, one_of("numpy", "torch", *TABLES)]
    path: _Path
    in_memory: Annotated[bool | None, OMITTED] = None  # None: yes

    @property
    def stays_on_disk(self) -> bool:
        """Whether values stay in the file and are read on demand."""
        return self.in_memory is False


def _with_free(record: Any) -> Form:
    """Return the Form that reads the dataclass `record` from a JSON object.

    Keys of the object that are no fields of `record` are put into its field "metadata".
    """
    names = {each_field.name for each_field in fields(record)}

    def read(name: str, value: Any) -> Any:
        named: dict[str, Any] = {}
        free: dict[str, Any] = {}
        for key, content in value.items() if isinstance(value, dict) else ():
            (named if key in names else free)[key] = content
        return from_json(record, name, named | {"metadata": free})

    return Form(read)


_Free = Annotated[Mapping[str, Any], plain("fields", lambda value: isinstance(value, dict))]


@dataclass(frozen=True)
class _Feature(RowsFile):
    domain: Annotated[str, one_of("node", "edge")] = "node"
    type: _Type = None
    metadata: _Free = field(default_factory=dict)


_Features = Annotated[tuple[Annotated[_Feature, _with_free(_Feature)], ...] | None, OMITTED]


@dataclass(frozen=True)
class _Nodes:
    num: Annotated[int, whole(0, MAX_NODES)]
    type: _Type = None


@dataclass(frozen=True)
class _Graph:
    nodes: tuple[_Nodes, ...]
    edges: tuple[EdgeFile, ...]
    feature_data: _Features = None


@dataclass(frozen=True)
class _Items:
    data: tuple[RowsFile, ...]
    type: _Type = None


_Set = Annotated[tuple[_Items, ...] | None, OMITTED]


@dataclass(frozen=True)
class _Task:
    metadata: _Free
    train_set: _Set = None
    validation_set: _Set = None
    test_set: _Set = None


@dataclass(frozen=True)
class _Whole:
    graph: _Graph
    dataset_name: Annotated[str | None, OMITTED] = None
    feature_data: _Features = None
    tasks: Annotated[tuple[Annotated[_Task, _with_free(_Task)], ...] | None, OMITTED] = None


Key = tuple[str, Any, str]  # of a feature


class TaskFiles(NamedTuple):
    """The files of one task: `sets` is {set name: {type or None: its arrays}}.

    `metadata` has the further fields of the task in the YAML.
    """

    sets: Mapping[str, Mapping[Any, tuple[RowsFile, ...]]]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Description:
    """Which files of a folder contain what. A key is ("node" or "edge", type or None, name).

    Attributes:
        folder: the folder, to which all paths are relative.
        name: the name of the data set.
        num_nodes: {type or None: number of nodes}.
        edges: {edge type as a tuple, or None: file}.
        attributes: {key: file} of the arrays that samplers read. An edge attribute may be a column of the edge table.
        features: {key: file}.
        metadata: {key of a feature: {name: value} of its further fields}.
        tasks: the tasks in the order of the YAML.
        id_columns: {path of a node table: the column with the node id of each row}. Rows of other tables are in the
            order of the ids.
    """

    folder: Path
    name: str
    num_nodes: Mapping[Any, int]
    edges: Mapping[Any, EdgeFile]
    attributes: Mapping[Key, RowsFile]
    features: Mapping[Key, RowsFile]
    metadata: Mapping[Key, Mapping[str, Any]]
    tasks: tuple[TaskFiles, ...] = ()
    id_columns: Mapping[str, str] = field(default_factory=dict)

    def path(self, file: EdgeFile | RowsFile) -> Path:
        """Return the path of a file or folder of the Description."""
        return self.folder / file.path


def read_yaml(folder: Path) -> Description:
    """Return the Description in the metadata.yaml of `folder`.

    Raises:
        FileNotFoundError: There is no metadata.yaml.
        DatasetFormatError: The file is no YAML, or has a field that GraphBolt's documentation does not allow.
        ModuleNotFoundError: PyYAML is not installed.
    """
    content = content_of(folder / YAML, MOST_YAML_BYTES)
    try:
        return described(folder, without_nulls(parse_yaml(content)))
    except (ValueError, TypeError) as error:
        raise DatasetFormatError(f"{folder.name}/{YAML}: {str(error).rstrip('.')}. Correct the file.") from error


# --- the text


def parse_yaml(content: bytes) -> Any:
    """Return the content of a YAML as dicts, lists and values; raise ValueError for aliases and repeated keys."""
    try:
        import yaml
    except ImportError as error:
        raise not_installed("pyyaml", "ondisk", f"{WHERE}: {YAML}") from error
    try:
        loader = yaml.SafeLoader(content)
        root = loader.get_single_node()
        if root is None:
            raise ValueError("found an empty file")
        _check(root, set())
        return loader.construct_document(root)
    except RecursionError as error:
        raise ValueError("found values nested too deep") from error
    except yaml.YAMLError as error:
        raise ValueError(f"found no plain YAML: {shown(' '.join(str(error).split()))}") from error


def _check(node: Any, seen: set[int]) -> None:
    """Raise ValueError for a repeated key, and for an alias, since aliases may unfold to more than memory holds."""
    if id(node) in seen:
        raise ValueError(f"found an alias in line {node.start_mark.line + 1}; write the values out instead")
    seen.add(id(node))
    if not isinstance(node.value, list):
        return
    keys = set()
    for child in node.value:
        if not isinstance(child, tuple):
            _check(child, seen)
            continue
        key, value = child
        if key.tag != "tag:yaml.org,2002:str" or key.value in keys:
            line = key.start_mark.line + 1
            raise ValueError(f"found the key {shown(key.value)} in line {line}; each must be a text, and given once")
        keys.add(key.value)
        _check(key, seen)
        _check(value, seen)


def without_nulls(value: Any) -> Any:
    """Return a copy of the content of a YAML without fields whose value is null."""
    if isinstance(value, dict):
        return {key: without_nulls(content) for key, content in value.items() if content is not None}
    return [*map(without_nulls, value)] if isinstance(value, list) else value


# --- from the values to a Description


def described(folder: Path, value: Any) -> Description:
    """Return the Description that the content of a YAML states; raise ValueError or TypeError if it is wrong."""
    whole_file = from_json(_Whole, "the file", value)
    graph = whole_file.graph
    num_nodes = _unique("graph.nodes", ((nodes.type, nodes.num) for nodes in graph.nodes))
    of_edges = ((file.type and check_edge_type("graph.edges", file.type), file) for file in graph.edges)
    edges = _unique("graph.edges", of_edges)
    if not edges or (None in num_nodes) != (None in edges) or (None in edges and len(num_nodes) + len(edges) > 2):
        raise ValueError("graph must have types of nodes and of edges, or one entry of each without type")
    types = {"node": num_nodes, "edge": edges}
    for edge_type in edges:
        for end in {*ends_of(edge_type)}:
            _type_of("graph.edges", "node", end, types)

    def keyed(where: str, files: tuple[_Feature, ...] | None) -> dict[Key, _Feature]:
        keys = ((file.domain, _type_of(where, file.domain, file.type, types), file.name) for file in files or ())
        return _unique(where, zip(keys, files or (), strict=True))

    attributes = keyed("graph.feature_data", graph.feature_data)
    features = keyed("feature_data", whole_file.feature_data)
    for file in attributes.values():
        if file.metadata:
            raise ValueError(f"graph.feature_data has the unknown fields {shown(sorted(file.metadata))}")
    tasks = tuple(_task_files(task, types) for task in whole_file.tasks or ())
    _unique("tasks", ((name, task) for task in tasks if (name := task.metadata.get("name")) is not None))
    metadata = {key: file.metadata for key, file in features.items()}
    name = whole_file.dataset_name or folder.name
    return Description(folder, name, num_nodes, edges, attributes, features, metadata, tasks)


def _unique(where: str, pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{where} has {shown(key)} twice")
        values[key] = value
    return values


def _type_of(where: str, domain: str, text: str | None, types: Mapping[str, Mapping[Any, Any]]) -> Any:
    """Return the node or edge type that `text` names; an edge type as a tuple. `domain` is "node" or "edge".

    Raises:
        ValueError: `types[domain]` does not have it. The message begins with `where`.
    """
    kind = check_edge_type(where, text) if domain == "edge" and text is not None else text
    if kind not in types[domain]:
        raise ValueError(f"{where} names the {domain} type {shown(kind)}; the graph has {shown([*types[domain]])}")
    return kind


def _task_files(task: _Task, types: Mapping[str, Mapping[Any, Any]]) -> TaskFiles:
    classes = task.metadata.get("num_classes")
    if classes is not None and (type(classes) is not int or not 0 <= classes <= MAX_CLASSES):
        raise ValueError(f"num_classes is {shown(classes)}, allowed are whole numbers in [0, {MAX_CLASSES}]")
    sets: dict[str, dict[Any, tuple[RowsFile, ...]]] = {}
    for name in SETS:
        parts = []
        for items in getattr(task, name) or ():
            domain = "node" if items.type in types["node"] or ":" not in (items.type or "") else "edge"
            parts.append((_type_of(name, domain, items.type, types), _named(name, items.data)))
        sets[name] = _unique(name, parts)
    return TaskFiles(sets, task.metadata)


def _named(where: str, files: tuple[RowsFile, ...]) -> tuple[RowsFile, ...]:
    """Return the arrays of an item set with GraphBolt's names of the seeds replaced by "seeds", this package's name."""
    by_name = _unique(where, (("seeds" if file.name in SEEDS else file.name, file) for file in files))
    if "seeds" not in by_name:
        raise ValueError(f"{where} has the data {shown([*by_name])}; one of {[*SEEDS]} is needed")
    if {*by_name} & {*NEGATIVES} and {*by_name} & {"labels", "indexes"}:
        raise ValueError(f"{where} has {shown([*by_name])}; negatives give labels and indexes. Leave these out")
    return tuple(replace(file, name=name) for name, file in by_name.items())
