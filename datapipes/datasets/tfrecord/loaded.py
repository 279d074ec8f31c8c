"""LoadedGraphTensors: a graph as loaded from TFRecords, and its conversions to a Dataset and to a partition.

Labels can become edges of types of their own, under GiGL's names. A Dataset has rows of nodes in the order of the ids,
in-edges by destination, features, and a task. For a Dataset node ids must be 0 .. n - 1, each once, and include both
ends of each edge. Other ids are refused, since a gap would become a node without a record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_choice, check_edge_index, check_within, shown
from datapipes.base.types import EdgeType, NodeType, check_edge_type, ends_of, of_type, type_text
from datapipes.datasets.dataset import Dataset, graph_of_edges
from datapipes.datasets.tfrecord.entity_task import TFRecordLoadError
from datapipes.datasets.tfrecord.tasks import task_of
from datapipes.datasets.tfrecord.to_partition import check_rows, refuse_other_ranks, write_tensors
from datapipes.datasets.tfrecord.torch_memory import shared_empty
from datapipes.features import FeatureStore, TensorFeature
from datapipes.partition.across_ranks.exchange import exchange
from datapipes.partition.partition_report import PartitionReport
from datapipes.partition.source import counts_up

__all__ = ["DEFAULT_HOMOGENEOUS_EDGE_TYPE", "DEFAULT_HOMOGENEOUS_NODE_TYPE", "LoadedGraphTensors"]

_ByNode = Tensor | dict[NodeType, Tensor]
_ByEdge = Tensor | dict[EdgeType, Tensor]

#: The node type of a graph without types, where a type is needed.
DEFAULT_HOMOGENEOUS_NODE_TYPE: NodeType = "default_homogeneous_node_type"
#: The edge type of a graph without types, where a type is needed.
DEFAULT_HOMOGENEOUS_EDGE_TYPE: EdgeType = (DEFAULT_HOMOGENEOUS_NODE_TYPE, "to", DEFAULT_HOMOGENEOUS_NODE_TYPE)


@dataclass(eq=False, repr=False)
class LoadedGraphTensors:
    """The tensors of a graph, with rows in the order of its files. Fields and their order are as in GiGL.

    Without types a field is a tensor. With types a field is a dict by type: node types are str, edge types (src, rel,
    dst); types without the field are left out. An absent field is None. Fields may be set to None to free memory.

    Args:
        node_ids: int64 [n]. Ids of nodes, in the order of the records; need not be 0 .. n - 1.
        node_features: [n, feature_dim], row i belongs to node_ids[i]; float32 unless the entity's info says otherwise.
        node_labels: [n, columns of all label keys], int64 or float32.
        edge_index: int64 [2, E]; row 0 has the sources, row 1 the destinations.
        edge_features: [E, feature_dim], without the column that became a weight.
        positive_label, negative_label: int64 [2, number of labels], pairs of an anchor (row 0) and its target (row 1).
        edge_weights: float32 [E], the feature that `weight_edge_feat_name` names.
        node_quantized_features, edge_quantized_features: always None; quantized features are refused when they are
            loaded.
    """

    node_ids: _ByNode
    node_features: _ByNode | None
    node_labels: _ByNode | None
    edge_index: _ByEdge
    edge_features: _ByEdge | None
    positive_label: _ByEdge | None
    negative_label: _ByEdge | None
    edge_weights: _ByEdge | None = None
    node_quantized_features: None = None
    edge_quantized_features: None = None
    _rank: int = field(default=0, init=False, repr=False)
    _num_ranks: int = field(default=1, init=False, repr=False)  # the tensors are the share of `_rank` of `_num_ranks`

    def __repr__(self) -> str:
        """Return a text with the shapes of the tensors."""
        fields = []
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, dict):
                fields.append(f"{name}={{{', '.join(f'{k!r}: {[*rows.shape]}' for k, rows in value.items())}}}")
            elif value is not None:
                fields.append(f"{name}={[*value.shape]}")
        return f"{type(self).__name__}({', '.join(fields)})"

    def treat_labels_as_edges(self, edge_dir: str) -> None:
        """Turn positive and negative labels into edges of types of their own, in place.

        All fields become dicts by type. A graph without types gets DEFAULT_HOMOGENEOUS_NODE_TYPE and
        DEFAULT_HOMOGENEOUS_EDGE_TYPE. Labels of (src, rel, dst) become the edge type (src, rel + "_gigl_positive", dst)
        or (src, rel + "_gigl_negative", dst). Both label fields are None afterwards.

        Args:
            edge_dir: "out": labels keep their direction, from anchor to target. "in": the type is reversed to (dst,
                ..., src) and the rows are swapped, so that a sampler that follows in-edges finds targets from
                anchors; this copies the labels.
        Raises:
            ValueError: There are no positive labels; labels are a tensor but the graph has several edge types; an edge
                type of the new name exists already. No field has changed then.
        """
        check_choice(_LABELS, "edge_dir", edge_dir, ("in", "out"))
        if self.positive_label is None:
            raise ValueError(
                f"{_LABELS}: found no positive labels; they are needed. Load the graph with "
                "positive_label_entity_info, or leave this step out."
            )
        edges = self._with_types("edge_index", DEFAULT_HOMOGENEOUS_EDGE_TYPE)
        only_type = next(iter(edges)) if len(edges) == 1 else None
        for name, ending in (("positive_label", "_gigl_positive"), ("negative_label", "_gigl_negative")):
            for label_type, pairs in self.by_type(name).items():
                own_type = only_type if label_type is None else check_edge_type(f"{_LABELS}, {name}", label_type)
                if own_type is None:
                    raise ValueError(
                        f"{_LABELS}: {name} is a tensor, and the graph has several edge types; a tensor does not say "
                        "which one it belongs to. Load it as a dict {edge type: tensor}."
                    )
                edge_type, index = _label_edges(own_type, ending, pairs, edge_dir)
                if edge_type in edges:
                    raise ValueError(
                        f"{_LABELS}: the edge type {type_text(edge_type)} is there already; {name} would replace it. "
                        "Name the relation otherwise, or call this once."
                    )
                edges[edge_type] = index
        for name in ("node_ids", "node_features", "node_labels"):
            setattr(self, name, self._with_types(name, DEFAULT_HOMOGENEOUS_NODE_TYPE) or None)
        for name in ("edge_features", "edge_weights"):
            setattr(self, name, self._with_types(name, DEFAULT_HOMOGENEOUS_EDGE_TYPE) or None)
        self.edge_index = edges
        self.positive_label = self.negative_label = None

    def to_dataset(self, name: str = "tfrecords") -> Dataset:
        """Return the graph as a Dataset, like `dp.datasets.open`: graph, features and a task.

        The graph is a CSCGraph, or a HeteroCSCGraph where there are types; in-edges keep the order of the records, and
        the id of an edge is its column in `edge_index`. Weights are the edge attribute "weight". Features are called
        "feat", for nodes and for edges.

        The task is the first of these that the graph has:

        * "node_classification": labels are whole numbers. `train_set` has the nodes with labels >= 0 in all columns.
          Its labels are [n], or [n, k] if there are k > 1 columns.
        * "node_regression": labels are float32; `train_set` has the nodes whose labels are not NaN.
        * "link_prediction": `train_set` has the positive pairs, [n, 2]. If there are negative pairs, they follow, and
          labels are 1 for positive pairs and 0 for negative pairs.
        * "all_nodes": `train_set` has all nodes, without labels.

        The other two sets are empty; `Dataset.with_validation` fills the validation set.

        Args:
            name: the name of the data set, for messages.
        Returns:
            Rows of nodes are in the order of their ids. If `node_ids` are in order, features and labels are shared with
            this object; otherwise they are copied into shared memory. Time O(nodes + edges).
        Raises:
            IndexError: A node id, or an end of an edge or a label, is not in 0 .. n - 1 for n nodes of its type.
            ValueError: A node id is there twice; or several ranks have loaded a share of the graph each: then use
                `to_partition`.
            MemoryError: Too little memory is left for the graph.
        """
        if self._num_ranks > 1:
            raise ValueError(
                f"{_DATASET}: this is the share of rank {self._rank} of {self._num_ranks}, not a whole graph. Call "
                "to_partition(root) on all ranks, and open the parts with DistGraph; or load with "
                "TFRecordDataLoader(0, 1)."
            )
        nodes, edges, weights = map(self.by_type, ("node_ids", "edge_index", "edge_weights"))
        for field_name in ("node_ids", "edge_index"):
            if getattr(self, field_name) is None:
                raise ValueError(
                    f"{_DATASET}: {field_name} was set to None. Make the data set before that, or load again."
                )
        self.refuse_mixed_types(_DATASET)
        orders = {kind: row_order(f"{_DATASET}: node_ids{of_type(kind)}", ids) for kind, ids in nodes.items()}
        counts = {kind: len(ids) for kind, ids in nodes.items()}
        for field_name in ("edge_index", "positive_label", "negative_label"):
            for edge_type, pairs in self.by_type(field_name).items():
                _check_pairs(f"{field_name}{of_type(edge_type)}", pairs, ends_of(edge_type), counts)
        node_rows, labels = (_in_order(name, self.by_type(name), counts, orders) for name in _OF_NODES)
        features = {("node", kind, FEATURE): TensorFeature(rows) for kind, rows in node_rows.items()}
        for kind, rows in self.by_type("edge_features").items():
            features["edge", kind, FEATURE] = TensorFeature(rows)
        graph = graph_of_edges(edges, counts, {}, {kind: {WEIGHT: rows} for kind, rows in weights.items()})
        positive, negative = self.by_type("positive_label"), self.by_type("negative_label")
        task = task_of(_DATASET, counts, labels, positive, negative)
        return Dataset(name=name, graph=graph, features=FeatureStore(features), **task)

    def to_partition(self, root: str | Path, *, rank_timeout_s: float = 60.0) -> PartitionReport:
        """Write the graph of all ranks as a partition with a part for each rank; all ranks call it together.

        The folder equals the partition that one process with the files of all ranks would write by
        `Partitioner(to_dataset(), world size, root, method="range", layouts=("native",))`: `Part.open` and
        `DistGraph.connect` take it, and minibatches have the same bits. An edge's id is its position among the edges of
        all ranks, rank 0 first. The tensors do not change. No part has the labels of edges; they stay with the ranks.

        Each rank needs the default process group of torch.distributed, of any backend. A single process needs none.
        Ranks that see the same `root` write one folder; if each machine has a disk of its own, each gets a folder with
        the parts of its ranks. A folder appears whole or not at all, once all ranks have written everything; an older
        partition is replaced.

        Time O(n log n). Every value is sent to its owner once, sources of edges twice, in windows of 16 MiB. Memory
        besides the tensors: a few windows; 16 bytes for each node and each edge, 32 while nodes or edges are sorted; 4
        bytes for each node of all ranks.

        Args:
            rank_timeout_s: a rank counts as failed after this many seconds without a heartbeat, or if it calls this
                more than this many seconds after the others.
        Returns:
            The report on the parts, the same on all ranks.
        Raises:
            ValueError: Node ids have gaps or repeats, an end of an edge is no node, or ranks have tensors of different
                dtypes or widths; the message names rank and id.
            FileExistsError: `root` holds a file that is not part of a partition.
            OSError: The disk is full, or the folder cannot be written.
            TFRecordLoadError: Another rank has failed, has ended, or did not call this. `failed_ranks` says why.
        """
        with exchange(_PARTITION, rank_timeout_s, TFRecordLoadError) as ranks:
            refuse_other_ranks(self._num_ranks)
            self.refuse_mixed_types(_PARTITION)
            return write_tensors(ranks, {name: self.by_type(name) for name in FIELDS}, root)

    def by_type(self, name: str) -> dict[Any, Tensor]:
        """Return the field `name` as {type: tensor}; a single tensor as {None: tensor}, None as {}."""
        value = getattr(self, name)
        return {} if value is None else dict(value) if isinstance(value, dict) else {None: value}

    def refuse_mixed_types(self, where: str) -> None:
        """Raise ValueError unless nodes and edges both have types, or both have none."""
        if (None in self.by_type("node_ids")) != (None in self.by_type("edge_index")):
            raise ValueError(
                f"{where}: one of node_ids and edge_index is a dict by type and the other is not. Give both by type, "
                "or both without."
            )

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors, field by field."""
        for name in FIELDS:
            yield from self.by_type(name).values()

    def _with_types(self, name: str, default: Any) -> dict[Any, Tensor]:
        """Return the field `name` as {type: tensor}, with the type `default` in place of None."""
        return {default if kind is None else kind: values for kind, values in self.by_type(name).items()}


_LABELS, _DATASET, _PARTITION = "treat_labels_as_edges", "to_dataset", "to_partition"
FEATURE, WEIGHT = "feat", "weight"  # the names of features and of weights
_OF_NODES = ("node_features", "node_labels")
FIELDS = tuple(name for name in LoadedGraphTensors.__dataclass_fields__ if not name.startswith("_"))  # in GiGL's order


def _label_edges(edge_type: EdgeType, ending: str, pairs: Tensor, edge_dir: str) -> tuple[EdgeType, Tensor]:
    source, relation, target = edge_type
    if edge_dir == "in":  # labels run from anchor to target; in-edges run the other way
        flipped = shared_empty(tuple(pairs.shape), pairs.dtype, _LABELS)  # shared like the loaded tensors
        flipped[0], flipped[1] = pairs[1], pairs[0]
        return (target, relation + ending, source), flipped
    return (source, relation + ending, target), pairs


_REMEDY = "Number the nodes from 0 on, without gaps, when the records are written."


def row_order(where: str, ids: Tensor) -> Tensor | None:
    """Return the row of each id, int64 [n]: ids[row[i]] == i. None: the ids are 0 .. n - 1 in order already.

    Raises:
        IndexError: An id is not in 0 .. n - 1.
        ValueError: An id is there twice; the message names the lowest such id, and the lowest missing id.
    """
    count = len(ids)
    if counts_up(ids):
        return None
    check_within(where, "ids", ids, count, _REMEDY)
    rows = torch.full((count,), -1)
    rows[ids] = torch.arange(count)
    missing = (rows < 0).nonzero()
    if len(missing) > 0:
        times = torch.bincount(ids, minlength=count)
        double = int((times > 1).nonzero()[0])
        raise ValueError(
            f"{where}: the id {double} occurs {int(times[double])} times, and the id {int(missing[0])} is missing; "
            f"each of 0 .. {count - 1} must occur exactly once. {_REMEDY}"
        )
    return rows


def _in_order(
    name: str, by_type: Mapping[Any, Tensor], counts: Mapping[Any, int], orders: Mapping[Any, Tensor | None]
) -> dict[Any, Tensor]:
    """Return {node type: rows} in the order of the ids, in shared memory. Rows already in order are not copied.

    Args:
        counts: number of nodes of each type.
        orders: {type: the result of `row_order`}.
    Raises:
        ValueError: There is not one row for each node.
    """
    check_rows(_DATASET, name, by_type, counts)
    ordered = {}
    for kind, rows in by_type.items():
        where, order = f"{_DATASET}: {name}{of_type(kind)}", orders[kind]
        shared = rows if order is None else shared_empty(tuple(rows.shape), rows.dtype, where)
        ordered[kind] = rows if order is None else torch.index_select(rows, 0, order, out=shared)
    return ordered


def _check_pairs(name: str, pairs: Tensor, ends: tuple[Any, Any], counts: Mapping[Any, int]) -> None:
    """Check that both ends of each edge are nodes of their types.

    `pairs` is [2, E]: sources in row 0, destinations in row 1. `ends` is (source type, destination type).

    Raises:
        ValueError: No nodes of a type were loaded.
        IndexError: An end is no node of its type.
    """
    check_edge_index(_DATASET, name, pairs)
    for end, ids, node_type in zip(("sources", "destinations"), pairs, ends, strict=True):
        if node_type not in counts:
            raise ValueError(
                f"{_DATASET}: {name}: there are no node_ids{of_type(node_type)}; known are {shown(sorted(counts))}. "
                "Load the nodes of this type too."
            )
        remedy = "Write a record for this node, or leave the edge out."
        check_within(f"{_DATASET}: {name}", f"{end}{of_type(node_type)}", ids, counts[node_type], remedy)
