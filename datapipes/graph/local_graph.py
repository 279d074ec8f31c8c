"""LocalGraph: a graph whose arrays lie in this machine's memory; the base of CSCGraph and HeteroCSCGraph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import Hashed, array_digest, version_of
from datapipes.base.cached import cached_property
from datapipes.base.checks import check_bool, shown
from datapipes.base.errors import sentence
from datapipes.base.forms import RowForm
from datapipes.base.types import EdgeType, NodeType, ends_of, type_in
from datapipes.device.host_memory import Pinnable, without_pin
from datapipes.graph import edits, storage
from datapipes.graph.arrays import TOPOLOGY, ByType, GraphArrays, GraphRows, array_name, as_index_dtype, graph_digest
from datapipes.graph.checks import check_index_dtype, refuse_negative_ids
from datapipes.graph.choice import Choice, Chosen, KeptRows, forms_of
from datapipes.graph.graph import EarliestNode, FoundEdges, Graph, edge_items, edges_in_rows, ends_of_pairs
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.ppr import PprPlan
from datapipes.graph.walks import WalkPlan
from datapipes.seeds import HeteroItemSet, ItemSet

_Self = TypeVar("_Self", bound="LocalGraph")
_T = TypeVar("_T")


class LocalGraph(Pinnable, Hashed, Graph):
    """A graph whose arrays are in host memory. They can be page-locked for a GPU by `pin_memory_`."""

    _saved_as: ClassVar[str]  # the format of its folder
    _kept_rows: KeptRows | None = None  # cache of the arrays that choices have made
    _written: dict[str, tuple[Tensor, int, str]] | None = None  # {name: (array, version, digest in its folder)}

    @cached_property
    def _found(self) -> dict[Any, tuple[Tensor, int, Any]]:
        return {}  # {key: (array, version, result)} of `_found_in`

    @abstractmethod
    def _by_type(self) -> ByType:
        """Return the graph as dicts by type, in the order of the types; without types, None is the only type."""

    @classmethod
    @abstractmethod
    def _of(cls: type[_Self], arrays: GraphArrays) -> _Self:
        """Build a graph of this class from `arrays`; the constructor checks them."""

    def _arrays(self) -> GraphArrays:
        num_nodes, relations, node_attributes = self._by_type()
        return GraphArrays(
            {edge_type: (edges.indptr, edges.indices) for edge_type, edges in relations.items()},
            num_nodes,
            {edge_type: edges.edge_ids for edge_type, edges in relations.items() if edges.edge_ids is not None},
            node_attributes,
            {edge_type: edges.edge_attributes for edge_type, edges in relations.items()},
        )

    @property
    def node_types(self) -> tuple[Any, ...]:
        """The node types, sorted; (None,) without types."""
        return tuple(self._by_type().num_nodes)

    @property
    def edge_types(self) -> tuple[Any, ...]:
        """The edge types (src, rel, dst), sorted; (None,) without types. Random keys depend on a type's position."""
        return tuple(self._by_type().relations)

    @property
    def index_dtype(self) -> torch.dtype:
        """The dtype of all neighbors and of sampled ids: torch.int32 or torch.int64; int64 without edge types."""
        return next((relation.indices.dtype for relation in self._by_type().relations.values()), torch.int64)

    def num_nodes_of(self, node_type: NodeType | None) -> int:
        """Return the number of nodes of a type.

        Raises:
            TypeError, ValueError: There is no such type; the message names the nearest.
        """
        return self._of_type("node", node_type, self._by_type().num_nodes)

    def relation(self, edge_type: EdgeType | str | None) -> Any:
        """Return the edges of a type: indptr, indices, edge_ids or None, edge_attributes; errors as in num_nodes_of."""
        return self._of_type("edge", edge_type, self._by_type().relations)

    def node_attributes_of(self, node_type: NodeType | None) -> dict[str, Tensor]:
        """Return the attributes of the nodes of a type, {name: [num_nodes, ...]}; errors as in `num_nodes_of`."""
        return self._of_type("node", node_type, self._by_type().node_attributes)

    def _of_type(self, domain: str, type_: Any, by_type: Mapping[Any, _T]) -> _T:
        try:
            return by_type[type_]  # each minibatch asks a dozen times
        except (KeyError, TypeError):  # a text "src:rel:dst", or no type of this graph
            return by_type[type_in(storage.CLASSES[self._saved_as], domain, type_, by_type)]

    def max_edge_id_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the largest edge id of a type, -1 without edges; computed once. Errors as in `num_nodes_of`."""
        relation = self.relation(edge_type)
        if relation.edge_ids is None or relation.edge_ids.shape[0] == 0:
            return self.num_edges_of(edge_type) - 1
        return self._found_in(relation.edge_ids, lambda ids: int(ids.max()), edge_type)

    def _found_in(self, values: Tensor, find: Callable[[Tensor], _T], *key: Any) -> _T:
        """Return `find(values)`, cached under `key` until `values` is another tensor or has changed in place."""
        kept = self._found.get(key)
        if kept is None or kept[0] is not values or kept[1] != version_of(values):
            kept = self._found[key] = values, version_of(values), find(values)
        return kept[2]

    def save(self, path: str | Path) -> None:
        """Write the graph to the folder `path`: arrays.npy, which holds all arrays, and graph.json, which names them.

        Raises:
            FileExistsError: The folder holds a graph already.
            ValueError: graph.json would exceed 2 MiB, enough for 10,000 arrays.
        """
        storage.save(self._arrays(), Path(path))

    @classmethod
    def open(cls: type[_Self], path: str | Path, mmap: bool = True, *, verify: bool = False) -> _Self:
        """Return the graph that `save` wrote to the folder `path`.

        With `mmap` the arrays stay on disk and processes share their pages; all arrays take one descriptor and one
        mapping. Mapped files must keep their size while they are in use: a read past the end of a truncated file kills
        the process (SIGBUS), and no library can turn that into an error. Write a new folder instead of changing one, or
        use mmap=False.

        Args:
            mmap: leave the arrays on disk.
            verify: read all arrays once, and compare them with the digests that `save` wrote, as validate() does.
        Raises:
            FileNotFoundError: There is no graph at `path`.
            ValueError: A file is truncated, corrupt, no regular file, or does not fit the other file; the message names
                the file. Or the folder has a graph of the other class.
            MemoryError: The arrays exceed the memory that is left (without `mmap`).
            OSError: No file descriptor is left.
        """
        where = f"{storage.CLASSES[cls._saved_as]}.open"
        mmap, verify = check_bool(where, "mmap", mmap), check_bool(where, "verify", verify)
        arrays, promised = storage.load(Path(path), cls._saved_as, mmap)
        try:
            graph = cls._of(arrays)
            num_edges = {edge_type: graph.num_edges_of(edge_type) for edge_type in graph.edge_types}
            if (graph._by_type().num_nodes, num_edges) != (promised.node_types, promised.edge_types):
                raise ValueError(f"the files hold a {shown(graph)}")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{where}: the arrays in {path} do not fit {storage.HEADER}. Save the graph again. Building it failed "
                f"with: {sentence(error)}"
            ) from error
        graph._came_with(arrays.digests)
        if verify:
            graph._refuse_damage(where)
        return graph

    def validate(self: _Self) -> _Self:
        """Check the whole graph and return it.

        Raises:
            ValueError: indptr descends, a neighbor is no node of the source type, or an edge id is negative. The
                message names the edge type and the first wrong entry. Or an array from a folder differs from the array
                that `save` wrote.
        """
        for edge_type in self.edge_types:
            relation, num_sources = self.relation(edge_type), self.num_nodes_of(ends_of(edge_type)[0])
            try:
                _core.validate_csc(relation.indptr.numpy(), relation.indices.numpy(), num_sources=num_sources)
            except ValueError as error:
                if edge_type is None:
                    raise
                raise ValueError(f"graph, edge type {edge_type}: {str(error).removeprefix('graph: ')}") from error
            if relation.edge_ids is not None:
                refuse_negative_ids(relation.edge_ids.numpy(), edge_type)
        self._refuse_damage("graph")
        return self

    def with_index_dtype(self: _Self, dtype: torch.dtype) -> _Self:
        """Return the graph with all `indices` as int32 (half the memory and traffic) or int64; other arrays are shared.

        Raises:
            ValueError: The node ids do not fit into int32.
        """
        arrays = self._arrays()
        dtype = check_index_dtype(dtype, max(arrays.num_nodes.values(), default=0))
        relations = arrays.relations.items()
        converted = {edge_type: (indptr, as_index_dtype(indices, dtype)) for edge_type, (indptr, indices) in relations}
        return self._of(arrays._replace(relations=converted))

    def _without_edge_ids(self: _Self) -> _Self:
        """Return a graph like this one, in which the id of an edge is its position; arrays and digests are shared."""
        graph = self._of(self._arrays()._replace(edge_ids={}))
        names = {name for name, _, _ in graph._named_arrays()}
        graph._came_with({name: digest for name, (_, _, digest) in (self._written or {}).items() if name in names})
        return graph

    # --- other edges, implemented in edits.py

    def to_undirected(
        self: _Self, reverse_names: Mapping[EdgeType, Any] | Mapping[str, Any] | None = None, *, merge: bool = False
    ) -> _Self:
        """Return the graph with the reverse of each edge added. A self-loop is its own reverse and is not doubled.

        The in-edges of a node are first its present ones, in their order; then the reverses of its out-edges, in the
        order of these edges in the graph. A reverse has the values of its edge in all edge attributes. The id of an
        edge is its position in the new graph. The new edge attribute "original_id", int64, has ids of this graph: of
        the edge itself, or of the edge that it reverses. So edge features `w` of this graph become
        `w[new.edge_attributes["original_id"]]`. If the graph has this attribute already, its values are kept.

        With types, the reverses of an edge type from a node type to itself are added to that type. An edge type between
        two node types stays as it is, and its reverses form an edge type of their own.

        Args:
            reverse_names: {edge type: relation of its reverses}. With the relation "rev", the reverses of (src, rel,
                dst) get the edge type (dst, "rev", src), which must be new. Each edge type between two node types needs
                an entry; None in the place of the relation leaves the type without reverses.
            merge: join parallel edges, also those of this graph: of all edges from one node to another only the first
                stays, with its attributes. Without `merge`, an edge whose reverse is in the graph becomes two.
        Raises:
            TypeError, ValueError: A name is missing, unknown or taken; the message says which one.
        """
        return self._of(edits.to_undirected(self._arrays(), reverse_names, merge))

    def reversed(self: _Self) -> _Self:
        """Return the graph with each edge turned round, to sample along out-edges. With types, edges of (src, rel, dst)
        get the type (dst, rel, src). Ids and "original_id" are as in `to_undirected`.
        """
        return self._of(edits.turned_round(self._arrays()))

    def add_self_loops(
        self: _Self, edge_types: Sequence[EdgeType | str] | None = None, *, fill_value: Any = 1.0
    ) -> _Self:
        """Return the graph in which each node has a self-loop. A new self-loop is the last in-edge of its node.

        Ids and "original_id" are as in `to_undirected`; "original_id" is -1 for new self-loops.

        Args:
            edge_types: the edge types that get self-loops, each from a node type to itself; None for all such types.
            fill_value: the value of new self-loops in all edge attributes; or {name: value} for each attribute.
        Raises:
            TypeError, ValueError: A given edge type, or every edge type, joins two node types; or a value does not fit
                its attribute.
        """
        return self._of(edits.add_self_loops(self._arrays(), edge_types, fill_value))

    def remove_self_loops(self: _Self, edge_types: Sequence[EdgeType | str] | None = None) -> _Self:
        """Return the graph without the edges from a node to itself; the others keep their order and attributes.

        Ids and "original_id" are as in `to_undirected`, `edge_types` and errors as in `add_self_loops`. With types, if
        no edge type goes from a node type to itself, the result is the same graph.
        """
        return self._of(edits.remove_self_loops(self._arrays(), edge_types))

    def _edge_items(self, edge_type: Any, edge_ids: Any) -> ItemSet | HeteroItemSet:
        return edge_items(self._by_type().relations, dict.fromkeys(self.node_types), edge_type, edge_ids)

    def in_degrees(self, edge_type: EdgeType | str | None = None) -> Tensor:
        """Return the number of in-edges of each destination node, int64 [num_nodes of dst], parallel edges included.
        Raise TypeError or ValueError if there is no such edge type.
        """
        indptr: Tensor = self.relation(edge_type).indptr
        return indptr.diff()

    def out_degrees(self, edge_type: EdgeType | str | None = None) -> Tensor:
        """Return the number of out-edges of each source node, int64 [num_nodes of src]. Reads all edges. Raise
        TypeError or ValueError if there is no such edge type, or the graph is corrupt.
        """
        indices = self.relation(edge_type).indices
        count = self.num_nodes_of(ends_of(type_in("out_degrees", "edge", edge_type, self.edge_types))[0])
        if indices.shape[0] > 0 and not 0 <= int(indices.min()) <= int(indices.max()) < count:
            self.validate()  # raises
        return torch.bincount(indices, minlength=count)

    def num_edges_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the number of edges of a type; errors as in `relation`."""
        return int(self.relation(edge_type).indices.shape[0])

    def digest(self) -> str:
        """Return a digest of the topology, 32 hexadecimal digits; the same for int32 and int64 ids.

        Each array is read once, at memory speed. Arrays that `save` wrote have digests in the folder and are not read.

        Raises:
            ValueError: An array was replaced or changed in place after a minibatch or a digest was made from it.
        """
        digests = self._array_digests()
        relations = {one: [digests.get(array_name(kind, one)) for kind in TOPOLOGY] for one in self.edge_types}
        return graph_digest(self._by_type().num_nodes, relations)

    def _hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return {name: (array, True)} of the topology's arrays; True: int32 and int64 ids have the same digest."""
        return {name: (values, True) for name, values, in_topology in self._named_arrays() if in_topology}

    def _came_with(self, digests: Mapping[str, str]) -> None:
        """Remember `digests`, {`array_name`: digest} from the graph's folder, for `digest` and `_refuse_damage`."""
        arrays = [*self._named_arrays()]
        named = {name: values for name, values, _ in arrays}
        self._written = {name: (named[name], version_of(named[name]), digest) for name, digest in digests.items()}
        in_topology = [name for name, _, in_topology in arrays if in_topology]
        if {*digests} >= {*in_topology}:
            self._take_digests([digests[name] for name in in_topology])

    def _refuse_damage(self, where: str) -> None:
        """Raise ValueError if an array has another digest than its folder says: it was damaged. Reads all arrays."""
        for name, values, in_topology in self._named_arrays():
            written, version, digest = (self._written or {}).get(name, (None, 0, ""))
            if written is not values or version_of(values) != version:
                continue  # another array has taken its place
            if array_digest(values, as_int64=in_topology) != digest:
                raise ValueError(
                    f"{where}: {name} does not match its digest in graph.json; the file was changed or damaged "
                    "after it was written. Copy the folder again, or save the graph again."
                )

    def _named_arrays(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield (name, values, whether it belongs to the topology) for each array."""
        for kind, type_, name, values in self._arrays().each():
            yield array_name(kind, type_, name), values, kind in TOPOLOGY

    def hops(
        self,
        plan: HopPlan,
        seeds: Any,
        keys: list[list[int]],
        choice: Choice,
        trees: SeedTrees | None = None,
        num_seeds: Sequence[int] = (),
    ) -> Sampled:
        """Sample in one call of the C++ core; see Graph.hops. `num_seeds`: of each type, if the plan has padding."""
        typed = plan.checked(self, seeds, choice, trees)
        return plan.drawn(self.topology(), typed, keys, choice, trees, num_seeds)

    def drawn(self, plan: WalkPlan | PprPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
        plan.refuse_other(self)
        return plan.drawn(self.topology(), seeds, keys)

    def has_edges(self, pairs: Tensor, edge_type: EdgeType | str | None = None) -> FoundEdges:
        checked_type = type_in("has_edges", "edge", edge_type, self.edge_types)
        sources, destinations = ends_of_pairs(pairs)
        src, _ = ends_of(checked_type)
        return edges_in_rows(self.relation(checked_type), destinations, sources, self.num_nodes_of(src))

    def _node_times(self, name: str, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        return self.node_attributes_of(node_type)[name][ids]

    def _earliest_nodes(self, where: str, name: str) -> dict[NodeType | None, EarliestNode]:
        earliest: dict[NodeType | None, EarliestNode] = {}
        for node_type in self.node_types:
            times = self.node_attributes_of(node_type).get(name)
            if times is not None and times.shape[0] > 0:
                earliest[node_type] = self._found_in(times, EarliestNode.of, name, node_type)
        return earliest

    def choose(self, where: str, choice: Choice, edge_types: Sequence[Any]) -> dict[Any, Chosen]:
        """Return {edge type: Chosen}, the arrays from which `choice` draws; {} if it reads no attributes. The arrays
        are cached and shared with worker processes, and made again if an attribute was replaced or changed in place.
        """
        reads = choice.reads
        if reads is None:
            return {}
        reads.check(where, self, edge_types)
        if self._kept_rows is None:
            self._kept_rows = KeptRows()
        kept = self._kept_rows
        return {edge_type: kept.get(where, reads, edge_type, self.rows(edge_type)) for edge_type in edge_types}

    def _refuse_changes(self, plan: HopPlan | WalkPlan) -> None:
        for edge_type, chosen in plan.kept():
            chosen.refuse_change(plan.name, self.rows(edge_type))

    def _choice_digests(self, plan: HopPlan | WalkPlan) -> dict[Any, list[str] | None]:
        self._refuse_changes(plan)
        return {edge_type: chosen.digests() for edge_type, chosen in plan.chosen.items()}

    def forms(self) -> dict[tuple[str, Any, str], RowForm]:
        """Return {("node" or "edge", type or None, name): RowForm} of all attributes."""
        arrays = self._arrays()
        return forms_of(arrays.node_attributes, arrays.edge_attributes)

    def rows(self, edge_type: Any = None) -> GraphRows:
        """Return the in-edges of an edge type with the attributes that a Choice may read."""
        relation, src = self.relation(edge_type), ends_of(edge_type)[0]
        of_sources = self.node_attributes_of(src)
        return GraphRows(
            relation.indptr, relation.indices, relation.edge_attributes, of_sources, self.num_nodes_of(src)
        )

    def _pinned_tensors(self) -> Iterator[Tensor]:
        return (values for _, values, _ in self._named_arrays())

    def __getstate__(self) -> dict[str, Any]:
        state = without_pin(super().__getstate__())
        state.pop("_found", None)  # its entries contain arrays, which would be pickled twice
        return {**state, "_kept": None, "_written": None}
