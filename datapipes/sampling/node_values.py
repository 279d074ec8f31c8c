"""NodeWeights and NodeTimes: what decides with the random key which nodes are drawn. A weight makes a node more or less
likely; a time says since when it exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, dtype_name, shown
from datapipes.base.codec import join_key
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import known_node_type
from datapipes.graph.choice import version
from datapipes.graph.graph import Graph
from datapipes.graph.npy import to_numpy
from datapipes.graph.rows_digest import rows_digest
from datapipes.processes.sharing import ForWorkers, Together

__all__: list[str] = []

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BYTES_PER_NODE = 9  # of the sums of weights


class NodeWeights:
    """Weights of the nodes of some types, and the sums that nodes are drawn by, which are made once.

    Processes that a loader starts get the sums with the weights, in one memory; other copies make their own.

    Args:
        where, name: the stage and its argument, for errors.
        given: a float for each node, [num_nodes]; with types {node type: such a tensor}.
    Raises:
        TypeError, ValueError: They are no weights of the nodes; the message names the first wrong one.
        MemoryError: The sums exceed the memory that is left.
    """

    def __init__(self, where: str, name: str, graph: Graph, given: Any) -> None:
        self._where, self._what = where, f"{where}: {name}"
        if isinstance(given, Mapping) != graph.is_heterogeneous:
            wanted = "{node type: weights}, since the graph has types" if graph.is_heterogeneous else "a tensor"
            raise TypeError(f"{self._what} must be {wanted}, got {type(given).__name__}. Give it so.")
        typed = given if isinstance(given, Mapping) else {None: given}
        self._values: dict[Any, Tensor] = {}
        for of, values in typed.items():
            known = None if of is None else known_node_type(self._what, of, graph.node_types)
            self._values[known] = self._checked(known, values, graph.num_nodes_of(known))
        self._versions = {of: version(values) for of, values in self._values.items()}
        self._made = {of: self._sums(of, values) for of, values in self._values.items()}
        self._digests: dict[Any, str] = {}
        self._take()

    def _take(self) -> None:
        self._arguments = {of: _core.RowSums(*(each.numpy() for each in made[:2])) for of, made in self._made.items()}

    @property
    def given(self) -> Any:
        """The weights, [num_nodes]; with types {node type: weights}."""
        self.refuse_change()
        return self._values[None] if None in self._values else dict(self._values)

    def sums(self, node_type: Any) -> _core.RowSums:
        """Return what the kernel draws by; ValueError if the weights were changed since, or there are none."""
        self.refuse_change()
        self.refuse_missing(node_type)
        return self._arguments[node_type]

    def refuse_missing(self, node_type: Any) -> None:
        """Raise ValueError if there are no weights of the nodes of a type."""
        if node_type not in self._values:
            raise ValueError(
                f"{self._what} has no weights of the nodes of {shown(node_type)}, which are drawn; it has "
                f"{shown(sorted(self._values))}. Add them; equal weights, such as ones, draw each node alike."
            )

    def refuse_other(self, graph: Graph) -> None:
        """Raise ValueError if they are not weights of the nodes of a graph."""
        for of, values in self._values.items():
            count = graph.num_nodes_of(of) if of in graph.node_types else 0
            if len(values) != count:
                what = "nodes" if of is None else f"nodes of {of!r}"
                raise ValueError(
                    f"{self._what} has {len(values)} weights, of another stage, but the graph has {count} {what}. Give "
                    "weights of this graph."
                )

    def refuse_change(self) -> None:
        """Raise ValueError if the weights were changed in place, as far as torch counts that."""
        if self._versions != {of: version(values) for of, values in self._values.items()}:
            raise ValueError(
                f"{self._what} was changed in place after the stage was built, which keeps the sums of the weights. "
                "Build the stage again after the change. A change of a tensor that it is a view of counts too."
            )

    def digest(self) -> Any:
        """Return the digest of the weights, with types {node type: digest}; computed once."""
        self.refuse_change()
        for of, values in self._values.items():
            if of not in self._digests:
                self._digests[of] = rows_digest(values)
        return self._digests[None] if None in self._digests else {join_key(of): x for of, x in self._digests.items()}

    def _checked(self, of: Any, given: Any, count: int) -> Tensor:
        what = self._what if of is None else f"{self._what} of {of!r}"
        values = as_tensor(self._where, what.removeprefix(f"{self._where}: "), given)
        if values.dtype not in _DTYPES:
            names = ", ".join(dtype_name(dtype) for dtype in _DTYPES)
            raise TypeError(f"{what} must be one of {names}, got {dtype_name(values.dtype)}. Convert it: .float().")
        if tuple(values.shape) != (count,):
            raise ValueError(f"{what} must have shape [{count}], one for each node, got {list(values.shape)}. Give so.")
        if values.device.type != "cpu":
            raise ValueError(f"{what} must be in host memory, found it on {values.device}. Call .cpu().")
        values = values.detach().contiguous()
        wrong = (~((values >= 0) & values.isfinite())).nonzero()
        if wrong.numel() > 0:
            node = int(wrong[0])
            raise ValueError(
                f"{what} is {float(values[node])} at node {node}; weights must be finite and 0 or more. Correct it."
            )
        if not bool((values > 0).any()):
            raise ValueError(f"{what} is 0 at all {count} nodes, so none can be drawn. Give one of them a weight.")
        if not bool(values.sum(dtype=torch.float64).isfinite()):
            raise ValueError(f"{what} adds up to more than a float64 holds. Divide the weights by the largest.")
        return values

    def _sums(self, of: Any, values: Tensor) -> list[Tensor]:
        count = values.shape[0]
        check_memory(self._where, "the sums of weights", BYTES_PER_NODE * count, "Leave out the weights.")
        made = _core.row_sums(
            torch.tensor([0, count]).numpy(),
            to_numpy(values).view("uint8"),
            dtype=dtype_name(values.dtype),
            what=self._what,
            num_threads=num_threads(),
        )
        return [torch.from_numpy(each) for each in made[:2]]

    def __getstate__(self) -> dict[str, Any]:
        self.refuse_change()
        kept = {
            name: value for name, value in self.__dict__.items() if name not in ("_arguments", "_made", "_versions")
        }
        return {**kept, "made": ForWorkers([each for made in self._made.values() for each in made])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = state.pop("made")
        self.__dict__.update(state)
        self._versions = {of: version(values) for of, values in self._values.items()}
        tensors = iter(given.tensors if isinstance(given, Together) else given)  # copy.copy pickles nothing
        has_sums = bool(given.tensors if isinstance(given, Together) else given)
        self._made = {
            of: [next(tensors), next(tensors)] if has_sums else self._sums(of, values)
            for of, values in self._values.items()
        }
        self._take()

    def __repr__(self) -> str:
        return "<weights>" if None in self._values else f"<weights of {sorted(self._values)}>"


class NodeTimes:
    """Since when the nodes of some types exist: a node attribute, int64. Of a graph in parts its facts tell the rest.

    Raises:
        TypeError, ValueError: No node type has the attribute as times, or a graph in parts does not know its earliest
            nodes.
    """

    def __init__(self, where: str, graph: Graph, name: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(
                f"{where}: node_time_attr must be the name of a node attribute, got {shown(name)}. Pass one."
            )
        self._where, self._graph, self._name = where, graph, name
        forms = {of: form for (domain, of, each), form in graph.forms().items() if (domain, each) == ("node", name)}
        if not forms:
            known = sorted({each for domain, _, each in graph.forms() if domain == "node"})
            remedy = "Name one of these." if known else "Build the graph with node_attributes={name: times}."
            raise ValueError(
                f"{where}: node_time_attr is {shown(name)}, which no node has; the node attributes of the graph are "
                f"{shown(known)}. {remedy}{graph._anew}"
            )
        for of, form in forms.items():
            if form.dtype != torch.int64 or form.shape != ():
                found = dtype_name(form.dtype) if isinstance(form.dtype, torch.dtype) else form.dtype.__name__
                raise TypeError(
                    f"{where}: the node attribute {name!r}{'' if of is None else f' of {of!r}'} must hold times of "
                    f"int64, one for each node, got {found} {['num_nodes', *form.shape]}. Convert it.{graph._anew}"
                )
        self._found = graph._earliest_nodes(where, name)
        self._versions = self._now()

    def has(self, node_type: Any) -> bool:
        """Whether the nodes of a type have times."""
        return node_type in self._found

    def earliest(self, node_type: Any) -> int:
        """Return the smallest id among the nodes of a type that have its earliest time."""
        return self._found[node_type].node

    def digest(self) -> Any:
        """Return the digest of the times, with types {node type: digest}."""
        self.refuse_change()
        found: dict[Any, str] = {of: each.digest for of, each in self._found.items()}
        return found[None] if None in found else {join_key(of): each for of, each in found.items()}

    def refuse_change(self) -> None:
        """Raise ValueError if the times were changed since the stage was built."""
        if self._versions != self._now():
            raise ValueError(
                f"{self._where}: the times of the nodes, {self._name!r}, were changed after the stage was built. Build "
                "the stage again after the change."
            )

    def _now(self) -> dict[Any, Any]:
        if self._graph._in_parts:
            return {}
        of_type = {of: self._graph.node_attributes_of(of).get(self._name) for of in self._graph.node_types}
        return {of: (id(values), version(values)) for of, values in of_type.items()}
