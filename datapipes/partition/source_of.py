"""What may be partitioned, as a Source: a graph of either kind, a Dataset, PyG's Data and HeteroData.

A Dataset is recognised by its attributes, since datasets/ stands below this folder. PyG's classes are recognised by
their names, so that torch_geometric is not imported to look at something else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.types import NodeType, type_text
from datapipes.features import FeatureStore
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.partition.dataset_source import graph_of_dataset
from datapipes.partition.source import Source

TRAIN_MASK = "train_mask"
_OF_DATASET = ("graph", "features", "train_set", "validation_set", "test_set")


def source_of(data: Any, *, where: str = "Partitioner") -> Source:
    """Return a graph with all that goes into its parts as node and edge attributes. Arrays are shared where possible.

    Args:
        data: one of
            CSCGraph, HeteroCSCGraph: as it is.
            Dataset (an object with graph, features, train_set, validation_set, test_set): its graph. Features become
            node and edge attributes; those of edges, which are looked up by edge id, move to the order of the graph.
            An item set of nodes becomes the node attribute "train_mask", "val_mask" or "test_mask", bool. Labels
            become "y": int64 with -1, or floats with nan, where no item has one. Timestamps become "seed_time" in the
            same way. Masks hold neither the order of the items nor repeats.
            PyG Data or HeteroData: what `from_pyg` of our graphs makes of it.
        where: the caller, named in errors.
    Returns:
        A Source. Its `training_nodes` are the node attributes "train_mask" that are bool [num_nodes]. Its `left_out`
        names what does not go into parts: item sets of links, further fields of items, a training graph of its own.
    Raises:
        TypeError: `data` is something else.
        ValueError: A feature has another number of rows than its type has nodes or edge ids; a feature, mask or label
            has the name of an attribute with other values; items of one node have different labels.
        IndexError: An item is no node of the graph.
    Cost: O(nodes + items). A TensorFeature is viewed, so a mapped one stays mapped; edge features that move, and
        features of other classes, are read into memory in pieces.
    """
    left_out: tuple[str, ...] = ()
    node_types: tuple[Any, ...] | None = None
    edge_types: tuple[Any, ...] | None = None
    kind = _pyg_class(data)
    if isinstance(data, (CSCGraph, HeteroCSCGraph)):
        graph: CSCGraph | HeteroCSCGraph = data
    elif kind == "Data":
        graph, left_out = CSCGraph.from_pyg(data), _not_taken(data)
    elif kind == "HeteroData":
        graph = HeteroCSCGraph.from_pyg(data)
        node_types = _in_order(data.node_types, graph.node_types)
        edge_types = _in_order(data.edge_types, graph.edge_types)
        left_out = _not_taken(data)
    elif _is_dataset(data):
        graph, left_out = graph_of_dataset(where, data)
    else:
        raise TypeError(
            f"{where}: data must be a CSCGraph, a HeteroCSCGraph, a Dataset, or PyG's Data or HeteroData, got "
            f"{type(data).__name__}. Pass one of these."
        )
    training, refused = _training_nodes(graph)
    return Source(
        graph,
        training,
        graph.node_types if node_types is None else node_types,
        graph.edge_types if edge_types is None else edge_types,
        (*left_out, *refused),
    )


def _pyg_class(data: Any) -> str | None:
    """Return "Data" or "HeteroData" for such an object of PyG, or of a class that derives from it; else None."""
    for base in type(data).__mro__:
        if base.__module__.startswith("torch_geometric.data.") and base.__name__ in ("Data", "HeteroData"):
            return base.__name__
    return None


def _is_dataset(data: Any) -> bool:
    if isinstance(data, type) or not all(hasattr(data, name) for name in _OF_DATASET):
        return False
    return isinstance(data.graph, (CSCGraph, HeteroCSCGraph)) and isinstance(data.features, FeatureStore)


def _in_order(given: Any, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types in the order of the HeteroData; types that only its edges name come last."""
    first = tuple(each for each in given if each in known)
    return (*first, *(each for each in known if each not in first))


def _not_taken(data: Any) -> tuple[str, ...]:
    """Return the entries of a Data or HeteroData that `from_pyg` does not take, as words."""
    words = []
    for store in data.stores:
        of = "" if store._key is None else f" of {type_text(store._key)}"
        named = [name for attrs in ("node_attrs", "edge_attrs") for name in getattr(store, attrs, list)()]
        taken = {name for name in named if isinstance(store[name], Tensor)} | {"edge_index", "num_nodes"}
        words += [f"{name!r}{of}, no tensor of its nodes or edges" for name in store if name not in taken]
    return tuple(words)


def _training_nodes(graph: CSCGraph | HeteroCSCGraph) -> tuple[dict[NodeType | None, Tensor], list[str]]:
    """Return the masks of training nodes by type, and words on those that cannot be used as such."""
    found: dict[NodeType | None, Tensor] = {}
    refused = []
    for kind in graph.node_types:
        mask = graph.node_attributes_of(kind).get(TRAIN_MASK)
        if mask is None:
            continue
        if mask.dtype == torch.bool and mask.ndim == 1:
            found[kind] = mask
        else:
            of = "" if kind is None else f" of {shown(kind)}"
            refused.append(
                f"the balance of training nodes{of}, since 'train_mask' is {dtype_name(mask.dtype)} {list(mask.shape)} "
                f"and not bool [{graph.num_nodes_of(kind)}]"
            )
    return found, refused
