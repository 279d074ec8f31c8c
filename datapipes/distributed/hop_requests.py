"""HopRequests: samples the neighborhood of one minibatch over a partitioned graph. For each hop it says which requests
to send to the parts; from the answers it builds the neighborhood. The class does no I/O, so sync and async callers
share it.
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
    """Samples the neighborhood of one minibatch over a partitioned graph; the caller sends the requests.

    First call `start`: it returns the requests of hop 0. Then call `advance` after each hop, with the answers in the
    order of the requests ([] if there were none). It returns the requests of the next hop, or None after the last hop.
    Then call `neighborhood`. Memory grows with the neighborhood.

    Args:
        core: the C++ object for the graph, see DistGraph._core_graph.
        seeds: {node type: ids}, as `HopPlan.checked` returns.
        keys, choice: the random keys of each hop, and how in-edges are drawn; `plan.keyed(rng)` returned both for this
            minibatch.
        trees: the groups of the seeds, if a node found from two groups is to occur once in each; None: no groups.
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
            only_among=plan.only_among,
            narrow=graph.index_dtype == torch.int32,
        )
        self._asked: list[Ask] = []
        self._blocks: list[Any] = []  # an entry for each hop so far
        self._local_seeds: list[Any] = []

    def start(self) -> list[Ask] | None:
        """Return the requests of hop 0, which draws in-edges of the seeds: at most one request for each part. None if
        there are no hops.

        Raises:
            IndexError: A seed is not a node of the graph.
        """
        numbers = self._plan.node_numbers
        self._local_seeds, by_part = self._hops.start(
            [(numbers[node_type], ids.long().numpy()) for node_type, ids in self._seeds.items()]
        )
        return self._ask(by_part) if self._plan.fanouts else None

    def advance(self, answers: Sequence[Drawn]) -> list[Ask] | None:
        """Take the answers to the requests of a hop, in their order. Return the requests of the next hop, at most one
        for each part; None after the last hop.

        Raises:
            TypeError, ValueError: An answer does not fit its request; the message names the part.
            MemoryError: The hop needs more memory than is left.
        """
        arrays = [self._arrays(ask.part, answer) for ask, answer in zip(self._asked, answers, strict=True)]
        blocks, by_part = self._hops.advance(arrays)
        self._blocks.append(blocks)
        return None if by_part is None else self._ask(by_part)

    def neighborhood(self) -> Sampled:
        """Return the sampled neighborhood. Call this once, after the last hop."""
        nodes, groups = self._hops.finish()
        of_groups = groups if self._has_groups else None
        edge_types = self._plan.edge_types
        return hops.sampled(self._graph, self._seeds, nodes, self._local_seeds, self._blocks, of_groups, edge_types)

    def _ask(self, by_part: list[Any]) -> list[Ask]:
        """Build and return the requests of the next hop, at most one for each part. They are kept in `_asked`, since
        `advance` needs them for the answers.

        Args:
            by_part: from the C++ core: (part, nodes to draw for, indices of the edge types to draw from) for each part.
        """
        types, hop, plan = self._graph.node_types, len(self._blocks), self._plan
        self._asked = []
        for part, rows, draws in by_part:
            ids, streams, times, windows = {}, {}, {}, {}
            for number, type_ids, type_streams, type_times, type_windows in rows:
                ids[types[number]] = torch.from_numpy(type_ids)
                if type_streams is not None:  # either all node types have streams or none; so the others
                    streams[types[number]] = torch.from_numpy(type_streams)
                if type_times is not None:
                    times[types[number]] = torch.from_numpy(type_times)
                if type_windows is not None:
                    windows[types[number]] = torch.from_numpy(type_windows)
            wanted = tuple(Draw(plan.edge_types[i], plan.fanouts[hop][i], self._keys[hop][i]) for i in draws)
            choice = self._choice.at(hop, draws)
            columns = {"streams": streams or None, "times": times or None, "windows": windows or None}
            request = DrawRequest(ids, wanted, plan.replace, plan.edge_ids, choice=choice, **columns)
            self._asked.append(Ask(part, request))
        return self._asked

    def _arrays(self, part: int, answer: Drawn) -> tuple[Any, Any, Any]:
        """Return (indptr, neighbors, edge_ids or None) of the answer of `part`, as NumPy arrays for the C++ core.

        Types, dtypes and shapes are checked here, values by the core. An answer that came as a message was checked
        before, but an answer of the local part, or of Peers that a user wrote, was not.
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
            f"{tensor.device}; needed is {dtype_name(dtype)} of 1 dimension in host memory. Look at the server of "
            "this part: its version, its files."
        )
    return tensor.contiguous().numpy()
