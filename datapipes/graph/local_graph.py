"""LocalGraph: a graph whose arrays lie in this machine's memory; the base of CSCGraph and HeteroCSCGraph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from datapipes.base.array_digest import Hashed, array_digest, version_of
from datapipes.device.pinnable import Pinnable, without_pin
from datapipes.graph.edge_times import EdgeTimes, KeptTimes, edge_times
from datapipes.graph.graph import Graph
from datapipes.graph.graph_digest import TOPOLOGY, array_name, graph_digest
from datapipes.graph.row_weights import KeptWeights, Rows, RowWeights


class LocalGraph(Pinnable, Hashed, Graph):
    """A graph whose arrays can be page-locked: those of its edges, and all attributes."""

    _weights: KeptWeights | None = None  # those that samplers have asked for
    _times: KeptTimes | None = None  # likewise
    _written: dict[str, tuple[Tensor, int, str]] | None = None  # array, version and digest of what came from a folder

    def digest(self) -> str:
        """Return a digest of the topology, 32 hexadecimal digits; every byte counts, int32 ids as int64 ones.

        Each array is read once, at memory speed; one that `save` wrote has its digest in the folder, and is not read.

        Raises:
            ValueError: An array was replaced or changed in place after a minibatch or a digest was made from it.
        """
        found = self.array_digests()
        relations = {of: [found.get(array_name(kind, of)) for kind in TOPOLOGY] for of in self.edge_types}
        return graph_digest({of: self.num_nodes_of(of) for of in self.node_types}, relations)

    def hashed_arrays(self) -> dict[str, tuple[Tensor, bool]]:
        """Return the arrays of the topology; see Hashed."""
        return {name: (values, True) for name, values, in_topology in self._named_arrays() if in_topology}

    def came_with(self, digests: Mapping[str, str]) -> None:
        """Take the digests that a folder has for the arrays, by `array_name`; `refuse_damage` compares them."""
        named = {name: values for name, values, _ in self._named_arrays()}
        self._written = {name: (named[name], version_of(named[name]), digest) for name, digest in digests.items()}
        if {*digests} >= {*self.hashed_arrays()}:
            self.take_digests([digests[name] for name in self.hashed_arrays()])

    def refuse_damage(self, where: str) -> None:
        """Raise ValueError if an array that came from a folder is not that whose digest the folder has. Reads all."""
        for name, values, in_topology in self._named_arrays():
            given, version, digest = (self._written or {}).get(name, (None, 0, ""))
            if given is not values or version_of(values) != version:
                continue  # another array has taken its place
            if array_digest(values, as_int64=in_topology) != digest:
                raise ValueError(
                    f"{where}: {name} is not what graph.json names by its digest; the file was changed or damaged "
                    "after it was written. Copy the folder again, or save the graph again."
                )

    def _named_arrays(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield name, values, and whether they belong to the topology, of all arrays."""
        for edge_type in self.edge_types:
            relation = self.relation(edge_type)
            for kind in TOPOLOGY:
                values = getattr(relation, kind)
                if values is not None:
                    yield array_name(kind, edge_type), values, True
            for name, values in relation.edge_attributes.items():
                yield array_name("edge_attributes", edge_type, name), values, False
        for node_type in self.node_types:
            for name, values in self.node_attributes_of(node_type).items():
                yield array_name("node_attributes", node_type, name), values, False

    def row_weights(self, where: str, prob_name: str, edge_type: Any = None) -> RowWeights:
        """Return the weights that an edge attribute gives, as weighted sampling reads them: running sums by row.

        Made once, O(num_edges), and again when the attribute has another tensor or was changed in place. They take 9
        bytes an edge, and 8 a node if some weight is 0. Worker processes share them as they share the graph.

        Args:
            where: who asks, for errors.
            prob_name: the attribute, [num_edges] of bool, float16, bfloat16, float32 or float64; each 0 or more.
            edge_type: one of `edge_types`.
        Raises:
            TypeError, ValueError: There is no such attribute, or it holds no weights; the message names the first wrong
                one, and its place.
            MemoryError: The sums exceed the memory that is left.
        """
        if self._weights is None:
            self._weights = KeptWeights()
        relation = self.relation(edge_type)
        rows = Rows(relation.indptr, relation.edge_attributes, int(relation.indices.shape[0]))
        return self._weights.get(where, prob_name, edge_type, rows)

    def edge_times(
        self, where: str, edge_types: Sequence[Any], *, edge_time_attr: str | None, node_time_attr: str | None
    ) -> dict[Any, EdgeTimes | None]:
        """Return the times of the in-edges of each edge type, None where neither edges nor source nodes have some.

        Made once, O(num_edges), and again when an attribute is another tensor than before, or was changed in place.
        Worker processes share them as they share the graph.

        Args:
            where: who asks, for errors.
            edge_types: of those of the graph.
            edge_time_attr, node_time_attr: the attributes that hold times, int64, one for each edge or node; or None.
        Raises:
            TypeError: Times are not int64.
            ValueError: They have another shape, or lie on a device; or none of the edge types has the attribute.
            MemoryError: They exceed the memory that is left.
        """
        if self._times is None:
            self._times = KeptTimes()
        return edge_times(
            where, self, edge_types, edge_time_attr=edge_time_attr, node_time_attr=node_time_attr, kept=self._times
        )

    def _pinned_tensors(self) -> Iterator[Tensor]:
        return (values for _, values, _ in self._named_arrays())

    def __getstate__(self) -> dict[str, Any]:
        return {**without_pin(super().__getstate__()), "_kept": None, "_written": None}
