"""A part from the two stores that PyG's users have in memory: its arrays, and the names that all parts give together.

The in-edges of a node ascend by edge id, and where a time attribute is named by time, then edge id. A graph that one
machine builds of the same columns has these orders, so parts draw the same bits. Stores that have them are not copied.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.array_digest import array_digest
from datapipes.base.checks import check_index_tensor, check_int, dtype_from_name, dtype_name, shown
from datapipes.base.types import ends_of, of_type, type_text
from datapipes.graph.arena import Place
from datapipes.graph.graph import EarliestNode
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import MOST_PARTS, RangeMap
from datapipes.partition.native.manifest import Manifest
from datapipes.partition.native.native_book import partition_id_of
from datapipes.partition.native.native_header import Identity
from datapipes.partition.native.own_rows import OwnRows, order_of
from datapipes.partition.time_values import TIMES, are_times

WHERE = "Part.of_stores"
_EDGES = (None, None)  # the group of edges without types
_OF_EDGES = ("indices", "edge_ids", "edge_attributes", "source_times")
Tell = Callable[[Any], list[Any]]


class Read(NamedTuple):
    """What a Part is made of."""

    manifest: Manifest
    part: int
    book: PartitionBook
    arrays: dict[Place, Tensor]


def alone(told: Any) -> list[Any]:
    """Return what is told: nobody else hears of it."""
    return [told]


def read_stores(graph: Any, features: Any, time_attr: str | None, tell: Tell) -> Read:
    """Return what a part is made of; see Part.of_stores."""
    stores = _Stores(graph, features, time_attr)
    edges = {of: stores.edges(of) for of in stores.edge_types}
    arrays, attributes = stores.arrays(edges)
    counts = [len(each.col) for each in edges.values()]
    kinds = ("indptr", "indices", "edge_ids")
    told = {
        "part": stores.part,
        "same": {**stores.same(), "edge types with ids": [type_text(of) for of in edges if edges[of].ids is not None]},
        "counts": counts,
        "edges": [[array_digest(arrays[kind, number, ""]) for kind in kinds] for number in range(len(edges))],
        "attributes": [
            [*key, dtype_name(each.dtype), [*each.shape[1:]], array_digest(each)] for key, each in attributes.items()
        ],
    }
    everyone = sorted(tell(told), key=lambda each: each["part"])
    refuse_others(told, everyone, stores.num_parts)
    book, maps = stores.book, {}
    for number, (of, each) in enumerate(edges.items()):
        if each.ids is None:  # counted over the parts
            known = {other["part"]: other["counts"][number] for other in everyone}
            firsts = torch.tensor([0, *(known.get(part, 0) for part in range(stores.num_parts))]).cumsum(0)
            arrays["edge_ids", number, ""] += firsts[stores.part]
            maps[of] = RangeMap(firsts)
    if len(maps) == len(edges):
        book = PartitionBook(stores.num_parts, {of: book.nodes(of) for of in book.node_types}, maps)
    for domain, type_number, name, dtype, shape, _ in [row for other in everyone for row in other["attributes"]]:
        place = (f"{domain}_attributes", type_number, name)
        rows = arrays["node_ids" if domain == "node" else "indices", type_number, ""].shape[0]
        if place not in arrays:
            if rows > 0:
                of = of_type((stores.edge_types if domain == "edge" else [*stores.num_nodes])[type_number])
                raise ValueError(
                    f"{WHERE}: part {stores.part} has {rows} {domain}s{of} and no {shown(name)} of them, which another "
                    "part has. Put it, or remove it there."
                )
            arrays[place] = torch.empty((0, *shape), dtype=dtype_from_name(WHERE, dtype))
        elif [dtype_name(arrays[place].dtype), [*arrays[place].shape[1:]]] != [dtype, shape]:
            raise ValueError(
                f"{WHERE}: {domain} attribute {shown(name)} has rows of {dtype_name(arrays[place].dtype)} "
                f"{[*arrays[place].shape[1:]]} in part {stores.part} and of {dtype} {shape} in another; all parts must "
                "have the same. Convert one."
            )
    num_edges = {of: sum(other["counts"][i] for other in everyone) for i, of in enumerate(edges)}
    fingerprint = _hash(16, [told["same"], [[other["counts"], other["edges"]] for other in everyone]])
    content = _hash(8, [fingerprint, stores.node_time_attr, [other["attributes"] for other in everyone]])
    names = (fingerprint, partition_id_of(fingerprint, stores.book), content)
    identity = Identity(stores.num_parts, *names, stores.num_nodes, num_edges)
    dtypes = {each.row.dtype for each in edges.values()}
    narrow = torch.int32 if dtypes == {torch.int32} else torch.int64
    earliest = {of: EarliestNode.of(times) for of, times in stores.node_times.items() if len(times) > 0}
    manifest = Manifest(
        Path(), identity, narrow, stores.node_time_attr, {}, {}, earliest if stores.node_times else None
    )
    for number in range(len(edges)):
        arrays["indices", number, ""] = arrays["indices", number, ""].to(narrow)
    return Read(manifest, stores.part, book, arrays)


def by_time(part: Any, time_attr: str | None, tell: Tell) -> Read | None:
    """Return an open Part with the in-edges of each node in the order of their times; None if they have that order.

    All parts must be of one partition, which is compared.
    """
    same = {"partition_id": part.partition_id, "content_id": part.content_id, "time_attr": time_attr}
    told = {"part": part.part, "same": same, "in order": True}
    arrays = dict(part._arrays)
    if time_attr is not None:
        on_edges = [of for of in part.edge_types if time_attr in part.relation(of).edge_attributes]
        if not on_edges:
            part._refuse_source_times(WHERE, time_attr)
        for number, of in enumerate(part.edge_types):
            relation = part.relation(of)
            times = relation.edge_attributes.get(time_attr) if on_edges else relation.source_times
            rows = torch.repeat_interleave(relation.indptr.diff())
            order = None if times is None else order_of(rows, [times, relation.edge_ids])
            if order is not None:
                told["in order"] = False
                for place in [each for each in arrays if each[1] == number and each[0] in _OF_EDGES]:
                    arrays[place] = arrays[place][order]
    everyone = tell(told)
    refuse_others(told, everyone, part.num_parts)
    if all(other["in order"] for other in everyone):
        return None
    fingerprint, content = (
        _hash(size, [name, time_attr]) for size, name in ((16, part.fingerprint), (8, part.content_id))
    )
    counts = (dict(part._num_nodes), dict(part._num_edges))
    identity = Identity(part.num_parts, fingerprint, part.partition_id, content, *counts)
    manifest = Manifest(Path(), identity, part.index_dtype, part.node_time_attr, {}, {}, part.earliest_nodes)
    return Read(manifest, part.part, part.book, arrays)


def refuse_others(told: Mapping[str, Any], everyone: list[Any], num_parts: int) -> None:
    """Raise ValueError unless those who told something have the parts of one partition, each once."""
    mine = told["part"]
    for other in everyone:
        for name in {**told["same"], **other["same"]}:
            here, there = told["same"].get(name), other["same"].get(name)
            if here != there:
                raise ValueError(
                    f"{WHERE}: part {mine} and part {other['part']} are of different partitions: {name} is "
                    f"{shown(here)} in part {mine} and {shown(there)} in the other. Load both from one partition."
                )
    parts = sorted(other["part"] for other in everyone)
    if len(parts) > 1 and parts != [*range(num_parts)]:
        twice = [part for part in parts if parts.count(part) > 1]
        found = f"part {twice[0]} is there twice" if twice else f"found the parts {parts}"
        raise ValueError(f"{WHERE}: {found}; each of the {num_parts} parts is needed once. Load another part.")


class _Edges(NamedTuple):
    """The in-edges of the part's nodes along one edge type, in order."""

    row: Tensor
    col: Tensor
    ids: Tensor | None
    times: Tensor | None  # of sources, or of edges
    order: Tensor | None  # their places in the store; None if they have its order


class _Stores:
    """What two stores hold of a part, looked at for the first time."""

    def __init__(self, graph: Any, features: Any, time_attr: str | None) -> None:
        self.graph, self.features, self.time_attr = graph, features, time_attr
        self.num_parts = check_int(WHERE, "num_partitions", graph.num_partitions, 1, MOST_PARTS)
        self.part = check_int(WHERE, "partition_idx", graph.partition_idx, 0, self.num_parts - 1)
        self.attrs = {attr.edge_type: attr for attr in graph.get_all_edge_attrs() if attr.layout.value == "coo"}
        if not self.attrs:
            raise ValueError(f"{WHERE}: the graph store has no edges of the layout 'coo'. Put edge_index.")
        self.edge_types = sorted(self.attrs, key=lambda of: of or ())
        self.book = self._book()
        self.num_nodes = {of: self.book.nodes(of).num_ids for of in self.book.node_types}
        ends = [end for of in self.edge_types for end in ends_of(of)]
        unknown = [end for end in ends if end not in self.num_nodes]
        if unknown:
            raise ValueError(
                f"{WHERE}: edges end at nodes of {shown(unknown[0])}, and node_pb has {shown([*self.num_nodes])}. Set "
                "node_pb for each node type."
            )
        self.own = {of: self.book.nodes(of).ids_of(self.part) for of in self.num_nodes}
        self.tensors = {(each.group_name, each.attr_name): each for each in features.get_all_tensor_attrs()}
        self.node_times, self.on_edges = self._times()
        self.node_time_attr = time_attr if self.node_times else None

    def _book(self) -> PartitionBook:
        graph, features = self.graph, self.features
        nodes: PartitionBook | None = graph._books.get("nodes") or features._books.get("nodes")
        both: list[PartitionBook | None] = [graph._books.get("edges"), features._books.get("edges")]
        edges = next((book for book in both if book is not None and book.has_edges), None)
        if nodes is None and self.num_parts == 1:
            sizes = {end: n for of, attr in self.attrs.items() for end, n in zip(ends_of(of), attr.size, strict=True)}
            return PartitionBook(1, {of: torch.zeros(count, dtype=torch.uint8) for of, count in sizes.items()})
        if nodes is None:
            raise ValueError(f"{WHERE}: node_pb is not set, so the parts of nodes are not known. Set it.")
        if nodes.num_parts == self.num_parts and edges is nodes:
            return nodes
        of_edges = None if edges is None else {of: edges.edges(of).dense() for of in edges.edge_types}
        return PartitionBook(self.num_parts, {of: nodes.nodes(of).dense() for of in nodes.node_types}, of_edges)

    def _times(self) -> tuple[dict[Any, Tensor], bool]:
        """Return the times of all nodes by type, and whether edges have times in their place."""
        name = self.time_attr
        if name is None:
            return {}, False
        groups = [group for group, each in self.tensors if each == name]
        on_edges = [group for group in groups if isinstance(group, tuple)]
        found = {group: self._tensor(group, name) for group in groups if group not in on_edges}
        if None in found and name != "time" and len(found[None]) != self.num_nodes[None]:
            return {}, True  # as PyG names them: in the group of the nodes, with a value for each edge
        if bool(on_edges) == bool(found):
            has = "both nodes and edges have it" if found else "neither nodes nor edges have it"
            raise ValueError(
                f"{WHERE}: time_attr is {shown(name)}, but {has}; the store has "
                f"{sorted({each for _, each in self.tensors})}. Name another."
            )
        for of, values in found.items():
            if not are_times(values) or len(values) != self.num_nodes[of]:
                raise ValueError(
                    f"{WHERE}: {shown(name)} is {dtype_name(values.dtype)} {list(values.shape)}; each part needs the "
                    f"times of all {self.num_nodes[of]} nodes, {TIMES}. Put the whole tensor."
                )
        return found, bool(on_edges)

    def same(self) -> dict[str, Any]:
        """Return what must be the same in all parts."""
        book = self.book
        return {
            "num_partitions": self.num_parts,
            **{f"the number of nodes{of_type(of)}": count for of, count in self.num_nodes.items()},
            "node_pb": partition_id_of("", book),
            "edge types": [type_text(of) for of in self.edge_types],
            "edge_pb": None if not book.has_edges else [array_digest(book.edges(of).dense()) for of in book.edge_types],
            "time_attr": self.time_attr,
            "times": [array_digest(times) for times in self.node_times.values()],
        }

    def edges(self, of: Any) -> _Edges:
        """Return the in-edges of the part's nodes along an edge type."""
        attr, (src, dst), text = self.attrs[of], ends_of(of), of_type(of)
        row, col = (check_index_tensor(WHERE, f"edge_index{text}", each) for each in self.graph.get_edge_index(attr))
        for each, end in ((row, src), (col, dst)):
            outside = (each < 0) | (each >= self.num_nodes[end])
            if bool(outside.any()):
                raise IndexError(
                    f"{WHERE}: edge_index{text} has the node {int(each[outside][0])}, must be in [0, "
                    f"{self.num_nodes[end]}), as node_pb is long. Take both from one partition."
                )
        ids = self.graph.get_edge_id(attr)
        if ids is not None and ids.shape != col.shape:
            raise ValueError(
                f"{WHERE}: {ids.shape[0]} edge ids{text} for {col.shape[0]} edges; each needs one. Put their ids."
            )
        times = self._edge_times(of, ids, col) if self.on_edges else None
        order, own = None, self.book.nodes(dst).part_of(col) == self.part
        if not bool(own.all()):  # in-edges of other parts' nodes, which PyG's tests call overlap
            order = own.nonzero().flatten()
        source_times = self.node_times.get(src)

        def taken(values: Tensor | None) -> Any:
            return values if order is None or values is None else values[order]

        keys = [taken(times if source_times is None else source_times[row]), taken(ids)]
        found = order_of(taken(col), [key for key in keys if key is not None])
        if found is not None:
            order = found if order is None else order[found]
        self._refuse_ids(of, text, taken(ids))
        return _Edges(
            taken(row), taken(col), taken(ids), taken(times if source_times is None else source_times[row]), order
        )

    def _refuse_ids(self, of: Any, text: str, ids: Tensor | None) -> None:
        if ids is None or len(ids) == 0:
            return
        ascending = ids.sort().values
        if int(ascending[0]) < 0 or bool((ascending[1:] == ascending[:-1]).any()):
            raise ValueError(f"{WHERE}: the edge ids{text} must be 0 or more, and each there once. Put other ids.")
        if self.book.has_edges:
            owners = self.book.edges(of)
            if int(ascending[-1]) >= owners.num_ids or bool((owners.part_of(ids) != self.part).any()):
                raise ValueError(
                    f"{WHERE}: edge_pb says that edges{text} of this part are another part's, or does not know them. "
                    "Take both from one partition."
                )

    def _edge_times(self, of: Any, ids: Tensor | None, col: Tensor) -> Tensor | None:
        """Return the time of each edge of the store; None if edges of the type have none."""
        assert self.time_attr is not None
        group = _EDGES if of is None else of
        if (group, self.time_attr) in self.tensors:
            values = self._tensor(group, self.time_attr)
            rows = self._edge_rows(group, ids)
            values = values if rows is None else values[rows]
        elif of is None:
            values = self._tensor(None, self.time_attr)
        else:
            return None
        if not are_times(values) or len(values) != len(col):
            raise ValueError(
                f"{WHERE}: {shown(self.time_attr)} is {dtype_name(values.dtype)} {list(values.shape)} for {len(col)} "
                f"edges; each needs a time, {TIMES}. Put a time for each."
            )
        return values

    def arrays(self, edges: Mapping[Any, _Edges]) -> tuple[dict[Place, Tensor], dict[tuple[str, int, str], Tensor]]:
        """Return the arrays of the part, and its attributes by ("node" or "edge", number of the type, name)."""
        arrays: dict[Place, Tensor] = {}
        attributes: dict[tuple[str, int, str], Tensor] = {}
        for number, (of, own) in enumerate(self.own.items()):
            arrays["node_ids", number, ""] = own
            for name, values in self._of_nodes(of, own):
                attributes["node", number, name] = values
        for number, (of, found) in enumerate(edges.items()):
            own = self.own[ends_of(of)[1]]
            begins = torch.searchsorted(found.col, own.to(found.col.dtype))
            indptr = torch.cat([begins, begins.new_tensor([len(found.col)])])
            ids = torch.arange(len(found.col)) if found.ids is None else found.ids.long()
            arrays["indptr", number, ""], arrays["indices", number, ""] = indptr, found.row.contiguous()
            arrays["edge_ids", number, ""] = ids.contiguous()
            if self.node_times and found.times is not None:
                arrays["source_times", number, ""] = found.times
            for name, values in self._of_edges(of, found):
                attributes["edge", number, name] = values
        arrays |= {(f"{domain}_attributes", number, name): each for (domain, number, name), each in attributes.items()}
        return arrays, attributes

    def _of_nodes(self, of: Any, own: Tensor) -> Iterator[tuple[str, Tensor]]:
        rows: Tensor | None = None
        ids = self.features.get_global_id(of)
        for group, name in self.tensors:
            if group != of or isinstance(group, tuple) or (self.on_edges and name == self.time_attr):
                continue
            values = self._tensor(group, name)
            is_whole = (group, name) in self.features.of_all or name in ("time", self.time_attr)
            if is_whole and len(values) == self.num_nodes[of]:
                yield name, values[own]
                continue
            if ids is None or len(ids) != len(values):
                raise ValueError(
                    f"{WHERE}: {shown((group, name))} has {len(values)} rows and "
                    f"{'no' if ids is None else len(ids)} global ids; as many are needed. Call put_global_id."
                )
            if torch.equal(ids.long(), own):
                yield name, values
                continue
            rows = _rows(f"node{of_type(of)}", ids, own) if rows is None else rows
            yield name, values[rows]

    def _of_edges(self, of: Any, found: _Edges) -> Iterator[tuple[str, Tensor]]:
        group = _EDGES if of is None else of
        names = [name for each, name in self.tensors if each == group and isinstance(each, tuple)]
        rows = self._edge_rows(group, found.ids) if names else None
        for name in names:
            values = self._tensor(group, name)
            yield name, values if rows is None else values[rows]
        if self.on_edges and self.time_attr not in names and found.times is not None:
            yield str(self.time_attr), found.times

    def _edge_rows(self, group: Any, ids: Tensor | None) -> Tensor | None:
        """Return the row of each edge in the tensors of its group; None if they have the order of the edges."""
        known = self.features.get_global_id(group)
        if ids is None or known is None:
            where, call = ("graph", "put_edge_id") if ids is None else ("feature", "put_global_id")
            raise ValueError(
                f"{WHERE}: there are features of edges, but the {where} store has no ids of edges, so their rows are "
                f"not known. Call {call}."
            )
        return None if torch.equal(known.long(), ids.long()) else _rows("edge", known, ids.long())

    def _tensor(self, group: Any, name: str) -> Tensor:
        found: Tensor = self.features.get_tensor(self.tensors[group, name])
        return found


def _rows(what: str, ids: Tensor, wanted: Tensor) -> Tensor:
    """Return the row of each wanted id among `ids`."""
    rows = OwnRows(ids.long()).rows(wanted)
    if bool((rows < 0).any()):
        raise ValueError(
            f"{WHERE}: the part has the {what} {int(wanted[rows < 0][0])}, and the feature store has no row of it. Put "
            "the features of all its nodes and edges."
        )
    return rows


def _hash(size: int, value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=size).hexdigest()
