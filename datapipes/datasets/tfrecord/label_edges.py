"""Labels of edges as edges of types of their own, as GiGL names them: a step before a sampler walks over labels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from datapipes.base.checks import check_choice
from datapipes.base.types import EdgeType, check_edge_type, type_text
from datapipes.datasets.tfrecord.default_types import DEFAULT_HOMOGENEOUS_EDGE_TYPE, DEFAULT_HOMOGENEOUS_NODE_TYPE
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors
from datapipes.processes.torch_memory import shared_empty

POSITIVE = "_gigl_positive"
NEGATIVE = "_gigl_negative"

_WHERE = "treat_labels_as_edges"
_NODE_FIELDS = ("node_ids", "node_features", "node_labels")
_EDGE_FIELDS = ("edge_features", "edge_weights")


def treat_labels_as_edges(graph: GraphTensors, edge_dir: str) -> None:
    """Turn the labels of `graph` into edges, in place; see LoadedGraphTensors. Nothing changes if it raises."""
    check_choice(_WHERE, "edge_dir", edge_dir, ("in", "out"))
    if graph.positive_label is None:
        raise ValueError(
            f"{_WHERE}: found no positive labels; they are needed. Load the graph with positive_label_entity_info, or "
            "leave this step out."
        )
    edges = _with_types(graph.by_type("edge_index"), DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    own_type = next(iter(edges)) if len(edges) == 1 else None
    for name, ending in (("positive_label", POSITIVE), ("negative_label", NEGATIVE)):
        for given, pairs in graph.by_type(name).items():
            edge_type, index = _label_edges(_type_of_labels(name, given, own_type), ending, pairs, edge_dir)
            if edge_type in edges:
                raise ValueError(
                    f"{_WHERE}: the edge type {type_text(edge_type)} is there already; {name} would replace it. Name "
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
    edge_type = own_type if given is None else check_edge_type(f"{_WHERE}, {name}", given)
    if edge_type is None:
        raise ValueError(
            f"{_WHERE}: {name} is a tensor, and the graph has several edge types; which one it belongs to cannot be "
            "told. Load it as a dict {edge type: tensor}."
        )
    return edge_type


def _label_edges(edge_type: EdgeType, ending: str, pairs: Tensor, edge_dir: str) -> tuple[EdgeType, Tensor]:
    source, relation, target = edge_type
    if edge_dir == "in":  # labels run from the anchor to the target; the edges of such a graph run the other way
        flipped = shared_empty(tuple(pairs.shape), pairs.dtype, _WHERE)  # as what was loaded: workers map it
        flipped[0], flipped[1] = pairs[1], pairs[0]
        return (target, relation + ending, source), flipped
    return (source, relation + ending, target), pairs


def _with_types(given: dict[Any, Tensor], default: Any) -> dict[Any, Tensor]:
    """Return `given` with the type `default` in place of None."""
    return {default if kind is None else kind: tensor for kind, tensor in given.items()}
