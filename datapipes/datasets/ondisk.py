"""OnDiskDataset: reads a folder with GraphBolt's metadata.yaml, and the files that it names, as a Dataset.

Only the graph is written anew (ondisk_graph.py). Features and items (seeds with their labels) are read in place: into
memory at once, or, with `in_memory: false` in the YAML, on demand.

Row i of an edge feature belongs to edge i of the file. The graph always stores the position of each edge in the file.
By default the edge ids of a minibatch are positions in the graph; a read of an edge feature first translates them into
positions in the file. With `include_original_edge_id` the edge ids are positions in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_within, shown
from datapipes.base.folder import check_place
from datapipes.base.types import ends_of, of_type
from datapipes.compat.other_names import with_other_names
from datapipes.datasets.by_name import described_by_name, is_by_name
from datapipes.datasets.dataset import Dataset, Task, one_set
from datapipes.datasets.ondisk_graph import AnyGraph, Arrays, build, check_rows, graph_of
from datapipes.datasets.ondisk_yaml import (
    NEGATIVES,
    SETS,
    WHERE,
    YAML,
    Description,
    RowsFile,
    TaskFiles,
    read_yaml,
)
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, format_errors
from datapipes.features import DiskFeature, Feature, FeatureStore, TensorFeature
from datapipes.features.feature import FeatureOver
from datapipes.graph.saved import open_graph
from datapipes.partition.source import attributes_of_items
from datapipes.seeds import HeteroItemSet, ItemSet

__all__ = ["BuiltinDataset", "OnDiskDataset"]


_BUILTIN = (  # the names that GraphBolt knows
    *("cora", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-mag", "ogbl-citation2", "ogb-lsc-mag240m"),
    *("igb-hom-tiny", "igb-hom-small", "igb-hom-medium", "igb-hom-large", "igb-hom"),
    *("igb-het-tiny", "igb-het-small", "igb-het-medium"),
)


@with_other_names
class OnDiskDataset:
    """A folder with GraphBolt's metadata.yaml. Its graph is built out of core, in the subfolder preprocessed_datapipes.

    A later load opens the built graph, memory-mapped, if the source files still have the same sizes and times, or at
    least the same content. docs/ondisk.md describes the YAML and the differences from GraphBolt.

    Args:
        path: the folder, or the metadata.yaml in it.
        include_original_edge_id: True: the id of an edge in a minibatch is its position in the file; False: its
            position in the graph. Edge features are read correctly in both cases, but only with True can they be
            page-locked.
        force_preprocess: True builds the graph anew. None builds it if there is none, or if the YAML's graph, the dtype
            or the files have changed. False is like None, but opens a built graph even if the files have changed.
        auto_cast_to_optimal_dtype: True: graph and sampled ids are int32 if the ids of all nodes fit, else int64.
            False: int64. Seeds and labels keep the dtypes of their files.
        verify: hash the files and the graph, and compare with the digests noted when the graph was built.
    """

    def __init__(
        self,
        path: str | Path,
        include_original_edge_id: bool = False,
        force_preprocess: bool | None = None,
        auto_cast_to_optimal_dtype: bool = True,
        *,
        verify: bool = False,
    ) -> None:
        self.path = Path(path).parent if Path(path).name == YAML else Path(path)
        self.include_original_edge_id = check_bool(WHERE, "include_original_edge_id", include_original_edge_id)
        if force_preprocess is not None:
            check_bool(WHERE, "force_preprocess", force_preprocess)
        self.force_preprocess = force_preprocess
        self.auto_cast_to_optimal_dtype = check_bool(WHERE, "auto_cast_to_optimal_dtype", auto_cast_to_optimal_dtype)
        self.verify = check_bool(WHERE, "verify", verify)

    def load(self, tasks: str | Sequence[str] | None = None) -> Dataset:
        """Read the data set with its tasks. The item sets are those of the first task, in the order of the YAML.

        Without a task the item sets are empty.

        Args:
            tasks: the name or the names of the tasks to read; None reads all.
        Raises:
            FileNotFoundError: There is no metadata.yaml, or a file that it names is missing.
            DatasetFormatError: The YAML or a file is broken, or they do not fit each other.
            ValueError: There is no task with a name in `tasks`.
            ModuleNotFoundError: PyYAML is not installed, or pyarrow, which reads tables.
            OSError: The disk is full, or the folder cannot be written to.
        """
        if not (self.path / YAML).exists():
            raise FileNotFoundError(
                f"{WHERE}: {self.path} holds no {YAML}. Check the path; dp.datasets.open reads others."
            )
        described = read_yaml(self.path)
        wanted = _chosen(described.tasks, tasks)
        graph = graph_of(
            described,
            index_dtype="auto" if self.auto_cast_to_optimal_dtype else "int64",
            force=self.force_preprocess,
            verify=self.verify,
        )
        read = [_task(described, files) for files in wanted]
        features = _features(described, graph, by_position=not self.include_original_edge_id)
        return _dataset(
            described, graph if self.include_original_edge_id else graph._without_edge_ids(), features, read
        )

    def __repr__(self) -> str:
        return f"OnDiskDataset({str(self.path)!r})"


def BuiltinDataset(name: str, root: str | Path = "datasets") -> OnDiskDataset:
    """Return the data set in the folder `root/name` or `root/name-seeds`, as GraphBolt's BuiltinDataset leaves it.

    Nothing is downloaded.

    Raises:
        ValueError: GraphBolt has no data set of this name.
        FileNotFoundError: There is no such folder; the message says how to get the data.
    """
    check_choice("BuiltinDataset", "name", name, _BUILTIN)
    folders = [Path(root) / folder for folder in (name, f"{name}-seeds")]  # the second as DGL 2.2 and later leave it
    for folder in folders:
        if (folder / YAML).exists():
            return OnDiskDataset(folder)
    raise FileNotFoundError(
        f"BuiltinDataset: neither {folders[0] / YAML} nor {folders[1] / YAML} exists, and nothing is downloaded. "
        f"Unpack https://data.dgl.ai/dataset/graphbolt/{name}.zip into {root}; or take the files that {name} was "
        "published in, and dp.datasets.open(path)."
    )


def _with_yaml(path: Path) -> Path | None:
    """Return the folder of a metadata.yaml; `path` is the folder or the file. None if there is no such file."""
    folder = path.parent if path.name == YAML else path
    return folder if (folder / YAML).exists() else None


def is_ondisk(path: Path) -> bool:
    """Return whether `path` is a folder with a metadata.yaml, or a folder that by_name.py reads."""
    return _with_yaml(path) is not None or is_by_name(path)


def read_ondisk(path: Path) -> Dataset:
    """Return the data set in a folder that `is_ondisk` recognises, for `datasets.open`."""
    if (folder := _with_yaml(path)) is not None:
        return OnDiskDataset(folder, include_original_edge_id=True).load()
    described, tasks = described_by_name(path)
    graph = graph_of(described, index_dtype="auto", force=None, verify=False)._without_edge_ids()
    features = _features(described, graph, by_position=False)
    for domain, kind, name in described.attributes:  # columns of edge tables: like edge ids, in the order of the graph
        features[domain, kind, name] = TensorFeature(graph.relation(kind).edge_attributes[name])
    return _dataset(described, graph, features, tasks)


def convert_ondisk(path: Path, out: Path) -> tuple[AnyGraph, tuple[str, ...]]:
    """Write the graph of the folder `path`, with features, labels and masks as attributes, to the folder `out`.

    Edges and features go through memory in pieces; node items and table columns are in memory whole.

    Returns:
        (graph, left_out): the graph, mapped; and texts that name what was left out.
    """
    check_place("OUT", out)  # `out` may already hold this graph, if a kill came at the very end
    if (folder := _with_yaml(path)) is not None:
        described = read_yaml(folder)
        tasks = [_task(described, files) for files in described.tasks]
    else:
        described, tasks = described_by_name(path)
    where, left_out = str(path), [f"the task {shown(task.metadata.get('name'))}" for task in tasks[1:]]
    both = described.attributes.keys() & described.features.keys()
    if any(described.attributes[key].path != described.features[key].path for key in both):
        fault = f"different values of {shown(sorted(both, key=shown))} as attribute and as feature"
        raise DatasetFormatError.of(where, fault, "the same in both", "Rename one of them.")
    of_nodes: dict[Any, dict[str, Tensor]] = {node_type: {} for node_type in described.num_nodes}
    with format_errors(where):
        left_out += attributes_of_items("convert", _sets(described, tasks), described.num_nodes, of_nodes)
    files = {**described.features, **described.attributes}
    for node_type, columns in of_nodes.items():
        for name in columns:
            if ("node", node_type, name) in files:
                fault = f"the node feature {name!r}{of_type(node_type)}"
                expected = "another name, since the masks, labels and times of the seeds have such names"
                raise DatasetFormatError.of(where, fault, expected, "Rename the feature.")
    build(described, out, files, of_nodes)
    return open_graph(out), tuple(left_out)


# --- features


class _ByPosition(FeatureOver):
    """An edge feature whose rows are in the order of the file, read by the positions of edges in the graph.

    Args:
        feature: the rows in the order of the file.
        edge_ids: [num_edges], the position in the file of each edge of the graph.
    """

    def __init__(self, feature: Feature, edge_ids: Tensor) -> None:
        super().__init__(feature)
        self.reads_async = feature.reads_async
        self._order = TensorFeature(edge_ids)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        return self.feature.read(self._order.read(ids), out)

    def __repr__(self) -> str:
        return f"{self.feature!r}, by the positions of the edges"


def _features(described: Description, graph: AnyGraph, *, by_position: bool) -> dict[Any, Feature]:
    features: dict[Any, Feature] = {}
    arrays = Arrays(described)
    for key, file in described.features.items():
        domain, kind, name = key
        with format_errors(f"the {domain} feature {name!r}{of_type(kind)}"):
            feature: Feature
            rows = (graph.num_nodes_of(kind) if domain == "node" else graph.num_edges_of(kind), f"{domain}s")
            if file.stays_on_disk and file.format == "numpy":
                feature = DiskFeature(described.path(file))
            else:
                feature = TensorFeature(arrays.read(file, rows))
            check_rows(file, feature.count, rows)
            ids = graph.relation(kind).edge_ids if domain == "edge" and by_position else None
            features[key] = feature if ids is None else _ByPosition(feature, ids)
    return features


# --- tasks


def _chosen(tasks: Sequence[TaskFiles], wanted: Any) -> Sequence[TaskFiles]:
    if wanted is None:
        return tasks
    names = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(names, (list, tuple)):
        raise TypeError(
            f"{WHERE}: tasks must be the name of a task, or a list of names, got {shown(wanted)}. Pass one."
        )
    there = [task.metadata.get("name") for task in tasks]
    for name in names:
        if name not in there:
            raise ValueError(f"{WHERE}: no task {shown(name)}; the folder has {shown(there)}. Choose some of these.")
    return [task for task, name in zip(tasks, there, strict=True) if name in names]


def _task(described: Description, files: TaskFiles) -> Task:
    sets: dict[str, dict[Any, ItemSet]] = {name: {} for name in SETS}
    for name in SETS:
        for kind, data in files.sets[name].items():
            with format_errors(f"{described.folder.name}, {name}{of_type(kind)}"):
                sets[name][kind] = _items(described, kind, data)
    types = dict.fromkeys(kind for part in sets.values() for kind in part)
    with format_errors(described.folder.name):
        return Task(**{name: _joined(described, part, types) for name, part in sets.items()}, metadata=files.metadata)


def _joined(described: Description, part: dict[Any, ItemSet], types: Iterable[Any] = ()) -> ItemSet | HeteroItemSet:
    """Return the items of all types in `part` as one set. If `part` is {}, return a set without items.

    A set without items has the types in `types`, or all node types if `types` is empty.
    """
    none = torch.empty(0, dtype=torch.int64)
    empty = {
        kind: ItemSet(none.reshape(0, 2) if isinstance(kind, tuple) else none)
        for kind in [*types] or described.num_nodes
    }
    return one_set(part or empty)


def _items(described: Description, kind: Any, files: Sequence[RowsFile]) -> ItemSet:
    arrays = Arrays(described)
    rows = {file.name: arrays.read(file) for file in files}
    has_negatives = bool({*NEGATIVES} & {*rows})
    if rows["seeds"].shape[:1] == (0,):  # an empty array may have any dtype
        are_pairs = has_negatives or isinstance(kind, tuple) or rows["seeds"].ndim == 2
        rows["seeds"] = torch.empty((0, 2) if are_pairs else 0, dtype=torch.int64)
    rows = _with_negatives(rows) if has_negatives else rows
    items = ItemSet(tuple(rows.values()), names=tuple(rows))
    _check_seeds(described, kind, rows["seeds"])
    return items


def _check_seeds(described: Description, kind: Any, seeds: Tensor) -> None:
    """Raise ValueError unless all `seeds` are nodes, or pairs of nodes, of the node or edge type `kind`.

    This reads all seeds once.
    """
    counts = described.num_nodes
    allowed = {1: "[n]", 2: "[n, 2]"} if kind is None else {2: "[n, 2]"} if isinstance(kind, tuple) else {1: "[n]"}
    if seeds.ndim not in allowed:
        form = " or ".join(allowed.values())
        raise ValueError(f"the seeds have the shape {[*seeds.shape]}; expected {form}. Reshape them.")
    src, dst = ends_of(kind) if isinstance(kind, tuple) else (kind, kind)
    if seeds.dtype == torch.bool:
        if len(seeds) != counts[kind]:
            raise ValueError(f"the mask has {len(seeds)} values for {counts[kind]} nodes. Give one for each.")
        return
    columns = [(seeds, dst)] if seeds.ndim == 1 else [(seeds[:, 0], src), (seeds[:, 1:], dst)]
    for ids, end in columns:
        check_within("the seeds", f"nodes{of_type(end)}", ids, counts[end], "Correct the file, or the number of nodes.")


def _with_negatives(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Turn pairs with negatives into items with labels; return {name: values} of the items.

    Args:
        rows: {"seeds": n pairs [n, 2], "negative_srcs" or "negative_dsts" or both: ids [n] or [n, k], further names:
            values [n, ...]}. An end that has no negatives is that of the pair.
    Returns:
        "seeds" has the n pairs, then the k negatives of each pair. "labels" is True for pairs and False for negatives.
        "indexes" is the position of the pair. The other values of a pair are repeated for its negatives.
    """
    pairs = rows.pop("seeds")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(
            f"the seeds have shape {list(pairs.shape)}; expected pairs [n, 2], since there are negatives. Correct them."
        )
    count = pairs.shape[0]
    ends = [rows.pop(name, None) for name in NEGATIVES]
    there = [ids.flatten(1) if ids.ndim > 1 else ids[:, None] for ids in ends if ids is not None]
    ratio = there[0].shape[1]
    if any(ids.shape != (count, ratio) for ids in there):
        raise ValueError(
            f"the negatives have shapes {[[*ids.shape] for ids in there]} for {count} pairs; expected [{count}, k] "
            "with one k. Give each pair the same number of negatives."
        )
    both = [pairs[:, end : end + 1].expand(-1, ratio) if ids is None else ids for end, ids in enumerate(ends)]
    negatives = torch.stack([ids.reshape(-1).long() for ids in both], dim=1)
    places = torch.arange(count)
    indexes = torch.cat([places, places.repeat_interleave(ratio)])
    labels = torch.arange(count * (1 + ratio)) < count
    others = {name: values[indexes] for name, values in rows.items()}
    return {"seeds": torch.cat([pairs.long(), negatives]), "labels": labels, "indexes": indexes, **others}


# --- the data set


def _sets(described: Description, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return {set name: items} of the first task. Without a task the sets are empty."""
    return {name: getattr(tasks[0], name) if tasks else _joined(described, {}) for name in SETS}


def _dataset(
    described: Description, graph: AnyGraph, features: Mapping[Any, Feature], tasks: Sequence[Task]
) -> Dataset:
    sets = _sets(described, tasks)
    kind, num_classes = _kind_of(sets)
    if tasks and tasks[0].metadata.get("num_classes") is not None:
        num_classes = int(tasks[0].metadata["num_classes"])
    return Dataset(
        name=described.name,
        graph=graph,
        features=FeatureStore(features),
        **sets,
        num_classes=num_classes,
        class_names=tuple(map(str, range(num_classes))),
        task=kind,
        tasks=tuple(tasks),
        metadata=described.metadata,
    )


def _kind_of(sets: Mapping[str, Any]) -> tuple[str, int]:
    """Find the kind of task from the seeds and labels in `sets`, {set name: items}; return (task, number of classes).

    Tasks are listed at Dataset; 0 means no classes.
    """
    parts = [items for part in sets.values() for items in getattr(part, "item_sets", {None: part}).values()]
    of_edges = any(items.seeds_shape != () for items in parts)
    labels = [items._hashed_arrays()["labels"][0] for items in parts if "labels" in items.names and len(items) > 0]
    if not labels:
        return ("link_prediction" if of_edges else "all_nodes"), 0
    if any(values.is_floating_point() for values in labels):
        tells_edges = all(bool(((values == 0) | (values == 1)).all()) for values in labels)
        return ("link_prediction" if tells_edges else "edge_regression") if of_edges else "node_regression", 0
    highest = max(int(values.max()) for values in labels)
    if of_edges and highest <= 1:
        return "link_prediction", 0
    most = highest + 1 if labels[0].ndim == 1 and highest < MAX_CLASSES else 0
    return ("edge_classification" if of_edges else "node_classification"), max(most, 0)
