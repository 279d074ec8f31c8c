"""NodeWeights and NodeTimes: node values that, with the random key, decide which nodes are drawn. A weight makes a node
more or less likely; a time says since when the node exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, dtype_name, shown
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import known_node_type, of_type
from datapipes.graph.choice import RowForm, by_text, check_form, check_values, rows_digest, version
from datapipes.graph.graph import Graph
from datapipes.graph.npy import to_numpy
from datapipes.processes.sharing import ForWorkers, Together

__all__: list[str] = []

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_NODE = 9  # that the sums of weights take


class NodeWeights:
    """Weights of the nodes of some types, and their running sums, from which the kernel draws nodes.

    The sums are made once. A loader's workers get the sums in shared memory; other pickled copies make their own.

    Args:
        where, name: the stage and its argument, for errors.
        weights: a float for each node, [num_nodes]; with types {node type: weights}.
    Raises:
        TypeError, ValueError: `weights` does not fit the nodes; the message names the first wrong weight.
        MemoryError: The sums exceed the memory that is left.
    """

    def __init__(self, where: str, name: str, graph: Graph, weights: Any) -> None:
        self._where, self._name = where, f"{where}: {name}"
        if isinstance(weights, Mapping) != graph.is_heterogeneous:
            wanted = "a dict {node type: weights}" if graph.is_heterogeneous else "a tensor"
            has = "types" if graph.is_heterogeneous else "no types"
            raise TypeError(f"{self._name} is a {type(weights).__name__}, but the graph has {has}. Pass {wanted}.")
        self._values: dict[Any, Tensor] = {}
        for key, values in weights.items() if isinstance(weights, Mapping) else [(None, weights)]:
            node_type = None if key is None else known_node_type(self._name, key, graph.node_types)
            self._values[node_type] = self._checked(node_type, values, graph.num_nodes_of(node_type))
        self._versions = self._versions_now()
        self._made = {node_type: self._sums(values) for node_type, values in self._values.items()}
        self._digests: dict[Any, str] = {}
        self._take()

    def _take(self) -> None:
        self._arguments = {
            node_type: _core.RowSums(*(sums.numpy() for sums in made)) for node_type, made in self._made.items()
        }

    def _versions_now(self) -> dict[Any, int | None]:
        return {node_type: version(values) for node_type, values in self._values.items()}

    @property
    def given(self) -> Any:
        """The weights as a tensor [num_nodes]; with types {node type: tensor}."""
        self.refuse_change()
        return self._values[None] if None in self._values else dict(self._values)

    def sums(self, node_type: Any) -> _core.RowSums:
        """Return the running sums of the weights of a node type, from which the kernel draws nodes.

        Raises:
            ValueError: The type has no weights, or some weights were changed after the sums were made.
        """
        self.refuse_change()
        self.refuse_missing(node_type)
        return self._arguments[node_type]

    def refuse_missing(self, node_type: Any) -> None:
        """Raise ValueError if the nodes of this type have no weights."""
        if node_type not in self._values:
            raise ValueError(
                f"{self._name} has weights of the node types {shown(sorted(self._values))}, but nodes of "
                f"{shown(node_type)} are drawn. Add weights of {shown(node_type)}; with equal weights, such as ones, "
                "each node is drawn alike."
            )

    def refuse_other(self, graph: Graph) -> None:
        """Raise ValueError if the weights are not those of the nodes of `graph`."""
        for node_type, values in self._values.items():
            count = graph.num_nodes_of(node_type) if node_type in graph.node_types else 0
            if len(values) != count:
                raise ValueError(
                    f"{self._name} has {len(values)} weights, of another stage, but the graph has {count} "
                    f"nodes{of_type(node_type)}. Give weights of this graph."
                )

    def refuse_change(self) -> None:
        """Raise ValueError if the weights were changed in place by torch; changes by NumPy are not noticed."""
        if self._versions != self._versions_now():
            raise ValueError(
                f"{self._name} was changed in place after the stage was built, which keeps the sums of the weights. "
                "Build the stage again after the change. A change of a tensor of which this is a view counts too."
            )

    def digest(self) -> Any:
        """Return the digest of the weights, with types {node type: digest}; computed once."""
        self.refuse_change()
        for node_type, values in self._values.items():
            if node_type not in self._digests:
                self._digests[node_type] = rows_digest(values)
        return by_text(self._digests)

    def _checked(self, node_type: Any, weights: Any, count: int) -> Tensor:
        name = f"{self._name}{of_type(node_type)}"
        values = as_tensor(self._where, name.removeprefix(f"{self._where}: "), weights)
        check_values(name, values, _DTYPES, count, convert="Convert it: .float().")
        values = values.detach().contiguous()
        wrong = (~((values >= 0) & values.isfinite())).nonzero()
        if wrong.numel() > 0:
            node = int(wrong[0])
            raise ValueError(
                f"{name} is {float(values[node])} at node {node}; weights must be finite and 0 or more. Correct it."
            )
        if not bool((values > 0).any()):
            raise ValueError(f"{name} is 0 at all {count} nodes, so none can be drawn. Give one of them a weight.")
        if not bool(values.sum(dtype=torch.float64).isfinite()):
            raise ValueError(f"{name} adds up to more than a float64 holds. Divide the weights by the largest.")
        return values

    def _sums(self, values: Tensor) -> list[Tensor]:
        count = values.shape[0]
        check_memory(self._where, "the sums of weights", BYTES_PER_NODE * count, "Leave out the weights.")
        made = _core.row_sums(
            torch.tensor([0, count]).numpy(),
            to_numpy(values).view("uint8"),
            dtype=dtype_name(values.dtype),
            what=self._name,
            num_threads=num_threads(),
        )
        return [torch.from_numpy(sums) for sums in made[:2]]

    def __getstate__(self) -> dict[str, Any]:
        self.refuse_change()
        left_out = ("_arguments", "_made", "_versions")
        kept = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**kept, "made": ForWorkers([sums for made in self._made.values() for sums in made])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        together = state.pop("made")
        self.__dict__.update(state)
        self._versions = self._versions_now()
        made = together.tensors if isinstance(together, Together) else together  # a Together after copy.copy
        tensors = iter(made)
        self._made = {
            node_type: [next(tensors), next(tensors)] if made else self._sums(values)
            for node_type, values in self._values.items()
        }
        self._take()

    def __repr__(self) -> str:
        return "<weights>" if None in self._values else f"<weights of {sorted(self._values)}>"


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
