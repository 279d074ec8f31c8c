"""HopsOverParts: what one minibatch asks of the parts, hop by hop, and what it makes of their answers. It does no
I/O, so sync and async callers share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name
from datapipes.base.types import ends_of, type_text
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.wire.requests import Draw, Drawn, DrawRequest
from datapipes.minibatch import Block
from datapipes.partition.native.choices import ByNumber, Choice
from datapipes.sampling.sampler import Sampled
from datapipes.sampling.seed_trees import SeedTrees


class Ask(NamedTuple):
    """What one part is asked."""

    part: int
    request: DrawRequest


class HopDraw(NamedTuple):
    """What a hop draws from one edge type; see Draw. The fanout may be 0.

    Attributes:
        number_keys: of a ByNumber: the key of the next generation, and that of batch 0.
    """

    fanout: int
    key: int
    number_keys: tuple[int, int] | None = None


class HopsOverParts:
    """The hops of one minibatch over a graph in parts, with hash maps: memory grows by what the minibatch finds.

    `start` numbers the seeds and returns what hop 0 asks of the parts. `advance` takes the answers, aligned with what
    was asked, and returns what the next hop asks; a hop may ask nothing, and is advanced with []. After the last hop
    it returns None, and `sampled` has the neighborhood.

    Args:
        edge_types: those that are drawn from, in sorted order.
        hops: hop 0 (next to the seeds) first; of each edge type.
        replace, only_new, edge_ids: as DistNeighborSampler has them; `only_new` stands for frontier "new".
        trees: the groups of the seeds, where these have nodes of their own.
        choice: how in-edges are drawn, if not uniformly.
    """

    def __init__(
        self,
        graph: DistGraph,
        core: CoreGraph,
        edge_types: Sequence[Any],
        hops: list[list[HopDraw]],
        *,
        replace: bool,
        only_new: bool,
        edge_ids: bool,
        trees: SeedTrees | None = None,
        choice: Choice | None = None,
    ) -> None:
        self._graph, self._edge_types, self._draws = graph, tuple(edge_types), hops
        self._name = core.name
        self._replace, self._edge_ids, self._trees, self._choice = replace, edge_ids, trees, choice
        self._node_numbers = {of: number for number, of in enumerate(graph.node_types)}
        numbers = {of: number for number, of in enumerate(graph.edge_types)}
        self._hops = _core.HopsOverParts(
            core.get(),
            groups=None if trees is None else _groups(trees),
            sampled=[numbers[of] for of in edge_types],
            fanouts=[[each.fanout for each in hop] for hop in hops],
            replace=replace,
            only_new=only_new,
            want_edge_ids=edge_ids,
            narrow=graph.index_dtype == torch.int32,
        )
        self._asked: list[Ask] = []
        self._blocks: list[dict[Any, Block]] = []
        self._local_seeds: dict[Any, Tensor] = {}

    def start(self, seeds: dict[Any, Tensor]) -> list[Ask]:
        """Return what hop 0 asks.

        Args:
            seeds: {node type or None: int32 or int64 [n]}, repeats allowed; of the types of `trees`, in their order.
        Raises:
            IndexError: A seed is not a node of the graph.
        """
        local, asks = self._hops.start([(self._node_numbers[of], ids.long().numpy()) for of, ids in seeds.items()])
        self._local_seeds = {of: torch.from_numpy(ids) for of, ids in zip(seeds, local, strict=True)}
        return self._asks(asks)

    def advance(self, answers: Sequence[Sequence[Drawn]]) -> list[Ask] | None:
        """Return what the next hop asks; None after the last one.

        Raises:
            TypeError, ValueError: An answer is not what was asked for; the message names the part.
            MemoryError: The hop needs more memory than is left.
        """
        given = [self._arrays(ask.part, answer) for ask, answer in zip(self._asked, answers, strict=True)]
        hop, asks = self._hops.advance(given)
        self._blocks.append({of: _block(*parts) for of, parts in zip(self._edge_types, hop, strict=True)})
        return None if asks is None else self._asks(asks)

    def sampled(self) -> Sampled:
        """Return the neighborhood; once, after the last hop."""
        found, of_groups = self._hops.finish()
        nodes, groups = self._by_type(found), None if self._trees is None else self._by_type(of_groups)
        if self._graph.is_heterogeneous:
            return Sampled(nodes, self._local_seeds, self._blocks, groups)
        blocks = [hop[None] for hop in self._blocks]
        return Sampled(nodes[None], self._local_seeds[None], blocks, groups and groups[None])

    def _by_type(self, arrays: Sequence[Any]) -> dict[Any, Tensor]:
        return {of: torch.from_numpy(each) for of, each in zip(self._graph.node_types, arrays, strict=True)}

    def _asks(self, asks: list[Any]) -> list[Ask]:
        types, hop = self._graph.node_types, self._draws[len(self._blocks)]
        self._asked = []
        for part, rows, draws in asks:
            wanted = tuple(Draw(self._edge_types[i], hop[i].fanout, hop[i].key) for i in draws)
            ids, streams, times = (_column({types[number]: columns[i] for number, *columns in rows}) for i in range(3))
            assert ids is not None
            choice = self._choice
            if isinstance(choice, ByNumber):
                choice = choice._replace(keys=tuple(keys for i in draws if (keys := hop[i].number_keys) is not None))
            request = DrawRequest(ids, wanted, self._replace, self._edge_ids, streams, times, choice)
            self._asked.append(Ask(part, request))
        return self._asked

    def _arrays(self, part: int, answer: Sequence[Drawn]) -> list[tuple[Any, Any, Any]]:
        """Return an answer as the core takes it, which checks the rest."""
        arrays, where = [], f"{self._name}: part {part}"
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
    if any(each is None for each in arrays.values()):
        return None
    return {of: torch.from_numpy(each) for of, each in arrays.items()}


def _groups(trees: SeedTrees) -> _core.Groups:
    of_seeds = [*trees.groups.values()] if isinstance(trees.groups, dict) else [trees.groups]
    streams = trees.streams if trees.streams.any() else None  # seeds of one time have stream 0, which need not travel
    return _core.Groups(of_seeds, count=len(trees.streams), streams=streams, times=trees.times)


def _array(where: str, name: str, given: Tensor, dtype: torch.dtype) -> Any:
    if not isinstance(given, Tensor):
        raise TypeError(f"{where} must answer {name} as a tensor, got {type(given).__name__}. Correct the Peers.")
    if given.dtype != dtype or given.ndim != 1 or given.device.type != "cpu":
        raise ValueError(
            f"{where} answered {name} of {dtype_name(given.dtype)} {list(given.shape)} on "
            f"{given.device}; they must be {dtype_name(dtype)} of 1 dimension in host memory. Look at the server of "
            "this part: its version, its files."
        )
    return given.contiguous().numpy()


def _block(indptr: Any, indices: Any, edge_ids: Any, num_src: int) -> Block:
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src, ids)


class CoreGraph:
    """A graph in parts as the core takes it: its types, and views of the book's maps.

    Args:
        name: of the stage, for errors.
    """

    def __init__(self, name: str, graph: DistGraph) -> None:
        self.name, self._graph = name, graph
        self._made: tuple[_core.GraphInParts, list[int]] | None = None

    def get(self) -> _core.GraphInParts:
        """Return it; made again when the memory of a map has moved, as `tensor.share_memory_()` does."""
        graph = self._graph
        maps = [graph.book.nodes(of).stored() for of in graph.node_types]
        places = [each.data_ptr() for each in maps]
        if self._made is None or self._made[1] != places:
            numbers = {of: number for number, of in enumerate(graph.node_types)}
            nodes = [(_text(of), graph.num_nodes_of(of), each.numpy()) for of, each in zip(numbers, maps, strict=True)]
            ends = [ends_of(of) for of in graph.edge_types]
            relations = [
                (numbers[src], numbers[dst], _text(of)) for of, (src, dst) in zip(graph.edge_types, ends, strict=True)
            ]
            self._made = _core.GraphInParts(graph.facts.num_parts, nodes, relations, self.name), places
        return self._made[0]


def _text(of: Any) -> str:
    return "" if of is None else type_text(of)
