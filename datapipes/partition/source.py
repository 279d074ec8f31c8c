"""Source: a graph that is to be partitioned, with all data for its parts as node and edge attributes.

`source_of` makes a Source of any data that Partitioner takes: a graph with or without types, a Dataset, or PyG's Data
or HeteroData. A Dataset is recognised by its attributes, since this folder may not import datasets/. PyG's classes are
recognised by their names, so that torch_geometric is not imported for other data.

The features, masks and labels of a Dataset become attributes. An item set of nodes becomes a mask. The labels of all
item sets become one tensor with a row for each node, and so do the times. So neither the order of the items nor repeats
are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes.base.array_digest import array_digest
from datapipes.base.checks import check_within, dtype_name, shown
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, NodeType, of_type, type_text
from datapipes.features import Feature, FeatureStore, SparseFeature, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.seeds import HeteroItemSet, ItemSet

TRAIN_MASK = "train_mask"  # the node attribute that marks training nodes
_PIECE_BYTES = 2**24  # of rows that are read or compared at a time
_MASKS = {"train_set": TRAIN_MASK, "validation_set": "val_mask", "test_set": "test_mask"}
_VALUES = {"labels": "y", "timestamps": "seed_time"}
_OF_DATASET = ("graph", "features", *_MASKS)


@dataclass(frozen=True, eq=False)
class Source:
    """A graph that is to be partitioned.

    Attributes:
        graph: the graph, with all data for the parts as node and edge attributes.
        training_nodes: {node type: bool [num_nodes]}, the masks of training nodes; types without such a mask are
            missing.
        node_types, edge_types: the types in the order in which they were given. PyG's layout numbers all nodes and
            edges in this order.
        left_out: texts that name the given data that does not go into the parts.
    """

    graph: CSCGraph | HeteroCSCGraph
    training_nodes: Mapping[NodeType | None, Tensor]
    node_types: tuple[NodeType | None, ...]
    edge_types: tuple[EdgeType | None, ...]
    left_out: tuple[str, ...] = ()


def source_of(data: Any, *, where: str = "Partitioner") -> Source:
    """Convert `data` to a Source: a graph with all data for its parts as attributes. Arrays are shared if possible.

    Args:
        data: a graph, PyG's Data or HeteroData, or a Dataset. A CSCGraph or HeteroCSCGraph is taken as it is. PyG's
            Data or HeteroData becomes the graph of `from_pyg`. A Dataset (an object with graph, features, train_set,
            validation_set, test_set) becomes its graph with further attributes. Its features become node and edge
            attributes; row i of an edge feature belongs to edge id i, and goes to the position of this edge in the
            graph. An item set of nodes becomes the bool node attribute "train_mask", "val_mask" or "test_mask". Labels
            become "y"; a node without a label gets -1 (int64) or nan (floats). Timestamps become "seed_time" in the
            same way. The order of items, and repeats, are lost.
        where: the caller, named in errors.
    Returns:
        A Source. Its `training_nodes` are the node attributes "train_mask" that are bool [num_nodes]. Its `left_out`
        names the data that goes into no part: item sets of links, further fields of items, a training graph other than
        the graph, further tasks.
    Raises:
        TypeError: `data` is something else, or a feature is a SparseFeature.
        ValueError: A feature has another number of rows than its type has nodes or edge ids; a feature, mask or label
            has the name of an attribute with other values; items of one node have different labels.
        IndexError: An item is no node of the graph.
    Cost: time O(nodes + items). A TensorFeature is viewed, so a mapped one stays mapped. Features of other classes are
    read into memory, in pieces. So are edge features whose rows are not in the order of the graph's edges.
    """
    left_out: tuple[str, ...] = ()
    pyg_class = _pyg_class(data)
    if isinstance(data, (CSCGraph, HeteroCSCGraph)):
        graph: CSCGraph | HeteroCSCGraph = data
    elif pyg_class is not None:
        graph = CSCGraph.from_pyg(data) if pyg_class == "Data" else HeteroCSCGraph.from_pyg(data)
        left_out = _not_taken(data)
    elif _is_dataset(data):
        graph, left_out = graph_of_dataset(where, data)
    else:
        raise TypeError(
            f"{where}: data must be a CSCGraph, a HeteroCSCGraph, a Dataset, or PyG's Data or HeteroData, got "
            f"{type(data).__name__}. Pass one of these."
        )
    training, refused = _training_nodes(graph)
    is_hetero = pyg_class == "HeteroData"
    node_types = _in_order(data.node_types if is_hetero else (), graph.node_types)
    edge_types = _in_order(data.edge_types if is_hetero else (), graph.edge_types)
    return Source(graph, training, node_types, edge_types, (*left_out, *refused))


def _pyg_class(data: Any) -> str | None:
    """Return "Data" or "HeteroData" if `data` is of this class of PyG, or of a class derived from it.

    None: it is of neither.
    """
    for base in type(data).__mro__:
        if base.__module__.startswith("torch_geometric.data.") and base.__name__ in ("Data", "HeteroData"):
            return base.__name__
    return None


def _is_dataset(data: Any) -> bool:
    if isinstance(data, type) or not all(hasattr(data, name) for name in _OF_DATASET):
        return False
    return isinstance(data.graph, (CSCGraph, HeteroCSCGraph)) and isinstance(data.features, FeatureStore)


def _in_order(first: Any, types: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `types`, those of a graph, in the order in which PyG's HeteroData lists them, `first`.

    Types that `first` lacks come last: node types that only edge types name.
    """
    return tuple(dict.fromkeys((*(name for name in first if name in types), *types)))


def _not_taken(data: Any) -> tuple[str, ...]:
    """Return texts that name the entries of PyG's Data or HeteroData that `from_pyg` leaves out of the graph."""
    words = []
    for store in data.stores:
        named = [name for attrs in ("node_attrs", "edge_attrs") for name in getattr(store, attrs, list)()]
        taken = {name for name in named if isinstance(store[name], Tensor)} | {"edge_index", "num_nodes"}
        words += [
            f"{name!r}{of_type(store._key)}, no tensor of its nodes or edges" for name in store if name not in taken
        ]
    return tuple(words)


def _training_nodes(graph: CSCGraph | HeteroCSCGraph) -> tuple[dict[NodeType | None, Tensor], list[str]]:
    """Return (masks, texts): {node type: mask of its training nodes}, and texts on masks that cannot be used."""
    masks: dict[NodeType | None, Tensor] = {}
    refused = []
    for kind in graph.node_types:
        mask = graph.node_attributes_of(kind).get(TRAIN_MASK)
        if mask is None:
            continue
        if mask.dtype == torch.bool and mask.ndim == 1:
            masks[kind] = mask
        else:
            refused.append(
                f"the balance of training nodes{of_type(kind)}, since 'train_mask' is {dtype_name(mask.dtype)} "
                f"{list(mask.shape)} and not bool [{graph.num_nodes_of(kind)}]"
            )
    return masks, refused


def graph_of_dataset(where: str, data: Any) -> tuple[CSCGraph | HeteroCSCGraph, tuple[str, ...]]:
    """Return (graph, left_out) for a Dataset, as `source_of` describes.

    graph: has the features and item sets as attributes. left_out: texts that name the data that was left out.
    """
    graph = data.graph
    nodes = {kind: dict(graph.node_attributes_of(kind)) for kind in graph.node_types}
    edges = {kind: dict(graph.relation(kind).edge_attributes) for kind in graph.edge_types}
    for (domain, kind, name), feature in data.features.items():
        attributes: Any = nodes if domain == "node" else edges
        if kind not in attributes:
            types = [None if key is None else type_text(key) for key in attributes]
            raise ValueError(
                f"{where}: the {domain} feature {name!r} is of the type {kind!r}, which the graph does not have; it "
                f"has {types}. Correct the key in the feature store."
            )
        text = f"the {domain} feature {name!r}{of_type(kind)}"
        rows = _rows_of(where, text, graph, domain, kind, feature)
        if not _equal(attributes[kind].setdefault(name, rows), rows):
            raise ValueError(
                f"{where}: {text} has the name of a {domain} attribute of the graph with other values. Rename one of "
                "them."
            )
    counts = {kind: graph.num_nodes_of(kind) for kind in graph.node_types}
    left_out = attributes_of_items(where, {name: getattr(data, name) for name in _MASKS}, counts, nodes)
    is_made_later = hasattr(data, "_make_training_graph")  # and then it differs
    if is_made_later or getattr(data, "training_graph", None) not in (None, graph):
        left_out.append("training_graph, which differs from graph")
    if getattr(data, "node_names", None):
        left_out.append("node_names")
    left_out += [f"the task {shown(task.metadata.get('name'))}" for task in getattr(data, "tasks", ())[1:]]
    whole: CSCGraph | HeteroCSCGraph = graph._of(graph._arrays()._replace(node_attributes=nodes, edge_attributes=edges))
    return whole, tuple(left_out)


def _rows_of(where: str, text: str, graph: Any, domain: str, kind: Any, feature: Feature) -> Tensor:
    """Return the rows of a feature in the order in which the graph stores attributes: by node id, or by position of the
    edge.

    The feature stores rows of edges by edge id, so they are reordered. `text` names the feature in errors.
    """
    if isinstance(feature, SparseFeature):
        raise TypeError(
            f"{where}: {text} is a SparseFeature; parts hold dense rows. Leave it out of the feature store here, and "
            "fetch it where minibatches are used."
        )
    ids = None if domain == "node" else graph.relation(kind).edge_ids
    count = graph.num_nodes_of(kind) if domain == "node" else graph.max_edge_id_of(kind) + 1
    if feature.count != count:
        raise ValueError(
            f"{where}: {text} has {feature.count} rows for {count} {'nodes' if domain == 'node' else 'edge ids'}; it "
            "must have one row for each. Check that it belongs to this graph."
        )
    if isinstance(feature, TensorFeature) and feature.stored_as is None and (ids is None or counts_up(ids)):
        return feature.tensor
    return _read(where, text, feature, torch.arange(count) if ids is None else ids)


def counts_up(ids: Tensor) -> bool:
    """Return whether `ids` are 0, 1, 2, ... in this order. They are read in pieces."""
    return all(
        bool(torch.equal(piece, torch.arange(begin, begin + piece.shape[0]))) for begin, piece in _pieces(ids, 8)
    )


def _read(where: str, text: str, feature: Feature, ids: Tensor) -> Tensor:
    """Read the rows of a feature at `ids`, in pieces, into a new tensor.

    Raises:
        MemoryError: The tensor exceeds the memory that is left.
    """
    row_bytes = math.prod(feature.shape) * torch.empty(0, dtype=feature.dtype).element_size()
    check_memory(where, text, int(ids.shape[0]) * row_bytes, "Its rows must fit into memory.")
    rows = torch.empty((ids.shape[0], *feature.shape), dtype=feature.dtype)
    for begin, piece in _pieces(ids, row_bytes):
        rows[begin : begin + piece.shape[0]] = feature.read(piece)
    return rows


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits. Two views of the same memory are not read."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    is_same = (one.data_ptr(), one.stride()) == (other.data_ptr(), other.stride())
    return is_same or array_digest(one) == array_digest(other)


def _pieces(rows: Tensor, row_bytes: int) -> Iterator[tuple[int, Tensor]]:
    count = max(_PIECE_BYTES // max(row_bytes, 1), 1)
    for begin in range(0, rows.shape[0], count):
        yield begin, rows[begin : begin + count]


def attributes_of_items(
    where: str, item_sets: Mapping[str, Any], num_nodes: Mapping[Any, int], attributes: dict[Any, dict[str, Tensor]]
) -> list[str]:
    """Turn the item sets of a Dataset into node attributes (masks, labels, times); return texts on items left out.

    Args:
        item_sets: {name: items}, with the names "train_set", "validation_set" and "test_set".
        num_nodes: {node type: number of nodes}.
        attributes: {node type: {name: rows}}, to which the new attributes are added. One that exists already must agree
            with the items.
    """
    left_out: list[str] = []
    of_nodes: dict[str, dict[Any, ItemSet]] = {}
    for name in _MASKS:
        items = item_sets[name]
        sets: dict[Any, ItemSet] = items.item_sets if isinstance(items, HeteroItemSet) else {None: items}
        if len(items) == 0 and {*sets} == {None} and None not in attributes:
            sets = {}  # an empty set of a graph with types may name no type
        if any(isinstance(kind, tuple) or nodes.seeds_shape != () for kind, nodes in sets.items()):
            left_out.append(f"{name}, {len(items)} links")
        else:
            of_nodes[name] = sets
    for kind in sorted({kind for sets in of_nodes.values() for kind in sets}, key=lambda kind: kind or ""):
        if kind not in attributes:
            raise ValueError(
                f"{where}: an item set has the node type {shown(kind)}; the graph has {list(attributes)}. Correct the "
                "item sets."
            )
        _Items(where, kind, num_nodes[kind], attributes[kind], left_out).add(of_nodes)
    return left_out


class _Items:
    """Turns the items of one node type into node attributes: `add` puts masks, labels and times into `attributes`."""

    def __init__(
        self, where: str, kind: Any, num_nodes: int, attributes: dict[str, Tensor], left_out: list[str]
    ) -> None:
        self.where, self.kind, self.num_nodes = where, kind, num_nodes
        self.attributes, self.left_out = attributes, left_out
        self.of = of_type(kind)

    def add(self, of_nodes: dict[str, dict[Any, ItemSet]]) -> None:
        """Add a mask for each item set, then the labels and the times of all item sets.

        `of_nodes` is {name of the item set: {node type: items}}.
        """
        values: dict[str, list[tuple[str, Tensor, Tensor]]] = {name: [] for name in _VALUES}
        for name, sets in of_nodes.items():
            fields: dict[str, Tensor] = {"seeds": torch.empty(0, dtype=torch.int64)}
            if self.kind in sets:
                items = sets[self.kind]
                fields = items.take(torch.arange(len(items)))
            ids = fields.pop("seeds").long()
            remedy = "Check that the items belong to this graph."
            check_within(self.where, f"nodes{self.of} in {name}", ids, self.num_nodes, remedy)
            mask = torch.zeros(self.num_nodes, dtype=torch.bool)
            mask[ids] = True
            if int(mask.sum()) < ids.shape[0]:
                self.left_out.append(f"{name}{self.of}, items of a node that has one: {ids.shape[0] - int(mask.sum())}")
            self._add(name, _MASKS[name], mask, torch.ones_like(mask))
            for field, rows in fields.items():
                if field in _VALUES:
                    values[field].append((name, ids, rows))
                else:
                    self.left_out.append(f"{name}{self.of}, the field {field!r}")
        for field, of_sets in values.items():
            if of_sets:
                self._add(field, _VALUES[field], *self._joined(field, of_sets))

    def _joined(self, field: str, of_sets: list[tuple[str, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Join the values that several item sets have in `field`, such as labels; return (rows, has_value).

        rows: a row for each node. has_value: bool [num_nodes], whether an item gives the node's row. `of_sets` has a
        tuple (name of the item set, node ids, rows) for each item set.
        """
        shapes = {name: tuple(rows.shape[1:]) for name, _, rows in of_sets}
        if len(set(shapes.values())) > 1:
            raise ValueError(
                f"{self.where}: {field}{self.of} have rows of different shapes, {shapes}; one tensor must hold them "
                "all. Give them one shape."
            )
        dtype = of_sets[0][2].dtype
        for _, _, rows in of_sets:
            dtype = torch.promote_types(dtype, rows.dtype)
        has_nan = dtype.is_floating_point or dtype.is_complex
        dtype, missing = (dtype, float("nan")) if has_nan else (torch.int64, -1)
        joined = torch.full((self.num_nodes, *of_sets[0][2].shape[1:]), missing, dtype=dtype)
        has_value = torch.zeros(self.num_nodes, dtype=torch.bool)
        for _, ids, rows in of_sets:
            joined[ids] = rows.to(dtype)
            has_value[ids] = True
        for name, ids, rows in of_sets:  # a row that another item has overwritten differs now
            place = _first_difference(rows.to(dtype), joined[ids])
            if place is not None:
                node = int(ids[place])
                other = next(other for other, ids, _ in reversed(of_sets) if bool((ids == node).any()))
                raise ValueError(
                    f"{self.where}: the items of node {node}{self.of} have different {field}, "
                    f"{shown(rows[place].tolist())} in {name} and {shown(joined[node].tolist())} in {other}. Give each "
                    "node one value, or partition the graph alone."
                )
        return joined, has_value

    def _add(self, field: str, name: str, rows: Tensor, has_value: Tensor) -> None:
        """Add `rows` as the attribute `name`.

        If the attribute exists, check that it equals `rows` where `has_value` is True.

        Raises:
            ValueError: It differs.
        """
        attribute = self.attributes.setdefault(name, rows)
        if attribute is rows:
            return
        agrees = attribute.shape == rows.shape and _kind(attribute.dtype) == _kind(rows.dtype)
        ids = has_value.nonzero().flatten()
        if not agrees or _differ(attribute[ids], rows[ids]):
            raise ValueError(
                f"{self.where}: the {field}{self.of} of the data set would become the node attribute {name!r}, but the "
                "graph has an attribute or feature of this name with other values. Rename or drop that one."
            )


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype == torch.bool else "complex" if dtype.is_complex else "real"


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors differ in any value. Both are bool, or real, or complex.

    They are compared in both dtypes, since neither dtype may hold the values of both exactly.
    """
    converted = one.to(other.dtype)
    return (
        _first_difference(converted, other) is not None or _first_difference(converted.to(one.dtype), one) is not None
    )


def _first_difference(one: Tensor, other: Tensor) -> int | None:
    """Return the first row in which two tensors of one dtype differ; nan equals nan. None: they are equal."""
    differs = (one != other) & ~((one != one) & (other != other))
    rows = differs[:, None].flatten(1).any(dim=1).nonzero()
    return int(rows[0]) if rows.numel() > 0 else None
