"""HopRequests: what one minibatch asks of the parts, hop by hop, and what it makes of their answers. It does no
I/O, so sync and async callers share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.base.types import ends_of
from datapipes.distributed.asking_parts import Ask, AsksParts
from datapipes.distributed.requests.draw import Draw, Drawn, DrawRequest
from datapipes.graph.choice import Choice
from datapipes.graph.graph import name_of
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees, sampled


class HopRequests:
    """The hops of one minibatch over a graph in parts, with hash maps: memory grows by what the minibatch finds.

    `start` numbers the seeds and returns what hop 0 asks of the parts. `advance` takes the answers, aligned with what
    was asked, and returns what the next hop asks; a hop may ask nothing, and is advanced with []. After the last hop
    it returns None, and `sampled` has the neighborhood.

    Args:
        core: the graph as the core takes it.
        seeds: as `HopPlan.checked` returns them.
        keys, choice: what the minibatch draws with, `plan.keyed(rng)`.
        trees: the groups of the seeds, where these have nodes of their own.
    """

    def __init__(
        self,
        graph: AsksParts,
        core: _core.GraphInParts,
        plan: HopPlan,
        seeds: Mapping[Any, Tensor],
        keys: list[list[int]],
        choice: Choice,
        trees: SeedTrees | None,
    ) -> None:
        self._graph, self._plan, self._keys, self._choice = graph, plan, keys, choice
        self._seeds, self._has_groups = seeds, trees is not None
        self._hops = _core.HopsOverParts(
            core,
            groups=None if trees is None else trees.core(self._seeds),
            sampled=plan.edge_numbers,
            fanouts=plan.fanouts,
            replace=plan.replace,
            only_new=plan.only_new,
            want_edge_ids=plan.edge_ids,
            narrow=graph.index_dtype == torch.int32,
        )
        self._asked: list[Ask] = []
        self._found: list[Any] = []  # of each hop so far
        self._local_seeds: list[Any] = []

    def start(self) -> list[Ask]:
        """Return what hop 0 asks.

        Raises:
            IndexError: A seed is not a node of the graph.
        """
        numbers = self._plan.node_numbers
        self._local_seeds, asks = self._hops.start(
            [(numbers[node_type], ids.long().numpy()) for node_type, ids in self._seeds.items()]
        )
        return self._asks(asks)

    def advance(self, answers: Sequence[Sequence[Drawn]]) -> list[Ask] | None:
        """Return what the next hop asks; None after the last one.

        Raises:
            TypeError, ValueError: An answer is not what was asked for; the message names the part.
            MemoryError: The hop needs more memory than is left.
        """
        arrays = [self._arrays(ask.part, answer) for ask, answer in zip(self._asked, answers, strict=True)]
        hop, asks = self._hops.advance(arrays)
        self._found.append(hop)
        return None if asks is None else self._asks(asks)

    def sampled(self) -> Sampled:
        """Return the neighborhood; once, after the last hop."""
        nodes, groups = self._hops.finish()
        of_groups = groups if self._has_groups else None
        edge_types = self._plan.edge_types
        return sampled(self._graph, self._seeds, nodes, self._local_seeds, self._found, of_groups, edge_types)

    def _asks(self, asks: list[Any]) -> list[Ask]:
        types, hop, plan = self._graph.node_types, len(self._found), self._plan
        self._asked = []
        for part, rows, draws in asks:
            wanted = tuple(Draw(plan.edge_types[i], plan.fanouts[hop][i], self._keys[hop][i]) for i in draws)
            ids, streams, times = (_column({types[number]: columns[i] for number, *columns in rows}) for i in range(3))
            assert ids is not None
            choice = self._choice.at(hop, draws)
            request = DrawRequest(ids, wanted, plan.replace, plan.edge_ids, streams, times, choice)
            self._asked.append(Ask(part, request))
        return self._asked

    def _arrays(self, part: int, answer: Sequence[Drawn]) -> list[tuple[Any, Any, Any]]:
        """Return an answer as the core takes it, which checks the rest."""
        arrays, where = [], f"{self._plan.name}: part {part}"
        if not isinstance(answer, (list, tuple)) or not all(isinstance(drawn, Drawn) for drawn in answer):
            raise TypeError(f"{where} must answer a list of Drawn, got {type(answer).__name__}. Correct the Peers.")
        for drawn in answer:
            indptr = _array(where, "indptr", drawn.indptr, torch.int64)
            neighbors = _array(where, "neighbors", drawn.neighbors, self._graph.index_dtype)
            edge_ids = None if drawn.edge_ids is None else _array(where, "edge_ids", drawn.edge_ids, torch.int64)
            arrays.append((indptr, neighbors, edge_ids))
        return arrays


def _column(arrays: dict[Any, Any]) -> dict[Any, Tensor] | None:
    """Return a column of the rows of a request, by node type; None if there is none."""
    if any(values is None for values in arrays.values()):
        return None
    return {node_type: torch.from_numpy(values) for node_type, values in arrays.items()}


def _array(where: str, name: str, tensor: Tensor, dtype: torch.dtype) -> Any:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where} must answer {name} as a tensor, got {type(tensor).__name__}. Correct the Peers.")
    if tensor.dtype != dtype or tensor.ndim != 1 or tensor.device.type != "cpu":
        raise ValueError(
            f"{where} answered {name} of {dtype_name(tensor.dtype)} {list(tensor.shape)} on "
            f"{tensor.device}; they must be {dtype_name(dtype)} of 1 dimension in host memory. Look at the server of "
            "this part: its version, its files."
        )
    return tensor.contiguous().numpy()


def core_graph(name: str, graph: AsksParts, nodes: Sequence[Tensor]) -> _core.GraphInParts:
    """Return a graph in parts as the core takes it: its types, and views of the book's maps.

    Args:
        name: of the stage, for errors.
        nodes: the map of each node type.
    """
    numbers = {type_: number for number, type_ in enumerate(graph.node_types)}
    maps = [(name_of(type_), graph.num_nodes_of(type_), ids.numpy()) for type_, ids in zip(numbers, nodes, strict=True)]
    ends = [(type_, *ends_of(type_)) for type_ in graph.edge_types]
    relations = [(numbers[src], numbers[dst], name_of(type_)) for type_, src, dst in ends]
    return _core.GraphInParts(graph.facts.num_parts, maps, relations, name)
