"""LoadedGraphTensors: a graph as it was loaded from TFRecords, and what can be made of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from datapipes.datasets.dataset import Dataset
from datapipes.datasets.tfrecord import label_edges
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors
from datapipes.datasets.tfrecord.to_dataset import to_dataset
from datapipes.datasets.tfrecord.to_partition import to_partition
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
        label_edges.treat_labels_as_edges(self, edge_dir)

    def to_dataset(self, name: str = "tfrecords") -> Dataset:
        """Return the graph as a Dataset, as `dp.datasets.open` returns one: graph, features and a task.

        The graph is a CSCGraph, or a HeteroCSCGraph where there are types; in-edges keep the order of the records, and
        the id of an edge is its place in `edge_index`. Weights are the edge attribute "weight". Features are called
        "feat", for nodes and for edges.

        The task is the first of these that the graph has:
          * "node_classification": labels are whole numbers. `train_set` has the nodes with labels >= 0 in all columns,
            with labels [n], or [n, k] of k columns.
          * "node_regression": labels are float32; `train_set` has the nodes without NaN.
          * "link_prediction": `train_set` has the positive pairs, [n, 2]. Where there are negative ones too, they
            follow, and labels are 1 for positive pairs and 0 for negative ones.
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
