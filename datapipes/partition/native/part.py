"""Part: one part of a partition, mapped or in memory: its own nodes, their in-edges, and the attributes of both.

All ids are ids of the whole graph. Draws from a part are bit-identical to draws from the whole graph, since the random
stream of a node depends on its id and not on its row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import check_bool, check_index_tensor, check_int, shown
from datapipes.base.forms import RowForm
from datapipes.base.types import EdgeType, NodeType, ends_of, of_type, type_in
from datapipes.graph.arena import Place, attributes_of
from datapipes.graph.choice import UNIFORM, Choice, Chosen, KeptRows, forms_of
from datapipes.graph.graph import Graph, KeptTopology
from datapipes.graph.hops import misfit
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.arrays_folder import HOT
from datapipes.partition.native.manifest import Manifest, opened_manifest
from datapipes.partition.native.native_book import book_of, digest_of, partition_id_of
from datapipes.partition.native.own_rows import OwnRows
from datapipes.partition.native.part_arrays import PartRelation, in_memory, read_part, refuse_other_times, relations_of
from datapipes.partition.native.part_of_stores import Tell, alone, by_time, read_stores
from datapipes.processes.sharing import Together

__all__ = ["Part"]

_OPEN = "Part.open"
# a copy makes these attributes anew
_MADE_ANEW = ("_arrays", "_versions", "_relations", "_node_attributes", "_own", "_making", "_topology")


def _column_of(name: str, columns: Mapping[Any, Tensor] | None, node_type: Any, ids: Tensor) -> Any:
    """Return the streams, times or windows of the nodes `ids` as a NumPy array, checked; None if `columns` is None."""
    if columns is None:
        return None
    column = columns.get(node_type)
    if column is None or column.shape != ids.shape:
        there = "none" if column is None else list(column.shape)
        raise ValueError(
            f"Part.draw: {name}{of_type(node_type)} must have shape {list(ids.shape)}, one for each id, found {there}. "
            "Pass one for each."
        )
    return column.numpy()


def _names(part: Part) -> tuple[int, str, str]:
    return part.part, part.partition_id, part.content_id


class Part:
    """One part of a partition, opened for sampling: its nodes, their in-edges, and attributes. `Part.open` makes it.

    A worker process maps the same file, so a part is not copied to it. In a graph without types the only node type is
    None, and so is the only edge type.

    Attributes:
        part: the id of the part, in [0, num_parts).
        num_parts: number of parts.
        book: the PartitionBook: which part owns each node.
        identity: the Identity: num_parts, fingerprint, both ids below, and num_nodes and num_edges by type.
        fingerprint: digest of the whole graph, `graph.digest()`.
        partition_id: 16 hexadecimal digits, a digest of fingerprint, number of parts, and part of each node. The book
            has the same id.
        content_id: 16 hexadecimal digits, a digest of fingerprint, `node_time_attr`, and all attributes of the graph.
            Two parts are of one partition if both ids are equal. If only attributes differ, only content_id differs.
        index_dtype: torch.int32 or torch.int64, the dtype in which neighbors are stored.
        node_time_attr: the node attribute with times; each edge is stored with the time of its source. None: no times
            are stored.
        earliest_nodes: {node type: EarliestNode} of the types with `node_time_attr`; None if the partition lacks them.
    """

    _anew = " Then partition the graph again."  # an error adds this to the advice to change an attribute

    def __init__(self, manifest: Manifest, part: int, book: PartitionBook, arrays: dict[Place, Tensor]) -> None:
        self.part, self.book = part, book
        self.identity = identity = manifest.identity
        self.num_parts, self.fingerprint = identity.num_parts, identity.fingerprint
        self.partition_id, self.content_id = identity.partition_id, identity.content_id
        self.index_dtype, self.node_time_attr = manifest.index_dtype, manifest.node_time_attr
        self.earliest_nodes = manifest.earliest_nodes
        self._num_nodes = dict(identity.num_nodes)
        self._node_numbers = {node_type: number for number, node_type in enumerate(self._num_nodes)}
        self._num_edges = dict(identity.num_edges)
        self._edge_numbers = {edge_type: number for number, edge_type in enumerate(self._num_edges)}
        self._kept = KeptRows()
        self._take(arrays)

    def _take(self, arrays: dict[Place, Tensor]) -> None:
        self._arrays = arrays
        self._versions = [version_of(values) for values in arrays.values()]
        self._relations = relations_of(arrays, self._node_numbers, self._num_edges)
        attributes = attributes_of(arrays, "node_attributes", len(self._num_nodes))
        self._node_attributes = dict(zip(self._num_nodes, attributes, strict=True))
        self._own: dict[tuple[str, Any], OwnRows] = {}  # by "node" or "edge" and type; made when they are asked for
        self._making = threading.Lock()  # a server's threads share the index
        self._topology: KeptTopology | None = None

    @classmethod
    def open(
        cls,
        root: str | Path,
        part: int,
        *,
        book: PartitionBook | None = None,
        fingerprint: str | Graph | None = None,
        verify: bool = True,
        mmap: bool = True,
    ) -> Part:
        """Return a part of the partition in the folder `root`.

        `root` needs only partition.json, book/ and the folder of this part. If another partition takes the place of
        `root` meanwhile, all files are still read from the older one. As CSCGraph.open says, mapped files must keep
        their size while they are in use.

        Args:
            part: the id of the part.
            book: the book of the same partition, if it is open already; by default the book in `root` is opened.
            fingerprint: the whole graph (of a data set: `data.graph`) or its digest; a partition of another graph is
                refused.
            verify: compare files with their hashes, and nodes with the book. This reads all files once. If False,
                check only sizes, shapes and dtypes.
            mmap: leave the arrays on disk; processes share their pages. If False, copy the arrays into memory in huge
                pages, from which draws and gathers are faster; other processes together share one more copy.
        Raises:
            MemoryError: The arrays exceed the memory that is left (without `mmap`).
            TypeError: `fingerprint` is neither a graph nor text.
            FileNotFoundError: `root` holds no native partition, or a file is missing; the message names the file, or
                says that another folder has taken the place of `root`.
            ValueError: `part` is no part; a file is truncated, changed, no regular file, of another partition or not
                valid; the book is of another partition, or the partition of another graph.
            OSError: No file descriptor is left. An open part needs one, and its book needs another.
        """
        wanted, mmap = digest_of(_OPEN, fingerprint), check_bool(_OPEN, "mmap", mmap)
        check_bool(_OPEN, "verify", verify)
        with opened_manifest(_OPEN, root) as manifest:
            check_int(_OPEN, "part", part, 0, manifest.identity.num_parts - 1)
            if wanted is not None and wanted != manifest.identity.fingerprint:
                raise ValueError(
                    f"{_OPEN}: {root} is a partition of the graph {manifest.identity.fingerprint}; fingerprint is that "
                    f"of the graph {shown(wanted)}. Open a partition of that graph, or partition it."
                )
            if book is None:
                book = book_of(_OPEN, manifest, verify=verify)
            elif (theirs := partition_id_of(manifest.identity.fingerprint, book)) != manifest.identity.partition_id:
                raise ValueError(
                    f"{_OPEN}: {root} is the partition {manifest.identity.partition_id}, and the book is of the "
                    f"partition {theirs}; both must be the same. Open the book of the same folder."
                )
            arrays = read_part(_OPEN, manifest, part, book, verify=verify)
        return cls(manifest, part, book, arrays if mmap else in_memory(_OPEN, arrays))

    @classmethod
    def of_stores(
        cls, graph_store: Any, feature_store: Any, *, time_attr: str | None = None, tell: Tell = alone
    ) -> Part:
        """Return a Part made of a LocalGraphStore and a LocalFeatureStore.

        Arrays that are in the order of a Part already are shared, not copied. If both stores were made from one Part,
        and not changed since, the result is that Part, or a copy of it sorted by `time_attr`. Otherwise edges may be in
        any order; in-edges of other parts' nodes are left out. All tensors become attributes. Times of nodes, in "time"
        or `time_attr`, may have a row for each node of the whole graph.

        Args:
            time_attr: sort the in-edges of each node by this attribute, of sources or of edges: the `node_time_attr` or
                `edge_time_attr` of a sampler. By default the in-edges of a node ascend by edge id.
            tell: function (value) -> list: it sends a plain value to the processes of all other parts, and returns the
                values of all parts, in any order. Then all parts get the same `partition_id`, and edges without ids are
                numbered over all parts. By default nothing is sent, and ids are made for this part alone.
        Raises:
            TypeError, ValueError, IndexError: The stores do not fit each other or their maps of parts, a needed tensor
                is missing, or the processes have parts of different partitions; the message says which.
        """
        kept, other = graph_store.part, feature_store.part
        if kept is not None and other is not None and _names(kept) == _names(other):
            sorted_ = by_time(kept, time_attr, tell)
            return kept if sorted_ is None else cls(*sorted_)
        return cls(*read_stores(graph_store, feature_store, time_attr, tell))

    @property
    def node_types(self) -> tuple[NodeType | None, ...]:
        """The node types of the whole graph, sorted; (None,) without types."""
        return tuple(self._num_nodes)

    @property
    def edge_types(self) -> tuple[EdgeType | None, ...]:
        """The edge types of the whole graph, sorted; (None,) without types."""
        return tuple(self._relations)

    def num_nodes_of(self, node_type: NodeType | None = None) -> int:
        """Return the number of nodes of a type in the whole graph, not in this part.

        The part's own nodes are `node_ids(node_type).shape[0]`.

        Raises:
            ValueError: There is no such type.
        """
        return self._num_nodes[self._node_type(node_type)]

    def num_edges_of(self, edge_type: EdgeType | str | None = None) -> int:
        """Return the number of edges of a type in the whole graph, not in this part.

        The part's own edges are `relation(edge_type).num_edges`.

        Raises:
            ValueError: There is no such type.
        """
        return self._num_edges[self._edge_type(edge_type)]

    def node_ids(self, node_type: NodeType | None = None) -> Tensor:
        """Return the ids of the part's own nodes of a type, int64, ascending; ValueError if there is no such type."""
        return self._arrays["node_ids", self._node_numbers[self._node_type(node_type)], ""]

    def node_attributes_of(self, node_type: NodeType | None = None) -> dict[str, Tensor]:
        """Return {name: [own nodes, ...]}, aligned with `node_ids`; ValueError if there is no such type."""
        return self._node_attributes[self._node_type(node_type)]

    def relation(self, edge_type: EdgeType | str | None = None) -> PartRelation:
        """Return the in-edges of the part's own nodes along an edge type; ValueError if there is no such type."""
        return self._relations[self._edge_type(edge_type)]

    def hot_nodes(self, node_type: NodeType | None = None) -> tuple[Tensor, Tensor]:
        """Return (ids, counts), int64 [n] each: the nodes of other parts that this part's edges come from.

        A node's count is the number of edges of this part that come from it. The order is by descending count, then
        ascending id; a cache should hold the first nodes.

        Raises:
            ValueError: There is no such type.
        """
        number = self._node_numbers[self._node_type(node_type)]
        nothing = torch.empty(0, dtype=torch.int64)  # no edge type has sources of this type
        ids, counts = (self._arrays.get((kind, number, ""), nothing) for kind in HOT)
        return ids, counts

    def rows_of(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the row of each node among the part's own nodes, int64 [n]: `node_ids(type)[rows]` are the ids.

        Time O(1) for each id. The first call makes an index of 0.17 bytes for each node of the type in the whole graph,
        unless the ids of the part's own nodes are contiguous.

        Args:
            ids: int32 or int64 [n], global ids; any order, repeats allowed.
        Raises:
            IndexError: A node is not this part's; the message names the first one, and the part that owns it.
            ValueError: There is no such type.
        """
        ids = check_index_tensor("Part.rows_of", "ids", ids)
        rows = self.own_nodes(node_type).rows(ids)
        if bool((missing := rows < 0).any()):
            raise self._not_owned(int(ids[missing][0]), node_type)
        return rows

    def edge_rows_of(self, edge_ids: Tensor, edge_type: EdgeType | str | None = None) -> Tensor:
        """Return the row of each edge in the part, int64 [n]: `relation(type).edge_ids[rows]` are the ids.

        Time O(1) for each id. The first call makes an index in time O(own edges); OwnRows says how large it is.

        Args:
            edge_ids: int32 or int64 [n], edge ids of the whole graph; any order, repeats allowed.
        Raises:
            IndexError: An edge is not this part's; the message names the first one.
            ValueError: There is no such type.
        """
        edge_ids = check_index_tensor("Part.edge_rows_of", "edge_ids", edge_ids)
        rows = self.own_edges(edge_type).rows(edge_ids)
        if bool((missing := rows < 0).any()):
            raise IndexError(
                f"Part.edge_rows_of: edge {int(edge_ids[missing][0])} is not in part {self.part}. Ask the part that "
                "owns its destination."
            )
        return rows

    def own_nodes(self, node_type: NodeType | None = None) -> OwnRows:
        """Return the index from node ids of a type to rows of this part; ValueError if there is no such type."""
        kind = self._node_type(node_type)
        return self._own_rows(
            ("node", kind), lambda: OwnRows(self.node_ids(kind), num_ids=self.num_nodes_of(kind), ascending=True)
        )

    def own_edges(self, edge_type: EdgeType | str | None = None) -> OwnRows:
        """Return the index from edge ids of a type to rows of this part; ValueError if there is no such type."""
        kind = self._edge_type(edge_type)
        return self._own_rows(("edge", kind), lambda: OwnRows(self.relation(kind).edge_ids))

    def _own_rows(self, key: tuple[str, Any], make: Callable[[], OwnRows]) -> OwnRows:
        if (rows := self._own.get(key)) is None:
            with self._making:
                if (rows := self._own.get(key)) is None:
                    rows = self._own[key] = make()
        return rows

    def _not_owned(self, node: int, node_type: NodeType | None) -> IndexError:
        of, count = of_type(node_type), self.num_nodes_of(node_type)
        if not 0 <= node < count:
            return IndexError(
                f"Part.rows_of: node {node}{of} is outside the graph; ids must be in [0, {count}). Check the ids."
            )
        owner = int(self.book.nodes(node_type).part_of(torch.tensor([node])))
        return IndexError(f"Part.rows_of: node {node}{of} is not in part {self.part}. Ask part {owner}, which owns it.")

    def draw(
        self,
        ids: Tensor,
        *,
        fanout: int,
        key: int,
        replace: bool = False,
        edge_type: EdgeType | str | None = None,
        edge_ids: bool = True,
        num_threads: int = 1,
        streams: Tensor | None = None,
        times: Tensor | None = None,
        windows: Tensor | None = None,
        choice: Choice = UNIFORM,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw in-edges of the part's own nodes; the result is bit-identical to a draw from the whole graph.

        Args:
            ids: int32 or int64 [n], own nodes of the destination type; any order; a repeat draws the same.
            fanout: in-edges for each node, -1 for all.
            key: random key of the hop and edge type, uint64.
            replace: draw with replacement.
            edge_ids: whether to return the ids of the edges; this may cost one more cache miss for each edge.
            num_threads: threads of the kernel; the draws do not depend on it.
            streams: uint32 [n], the random stream of each id, by default 0; a repeat with another stream draws anew.
            times, windows: int64 [n], the time and the time window of each node; given if `choice` draws by them.
            choice: how in-edges are drawn, such as uniformly or by weights.
        Returns:
            A tuple of three.

            * `indptr`: int64 [n + 1], where the edges of each node begin.
            * `neighbors`: [indptr[-1]], the global ids of the sources, of `index_dtype`.
            * `edge_ids`: int64 [indptr[-1]]; None if the argument `edge_ids` is False.
        Raises:
            IndexError: A node is not this part's; the message names the first one, and the part that owns it.
            TypeError, ValueError: There is no such type, the fanout is below -1, `choice` names an attribute that the
                part cannot draw by, or the part is corrupt.
            MemoryError: The arrays that the part makes once for `choice` exceed the memory that is left.
        """
        kind = self._edge_type(edge_type)
        dst = ends_of(kind)[1]
        return self.draw_hop(
            {dst: ids},
            [(kind, fanout, key)],
            replace=replace,
            edge_ids=edge_ids,
            num_threads=num_threads,
            streams=None if streams is None else {dst: streams},
            times=None if times is None else {dst: times},
            windows=None if windows is None else {dst: windows},
            choice=choice,
        )

    def draw_hop(
        self,
        ids: Mapping[NodeType | None, Tensor],
        draws: Sequence[tuple[EdgeType | None, int, int]],
        *,
        replace: bool = False,
        edge_ids: bool = True,
        num_threads: int = 1,
        streams: Mapping[NodeType | None, Tensor] | None = None,
        times: Mapping[NodeType | None, Tensor] | None = None,
        windows: Mapping[NodeType | None, Tensor] | None = None,
        choice: Choice = UNIFORM,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Draw in-edges of the part's own nodes along several edge types at once, as `draw` does along one.

        Args:
            ids, streams, times, windows: {destination type: [n]}.
            draws: a tuple (edge type, fanout, key) for each draw, which is for all ids of the destination type.
            replace, edge_ids, num_threads: as for `draw`.
            choice: as for `draw`; if it has keys, there is one for each of `draws`, in their order.
        Returns:
            As `draw` returns: the rows of the first draw, then the rows of the second, and so on.
        Raises:
            As `draw` does.
        """
        if found := misfit(choice, times, windows):
            raise ValueError(f"Part.draw: {found}. Pass the columns that the choice draws by, and no others.")
        by_row = {"streams": streams, "times": times, "windows": windows}
        reads, topology = choice.reads, self._topology
        if topology is None or not topology.is_valid:
            counts = {kind: (count, len(self.node_ids(kind))) for kind, count in self._num_nodes.items()}
            topology = self._topology = KeptTopology(counts, self._relations)
        rows, numbers, edge_types = [], [self._edge_number(edge_type) for edge_type, _, _ in draws], self.edge_types
        for node_type, type_ids in ids.items():
            checked = check_index_tensor("Part.draw", "ids", type_ids)
            rows.append(
                (
                    self._node_numbers[self._node_type(node_type)],
                    self.own_nodes(node_type).rows(checked).numpy(),  # -1, which is refused: another part's node
                    checked.long().numpy(),
                    *(_column_of(name, columns, node_type, checked) for name, columns in by_row.items()),
                )
            )
        missing = [edge_types[number] for number in numbers if ends_of(edge_types[number])[1] not in ids]
        if missing:
            raise ValueError(f"Part.draw: there are no ids for the draw of {shown(missing[0])}. Pass its destinations.")
        chosen = [None if reads is None else self.chosen("Part.draw", reads, draw[0]).argument() for draw in draws]
        try:
            indptr, neighbors, drawn_ids = _core.sample_hops(
                topology.topology,
                rows=rows,
                draws=[(number, fanout, key) for number, (_, fanout, key) in zip(numbers, draws, strict=True)],
                replace=replace,
                want_edge_ids=edge_ids,
                num_threads=num_threads,
                choice=choice.kernel(chosen),
            )
        except IndexError:
            for node_type, type_ids in ids.items():
                self.rows_of(type_ids, node_type)  # raises an error that names the node and its owner
            raise
        return torch.from_numpy(indptr), torch.from_numpy(neighbors), torch.from_numpy(drawn_ids) if edge_ids else None

    def chosen(self, where: str, reads: Choice, edge_type: EdgeType | str | None = None) -> Chosen:
        """Return the arrays by which a Choice draws along an edge type, such as sums of weights; made on first use.

        Args:
            where: name of the caller, for errors.
            reads: `choice.reads`, which names the attributes to draw by.
        Raises:
            As `draw` does.
        """
        kind = self._edge_type(edge_type)
        if (reads, kind) not in self._kept:
            reads.check(where, self, (kind,), self.edge_types)
        return self._kept.get(where, reads, kind, self._relations[kind])

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types."""
        return None not in self._num_nodes

    def forms(self) -> dict[tuple[str, Any, str], RowForm]:
        """Return {("node" or "edge", type or None, name): RowForm}: the dtype and shape of a row of each attribute."""
        return forms_of(
            self._node_attributes, {kind: relation.edge_attributes for kind, relation in self._relations.items()}
        )

    def _refuse_source_times(self, where: str, name: str) -> None:
        """Raise ValueError unless the times stored with the edges are those of the node attribute `name`."""
        refuse_other_times(where, name, self.node_time_attr)

    def refuse_change(self) -> None:
        """Raise ValueError if torch's version counters show that an array was changed in place after it was opened."""
        if self._versions != [version_of(values) for values in self._arrays.values()]:  # they may share one memory
            raise ValueError(
                f"Part: an array of part {self.part} was changed in place after it was opened, so no state can name "
                "what minibatches are made from. Partition the changed graph."
            )

    @property
    def kept_bytes(self) -> int:
        """The bytes of the arrays (see `chosen`) that the part has made so far to draw by weights or times."""
        return self._kept.num_bytes

    def _node_type(self, node_type: NodeType | None) -> Any:
        return type_in("Part", "node", node_type, self._num_nodes)

    def _edge_number(self, edge_type: EdgeType | None) -> int:
        known = edge_type if edge_type is None or type(edge_type) is tuple else self._edge_type(edge_type)
        number = self._edge_numbers.get(known)
        return self._edge_numbers[self._edge_type(edge_type)] if number is None else number

    def _edge_type(self, edge_type: EdgeType | str | None) -> Any:
        return type_in("Part", "edge", edge_type, self._num_edges)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling. All tensors are in one Together, so that a worker process maps one memory."""
        self.refuse_change()  # a copy would not show the change
        kept = {name: value for name, value in self.__dict__.items() if name not in _MADE_ANEW}
        return {**kept, "places": [*self._arrays], "tensors": Together([*self._arrays.values()])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: value for name, value in state.items() if name not in ("places", "tensors")})
        self._take(dict(zip(state["places"], state["tensors"], strict=True)))

    def __repr__(self) -> str:
        nodes = sum(self.node_ids(node_type).shape[0] for node_type in self.node_types)
        edges = sum(relation.num_edges for relation in self._relations.values())
        kinds = f", {len(self._num_nodes)} node types, {len(self._relations)} edge types"
        types = "" if None in self._num_nodes else kinds
        return f"Part({self.part} of {self.num_parts}, {nodes} nodes, {edges} edges{types}, of {self.partition_id})"
