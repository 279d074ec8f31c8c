"""LocalFeatureStore: the features of one part's nodes and edges, in a class with the methods of PyG's class."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.futures import Future

from datapipes.base.checks import check_index_tensor, shown
from datapipes.base.types import EdgeType, NodeType
from datapipes.partition.native.part import Part
from datapipes.partition.pyg.pyg_names import EDGE_TIME, TIME
from datapipes.partition.pyg.pyg_read import PygFolder
from datapipes.partition.stores.feature_lookup import FeatureClient, joined
from datapipes.partition.stores.local_store import TensorStore, choose_layout, no_such, owners_of

__all__ = ["LocalFeatureStore"]

_NAME = "LocalFeatureStore"
_Self = TypeVar("_Self", bound="LocalFeatureStore")

EDGES = (None, None)  # the group of edges without types


class LocalFeatureStore(TensorStore):
    """The features of one part's nodes and edges, found by global id.

    Methods and attributes have the names and meaning of PyG's class; torch_geometric is not needed. All ids are ids of
    the whole graph, from 0 in each type; in PyG's class, ids of nodes go on from one type to the next. Attributes may
    have any name, dtype and width.

    Features are kept by group, the type they belong to. A group is a node type or an edge type; in a graph without
    types, it is None for nodes, and (None, None) for edges.

    Args:
        client: the object that requests rows which other parts own; see FeatureClient. None: only this part's rows can
            be had.

    Attributes:
        client: the argument; may also be set later.
        num_partitions: number of parts.
        partition_idx: the id of this part.
        labels: for the user's own use, as in PyG; the store neither sets nor reads it. The labels that a partition
            stores are the attribute "y".
        meta: the content of PyG's META.json; {} if the store was not made from a partition.
    """

    node_feat_pb = owners_of("nodes")
    edge_feat_pb = owners_of("edges")

    def __init__(self, client: FeatureClient | None = None) -> None:
        super().__init__()
        self.client = client
        self.labels: Any = None
        self.meta: dict[str, Any] = {}

    def lookup_features(
        self, index: Tensor, is_node_feat: bool = True, input_type: Any = None, *, attr_name: str | None = None
    ) -> Future[Tensor]:
        """Look up rows by global id, whichever part owns them; return a future of [n, ...], in the order of `index`.

        Rows of this part are read at once. Other rows are requested from their parts by `client`. For an empty `index`
        the answer is [0, ...].

        In PyG's layout, a part without rows of a type has no tensor of this type, so it does not know dtype and width.
        For an empty `index`, it asks the owner of id 0 for these.

        Args:
            index: int32 or int64 [n], in any order, with repeats.
            is_node_feat: True: `index` has ids of nodes; False: of edges.
            input_type: the node type or edge type; None without types.
            attr_name: by default "x" for nodes and "edge_attr" for edges, the only names that PyG's samplers ask for.
                Features of data sets are mostly named "feat": pass this name, or rename the features before
                partitioning, as docs/partition-pyg.md shows.
        Raises:
            KeyError: There is no such tensor; the message says which there are.
            IndexError: An id is outside the graph; the message names one.
            ValueError: There is no such type, or the owner of an id is not known. Or `client` is None, and another part
                owns an id (the message names the part) or alone knows the dtype and width for an empty `index`.
            The future has the errors of other parts.
        """
        name = attr_name if attr_name is not None else ("x" if is_node_feat else "edge_attr")
        ids = check_index_tensor("lookup_features", "index", index).long()
        group = EDGES if input_type is None and not is_node_feat else input_type
        owners = self._owners(ids, is_node_feat, input_type)
        if (group, name) in self.of_all:
            owners = torch.full_like(owners, self.partition_idx)
        places = _places_of_parts(owners)
        own_places = places.pop(self.partition_idx, torch.empty(0, dtype=torch.int64))
        rows = self._own_rows((group, name), ids[own_places])
        if not places and rows is None:
            places = self._where_known((group, name), is_node_feat, input_type)
        if not places:
            assert rows is not None
            result: Future[Tensor] = Future()
            result.set_result(rows)  # `own_places` is 0, 1, ...: the rows are in the order of `index`
            return result
        if self.client is None and ids.shape[0] == 0:
            raise ValueError(
                f"lookup_features: part {self.partition_idx} has no row of {shown(group)}, and so does not know "
                f"dtype and width of {shown(name)}; there is no client that could ask part {next(iter(places))}. Set "
                "store.client."
            )
        if self.client is None:
            part, at = next(iter(places.items()))
            raise ValueError(
                f"lookup_features: the id {int(ids[at[0]])} of {shown(group)} belongs to part {part}; this store has "
                f"part {self.partition_idx}, and no client that could ask. Set store.client."
            )
        attribute = {"is_node_feat": is_node_feat, "input_type": input_type, "attr_name": name}
        return joined(self.client, ids, places, (own_places, rows), **attribute)

    def _where_known(self, key: tuple[Any, Any], is_node_feat: bool, input_type: Any) -> dict[int, Tensor]:
        """Find a part that knows dtype and width of a tensor, for a part that has no rows of the group.

        Return {part: empty int64 tensor}, a request without ids; the part is the owner of id 0.

        Raises:
            KeyError: This part owns id 0, or there are no ids.
        """
        book = self._books["nodes" if is_node_feat else "edges"]
        assert book is not None
        owners = book.nodes(input_type) if is_node_feat else book.edges(input_type)
        part = int(owners.part_of(torch.zeros(1, dtype=torch.int64))) if owners.num_ids > 0 else self.partition_idx
        if part == self.partition_idx:
            raise no_such("lookup_features", "tensor", key, self._feat)
        return {part: torch.empty(0, dtype=torch.int64)}

    def _owners(self, ids: Tensor, is_node_feat: bool, input_type: Any) -> Tensor:
        if is_node_feat:
            return self._book(_NAME, "nodes", "node_feat_pb").get_partition_ids_from_nids(ids, input_type)
        return self._book(_NAME, "edges", "edge_feat_pb").get_partition_ids_from_eids(ids, input_type)

    def _own_rows(self, key: tuple[Any, Any], ids: Tensor) -> Tensor | None:
        """Return the rows of `ids`, which this part owns.

        None: this part has neither the tensor nor ids of the group.
        """
        own_ids = self.get_global_id(key[0])
        if key not in self._feat and (own_ids is None or len(own_ids) == 0) and len(ids) == 0:
            return None
        return self._rows_of_ids(key, ids)

    # --- constructors

    @classmethod
    def from_data(
        cls: type[_Self],
        node_id: Tensor,
        x: Tensor | None = None,
        y: Tensor | None = None,
        edge_id: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> _Self:
        """Make a store of the features of a graph without types.

        Args:
            node_id: the global id of each row of `x` and `y`.
            x, y: features and labels of nodes, [n, ...].
            edge_id: the global id of each row of `edge_attr`.
            edge_attr: features of edges, [m, ...].
        Raises:
            ValueError: `edge_attr` is given without `edge_id`.
        """
        of_edges = {} if edge_id is None else {EDGES: edge_id}
        of_all: tuple[Any, ...] = {None: node_id}, {None: x}, {None: y}, of_edges, {EDGES: edge_attr}
        return cls.from_hetero_data(*of_all)

    @classmethod
    def from_hetero_data(
        cls: type[_Self],
        node_id_dict: Mapping[NodeType, Tensor],
        x_dict: Mapping[NodeType, Tensor] | None = None,
        y_dict: Mapping[NodeType, Tensor] | None = None,
        edge_id_dict: Mapping[EdgeType, Tensor] | None = None,
        edge_attr_dict: Mapping[EdgeType, Tensor] | None = None,
    ) -> _Self:
        """Make a store of the features of a graph with types. Each argument is {type: tensor}; see `from_data`."""
        store, edge_ids = cls(), edge_id_dict or {}
        for group, ids in [*node_id_dict.items(), *edge_ids.items()]:
            store.put_global_id(ids, group)
        of_names: dict[str, Any] = {"x": x_dict, "y": y_dict, "edge_attr": edge_attr_dict}
        for name, by_group in of_names.items():
            for group, values in (by_group or {}).items():
                if values is None:
                    continue
                if name == "edge_attr" and group not in edge_ids:
                    raise ValueError(f"{_NAME}: edge_attr of {shown(group)} has no edge_id, which it needs. Give both.")
                store.put_tensor(values, group, name)
        return store

    @classmethod
    def from_partition(cls: type[_Self], root: str | Path, pid: int, *, client: FeatureClient | None = None) -> _Self:
        """Open part `pid` of the partition in the folder `root`, in the native layout or in PyG's, as a store.

        The native layout is preferred if both are there. Features stay on disk until they are asked for. In PyG's
        layout the attribute "time" has a row for each node of the graph, so any part answers for all nodes.

        Raises:
            FileNotFoundError: There is no partition at `root`, or a file is missing.
            ValueError: There is no such part, or a file is truncated, changed, hostile or of another partition.
        """
        if choose_layout(_NAME, root, cls._layouts) == "native":
            return cls.from_part(Part.open(root, pid), client=client)
        folder, store = PygFolder(root), cls(client)
        by_group: dict[Any, Any] = {**folder.node_features(pid)}
        by_group |= {EDGES if kind is None else kind: values for kind, values in folder.edge_features(pid).items()}
        store._set(folder.meta.num_parts, pid, folder.book, folder.meta.given)
        tensors = []
        for group, features in by_group.items():
            store.put_global_id(features.ids, group)
            tensors += [(name, group, values, False) for name, values in features.of_ids.items()]
            tensors += [(name, group, values, True) for name, values in features.of_all.items()]
        # In the order that PyG's users expect: features, then times, then the rest.
        order = {"x": 0, "edge_attr": 0, TIME: 1, EDGE_TIME: 1}
        for name, group, values, is_of_all in sorted(tensors, key=lambda entry: order.get(entry[0], 2)):
            store.put_tensor(values, group, name)
            store.of_all |= {(group, name)} if is_of_all else set()
        return store

    @classmethod
    def from_part(cls: type[_Self], part: Part, *, client: FeatureClient | None = None) -> _Self:
        """Make a store of an open Part. The store shares the part's memory."""
        store = cls(client)
        store._set_part(part)
        for node_type in part.node_types:
            store._put_all(node_type, part.node_ids(node_type), part.node_attributes_of(node_type))
        for edge_type in part.edge_types:
            relation = part.relation(edge_type)
            store._put_all(EDGES if edge_type is None else edge_type, relation.edge_ids, relation.edge_attributes)
        store.part = part
        return store

    def _put_all(self, group: Any, ids: Tensor, values: Mapping[str, Tensor]) -> None:
        self.put_global_id(ids, group)
        for name, rows in values.items():
            self.put_tensor(rows, group, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(part {self.partition_idx} of {self.num_partitions}, {len(self._feat)} tensors)"


def _places_of_parts(owners: Tensor) -> dict[int, Tensor]:
    """Return {part: the positions in `owners` that have this part, int64, ascending}; parts without one are missing."""
    counts = torch.bincount(owners)
    places = torch.argsort(owners, stable=True).split(counts.tolist())  # type: ignore[no-untyped-call]
    return {part: of_part for part, of_part in enumerate(places) if of_part.shape[0] > 0}
