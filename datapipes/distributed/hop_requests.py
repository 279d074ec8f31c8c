"""HopRequests: the requests of one minibatch to the parts, hop by hop, and the neighborhood from the answers. The class
does no I/O, so sync and async callers share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.distributed.asking_parts import Ask
from datapipes.distributed.requests.draw import Draw, Drawn, DrawRequest
from datapipes.graph import hops
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees


class HopRequests:
    """The hops of one minibatch over a graph in parts.

    `start` compacts the seeds and returns the requests of hop 0. `advance` takes the answers of a hop, in the order of
    the requests, and returns the requests of the next hop. Pass [] for a hop without requests. After the last hop
    `advance` returns None; then call `neighborhood`. Memory grows with the neighborhood.

    Args:
        core: the graph of the C++ core.
        seeds: {node type: ids}, as `HopPlan.checked` returns.
        keys, choice: what `plan.keyed(rng)` returned for the minibatch.
        trees: the groups of the seeds, if groups do not share nodes; else None.
    """

    def __init__(
        self,
        graph: Graph,
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
        self._blocks: list[Any] = []  # an entry for each hop so far
        self._local_seeds: list[Any] = []

    def start(self) -> list[Ask]:
        """Return the requests of hop 0.

        Raises:
            IndexError: A seed is not a node of the graph.
        """
        numbers = self._plan.node_numbers
        self._local_seeds, by_part = self._hops.start(
            [(numbers[node_type], ids.long().numpy()) for node_type, ids in self._seeds.items()]
        )
        return self._ask(by_part)

    def advance(self, answers: Sequence[Drawn]) -> list[Ask] | None:
        """Take the answers of a hop. Return the requests of the next hop; None after the last hop.

        Raises:
            TypeError, ValueError: An answer does not fit its request; the message names the part.
            MemoryError: The hop needs more memory than is left.
        """
        arrays = [self._arrays(ask.part, answer) for ask, answer in zip(self._asked, answers, strict=True)]
        blocks, by_part = self._hops.advance(arrays)
        self._blocks.append(blocks)
        return None if by_part is None else self._ask(by_part)

    def neighborhood(self) -> Sampled:
        """Return the neighborhood. Call this once, after the last hop."""
        nodes, groups = self._hops.finish()
        of_groups = groups if self._has_groups else None
        edge_types = self._plan.edge_types
        return hops.sampled(self._graph, self._seeds, nodes, self._local_seeds, self._blocks, of_groups, edge_types)

    def _ask(self, by_part: list[Any]) -> list[Ask]:
        """Turn what the core asks for into requests, at most one for each part. Keep the requests and return them."""
        types, hop, plan = self._graph.node_types, len(self._blocks), self._plan
        self._asked = []
        for part, rows, draws in by_part:
            ids, streams, times = {}, {}, {}
            for number, type_ids, type_streams, type_times in rows:
                ids[types[number]] = torch.from_numpy(type_ids)
                if type_streams is not None:  # either all node types have streams or none; times too
                    streams[types[number]] = torch.from_numpy(type_streams)
                if type_times is not None:
                    times[types[number]] = torch.from_numpy(type_times)
            wanted = tuple(Draw(plan.edge_types[i], plan.fanouts[hop][i], self._keys[hop][i]) for i in draws)
            choice = self._choice.at(hop, draws)
            request = DrawRequest(ids, wanted, plan.replace, plan.edge_ids, streams or None, times or None, choice)
            self._asked.append(Ask(part, request))
        return self._asked

    def _arrays(self, part: int, answer: Drawn) -> tuple[Any, Any, Any]:
        """Return (indptr, neighbors, edge_ids or None) of an answer, as arrays for the core.

        Dtypes and shapes are checked here, values by the core. DrawRequest has checked answers that came as messages,
        but answers of other Peers and of the local part are unchecked.
        """
        where = f"{self._plan.name}: part {part}"
        if not isinstance(answer, Drawn):
            raise TypeError(f"{where} must answer Drawn, got {type(answer).__name__}. Correct the Peers.")
        indptr = _array(where, "indptr", answer.indptr, torch.int64)
        neighbors = _array(where, "neighbors", answer.neighbors, self._graph.index_dtype)
        edge_ids = None if answer.edge_ids is None else _array(where, "edge_ids", answer.edge_ids, torch.int64)
        return indptr, neighbors, edge_ids


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
