"""LoadedGraphTensors: a graph as it was loaded from TFRecords, and what can be made of it.

Labels of edges become edges of types of their own, as GiGL names them. A Dataset has rows in the order of the ids, the
graph by destination, features, and a task. Its node ids are 0 .. n - 1, each once, and both ends of each edge are among
them. Anything else is refused with what was found, since a gap would become a node that nobody has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_choice, check_edge_index, shown
from datapipes.base.types import EdgeType, check_edge_type, ends_of, type_text
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.tfrecord.graph_tensors import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    GraphTensors,
    field_text,
)
from datapipes.datasets.tfrecord.tasks import task_of
from datapipes.datasets.tfrecord.to_partition import to_partition
from datapipes.datasets.tfrecord.torch_memory import shared_empty
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.partition.report import PartitionReport

__all__ = ["LoadedGraphTensors"]


@dataclass(eq=False, repr=False)
class LoadedGraphTensors(GraphTensors):
    """The tensors of a graph, in the order of its files; fields and their order are those of GiGL.

    A field of a graph without types is a tensor. A field of a graph with types is a dict by type that holds only the
    types that have it: node types are str, edge types (src, rel, dst). A field that nothing has is None. Fields may be
    set to None, to let go of memory.

    Args:
        node_ids: int64 [n]. Ids of nodes, in the order of the records, which need not be 0 .. n - 1.
        node_features: [n, feature_dim], row i belongs to node_ids[i]; float32 unless the entity asks otherwise.
        node_labels: [n, columns of all label keys], int64 or float32.
        edge_index: int64 [2, E]; row 0 has the sources, row 1 the destinations.
        edge_features: [E, feature_dim], without the column that became a weight.
        positive_label, negative_label: int64 [2, number of labels], pairs from an anchor to its target.
        edge_weights: float32 [E], the feature that `weight_edge_feat_name` names.
        node_quantized_features, edge_quantized_features: always None; quantized features are refused when they are
            loaded.
    """

    def treat_labels_as_edges(self, edge_dir: str) -> None:
        """Turn positive and negative labels into edges of types of their own, in place.

        All fields become dicts by type. A graph without types gets DEFAULT_HOMOGENEOUS_NODE_TYPE and
        DEFAULT_HOMOGENEOUS_EDGE_TYPE. Labels of (src, rel, dst) become the edge type (src, rel + "_gigl_positive", dst)
        or (src, rel + "_gigl_negative", dst). Both label fields are None afterwards.

        Args:
            edge_dir: "out": labels keep their direction, from anchor to target. "in": the type is reversed to (dst,
                ..., src) and the rows change places, so that a sampler that follows in-edges finds targets from
                anchors. This copies the labels.
        Raises:
            ValueError: There are no positive labels; labels are a tensor where the graph has several edge types; an
                edge type of that name is there already. Then nothing has changed.
        """
        treat_labels_as_edges(self, edge_dir)

    def to_dataset(self, name: str = "tfrecords") -> Dataset:
        """Return the graph as a Dataset, as `dp.datasets.open` returns one: graph, features and a task.

        The graph is a CSCGraph, or a HeteroCSCGraph where there are types; in-edges keep the order of the records, and
        the id of an edge is its place in `edge_index`. Weights are the edge attribute "weight". Features are called
        "feat", for nodes and for edges.

        The task is the first of these that the graph has:

        * "node_classification": labels are whole numbers. `train_set` has the nodes with labels >= 0 in all columns,
          with labels [n], or [n, k] of k columns.
        * "node_regression": labels are float32; `train_set` has the nodes without NaN.
        * "link_prediction": `train_set` has the positive pairs, [n, 2]. Where there are negative ones too, they follow,
          and labels are 1 for positive pairs and 0 for negative ones.
        * "all_nodes": `train_set` has all nodes, without labels.

        The other two sets are empty; `Dataset.with_validation` cuts one.

        Args:
            name: the name of the data set, for messages.
        Returns:
            Rows of nodes are in the order of their ids. Where `node_ids` are in order, features and labels are those of
            this object, not copies; otherwise they are copied into shared memory. O(nodes + edges).
        Raises:
            ValueError: Node ids of a type are not 0 .. n - 1, each once, in any order; an edge or a label ends at no
                node; or this is the share of one of several ranks: call `to_partition` then.
            MemoryError: Too little memory is left for the graph.
        """
        return to_dataset(self, name)

    def to_partition(self, root: str | Path, *, rank_timeout_s: float = 60.0) -> PartitionReport:
        """Write the graph of all ranks as a partition with a part for each rank; all ranks call it together.

        The folder is that which `Partitioner(data, world size, root, method="range", layouts=("native",))` would write
        of `data = to_dataset()`, had one process loaded the files of all ranks: `Part.open` and `DistGraph.connect`
        take it, minibatches have the same bits. An edge's id is its position among the edges of all ranks, those of
        rank 0 first. The tensors stay as they are; labels of edges stay with the ranks, in no part.

        Each rank needs the default process group of torch.distributed, of any backend. A process alone may do without.
        Ranks that see the same `root` write one folder; where each machine has a disk of its own, each gets a folder
        with the parts of its ranks. A folder appears whole or not at all, once all ranks have written all; an older
        partition is replaced.

        Cost: every value is sent to its owner once, sources of edges twice, in windows of 16 MiB. Memory beside the
        tensors: a few windows; 16 bytes for each node and each edge, twice that while they are sorted; 4 bytes for each
        node of all ranks. O(n log n).

        Args:
            rank_timeout_s: after so many seconds without a sign of life a rank is taken for dead; also the bound on how
                late a rank may come.
        Returns:
            What the parts look like, the same on all ranks.
        Raises:
            ValueError: Node ids have gaps or repeats, an edge has an end that is no node, or ranks have features of
                other forms; the message names rank and id.
            FileExistsError: `root` holds something that is not of a partition.
            OSError: The disk is full, or the folder cannot be written.
            TFRecordLoadError: Another rank has failed, has ended, or did not come. `failed_ranks` has its reason.
        """
        return to_partition(self, root, rank_timeout_s)


_POSITIVE = "_gigl_positive"
_NEGATIVE = "_gigl_negative"

_LABELS = "treat_labels_as_edges"
_NODE_FIELDS = ("node_ids", "node_features", "node_labels")
_EDGE_FIELDS = ("edge_features", "edge_weights")


def treat_labels_as_edges(graph: GraphTensors, edge_dir: str) -> None:
    """Turn the labels of `graph` into edges, in place; see LoadedGraphTensors. Nothing changes if it raises."""
    check_choice(_LABELS, "edge_dir", edge_dir, ("in", "out"))
    if graph.positive_label is None:
        raise ValueError(
            f"{_LABELS}: found no positive labels; they are needed. Load the graph with positive_label_entity_info, or "
            "leave this step out."
        )
    edges = _with_types(graph.by_type("edge_index"), DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    own_type = next(iter(edges)) if len(edges) == 1 else None
    for name, ending in (("positive_label", _POSITIVE), ("negative_label", _NEGATIVE)):
        for given, pairs in graph.by_type(name).items():
            edge_type, index = _label_edges(_type_of_labels(name, given, own_type), ending, pairs, edge_dir)
            if edge_type in edges:
                raise ValueError(
                    f"{_LABELS}: the edge type {type_text(edge_type)} is there already; {name} would replace it. Name "
                    "the relation otherwise, or call this once."
                )
            edges[edge_type] = index
    for name in _NODE_FIELDS:
        setattr(graph, name, _with_types(graph.by_type(name), DEFAULT_HOMOGENEOUS_NODE_TYPE) or None)
    for name in _EDGE_FIELDS:
        setattr(graph, name, _with_types(graph.by_type(name), DEFAULT_HOMOGENEOUS_EDGE_TYPE) or None)
    graph.edge_index = edges
    graph.positive_label = graph.negative_label = None


def _type_of_labels(name: str, given: Any, own_type: EdgeType | None) -> EdgeType:
    """Return the edge type that labels are given for; labels without a type belong to the only one."""
    edge_type = own_type if given is None else check_edge_type(f"{_LABELS}, {name}", given)
    if edge_type is None:
        raise ValueError(
            f"{_LABELS}: {name} is a tensor, and the graph has several edge types; which one it belongs to cannot be "
            "told. Load it as a dict {edge type: tensor}."
        )
    return edge_type


def _label_edges(edge_type: EdgeType, ending: str, pairs: Tensor, edge_dir: str) -> tuple[EdgeType, Tensor]:
    source, relation, target = edge_type
    if edge_dir == "in":  # labels run from the anchor to the target; the edges of such a graph run the other way
        flipped = shared_empty(tuple(pairs.shape), pairs.dtype, _LABELS)  # as what was loaded: workers map it
        flipped[0], flipped[1] = pairs[1], pairs[0]
        return (target, relation + ending, source), flipped
    return (source, relation + ending, target), pairs


def _with_types(given: dict[Any, Tensor], default: Any) -> dict[Any, Tensor]:
    """Return `given` with the type `default` in place of None."""
    return {default if kind is None else kind: tensor for kind, tensor in given.items()}


_DATASET = "to_dataset"
FEATURE, WEIGHT = "feat", "weight"  # the names of features and of weights


def to_dataset(graph: GraphTensors, name: str) -> Dataset:
    """See LoadedGraphTensors.to_dataset."""
    if graph._num_ranks > 1:
        raise ValueError(
            f"{_DATASET}: this is the share of rank {graph._rank} of {graph._num_ranks}, not a whole graph. Call "
            "to_partition(root) on all ranks, and open the parts with DistGraph; or load with "
            "TFRecordDataLoader(0, 1)."
        )
    nodes, edges = graph.by_type("node_ids"), graph.by_type("edge_index")
    for field, given in (("node_ids", graph.node_ids), ("edge_index", graph.edge_index)):
        if given is None:
            raise ValueError(f"{_DATASET}: {field} is None, it was let go of. Make the data set first, or load again.")
    graph.refuse_mixed_types(_DATASET)
    orders = {kind: row_order(f"{_DATASET}: {field_text('node_ids', kind)}", ids) for kind, ids in nodes.items()}
    counts = {kind: len(ids) for kind, ids in nodes.items()}
    for field in ("edge_index", "positive_label", "negative_label"):
        for kind, pairs in graph.by_type(field).items():
            check_edge_index(_DATASET, field_text(field, kind), pairs)
            _check_pairs(f"{_DATASET}: {field_text(field, kind)}", pairs, ends_of(kind), counts)
    rows = {
        field: {
            kind: _rows_in_order(f"{_DATASET}: {field_text(field, kind)}", tensor, counts.get(kind), orders.get(kind))
            for kind, tensor in graph.by_type(field).items()
        }
        for field in ("node_features", "node_labels")
    }
    features: dict[Any, TensorFeature] = {
        ("node", kind, FEATURE): TensorFeature(tensor) for kind, tensor in rows["node_features"].items()
    }
    features.update(
        {("edge", kind, FEATURE): TensorFeature(tensor) for kind, tensor in graph.by_type("edge_features").items()}
    )
    task = task_of(
        _DATASET, counts, rows["node_labels"], graph.by_type("positive_label"), graph.by_type("negative_label")
    )
    return Dataset(
        name=name,
        graph=_graph_of(edges, counts, graph.by_type("edge_weights")),
        features=FeatureStore(features),
        train_set=task.items,
        validation_set=task.no_items,
        test_set=task.no_items,
        num_classes=task.num_classes,
        class_names=tuple(map(str, range(task.num_classes))),
        task=task.name,
    )


def _graph_of(
    edges: Mapping[Any, Tensor], counts: dict[Any, int], weights: Mapping[Any, Tensor]
) -> CSCGraph | HeteroCSCGraph:
    attributes = {kind: {WEIGHT: each} for kind, each in weights.items()}
    if None in edges:
        return CSCGraph.from_edge_index(edges[None], counts[None], edge_attributes=attributes.get(None))
    return HeteroCSCGraph.from_edge_index(edges, counts, edge_attributes=attributes)


PIECE = 2**22  # ids that are compared at once, so that the memory for it stays small

_REMEDY = "Number the nodes from 0 on, without gaps, when the records are written."


def row_order(where: str, ids: Tensor) -> Tensor | None:
    """Return the row of each id: int64 [n], row[i] is the place of id i in `ids`; None if ids are 0 .. n - 1 in order.

    Raises:
        ValueError: An id is outside, missing or there twice; the message names the first.
    """
    count = len(ids)
    if all(
        torch.equal(ids[begin : begin + PIECE], torch.arange(begin, min(begin + PIECE, count)))
        for begin in range(0, count, PIECE)
    ):
        return None
    outside = ids[(ids < 0) | (ids >= count)]
    if len(outside) > 0:
        raise ValueError(
            f"{where}: found the id {int(outside[0])} among {count} ids; they must be 0 .. {count - 1}, each once. "
            f"{_REMEDY}"
        )
    rows = torch.full((count,), -1)
    rows[ids] = torch.arange(count)
    missing = (rows < 0).nonzero()
    if len(missing) > 0:
        times = torch.bincount(ids, minlength=count)
        double = int((times > 1).nonzero()[0])
        raise ValueError(
            f"{where}: found the id {double} {int(times[double])} times, and the id {int(missing[0])} not at all; all "
            f"of 0 .. {count - 1} must be there once. {_REMEDY}"
        )
    return rows


def _rows_in_order(where: str, tensor: Tensor, count: int | None, order: Tensor | None) -> Tensor:
    """Return the rows of nodes in the order of their ids, in shared memory; `tensor` itself if they are so already.

    Args:
        count: number of nodes; None if there is no such type.
        order: of `row_order`.
    Raises:
        ValueError: There is not one row for each node.
    """
    if count is None or tensor.ndim == 0 or len(tensor) != count:
        found = "a type without node_ids" if count is None else f"shape {list(tensor.shape)} for {count} nodes"
        raise ValueError(f"{where}: found {found}; one row for each of the node_ids is needed. Load both together.")
    if order is None:
        return tensor
    return torch.index_select(tensor, 0, order, out=shared_empty(tuple(tensor.shape), tensor.dtype, where))


def _check_pairs(where: str, pairs: Tensor, ends: tuple[Any, Any], counts: Mapping[Any, int]) -> None:
    """Refuse pairs [2, E], sources in row 0 and destinations in row 1, whose ends are no nodes of their types.

    Raises:
        ValueError: The message names the first edge that is wrong.
    """
    for row, kind in zip(pairs, ends, strict=True):
        of = "" if kind is None else f" of {kind!r}"
        if kind not in counts:
            raise ValueError(f"{where}: there are no node_ids{of}; known are {shown(sorted(counts))}. Load these too.")
        if len(row) == 0 or (int(row.min()) >= 0 and int(row.max()) < counts[kind]):
            continue
        edge = int(((row < 0) | (row >= counts[kind])).nonzero()[0])
        raise ValueError(
            f"{where}: edge {edge} is {int(pairs[0, edge])} -> {int(pairs[1, edge])}, and there is no node "
            f"{int(row[edge])}{of}; they are 0 .. {counts[kind] - 1}. Write a record for it, or leave the edge out."
        )
