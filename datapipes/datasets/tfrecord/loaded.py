"""LoadedGraphTensors: a graph as it was loaded from TFRecords, and what can be made of it."""

from __future__ import annotations

from dataclasses import dataclass

from datapipes.datasets.tfrecord import label_edges
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors

__all__ = ["LoadedGraphTensors"]


@dataclass(eq=False)
class LoadedGraphTensors(GraphTensors):
    """The tensors of a graph, in the order of its files; fields and their order are those of GiGL.

    A field of a graph without types is a tensor. A field of a graph with types is a dict by type that holds only the
    types that have it: node types are str, edge types (src, rel, dst). A field that nothing has is None. Fields may be
    set to None, to let go of memory.

    Args:
        node_ids: int64 [n]. Ids of nodes, in the order of the records, which need not be 0 .. n - 1.
        node_features: [n, feature_dim], row i belongs to node_ids[i]; float32 unless the entity asks otherwise.
        node_labels: [n, number of label keys], int64 or float32.
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
