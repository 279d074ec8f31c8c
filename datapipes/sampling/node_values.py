"""NodeWeights and NodeTimes: node values that, with the random key, decide which nodes are drawn. A weight makes a node
more or less likely; a time says since when the node exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import shown
from datapipes.base.forms import RowForm, check_form
from datapipes.base.types import known_node_type, of_type
from datapipes.graph.choice import by_text, rows_digest, version
from datapipes.graph.graph import Graph
from datapipes.seeds.weights import Weights

__all__: list[str] = []


class NodeWeights:
    """Weights of the nodes of some types, and for each type their running sums, from which the kernel draws nodes.

    Args:
        where, name: the stage and its argument, for errors.
        weights: a float for each node, [num_nodes]; with types {node type: weights}.
    Raises:
        TypeError, ValueError: `weights` does not fit the nodes; the message names the first wrong weight.
        MemoryError: The sums exceed the memory that is left.
    """

    def __init__(self, where: str, name: str, graph: Graph, weights: Any) -> None:
        self._name = f"{where}: {name}"
        if isinstance(weights, Mapping) != graph.is_heterogeneous:
            wanted = "a dict {node type: weights}" if graph.is_heterogeneous else "a tensor"
            has = "types" if graph.is_heterogeneous else "no types"
            raise TypeError(f"{self._name} is a {type(weights).__name__}, but the graph has {has}. Pass {wanted}.")
        self._of: dict[Any, Weights] = {}
        for key, values in weights.items() if isinstance(weights, Mapping) else [(None, weights)]:
            node_type = None if key is None else known_node_type(self._name, key, graph.node_types)
            counts = {node_type: graph.num_nodes_of(node_type)}
            self._of[node_type] = Weights(where, name, "node", {node_type: values}, counts)
        self._digests: dict[Any, str] = {}

    def _values(self) -> dict[Any, Tensor]:
        return {
            node_type: weights.given if node_type is None else weights.given[node_type]
            for node_type, weights in self._of.items()
        }

    @property
    def given(self) -> Any:
        """The weights as a tensor [num_nodes]; with types {node type: tensor}."""
        values = self._values()
        return values.get(None, values)

    def sums(self, node_type: Any) -> _core.RowSums:
        """Return the running sums of the weights of a node type, from which the kernel draws nodes.

        Raises:
            ValueError: The type has no weights, or some weights were changed after the sums were made.
        """
        self.refuse_change()
        self.refuse_missing(node_type)
        return self._of[node_type].sums()

    def refuse_missing(self, node_type: Any) -> None:
        """Raise ValueError if the nodes of this type have no weights."""
        if node_type not in self._of:
            raise ValueError(
                f"{self._name} has weights of the node types {shown(sorted(self._of))}, but nodes of "
                f"{shown(node_type)} are drawn. Add weights of {shown(node_type)}; with equal weights, such as ones, "
                "each node is drawn alike."
            )

    def refuse_other(self, graph: Graph) -> None:
        """Raise ValueError if the weights are not those of the nodes of `graph`."""
        for node_type, weights in self._of.items():
            count = graph.num_nodes_of(node_type) if node_type in graph.node_types else 0
            if weights.counts[node_type] != count:
                raise ValueError(
                    f"{self._name} has {weights.counts[node_type]} weights, of another stage, but the graph has "
                    f"{count} nodes{of_type(node_type)}. Give weights of this graph."
                )

    def refuse_change(self) -> None:
        """Raise ValueError if the weights were changed in place by torch; changes by NumPy are not noticed."""
        for weights in self._of.values():
            weights.refuse_change()

    def digest(self) -> Any:
        """Return the digest of the weights, with types {node type: digest}; computed once."""
        for node_type, values in self._values().items():
            if node_type not in self._digests:
                self._digests[node_type] = rows_digest(values)
        return by_text(self._digests)

    def __repr__(self) -> str:
        return "<weights>" if None in self._of else f"<weights of {sorted(self._of)}>"


class NodeTimes:
    """A node attribute, int64, with the time since when each node exists; some node types may lack the attribute.

    The times of a graph in parts are not read: the partition has stored their digest and the earliest nodes.

    Raises:
        TypeError, ValueError: No node type has times under this name, or a graph in parts does not know its earliest
            nodes.
    """

    def __init__(self, where: str, graph: Graph, name: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"{where}: node_time_attr must be the name of a node attribute, got {shown(name)}. Pass one."
            )
        self._where, self._graph, self._name = where, graph, name
        names: dict[str, dict[Any, RowForm]] = {}  # {name of an attribute: {node type: form}}
        for (domain, node_type, attribute), form in graph.forms().items():
            if domain == "node":
                names.setdefault(attribute, {})[node_type] = form
        if name not in names:
            remedy = "Name one of these." if names else "Build the graph with node_attributes={name: times}."
            raise ValueError(
                f"{where}: node_time_attr is {shown(name)}, which no node has; the node attributes of the graph are "
                f"{shown(sorted(names))}. {remedy}{graph._anew}"
            )
        for node_type, form in names[name].items():
            attribute = f"{where}: the node attribute {name!r}{of_type(node_type)}, which holds times,"
            check_form(attribute, form, [torch.int64], "num_nodes", anew=graph._anew)
        self._earliest = graph._earliest_nodes(where, name)
        self._versions = self._versions_now()

    def has(self, node_type: Any) -> bool:
        """Return whether the nodes of a type have times."""
        return node_type in self._earliest

    def earliest(self, node_type: Any) -> int:
        """Return the node of this type that has the earliest time. Of several such nodes, return the smallest id."""
        return self._earliest[node_type].node

    def digest(self) -> Any:
        """Return the digest of the times, with types {node type: digest}."""
        self.refuse_change()
        return by_text({node_type: node.digest for node_type, node in self._earliest.items()})

    def refuse_change(self) -> None:
        """Raise ValueError if the times were changed since the stage was built."""
        if self._versions != self._versions_now():
            raise ValueError(
                f"{self._where}: the times of the nodes, {self._name!r}, were changed after the stage was built. Build "
                "the stage again after the change."
            )

    def _versions_now(self) -> dict[Any, Any]:
        if self._graph._in_parts:
            return {}
        graph, name = self._graph, self._name
        times = {node_type: graph.node_attributes_of(node_type).get(name) for node_type in graph.node_types}
        return {node_type: (id(values), version(values)) for node_type, values in times.items()}
