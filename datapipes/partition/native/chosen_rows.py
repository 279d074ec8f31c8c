"""ChosenRows: what a part makes of its attributes to choose in-edges by them; each once, when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name, shown
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import type_text
from datapipes.graph.coarse_times import CoarseTimes, TimedRows, coarse_times
from datapipes.graph.row_weights import KeptWeights, Rows, RowWeights
from datapipes.graph.rows_digest import rows_digest
from datapipes.partition.native.choices import ByNumber, ByTime, ByWeight, Choice
from datapipes.partition.native.part_arrays import PartRelation
from datapipes.processes.sharing import Together, zeros_for_workers


class ChosenRows:
    """The times and weights of a part's in-edges, as they are drawn by. Any thread may ask.

    Times of edges alone, and of source nodes alone, are used as they are stored; a byte a row says which rows are
    sorted, and where they are not, coarse times take 2 bytes an edge. Both together take 16 bytes an edge more. Weights
    take what RowWeights says. Other processes get what was made until then.

    Args:
        relations: {edge type: the part's in-edges}.
        node_time_attr: the node attribute whose values are stored as `source_times`.
    """

    def __init__(self, relations: Mapping[Any, PartRelation], node_time_attr: str | None) -> None:
        self._begin(relations, node_time_attr, KeptWeights(), {})

    def _begin(
        self,
        relations: Mapping[Any, PartRelation],
        node_time_attr: str | None,
        weights: KeptWeights,
        made: dict[tuple[Any, ...], list[Tensor]],
    ) -> None:
        self._relations, self._node_time_attr = relations, node_time_attr
        self._weights, self._made = weights, made
        self._digests: dict[tuple[Any, ...], list[str]] = {}
        self._making = threading.Lock()  # a server's threads share what is made

    @property
    def num_bytes(self) -> int:
        """Bytes of memory of what was made."""
        return self._weights.num_bytes + sum(each.nbytes for made in [*self._made.values()] for each in made)

    def arguments(
        self, where: str, edge_type: Any, choice: Choice | None, times: Tensor | None, node_ids: Tensor
    ) -> dict[str, Any]:
        """Return what the kernel takes for a choice.

        Args:
            where: who asks, for errors.
            edge_type: one of the part's.
            times: int64 [n], the time of each row.
            node_ids: of the edge type's destinations that the part owns.
        Raises:
            TypeError, ValueError: The part has no such attribute, or other values; the message says what to do.
            MemoryError: What is to be made exceeds the memory that is left.
        """
        if (times is not None) != isinstance(choice, ByTime):
            raise ValueError(f"{where}: rows have times if they are drawn by time, and only then. Give both or none.")
        if isinstance(choice, ByNumber):
            return {"layers": _layers(choice)}
        if isinstance(choice, ByWeight):
            return {"weights": self._row_weights(where, edge_type, choice, node_ids).sums()}
        if choice is None or times is None:
            return {}
        of_edges = _core.EdgeTimes(
            [self._times(where, edge_type, choice)],
            last=choice.strategy == "last",
            inclusive=choice.inclusive,
            window=choice.time_window,
        )
        return {"edge_times": of_edges, "times": times.numpy()}

    def digests(self, where: str, edge_type: Any, choice: Choice, node_ids: Tensor) -> list[str] | None:
        """Return the digests of the values that a choice reads, which add up over the parts; None if there are none.

        Raises:
            As `arguments` does.
        """
        if isinstance(choice, ByNumber):
            return None
        if isinstance(choice, ByWeight):
            return [self._row_weights(where, edge_type, choice, node_ids).digest]
        values = self._time_values(where, edge_type, choice)
        if values is None:
            return None
        key = edge_type, choice.reads
        with self._making:
            if key not in self._digests:
                indptr = self._relations[edge_type].indptr
                self._digests[key] = [rows_digest(each, indptr, node_ids=node_ids) for each in values]
            return self._digests[key]

    def _row_weights(self, where: str, edge_type: Any, choice: ByWeight, node_ids: Tensor) -> RowWeights:
        relation = self._relations[edge_type]
        rows = Rows(relation.indptr, relation.edge_attributes, relation.num_edges, node_ids)
        return self._weights.get(where, choice.prob_name, edge_type, rows)

    def _times(self, where: str, edge_type: Any, choice: ByTime) -> tuple[Any, Any, Any, Any] | None:
        """Return the times of the in-edges of an edge type as the kernel takes them; None without times."""
        values = self._time_values(where, edge_type, choice)
        if values is None:
            return None
        indptr = self._relations[edge_type].indptr
        order = self._kept(("order", edge_type, choice.reads), lambda: _order_of_rows(where, indptr, *values))
        sorted_rows, *coarse = order
        latest, *earliest = (each.numpy() for each in values)
        return latest, earliest[0] if earliest else None, sorted_rows.numpy(), CoarseTimes(*coarse).arrays()

    def _time_values(self, where: str, edge_type: Any, choice: ByTime) -> list[Tensor] | None:
        """Return the latest and, where they differ, the earliest times of the in-edges; None without times."""
        given = self._given(where, edge_type, choice)
        if len(given) < 2:
            return given or None
        of_edges, of_sources = given
        return self._kept(("times", edge_type, choice.reads), lambda: _both(where, of_edges, of_sources))

    def _given(self, where: str, edge_type: Any, choice: ByTime) -> list[Tensor]:
        """Return the times of edges and of source nodes, those that are there."""
        found, relation = [], self._relations[edge_type]
        of = "" if edge_type is None else f" of {type_text(edge_type)}"
        if choice.edge_time_attr is not None:
            name = choice.edge_time_attr
            known = {each for relation in self._relations.values() for each in relation.edge_attributes}
            if name not in known:
                raise ValueError(
                    f"{where}: no edge attribute {shown(name)}, which is to hold times; the part has "
                    f"{shown(sorted(known))}. Name one of these, or partition the graph with it."
                )
            if name in relation.edge_attributes:
                found.append(_checked(where, f"edge attribute {shown(name)}{of}", relation.edge_attributes[name]))
        if choice.node_time_attr is not None:
            refuse_other_times(where, choice.node_time_attr, self._node_time_attr)
            if relation.source_times is not None:
                found.append(_checked(where, f"times of the sources{of}", relation.source_times))
        return found

    def _kept(self, key: tuple[Any, ...], make: Any) -> list[Tensor]:
        found = self._made.get(key)
        if found is None:
            with self._making:
                found = self._made.get(key)
                if found is None:
                    found = self._made[key] = make()
        return found

    def over(self, relations: Mapping[Any, PartRelation]) -> ChosenRows:
        """Return self, with the relations of the part; after it came from another process."""
        self._relations = relations
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with all tensors together, so that they reach workers as one mapping."""
        with self._making:
            made = {key: [*tensors] for key, tensors in self._made.items()}
        return {
            "node_time_attr": self._node_time_attr,
            "weights": self._weights,
            "counts": {key: len(tensors) for key, tensors in made.items()},
            "tensors": Together([each for tensors in made.values() for each in tensors]),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = state["tensors"]
        tensors = iter(given.tensors if isinstance(given, Together) else given)  # copy.copy pickles nothing
        made = {key: [next(tensors) for _ in range(count)] for key, count in state["counts"].items()}
        self._begin({}, state["node_time_attr"], state["weights"], made)


def refuse_other_times(where: str, wanted: str, stored: str | None) -> None:
    """Raise ValueError unless the partition has stored the times of sources that are wanted with its edges."""
    if wanted != stored:
        found = "none" if stored is None else shown(stored)
        raise ValueError(
            f"{where}: node_time_attr is {shown(wanted)}, but the node_time_attr of the partition is {found}; a part "
            "draws by the times of source nodes only if they are stored with its edges. Partition the graph again: "
            f"Partitioner(data, num_parts, root, node_time_attr={wanted!r})."
        )


def _layers(choice: ByNumber) -> _core.Layers:
    next_keys, offset_keys = ([[pair[i] for pair in choice.keys]] if choice.keys else [] for i in range(2))
    return _core.Layers(
        dependency=choice.dependency, until_next=choice.until_next, next_keys=next_keys, offset_keys=offset_keys
    )


def _checked(where: str, what: str, times: Tensor) -> Tensor:
    if times.dtype != torch.int64:
        raise TypeError(
            f"{where}: {what} must hold times of int64, got {dtype_name(times.dtype)}. Convert it, in a unit that "
            "fits, and partition the graph again."
        )
    if times.ndim != 1:
        raise ValueError(f"{where}: {what} must have a time for each, got {list(times.shape)}. Give one for each.")
    return times


def _both(where: str, of_edges: Tensor, of_sources: Tensor) -> list[Tensor]:
    check_memory(where, "the times of edges and sources together", 2 * of_edges.nbytes, "Draw by one of the two.")
    latest, earliest = zeros_for_workers([(tuple(of_edges.shape), torch.int64)] * 2)
    return [torch.maximum(of_edges, of_sources, out=latest), torch.minimum(of_edges, of_sources, out=earliest)]


def _order_of_rows(where: str, indptr: Tensor, latest: Tensor, earliest: Tensor | None = None) -> list[Tensor]:
    """Return `sorted_rows` and the coarse times."""
    sorted_rows = torch.zeros(indptr.shape[0] - 1, dtype=torch.uint8)
    _core.find_sorted_rows(
        indptr.numpy(),
        latest.numpy(),
        sorted_rows.numpy(),
        earliest=None if earliest is None else earliest.numpy(),
        num_threads=num_threads(),
    )
    return [sorted_rows, *coarse_times(where, [TimedRows(indptr, latest, sorted_rows)])[0]]
