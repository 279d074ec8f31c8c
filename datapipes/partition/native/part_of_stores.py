"""Makes a Part of the two stores that PyG's users have in memory, with partition ids that are equal in all parts.

The in-edges of a node ascend by edge id; with a time attribute, by time, then edge id. A whole graph made of the same
columns has its edges in the same order, so parts draw the same bits. Stores in this order are not copied.
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
from datapipes.base.checks import check_index_tensor, check_int, check_within, dtype_from_name, dtype_name, shown
from datapipes.base.types import ends_of, of_type, type_text
from datapipes.graph.arena import Place
from datapipes.graph.graph import EarliestNode
from datapipes.partition.book import MOST_PARTS, PartitionBook, RangeMap
from datapipes.partition.native.manifest import Identity, Manifest
from datapipes.partition.native.native_book import partition_id_of
from datapipes.partition.native.own_rows import OwnRows, order_of
from datapipes.partition.part_to_write import TIMES, are_times

WHERE = "Part.of_stores"
_EDGES = (None, None)  # the group of edges without types
_OF_EDGES = ("indices", "edge_ids", "edge_attributes", "source_times")
Tell = Callable[[Any], list[Any]]
Read = tuple[Manifest, int, PartitionBook, dict[Place, Tensor]]  # the arguments of a Part; the int is its id


def alone(facts: Any) -> list[Any]:
    """Send nothing, and return [facts]. The default of `tell` in Part.of_stores, which sends facts to all parts."""
    return [facts]


def read_stores(graph: Any, features: Any, time_attr: str | None, tell: Tell) -> Read:
    """Check two stores; return the Part's arguments (manifest, id of the part, book, arrays). See Part.of_stores."""
    stores = _Stores(graph, features, time_attr)
    edges = {kind: stores.edges(kind) for kind in stores.edge_types}
    arrays = stores.arrays(edges)
    with_ids = [type_text(kind) for kind, of_kind in edges.items() if of_kind.ids is not None]
    counts = [len(of_kind.col) for of_kind in edges.values()]
    topology = ("indptr", "indices", "edge_ids")
    facts = {
        "part": stores.part,
        "same": {**stores.same(), "edge types with ids": with_ids},
        "counts": counts,
        "edges": [[array_digest(arrays[name, number, ""]) for name in topology] for number in range(len(edges))],
        "attributes": [
            [domain, *names, dtype_name(rows.dtype), [*rows.shape[1:]], array_digest(rows)]
            for (array, *names), rows in arrays.items()
            if (domain := array.removesuffix("_attributes")) != array
        ],
    }
    everyone = sorted(tell(facts), key=lambda other: other["part"])
    refuse_others(facts, everyone, stores.num_parts)
    book, maps = stores.book, {}
    for number, (kind, of_kind) in enumerate(edges.items()):
        if of_kind.ids is None:  # number the edges of this type over all parts
            of_parts = {other["part"]: other["counts"][number] for other in everyone}
            firsts = torch.tensor([0, *(of_parts.get(part, 0) for part in range(stores.num_parts))]).cumsum(0)
            arrays["edge_ids", number, ""] += firsts[stores.part]
            maps[kind] = RangeMap(firsts)
    if len(maps) == len(edges):
        book = PartitionBook(stores.num_parts, {kind: book.nodes(kind) for kind in book.node_types}, maps)
    for domain, type_number, name, dtype, shape, _ in [row for other in everyone for row in other["attributes"]]:
        place = (f"{domain}_attributes", type_number, name)
        num_rows = arrays["node_ids" if domain == "node" else "indices", type_number, ""].shape[0]
        if place not in arrays:
            if num_rows > 0:
                of = of_type((stores.edge_types if domain == "edge" else [*stores.num_nodes])[type_number])
                raise ValueError(
                    f"{WHERE}: part {stores.part} has {num_rows} {domain}s{of}, but no tensor {shown(name)} for them, "
                    "as another part has. Put one into its store, or remove that of the other part."
                )
            arrays[place] = torch.empty((0, *shape), dtype=dtype_from_name(WHERE, dtype))
        elif [dtype_name(arrays[place].dtype), [*arrays[place].shape[1:]]] != [dtype, shape]:
            raise ValueError(
                f"{WHERE}: {domain} attribute {shown(name)} has rows of {dtype_name(arrays[place].dtype)} "
                f"{[*arrays[place].shape[1:]]} in part {stores.part} and of {dtype} {shape} in another; all parts must "
                "have rows of one dtype and shape. Put such rows."
            )
    num_edges = {kind: sum(other["counts"][i] for other in everyone) for i, kind in enumerate(edges)}
    fingerprint = _hash(16, [facts["same"], [[other["counts"], other["edges"]] for other in everyone]])
    content = _hash(8, [fingerprint, stores.node_time_attr, [other["attributes"] for other in everyone]])
    names = (fingerprint, partition_id_of(fingerprint, stores.book), content)
    identity = Identity(stores.num_parts, *names, stores.num_nodes, num_edges)
    dtypes = {of_kind.row.dtype for of_kind in edges.values()}
    narrow = torch.int32 if dtypes == {torch.int32} else torch.int64
    earliest = {kind: EarliestNode.of(times) for kind, times in stores.node_times.items() if len(times) > 0}
    manifest = Manifest(
        Path(), identity, narrow, stores.node_time_attr, {}, {}, earliest if stores.node_times else None
    )
    for number in range(len(edges)):
        arrays["indices", number, ""] = arrays["indices", number, ""].to(narrow)
    return manifest, stores.part, book, arrays


def by_time(part: Any, time_attr: str | None, tell: Tell) -> Read | None:
    """Sort the in-edges of each node of `part` by time; return the arguments of the sorted Part, as `read_stores` does.

    None: the in-edges of all parts already have this order. Raises the errors of `refuse_others`.
    """
    same = {"partition_id": part.partition_id, "content_id": part.content_id, "time_attr": time_attr}
    facts = {"part": part.part, "same": same, "in order": True}
    arrays = dict(part._arrays)
    if time_attr is not None:
        on_edges = [kind for kind in part.edge_types if time_attr in part.relation(kind).edge_attributes]
        if not on_edges:
            part._refuse_source_times(WHERE, time_attr)
        for number, kind in enumerate(part.edge_types):
            relation = part.relation(kind)
            times = relation.edge_attributes.get(time_attr) if on_edges else relation.source_times
            rows = torch.repeat_interleave(relation.indptr.diff())
            order = None if times is None else order_of(rows, [times, relation.edge_ids])
            if order is not None:
                facts["in order"] = False
                for place in [place for place in arrays if place[1] == number and place[0] in _OF_EDGES]:
                    arrays[place] = arrays[place][order]
    everyone = tell(facts)
    refuse_others(facts, everyone, part.num_parts)
    if all(other["in order"] for other in everyone):
        return None
    fingerprint, content = (
        _hash(size, [name, time_attr]) for size, name in ((16, part.fingerprint), (8, part.content_id))
    )
    counts = (dict(part._num_nodes), dict(part._num_edges))
    identity = Identity(part.num_parts, fingerprint, part.partition_id, content, *counts)
    manifest = Manifest(Path(), identity, part.index_dtype, part.node_time_attr, {}, {}, part.earliest_nodes)
    return manifest, part.part, part.book, arrays


def refuse_others(facts: Mapping[str, Any], everyone: list[Any], num_parts: int) -> None:
    """Raise ValueError unless all processes together have the parts of one partition, each once.

    `facts` describes this process's part. `everyone` has the facts of all processes; a single process may have any
    part.
    """
    mine = facts["part"]
    for other in everyone:
        for name in {**facts["same"], **other["same"]}:
            here, there = facts["same"].get(name), other["same"].get(name)
            if here != there:
                raise ValueError(
                    f"{WHERE}: part {mine} and part {other['part']} are of different partitions: {name} is "
                    f"{shown(here)} in part {mine} and {shown(there)} in the other. Load both from one partition."
                )
    parts = sorted(other["part"] for other in everyone)
    if len(parts) > 1 and parts != [*range(num_parts)]:
        twice = [part for part in parts if parts.count(part) > 1]
        wrong = f"part {twice[0]} is there twice" if twice else f"found the parts {parts}"
        raise ValueError(f"{WHERE}: {wrong}; each of the {num_parts} parts is needed once. Load another part.")


class _Edges(NamedTuple):
    """The in-edges of the part's nodes along one edge type, sorted by destination, then time, then edge id."""

    row: Tensor
    col: Tensor
    ids: Tensor | None
    times: Tensor | None  # of sources, or of edges


class _Stores:
    """A graph store and a feature store of one part, with their contents checked."""

    def __init__(self, graph: Any, features: Any, time_attr: str | None) -> None:
        self.graph, self.features, self.time_attr = graph, features, time_attr
        self.num_parts = check_int(WHERE, "num_partitions", graph.num_partitions, 1, MOST_PARTS)
        self.part = check_int(WHERE, "partition_idx", graph.partition_idx, 0, self.num_parts - 1)
        self.attrs = {attr.edge_type: attr for attr in graph.get_all_edge_attrs() if attr.layout.value == "coo"}
        if not self.attrs:
            raise ValueError(f"{WHERE}: the graph store has no edges of the layout 'coo'. Put edge_index.")
        self.edge_types = sorted(self.attrs, key=lambda kind: kind or ())
        self.book = self._book()
        self.num_nodes = {kind: self.book.nodes(kind).num_ids for kind in self.book.node_types}
        ends = [end for kind in self.edge_types for end in ends_of(kind)]
        unknown = [end for end in ends if end not in self.num_nodes]
        if unknown:
            raise ValueError(
                f"{WHERE}: edges end at nodes of {shown(unknown[0])}, and node_pb has {shown([*self.num_nodes])}. Set "
                "node_pb for each node type."
            )
        self.own = {kind: self.book.nodes(kind).ids_of(self.part) for kind in self.num_nodes}
        self.tensors = {(attr.group_name, attr.attr_name): attr for attr in features.get_all_tensor_attrs()}
        self.node_times, self.on_edges = self._times()
        self.node_time_attr = time_attr if self.node_times else None

    def _book(self) -> PartitionBook:
        graph, features = self.graph, self.features
        nodes: PartitionBook | None = graph._books.get("nodes") or features._books.get("nodes")
        both: list[PartitionBook | None] = [graph._books.get("edges"), features._books.get("edges")]
        edges = next((book for book in both if book is not None and book.has_edges), None)
        if nodes is None and self.num_parts == 1:
            sizes = {
                end: n for kind, attr in self.attrs.items() for end, n in zip(ends_of(kind), attr.size, strict=True)
            }
            return PartitionBook(1, {kind: torch.zeros(count, dtype=torch.uint8) for kind, count in sizes.items()})
        if nodes is None:
            raise ValueError(f"{WHERE}: node_pb is not set, so the parts of nodes are not known. Set it.")
        if nodes.num_parts == self.num_parts and edges is nodes:
            return nodes
        of_edges = None if edges is None else {kind: edges.edges(kind).dense() for kind in edges.edge_types}
        return PartitionBook(self.num_parts, {kind: nodes.nodes(kind).dense() for kind in nodes.node_types}, of_edges)

    def _times(self) -> tuple[dict[Any, Tensor], bool]:
        """Return (times, on_edges): {node type: times of all its nodes}, and whether edges have times instead."""
        name = self.time_attr
        if name is None:
            return {}, False
        groups = [group for group, attr_name in self.tensors if attr_name == name]
        on_edges = [group for group in groups if isinstance(group, tuple)]
        of_nodes = {group: self._tensor(group, name) for group in groups if group not in on_edges}
        if None in of_nodes and name != "time" and len(of_nodes[None]) != self.num_nodes[None]:
            return {}, True  # as in PyG: in the group of the nodes, but with a value for each edge
        if bool(on_edges) == bool(of_nodes):
            has = "both nodes and edges have it" if of_nodes else "neither nodes nor edges have it"
            raise ValueError(
                f"{WHERE}: time_attr is {shown(name)}, but {has}; the store has "
                f"{sorted({attr_name for _, attr_name in self.tensors})}. Name another."
            )
        for kind, values in of_nodes.items():
            if not are_times(values) or len(values) != self.num_nodes[kind]:
                raise ValueError(
                    f"{WHERE}: {shown(name)} is {dtype_name(values.dtype)} {list(values.shape)}; each part needs the "
                    f"times of all {self.num_nodes[kind]} nodes, {TIMES}. Put the whole tensor."
                )
        return of_nodes, bool(on_edges)

    def same(self) -> dict[str, Any]:
        """Return {noun: value} of the facts that must be equal in all parts, such as the number of parts.

        Error messages use the nouns.
        """
        book = self.book
        edge_pb = [array_digest(book.edges(kind).dense()) for kind in book.edge_types]
        return {
            "num_partitions": self.num_parts,
            **{f"the number of nodes{of_type(kind)}": count for kind, count in self.num_nodes.items()},
            "node_pb": partition_id_of("", book),
            "edge types": [type_text(kind) for kind in self.edge_types],
            "edge_pb": edge_pb if book.has_edges else None,
            "time_attr": self.time_attr,
            "times": [array_digest(times) for times in self.node_times.values()],
        }

    def edges(self, kind: Any) -> _Edges:
        """Return the in-edges of the part's nodes along the edge type `kind`, checked and sorted."""
        attr, (src, dst), text = self.attrs[kind], ends_of(kind), of_type(kind)
        row, col = (check_index_tensor(WHERE, f"edge_index{text}", ends) for ends in self.graph.get_edge_index(attr))
        for ids, end in ((row, src), (col, dst)):
            remedy = "Take the edges and node_pb from one partition."
            check_within(WHERE, f"edge_index{text}", ids, self.num_nodes[end], remedy)
        ids = self.graph.get_edge_id(attr)
        if ids is not None and ids.shape != col.shape:
            raise ValueError(
                f"{WHERE}: {ids.shape[0]} edge ids{text} for {col.shape[0]} edges; each needs one. Put their ids."
            )
        times = self._edge_times(kind, ids, col) if self.on_edges else None
        if (source_times := self.node_times.get(src)) is not None:
            times = source_times[row]
        order, is_own = None, self.book.nodes(dst).part_of(col) == self.part
        if not bool(is_own.all()):  # leave out in-edges of other parts' nodes, which PyG's tests call overlap
            order = is_own.nonzero().flatten()

        def taken(values: Tensor | None) -> Any:
            return values if order is None or values is None else values[order]

        by_time_and_id = order_of(taken(col), [taken(key) for key in (times, ids) if key is not None])
        if by_time_and_id is not None:
            order = by_time_and_id if order is None else order[by_time_and_id]
        self._refuse_ids(kind, text, taken(ids))
        return _Edges(*map(taken, (row, col, ids, times)))

    def _refuse_ids(self, kind: Any, text: str, ids: Tensor | None) -> None:
        if ids is None or len(ids) == 0:
            return
        ascending = ids.sort().values
        if int(ascending[0]) < 0 or bool((ascending[1:] == ascending[:-1]).any()):
            raise ValueError(f"{WHERE}: the edge ids{text} must be 0 or more, and each there once. Put other ids.")
        if self.book.has_edges:
            owners = self.book.edges(kind)
            if int(ascending[-1]) >= owners.num_ids or bool((owners.part_of(ids) != self.part).any()):
                raise ValueError(
                    f"{WHERE}: edge_pb says that edges{text} of this part are another part's, or does not know them. "
                    "Take the edges and edge_pb from one partition."
                )

    def _edge_times(self, kind: Any, ids: Tensor | None, col: Tensor) -> Tensor | None:
        """Return the time of each edge in the order of the store; None if the edges of the type have no times."""
        assert self.time_attr is not None
        group = _EDGES if kind is None else kind
        if (group, self.time_attr) in self.tensors:
            values = self._tensor(group, self.time_attr)
            rows = self._edge_rows(group, ids)
            values = values if rows is None else values[rows]
        elif kind is None:
            values = self._tensor(None, self.time_attr)
        else:
            return None
        if not are_times(values) or len(values) != len(col):
            raise ValueError(
                f"{WHERE}: {shown(self.time_attr)} is {dtype_name(values.dtype)} {list(values.shape)} for {len(col)} "
                f"edges; each needs a time, {TIMES}. Put a time for each."
            )
        return values

    def arrays(self, edges: Mapping[Any, _Edges]) -> dict[Place, Tensor]:
        """Return the arrays of the part: {(kind of array, index of its type, name of the attribute or ""): tensor}."""
        arrays: dict[Place, Tensor] = {}
        for number, (kind, own) in enumerate(self.own.items()):
            arrays["node_ids", number, ""] = own
            for name, values in self._of_nodes(kind, own):
                arrays["node_attributes", number, name] = values
        for number, (kind, part_edges) in enumerate(edges.items()):
            own = self.own[ends_of(kind)[1]]
            begins = torch.searchsorted(part_edges.col, own.to(part_edges.col.dtype))
            indptr = torch.cat([begins, begins.new_tensor([len(part_edges.col)])])
            ids = torch.arange(len(part_edges.col)) if part_edges.ids is None else part_edges.ids.long()
            arrays["indptr", number, ""], arrays["indices", number, ""] = indptr, part_edges.row.contiguous()
            arrays["edge_ids", number, ""] = ids.contiguous()
            if self.node_times and part_edges.times is not None:
                arrays["source_times", number, ""] = part_edges.times
            for name, values in self._of_edges(kind, part_edges):
                arrays["edge_attributes", number, name] = values
        return arrays

    def _of_nodes(self, kind: Any, own_ids: Tensor) -> Iterator[tuple[str, Tensor]]:
        rows: Tensor | None = None
        ids = self.features.get_global_id(kind)
        for group, name in self.tensors:
            if group != kind or isinstance(group, tuple) or (self.on_edges and name == self.time_attr):
                continue
            values = self._tensor(group, name)
            is_whole = (group, name) in self.features.of_all or name in ("time", self.time_attr)
            if is_whole and len(values) == self.num_nodes[kind]:
                yield name, values[own_ids]
                continue
            if ids is None or len(ids) != len(values):
                raise ValueError(
                    f"{WHERE}: {shown((group, name))} has {len(values)} rows and "
                    f"{'no' if ids is None else len(ids)} global ids; each row needs one. Call put_global_id."
                )
            if torch.equal(ids.long(), own_ids):
                yield name, values
                continue
            rows = _rows(f"node{of_type(kind)}", ids, own_ids) if rows is None else rows
            yield name, values[rows]

    def _of_edges(self, kind: Any, part_edges: _Edges) -> Iterator[tuple[str, Tensor]]:
        group = _EDGES if kind is None else kind
        names = [name for of_group, name in self.tensors if of_group == group and isinstance(of_group, tuple)]
        rows = self._edge_rows(group, part_edges.ids) if names else None
        for name in names:
            values = self._tensor(group, name)
            yield name, values if rows is None else values[rows]
        if self.on_edges and self.time_attr not in names and part_edges.times is not None:
            yield str(self.time_attr), part_edges.times

    def _edge_rows(self, group: Any, ids: Tensor | None) -> Tensor | None:
        """Return the row of each edge in the tensors of `group`, int64; `ids` are the edges.

        None: the row of edge i is i.
        """
        global_ids = self.features.get_global_id(group)
        if ids is None or global_ids is None:
            where, call = ("graph", "put_edge_id") if ids is None else ("feature", "put_global_id")
            raise ValueError(
                f"{WHERE}: there are features of edges, but the {where} store has no ids of edges, so their rows are "
                f"not known. Call {call}."
            )
        return None if torch.equal(global_ids.long(), ids.long()) else _rows("edge", global_ids, ids.long())

    def _tensor(self, group: Any, name: str) -> Tensor:
        tensor: Tensor = self.features.get_tensor(self.tensors[group, name])
        return tensor


def _rows(noun: str, ids: Tensor, wanted: Tensor) -> Tensor:
    """Return the position in `ids` of each id in `wanted`, int64; ValueError if an id is missing."""
    rows = OwnRows(ids.long()).rows(wanted)
    if bool((rows < 0).any()):
        raise ValueError(
            f"{WHERE}: the part has the {noun} {int(wanted[rows < 0][0])}, and the feature store has no row of it. Put "
            "the features of all nodes and edges of the part."
        )
    return rows


def _hash(size: int, value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=size).hexdigest()
